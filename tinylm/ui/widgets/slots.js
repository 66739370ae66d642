const T = window.tinylm;
const find = (name) => element.querySelector(name);
let shown = { result: {}, page: {} }; // the value that was drawn last
const root = find(".tl");
const select = find("select");
const cards = find(".tl-slot-cards");
const { signed } = T;
let caption = null; // what the caption panel told last: its value, whether it is done, and whether it wants the map
let changes = []; // the visitor's, one a slot: "", "muted" or "swapped"
let of = 0; // the caption's run that was asked about
let state = ""; // of the newest question
let seen = false; // whether this panel's tab was ever open

(props.value?.examples || []).forEach((name) => select.append(new Option(name, name)));

// What stands here is still that of the picture before.
function busy(is) {
  root.setAttribute("aria-busy", String(is));
  root.inert = is;
}

function places(change) {
  return changes.flatMap((found, slot) => (found === change ? [slot] : []));
}

// Python answers with this panel's next value.
function ask() {
  const { value, map } = caption;
  of = value.run;
  state = "running";
  trigger("click", { of, example: value.page.example ?? null, other: select.value, muted: places("muted"), swapped: places("swapped"), map });
}

function hear({ detail }) {
  caption = detail;
  const { value, isDone } = caption;
  const isNew = value.run !== of;
  root.hidden = !value.result.caption;
  if (isNew) busy(true);
  if (root.hidden || !isDone || !seen) return;
  if (isNew) {
    changes = [];
    if (select.value === value.page.example) select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  }
  if (isNew || (caption.map && state !== "running")) ask();
}

function press(slot, change) {
  changes[slot] = changes[slot] === change ? "" : change;
  pressed();
  ask();
}

function pressed() {
  for (const button of cards.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(changes[button.dataset.slot] === button.dataset.change));
  }
}

function card(slot) {
  const node = T.el("div", "tl-slot");
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", `Slot ${slot + 1}`);
  const row = T.el("div", "tl-row");
  for (const [change, word] of [["muted", "Mute"], ["swapped", "Swap"]]) {
    const button = T.el("button", "tl-button", word);
    button.type = "button";
    button.dataset.slot = slot;
    button.dataset.change = change;
    button.setAttribute("aria-label", `${word} slot ${slot + 1}`);
    button.addEventListener("click", () => press(slot, change));
    row.append(button);
  }
  node.append(T.el("h3", "", `Slot ${slot + 1}`), row, T.el("ol", "tl-bars"), T.el("div"));
  return node;
}

function told(word, effect, whole) {
  const says = effect.caption === whole ? "" : ` It then says “${effect.caption}”`;
  return T.el("p", "tl-slot-told", `${word}: ${signed(effect.logprob)} nats.${says}`);
}

const filled = T.table(
  find(".tl-details"),
  () => ["Slot", "Change", "Nats", "Share of the label", "Caption then"],
  () =>
    ["muted", "swapped"].flatMap((change) =>
      (shown.result?.[change] || []).map((effect, slot) => [String(slot + 1), change, signed(effect.logprob), T.percent(effect.kept), effect.caption]),
    ),
);

function table() {
  find(".tl-table").replaceChildren(); // a folded one keeps nothing of older changes
  filled();
}

// With one slot changed, the whole computation must come to what that slot's own card says.
function agrees(result, page) {
  const made = ["muted", "swapped"].flatMap((change) => page[change].map((slot) => [change, slot]));
  if (made.length > 1) return "";
  const [change, slot] = made[0] || [];
  const alone = made.length ? result[change][slot].logprob : 0;
  const same = Math.abs(alone - result.changed.logprob) < 1e-4;
  const what = made.length ? `the card of slot ${slot + 1}` : "the caption above";
  return `Computed apart from ${what}, and ${same ? "agrees with it" : "does not agree with it"}.`;
}

function draw(value, now) {
  shown = value;
  const { result, page } = value;
  state = now;
  T.status(find(".tl-status"), value, state, "");
  T.bus.dispatchEvent(new CustomEvent("explained", { detail: { value, state } }));
  const isOfThis = page.of === caption?.value.run && result.changed !== undefined;
  root.classList.toggle("tl-empty", !isOfThis && (state === "error" || state === "stopped"));
  if (!isOfThis) return;
  busy(false);
  if (cards.children.length !== result.muted.length) cards.replaceChildren(...result.muted.map((_, slot) => card(slot)));
  pressed();
  find(".tl-label").textContent = result.label;
  find(".tl-share").textContent = T.percent(result.probability);
  [...cards.children].forEach((node, slot) => {
    const [muted, swapped] = [result.muted[slot], result.swapped[slot]];
    const rows = [["muted", muted], ["swapped", swapped]];
    T.bars(node.querySelector("ol"), rows.map(([label, effect]) => ({ label, value: effect.kept, chosen: page[label].includes(slot) })));
    node.lastChild.replaceChildren(told("Muted", muted, result.caption), told(`From ${page.other}`, swapped, result.caption));
  });
  const { changed } = result;
  const made = [...page.muted.map((slot) => `slot ${slot + 1} muted`), ...page.swapped.map((slot) => `slot ${slot + 1} from ${page.other}`)];
  find(".tl-changed-caption").textContent = changed.caption;
  find(".tl-changed-how").textContent = made.length
    ? `With ${made.join(", ")}: ${result.label} ${T.percent(result.probability)} → ${T.percent(changed.kept)}; the log-probability of its caption ${signed(changed.logprob)} nats.`
    : "No slot is changed yet.";
  T.bars(find(".tl-changed-names"), changed.labels.map(([label, p]) => ({ label, value: p, chosen: label === result.label })));
  find(".tl-agrees").textContent = agrees(result, page);
  table();
}

select.addEventListener("change", () => caption && ask());
new IntersectionObserver(
  ([entry]) => {
    if (seen || !entry.isIntersecting) return;
    seen = true;
    if (caption) hear({ detail: caption });
  },
  { rootMargin: "10000px" },
).observe(element);

T.bus.addEventListener("caption", hear);
T.bus.dispatchEvent(new CustomEvent("caption-asked"));
T.follow(element, props, watch, "caption-stop", draw);
