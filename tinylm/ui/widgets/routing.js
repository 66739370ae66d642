const T = window.tinylm;
const find = (name) => element.querySelector(name);
let shown = { result: {}, page: {} }; // the value that was drawn last
const chart = find(".tl-chart");
const COLUMN = 58; // px, as in the style sheet
const LABELS = 30;
const PADDING = 4;
let run = 0;
let drawn = 0;
let columns = []; // one node a token, in order
let chosen = null; // [token, layer] that the visitor chose; null follows the run
let painted = 0; // the layer whose experts colour the text
let sums = []; // by layer, of the tokens drawn: how often each expert was chosen, and its probabilities added up

const tokens = () => shown.result.tokens || [];
const nLayers = () => shown.page.n_layers || 0;

function cell(token, index, layer) {
  const node = T.el("button", "tl-cell");
  node.type = "button";
  node.tabIndex = -1;
  node.dataset.token = index;
  node.dataset.layer = layer;
  token.experts[layer].forEach((expert, k) => {
    const part = T.el("span", "tl-part");
    part.dataset.expert = expert + 1; // shown by the style sheet: the cell's own name says it in words
    part.style.flexGrow = token.weights[layer][k];
    part.style.background = T.expertColour(expert);
    part.style.color = T.expertInk(expert);
    node.append(part);
  });
  const words = token.experts[layer].map((expert, k) => `expert ${expert + 1} ${T.percent(token.weights[layer][k])}`);
  node.setAttribute("aria-label", `${T.said(token.text)}, layer ${layer + 1}: ${words.join(", ")}`);
  return node;
}

// The mark between texts stands at the start of one that starts from nothing.
function spelled({ text }, index) {
  if (!T.SPECIAL.has(text)) return T.spelled(text);
  return T.el("span", "tl-special", index === 0 && shown.page.from_nothing ? "start" : T.SPECIAL.get(text));
}

function column(token, index) {
  const node = T.el("div", index < shown.page.n_prompt ? "tl-column tl-of-prompt" : "tl-column");
  const label = T.el("div", "tl-token");
  label.append(spelled(token, index));
  node.append(label);
  for (let layer = 0; layer < token.experts.length; layer++) node.append(cell(token, index, layer));
  return node;
}

function band() {
  const node = T.el("div", "tl-band");
  const labels = T.el("div", "tl-layers");
  labels.setAttribute("aria-hidden", "true");
  labels.append(T.el("div", "tl-token", ""));
  for (let layer = 0; layer < nLayers(); layer++) labels.append(T.el("div", "tl-layer", `L${layer + 1}`));
  node.append(labels);
  return node;
}

const perBand = () => Math.max(1, Math.floor((chart.clientWidth - PADDING - LABELS) / COLUMN));

// `most` columns go side by side; to ask the chart for its width at each column would lay the page out each time.
function place(node, most) {
  let last = chart.lastElementChild;
  if (!last || last.children.length - 1 >= most) {
    last = band();
    chart.append(last);
  }
  last.append(node);
}

function layOut() {
  const focused = document.activeElement;
  const most = perBand();
  chart.replaceChildren();
  for (const node of columns) place(node, most);
  if (chart.contains(focused)) focused.focus();
}

let width = 0;
new ResizeObserver(() => {
  // Hidden behind another tab the chart has no width, and what is placed meanwhile has to be laid out again.
  const now = chart.clientWidth ? perBand() : 0;
  if (now && now !== width) layOut();
  width = now;
}).observe(chart);

function showCell(index, layer) {
  for (const node of chart.querySelectorAll(".tl-current")) node.classList.remove("tl-current");
  const token = tokens()[index];
  if (!token) return;
  chart.querySelector(`[data-token="${index}"][data-layer="${layer}"]`)?.classList.add("tl-current");
  const used = { 1: "The likeliest is", 2: "The two likeliest are" }[shown.page.top_k] || `The ${shown.page.top_k} likeliest are`;
  find(".tl-cell-hint").textContent = `${T.said(token.text)}, token ${index + 1}, layer ${layer + 1}. ${used} used. Choose another cell to see its own.`;
  T.bars(
    find(".tl-cell-bars"),
    token.probs[layer].map((value, expert) => ({
      label: `Expert ${expert + 1}`,
      value,
      colour: T.expertColour(expert),
      chosen: token.experts[layer].includes(expert),
    })),
  );
}

const setStop = T.roving(
  chart,
  ".tl-cell",
  (node, how) => {
    const at = [Number(node.dataset.token), Number(node.dataset.layer)];
    if (how === "mouseover" && chosen) return;
    if (how !== "mouseover") chosen = at;
    showCell(...at);
  },
  nLayers,
);

function showLoad(load, nExperts, page) {
  const box = find(".tl-load");
  while (box.children.length > load.length) box.lastElementChild.remove();
  load.forEach((shares, layer) => {
    let group = box.children[layer];
    if (!group) {
      group = T.el("div", "tl-load-layer");
      group.append(T.el("h3", "", `Layer ${layer + 1}`), T.el("ul", "tl-bars"), T.el("p", "tl-layer-figures"));
      box.append(group);
    }
    const most = 1 / page.top_k;
    group.style.setProperty("--balanced", 1 / nExperts / most);
    group.lastElementChild.textContent = `entropy ${page.entropy[layer].toFixed(2)} of ${Math.log2(nExperts).toFixed(2)} bits · loss ${page.layer_losses[layer].toFixed(2)}`;
    T.bars(
      group.children[1],
      shares.map((value, expert) => ({ label: `Expert ${expert + 1}`, value, colour: T.expertColour(expert) })),
      most,
    );
  });
}

const layerButtons = find(".tl-layer-buttons");

// A token in the text, marked by its likeliest expert in the layer that colours it.
function paint(node, token) {
  const expert = token.probs[painted].indexOf(Math.max(...token.probs[painted]));
  node.dataset.expert = expert + 1;
  node.style.setProperty("--expert", T.expertColour(expert));
  node.title = `expert ${expert + 1}, ${T.percent(token.probs[painted][expert])}`;
}

function word(token, index) {
  const node = T.el("span", "tl-painted-token");
  node.append(spelled(token, index));
  paint(node, token);
  return node;
}

layerButtons.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  painted = Number(button.dataset.layer);
  showPaintedLayer();
  const all = tokens();
  [...find(".tl-painted").children].forEach((node, i) => all[i] && paint(node, all[i]));
});

function showPaintedLayer() {
  for (const button of layerButtons.children) button.setAttribute("aria-pressed", Number(button.dataset.layer) === painted);
}

function layerChoice(n) {
  painted = Math.min(painted, Math.max(0, n - 1));
  while (layerButtons.children.length > n) layerButtons.lastElementChild.remove();
  while (layerButtons.children.length < n) {
    const button = T.el("button", "tl-button", `Layer ${layerButtons.children.length + 1}`);
    button.type = "button";
    button.dataset.layer = layerButtons.children.length;
    layerButtons.append(button);
  }
  showPaintedLayer();
}

function count(token) {
  token.experts.forEach((ids, layer) => {
    const layerSums = (sums[layer] ||= { chosen: token.probs[layer].map(() => 0), probs: token.probs[layer].map(() => 0) });
    for (const id of ids) layerSums.chosen[id] += 1;
    token.probs[layer].forEach((p, i) => (layerSums.probs[i] += p));
  });
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

// The server's figures once more, from nothing but what the chart shows.
function again() {
  const losses = sums.map(({ chosen, probs }) => (probs.length * sum(probs.map((p, i) => p * chosen[i]))) / drawn ** 2);
  const entropies = sums.map(({ chosen }) => -sum(chosen.filter(Boolean).map((n) => (n / sum(chosen)) * Math.log2(n / sum(chosen)))));
  return { loss: sum(losses) / losses.length, entropies };
}

function showAgain(result, page) {
  const { loss, entropies } = again();
  find(".tl-loss-server").textContent = result.load_balancing_loss.toFixed(3);
  find(".tl-loss-best").textContent = page.top_k;
  find(".tl-loss-browser").textContent = loss.toFixed(3);
  find(".tl-entropy-browser").textContent = entropies.map((bits) => bits.toFixed(2)).join(", ");
  // Probabilities reach the page with five decimals.
  const same = Math.abs(loss - result.load_balancing_loss) < 5e-4 && entropies.every((bits, i) => Math.abs(bits - page.entropy[i]) < 5e-4);
  find(".tl-agree").textContent = same ? "The same." : "Not the same!";
}

function preferred(expert, index) {
  const node = T.el("div", "tl-preference");
  const title = T.el("h4", "", "");
  title.append(swatch(index), `expert ${index + 1}`);
  node.append(title);
  for (const [kind, said] of [["kinds", "kinds of words"], ["tokens", "tokens"]]) {
    const list = T.el("ul");
    list.setAttribute("aria-label", said);
    list.dataset.kind = kind;
    for (const [label, lift] of expert[kind]) {
      const item = T.el("li");
      const name = T.el("span", kind === "tokens" ? "tl-preferred-token" : "");
      name.append(kind === "tokens" && !T.SPECIAL.has(label) ? T.spelled(label) : T.SPECIAL.get(label) || label);
      item.append(name, ` ×${lift.toFixed(1)}`);
      list.append(item);
    }
    node.append(list);
  }
  return node;
}

// Made only while it is open.
function showPreferences() {
  const layers = shown.page.preferences;
  const box = find(".tl-preferences");
  box.hidden = !layers;
  if (!layers || !box.open) return;
  const groups = layers.map((experts, layer) => {
    const group = T.el("div");
    const row = T.el("div", "tl-preference-row");
    row.append(...experts.map(preferred));
    group.append(T.el("h3", "", `Layer ${layer + 1}`), row);
    return group;
  });
  find(".tl-preference-layers").replaceChildren(...groups);
}
find(".tl-preferences").addEventListener("toggle", showPreferences);

function swatch(i) {
  const node = T.el("span", "tl-swatch", String(i + 1));
  node.style.background = T.expertColour(i);
  node.style.color = T.expertInk(i);
  return node;
}

find(".tl-download").addEventListener("click", () => {
  const { result, page } = shown;
  const { ids, n_prompt, settings, weights, stopped, entropy, layer_losses } = page;
  T.download("tinylm-routing.json", {
    settings, weights, stopped, n_prompt, ...result, tokens: tokens().map((token, i) => ({ id: ids[i], ...token })), entropy, layer_losses,
  });
});

function start(value) {
  run = value.run;
  drawn = 0;
  columns = [];
  chosen = null;
  sums = [];
  chart.replaceChildren();
  find(".tl-painted").replaceChildren();
  layerChoice(value.page.n_layers || 0);
  showPreferences();
  const experts = find(".tl-experts");
  experts.replaceChildren();
  for (let i = 0; i < (value.result.n_experts || 0); i++) {
    const item = T.el("li");
    item.append(swatch(i), `expert ${i + 1}`);
    experts.append(item);
  }
}

const table = T.table(
  find("details"),
  () => ["Token", "Text", ...Array.from({ length: nLayers() }, (_, i) => `Layer ${i + 1}`)],
  () =>
    tokens().map((token, i) => [
      String(i + 1),
      T.said(token.text),
      ...token.experts.map((ids, layer) => ids.map((id, k) => `${id + 1}: ${T.percent(token.weights[layer][k])}`).join(", ")),
    ]),
);

function draw(value, state) {
  shown = value;
  const { result, page } = value;
  const all = result.tokens || [];
  if (value.run !== run || all.length < drawn) start(value);
  T.atEnd(chart, () => {
    const most = drawn < all.length ? perBand() : 0;
    for (; drawn < all.length; drawn++) {
      const node = column(all[drawn], drawn);
      columns.push(node);
      place(node, most);
      count(all[drawn]);
    }
  });
  const text = find(".tl-painted");
  T.atEnd(text, () => {
    for (let i = text.children.length; i < all.length; i++) text.append(word(all[i], i));
  });
  const first = chart.querySelector(".tl-cell");
  if (first && !chart.querySelector('.tl-cell[tabindex="0"]')) setStop(first);
  T.status(find(".tl-status"), value, state, T.STOPPED[page.stopped] || "");
  element.querySelector(".tl").classList.toggle("tl-empty", !all.length);

  const notes = [];
  if (page.from_nothing) notes.push("The prompt is empty, so the model starts from nothing: from the mark that stands between texts.");
  if (page.unknown?.length) notes.push(T.unknownNote(page.unknown));
  if (page.unknown_words?.length) notes.push(T.newWordsNote(page.unknown_words));
  if (page.stopped === "context") notes.push("The last token was not read any more, so it has no experts.");
  find(".tl-notes").textContent = notes.join(" ");
  find(".tl-notes").hidden = !notes.length;
  if (!all.length) return table();

  find(".tl-how").textContent = `One column a token, one row a layer. Each cell is split between the ${page.top_k} experts that the router chose, by their weights. The prompt's tokens are underlined.`;
  if (!chosen) showCell(state === "running" ? all.length - 1 : 0, 0);
  const balanced = 1 / result.n_experts;
  find(".tl-load-hint").textContent = `Each expert's share of these ${all.length} tokens' choices; the line marks an even ${T.percent(balanced)}.`;
  showLoad(result.load, result.n_experts, page);
  showAgain(result, page);
  find(".tl-download").disabled = state === "running";
  table();
}

T.follow(element, props, watch, "routing-stop", draw);
