"""The Training tab: how each run learned, what it can do and how large it is, with the command that makes it again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from tinylm.ui.events import STREAMS, Opening, Turns, page_run
from tinylm.ui.service import Service
from tinylm.ui.service.trained import measure, stamp, trained
from tinylm.ui.tab import Tab
from tinylm.ui.widgets import widget


def build(service: Service, turns: Turns) -> Tab:
    """Lay out the tab and wire it."""
    opening = Opening(lambda: stamp(service), lambda: trained(service.apart()))
    panel = widget("training", opening.built(), "training-panel")
    answers = widget("mailbox", {}, "training-answers")

    async def run_measure(event: gr.EventData) -> AsyncIterator[dict[str, Any]]:
        """The loss measured again; the panel's script sends the name of the run."""
        name = event._data.get("name") if isinstance(event._data, dict) else None
        async for value in page_run(service, turns, "measure", lambda service: measure(service, name), "measure"):
            yield value | {"event": "training:measure"}

    panel.measure(
        run_measure,
        None,
        answers,
        trigger_mode="multiple",
        api_visibility="private",
        **STREAMS,
    )
    return Tab(opening, panel, {})
