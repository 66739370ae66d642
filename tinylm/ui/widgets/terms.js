// Short words for the terms on the page: each `<button class="tl-term" data-term="latent">` explains itself on hover,
// focus or tap. Escape closes the explanation.
window.tinylm.terms = (() => {
  const { el } = window.tinylm;
  const WORDS = {
    token: "A piece of text, one to eight characters long, that the model reads and writes at once. Its vocabulary holds all the pieces it knows.",
    probability: "The share of certainty that the model gives a token as the next one. All tokens together get 100 %.",
    logit: "The model's raw score for a token. The softmax turns all scores into probabilities: exp(score), divided by the sum over all tokens.",
    temperature: "Scores are divided by it before the softmax. Below 1 the likeliest tokens gain, above 1 the others do; at 0 the likeliest is always taken.",
    "top-k": "Only the k likeliest tokens may be drawn.",
    "top-p": "Only the likeliest tokens that together hold this share may be drawn.",
    seed: "The number that the random draws start from. The same seed gives the same text.",
    context: "The number of tokens that the model can look at; behind it nothing fits.",
    latent: "A short list of numbers from which every head's keys and values can be rebuilt. Only latents are kept in the cache.",
    cache: "What the model keeps of the tokens it has read, so that it need not read them again for each new token.",
    block: "One layer of the model: attention looks at other tokens, then a feed-forward part works on each token alone.",
    head: "One of several attentions that a block runs side by side, each with its own view of the text.",
    attention: "How much a token takes in from each token before it and from itself. The shares of a row sum to 100 %.",
    absorb: "Attention computed on the latents themselves: the matrices that would rebuild keys and values are folded into the query and the output.",
    expand: "Attention the usual way: keys and values are rebuilt from the latents first.",
    expert: "One of several feed-forward parts in a block. Each token is worked on by only a few of them.",
    router: "The small part that scores the experts for each token and picks the likeliest.",
    load: "The share of the tokens' choices that went to an expert.",
    "load-balancing loss": "A number that is lowest, at the count of chosen experts, when all experts are used alike. Training adds a little of it to the loss.",
    entropy: "How evenly the load is spread, in bits: 2 bits for four experts used alike, 0 for one used alone.",
    loss: "How surprised the model is by each token of a text, on average: minus the logarithm of the probability it gave. Lower is better.",
    nat: "The unit of loss: 1 nat means that the right tokens got a probability of 1 in 2.718 on average.",
    slot: "One of the places in front of the text in which the picture is put, as if it were a token.",
    mute: "Setting a slot to zeros, so that it says nothing of the picture.",
    occlusion: "A grey patch is laid over each place of the picture in turn. Where the caption's probability falls most, the model was looking.",
    score: "The probability of the likeliest name among all names the model knows. Below a limit fitted on held-out pictures, the picture is called no flower.",
    recall: "The share of held-out sentences about known facts that the model ends with a right answer.",
  };

  let open = null;
  let tip = null;

  function close() {
    open?.removeAttribute("aria-describedby");
    tip?.remove();
    open = tip = null;
  }

  function show(term) {
    if (open === term) return;
    close();
    open = term;
    tip = el("div", "tl-tip", WORDS[term.dataset.term] || "");
    tip.id = "tl-tip";
    tip.setAttribute("role", "tooltip");
    document.body.append(tip);
    term.setAttribute("aria-describedby", "tl-tip");
    const at = term.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left) + scrollX}px`;
    const below = at.bottom + 6 + tip.offsetHeight < document.documentElement.clientHeight;
    tip.style.top = `${(below ? at.bottom + 6 : at.top - 6 - tip.offsetHeight) + scrollY}px`;
  }

  const termOf = (event) => event.target.closest?.(".tl-term");
  document.addEventListener("mouseover", (event) => (termOf(event) ? show(termOf(event)) : document.activeElement !== open && close()));
  document.addEventListener("focusin", (event) => (termOf(event) ? show(termOf(event)) : close()));
  document.addEventListener("click", (event) => (termOf(event) ? show(termOf(event)) : close()));
  document.addEventListener("keydown", (event) => event.key === "Escape" && close());

  // A term inside text that a script makes.
  function term(name, text = name) {
    const node = el("button", "tl-term", text);
    node.type = "button";
    node.dataset.term = name;
    return node;
  }
  return { WORDS, term };
})();
