const T = window.tinylm;
const find = (name) => element.querySelector(name);
let shown = { result: {}, page: {} }; // the value that was drawn last
const switches = find(".tl-switches");
const force = find(".tl-force select");
let off = []; // a set of experts by layer
let nExperts = 0;
let run = 0;
let rowsDrawn = 0;

const layers = () => off.map((_, layer) => layer);
const isOff = (expert, layer) => off[layer].has(expert);
const offEverywhere = (expert) => layers().every((layer) => isOff(expert, layer));
const numbers = (experts) => `expert${experts.length > 1 ? "s" : ""} ${experts.map((i) => i + 1).join(", ")}`;

// An operation in words.
function said(operation, n) {
  const lists = operation.map((experts) => experts.join());
  const [first] = operation;
  if (lists.every((list) => !list)) return "with all experts on";
  if (lists.every((list) => list === lists[0])) {
    const left = Array.from({ length: n }, (_, i) => i).filter((i) => !first.includes(i));
    return left.length === 1 ? `with expert ${left[0] + 1} alone everywhere` : `with ${numbers(first)} off everywhere`;
  }
  const some = operation.map((experts, layer) => experts.length && `${numbers(experts)} off in layer ${layer + 1}`);
  return `with ${some.filter(Boolean).join(", ")}`;
}

// The switches: a column an expert, the first of each for all layers at once.
function build(n, nLayers) {
  nExperts = n;
  off = Array.from({ length: nLayers }, () => new Set());
  switches.style.setProperty("--rows", nLayers + 2);
  switches.replaceChildren(T.el("span"), T.el("span", "tl-switch-label", "everywhere"), ...layers().map((layer) => T.el("span", "tl-switch-label", `layer ${layer + 1}`)));
  for (let expert = 0; expert < n; expert++) {
    const head = T.el("span", "tl-swatch", String(expert + 1));
    head.style.background = T.expertColour(expert);
    head.style.color = T.expertInk(expert);
    switches.append(head);
    for (const layer of [null, ...layers()]) {
      const node = T.el("button", "tl-switch-off");
      node.type = "button";
      node.tabIndex = -1;
      node.dataset.expert = expert;
      if (layer !== null) node.dataset.layer = layer;
      node.style.setProperty("--expert", T.expertColour(expert));
      node.setAttribute("aria-label", `Expert ${expert + 1} off ${layer === null ? "everywhere" : `in layer ${layer + 1}`}`);
      switches.append(node);
    }
  }
  setStop(switches.querySelector(".tl-switch-off"));
  const option = (value, text) => Object.assign(T.el("option", "", text), { value });
  force.replaceChildren(option("", "none"), ...Array.from({ length: n }, (_, i) => option(i, `expert ${i + 1}`)));
}

const setStop = T.roving(switches, ".tl-switch-off", () => {}, () => off.length + 1);

function showSwitches() {
  for (const node of switches.querySelectorAll(".tl-switch-off")) {
    const expert = Number(node.dataset.expert);
    const some = layers().some((layer) => isOff(expert, layer));
    const pressed = node.dataset.layer === undefined ? (offEverywhere(expert) ? "true" : some ? "mixed" : "false") : String(isOff(expert, Number(node.dataset.layer)));
    node.setAttribute("aria-pressed", pressed);
  }
  const alone = Array.from({ length: nExperts }, (_, i) => i).filter((i) => layers().every((layer) => off[layer].size === nExperts - 1 && !isOff(i, layer)));
  force.value = alone.length && nExperts > 1 ? alone[0] : "";
  const empty = layers().filter((layer) => off[layer].size === nExperts);
  const message = empty.length ? `${empty.map((layer) => `Layer ${layer + 1}`).join(", ")} would have no expert left. Leave at least one on.` : "";
  if (find(".tl-refusal").textContent !== message) find(".tl-refusal").textContent = message;
  find(".tl-operate").disabled = empty.length > 0;
}

function setAll(isExpertOff) {
  off = off.map(() => new Set(Array.from({ length: nExperts }, (_, i) => i).filter(isExpertOff)));
  showSwitches();
}

switches.addEventListener("click", (event) => {
  const node = event.target.closest(".tl-switch-off");
  if (!node) return;
  const expert = Number(node.dataset.expert);
  const at = node.dataset.layer === undefined ? layers() : [Number(node.dataset.layer)];
  const areOff = at.every((layer) => isOff(expert, layer));
  for (const layer of at) off[layer][areOff ? "delete" : "add"](expert);
  showSwitches();
});
force.addEventListener("change", () => setAll((i) => force.value !== "" && i !== Number(force.value)));
find(".tl-reset").addEventListener("click", () => setAll(() => false));
find(".tl-operate").addEventListener("click", () => trigger("operate", { off: off.map((experts) => [...experts].sort((a, b) => a - b)) }));

// The texts

function token(text, isPrompt, name) {
  const node = T.el("span", isPrompt ? "tl-told-token tl-told-prompt" : "tl-told-token");
  node.append(name ? T.el("span", "tl-special", name) : T.spelled(text));
  return node;
}

function tell(box, told, { n_prompt, from_nothing }) {
  const all = told?.tokens || [];
  for (let i = box.children.length; i < all.length; i++) {
    box.append(token(all[i], i < n_prompt, from_nothing && i === 0 ? "start" : T.SPECIAL.get(all[i])));
  }
}

// Where the two texts part.
function parting(plain, operated) {
  const most = Math.max(plain.ids.length, operated.ids.length);
  for (let i = 0; i < most; i++) if (plain.ids[i] !== operated.ids[i]) return i;
  return plain.stopped === operated.stopped ? null : most;
}

const signed = (change) => T.signed(change, 3);
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

function showLosses({ loss, losses, rows }) {
  const box = find(".tl-losses");
  box.hidden = !losses || loss.plain === null;
  if (box.hidden) return;
  const changes = losses.plain.map((value, i) => losses.operated[i] - value);
  const again = mean(losses.operated) - mean(losses.plain);
  find(".tl-before").textContent = loss.plain.toFixed(3);
  find(".tl-after").textContent = loss.operated.toFixed(3);
  find(".tl-change").textContent = signed(rows[0].change);
  find(".tl-change-again").textContent = signed(again);
  find(".tl-agree").textContent = Math.abs(again - rows[0].change) < 5e-4 ? "The same." : "Not the same!";
  const most = Math.max(1, ...changes.map(Math.abs));
  [...find(".tl-plain-text").children].slice(1).forEach((node, i) => {
    node.style.background = T.heatColour((0.4 * changes[i]) / most, true);
    node.title = `${losses.plain[i].toFixed(3)} → ${losses.operated[i].toFixed(3)} nats`;
  });
  find(".tl-tint-key").textContent = "The bluer a token, the less the operated model expects it; orange is the other way round.";
}

function showOutcome(value, state) {
  const { result, page } = value;
  const { plain, operated } = result;
  find(".tl-outcome").hidden = !plain;
  if (!plain) return "";
  tell(find(".tl-plain-text"), plain, page);
  tell(find(".tl-operated-text"), operated, page);
  const words = said(result.off, page.n_experts);
  const capital = words[0].toUpperCase() + words.slice(1);
  find(".tl-operation").textContent = capital;
  showLosses(result);
  if (!operated || operated.stopped === null) return "";
  const at = parting(plain, operated);
  [...find(".tl-operated-text").children].slice(page.n_prompt).forEach((node, i) => node.classList.toggle("tl-other", at !== null && i + page.n_prompt >= at));
  if (state === "running") return "";
  const choices = operated.experts.flatMap((byLayer) => byLayer.flatMap((experts, layer) => experts.map((expert) => result.off[layer].includes(expert))));
  find(".tl-taken").textContent = `Counted in this run: the experts that are off took ${choices.filter(Boolean).length} of ${choices.length} choices.`;
  return at === null ? `${capital}, the text stays the same.` : `${capital}, the text changes from token ${at + 1} on.`;
}

// The table

function changed(row) {
  if (!row.first) return `all ${row.n_choices} stay`;
  const { token: index, was, now } = row.first;
  return `${row.n_other} of ${row.n_choices} change, first at token ${index + 1}: ${T.said(was)} → ${T.said(now)}`;
}

function cell(tag, ...content) {
  const node = T.el(tag);
  node.append(...content);
  return node;
}

function bar(value, most) {
  const track = T.el("span", "tl-track");
  const fill = T.el("span", value < 0 ? "tl-fill tl-less" : "tl-fill");
  fill.style.width = `${(100 * Math.abs(value)) / most}%`;
  track.append(fill);
  return track;
}

function surest(row) {
  const list = T.el("ul", "tl-surest");
  for (const [text, layer, p] of row.surest) {
    const item = T.el("li");
    const name = T.el("span", "tl-surest-token");
    name.append(T.SPECIAL.has(text) ? T.SPECIAL.get(text) : T.spelled(text));
    item.append(name, ` ${T.percent(p)}, layer ${layer + 1}`);
    list.append(item);
  }
  return row.surest.length ? list : "–";
}

function showRows(rows) {
  if (rows.length === rowsDrawn) return;
  rowsDrawn = rows.length;
  const most = Math.max(1e-9, ...rows.map((row) => Math.abs(row.change ?? 0)));
  const nodes = rows.map((row) => {
    const head = cell("th", row.expert === null ? "your operation" : T.el("span", "tl-swatch", String(row.expert + 1)));
    head.scope = "row";
    if (row.expert !== null) {
      head.firstChild.style.background = T.expertColour(row.expert);
      head.firstChild.style.color = T.expertInk(row.expert);
      head.prepend("expert ");
    }
    const change = row.change === null ? ["–"] : [T.el("span", "tl-figure", signed(row.change)), bar(row.change, most)];
    const share = T.el("span", "tl-figure", row.share === 0 ? "0 %" : T.percent(row.share));
    return cell("tr", head, cell("td", ...change), cell("td", share), cell("td", surest(row)), cell("td", changed(row)));
  });
  find(".tl-rows tbody").replaceChildren(...nodes);
}

const table = T.table(
  find(".tl-details"),
  () => ["Token", "Text", "As trained", "Operated", "Change"],
  () => {
    const { plain, losses } = shown.result;
    return (losses?.plain || []).map((value, i) => [String(i + 2), T.said(plain.tokens[i + 1]), value.toFixed(4), losses.operated[i].toFixed(4), signed(losses.operated[i] - value)]);
  },
);

function start(value) {
  run = value.run;
  rowsDrawn = 0;
  for (const name of [".tl-plain-text", ".tl-operated-text", ".tl-rows tbody"]) find(name).replaceChildren();
  for (const name of [".tl-tint-key", ".tl-taken"]) find(name).textContent = "";
  const { n_experts, n_layers } = value.page;
  if (n_experts && (n_experts !== nExperts || n_layers !== off.length)) {
    build(n_experts, n_layers);
    value.result.off.forEach((experts, layer) => (off[layer] = new Set(experts)));
    showSwitches();
  }
}

function draw(value, state) {
  shown = value;
  if (value.run !== run) start(value);
  element.querySelector(".tl").classList.toggle("tl-empty", !nExperts);
  const note = T.unknownNote(value.page.unknown);
  find(".tl-notes").textContent = note;
  find(".tl-notes").hidden = !note;
  const done = showOutcome(value, state);
  showRows(value.result.rows || []);
  T.status(find(".tl-status"), value, state, done);
  table();
}

T.follow(element, props, watch, "routing-stop", draw);
