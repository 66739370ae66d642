// The runs that a text was forked into: a small tree, kept in the browser.
window.tinylm.branches = (most) => {
  let all = []; // oldest first; the first one is the root
  const children = (node) => all.filter((other) => other.parent === node);

  // Start anew with the run of a fresh prompt.
  function plant() {
    all = [{ parent: null, at: -1, token: "", forced: [] }];
    return all[0];
  }

  // A run forked off `parent`, whose token number `at` is the visitor's own. When the tree is full, the oldest leaf goes.
  function grow(parent, at, token) {
    const node = { parent, at, token, forced: [...parent.forced.filter((i) => i < at), at] };
    all.push(node);
    if (all.length > most) all.splice(all.findIndex((other) => other !== node && !children(other).length), 1);
    return node;
  }

  return { plant, grow, children, root: () => all[0], size: () => all.length };
};
