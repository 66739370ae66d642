"""The whole page: four tabs over one service, and how it is served."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import gradio as gr
import torch
from gradio.utils import LRUCache
from starlette.middleware import Middleware

from tinylm.ui import caption, complete, links, routing, training, widgets
from tinylm.ui.door import Door
from tinylm.ui.events import Turns
from tinylm.ui.limits import MAX_RUNNING, MAX_WAITING
from tinylm.ui.models import RunFolders
from tinylm.ui.service import Service
from tinylm.ui.theme import theme

TITLE = "tinylm"
WHAT = (
    "Three tiny language models to question: one completes sentences, one captions flowers, and one shows which "
    "experts each word is sent to. Every number here is computed by the model as you watch, or was written by its "
    "training."
)
TABS = {"Complete": complete, "Caption": caption, "Routing": routing, "Training": training}
MAX_FILE_SIZE = "30mb"
TEN_MINUTES, ONE_HOUR = 600, 3_600
MAX_STATES = 64
"""Sessions whose parts of the page gradio remembers: the page needs none, and each takes 0.2 MB."""
MAX_SESSIONS, MAX_UNREAD_SESSIONS = 2_000, 48
"""Sessions under way, and those of them with messages that nobody has read."""
MAX_EVENTS = MAX_RUNNING + MAX_WAITING + 30
"""Under way at the same time: runs, those that wait for a place, and room for what asks no model."""


class Messages(LRUCache[str, "asyncio.Queue[Any]"]):
    """The messages of each session. Where gradio drops the session that came first, though it is being read, this drops
    those that nobody reads: of more than so many with unread messages, the ones that got none for longest."""

    def __setitem__(self, session: str, messages: asyncio.Queue[Any]) -> None:
        """A session has come."""
        unread = [other for other, waiting in self.items() if waiting.qsize()]
        for other in unread[: max(0, len(unread) + 1 - MAX_UNREAD_SESSIONS)]:
            del self[other]
        super().__setitem__(session, messages)

    def __getitem__(self, session: str) -> asyncio.Queue[Any]:
        """Its messages; those for a session that was dropped go nowhere."""
        if session not in self:
            return asyncio.Queue()
        self.move_to_end(session)
        return super().__getitem__(session)


class Page(gr.Blocks):
    """gradio's page, but for how it is served, and for what a function gets: the values as they came.

    The service checks them, in sentences. gradio would look for files in them, fetch addresses, and keep a copy with
    the session.
    """

    def launch(self, *args: Any, **options: Any) -> Any:
        """Serve it as `launch_options` says, whoever starts it: `app.py`, or a host that finds the page by its name."""
        return super().launch(*args, **(launch_options() | options))

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *_: Any, **__: Any) -> list[Any]:
        """The values of one event. Raises gr.Error."""
        if len(inputs) != len(block_fn.inputs):
            n = len(block_fn.inputs)
            raise gr.Error(f"This function takes {n} values, not {len(inputs):,}.", print_exception=False)
        return list(inputs)


def build(weights: str | os.PathLike[str]) -> gr.Blocks:
    """The page over the run folders in `weights`; what is missing there is said on the page, not raised."""
    torch.set_num_threads(max(1, min(4, (os.cpu_count() or 1) // 2)))  # two runs at a time are many for such a page
    service, turns = Service(RunFolders(weights)), Turns()
    with Page(title=TITLE, analytics_enabled=False, delete_cache=(TEN_MINUTES, ONE_HOUR)) as demo:
        with gr.Row(elem_classes=["tl-top"]):
            gr.HTML(
                f'<header class="tl-header"><h1>{TITLE}</h1><p>{WHAT}</p></header>',
                apply_default_css=False,
                js_on_load=None,
                elem_classes=["tl-plain"],
            )
            copy_link = links.copy_button()
        tabs = {}
        with gr.Tabs() as container:
            for label, module in TABS.items():
                with gr.Tab(label, id=label.lower()):
                    tabs[label.lower()] = module.build(service, turns)
        for tab in tabs.values():
            # Only when weights came or changed since the page was built.
            demo.load(
                tab.opening.refresh, None, tab.panel, api_visibility="private", show_progress="hidden", queue=False
            )
        links.wire(demo, container, tabs, copy_link)
    demo.queue(api_open=False, default_concurrency_limit=None, max_size=MAX_WAITING)
    waiting = demo._queue
    waiting.pending_messages_per_session = Messages(MAX_SESSIONS)
    # Figures for the monitoring page, which is off: made of the last ten thousand events, anew after each one.
    waiting.ANALYTICS_MAX_EVENTS, waiting.ANAYLTICS_CACHE_FREQUENCY = 1, sys.maxsize
    return demo


def launch_options() -> dict[str, Any]:
    """How the page is served: its looks, and the settings that keep a public server closed."""
    return {
        "app_kwargs": {"middleware": [Middleware(Door)]},
        "share": False,
        "mcp_server": False,
        "max_threads": MAX_EVENTS,
        "state_session_capacity": MAX_STATES,
        "theme": theme(),
        "css": widgets.css(),
        "head": widgets.head(),
        "run_history": False,
        "ssr_mode": False,
        "enable_monitoring": False,
        "show_error": False,
        "max_file_size": MAX_FILE_SIZE,
        "quiet": True,
        "footer_links": ["api", "settings"],
    }
