"""The Caption tab: a picture, the sentence the model says about it, and how sure it is."""

from __future__ import annotations

import atexit
import io
import json
import shutil
import tempfile
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
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
from tinylm.ui.service.explain import Map, explain
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
    names = list(paths)
    maps: dict[str, dict[str, Map]] = {name: {} for name in names}  # of the page's own pictures only

    def of_example(name: Any) -> Iterator[Update]:
        for update in captioned(service, _example(paths, name)):
            yield Update(update.result, update.page | {"example": name, "is_blank": name == GREY_CARD})

    opening = Opening(lambda: service.runs.stamp(VISION), lambda: of_example(names[0]))
    with gr.Row(elem_classes=["tl-columns"]):
        with gr.Column(scale=2, min_width=280):
            picture = gr.Image(
                paths[names[0]],
                label="Picture",
                sources=["upload", "clipboard", "webcam"],
                type="filepath",
                image_mode=None,
                height=300,
                buttons=[],
                elem_id="caption-picture",
            )
            # Which example the picture is, "" for a visitor's own: what a link names, and what runs while the browser
            # is still fetching the example's picture.
            shown = gr.Textbox(names[0], label="Example", visible="hidden", elem_id="caption-example")
            with gr.Row(elem_classes=["tl-ask"]):
                run = gr.Button("Caption it", variant="primary", min_width=120, elem_id="caption-run")
                stop = gr.Button("Stop", scale=0, min_width=88, elem_id="caption-stop")
            _note("Drawn examples, one click each:")
            with gr.Row(elem_classes=["tl-thumbs"]):
                buttons = {name: _thumb(name, path) for name, path in paths.items() if name != GREY_CARD}
            _note(
                "The blank card test: a plain grey card shows no flower. The model has to end its sentence with some "
                "name all the same, so its verdict must say that this is no flower:"
            )
            with gr.Row(elem_classes=["tl-thumbs"]):
                buttons[GREY_CARD] = _thumb(GREY_CARD, paths[GREY_CARD])
        with gr.Column(scale=3, min_width=320):
            panel = widget("caption", opening.built(), "caption-panel")
    slots = widget("slots", {"examples": names}, "slots-panel")

    streams: dict[str, Any] = {
        "preprocess": False,
        "concurrency_id": CONCURRENCY_ID,
        "concurrency_limit": limits.MAX_RUNNING,
        "show_progress": "hidden",
    }

    def of_picture(payload: dict[str, Any] | None) -> Iterator[Update]:
        yield from captioned(service, opened(payload))

    def updates(request: gr.Request, captions: Iterator[Update]) -> Iterator[dict[str, Any]]:
        turns.begin(request.session_hash, "slots")  # what was asked about the picture before is over
        return for_page(captions, turns.begin(request.session_hash, "caption"))

    def run_picture(request: gr.Request, image: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
        yield from updates(request, of_picture(image))

    def run_shown(request: gr.Request, image: dict[str, Any] | None, name: Any) -> Iterator[dict[str, Any]]:
        # A link may name anything.
        yield from updates(request, of_example(name) if _is_example(paths, name) else of_picture(image))

    def run_cleared(request: gr.Request) -> Iterator[dict[str, Any]]:
        yield from updates(request, of_picture(None))

    def run_example(request: gr.Request, name: Any) -> Iterator[dict[str, Any]]:
        yield from updates(request, of_example(name))

    def example(name: str) -> Callable[[gr.Request], Iterator[dict[str, Any]]]:
        def run_it(request: gr.Request) -> Iterator[dict[str, Any]]:
            yield from run_example(request, name)

        return run_it

    def explained(payload: dict[str, Any] | None, asked: Any) -> Iterator[Update]:
        asked = asked if isinstance(asked, dict) else {}
        of = limits.whole(asked.get("of"), "The number of the run", 0, 2**53, 0)
        name, other = asked.get("example"), asked.get("other")
        image = opened(payload) if name is None else _example(paths, name)
        changes = asked.get("muted", []), asked.get("swapped", [])
        of_other, with_map = _example(paths, other), asked.get("map") is True
        for update in explain(service, image, of_other, *changes, with_map, None if name is None else maps[name]):
            yield Update(update.result, update.page | {"of": of, "other": other})

    def run_slots(request: gr.Request, image: dict[str, Any] | None, event: gr.EventData) -> Iterator[dict[str, Any]]:
        yield from for_page(explained(image, event._data), turns.begin(request.session_hash, "slots"))

    def caption(image: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
        """Caption a picture of a flower; streams one JSON object that grows."""
        yield from for_api(of_picture(image))

    _name_the_picture(picture, shown, buttons, paths)
    page: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "multiple", **streams}
    runs: list[Any] = [
        run.click(run_shown, [picture, shown], panel, **page),
        picture.upload(run_picture, picture, panel, **page),
        # A cleared picture's event still carries the old one.
        picture.clear(run_cleared, None, panel, **page),
        slots.click(run_slots, picture, slots, **page),
    ]
    for name, button in buttons.items():
        runs.append(button.click(example(name), None, panel, **page))
    stop.click(None, cancels=runs)
    whole = gr.JSON(visible=False)
    gr.on([], caption, picture, whole, api_name="caption", **streams)
    return Tab(opening, panel, {"example": shown}, run_example)


def _name_the_picture(
    picture: gr.Image, shown: gr.Textbox, buttons: Mapping[str, gr.Button], paths: Mapping[str, str]
) -> None:
    """Keep `shown` and `picture` of one mind.

    The name changes in the browser, before anything runs: so this is wired before the runs are.
    """
    private: dict[str, Any] = {"api_visibility": "private"}
    for name, button in buttons.items():
        button.click(None, None, shown, js=f"() => {json.dumps(name)}", **private)
    # A pasted picture and a camera's are uploads too.
    gr.on([picture.upload, picture.clear], None, None, shown, js="() => ''", **private)

    def picture_of(name: Any) -> Any:
        return paths[name] if _is_example(paths, name) else gr.skip()

    shown.change(picture_of, shown, picture, show_progress="hidden", queue=False, **private)


def _is_example(paths: Mapping[str, str], name: Any) -> bool:
    return isinstance(name, str) and name in paths


def _example(paths: Mapping[str, str], name: Any) -> str:
    """The path of an example picture. Raises Refused."""
    if not _is_example(paths, name):
        raise Refused(f"There is no example of that name; choose one of {', '.join(paths)}.")
    return paths[name]


def _thumb(name: str, path: str) -> gr.Button:
    return gr.Button(name, icon=path, size="sm", scale=0, min_width=72)


def _note(text: str) -> None:
    gr.HTML(f'<p class="tl-note">{text}</p>', apply_default_css=False, js_on_load=None, elem_classes=["tl-plain"])
