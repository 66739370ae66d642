"""The Routing tab: which experts each token is sent to, layer by layer, while the tokens stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import gradio as gr

from tinylm.ui import limits
from tinylm.ui.events import STREAMS, Opening, Turns, api_run, page_run
from tinylm.ui.models import MOE
from tinylm.ui.service import Service, Update
from tinylm.ui.service.operate import example as operation_example
from tinylm.ui.service.operate import operate
from tinylm.ui.service.route import route as routed
from tinylm.ui.tab import Tab
from tinylm.ui.widgets import widget

EXAMPLES = ("A baby dog is called", "bees make", "The sun rises in the", "trees lose leaves in")


def build(service: Service, turns: Turns) -> Tab:
    """Lay out the tab and wire it."""
    opening = Opening(lambda: service.runs.stamp(MOE), lambda: routed(service.apart(), EXAMPLES[0]))
    with gr.Row(elem_classes=["tl-ask"]):
        prompt = gr.Textbox(
            EXAMPLES[0],
            label="Prompt",
            info="The beginning of a sentence. Enter runs it.",
            lines=1,
            max_lines=4,
            scale=4,
            min_width=200,
            elem_id="routing-prompt",
        )
        run = gr.Button("Run", variant="primary", scale=0, min_width=88, elem_id="routing-run")
        stop = gr.Button("Stop", scale=0, min_width=88, elem_id="routing-stop")
    with gr.Row(elem_classes=["tl-examples"]):
        buttons = [gr.Button(text, size="sm", scale=0, min_width=60) for text in EXAMPLES]
    with gr.Accordion("Settings", open=False), gr.Row():
        temperature = gr.Slider(
            0, limits.MAX_TEMPERATURE, 0, step=0.05, label="Temperature", info="0 takes the likeliest token."
        )
        max_new_tokens = gr.Slider(
            1, limits.MAX_NEW_TOKENS, 40, step=1, label="Max new tokens", info="The model may end the text sooner."
        )
        seed = gr.Number(0, label="Seed", info="The same seed draws the same tokens.", minimum=0)
    panel = widget("routing", opening.built(), "routing-panel")
    first_operation = Opening(lambda: service.runs.stamp(MOE), lambda: operation_example(service.apart(), EXAMPLES[0]))
    surgery = widget("surgery", first_operation.built(), "surgery-panel")
    settings = [temperature, max_new_tokens, seed]

    def updates(*inputs: Any) -> AsyncIterator[dict[str, Any]]:
        return page_run(service, turns, "route", lambda service: routed(service, *inputs), "routing")

    async def run_prompt(*inputs: Any) -> AsyncIterator[dict[str, Any]]:
        async for value in updates(*inputs):
            yield value

    def example(text: str) -> Callable[..., AsyncIterator[tuple[str, dict[str, Any]]]]:
        async def run_example(*settings: Any) -> AsyncIterator[tuple[str, dict[str, Any]]]:
            async for value in updates(text, *settings):
                yield text, value

        return run_example

    async def run_operation(event: gr.EventData, prompt: Any, *settings: Any) -> AsyncIterator[dict[str, Any]]:
        """The prompt with experts switched off; which ones comes with the event, unchecked."""
        off = event._data.get("off") if isinstance(event._data, dict) else None

        def operated(service: Service) -> Iterator[Update]:
            return operate(service, prompt, off, *settings)

        async for value in page_run(service, turns, "operate", operated, "surgery"):
            yield value

    async def route(
        prompt: str, temperature: float = 0, max_new_tokens: int = 40, seed: int = 0
    ) -> AsyncIterator[dict[str, Any]]:
        """Continue a prompt and tell each token's experts; streams one JSON object that grows."""
        inputs = (prompt, temperature, max_new_tokens, seed)
        async for value in api_run(service, "/route", lambda service: routed(service, *inputs)):
            yield value

    page: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "multiple", **STREAMS}
    runs = [gr.on([run.click, prompt.submit], run_prompt, [prompt, *settings], panel, **page)]
    for button, text in zip(buttons, EXAMPLES, strict=True):
        runs.append(button.click(example(text), settings, [prompt, panel], **page))
    runs.append(surgery.operate(run_operation, [prompt, *settings], surgery, **page))
    stop.click(None, cancels=runs)
    # When the page opens: only when weights came or changed since it was built.
    gr.on(None, first_operation.refresh, None, surgery, api_visibility="private", show_progress="hidden", queue=False)
    whole = gr.JSON(visible=False)
    gr.on([], route, [prompt, *settings], whole, api_name="route", **STREAMS)
    fields = {"prompt": prompt, "temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed}
    return Tab(opening, panel, fields, run_prompt)
