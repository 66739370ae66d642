"""The Caption tab: a picture, the sentence the model says about it, and how sure it is."""

from __future__ import annotations

import atexit
import io
import json
import shutil
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder
from PIL import Image

from tinylm.data import painter
from tinylm.data.flowers import EXAMPLE_SEED
from tinylm.ui import limits
from tinylm.ui.events import STREAMS, Answer, Opening, Turns, api_run, page_run
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


def opened(payload: Any, folders: Sequence[str] = ()) -> Path | io.BytesIO | None:
    """What came as a picture, as `tinylm.load_image` takes it: a path, or the bytes that came inside the request.

    A path must be that of an upload or lie in one of `folders`; no address of another host is ever fetched. The
    picture stays unopened: its header is to be looked at before anything is decoded. Raises Refused.
    """
    if not payload:
        return None
    path, url = (payload.get("path"), payload.get("url")) if isinstance(payload, dict) else (None, None)
    if isinstance(url, str) and url.startswith("data:"):
        if len(url) > MAX_BYTES * 4 / 3 + 100:
            raise Refused(f"This picture is too large; at most {MAX_BYTES // 1_000_000} MB are read.")
        try:
            return io.BytesIO(b64decode(url.partition(",")[2]))
        except ValueError:
            return io.BytesIO()
    if isinstance(path, str):
        try:
            found = Path(path).resolve()
            if any(found.is_relative_to(Path(folder).resolve()) for folder in (get_upload_folder(), *folders)):
                return found
        except (OSError, ValueError):  # no path that can be
            pass
    raise Refused("Please upload the picture, or send it as a data: URL; no other file or address is read.")


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
    folder = str(Path(next(iter(paths.values()))).parent)
    names = list(paths)
    maps: dict[str, dict[str, Map]] = {name: {} for name in names}  # of the page's own pictures only

    def of_example(service: Service, name: Any) -> Iterator[Update]:
        for update in captioned(service, _example(paths, name)):
            yield Update(update.result, update.page | {"example": name, "is_blank": name == GREY_CARD})

    opening = Opening(lambda: service.runs.stamp(VISION), lambda: of_example(service.apart(), names[0]))
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

    def of_picture(service: Service, payload: Any) -> Iterator[Update]:
        yield from captioned(service, opened(payload, [folder]))

    def updates(answer: Answer) -> AsyncIterator[dict[str, Any]]:
        # What was asked about the picture before is over.
        return page_run(service, turns, "caption", answer, "caption", ends=("slots",))

    async def run_picture(image: Any) -> AsyncIterator[dict[str, Any]]:
        async for value in updates(lambda service: of_picture(service, image)):
            yield value

    async def run_shown(image: Any, name: Any) -> AsyncIterator[dict[str, Any]]:
        # A link may name anything.
        async for value in run_example(name) if _is_example(paths, name) else run_picture(image):
            yield value

    async def run_cleared() -> AsyncIterator[dict[str, Any]]:
        async for value in run_picture(None):
            yield value

    async def run_example(name: Any) -> AsyncIterator[dict[str, Any]]:
        async for value in updates(lambda service: of_example(service, name)):
            yield value

    def example(name: str) -> Callable[[], AsyncIterator[dict[str, Any]]]:
        async def run_it() -> AsyncIterator[dict[str, Any]]:
            async for value in run_example(name):
                yield value

        return run_it

    def explained(service: Service, payload: Any, asked: Any) -> Iterator[Update]:
        asked = asked if isinstance(asked, dict) else {}
        of = limits.whole(asked.get("of"), "The number of the run", 0, 2**53, 0)
        name, other = asked.get("example"), asked.get("other")
        image = opened(payload, [folder]) if name is None else _example(paths, name)
        changes = asked.get("muted", []), asked.get("swapped", [])
        of_other, with_map = _example(paths, other), asked.get("map") is True
        for update in explain(service, image, of_other, *changes, with_map, None if name is None else maps[name]):
            yield Update(update.result, update.page | {"of": of, "other": other})

    async def run_slots(image: Any, event: gr.EventData) -> AsyncIterator[dict[str, Any]]:
        asked = event._data
        async for value in page_run(
            service, turns, "explain", lambda service: explained(service, image, asked), "slots"
        ):
            yield value

    async def caption(image: dict[str, Any] | None) -> AsyncIterator[dict[str, Any]]:
        """Caption a picture of a flower; streams one JSON object that grows."""
        async for value in api_run(service, "/caption", lambda service: of_picture(service, image)):
            yield value

    _name_the_picture(picture, shown, buttons, paths)
    page: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "multiple", **STREAMS}
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
    gr.on([], caption, picture, whole, api_name="caption", **STREAMS)
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

    shown.change(picture_of, shown, picture, show_progress="hidden", queue=False, preprocess=False, **private)


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
