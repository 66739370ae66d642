"""The whole page: four tabs over one service, and how it is served."""

from __future__ import annotations

import os
from typing import Any

import gradio as gr
import torch

from tinylm.ui import caption, complete, links, routing, training, widgets
from tinylm.ui.events import Turns
from tinylm.ui.limits import MAX_RUNNING
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
MAX_WAITING = 64
MAX_FILE_SIZE = "30mb"
ONE_DAY, ONE_HOUR = 86_400, 3_600


def build(weights: str | os.PathLike[str]) -> gr.Blocks:
    """The page over the run folders in `weights`; what is missing there is said on the page, not raised."""
    torch.set_num_threads(max(1, min(4, (os.cpu_count() or 1) // MAX_RUNNING)))
    service, turns = Service(RunFolders(weights)), Turns()
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(ONE_HOUR, ONE_DAY)) as demo:
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
    return demo.queue(api_open=False, default_concurrency_limit=MAX_RUNNING, max_size=MAX_WAITING)


def launch_options() -> dict[str, Any]:
    """How the page is served: its looks, and the settings that keep a public server closed."""
    return {
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
