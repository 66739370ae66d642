const T = window.tinylm;
const find = (name) => element.querySelector(name);
let shown = { result: {}, page: {} }; // the value that was drawn last
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 300;
const MARGIN = { left: 46, right: 14, top: 22, bottom: 40 };
const MOST_MARKS = 60; // points to a curve that still get a mark of their own
const WIDE_RANGE = 20; // of losses, from which on a logarithmic scale shows more
const UNITS = { seconds: "seconds", step: "steps" };

let chosen = null; // the name of the run that is shown
let along = "seconds";
let scale = null; // even or log, once the visitor has chosen
let reading = null; // which measurement the reading tells; null is the last
const measured = new Map(); // what the server measured again, by the run's name

const runs = () => shown.result.runs || [];
const run = () => runs().find((one) => one.name === chosen) || runs()[0];
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const whole = (value) => Math.round(value).toLocaleString("en-GB");
const digits = (value, n = 3) => value.toLocaleString("en-GB", { minimumFractionDigits: n, maximumFractionDigits: n });
const share = (value) => `${digits(100 * value, 1)} %`;

// ---- The chart

function svg(tag, attributes = {}, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// Round steps from `low` on, about `count` of them, up to `high`.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i++) found.push(i * step);
  return found;
}

// 1, 2 and 5 of each power of ten between the two; of more than eight the powers alone.
function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) {
    for (const n of [1, 2, 5]) if (n * 10 ** power >= low && n * 10 ** power <= high) found.push(n * 10 ** power);
  }
  const powers = found.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9);
  return found.length > 8 && powers.length > 1 ? powers : found;
}

function curves() {
  const { history, article } = run();
  const found = [
    { name: "training", field: "train_loss", rows: history, colour: "var(--tl-ours)", dash: "6 4", mark: "circle" },
    { name: "validation", field: "val_loss", rows: history, colour: "var(--tl-ours)", mark: "circle", full: true },
  ];
  if (article) {
    const rows = article.history;
    found.push(
      { name: "article's recipe, training", field: "train_loss", rows, colour: "var(--tl-article)", dash: "2 4", mark: "square" },
      { name: "article's recipe, validation", field: "val_loss", rows, colour: "var(--tl-article)", mark: "square", full: true },
    );
  }
  return found
    .map((curve) => ({ ...curve, rows: curve.rows.filter((row) => isNumber(row[curve.field]) && row[curve.field] > 0) }))
    .filter((curve) => curve.rows.length);
}

function mark(curve, x, y) {
  const look = { fill: curve.full ? curve.colour : "var(--tl-card)", stroke: curve.colour, "stroke-width": 1.5 };
  if (curve.mark === "square") return svg("rect", { x: x - 3, y: y - 3, width: 6, height: 6, ...look });
  return svg("circle", { cx: x, cy: y, r: 3, ...look });
}

function line(curve, points) {
  const look = { class: "tl-curve", stroke: curve.colour, points: points.map((point) => point.join(",")).join(" ") };
  return svg("polyline", curve.dash ? { ...look, "stroke-dasharray": curve.dash } : look);
}

// Where the values lie in a plot of this width; the run's own length is the chart's, the article's curve ends there.
function axes(all, width) {
  const values = all.flatMap((curve) => curve.rows.map((row) => row[curve.field]));
  const ours = run().history.map((row) => row[along]);
  const end = Math.max(...(ours.length ? ours : run().article.history.map((row) => row[along])), 1e-9);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const isLog = (scale || (high / low > WIDE_RANGE ? "log" : "even")) === "log";
  const bottom = isLog ? low / 1.15 : 0;
  const top = isLog ? high * 1.15 : high * 1.05;
  const part = isLog ? (value) => Math.log(value / bottom) / Math.log(top / bottom) : (value) => value / top;
  const [right, base] = [width - MARGIN.right, HEIGHT - MARGIN.bottom];
  return {
    end,
    isLog,
    x: (value) => MARGIN.left + (value / end) * (right - MARGIN.left),
    y: (value) => base - part(value) * (base - MARGIN.top),
    xTicks: ticks(0, end, Math.max(2, Math.min(8, width / 90))),
    yTicks: isLog ? logTicks(bottom, top) : ticks(0, top, 6),
    right,
    base,
  };
}

let drawnAxes = null;

function drawChart() {
  const box = find(".tl-plot");
  const width = box.clientWidth;
  const all = curves();
  find(".tl-curves").hidden = !all.length;
  if (!width || !all.length) return box.replaceChildren();
  const held = box.contains(document.activeElement) ? document.activeElement.dataset.index : null;
  const place = (drawnAxes = axes(all, width));
  const root = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT });
  for (const value of place.yTicks) {
    root.append(svg("line", { class: "tl-grid", x1: MARGIN.left, x2: place.right, y1: place.y(value), y2: place.y(value) }));
    root.append(svg("text", { x: MARGIN.left - 8, y: place.y(value) + 4, "text-anchor": "end" }, String(Number(value.toPrecision(3)))));
  }
  for (const value of place.xTicks) {
    root.append(svg("line", { class: "tl-grid", x1: place.x(value), x2: place.x(value), y1: place.base, y2: place.base + 5 }));
    root.append(svg("text", { x: place.x(value), y: place.base + 18, "text-anchor": "middle" }, Number(value.toPrecision(6)).toLocaleString("en-GB")));
  }
  root.append(svg("text", { x: 0, y: 12 }, "loss, nats a token"));
  root.append(svg("text", { x: place.right, y: HEIGHT - 4, "text-anchor": "end" }, UNITS[along]));
  for (const curve of all) {
    const inside = curve.rows.filter((row) => row[along] <= place.end * 1.0001);
    root.append(line(curve, inside.map((row) => [place.x(row[along]), place.y(row[curve.field])])));
    if (inside.length <= MOST_MARKS) for (const row of inside) root.append(mark(curve, place.x(row[along]), place.y(row[curve.field])));
  }
  root.append(svg("g", { class: "tl-shown" }));
  root.append(...stops(place));
  for (const node of root.children) if (!node.classList.contains("tl-stop")) node.setAttribute("aria-hidden", "true");
  box.replaceChildren(root);
  const first = root.querySelectorAll(".tl-stop")[at()] || root.querySelector(".tl-stop");
  if (first) setStop(first);
  if (held !== null) root.querySelector(`[data-index="${held}"]`)?.focus();
  showReading();
}

// The rows that can be read off one by one: the run's own, or the article's where training left none.
const readable = () => (run().history.length ? run().history : run().article?.history || []);
const at = () => Math.min(reading ?? Infinity, readable().length - 1);

// Bands over the plot, one a measurement, each reaching halfway to its neighbours.
function stops(place) {
  const xs = readable().map((row) => place.x(row[along]));
  return readable().map((row, i) => {
    const left = i ? (xs[i - 1] + xs[i]) / 2 : MARGIN.left;
    const right = i + 1 < xs.length ? (xs[i] + xs[i + 1]) / 2 : place.right + MARGIN.right;
    const size = { x: left, y: MARGIN.top, width: Math.max(0, right - left), height: place.base - MARGIN.top };
    const node = svg("rect", { class: "tl-stop", role: "img", tabindex: "-1", ...size, "aria-label": told(row) });
    node.dataset.index = i;
    return node;
  });
}

const setStop = T.roving(find(".tl-plot"), ".tl-stop", (node) => {
  reading = Number(node.dataset.index);
  showReading();
});

const losses = (row) =>
  [
    isNumber(row.train_loss) && `training ${digits(row.train_loss)}`,
    isNumber(row.val_loss) && `validation ${digits(row.val_loss)} (perplexity ${perplexity(row.val_loss)})`,
  ]
    .filter(Boolean)
    .join(", ");
const spot = (row) => `${digits(row.seconds, 1)} s, step ${whole(row.step)}`;

function beside(row) {
  const rows = run().article?.history || [];
  if (!rows.length || !run().history.length) return null;
  return rows.reduce((best, one) => (Math.abs(one[along] - row[along]) < Math.abs(best[along] - row[along]) ? one : best));
}

function told(row) {
  const article = beside(row);
  const compared = article ? ` The article's recipe at ${spot(article)}: ${losses(article)}.` : "";
  return `At ${spot(row)}: ${losses(row)}.${compared}`;
}

function showReading() {
  const row = readable()[at()];
  const shown = find(".tl-shown");
  if (!row || !shown) return;
  find(".tl-reading").textContent = told(row);
  const x = drawnAxes.x(row[along]);
  shown.replaceChildren(svg("line", { class: "tl-hair", x1: x, x2: x, y1: MARGIN.top, y2: drawnAxes.base }));
  const others = beside(row);
  for (const curve of curves()) {
    const of = [row, others].find((one) => one && curve.rows.includes(one));
    if (of && of[along] <= drawnAxes.end * 1.0001) {
      shown.append(svg("circle", { class: "tl-ring", cx: drawnAxes.x(of[along]), cy: drawnAxes.y(of[curve.field]), r: 6 }));
    }
  }
}

function drawKeys() {
  const items = curves().map((curve) => {
    const item = T.el("li");
    const sample = svg("svg", { width: 34, height: 12, "aria-hidden": "true" });
    sample.append(line(curve, [[1, 6], [33, 6]]), mark(curve, 17, 6));
    item.append(sample, `${curve.name}, at the end ${digits(curve.rows.at(-1)[curve.field])}`);
    return item;
  });
  find(".tl-keys").replaceChildren(...items);
  const last = run().article?.history.at(-1);
  const cut = last && run().history.length && last[along] > run().history.at(-1)[along] * 1.02;
  find(".tl-beyond").hidden = !last;
  find(".tl-beyond").textContent = !last
    ? ""
    : `The article's recipe is plain SGD in small batches, run by the same loop on the same lines and vocabulary${
        isNumber(run().article.told.seconds) ? ` for ${whole(run().article.told.seconds)} s` : ""
      }.${cut ? ` Its curve goes on past the chart's edge, up to ${spot(last)}; the table has all of it.` : ""}`;
}

// ---- Figures

const perplexity = (loss) => {
  const value = Math.exp(loss);
  return value < 1000 ? value.toPrecision(3) : value < 1e6 ? whole(value) : value.toExponential(1);
};

// One figure: its name, its value, how it was checked, a short word on what it means, and the article's.
function figure(list, name, value, meaning = "", check = null, article = "") {
  const row = T.el("div");
  const title = T.el("dt");
  title.append(name);
  row.append(title);
  if (value) row.append(T.el("dd", "tl-value", value));
  if (check) row.append(T.el("dd", `tl-meaning ${check.same ? "tl-check" : "tl-differs"}`, check.text));
  if (meaning) row.append(T.el("dd", "tl-meaning", meaning));
  if (article) row.append(T.el("dd", "tl-meaning tl-other", `article's recipe: ${article}`));
  list.append(row);
}

const GLOSSARY = { "Validation loss": "loss", "Recall": "recall", "Active for a token": "expert", "Cache a token": "cache" };
const named = (name) => (GLOSSARY[name] ? T.terms.term(GLOSSARY[name], name) : name);

function learned() {
  const { told: info, article } = run();
  const list = find(".tl-learned");
  list.replaceChildren();
  const add = (key, name, show, meaning) => {
    if (!isNumber(info[key])) return;
    figure(list, named(name), show(info[key]), meaning, null, isNumber(article?.told[key]) ? show(article.told[key]) : "");
  };
  add("val_loss", "Validation loss", (v) => `${digits(v, 4)} nats`, "A token, on lines it never learned from. Lower is better.");
  add("val_loss", "Perplexity", perplexity, `exp(${isNumber(info.val_loss) ? digits(info.val_loss, 4) : ""}), worked out in your browser: as unsure as a choice among that many tokens.`);
  add("val_bits_per_character", "Bits a character", (v) => digits(v, 4), "The same surprise for each character, whatever the tokens.");
  add("recall", "Recall", share, `Of ${whole(info.n_probes || 0)} held-out sentences about known facts, so many end with a right answer.`);
  add("free_recall", "Free recall", share, `Right answers to ${whole(info.n_free_prompts || 0)} beginnings as visitors type them.`);
  add("copied_share", "Copied", share, `Of ${whole(info.n_copy_prompts || 0)} completions, so many are a whole training line; the others are new.`);
  captions(list, info);
  const loads = Array.isArray(info.expert_load) ? info.expert_load.filter(Array.isArray) : [];
  if (loads.length) {
    const bits = loads.map((shares) => digits(-shares.reduce((sum, p) => sum + (p > 0 ? p * Math.log2(p) : 0), 0), 2));
    const most = digits(Math.log2(loads[0].length), 2);
    figure(list, T.terms.term("load", "Load of the experts"), `${bits.join(", ")} bits`, `How evenly held-out tokens spread over the experts, by layer; ${most} bits is even. Worked out in your browser from the shares below.`);
  }
  showLoads(loads);
  showMeasured();
  if (!list.children.length) figure(list, "Nothing is told", "–", "This run's metrics.json has no figures.");
}

// ---- The loss measured again

const NEAR = 1e-3; // nats; another machine adds in another order

function showMeasured() {
  const { name, can_measure: can, told: info } = run();
  const said = find(".tl-measured");
  const answer = measured.get(name);
  find(".tl-again").hidden = !can;
  find(".tl-measure").disabled = answer?.state === "running";
  said.classList.remove("tl-check", "tl-differs");
  said.textContent = "";
  if (!answer) return;
  const { n_read: n, n_lines: all, loss } = answer.result;
  if (answer.state === "error") said.textContent = answer.message;
  else if (answer.state === "running") said.textContent = n ? `${whole(n)} of ${whole(all)} held-out lines, ${digits(loss, 4)} so far` : "Putting the held-out lines together…";
  else {
    const wrote = isNumber(info.val_loss) ? `; training wrote ${digits(info.val_loss, 4)}` : "";
    if (wrote) said.classList.add(Math.abs(loss - info.val_loss) < NEAR ? "tl-check" : "tl-differs");
    said.textContent = `Measured now on ${whole(all)} held-out lines: ${digits(loss, 4)} nats a token${wrote}.`;
  }
}

find(".tl-measure").addEventListener("click", () => {
  measured.set(run().name, { state: "running", result: {} });
  showMeasured();
  trigger("measure", { name: run().name });
});
T.bus.addEventListener("training:measure", (event) => {
  const answer = JSON.parse(JSON.stringify(event.detail));
  if (answer.result.name) measured.set(answer.result.name, answer);
  else for (const [name, one] of measured) if (one.state === "running") measured.set(name, { ...one, ...answer });
  if (runs().length) showMeasured();
});

function captions(list, info) {
  const from = info.test?.captions ? info.test : info;
  const of = from.captions;
  if (!of) return;
  const n = whole(of.n || 0);
  const where = from === info ? "held-out" : "test";
  const add = (value, name, show, meaning) => isNumber(value) && figure(list, named(name), show(value), meaning);
  add(of.caption_accuracy, "Captions right", share, `Of ${n} ${where} pictures, to the letter.`);
  add(of.top3, "Among the three likeliest", share, "So often the right name is one of the first three.");
  add(of.expected_calibration_error, "Calibration error", (v) => digits(v, 3), `How far its certainty is from how often it is right; 0 is perfect. Certainties are at a temperature of ${isNumber(info.caption_temperature) ? digits(info.caption_temperature, 2) : "–"}.`);
  const others = from.not_flowers;
  if (!others) return;
  add(others.auroc, "Flower or not", (v) => digits(v, 3), "Chance that a flower gets a higher score than another thing (AUROC); 0.5 is a guess, 1 is perfect.");
  add(others.others_refused, "Not-flowers refused", share, `Of ${whole(others.n_others || 0)} pictures of other things.`);
  add(others.flowers_turned_away, "Flowers turned away", share, `Of ${whole(others.n_flowers || 0)} flowers, by mistake: their score is below ${isNumber(info.flower_threshold) ? digits(info.flower_threshold, 2) : "the limit"}.`);
}

function showLoads(loads) {
  const groups = loads.map((shares, layer) => {
    const group = T.el("div");
    const list = T.el("ul", "tl-bars");
    group.append(T.el("h3", "", `Layer ${layer + 1}`), list);
    const rows = shares.map((value, expert) => ({ label: `Expert ${expert + 1}`, value, colour: T.expertColour(expert) }));
    T.bars(list, rows, 2 / shares.length);
    return group;
  });
  find(".tl-expert-loads").replaceChildren(...groups);
}

// A number that training wrote, beside the same number counted now.
function compare(counted, written) {
  if (!isNumber(written)) return { same: true, text: "Counted in the loaded tensors." };
  const same = counted === written;
  return { same, text: `Counted in the loaded tensors; training wrote ${whole(written)}: ${same ? "the same" : "not the same"}.` };
}

function sizes() {
  const { counted, told: info } = run();
  const list = find(".tl-sizes");
  list.replaceChildren();
  if (!counted) {
    if (isNumber(info.parameters)) figure(list, "Parameters", whole(info.parameters), "As training wrote; the weights can't be counted here.");
    else figure(list, "Weights", "–", "There are none to count.");
    return;
  }
  figure(list, "Parameters", whole(counted.parameters), "", compare(counted.parameters, info.parameters));
  figure(list, named("Active for a token"), whole(counted.active_parameters), "", compare(counted.active_parameters, info.active_parameters));
  const parts = counted.tensor_bytes + counted.header_bytes;
  figure(list, "Weight file", `${whole(counted.file_bytes)} bytes`, "", {
    same: parts === counted.file_bytes,
    text: `Measured on the file. The loaded tensors take ${whole(counted.tensor_bytes)}, its header ${whole(counted.header_bytes)}: together ${whole(parts)}.`,
  });
  figure(list, "Its sha256", "", counted.sha256);
  const times = counted.full_cache_bytes / counted.cache_bytes;
  figure(list, named("Cache a token"), T.bytes(counted.cache_bytes), `Measured after reading ${counted.cache_tokens} positions: ${counted.n_layers} blocks × ${counted.d_latent} numbers. Plain keys and values, ${counted.n_layers} × 2 × ${counted.d_model}, would take ${T.bytes(counted.full_cache_bytes)}: ${Number(times.toFixed(1))} times as much.`);
  figure(list, "Vocabulary and context", `${whole(counted.vocab_size)} / ${whole(counted.max_seq_len)}`, "Tokens that it knows, and tokens that it can look at.");
}

function made() {
  const { told: info, history } = run();
  const list = find(".tl-made");
  list.replaceChildren();
  if (isNumber(info.seconds)) figure(list, "Time", time(info.seconds), `${isNumber(info.steps) ? `${whole(info.steps)} steps` : ""}${isNumber(info.tokens_per_second) ? `, ${whole(info.tokens_per_second)} tokens a second, padding not counted` : ""}.`);
  if (info.device) figure(list, "Device", info.device, info.torch ? `PyTorch ${info.torch}.` : "");
  const lines = info.n_lines;
  const counts = lines ? Object.entries(lines).filter(([, n]) => isNumber(n)).map(([name, n]) => `${whole(n)} ${name}`) : [];
  if (info.data) figure(list, "Data", info.data, [counts.length ? `${counts.join(", ")} lines.` : "", info.data_note || ""].filter(Boolean).join(" "));
  if (isNumber(info.seed)) figure(list, named("Seed"), whole(info.seed));
  find(".tl-made").previousElementSibling.hidden = !list.children.length;
  find(".tl-remake").hidden = !info.command;
  find(".tl-command").textContent = info.command || "";
  find(".tl-article-command").hidden = !run().article?.told.command;
  find(".tl-article-command code").textContent = run().article?.told.command || "";
}

const time = (seconds) => (seconds < 100 ? `${digits(seconds, 1)} s` : `${whole(seconds)} s (${digits(seconds / 60, 1)} min)`);

// ---- Tables

const curveTable = T.table(
  find(".tl-curve-table"),
  () => ["Recipe", "Seconds", "Step", "Training", "Validation", "Perplexity"],
  () =>
    [["this run", run().history], ["article's", run().article?.history || []]].flatMap(([name, rows]) =>
      rows.map((row) => [
        name,
        digits(row.seconds, 1),
        whole(row.step),
        isNumber(row.train_loss) ? digits(row.train_loss, 4) : "–",
        isNumber(row.val_loss) ? digits(row.val_loss, 4) : "–",
        isNumber(row.val_loss) ? perplexity(row.val_loss) : "–",
      ]),
    ),
);

const domains = () => {
  const { told: info } = run();
  const labels = (info.test?.captions || info.captions)?.accuracy_by_label;
  return labels ? [labels] : [info.recall_by_domain || {}, info.free_recall_by_domain || {}];
};
const domainNames = () => [...new Set(domains().flatMap(Object.keys))].sort();
const domainTable = T.table(
  find(".tl-domain-table"),
  () => (domains().length === 1 ? ["Kind", "Captions right"] : ["Domain", "Recall", "Free recall"]),
  () => domainNames().map((name) => [name, ...domains().map((by) => (isNumber(by[name]) ? share(by[name]) : "–"))]),
);

const recipe = () => run().told.recipe_values || {};
const recipeTable = T.table(
  find(".tl-recipe-table"),
  () => ["Setting", "Value", ...(run().article ? ["Article's"] : [])],
  () =>
    Object.entries(recipe()).map(([key, value]) => {
      const other = run().article?.told.recipe_values?.[key];
      return [key, spelt(value), ...(run().article ? [spelt(other)] : [])];
    }),
);
const spelt = (value) => (Array.isArray(value) ? value.map(spelt).join(", ") : value === undefined || value === null ? "–" : String(value));

// ---- All of it

function show() {
  const one = run();
  for (const button of find(".tl-runs").children) button.setAttribute("aria-pressed", button.dataset.name === one.name);
  for (const button of element.querySelectorAll("[data-along]")) button.setAttribute("aria-pressed", button.dataset.along === along);
  find(".tl-problem").textContent = one.problem || "";
  find(".tl-problem").hidden = !one.problem;
  drawChart();
  for (const button of element.querySelectorAll("[data-scale]")) {
    button.setAttribute("aria-pressed", Boolean(drawnAxes) && (button.dataset.scale === "log") === drawnAxes.isLog);
  }
  drawKeys();
  learned();
  sizes();
  made();
  const known = one.counted || Object.keys(one.told).length;
  find(".tl-split").hidden = !known;
  find(".tl-domain-table").hidden = !domainNames().length;
  find(".tl-domain-table summary").textContent = domains().length === 1 ? "By kind of flower" : "By domain";
  find(".tl-recipe-table").hidden = !Object.keys(recipe()).length;
  curveTable();
  domainTable();
  recipeTable();
}

function press(selector, act) {
  element.addEventListener("click", (event) => {
    const button = event.target.closest(selector);
    if (!button) return;
    act(button.dataset);
    show();
  });
}
press(".tl-runs .tl-button", ({ name }) => {
  chosen = name;
  reading = null;
});
press("[data-along]", (data) => (along = data.along));
press("[data-scale]", (data) => (scale = data.scale));

find(".tl-copy").addEventListener("click", async () => {
  const said = find(".tl-remake [role=status]");
  said.textContent = "";
  try {
    await navigator.clipboard.writeText(find(".tl-command").textContent);
    said.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(find(".tl-command"));
    said.textContent = "Selected; copy it with your keyboard";
  }
});

// Hidden behind another tab the chart has no width.
let width = 0;
new ResizeObserver(() => {
  const now = find(".tl-plot").clientWidth;
  if (now && now !== width && runs().length) drawChart();
  width = now;
}).observe(find(".tl-plot"));

function draw(value, state) {
  shown = value;
  element.querySelector(".tl").classList.toggle("tl-empty", state === "error" || !runs().length);
  const status = find(".tl-status");
  status.textContent = state === "error" ? value.message : `${runs().length} run folders, read when the page was made ready.`;
  status.dataset.state = state;
  if (!runs().length) return;
  chosen = run().name;
  const buttons = runs().map(({ name }) => {
    const button = T.el("button", "tl-button", name);
    button.type = "button";
    button.dataset.name = name;
    return button;
  });
  find(".tl-runs").replaceChildren(...buttons);
  show();
}

T.follow(element, props, watch, "training-stop", draw);
