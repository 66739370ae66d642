// Hands each answer of the server to whoever listens on the bus for its `event`.
watch("value", () => {
  const { event } = props.value || {};
  if (event) window.tinylm.bus.dispatchEvent(new CustomEvent(event, { detail: window.tinylm.unpacked(props.value) }));
});
