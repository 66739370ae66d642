"""The Caption tab: a picture, the sentence the model says about it, and how sure it is."""

from __future__ import annotations

import atexit
import io
import shutil
import tempfile
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from tinylm.data import painter
from tinylm.data.flowers import EXAMPLE_SEED
from tinylm.ui import limits
from tinylm.ui.events import CONCURRENCY_ID, Opening, Turns, for_api, for_page
from tinylm.ui.limits import Refused
from tinylm.ui.models import VISION
from tinylm.ui.service import Service, Update
from tinylm.ui.service.caption import caption as captioned
from tinylm.ui.tab import Tab
from tinylm.ui.widgets import widget
from tinylm.vision import MAX_BYTES

EXAMPLES = ("tulip", "sunflower", "rose", "daisy", "iris", "poppy", "water lily")
GREY_CARD = "grey card"
EXAMPLE_SIZE = 256


def opened(payload: dict[str, Any] | None) -> str | io.BytesIO | None:
    """What gr.Image sent, as `tinylm.load_image` takes it: a path, or the bytes that came inside the request.

    gradio has checked that the path is one of its own uploads. The picture stays unopened: its header is to be looked
    at before anything is decoded.
    """
    if not payload:
        return None
    url = payload.get("url") or ""
    if not url.startswith("data:"):
        return payload.get("path")
    if len(url) > MAX_BYTES * 4 / 3 + 100:
        raise Refused(f"This picture is too large; at most {MAX_BYTES // 1_000_000} MB are read.")
    try:
        return io.BytesIO(b64decode(url.partition(",")[2]))
    except ValueError:
        return io.BytesIO()


def draw_examples() -> dict[str, str]:
    """Example pictures by name, drawn into a folder that goes when the program ends."""
    folder = Path(tempfile.mkdtemp(prefix="tinylm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    gr.set_static_paths(folder)  # served from there; gradio's copies would be swept away after a day
    pictures = {kind: painter.paint(kind, EXAMPLE_SEED + i, EXAMPLE_SIZE) for i, kind in enumerate(EXAMPLES)}
    pictures[GREY_CARD] = Image.new("RGB", (EXAMPLE_SIZE, EXAMPLE_SIZE), (128, 128, 128))
    paths = {}
    for name, picture in pictures.items():
        path = folder / f"{name.replace(' ', '-')}.png"
        picture.save(path)
        paths[name] = str(path)
    return paths


def build(service: Service, turns: Turns) -> Tab:
    """Lay out the tab and wire it."""
    paths = draw_examples()
    first = paths[EXAMPLES[0]]
    opening = Opening(lambda: service.runs.stamp(VISION), lambda: captioned(service, first))
    with gr.Row(elem_classes=["tl-columns"]):
        with gr.Column(scale=2, min_width=280):
            picture = gr.Image(
                first,
                label="Picture",
                sources=["upload", "clipboard", "webcam"],
                type="filepath",
                image_mode=None,
                height=300,
                buttons=[],
                elem_id="caption-picture",
            )
            with gr.Row(elem_classes=["tl-ask"]):
                run = gr.Button("Caption it", variant="primary", min_width=120, elem_id="caption-run")
                stop = gr.Button("Stop", scale=0, min_width=88, elem_id="caption-stop")
            gr.HTML(
                '<p class="tl-note">Drawn examples, one click each:</p>',
                apply_default_css=False,
                js_on_load=None,
                elem_classes=["tl-plain"],
            )
            with gr.Row(elem_classes=["tl-thumbs"]):
                buttons = [gr.Button(name, icon=path, size="sm", scale=0, min_width=72) for name, path in paths.items()]
        with gr.Column(scale=3, min_width=320):
            panel = widget("caption", opening.built(), "caption-panel")

    streams: dict[str, Any] = {
        "preprocess": False,
        "concurrency_id": CONCURRENCY_ID,
        "concurrency_limit": limits.MAX_RUNNING,
        "show_progress": "hidden",
    }

    def sent(payload: dict[str, Any] | None) -> Iterator[Update]:
        yield from captioned(service, opened(payload))

    def updates(request: gr.Request, captions: Iterator[Update]) -> Iterator[dict[str, Any]]:
        return for_page(captions, turns.begin(request.session_hash, "caption"))

    def run_picture(request: gr.Request, image: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
        yield from updates(request, sent(image))

    def run_cleared(request: gr.Request) -> Iterator[dict[str, Any]]:
        yield from updates(request, sent(None))

    def example(path: str) -> Callable[..., Iterator[tuple[Any, dict[str, Any]]]]:
        def run_example(request: gr.Request) -> Iterator[tuple[Any, dict[str, Any]]]:
            shown: Any = path
            for value in updates(request, captioned(service, path)):
                yield shown, value
                shown = gr.skip()

        return run_example

    def caption(image: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
        """Caption a picture of a flower; streams one JSON object that grows."""
        yield from for_api(sent(image))

    page: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "multiple", **streams}
    runs = [
        gr.on([run.click, picture.upload], run_picture, picture, panel, **page),
        # A cleared picture's event still carries the old one.
        picture.clear(run_cleared, None, panel, **page),
    ]
    for button, path in zip(buttons, paths.values(), strict=True):
        runs.append(button.click(example(path), None, [picture, panel], **page))
    stop.click(None, cancels=runs)
    whole = gr.JSON(visible=False)
    gr.on([], caption, picture, whole, api_name="caption", **streams)
    return Tab(opening, panel, {})
