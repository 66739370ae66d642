// How a token is drawn, from the logits: temperature, then top-k, then top-p, as `tinylm.generate.sample` does it.
window.tinylm.distribution = (logits, temperature = 1, topK = 0, topP = 1) => {
  const shares = new Float64Array(logits.length);
  let best = 0;
  for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
  if (temperature === 0) {
    shares[best] = 1;
    return shares;
  }
  const cutsK = topK > 0 && topK < logits.length;
  // Likeliest first; only a cut needs the order.
  let kept = [...logits.keys()];
  if (cutsK || topP < 1) kept.sort((a, b) => logits[b] - logits[a] || a - b);
  if (cutsK) kept = kept.slice(0, topK);
  let total = 0;
  for (const i of kept) total += shares[i] = Math.exp((logits[i] - logits[best]) / temperature);
  for (const i of kept) shares[i] /= total;
  if (topP >= 1) return shares;
  let ahead = 0; // a token stays if those ahead of it hold less than top-p; the first always stays
  let left = 0;
  kept.forEach((i, rank) => {
    const share = shares[i];
    if (rank && ahead >= topP) shares[i] = 0;
    left += shares[i];
    ahead += share;
  });
  for (const i of kept) shares[i] /= left;
  return shares;
};
