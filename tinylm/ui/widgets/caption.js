const T = window.tinylm;
const find = (name) => element.querySelector(name);
let shown = { result: {}, page: {} }; // the value that was drawn last
const places = find(".tl-places");
const mapButton = find(".tl-map-button");
const SIDE = 208; // of the picture on the page, in CSS pixels
const LITTLE = 0.05; // nats: the caption keeps over 95 % of its probability
let run = 0;
let state = "";
let explained = null; // what the slots panel has learned of this very run; its map may still be to come
let map = null;
let waits = false; // for the slots panel

const wanted = () => mapButton.getAttribute("aria-pressed") === "true";

// More digits than a bar needs, so that products and sums can be checked.
function exact(p) {
  if (p > 0 && p < 0.0001) return `${(100 * p).toExponential(1)} %`;
  return `${(100 * p).toFixed(2)} %`;
}

const { signed } = T;

function pixels(values, size) {
  const canvas = find(".tl-pixels");
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  const image = context.createImageData(size, size);
  for (let i = 0; i < size * size; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = values[3 * i + c];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

// The tokens as factors of the caption's probability, and their product.
function said(tokens, probability) {
  const items = tokens.map((token) => {
    const item = T.el("li");
    const text = T.el("b");
    text.append(T.spelled(token.text));
    item.append(text, " ", T.el("span", "", exact(token.probability)));
    return item;
  });
  if (probability !== null && probability !== undefined) {
    const product = T.el("li");
    product.append(T.el("span", "", exact(probability)));
    items.push(product);
  }
  find(".tl-said").replaceChildren(...items);
}

// Everything that can be worked out in another way, worked out here from the numbers shown.
function checks(result, page) {
  const rows = [];
  const product = page.tokens.reduce((p, token) => p * token.probability, 1);
  const near = (a, b) => Math.abs(a - b) < 1e-5 * (2 + page.tokens.length);
  rows.push([near(product, result.probability), `The tokens' probabilities multiply to ${exact(product)}; the model's own sum of logarithms gives ${exact(result.probability)}.`]);
  if (page.scored === null) {
    rows.push(["none", `This sentence is not one of the ${page.n_labels} captions that are scored in one go.`]);
  } else {
    rows.push([near(product * page.end, page.scored), `With its end mark (${exact(page.end)}) that makes ${exact(product * page.end)}; the same caption read in one go scores ${exact(page.scored)}.`]);
  }
  const sum = result.labels.reduce((total, [, p]) => total + p, 0);
  rows.push([Math.abs(sum - 1) < 1e-6 * (1 + result.labels.length), `The shares of all ${result.labels.length} names sum to ${exact(sum)}.`]);
  const [best] = result.labels[0];
  const same = result.caption.endsWith(` ${best}!`);
  rows.push([same, `The caption written token by token ${same ? "names" : "does not name"} the name that scores best, ${best}.`]);
  const items = rows.map(([holds, text]) => {
    const item = T.el("li", "", text);
    item.dataset.holds = holds;
    return item;
  });
  find(".tl-checks").replaceChildren(...items);
}

function verdict(result, page) {
  const node = find(".tl-verdict");
  const score = T.percent(result.flower_score);
  const bar = T.percent(page.threshold);
  node.textContent = result.is_flower
    ? `This looks like a flower the model knows: its likeliest name gets ${score}, and ${bar} is enough.`
    : `This doesn't look like a flower the model knows: its likeliest name gets only ${score}, and ${bar} would be needed. The caption is a guess.`;
  if (page.is_blank) node.textContent += result.is_flower ? " The blank card test fails: there is no flower on a grey card." : " The blank card test is passed.";
  node.dataset.flower = result.is_flower;
}

// The map over the picture.

const strongest = () => Math.max(...map.flat().map(Math.abs));
const covered = (loss) => shown.page.scored * Math.exp(-loss);

function told(row, column) {
  const loss = map[row][column];
  const whole = shown.page.scored;
  const chance = whole === null ? "" : `, from ${exact(whole)} to ${exact(covered(loss))} before calibration`;
  return `Row ${row + 1}, column ${column + 1} covered: the caption's log-probability changes by ${signed(-loss)} nats${chance}.`;
}

function patch(row, column) {
  const n = map.length;
  const node = find(".tl-patch");
  const [from, to] = [(i) => Math.max(0, (i - 0.5) / n), (i) => Math.min(1, (i + 1.5) / n)];
  node.style.left = `${SIDE * from(column)}px`;
  node.style.top = `${SIDE * from(row)}px`;
  node.style.width = `${SIDE * (to(column) - from(column))}px`;
  node.style.height = `${SIDE * (to(row) - from(row))}px`;
  node.hidden = false;
}

function visit(place) {
  const index = [...places.children].indexOf(place);
  const [row, column] = [index % map.length, Math.floor(index / map.length)];
  patch(row, column);
  find(".tl-place").textContent = told(row, column);
}

function leave() {
  find(".tl-patch").hidden = true;
}

const setStop = T.roving(places, "button", (place) => map && visit(place), () => map?.length);
places.addEventListener("mouseleave", leave);
places.addEventListener("focusout", leave);

function drawMap() {
  const shown = wanted() && map !== null;
  find(".tl-heat").hidden = places.hidden = !shown;
  leave();
  find(".tl-place").textContent = shown ? "Point at a place of the picture, or move there with the arrow keys." : wanted() && waits ? "Covering one place after the other, and scoring the caption again…" : "";
  find(".tl-map-key").textContent = "";
  if (!shown) return;
  const top = strongest();
  const n = map.length;
  T.heat(find(".tl-heat"), n, n, (row, column) => (top ? map[row][column] / top : 0), { cell: SIDE / n, signed: true });
  const size = top < LITTLE ? ": no single place matters much" : "";
  find(".tl-map-key").textContent = `Blue: what is there speaks for the caption; orange: against it. Full colour is a change of ${top.toFixed(4)} nats${size}.`;
  if (places.children.length !== n * n) {
    places.style.gridTemplate = `repeat(${n}, 1fr) / none`;
    places.style.gridAutoColumns = "1fr";
    places.replaceChildren(
      ...Array.from({ length: n * n }, () => {
        const place = T.el("button");
        place.type = "button";
        place.tabIndex = -1;
        return place;
      }),
    );
    setStop(places.firstChild);
  }
  [...places.children].forEach((place, i) => place.setAttribute("aria-label", told(i % n, Math.floor(i / n))));
}

const filled = T.table(
  find(".tl-details"),
  () => ["Nats lost when covered", ...(map ? map.map((_, i) => `column ${i + 1}`) : [])],
  () => (map || []).map((row, i) => [`row ${i + 1}`, ...row.map((loss) => signed(loss))]),
);

function table() {
  find(".tl-table").replaceChildren(); // a folded one keeps nothing of an older map
  filled();
}

mapButton.addEventListener("click", () => {
  mapButton.setAttribute("aria-pressed", String(!wanted()));
  drawMap();
  tell();
});
find(".tl-opacity input").addEventListener("input", (event) => (find(".tl-heat").style.opacity = event.target.value));
find(".tl-heat").style.opacity = find(".tl-opacity input").value;

find(".tl-download").addEventListener("click", () => {
  const { result, page } = shown;
  const { weights, tokens, end, scored, temperature, threshold, example } = page;
  const slots = explained ? { ...explained.result, other: explained.page.other, chosen: { muted: explained.page.muted, swapped: explained.page.swapped } } : null;
  if (slots) slots.map = map;
  T.download("tinylm-caption.json", { weights, example: example ?? null, ...result, tokens, end, scored, temperature, threshold, slots });
});

// With the slots panel: it hears of each caption and whether its map is wanted, and tells what it learns of it.
function tell() {
  T.bus.dispatchEvent(new CustomEvent("caption", { detail: { value: shown, isDone: state === "done", map: wanted() && map === null } }));
}
T.bus.addEventListener("caption-asked", () => run && tell());
T.bus.addEventListener("explained", ({ detail }) => {
  const { value, state: asked } = detail;
  waits = asked === "running";
  if (value.page.of === run) {
    explained = value;
    if (!map && value.result.map) {
      map = value.result.map;
      table();
      tell(); // it is no longer wanted
    } else if (map) return;
  }
  drawMap();
});

function draw(value, now) {
  shown = value;
  const { result, page } = value;
  state = now;
  const probability = result.probability;
  T.status(
    find(".tl-status"),
    value,
    state,
    probability === null || probability === undefined ? "" : `The model gives this whole caption ${exact(probability)}, before calibration.`,
  );
  element.querySelector(".tl").classList.toggle("tl-empty", !result.caption);
  if (value.run !== run) {
    run = value.run;
    explained = map = null;
    waits = false;
    drawMap();
    table();
    find(".tl-checks").replaceChildren();
    if (result.caption) pixels(page.pixels, page.size);
  }
  if (!result.caption) return tell();
  find("figcaption").textContent = `What the model sees: ${page.size} × ${page.size} pixels, read into ${page.n_slots} slots.`;
  find(".tl-caption").textContent = result.caption;
  said(page.tokens || [], probability);
  verdict(result, page);
  find(".tl-labels-hint").textContent = `The captions of ${page.n_labels} names, scored for this picture at a temperature of ${page.temperature.toFixed(2)}.`;
  T.bars(find(".tl-labels"), result.labels.slice(0, page.n_shown).map(([label, p]) => ({ label, value: p, chosen: label === result.label })));
  if (state === "done") {
    checks(result, page);
    drawMap();
  }
  tell();
}

T.follow(element, props, watch, "caption-stop", draw);
