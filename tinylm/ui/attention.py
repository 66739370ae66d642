"""The Complete tab's attention map: how much each token takes in from each one before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from tinylm.ui import limits
from tinylm.ui.events import CONCURRENCY_ID, Opening, Turns, for_page
from tinylm.ui.models import TEXT
from tinylm.ui.service import Service
from tinylm.ui.service.attend import attend, attend_to_example
from tinylm.ui.tab import Tab
from tinylm.ui.widgets import widget

EXAMPLE, EXAMPLE_TOKENS = "A baby cat is called", 40


def build(service: Service, turns: Turns) -> Tab:
    """Lay out the map; its script asks for one whenever the tab's text has changed and the map is in view."""
    opening = Opening(lambda: service.runs.stamp(TEXT), lambda: attend_to_example(service, EXAMPLE, EXAMPLE_TOKENS))
    panel = widget("attention", opening.built(), "attention-panel")

    def run_map(request: gr.Request, event: gr.EventData) -> Iterator[dict[str, Any]]:
        yield from for_page(attend(service, event._data), turns.begin(request.session_hash, "attention"))

    panel.click(
        run_map,
        None,
        panel,
        api_visibility="private",
        trigger_mode="multiple",
        concurrency_id=CONCURRENCY_ID,
        concurrency_limit=limits.MAX_RUNNING,
        show_progress="hidden",
    )
    # When the page is opened, and the weights came or changed since it was built.
    gr.on(None, opening.refresh, None, panel, api_visibility="private", show_progress="hidden", queue=False)
    return Tab(opening, panel, {})
