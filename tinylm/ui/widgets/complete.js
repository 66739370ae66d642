const T = window.tinylm;
const find = (name) => element.querySelector(name);
const text = find(".tl-text");
const MOST_BRANCHES = 12;
const MOST_KEPT = 256; // logits, of the chips chosen last
const PAUSE = 120; // ms that a chip stays chosen before its logits are asked for
const tree = T.branches(MOST_BRANCHES);
let newest = 0; // number of the newest run
let live = null; // the branch that the newest run fills
let shown = null; // the branch that is drawn
let pending = null; // the fork that was asked for and has not begun
let drawn = 0;
let chosen = -1; // the token that the visitor chose; -1 follows the run
let index = -1; // the token whose alternatives are shown
let curious = false; // whether the visitor did anything that needs the logits
let announced = "";
const kept = new Map(); // answers by what was read

const result = () => shown?.value.result || {};
const page = () => shown?.value.page || {};
const tokens = () => shown?.tokens || [];
const nPrompt = () => page().ids?.length || 0;
const promptTexts = () => (page().from_nothing ? ["<eos>"] : (page().prompt || []).map((piece) => piece.text));
const texts = () => [...promptTexts(), ...tokens().map((token) => token.text)];
const isOver = () => shown.state !== "running";
const ended = () => isOver() && result().stopped === "eos"; // then the end of the text has a chip of its own
const idsBefore = (i) => [...page().ids, ...tokens().slice(0, i).map((token) => token.id)];
const named = (node, label) => node.replaceChildren(T.SPECIAL.has(label) ? T.el("span", "tl-special", T.SPECIAL.get(label)) : T.spelled(label));
const exact = (p) => `${(100 * p).toFixed(2)} %`;

// ---- settings, as they stand now

const SLIDERS = { temperature: "complete-temperature", topK: "complete-top-k", topP: "complete-top-p" };
let settings = { temperature: 0, topK: 0, topP: 1 };

const range = (name) => document.querySelector(`#${SLIDERS[name]} input[type="range"]`);

function readSettings() {
  const now = {};
  for (const name of Object.keys(SLIDERS)) now[name] = Number(range(name)?.value ?? settings[name]);
  const changed = Object.keys(now).some((name) => now[name] !== settings[name]);
  settings = now;
  find(".tl-temperature").value = settings.temperature;
  return changed;
}

function followSettings() {
  const box = document.querySelector("#complete-settings");
  if (!Object.keys(SLIDERS).every(range)) return setTimeout(followSettings, 50); // they come a moment later
  const moved = () => {
    if (!readSettings()) return;
    curious = true;
    showAlternatives();
  };
  box.addEventListener("input", moved);
  // A number that is typed, the reset button and the server move the slider without an event; each restyles it.
  new MutationObserver(moved).observe(box, { subtree: true, attributes: true, attributeFilter: ["style"] });
  for (const limit of ["min", "max", "step"]) handle[limit] = range("temperature")[limit];
  readSettings();
  if (shown) showAlternatives();
}

// A second handle of the same setting, beside the bars.
const handle = find(".tl-temperature");
handle.addEventListener("input", () => {
  range("temperature").value = handle.value;
  range("temperature").dispatchEvent(new Event("input", { bubbles: true }));
});

// ---- the logits of the chosen token

const keyOf = (model, sha256, ids) => [model, sha256, ...ids].join(" ");
const answer = (i) => kept.get(keyOf(page().settings.model, page().weights.sha256, idsBefore(i)));
let asking = 0;
let refusal = "";

function ask() {
  clearTimeout(asking);
  if (!curious || !isOver() || answer(index)) return;
  const wanted = { model: page().settings.model, ids: idsBefore(index) };
  asking = setTimeout(() => trigger("logits", wanted), PAUSE);
}

T.bus.addEventListener("complete:logits", ({ detail }) => {
  refusal = detail.state === "error" ? detail.message : "";
  if (detail.result.logits) {
    const { model, ids, logits, likeliest } = detail.result;
    kept.set(keyOf(model, detail.page.weights.sha256, ids), { logits: T.floats(logits), likeliest });
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }
  if (shown) showAlternatives();
});

// ---- what else could have come

const list = find(".tl-alternatives");

// Token number i as the list shows it, `ids` those of its alternatives; of the end of the text, only the logits tell.
function described(i) {
  if (tokens()[i]) return tokens()[i];
  if (!ended() || i !== tokens().length) return undefined;
  const end = { id: page().eos_id, text: "<eos>", alternatives: [], ids: [], probability: null };
  const found = answer(i);
  if (!found) return end;
  const [ids, alternatives] = [found.likeliest.map(([id]) => id), found.likeliest.map(([, label, p]) => [label, p])];
  return { ...end, ids, alternatives, probability: T.distribution(found.logits)[end.id] };
}

// A token's rows, likeliest first: id, label, probability of the model.
function rowsOf(token) {
  if (token.probability === null) return [];
  const rows = token.alternatives.map(([label, p], i) => ({ id: token.ids[i], label, p }));
  if (!rows.some((row) => row.id === token.id)) rows.push({ id: token.id, label: token.text, p: token.probability });
  return rows;
}

function showAlternatives() {
  const token = described(index);
  const head = find(".tl-alternatives-title").nextElementSibling;
  for (const name of [".tl-alternatives-head", ".tl-temperature-row"]) find(name).hidden = !token;
  if (!token) {
    head.textContent = "No token yet.";
    list.replaceChildren();
    find(".tl-after-note").textContent = find(".tl-recomputed").textContent = "";
    return;
  }
  const yours = shown.forced.includes(index) ? " Your choice." : "";
  const p = token.probability === null ? "" : `: ${T.percent(token.probability)}`;
  head.textContent = `Token ${index + 1}, ${T.said(token.text)}${p}.${yours} Choose another one to fork the text here.`;
  const found = answer(index);
  const after = found && T.distribution(found.logits, settings.temperature, settings.topK, settings.topP);
  const rows = rowsOf(token);
  while (list.children.length > rows.length) list.lastElementChild.remove();
  rows.forEach((row, i) => {
    // At temperature 0 the likeliest is taken, whatever the others' logits are.
    const share = after ? after[row.id] : settings.temperature === 0 ? Number(i === 0) : null;
    drawRow(list.children[i] || list.appendChild(newRow()), row, share, row.id === token.id);
  });
  if (rows.length && !list.querySelector('[tabindex="0"]')) setForkStop(list.querySelector(".tl-fork"));
  find(".tl-after-note").textContent = afterNote();
  find(".tl-recomputed").textContent = recomputed(token, found);
  ask();
}

function newRow() {
  const row = T.el("li", "tl-alternative");
  const button = T.el("button", "tl-fork");
  button.type = "button";
  button.tabIndex = -1;
  const track = T.el("span", "tl-pair");
  track.append(T.el("span", "tl-fill tl-fill-plain"), T.el("span", "tl-fill"));
  row.append(button, track, T.el("span", "tl-before"), T.el("span", "tl-after"));
  return row;
}

function drawRow(item, { id, label, p }, share, isChosen) {
  const [button, track, before, after] = item.children;
  named(button, label);
  button.dataset.id = id;
  button.setAttribute("aria-disabled", isChosen);
  const shares = `${T.percent(p)} before, ${share === null ? "not known yet" : T.percent(share)} after`;
  button.setAttribute("aria-label", `${T.said(label)}, ${shares}${isChosen ? ", in the text" : ". Fork the text here"}`);
  item.classList.toggle("tl-chosen", isChosen);
  track.children[0].style.width = `${100 * p}%`;
  track.children[1].style.width = `${100 * (share ?? 0)}%`;
  before.textContent = T.percent(p);
  after.textContent = share === null ? "…" : share === 0 ? "0 %" : T.percent(share);
}

function afterNote() {
  const { temperature, topK, topP } = settings;
  if (temperature === 0) return "After: at temperature 0 the likeliest is always taken.";
  const cuts = [topK ? `top-k ${topK}` : "", topP < 1 ? `top-p ${topP}` : ""].filter(Boolean).join(", ");
  return `After: at temperature ${temperature}${cuts ? `, ${cuts}` : ""}, as set now.`;
}

function recomputed(token, found) {
  if (!found) {
    if (refusal) return refusal;
    return curious ? "" : "Choose a token to have its probability recomputed in your browser.";
  }
  const p = T.distribution(found.logits)[token.id];
  const all = found.logits.length.toLocaleString("en-GB");
  if (!tokens()[index]) return `Computed in your browser from all ${all} logits: ${exact(p)}.`;
  const same = Math.abs(p - token.probability) < 1e-4 ? "the same" : `not the same: ${exact(token.probability)}`;
  return `Recomputed in your browser from all ${all} logits: ${exact(p)}. The run said ${same}.`;
}

const setForkStop = T.roving(list, ".tl-fork", () => {});
list.addEventListener("click", (event) => {
  const button = event.target.closest(".tl-fork");
  if (!button || button.getAttribute("aria-disabled") === "true") return;
  const id = Number(button.dataset.id);
  const row = rowsOf(described(index)).find((row) => row.id === id);
  const given = [...tokens().slice(0, index).map((token) => token.id), id];
  pending = { parent: shown, at: index, token: row.label, given: given.join() };
  const prompt = promptText();
  trigger("fork", { prompt, model: page().settings.model, given });
});

const promptText = () => (page().prompt || []).map((piece) => piece.text).join("");

// ---- the text in chips

// Show a token's alternatives; `visitor` tells whether the visitor wants to see this very one.
function choose(i, visitor) {
  if (visitor) {
    chosen = i;
    curious = true;
  }
  index = i;
  for (const node of text.querySelectorAll(".tl-current")) node.classList.remove("tl-current");
  text.querySelector(`[data-index="${i}"]`)?.classList.add("tl-current");
  showAlternatives();
}

// A position of the whole text was chosen: here, in the map of latents, or by another panel.
function choosePosition(position, from) {
  const i = position - nPrompt();
  const isEnd = i === tokens().length;
  if (i >= 0 && (tokens()[i] || (isEnd && ended()))) {
    choose(i, true);
    if (from !== "chips") setStop(text.querySelector(`[data-index="${i}"]`));
  } else {
    for (const node of text.querySelectorAll(".tl-current")) node.classList.remove("tl-current");
    text.querySelectorAll(".tl-prompt")[position]?.classList.add("tl-current");
  }
  map.mark(position);
  if (from !== "bus" && !isEnd) T.bus.dispatchEvent(new CustomEvent("complete:chosen", { detail: { index: position, from: "complete" } }));
}

T.bus.addEventListener("complete:chosen", ({ detail }) => {
  if (shown && detail.from !== "complete") choosePosition(detail.index, "bus");
});

const map = T.latentMap(element, (position) => choosePosition(position, "map"));

const setStop = T.roving(text, ".tl-chip", (node, how) => {
  const i = Number(node.dataset.index);
  if (how !== "mouseover") choosePosition(nPrompt() + i, "chips");
  else if (chosen < 0) choose(i, false);
});

function chip(token, i) {
  const forced = shown.forced.includes(i);
  const node = T.el("button", forced ? "tl-chip tl-forced" : "tl-chip");
  node.type = "button";
  node.tabIndex = -1;
  node.dataset.index = i;
  node.style.setProperty("--p", token.probability);
  node.title = T.percent(token.probability) + (forced ? ", your choice" : "");
  named(node, token.text);
  node.setAttribute("aria-label", `${T.said(token.text)}, ${node.title}`);
  return node;
}

// The end of the text can be questioned, and forked, like any token.
function endChip(i) {
  const node = T.el("button", "tl-chip tl-end");
  node.type = "button";
  node.tabIndex = -1;
  node.dataset.index = i;
  named(node, "<eos>");
  return node;
}

function start() {
  drawn = 0;
  chosen = index = shown.forced.at(-1) ?? -1;
  text.replaceChildren();
  for (const name of [".tl-speed", ".tl-count", ".tl-cache-latent", ".tl-cache-full"]) find(name).textContent = "–";
  for (const name of [".tl-cache-note", ".tl-sum-latent", ".tl-sum-full"]) find(name).textContent = "";
  for (const fill of element.querySelectorAll(".tl-cache .tl-fill")) fill.style.width = "0";
  if (page().from_nothing) text.append(T.el("span", "tl-prompt tl-special", "from nothing"));
  for (const piece of page().prompt || []) {
    const node = T.el("span", piece.known ? "tl-prompt" : "tl-prompt tl-unknown");
    node.append(T.spelled(piece.text));
    text.append(node);
  }
  map.start(page().sizes);
}

// ---- the branches

function drawBranches() {
  find(".tl-branching").hidden = find(".tl-key-forced").hidden = tree.size() < 2;
  const focused = find(".tl-branches").contains(document.activeElement);
  find(".tl-branches").replaceChildren(branchItem(tree.root()));
  if (focused) find('.tl-branch[aria-pressed="true"]')?.focus();
}

function branchItem(node) {
  const item = T.el("li");
  const button = T.el("button", "tl-button tl-branch");
  button.type = "button";
  if (node.parent) {
    const label = T.el("span", "tl-branch-token");
    named(label, node.token);
    button.append(`token ${node.at + 1}: `, label);
    button.setAttribute("aria-label", `Branch at token ${node.at + 1}: ${T.said(node.token)}`);
  } else {
    button.textContent = "first run";
  }
  button.setAttribute("aria-pressed", node === shown);
  button.addEventListener("click", () => show(node));
  item.append(button);
  const children = tree.children(node);
  if (children.length) {
    const inner = T.el("ul");
    inner.append(...children.map(branchItem));
    item.append(inner);
  }
  return item;
}

function show(node) {
  shown = node;
  start();
  draw();
  drawBranches();
}

// ---- the cache

function drawCache() {
  const { cache_bytes: latent, full_cache_bytes: full } = result();
  const { n_layers: blocks, d_latent, d_model, bytes_per_number: bytes } = page().sizes;
  const positions = map.size();
  const [latentBar, fullBar] = element.querySelectorAll(".tl-cache .tl-fill");
  latentBar.style.width = `${(100 * latent) / full}%`;
  fullBar.style.width = "100%";
  find(".tl-cache-latent").textContent = T.bytes(latent);
  find(".tl-cache-full").textContent = T.bytes(full);
  const times = full / latent;
  find(".tl-cache-note").textContent = `${times.toFixed(times < 10 && times % 1 ? 1 : 0)} times smaller, measured at the newest token.`;
  const count = (n) => n.toLocaleString("en-GB");
  const product = positions * d_latent * blocks * bytes;
  const measured = product === latent ? "as measured" : `but measured: ${count(latent)} bytes`;
  find(".tl-sum-latent").textContent = `${positions} positions × ${d_latent} latents × ${blocks} blocks × ${bytes} bytes = ${count(product)} bytes, ${measured}`;
  find(".tl-sum-full").textContent = `${positions} positions × 2 × ${d_model} numbers × ${blocks} blocks × ${bytes} bytes = ${count(positions * 2 * d_model * blocks * bytes)} bytes`;
}

// ---- a run

const table = T.table(
  find(".tl-token-table"),
  () => ["Token", "Text", "Probability", "Likeliest alternatives"],
  () =>
    tokens().map((token, i) => [
      String(i + 1),
      T.said(token.text),
      T.percent(token.probability) + (shown.forced.includes(i) ? ", your choice" : ""),
      token.alternatives.slice(0, 4).map(([label, p]) => `${T.said(label)} ${T.percent(p)}`).join(", "),
    ]),
);

function draw() {
  const { value, state } = shown;
  const all = tokens();
  T.atEnd(text, () => {
    for (; drawn < all.length; drawn++) text.append(chip(all[drawn], drawn));
    if (ended() && !text.querySelector(".tl-end")) text.append(endChip(drawn));
  });
  if (!text.querySelector('.tl-chip[tabindex="0"]') && text.querySelector(".tl-chip")) setStop(text.querySelector(".tl-chip"));
  T.status(find(".tl-status"), value, state, T.STOPPED[result().stopped] || "");

  const notes = [];
  if (page().from_nothing) notes.push("The prompt is empty, so the model starts from nothing: from the mark that stands between texts.");
  if (result().unknown?.length) notes.push(T.unknownNote(result().unknown));
  if (result().unknown_words?.length) notes.push(T.newWordsNote(result().unknown_words));
  find(".tl-notes").textContent = notes.join(" ");
  find(".tl-notes").hidden = !notes.length;
  element.querySelector(".tl").classList.toggle("tl-empty", !all.length && !page().prompt?.length);

  const last = ended() ? all.length : all.length - 1;
  choose(Math.min(chosen >= 0 ? chosen : isOver() ? 0 : last, last), false);
  if (isOver()) table();
  if (!page().ids) return;
  map.grow(page().latents, texts(), isOver());
  if (isOver() && chosen >= 0) map.mark(nPrompt() + chosen);
  find(".tl-count").textContent = `${page().from_nothing ? 0 : nPrompt()} prompt + ${all.length} new, context ${page().context}`;
  if (all.length) {
    find(".tl-speed").textContent = `${Math.round(page().tokens_per_second).toLocaleString("en-GB")} tokens a second`;
    drawCache();
  }
  if (isOver()) announce();
}

// Tell the other panels which text stands here.
function announce() {
  const now = [shown.value.run, tokens().length].join();
  if (announced === now) return;
  announced = now;
  const ids = idsBefore(tokens().length);
  const pieces = texts().map((piece, i) => ({ text: piece, ids: [ids[i]] }));
  const { settings: itsSettings, weights } = page();
  T.completeText = { model: itsSettings.model, weights, settings: itsSettings, pieces, ids, texts: texts(), nPrompt: nPrompt() };
  T.bus.dispatchEvent(new CustomEvent("complete:text", { detail: T.completeText }));
}

// Give a branch what has come of its run.
function fill(branch, value, state) {
  branch.tokens ||= [];
  const all = value.result.tokens || [];
  for (let i = branch.tokens.length; i < all.length; i++) branch.tokens.push({ ...all[i], ids: value.page.alternative_ids[i] });
  Object.assign(branch, { value, state });
}

// A value of a run has come.
function arrive(value, state) {
  if (value.run !== newest) {
    newest = value.run;
    if (state === "error" && !value.page.ids && pending && shown) {
      pending = live = null; // the fork was refused; the text stays
      return T.status(find(".tl-status"), value, state, "");
    }
    const isFork = pending && value.page.given?.join() === pending.given;
    if (live?.state === "running") live.state = "stopped";
    live = isFork ? tree.grow(pending.parent, pending.at, pending.token) : tree.plant();
    curious ||= !value.page.opening;
    pending = null;
    fill(live, value, state);
    return show(live);
  }
  if (!live) return;
  fill(live, value, state);
  if (shown === live) draw();
}

find(".tl-download").addEventListener("click", () => {
  const { settings: itsSettings, weights, ids, tokens_per_second } = page();
  const { text: whole, stopped, cache_bytes, full_cache_bytes, unknown, unknown_words } = result();
  T.download(`tinylm-complete-${itsSettings.model}.json`, {
    prompt: promptText(),
    settings: itsSettings,
    weights,
    text: whole,
    stopped,
    prompt_ids: ids,
    tokens: tokens().map(({ ids: alternativeIds, ...token }, i) => ({
      ...token,
      alternatives: token.alternatives.map(([label, p], k) => ({ id: alternativeIds[k], text: label, probability: p })),
      chosen_by_visitor: shown.forced.includes(i),
    })),
    cache_bytes,
    full_cache_bytes,
    unknown,
    unknown_words,
    tokens_per_second,
  });
});

followSettings();
T.follow(element, props, watch, "complete-stop", arrive);
