"""The Routing tab: which experts each token is sent to, layer by layer, while the tokens stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from tinylm.ui import limits
from tinylm.ui.events import CONCURRENCY_ID, Opening, Turns, for_api, for_page
from tinylm.ui.models import MOE
from tinylm.ui.service import Service
from tinylm.ui.service.operate import example as operation_example
from tinylm.ui.service.operate import operate
from tinylm.ui.service.route import route as routed
from tinylm.ui.tab import Tab
from tinylm.ui.widgets import widget

EXAMPLES = ("A baby dog is called", "Bees make", "The sun rises in the", "trees lose leaves in")


def build(service: Service, turns: Turns) -> Tab:
    """Lay out the tab and wire it."""
    opening = Opening(lambda: service.runs.stamp(MOE), lambda: routed(service, EXAMPLES[0]))
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
    first_operation = Opening(lambda: service.runs.stamp(MOE), lambda: operation_example(service, EXAMPLES[0]))
    surgery = widget("surgery", first_operation.built(), "surgery-panel")
    settings = [temperature, max_new_tokens, seed]
    streams: dict[str, Any] = {
        "preprocess": False,  # the service checks everything itself, and says so in words
        "concurrency_id": CONCURRENCY_ID,
        "concurrency_limit": limits.MAX_RUNNING,
        "show_progress": "hidden",
    }

    def updates(request: gr.Request, *inputs: Any) -> Iterator[dict[str, Any]]:
        return for_page(routed(service, *inputs), turns.begin(request.session_hash, "routing"))

    def run_prompt(request: gr.Request, *inputs: Any) -> Iterator[dict[str, Any]]:
        yield from updates(request, *inputs)

    def example(text: str) -> Callable[..., Iterator[tuple[str, dict[str, Any]]]]:
        def run_example(request: gr.Request, *settings: Any) -> Iterator[tuple[str, dict[str, Any]]]:
            for value in updates(request, text, *settings):
                yield text, value

        return run_example

    def run_operation(
        request: gr.Request, event: gr.EventData, prompt: Any, *settings: Any
    ) -> Iterator[dict[str, Any]]:
        """The prompt with experts switched off; which ones comes with the event, unchecked."""
        off = event._data.get("off") if isinstance(event._data, dict) else None
        operated = operate(service, prompt, off, *settings)
        yield from for_page(operated, turns.begin(request.session_hash, "surgery"))

    def route(prompt: str, temperature: float = 0, max_new_tokens: int = 40, seed: int = 0) -> Iterator[dict[str, Any]]:
        """Continue a prompt and tell each token's experts; streams one JSON object that grows."""
        yield from for_api(routed(service, prompt, temperature, max_new_tokens, seed))

    page: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "multiple", **streams}
    runs = [gr.on([run.click, prompt.submit], run_prompt, [prompt, *settings], panel, **page)]
    for button, text in zip(buttons, EXAMPLES, strict=True):
        runs.append(button.click(example(text), settings, [prompt, panel], **page))
    runs.append(surgery.operate(run_operation, [prompt, *settings], surgery, **page))
    stop.click(None, cancels=runs)
    # When the page opens: only when weights came or changed since it was built.
    gr.on(None, first_operation.refresh, None, surgery, api_visibility="private", show_progress="hidden", queue=False)
    whole = gr.JSON(visible=False)
    gr.on([], route, [prompt, *settings], whole, api_name="route", **streams)
    fields = {"prompt": prompt, "temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed}
    return Tab(opening, panel, fields, run_prompt)
