"""One browser page whose charts are drawn hundreds of times: neither it nor the server may grow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from browsing import watched_page
from playwright.sync_api import Browser, Page, expect

from soak.figures import Figure
from soak.watch import DEEP, PAGE_SIZE, Server

RUN_SECONDS = 60
# Counts the drawings of a panel: each is one batch of changes in it.
COUNT = """(panels) => {
    window.drawn = 0;
    for (const panel of panels)
        new MutationObserver(() => { window.drawn += 1; }).observe(
            document.querySelector(panel), { childList: true, subtree: true, attributes: true, characterData: true });
}"""


def _rss(browser: Browser) -> float:
    """Resident memory of the page's process, in MB: the largest, since Chromium keeps an empty one ready."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    renderers = [process["id"] for process in processes if process["type"] == "renderer"]
    return max(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in renderers) * PAGE_SIZE / 1e6


def _run(page: Page, tab: str) -> None:
    """One whole run in a tab, whose charts are drawn at least once."""
    page.get_by_role("tab", name=tab.capitalize(), exact=True).click()
    before = page.evaluate("window.drawn")
    page.locator(f"#{tab}-run").click()
    done = f"""() => window.drawn > {before}
        && document.querySelector("#{tab}-panel .tl-status").dataset.state === "done" """
    page.wait_for_function(done, timeout=1000 * RUN_SECONDS)


def many_updates(
    server: Server, browser: Browser, n: int, warm_up: int, heap_limit: float, page_limit: float, growth_limit: float
) -> dict[str, Figure]:
    """Runs in Complete and Routing until their charts have been drawn `n` times."""
    with watched_page(browser) as page:
        page.goto(f"{server.address}?tab=complete&model={DEEP}&temperature=1&max_new_tokens=256")
        expect(page.locator("#complete-panel .tl-chip").first).to_be_visible(timeout=30_000)
        for tab in ("Routing", "Complete"):  # a tab's panel is there once the tab has been opened
            page.get_by_role("tab", name=tab, exact=True).click()
        expect(page.locator("#routing-panel .tl-status")).to_be_attached()
        page.evaluate(COUNT, ["#complete-panel", "#routing-panel"])
        drawn: Callable[[], int] = lambda: page.evaluate("window.drawn")  # noqa: E731
        session = page.context.new_cdp_session(page)

        def heap() -> float:
            """What is left after three collections, MB: now and then one of them is not finished yet."""
            left = []
            for _ in range(3):
                session.send("HeapProfiler.collectGarbage")
                left.append(session.send("Runtime.getHeapUsage")["usedSize"] / 1e6)
            return min(left)

        def until(number: int) -> None:
            runs = 0
            while drawn() < number:
                _run(page, ("complete", "routing")[runs % 2])
                runs += 1

        until(warm_up)
        first = drawn()
        # A tab that stays open has both panels full at both times.
        _run(page, "routing")
        _run(page, "complete")
        heap_before, page_before, server_before = heap(), _rss(browser), server.rss()
        until(first + n)
        _run(page, "routing")
        _run(page, "complete")
        return {
            "drawings": Figure(drawn() - first),
            "heap of the page": Figure(heap(), None, "MB"),
            "heap growth": Figure(heap() - heap_before, heap_limit, "MB"),
            "memory growth of the page's process": Figure(_rss(browser) - page_before, page_limit, "MB"),
            "memory growth of the server": Figure(server.rss() - server_before, growth_limit, "MB"),
        }
