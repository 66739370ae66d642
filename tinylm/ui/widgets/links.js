const T = window.tinylm;
const LONGEST = 8000; // characters; servers and chats refuse or cut longer addresses
const said = element.querySelector(".tl-link-said");
const box = element.querySelector(".tl-link-text");

// The tab that is open, by its id.
const openTab = () => document.querySelector('[role="tab"][aria-selected="true"]')?.textContent.trim().toLowerCase() || "";

// `fields` are [tab, name, default], with their values in the same order. Only what was changed goes into the link, and
// the prompt with it, so that opening the link runs it.
function linkTo(tab, fields, values) {
  const own = fields
    .map(([owner, name, usual], i) => ({ owner, name, value: values[i], changed: values[i] !== usual }))
    .filter(({ owner, value }) => owner === tab && value !== null && value !== undefined);
  const any = own.some(({ changed }) => changed);
  const query = new URLSearchParams({ tab });
  for (const { name, value, changed } of own) if (changed || (any && name === "prompt")) query.set(name, value);
  return `${location.origin}${location.pathname}?${query}`;
}

// Where a page may not write to the clipboard (plain http, some frames), the link is laid out to be copied by hand.
async function copy(link) {
  try {
    await navigator.clipboard.writeText(link);
    say("Copied");
  } catch {
    say("Copy it from here:");
    box.hidden = false;
    box.value = link;
    box.focus();
    box.select();
  }
}

let fading = 0;
function say(text) {
  said.textContent = text;
  clearTimeout(fading);
  if (text === "Copied") fading = setTimeout(() => (said.textContent = ""), 4000);
}

element.querySelector("button").addEventListener("click", () => {
  said.textContent = "";
  box.hidden = true;
  trigger("click");
});
T.bus.addEventListener("link", (event) => {
  const link = linkTo(openTab(), event.detail.fields, event.detail.values);
  if (link.length > LONGEST) return say("This prompt is too long for a link.");
  copy(link);
});

const asks = new URLSearchParams(location.search);
if (asks.has("prompt") || asks.has("example")) trigger("submit");
