// What the cache holds: a row a position, a column a latent of the chosen block. Rows are only added, each with a small
// canvas of its own, which the style sheet stretches.
window.tinylm.latentMap = (root, onChoose) => {
  const T = window.tinylm;
  const find = (name) => root.querySelector(name);
  const [rows, select] = [find(".tl-latent-rows"), find(".tl-latent-block")];
  let sizes = {};
  let texts = []; // of the positions
  let values = []; // all blocks' latents of each position
  let scale = 0; // of the colours: no number drawn so far is larger
  let marked = -1;

  const block = () => Number(select.value || 0);
  const ofBlock = (position) => values[position].subarray(block() * sizes.d_latent, (block() + 1) * sizes.d_latent);
  const spoken = (position) => `position ${position + 1}, ${T.said(texts[position] ?? "")}`;

  // 1, 2 or 5 times a power of ten: the colours stay as they are while the map grows, unless a much larger number comes.
  function roundedUp(size) {
    const power = 10 ** Math.floor(Math.log10(size || 1));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= size);
  }

  function paint(position) {
    const canvas = rows.children[position].lastElementChild;
    canvas.width = sizes.d_latent;
    canvas.height = 1;
    const picture = new ImageData(sizes.d_latent, 1);
    ofBlock(position).forEach((value, i) => picture.data.set(T.heatPixel(value / scale, true), 4 * i));
    canvas.getContext("2d", { willReadFrequently: true }).putImageData(picture, 0, 0);
  }

  function row(position) {
    const node = T.el("button", "tl-latent-row");
    node.type = "button";
    node.tabIndex = -1;
    node.dataset.position = position;
    node.setAttribute("aria-label", spoken(position));
    const label = T.el("span", "tl-latent-token");
    label.append(T.SPECIAL.has(texts[position]) ? T.el("span", "tl-special", T.SPECIAL.get(texts[position])) : T.spelled(texts[position] ?? ""));
    node.append(label, T.el("canvas"));
    return node;
  }

  // Draw positions from `from` on; all of them if the colours no longer hold.
  function draw(from) {
    let largest = 0;
    for (let position = from; position < values.length; position++) {
      for (const value of ofBlock(position)) largest = Math.max(largest, Math.abs(value));
    }
    if (largest > scale) {
      scale = roundedUp(largest);
      from = 0;
      find(".tl-latent-low").textContent = `−${scale}`;
      find(".tl-latent-high").textContent = `+${scale}`;
    }
    for (let position = from; position < values.length; position++) paint(position);
  }

  function redraw() {
    scale = 0;
    draw(0);
    if (marked >= 0 && values[marked]) read(marked);
    table();
  }

  // The numbers of a row, in words; `latent` is the one under the pointer.
  function read(position, latent) {
    const numbers = ofBlock(position);
    const one = latent === undefined ? `${sizes.d_latent} latents` : `latent ${latent + 1} is ${numbers[latent].toFixed(3)}`;
    find(".tl-latent-said").textContent = `Block ${block() + 1}, ${spoken(position)}: ${one}.`;
    find(".tl-latent-numbers").textContent = [...numbers].map((value) => value.toFixed(2)).join(" ");
  }

  const setStop = T.roving(rows, ".tl-latent-row", (node, how) => {
    const position = Number(node.dataset.position);
    if (how === "mouseover") return;
    read(position);
    onChoose(position);
  });
  rows.addEventListener("pointermove", (event) => {
    const canvas = event.target.closest("canvas");
    if (!canvas) return;
    const box = canvas.getBoundingClientRect();
    const latent = Math.floor(((event.clientX - box.left) / box.width) * sizes.d_latent);
    read(Number(canvas.parentNode.dataset.position), Math.max(0, Math.min(sizes.d_latent - 1, latent)));
  });
  select.addEventListener("change", redraw);
  const table = T.table(
    find(".tl-latent-table"),
    () => ["Position", "Token", ...Array.from({ length: sizes.d_latent }, (_, i) => String(i + 1))],
    () => values.map((_, p) => [String(p + 1), T.said(texts[p] ?? ""), ...[...ofBlock(p)].map((value) => value.toFixed(3))]),
  );

  return {
    // Forget what is drawn; another run comes, of a model of these sizes.
    start(itsSizes = {}) {
      [sizes, texts, values] = [itsSizes, [], []];
      [scale, marked] = [0, -1];
      rows.replaceChildren();
      find(".tl-latent-said").textContent = "";
      find(".tl-latent-numbers").textContent = "";
      const { n_layers: all = 0, n_shown_layers: shown = 0 } = sizes;
      find(".tl-latent-part").textContent = shown < all ? `The first ${shown} of ${all} blocks can be looked at here.` : "";
      if (select.options.length === shown) return;
      select.replaceChildren(...Array.from({ length: shown }, (_, i) => new Option(i + 1, i)));
    },

    // Positions drawn.
    size: () => values.length,

    // Show what has come: a base64 string, as long for every position, and the tokens' texts.
    grow(coded, itsTexts, isOver) {
      texts = itsTexts;
      const from = values.length;
      const length = 4 * Math.ceil((4 * sizes.n_shown_layers * sizes.d_latent) / 3);
      if (from * length < coded.length) {
        T.atEnd(rows, () => {
          while (values.length * length < coded.length) {
            values.push(T.floats(coded.slice(values.length * length, (values.length + 1) * length)));
            rows.append(row(values.length - 1));
          }
        });
        draw(from);
        if (!from) setStop(rows.firstElementChild);
      }
      if (!isOver) return;
      table();
      if (marked < 0 && values.length) read(values.length - 1);
    },

    // The row of a position, -1 for none; one that the cache has not got yet stays unmarked.
    mark(position) {
      rows.children[marked]?.classList.remove("tl-current");
      marked = position;
      const node = rows.children[position];
      if (!node) return;
      node.classList.add("tl-current");
      const hidden = node.offsetTop < rows.scrollTop || node.offsetTop + node.offsetHeight > rows.scrollTop + rows.clientHeight;
      if (hidden) rows.scrollTop = node.offsetTop - rows.clientHeight / 2;
      read(position);
    },
  };
};
