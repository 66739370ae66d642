"""The Training tab: how each run learned, what it can do and how large it is, with the command that makes it again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from tinylm.ui import limits
from tinylm.ui.events import CONCURRENCY_ID, Opening, Turns, for_page
from tinylm.ui.service import Service
from tinylm.ui.service.trained import measure, stamp, trained
from tinylm.ui.tab import Tab
from tinylm.ui.widgets import widget


def build(service: Service, turns: Turns) -> Tab:
    """Lay out the tab and wire it."""
    opening = Opening(lambda: stamp(service), lambda: trained(service))
    panel = widget("training", opening.built(), "training-panel")
    answers = widget("mailbox", {}, "training-answers")

    def run_measure(request: gr.Request, event: gr.EventData) -> Iterator[dict[str, Any]]:
        """The loss measured again; the panel's script sends the name of the run."""
        sent = event._data if isinstance(event._data, dict) else {}
        updates = measure(service, sent.get("name"))
        for value in for_page(updates, turns.begin(request.session_hash, "measure")):
            yield value | {"event": "training:measure"}

    panel.measure(
        run_measure,
        None,
        answers,
        concurrency_id=CONCURRENCY_ID,
        concurrency_limit=limits.MAX_RUNNING,
        show_progress="hidden",
        trigger_mode="multiple",
        api_visibility="private",
    )
    return Tab(opening, panel, {})
