"""Links that open the page as someone left it: the tab, the prompt and the settings, in the query string."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import gradio as gr
from gradio.components import Component

from tinylm.ui import limits
from tinylm.ui.events import STREAMS
from tinylm.ui.limits import Refused
from tinylm.ui.tab import Tab
from tinylm.ui.widgets import widget

TAB = "tab"
ASKS = {"prompt", "example"}  # fields that a link runs with
NUMBER = re.compile(r"-?\d{1,12}(\.\d{1,12})?", re.ASCII)


class Link(NamedTuple):
    """What a query string asks for, checked."""

    tab: str
    values: dict[str, Any]  # by the field's name


def copy_button() -> gr.HTML:
    """The button that copies a link of the page as it stands."""
    return widget("links", {}, "links")


def wire(demo: gr.Blocks, container: gr.Tabs, tabs: Mapping[str, Tab], button: gr.HTML) -> None:
    """Open the page as its link says, and let `button` make such links. `tabs` by their ids, the first one first."""
    fields = [(name, field, component) for name, tab in tabs.items() for field, component in tab.fields.items()]
    components = [component for _, _, component in fields]

    def restore(request: gr.Request) -> list[Any]:
        link = read(dict(request.query_params), tabs)
        if link is None:
            return [gr.skip()] * (1 + len(fields))
        found = [link.values.get(field, gr.skip()) if name == link.tab else gr.skip() for name, field, _ in fields]
        return [gr.Tabs(selected=link.tab), *found]

    async def run(request: gr.Request) -> AsyncIterator[dict[Any, Any]]:
        link = read(dict(request.query_params), tabs)
        tab = tabs[link.tab] if link else None
        yield {button: gr.skip()}  # after a run without any update gradio empties all the panels
        if link is None or tab is None or tab.run is None or not ASKS & link.values.keys():
            return
        values = [link.values.get(field, component.value) for field, component in tab.fields.items()]
        async for value in tab.run(*values):
            yield {tab.panel: value}

    demo.load(restore, None, [container, *components], queue=False, api_visibility="private", show_progress="hidden")
    # The button's script raises it once, and only on a page whose link asks for a run: other visitors don't queue.
    runs = button.submit(
        run,
        None,
        [button, *(tab.panel for tab in tabs.values())],
        api_visibility="private",
        **STREAMS,
    )
    for block in list(demo.blocks.values()):
        if isinstance(block, gr.Button) and block.elem_id in {f"{name}-stop" for name in tabs}:
            block.click(None, cancels=runs)
    defaults = [[name, field, component.value] for name, field, component in fields]
    # In the browser alone: the fields' values go to the button's script.
    hand_over = 'window.tinylm.bus.dispatchEvent(new CustomEvent("link", { detail: { fields, values } }))'
    button.click(None, components, None, js=f"(...values) => {{ const fields = {json.dumps(defaults)}; {hand_over}; }}")


def read(query: Mapping[str, str], tabs: Mapping[str, Tab]) -> Link | None:
    """The tab and the values that a query string names; what is unknown or out of range is left out.

    None if nothing is left. Without a tab, the fields are those of the first.
    """
    asked = query.get(TAB) in tabs
    name = query[TAB] if asked else next(iter(tabs))
    values = {field: _checked(component, query.get(field)) for field, component in tabs[name].fields.items()}
    values = {field: value for field, value in values.items() if value is not None}
    return Link(name, values) if asked or values else None


def _checked(component: Component, text: str | None) -> Any:
    """`text` as a value that the component can hold, by the service's own checks; None if it is none."""
    if text is None:
        return None
    try:
        if isinstance(component, gr.Textbox):
            return limits.prompt(text)
        if isinstance(component, (gr.Dropdown, gr.Radio)):
            return text if text in [value for _, value in component.choices] else None
        if isinstance(component, (gr.Slider, gr.Number)) and NUMBER.fullmatch(text):
            low: Any = 0 if component.minimum is None else component.minimum
            high: Any = limits.MAX_SEED if component.maximum is None else component.maximum
            check = limits.whole if component.step == 1 else limits.number
            return check(float(text), str(component.label), low, high, low)
    except Refused:
        pass
    return None
