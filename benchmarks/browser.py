"""Shared by all that open the page, benchmarks and tests: which browser, and how it is started."""

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
    """The usual place of a Chromium, or the first on PATH, if there is one."""
    return next(filter(None, map(shutil.which, ("/usr/bin/chromium", *NAMES))), None)
