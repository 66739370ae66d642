"""The Complete tab: a sentence continued, with what the model would have said instead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import gradio as gr
from gradio.components import Component

from tinylm.ui import attention, limits, proof, zero_gpu
from tinylm.ui.events import STREAMS, Opening, Turns, api_run, page_run
from tinylm.ui.models import TEXT
from tinylm.ui.service import Service, Update
from tinylm.ui.service.complete import complete as completion
from tinylm.ui.service.complete import logits as logits_of
from tinylm.ui.tab import Tab
from tinylm.ui.widgets import widget

EXAMPLES = (
    attention.EXAMPLE,
    "The capital of France is",
    "The opposite of hot is",
    "trees lose leaves in",
    "bees make",
    "A spider has eight",
)


def sent(event: gr.EventData, *names: str) -> tuple[Any, ...]:
    """What the panel's script sent under these names, unchecked; None where nothing came."""
    data = event._data if isinstance(event._data, dict) else {}
    return tuple(data.get(name) for name in names)


def example_run(service: Service) -> Iterator[Update]:
    """The example that the tab opens with; its speed is that of any later run, not of a model's first one."""
    for _ in completion(service.apart(), EXAMPLES[0]):  # many times slower, and told to nobody
        pass
    yield from completion(service.apart(), EXAMPLES[0])


def build(service: Service, turns: Turns) -> Tab:
    """Lay out the tab and wire it."""
    opening = Opening(lambda: service.runs.stamp(TEXT), lambda: example_run(service))
    with gr.Row(elem_classes=["tl-columns"]):
        with gr.Column(scale=3, min_width=320):
            with gr.Row(elem_classes=["tl-ask"]):
                prompt = gr.Textbox(
                    EXAMPLES[0],
                    label="Prompt",
                    info="The beginning of a sentence. Enter runs it.",
                    lines=1,
                    max_lines=4,
                    scale=4,
                    min_width=200,
                    elem_id="complete-prompt",
                )
                run = gr.Button("Run", variant="primary", scale=0, min_width=88, elem_id="complete-run")
                stop = gr.Button("Stop", scale=0, min_width=88, elem_id="complete-stop")
            with gr.Row(elem_classes=["tl-examples"]):
                buttons = [gr.Button(text, size="sm", scale=0, min_width=60) for text in EXAMPLES]
            panel = widget("complete", opening.built(), "complete-panel")
            answers = widget("mailbox", {}, "complete-answers")
        # The panel's script follows the sliders in here by their ids.
        with gr.Column(scale=1, min_width=240, elem_id="complete-settings", elem_classes=["tl-settings"]):
            model = gr.Dropdown(service.runs.text_names(), value=TEXT, label="Model", elem_id="complete-model")
            temperature = gr.Slider(
                0,
                limits.MAX_TEMPERATURE,
                0,
                step=0.05,
                label="Temperature",
                info="0 takes the likeliest token. The bars follow it.",
                elem_id="complete-temperature",
            )
            top_k = gr.Slider(
                0, 200, 0, step=1, label="Top-k", info="Draw from the k likeliest; 0 is all.", elem_id="complete-top-k"
            )
            top_p = gr.Slider(
                0,
                1,
                1,
                step=0.01,
                label="Top-p",
                info="Draw from the likeliest that hold this share.",
                elem_id="complete-top-p",
            )
            max_new_tokens = gr.Slider(
                1, limits.MAX_NEW_TOKENS, 40, step=1, label="Max new tokens", elem_id="complete-length"
            )
            seed = gr.Number(0, label="Seed", info="The same seed draws the same tokens.", minimum=0)
    proof.build(service, turns, prompt, model, max_new_tokens)
    attention.build(service, turns)

    settings = [model, temperature, top_k, top_p, max_new_tokens, seed]

    def updates(name: str, *inputs: Any) -> AsyncIterator[dict[str, Any]]:
        return page_run(service, turns, name, lambda service: zero_gpu.complete(service, *inputs), "complete")

    async def run_prompt(*inputs: Any) -> AsyncIterator[dict[str, Any]]:
        async for value in updates("complete", *inputs):
            yield value

    def example(text: str) -> Callable[..., AsyncIterator[tuple[str, dict[str, Any]]]]:
        async def run_example(*settings: Any) -> AsyncIterator[tuple[str, dict[str, Any]]]:
            async for value in updates("complete", text, *settings):
                yield text, value

        return run_example

    async def run_fork(event: gr.EventData, *settings: Any) -> AsyncIterator[dict[str, Any]]:
        """The text forked at a token; the prompt, the model and the tokens so far come with the event."""
        prompt, model, given = sent(event, "prompt", "model", "given")
        async for value in updates("fork", prompt, model, *settings, given):
            yield value

    async def answer_logits(event: gr.EventData) -> AsyncIterator[dict[str, Any]]:
        model, ids = sent(event, "model", "ids")
        async for value in page_run(service, turns, "logits", lambda service: logits_of(service, model, ids)):
            yield value | {"event": "complete:logits"}

    async def complete(
        prompt: str,
        model: str = "text",
        temperature: float = 0,
        top_k: int = 0,
        top_p: float = 1,
        max_new_tokens: int = 40,
        seed: int = 0,
    ) -> AsyncIterator[dict[str, Any]]:
        """Continue a prompt; streams one JSON object that grows."""
        inputs = (prompt, model, temperature, top_k, top_p, max_new_tokens, seed)
        async for value in api_run(service, "/complete", lambda service: zero_gpu.complete(service, *inputs)):
            yield value

    page: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "multiple", **STREAMS}
    runs = [gr.on([run.click, prompt.submit], run_prompt, [prompt, *settings], panel, **page)]
    for button, text in zip(buttons, EXAMPLES, strict=True):
        runs.append(button.click(example(text), settings, [prompt, panel], **page))
    runs.append(panel.fork(run_fork, settings[1:], panel, **page))
    panel.logits(answer_logits, None, answers, **page)
    stop.click(None, cancels=runs)
    whole = gr.JSON(visible=False)
    gr.on([], complete, [prompt, *settings], whole, api_name="complete", **STREAMS)
    fields: dict[str, Component] = {
        "prompt": prompt,
        "model": model,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
    }
    fields |= {"max_new_tokens": max_new_tokens, "seed": seed}
    return Tab(opening, panel, fields, run_prompt)
