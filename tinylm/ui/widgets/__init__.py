"""Drawn panels: constant templates and scripts from files, fed with plain numbers.

User text reaches them as data and is set through `textContent` only; the templates never interpolate anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

FOLDER = Path(__file__).parent
SHARED = ("draw.js", "terms.js", "sampling.js", "branches.js", "latents.js")  # in this order
FRAME = "frame.css"
COMMON_STYLES = ("page.css", "panels.css")  # first, so that a widget's own style can go beyond them


def widget(name: str, value: dict[str, Any], elem_id: str) -> gr.HTML:
    """The panel whose template and script are `name`.html and `name`.js."""
    return gr.HTML(
        value=value,
        html_template=_read(f"{name}.html"),
        js_on_load=_read(f"{name}.js"),
        apply_default_css=False,
        elem_id=elem_id,
        elem_classes=["tl-panel"],
    )


def css() -> str:
    """The styles of the panels and of what stands round them; gradio puts its own prefix before each selector."""
    own = sorted(path.name for path in FOLDER.glob("*.css") if path.name not in (FRAME, *COMMON_STYLES))
    return "\n".join(map(_read, (*COMMON_STYLES, *own)))


def head() -> str:
    """The shared scripts, and the styles of the page's frame, which no prefix may precede, for the document's head."""
    script = "\n".join(map(_read, SHARED))
    return f"<style>\n{_read(FRAME)}\n</style>\n<script>\n{script}\n</script>"


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
