const T = window.tinylm;
const find = (name) => element.querySelector(name);
const chart = find(".tl-chart");
const COLUMN = 58; // px, as in the style sheet
const LABELS = 30;
const PADDING = 4;
let run = 0;
let drawn = 0;
let columns = []; // one node a token, in order
let chosen = null; // [token, layer] that the visitor chose; null follows the run

const tokens = () => props.value.result.tokens || [];
const nLayers = () => props.value.page.n_layers || 0;

function cell(token, index, layer) {
  const node = T.el("button", "tl-cell");
  node.type = "button";
  node.tabIndex = -1;
  node.dataset.token = index;
  node.dataset.layer = layer;
  token.experts[layer].forEach((expert, k) => {
    const part = T.el("span", "tl-part", String(expert + 1));
    part.style.flexGrow = token.weights[layer][k];
    part.style.background = T.expertColour(expert);
    part.style.color = T.expertInk(expert);
    node.append(part);
  });
  const words = token.experts[layer].map((expert, k) => `expert ${expert + 1} ${T.percent(token.weights[layer][k])}`);
  node.setAttribute("aria-label", `${T.said(token.text)}, layer ${layer + 1}: ${words.join(", ")}`);
  return node;
}

function column(token, index) {
  const node = T.el("div", index < props.value.page.n_prompt ? "tl-column tl-of-prompt" : "tl-column");
  const label = T.el("div", "tl-token");
  label.append(T.SPECIAL.has(token.text) ? T.el("span", "tl-special", "start") : T.spelled(token.text));
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

function place(node) {
  let last = chart.lastElementChild;
  if (!last || last.children.length - 1 >= perBand()) {
    last = band();
    chart.append(last);
  }
  last.append(node);
}

function layOut() {
  const focused = document.activeElement;
  chart.replaceChildren();
  columns.forEach(place);
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
  const used = { 1: "The likeliest is", 2: "The two likeliest are" }[props.value.page.top_k] || `The ${props.value.page.top_k} likeliest are`;
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

function showLoad(load, nExperts, topK) {
  const box = find(".tl-load");
  while (box.children.length > load.length) box.lastElementChild.remove();
  load.forEach((shares, layer) => {
    let group = box.children[layer];
    if (!group) {
      group = T.el("div", "tl-load-layer");
      group.append(T.el("h3", "", `Layer ${layer + 1}`), T.el("ul", "tl-bars"));
      box.append(group);
    }
    const most = 1 / topK;
    group.style.setProperty("--balanced", 1 / nExperts / most);
    T.bars(
      group.lastElementChild,
      shares.map((value, expert) => ({ label: `Expert ${expert + 1}`, value, colour: T.expertColour(expert) })),
      most,
    );
  });
}

function start(value) {
  run = value.run;
  drawn = 0;
  columns = [];
  chosen = null;
  chart.replaceChildren();
  const experts = find(".tl-experts");
  experts.replaceChildren();
  for (let i = 0; i < (value.result.n_experts || 0); i++) {
    const item = T.el("li", "", "");
    const swatch = T.el("span", "tl-swatch", String(i + 1));
    swatch.style.background = T.expertColour(i);
    swatch.style.color = T.expertInk(i);
    item.append(swatch, `expert ${i + 1}`);
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
  const { result, page } = value;
  const all = result.tokens || [];
  if (value.run !== run || all.length < drawn) start(value);
  T.atEnd(chart, () => {
    for (; drawn < all.length; drawn++) {
      const node = column(all[drawn], drawn);
      columns.push(node);
      place(node);
    }
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
  showLoad(result.load, result.n_experts, page.top_k);
  find(".tl-loss").textContent =
    result.load_balancing_loss === null
      ? ""
      : `Load-balancing loss: ${result.load_balancing_loss.toFixed(3)}, the mean of the layers; ${page.top_k} is perfect balance.`;
  table();
}

T.follow(props, watch, "routing-stop", draw);
