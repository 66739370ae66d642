"""The Complete tab's "Prove it": does the short way say the same as the long one, and what does each cost?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import gradio as gr
from gradio.components import Component

from tinylm.ui.events import STREAMS, Opening, Turns, page_run
from tinylm.ui.models import TEXT
from tinylm.ui.service import Service
from tinylm.ui.service.prove import prove
from tinylm.ui.tab import Tab
from tinylm.ui.widgets import widget


def build(service: Service, turns: Turns, prompt: Component, model: Component, max_new_tokens: Component) -> Tab:
    """Lay out the button and the table; they ask about the tab's own prompt, model and number of tokens."""
    example = (prompt.value, TEXT, max_new_tokens.value)
    opening = Opening(lambda: service.runs.stamp(TEXT), lambda: prove(service.apart(), *example))
    with gr.Row(elem_classes=["tl-ask"]):
        run = gr.Button("Prove it", scale=0, min_width=120, elem_id="proof-run")
        stop = gr.Button("Stop", scale=0, min_width=88, elem_id="proof-stop")
    panel = widget("proof", opening.built(), "proof-panel")

    async def run_proof(*inputs: Any) -> AsyncIterator[dict[str, Any]]:
        async for value in page_run(service, turns, "prove", lambda service: prove(service, *inputs), "proof"):
            yield value

    event = run.click(
        run_proof,
        [prompt, model, max_new_tokens],
        panel,
        api_visibility="private",
        trigger_mode="multiple",
        **STREAMS,
    )
    stop.click(None, cancels=[event])
    # When the page is opened, and the weights came or changed since it was built.
    gr.on(None, opening.refresh, None, panel, api_visibility="private", show_progress="hidden", queue=False)
    return Tab(opening, panel, {})
