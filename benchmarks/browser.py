"""Shared by the benchmarks that open the page: which browser, and how it is started."""

from __future__ import annotations

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str | None:
    """The first Chromium on PATH, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)
