const T = window.tinylm;
const find = (name) => element.querySelector(name);
let run = 0;

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

function draw(value, state) {
  const { result, page } = value;
  const probability = result.probability;
  T.status(
    find(".tl-status"),
    value,
    state,
    probability === null || probability === undefined ? "" : `The model gives this whole caption ${T.percent(probability)}.`,
  );
  element.querySelector(".tl").classList.toggle("tl-empty", !result.caption);
  if (!result.caption) return;
  if (value.run !== run) {
    run = value.run;
    pixels(JSON.parse(JSON.stringify(page.pixels)), page.size);
    find("figcaption").textContent = `What the model sees: ${page.size} × ${page.size} pixels, read into ${page.n_slots} slots.`;
  }
  find(".tl-caption").textContent = result.caption;
  const verdict = find(".tl-verdict");
  const score = T.percent(result.flower_score);
  const bar = T.percent(page.threshold);
  verdict.textContent = result.is_flower
    ? `This looks like a flower the model knows: its likeliest name gets ${score}, and ${bar} is enough.`
    : `This doesn't look like a flower the model knows: its likeliest name gets only ${score}, and ${bar} would be needed. The caption is a guess.`;
  verdict.dataset.flower = result.is_flower;
  find(".tl-hint").textContent = `The caption of each of ${page.n_labels} names, scored by the model for this picture, at a temperature of ${page.temperature.toFixed(2)} fitted on held-out pictures; the shares sum to 100 % over all of them.`;
  T.bars(find(".tl-labels"), result.labels.slice(0, page.n_shown).map(([label, p]) => ({ label, value: p, chosen: label === result.label })));
}

T.follow(props, watch, "caption-stop", draw);
