const T = window.tinylm;
const find = (name) => element.querySelector(name);
const root = find(".tl");
const beside = find(".tl-map-beside"); // as wide as the panel, whatever the map's size
const box = find(".tl-map-box");
const [rowMark, cellMark] = [find(".tl-map-row"), find(".tl-map-cell")];
const [blockSelect, headSelect] = [find(".tl-block"), find(".tl-head")];
const LEGEND = [0.01, 0.1, 0.5, 1];
const STILL = 250; // ms without a change before a map is asked for
const MOST = 3;

let newest = 0; // run number of the value drawn last
let map = null; // what is drawn: { model, sha, ids, texts, shares }
let wanted = null; // the text that stands in the tab: { model, sha, ids, texts }
let asked = ""; // the question asked last, or answered by what is drawn
let inView = false;
let waiting = 0;
let cell = 16; // px
let [row, column] = [0, 0]; // the chosen cell

// Small shares would be hard to see: the colour goes by the square root.
const shade = (share) => Math.sqrt(share);
const at = (i, j) => (j <= i ? map.shares[(i * (i + 1)) / 2 + j] : undefined);
const named = (i) => `token ${i + 1}, ${T.said(map.texts[i])},`;
const exact = (share) => `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`;

function sum(i) {
  let total = 0;
  for (let j = 0; j <= i; j++) total += at(i, j);
  return total;
}

// ---- asking

const question = () => [wanted.model, wanted.sha, wanted.ids, Number(blockSelect.value) || 1, Number(headSelect.value) || 1];

// Ask once the text has come to rest and the map can be seen: a stream in the same tab must not wait for it.
function soon() {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    if (!inView || !wanted?.ids?.length) return;
    const [model, , ids, block, head] = question();
    const key = JSON.stringify(question());
    if (key === asked) return;
    asked = key;
    trigger("click", { model, ids, block, head });
  }, STILL);
}

function hear(detail) {
  if (!detail?.ids) return;
  if (wanted && wanted.model !== detail.model) blockSelect.value = headSelect.value = "1"; // another may have fewer
  wanted = { model: detail.model, sha: detail.weights?.sha256, ids: detail.ids, texts: detail.texts };
  soon();
}

T.bus.addEventListener("complete:text", ({ detail }) => hear(detail));
new IntersectionObserver((entries) => {
  inView = entries.at(-1).isIntersecting;
  if (inView) soon();
}).observe(root);
for (const select of [blockSelect, headSelect]) {
  select.addEventListener("change", () => {
    wanted ||= map;
    soon();
  });
}

// ---- drawing

function options(select, n, chosen) {
  if (select.options.length !== n) {
    select.replaceChildren(...Array.from({ length: n }, (_, i) => new Option(String(i + 1))));
  }
  select.value = String(chosen);
}

// A token's name at the edge, its number next to the cells.
function label(i, numberFirst) {
  const node = T.el("span");
  node.dataset.index = i;
  const number = T.el("small", "", String(i + 1));
  node.append(...(numberFirst ? [number, ` ${T.said(map.texts[i])}`] : [`${T.said(map.texts[i])} `, number]));
  return node;
}

function layOut() {
  if (!map || !beside.clientWidth) return;
  const n = map.ids.length;
  const room = beside.clientWidth - find(".tl-map-rows").offsetWidth - 12;
  cell = Math.max(15, Math.min(30, Math.floor(room / n)));
  for (const node of find(".tl-map-rows").children) node.style.height = node.style.lineHeight = `${cell}px`;
  for (const node of find(".tl-map-columns").children) node.style.width = node.style.lineHeight = `${cell}px`;
  T.heat(find("canvas"), n, n, (i, j) => (j <= i ? shade(at(i, j)) : undefined), { cell });
  mark();
}

let width = 0;
new ResizeObserver(() => {
  // Hidden behind another tab it has no width.
  if (beside.clientWidth && beside.clientWidth !== width) layOut();
  width = beside.clientWidth;
}).observe(beside);

function place(node, i, j, nColumns) {
  node.hidden = false;
  Object.assign(node.style, { top: `${i * cell}px`, left: `${j * cell}px`, width: `${nColumns * cell - 1}px`, height: `${cell - 1}px` });
}

function mark() {
  place(rowMark, row, 0, row + 1);
  place(cellMark, row, column, 1);
  for (const node of box.querySelectorAll("span.tl-current")) node.classList.remove("tl-current");
  find(".tl-map-rows").children[row]?.classList.add("tl-current");
  find(".tl-map-columns").children[column]?.classList.add("tl-current");
}

function say(i, j) {
  const text =
    j <= i
      ? `T${named(i).slice(1)} takes ${exact(at(i, j))} from ${i === j ? "itself" : named(j).slice(0, -1)}.`
      : `T${named(i).slice(1)} can't see ${named(j).slice(0, -1)}: it comes later.`;
  if (find(".tl-map-said").textContent !== text) find(".tl-map-said").textContent = text;
}

// The tokens that a row takes most from.
const most = (i, count) =>
  Array.from({ length: i + 1 }, (_, j) => j)
    .sort((a, b) => at(i, b) - at(i, a))
    .slice(0, count);

function choose(i, j) {
  const n = map.ids.length;
  row = Math.max(0, Math.min(n - 1, i));
  column = Math.max(0, Math.min(n - 1, j));
  mark();
  say(row, column);
  const named3 = most(row, MOST).map((k) => `${k === row ? "itself" : `${T.said(map.texts[k])} (${k + 1})`} ${exact(at(row, k))}`);
  find(".tl-map-most").textContent = `Token ${row + 1} attends most to ${named3.join(", ")}. Its row adds up to ${(100 * sum(row)).toFixed(4)} %.`;
}

// Bring the chosen cell into sight, clear of the labels that stay at the edges.
function reveal() {
  const [top, left] = [row * cell, column * cell];
  const [seenHeight, seenWidth] = [box.clientHeight - find(".tl-map-columns").offsetHeight, box.clientWidth - find(".tl-map-rows").offsetWidth];
  if (top < box.scrollTop) box.scrollTop = top;
  if (top + cell > box.scrollTop + seenHeight) box.scrollTop = top + cell - seenHeight;
  if (left < box.scrollLeft) box.scrollLeft = left;
  if (left + cell > box.scrollLeft + seenWidth) box.scrollLeft = left + cell - seenWidth;
}

// Chosen here: the chips hear of it. Chosen there, from the chips: only the mark moves.
function chooseHere(i, j) {
  choose(i, j);
  T.bus.dispatchEvent(new CustomEvent("complete:chosen", { detail: { index: row, from: "attention" } }));
}

function chooseThere(index) {
  if (!map || !Number.isInteger(index) || index < 0 || index >= map.ids.length) return;
  choose(index, most(index, 1)[0]);
  reveal();
}

T.bus.addEventListener("complete:chosen", ({ detail }) => detail?.from !== "attention" && chooseThere(detail?.index));

function drawSums() {
  const sums = map.ids.map((_, i) => sum(i));
  const [low, high] = [Math.min(...sums), Math.max(...sums)].map((total) => `${(100 * total).toFixed(4)} %`);
  const rows = sums.length === 1 ? "The row adds" : `Each of the ${sums.length} rows adds`;
  find(".tl-map-sum").textContent = `${rows} up to ${low === high ? low : `${low} to ${high}`}, added up in this browser from the numbers shown.`;
}

const table = T.table(
  find(".tl-details"),
  () => ["Token", "Text", "Takes in, from the largest share on", "Sum"],
  () =>
    map.ids.map((_, i) => [
      String(i + 1),
      T.said(map.texts[i]),
      most(i, i + 1).map((j) => `${j + 1} ${T.said(map.texts[j])}: ${exact(at(i, j))}`).join(", "),
      `${(100 * sum(i)).toFixed(4)} %`,
    ]),
);

function draw({ result, page }) {
  const before = map;
  const ids = JSON.stringify(result.ids);
  // The visitor's own characters stand in the tab; the server has only what the model reads.
  const current = wanted?.model === result.model && JSON.stringify(wanted.ids.slice(0, page.context)) === ids;
  map = {
    model: result.model,
    sha: page.weights.sha256,
    ids: result.ids,
    texts: current ? wanted.texts : page.texts,
    shares: T.floats(result.map),
  };
  asked = JSON.stringify([map.model, map.sha, current ? wanted.ids : map.ids, result.block, result.head]);
  options(blockSelect, page.n_blocks, result.block);
  options(headSelect, page.n_heads, result.head);
  for (const node of element.querySelectorAll(".tl-d-head")) node.textContent = page.d_head;
  find(".tl-map-rows").replaceChildren(...map.ids.map((_, i) => label(i, false)));
  find(".tl-map-columns").replaceChildren(...map.ids.map((_, i) => label(i, true)));
  layOut();
  if (before && JSON.stringify(before.ids) === ids) choose(row, column);
  else choose(map.ids.length - 1, most(map.ids.length - 1, 1)[0]);
  drawSums();
  table();
}

function arrive() {
  const value = T.unpacked(props.value);
  if (!value?.run || value.run < newest) return;
  newest = value.run;
  const drawn = value.result?.map;
  T.status(find(".tl-status"), value, value.state, drawn ? `Block ${value.result.block}, head ${value.result.head}.` : "");
  if (value.state === "error") asked = ""; // the same may be asked again, when something is chosen
  if (drawn && value.state === "done") draw(value);
  find(".tl-attention-body").hidden = !map;
}

// ---- pointing

function under(event) {
  const frame = find("canvas").getBoundingClientRect();
  const n = map.ids.length;
  const [i, j] = [event.clientY - frame.top, event.clientX - frame.left].map((px) => Math.max(0, Math.min(n - 1, Math.floor(px / cell))));
  return [i, j];
}

const cells = find(".tl-map-cells");
cells.addEventListener("pointermove", (event) => {
  if (!map || event.pointerType === "touch") return;
  const [i, j] = under(event);
  place(cellMark, i, j, 1);
  say(i, j);
});
cells.addEventListener("pointerleave", () => map && (mark(), say(row, column)));
cells.addEventListener("click", (event) => map && chooseHere(...under(event)));
find(".tl-map-rows").addEventListener("click", (event) => {
  const index = Number(event.target.closest("[data-index]")?.dataset.index ?? -1);
  if (index >= 0) chooseHere(index, most(index, 1)[0]);
});
box.addEventListener("keydown", (event) => {
  if (!map || event.ctrlKey || event.metaKey || event.altKey) return;
  const to = {
    ArrowUp: [Math.max(row - 1, 0), Math.min(column, Math.max(row - 1, 0))],
    ArrowDown: [row + 1, column],
    ArrowLeft: [row, column - 1],
    ArrowRight: [row, Math.min(column + 1, row)],
    Home: [row, 0],
    End: [row, row],
  }[event.key];
  if (!to) return;
  event.preventDefault();
  chooseHere(...to);
  reveal();
});

// ---- the start

for (const share of LEGEND) {
  const swatch = T.el("i");
  swatch.style.background = T.heatColour(shade(share));
  find(".tl-map-legend").append(swatch, `${100 * share} %`);
}
watch("value", arrive);
arrive();
if (T.completeText) hear(T.completeText);
