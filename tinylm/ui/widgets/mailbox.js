// Hands each answer of the server to whoever listens on the bus for its `event`.
watch("value", () => {
  const { event, state } = props.value || {};
  if (event && state !== "waiting") window.tinylm.bus.dispatchEvent(new CustomEvent(event, { detail: window.tinylm.unpacked(props.value) }));
});
