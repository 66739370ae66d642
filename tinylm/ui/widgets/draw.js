// Shared by the panels. All text is set through textContent; numbers come as they are.
window.tinylm = (() => {
  const EXPERT_COLOURS = 8; // --tl-expert-0 to --tl-expert-7 in the style sheet

  function el(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // A token's text with its spaces and line ends marked; the characters themselves stay as they are.
  function spelled(text) {
    const parts = document.createDocumentFragment();
    for (const part of text.split(/([ \n\t])/)) {
      if (!part) continue;
      const kind = { " ": "tl-space", "\n": "tl-line-end", "\t": "tl-tab" }[part];
      parts.append(kind ? el("span", kind, part) : part);
    }
    return parts;
  }

  const SPECIAL = new Map([["<eos>", "end of text"], ["<pad>", "padding"], ["<unk>", "unknown character"]]);
  const said = (text) =>
    SPECIAL.get(text) || text.replaceAll(" ", "␣").replaceAll("\n", "↵") || "nothing";

  function percent(p) {
    if (p >= 0.9995 && p < 1) return "> 99.9 %";
    if (p < 0.001) return "< 0.1 %";
    return `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`;
  }

  // A change, with its sign.
  const signed = (value, digits = 4) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;

  function bytes(n) {
    return n < 1024 ? `${n.toLocaleString("en-GB")} B` : `${(n / 1024).toFixed(1)} KiB`;
  }

  // Rows of label, bar and number into `list` (an <ol> or <ul>); rows are reused.
  function bars(list, rows, max = 1) {
    while (list.children.length > rows.length) list.lastElementChild.remove();
    rows.forEach((row, i) => {
      let item = list.children[i];
      if (!item) {
        item = el("li", "tl-bar");
        const track = el("span", "tl-track");
        track.append(el("span", "tl-fill"));
        item.append(el("span", "tl-bar-label"), track, el("span", "tl-bar-value"));
        list.append(item);
      }
      const [label, track, value] = item.children;
      label.replaceChildren(row.special || !row.spell ? row.label : spelled(row.label));
      label.classList.toggle("tl-special", Boolean(row.special));
      track.firstChild.style.width = `${Math.min(100, (100 * row.value) / max)}%`;
      track.firstChild.style.background = row.colour || "";
      value.textContent = percent(row.value);
      item.classList.toggle("tl-chosen", Boolean(row.chosen));
    });
  }

  // One tab stop for many items: arrows move, Home and End jump. `step` gives the index to go to, or undefined.
  function roving(root, selector, onMove, columns = () => 0) {
    const items = () => [...root.querySelectorAll(selector)];
    const setStop = (item) => {
      for (const other of root.querySelectorAll(`${selector}[tabindex="0"]`)) other.tabIndex = -1;
      item.tabIndex = 0;
    };
    const visit = (event) => {
      const item = event.target.closest(selector);
      if (!item || !root.contains(item)) return;
      if (event.type !== "mouseover") setStop(item);
      onMove(item, event.type);
    };
    root.addEventListener("focusin", visit);
    root.addEventListener("click", visit);
    root.addEventListener("mouseover", visit);
    root.addEventListener("keydown", (event) => {
      const all = items();
      const at = all.indexOf(document.activeElement);
      if (at < 0) return;
      const down = columns();
      const to = {
        ArrowRight: at + (down || 1),
        ArrowLeft: at - (down || 1),
        ArrowDown: at + 1,
        ArrowUp: at - 1,
        Home: 0,
        End: all.length - 1,
      }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      all[Math.max(0, Math.min(all.length - 1, to))]?.focus();
    });
    return setStop;
  }

  // A panel's value as the server packed it (ui/packing.py), as one object again. Lists that grow are read on from
  // where the last call ended, and stay the same array within a run.
  const unpackedRuns = new Map();
  function unpacked(value) {
    if (typeof value?.rest !== "string") return value;
    if (!unpackedRuns.has(value.run)) unpackedRuns.set(value.run, { lists: {}, fixed: JSON.parse(value.fixed) });
    const known = unpackedRuns.get(value.run);
    if (unpackedRuns.size > 16) unpackedRuns.delete(unpackedRuns.keys().next().value);
    const { lists, texts, ...parts } = JSON.parse(value.rest);
    for (const [part, key, content] of known.fixed) if (!(key in parts[part])) parts[part][key] = content;
    for (const [key, part] of Object.entries(lists)) {
      const list = (known.lists[key] ||= { at: 0, items: [] });
      const end = value[key].lastIndexOf("\n") + 1;
      for (const line of value[key].slice(list.at, end).split("\n")) if (line) list.items.push(JSON.parse(line));
      list.at = Math.max(list.at, end);
      parts[part][key] = list.items;
    }
    for (const [key, part] of Object.entries(texts)) parts[part][key] = value[key];
    return { run: value.run, state: value.state, message: value.message, ...parts };
  }

  // Draw at once and after each change. Values of an older run that come late are dropped, and a run that the
  // visitor stopped is drawn as such. Of one that waits for its place only that is told; what stood there stays.
  function follow(root, props, watch, stopId, draw) {
    let newest = 0;
    let stopped = 0;
    const update = () => {
      const value = unpacked(props.value);
      if (!value || !value.run || value.run < newest) return;
      newest = value.run;
      const state = ["running", "waiting"].includes(value.state) && stopped === value.run ? "stopped" : value.state;
      if (value.state === "waiting") status(root.querySelector(".tl-status"), value, state, "");
      else draw(value, state);
    };
    let asked = false; // whether the visitor did anything else since Stop, such as starting another run
    document.addEventListener("keydown", () => (asked = true));
    document.addEventListener("click", (event) => {
      asked = !event.target.closest?.(`#${stopId}`);
      if (asked) return;
      stopped = newest;
      update();
      setTimeout(() => {
        if (asked) return;
        stopped = newest; // the stopped run's first update may have been on its way
        update();
      }, 400);
    });
    watch("value", update);
    update();
  }

  // Add to a box that scrolls, and stay at its end unless the visitor has scrolled away from it. Where it stands is
  // only looked at when it scrolls and before a frame is drawn: asking in between costs a layout for every token.
  const away = new WeakMap();
  function atEnd(box, add) {
    if (!away.has(box)) {
      away.set(box, false);
      box.addEventListener("scroll", () => away.set(box, box.scrollHeight - box.scrollTop - box.clientHeight > 40), { passive: true });
    }
    add();
    if (!away.get(box)) requestAnimationFrame(() => (box.scrollTop = box.scrollHeight));
  }

  // The text equivalent of a chart, made only while it is open.
  function table(details, head, rows) {
    const make = () => {
      if (!details.open) return;
      const node = el("table");
      const top = el("tr");
      head().forEach((text) => top.append(el("th", "", text)));
      const body = el("tbody");
      rows().forEach((cells) => {
        const row = el("tr");
        cells.forEach((text) => row.append(el("td", "", text)));
        body.append(row);
      });
      const thead = el("thead");
      thead.append(top);
      node.append(thead, body);
      const box = details.querySelector(".tl-table");
      box.tabIndex = 0; // so that the keyboard can scroll it
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", details.querySelector("summary").textContent);
      box.replaceChildren(node);
    };
    details.addEventListener("toggle", make);
    return make;
  }

  const expertColour = (i) => `var(--tl-expert-${i % EXPERT_COLOURS})`;
  const expertInk = (i) => `var(--tl-expert-ink-${i % EXPERT_COLOURS})`;

  const STOPPED = {
    eos: "Stopped: the model ended the text itself.",
    length: "Stopped: it reached the number of new tokens asked for.",
    context: "Stopped: the context is full.",
  };

  // The line above a panel: what is going on, in words.
  function status(node, value, state, done) {
    const text = {
      waiting: "Waiting for a free place: others are being served…",
      running: "Running…",
      stopped: "You stopped it.",
      error: value.message,
      done: (value.page.opening ? "An example, computed when the page was made ready. " : "") + done,
    }[state];
    if (node.textContent !== text) node.textContent = text;
    node.dataset.state = state;
  }

  function unknownNote(characters) {
    if (!characters?.length) return "";
    const named = characters.slice(0, 12).map((c) => {
      const code = c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      return /[\p{L}\p{N}\p{P}\p{S}]/u.test(c) ? `${c} (U+${code})` : `U+${code}`;
    });
    const more = characters.length > 12 ? ` and ${characters.length - 12} more` : "";
    return `Unknown to this model, read as one and the same token: ${named.join(", ")}${more}.`;
  }

  function newWordsNote(words) {
    if (!words?.length) return "";
    const named = words.slice(0, 12).map((word) => (word.length > 40 ? `${word.slice(0, 40)}…` : word)).join(", ");
    const more = words.length > 12 ? ` and ${words.length - 12} more` : "";
    return `Not in this model's training text: ${named}${more}. It reads them in pieces and goes on by their form.`;
  }

  // The numbers of a string of base64-coded float32, exactly as the server had them.
  function floats(coded) {
    const bytes = Uint8Array.from(atob(coded), (c) => c.charCodeAt(0));
    return new Float32Array(bytes.buffer);
  }

  // A heat map: `at(row, column)` from 0 to 1, or from -1 to 1 when `signed`; `undefined` stays empty. Colours are laid
  // over whatever is behind the canvas, so that light and dark need no colours of their own.
  function heat(canvas, nRows, nColumns, at, { cell = 8, signed = false, fromRow = 0 } = {}) {
    const scale = Math.ceil(window.devicePixelRatio || 1);
    const [width, height] = [nColumns * cell * scale, nRows * cell * scale];
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
      canvas.style.width = `${nColumns * cell}px`;
      canvas.style.height = `${nRows * cell}px`;
      fromRow = 0; // resizing has wiped it
    }
    const pen = canvas.getContext("2d");
    pen.clearRect(0, fromRow * cell * scale, width, height);
    for (let row = fromRow; row < nRows; row++) {
      for (let column = 0; column < nColumns; column++) {
        const value = at(row, column);
        if (value === undefined) continue;
        pen.fillStyle = heatColour(value, signed);
        pen.fillRect(column * cell * scale, row * cell * scale, (cell - 1) * scale, (cell - 1) * scale);
      }
    }
  }

  // Blue for more, orange for less: told apart by colour-blind eyes too. Red, green, blue and opacity, from 0 to 255.
  function heatPixel(value, signed = false) {
    const size = Math.min(1, Math.abs(value));
    const [r, g, b] = signed && value < 0 ? [213, 94, 0] : [0, 114, 178];
    return [r, g, b, Math.round(255 * (0.06 + 0.94 * size))];
  }

  // The same for a style sheet.
  function heatColour(value, signed = false) {
    const [r, g, b, opacity] = heatPixel(value, signed);
    return `rgb(${r} ${g} ${b} / ${(opacity / 255).toFixed(3)})`;
  }

  // Give the visitor a file made in the browser.
  function download(name, object) {
    const link = el("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(object, null, 2)], { type: "application/json" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  // What one panel tells the others: `bus.dispatchEvent(new CustomEvent(name, { detail }))`.
  const bus = new EventTarget();

  return { unpacked, signed, floats, heat, heatPixel, heatColour, download, bus, el, spelled, said, percent, bytes, bars, roving, follow, atEnd, table, expertColour, expertInk, STOPPED, status,
    unknownNote, newWordsNote, SPECIAL };
})();
