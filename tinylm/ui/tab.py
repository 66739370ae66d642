"""What a tab's module gives the page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

import gradio as gr
from gradio.components import Component

from tinylm.ui.events import Opening


class Tab(NamedTuple):
    """One tab, built."""

    opening: Opening
    panel: gr.HTML  # which shows the opening example, and every run
    fields: Mapping[str, Component]  # what the visitor sets, by its name in a link
    run: Callable[..., AsyncIterator[dict[str, Any]]] | None = None  # (*fields) -> the panel's values
