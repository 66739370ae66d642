"""Every tab against axe-core's rules, in a wide and a narrow window, light and dark, and with the keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect
from serve import ROOT, serve

pytestmark = pytest.mark.browser
TABS = ("Complete", "Caption", "Routing", "Training")
SERIOUS = ("serious", "critical")
FADED_IN = """() => document.getAnimations().every(
    (one) => one.playState !== "running" || one.effect.getComputedTiming().iterations === Infinity)"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve(ROOT / "weights") as address:
        yield address


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 320])
def test_no_tab_has_a_serious_fault_or_is_wider_than_the_window(
    browser: Browser, address: str, theme: str, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(f"{address}?__theme={theme}")
    expect(page.locator("#complete-panel .tl-chip").first).to_be_visible(timeout=30_000)
    found = []
    for tab in TABS:
        page.get_by_role("tab", name=tab, exact=True).click()
        expect(page.locator(f"#{tab.lower()}-panel")).to_be_visible()
        page.evaluate("document.querySelectorAll('details').forEach((details) => (details.open = true))")
        # Until the tab has faded in; half faded text has too little contrast. A busy machine takes its time for it.
        page.wait_for_timeout(400)
        page.wait_for_function(FADED_IN)
        for violation in Axe().run(page).response["violations"]:
            if violation["impact"] in SERIOUS:
                nodes = [(node["html"][:150], node["failureSummary"]) for node in violation["nodes"][:3]]
                found.append((tab, violation["id"], violation["help"], nodes))
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
    page.close()
    assert found == []


def test_axe_sees_a_fault_that_is_put_in(browser: Browser, address: str) -> None:
    # Otherwise a page that axe can't read would pass.
    page = browser.new_page()
    page.goto(address)
    expect(page.locator("#complete-panel .tl-chip").first).to_be_visible(timeout=30_000)
    page.evaluate("document.querySelector('#complete-panel .tl').append(document.createElement('button'))")
    found = [violation["id"] for violation in Axe().run(page).response["violations"]]
    page.close()
    assert "button-name" in found
