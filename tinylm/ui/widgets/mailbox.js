// Hands each answer of the server to whoever listens on the bus for its `event`.
watch("value", () => {
  const answer = props.value;
  if (answer?.event) window.tinylm.bus.dispatchEvent(new CustomEvent(answer.event, { detail: answer }));
});
