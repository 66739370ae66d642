"""What every browser test needs: a Chromium, and a page that tells what went wrong in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from browser import FLAGS, chromium
from playwright.sync_api import Browser, Page, sync_playwright

IN_CI = os.environ.get("CI") == "true"
LOCAL = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")
MARKUP = "<b>x</b> <img src=x onerror=alert(1)> ${alert(1)} {{x}} `"


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium. Without one the test is passed over, but for CI, which must have one."""
    path = chromium()
    if path is None and not IN_CI:
        pytest.skip("no Chromium here (/usr/bin/chromium or on PATH)")
    assert path is not None, "CI must have a Chromium: install one at /usr/bin/chromium or on PATH"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield browser
        browser.close()


def watch(page: Page) -> list[str]:
    """What goes wrong in a page from now on: errors, dialogs, requests to any other host."""
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: None if request.url.startswith(LOCAL) else wrong.append(request.url))
    return wrong


@contextmanager
def watched_page(browser: Browser) -> Iterator[Page]:
    """A page in a context of its own; at the end nothing may have gone wrong in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    wrong = watch(page)
    yield page
    context.close()
    assert wrong == []
