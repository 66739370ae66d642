"""The Complete tab's attention map: how much each token takes in from each one before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from tinylm.ui.events import STREAMS, Opening, Turns, page_run
from tinylm.ui.models import TEXT
from tinylm.ui.service import Service
from tinylm.ui.service.attend import attend, attend_to_example
from tinylm.ui.tab import Tab
from tinylm.ui.widgets import widget

EXAMPLE, EXAMPLE_TOKENS = "A baby cat is called a", 40


def build(service: Service, turns: Turns) -> Tab:
    """Lay out the map; its script asks for one whenever the tab's text has changed and the map is in view."""
    opening = Opening(
        lambda: service.runs.stamp(TEXT), lambda: attend_to_example(service.apart(), EXAMPLE, EXAMPLE_TOKENS)
    )
    panel = widget("attention", opening.built(), "attention-panel")

    async def run_map(event: gr.EventData) -> AsyncIterator[dict[str, Any]]:
        question = event._data
        async for value in page_run(service, turns, "attend", lambda service: attend(service, question), "attention"):
            yield value

    panel.click(
        run_map,
        None,
        panel,
        api_visibility="private",
        trigger_mode="multiple",
        **STREAMS,
    )
    # When the page is opened, and the weights came or changed since it was built.
    gr.on(None, opening.refresh, None, panel, api_visibility="private", show_progress="hidden", queue=False)
    return Tab(opening, panel, {})
