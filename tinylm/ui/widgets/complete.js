const T = window.tinylm;
const find = (name) => element.querySelector(name);
const text = find(".tl-text");
let run = 0;
let drawn = 0;
let chosen = -1; // the token whose alternatives are shown; -1 follows the run

const tokens = () => props.value.result.tokens || [];

function showAlternatives(index) {
  const token = tokens()[index];
  const list = find(".tl-alternatives");
  for (const chip of text.querySelectorAll(".tl-current")) chip.classList.remove("tl-current");
  if (!token) {
    find(".tl-hint").textContent = "No token yet.";
    list.replaceChildren();
    return;
  }
  text.querySelector(`[data-index="${index}"]`)?.classList.add("tl-current");
  find(".tl-hint").textContent = `Token ${index + 1}, ${T.said(token.text)}: ${T.percent(token.probability)}. Choose another token to see its own.`;
  const rows = token.alternatives.map(([label, value]) => ({ label, value, chosen: label === token.text }));
  if (!rows.some((row) => row.chosen)) rows.push({ label: token.text, value: token.probability, chosen: true });
  const spelled = ({ label, ...row }) => ({ ...row, label: T.SPECIAL.get(label) || label, special: T.SPECIAL.has(label), spell: true });
  T.bars(list, rows.map(spelled));
}

const setStop = T.roving(text, ".tl-chip", (chip, how) => {
  if (how === "mouseover" && chosen >= 0) return;
  const index = Number(chip.dataset.index);
  if (how !== "mouseover") chosen = index;
  showAlternatives(index);
});

function chip(token, index) {
  const node = T.el("button", "tl-chip");
  node.type = "button";
  node.tabIndex = -1;
  node.dataset.index = index;
  node.style.setProperty("--p", token.probability);
  node.title = T.percent(token.probability);
  node.append(T.SPECIAL.has(token.text) ? T.el("span", "tl-special", T.SPECIAL.get(token.text)) : T.spelled(token.text));
  node.setAttribute("aria-label", `${T.said(token.text)}, ${T.percent(token.probability)}`);
  return node;
}

function start(value) {
  run = value.run;
  drawn = 0;
  chosen = -1;
  text.replaceChildren();
  for (const name of [".tl-speed", ".tl-count", ".tl-cache-latent", ".tl-cache-full"]) find(name).textContent = "–";
  find(".tl-cache-note").textContent = "";
  for (const fill of element.querySelectorAll(".tl-cache .tl-fill")) fill.style.width = "0";
  if (value.page.from_nothing) text.append(T.el("span", "tl-prompt tl-special", "from nothing"));
  for (const piece of value.page.prompt || []) {
    const node = T.el("span", piece.known ? "tl-prompt" : "tl-prompt tl-unknown");
    node.append(T.spelled(piece.text));
    text.append(node);
  }
}

const table = T.table(
  find("details"),
  () => ["Token", "Text", "Probability", "Likeliest alternatives"],
  () =>
    tokens().map((token, i) => [
      String(i + 1),
      T.said(token.text),
      T.percent(token.probability),
      token.alternatives.slice(0, 4).map(([label, p]) => `${T.said(label)} ${T.percent(p)}`).join(", "),
    ]),
);

function draw(value, state) {
  const { result, page } = value;
  const all = result.tokens || [];
  if (value.run !== run || all.length < drawn) start(value);
  T.atEnd(text, () => {
    for (; drawn < all.length; drawn++) text.append(chip(all[drawn], drawn));
  });
  if (!text.querySelector('.tl-chip[tabindex="0"]') && text.querySelector(".tl-chip")) setStop(text.querySelector(".tl-chip"));
  if (chosen < 0) showAlternatives(state === "running" ? all.length - 1 : 0);
  T.status(find(".tl-status"), value, state, T.STOPPED[result.stopped] || "");

  const notes = [];
  if (page.from_nothing) notes.push("The prompt is empty, so the model starts from nothing: from the mark that stands between texts.");
  if (result.unknown?.length) notes.push(T.unknownNote(result.unknown));
  if (result.unknown_words?.length) notes.push(T.newWordsNote(result.unknown_words));
  find(".tl-notes").textContent = notes.join(" ");
  find(".tl-notes").hidden = !notes.length;

  element.querySelector(".tl").classList.toggle("tl-empty", !all.length && !page.prompt?.length);
  if (!all.length) return table();
  find(".tl-speed").textContent = `${Math.round(page.tokens_per_second).toLocaleString("en-GB")} tokens a second`;
  const nPrompt = page.from_nothing ? 0 : page.prompt.length;
  find(".tl-count").textContent = `${nPrompt} prompt + ${all.length} new, context ${page.context}`;
  const [latent, full] = element.querySelectorAll(".tl-cache .tl-fill");
  latent.style.width = `${(100 * result.cache_bytes) / result.full_cache_bytes}%`;
  full.style.width = "100%";
  find(".tl-cache-latent").textContent = T.bytes(result.cache_bytes);
  find(".tl-cache-full").textContent = T.bytes(result.full_cache_bytes);
  const times = result.full_cache_bytes / result.cache_bytes;
  find(".tl-cache-note").textContent = `${times.toFixed(times < 10 && times % 1 ? 1 : 0)} times smaller, measured at the newest token.`;
  table();
}

T.follow(props, watch, "complete-stop", draw);
