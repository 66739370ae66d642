const T = window.tinylm;
const find = (name) => element.querySelector(name);
const body = find("tbody");
const LABELS = ["Same tokens", "Logit difference", "Bytes kept", "ms a token"];

// What each way is, in words; `numbers` tells how many numbers it keeps a token and block.
const WAYS = {
  again: { name: ["Everything read again"], what: "no cache; the others are held against it", numbers: () => null },
  latent: { name: [T.terms.term("latent", "Latent"), " cache, ", T.terms.term("absorb", "absorbed")], what: "the model itself", numbers: (page) => [page.d_latent, `${page.d_latent} numbers`] },
  folded: { name: ["Latent cache, folded"], what: "what this page runs", numbers: (page) => [page.d_latent, `${page.d_latent} numbers`] },
  full: { name: ["Full cache, ", T.terms.term("expand", "expanded")], what: "keys and values, each kept whole", numbers: (page) => [2 * page.d_model, `2 × ${page.d_model} numbers`] },
};

const whole = (n) => n.toLocaleString("en-GB");

// 0.0000019 as 1.9 × 10⁻⁶
function small(value) {
  if (value === null) return "not a number";
  if (value === 0) return "0";
  if (value >= 0.01) return value.toFixed(value < 1 ? 3 : 1);
  const [digits, power] = value.toExponential(1).split("e");
  return `${digits} × 10⁻${[...String(-power)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`;
}

// The bytes again, from the sizes alone.
function recomputed(row, page) {
  const kept = WAYS[row.way].numbers(page);
  if (!kept) return "nothing but the text";
  const bytes = page.n_layers * row.n_read * kept[0] * page.bytes_per_number;
  const sign = bytes === row.bytes ? "=" : "but";
  return `${sign} ${page.n_layers} blocks × ${row.n_read} tokens × ${kept[1]} × ${page.bytes_per_number} B${bytes === row.bytes ? "" : ` = ${whole(bytes)} B`}`;
}

function cells(row, rows, page, state) {
  const reference = rows[0];
  if (row === reference) {
    return [[`${whole(row.n_new)} ${row.n_new === 1 ? "token" : "tokens"}`], ["–"], [`${whole(row.bytes)} B`, recomputed(row, page)], time(row, rows, page, state)];
  }
  const same = row.same ? ["yes", `all ${whole(row.n_new)}`] : ["no", `differs at token ${row.n_compared}`];
  return [
    same,
    [small(row.largest_difference), `over ${row.n_compared} ${row.n_compared === 1 ? "step" : "steps"}`],
    [`${whole(row.bytes)} B`, recomputed(row, page)],
    time(row, rows, page, state),
  ];
}

function time(row, rows, page, state) {
  if (row.ms_per_token === null && state === "running") return ["…"];
  if (row.ms_per_token === null) return ["–", page.running ? "not timed" : "one step alone"];
  const most = Math.max(...rows.map((other) => other.ms_per_token));
  return [row.ms_per_token.toFixed(row.ms_per_token < 9.995 ? 2 : 1), null, row.ms_per_token / most];
}

function drawRow(way, contents) {
  const node = T.el("tr");
  node.setAttribute("role", "row");
  node.dataset.way = way;
  const head = T.el("th");
  head.scope = "row";
  head.setAttribute("role", "rowheader");
  // A term's button can stand in one place only, and each row is drawn anew.
  head.append(...WAYS[way].name.map((part) => (part.cloneNode ? part.cloneNode(true) : part)), T.el("small", "", WAYS[way].what));
  node.append(head);
  contents.forEach(([text, note, share], i) => {
    const cell = T.el("td");
    cell.setAttribute("role", "cell");
    cell.dataset.label = LABELS[i];
    cell.append(T.el("span", "", text));
    if (note) cell.append(T.el("small", "", note));
    if (share !== undefined) {
      const track = T.el("span", "tl-track");
      const fill = T.el("span", "tl-fill");
      fill.style.width = `${100 * share}%`;
      track.append(fill);
      cell.append(track);
    }
    node.append(cell);
  });
  body.append(node);
  return node;
}

function verdict(rows) {
  const others = rows.slice(1);
  const different = others.filter((row) => !row.same);
  const n = `${rows[0].n_new} ${rows[0].n_new === 1 ? "token" : "tokens"}`;
  if (!different.length) return `All ${rows.length} ways give the same ${n}.`;
  return `${different.length} of ${others.length} ways do not give the ${n} that reading everything again gives.`;
}

function draw(value, state) {
  const { result, page } = value;
  const rows = result.rows || [];
  T.status(find(".tl-status"), value, state, rows.length ? verdict(rows) : "");
  find(".tl-proof-body").hidden = !page.n_prompt;
  if (!page.n_prompt) return;

  const text = find(".tl-proof-text");
  text.replaceChildren(page.from_nothing ? T.el("span", "tl-special", "from nothing") : page.prompt);
  if (rows.length) text.append(T.el("span", "tl-new", rows[0].text));
  body.replaceChildren();
  for (const row of rows) {
    const node = drawRow(row.way, cells(row, rows, page, state));
    if (!row.same) node.children[1].dataset.same = "false";
    if (!row.same) node.children[1].append(T.el("small", "", row.text ? `It says: ${row.text}` : "It says nothing."));
  }
  if (state === "running" && WAYS[page.running]) drawRow(page.running, Array(4).fill(["…"])).dataset.running = "true";
  const shortened = page.shortened ? ` Only the first ${page.max_tokens} new tokens are compared.` : "";
  find(".tl-proof-times").textContent =
    `Up to ${page.max_tokens} new tokens, at temperature 0.${shortened} Bytes are measured on the tensors. ` +
    `Times are measured on this server: all ways in turn, the median of at least ${page.n_timed} steps behind the prompt, after a run that warms up.`;
}

T.follow(element, props, watch, "proof-stop", draw);
