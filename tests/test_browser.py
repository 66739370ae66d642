"""The page in a real Chromium: what a visitor does, and what must never happen meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import MARKUP, watched_page
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from serve import MOE_LAYERS, make_weights, serve

pytestmark = pytest.mark.browser
# Remembers how many of a panel's items stood there while a run was on.
COUNT = """([root, item]) => {
    const node = document.querySelector(root);
    window.counts = [];
    new MutationObserver(() => {
        const n = node.querySelectorAll(item).length;
        const running = node.querySelector(".tl-status").dataset.state === "running";
        if (running && n !== window.counts.at(-1)) window.counts.push(n);
    }).observe(node, { childList: true, subtree: true, attributes: true });
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(make_weights(tmp_path_factory.mktemp("browsed") / "weights")) as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page, opened; afterwards: no error, no dialog, and no request to any other host."""
    with watched_page(browser) as page:
        page.goto(address)
        expect(page.locator("#complete-panel .tl-chip").first).to_be_visible(timeout=30_000)
        yield page


def _text(page: Page, selector: str) -> str:
    return page.locator(selector).evaluate("node => node.textContent")


def _set_new_tokens(page: Page, tab: int, value: int) -> None:
    """Type how many tokens to generate, and wait until the page has taken the number.

    A field that has only just appeared drops what is typed within its first moments, which no hand is fast enough
    for: type again then.
    """
    number = page.get_by_role("spinbutton", name="number input for Max new tokens").nth(tab)
    track = page.get_by_role("slider", name="range slider for Max new tokens", include_hidden=True).nth(tab)
    for _ in range(10):
        number.fill(str(value))
        number.press("Tab")
        page.wait_for_timeout(300)
        if track.input_value() == str(value):
            return
    raise AssertionError(f"the page doesn't take {value} new tokens")


def test_each_tab_opens_with_a_finished_example(page: Page) -> None:
    for tab, item in (("Complete", ".tl-chip"), ("Caption", ".tl-labels li"), ("Routing", ".tl-cell")):
        page.get_by_role("tab", name=tab, exact=True).click()
        panel = page.locator(f"#{tab.lower()}-panel")
        expect(panel.locator(item).first).to_be_visible()
        expect(panel.locator(".tl-status")).to_contain_text("An example")


def test_a_prompt_is_completed(page: Page) -> None:
    prompt = page.locator("#complete-prompt textarea")
    prompt.fill("Bees make")
    prompt.press("Enter")
    expect(page.locator("#complete-panel .tl-status")).to_have_text(
        "Stopped: it reached the number of new tokens asked for."  # no longer called an example
    )
    chips = page.locator("#complete-panel .tl-chip")
    expect(chips).to_have_count(40)
    assert _text(page, "#complete-panel .tl-text").startswith("Bees make")
    expect(page.locator("#complete-panel .tl-alternatives li")).to_have_count(10)
    expect(page.locator("#complete-panel .tl-cache-note")).to_contain_text("times smaller")
    chips.nth(5).click()
    expect(page.locator("#complete-panel .tl-hint").first).to_contain_text("Token 6,")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#complete-panel .tl-hint").first).to_contain_text("Token 7,")
    expect(chips.nth(6)).to_be_focused()


def test_an_example_runs_at_one_click(page: Page) -> None:
    page.get_by_role("button", name="The opposite of hot is").click()
    expect(page.locator("#complete-prompt textarea")).to_have_value("The opposite of hot is")
    expect(page.locator("#complete-panel .tl-text")).to_contain_text("The opposite of hot is")
    expect(page.locator("#complete-panel .tl-status")).to_contain_text("Stopped")
    assert _text(page, "#complete-panel .tl-text").startswith("The opposite of hot is")


def test_stop_ends_a_run_and_another_can_follow(page: Page) -> None:
    page.locator("#complete-model input").click()
    page.get_by_role("option", name="deep").click()
    _set_new_tokens(page, 0, 256)
    page.evaluate(COUNT, ["#complete-panel", ".tl-chip"])
    page.locator("#complete-run").click()
    page.wait_for_function("window.counts.length > 3")
    page.locator("#complete-stop").click()
    expect(page.locator("#complete-panel .tl-status")).to_have_text("You stopped it.")
    page.wait_for_timeout(500)
    stopped_at = page.locator("#complete-panel .tl-chip").count()
    page.wait_for_timeout(700)
    assert 0 < stopped_at == page.locator("#complete-panel .tl-chip").count() < 256
    _set_new_tokens(page, 0, 8)
    page.locator("#complete-run").click()
    expect(page.locator("#complete-panel .tl-chip")).to_have_count(8)
    expect(page.locator("#complete-panel .tl-status")).to_contain_text("Stopped")


def test_a_picture_is_captioned(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "flower.png"
    image = Image.new("RGB", (64, 48), (20, 110, 40))
    image.paste((240, 60, 90), (20, 10, 44, 34))
    image.save(path)
    page.get_by_role("tab", name="Caption", exact=True).click()
    before = page.locator(".tl-pixels").evaluate("canvas => canvas.toDataURL()")
    page.get_by_label("Remove Image").click()
    expect(page.locator("#caption-panel .tl-status")).to_contain_text("Please choose a picture")
    page.wait_for_timeout(500)  # the empty field has only just appeared
    page.locator("#caption-picture input[type=file]").set_input_files(path)
    panel = page.locator("#caption-panel")
    expect(panel.locator(".tl-status")).to_contain_text("The model gives this whole caption")
    expect(panel.locator(".tl-status")).not_to_contain_text("An example")
    expect(panel.locator(".tl-caption")).to_contain_text("This flower is obviously")
    expect(panel.locator(".tl-labels li")).to_have_count(5)
    expect(panel.locator(".tl-verdict")).to_contain_text("a flower the model knows")
    assert page.locator(".tl-pixels").evaluate("canvas => canvas.toDataURL()") != before


def test_an_example_picture_is_captioned_at_one_click(page: Page) -> None:
    page.get_by_role("tab", name="Caption", exact=True).click()
    expect(page.locator(".tl-thumbs img").first).to_be_visible()
    page.wait_for_function(  # they are fetched when the tab is opened
        "[...document.querySelectorAll('.tl-thumbs img')].every((image) => image.naturalWidth > 0)"
    )
    status = page.locator("#caption-panel .tl-status")
    page.locator("#caption-run").click()  # on the picture that is there from the start
    expect(status).not_to_contain_text("An example")
    before = page.locator(".tl-pixels").evaluate("canvas => canvas.toDataURL()")
    page.get_by_role("button", name="grey card").click()
    page.wait_for_function("before => document.querySelector('.tl-pixels').toDataURL() !== before", arg=before)
    expect(status).to_contain_text("The model gives this whole caption")
    page.locator("#caption-run").click()
    expect(status).to_contain_text("The model gives this whole caption")


def test_the_routing_chart_grows_while_tokens_stream(page: Page) -> None:
    page.get_by_role("tab", name="Routing", exact=True).click()
    page.get_by_role("button", name="Settings").first.click()
    _set_new_tokens(page, -1, 200)
    page.evaluate(COUNT, ["#routing-panel", ".tl-cell"])
    page.locator("#routing-run").click()
    expect(page.locator("#routing-panel .tl-status")).to_have_text(
        "Stopped: it reached the number of new tokens asked for.", timeout=30_000
    )
    last = page.locator("#routing-panel .tl-cell").count()
    counts = page.evaluate("window.counts")
    assert len(counts) > 1 and counts == sorted(counts) and counts[0] < counts[-1] <= last
    assert last % MOE_LAYERS == 0 and last >= MOE_LAYERS * 200
    expect(page.locator("#routing-panel .tl-load-layer")).to_have_count(MOE_LAYERS)
    expect(page.locator("#routing-panel .tl-loss")).to_contain_text("Load-balancing loss")


def test_markup_in_a_prompt_is_shown_as_it_is(page: Page) -> None:
    for tab, text in (("Complete", ".tl-text"), ("Routing", ".tl-chart")):
        page.get_by_role("tab", name=tab, exact=True).click()
        prompt = page.locator(f"#{tab.lower()}-prompt textarea")
        prompt.fill(MARKUP)
        prompt.press("Enter")
        panel = f"#{tab.lower()}-panel"
        expect(page.locator(f"{panel} .tl-notes")).to_contain_text("{ (U+007B)")
        expect(page.locator(f"{panel} .tl-status")).to_contain_text("Stopped")
        if tab == "Complete":
            assert _text(page, f"{panel} {text}").startswith(MARKUP)
        else:
            tokens = page.locator(f"{panel} .tl-column .tl-token").all_text_contents()
            assert "".join(tokens).startswith(MARKUP)
        page.locator(f"{panel} summary", has_text="The numbers as a table").click()
        made = "nodes => nodes.filter((node) => node.tagName === 'IMG' || node.textContent === 'x').length"
        assert page.locator(f"{panel} img, {panel} b").evaluate_all(made) == 0


def test_all_three_tabs_fit_a_narrow_window(page: Page) -> None:
    page.set_viewport_size({"width": 320, "height": 700})
    page.reload()
    expect(page.locator("#complete-panel .tl-chip").first).to_be_visible(timeout=30_000)
    for tab in ("Complete", "Caption", "Routing"):
        page.get_by_role("tab", name=tab, exact=True).click()
        expect(page.locator(f"#{tab.lower()}-panel .tl")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


def _overflowing(page: Page, panel: str) -> list[str]:
    """Visible parts of a panel that stick out of the window, those in boxes that scroll by themselves left out."""
    return page.locator(f"{panel} *").evaluate_all("""nodes => nodes.filter((node) => {
        const box = node.getBoundingClientRect();
        if (!box.width || box.right <= innerWidth + 1) return false;
        for (let at = node.parentElement; at && at !== document.body; at = at.parentElement)
            if (["auto", "scroll", "hidden"].includes(getComputedStyle(at).overflowX)) return false;
        return true;
    }).map((node) => node.className)""")


def test_charts_are_whole_after_a_run_behind_another_tab_and_a_change_of_size(page: Page) -> None:
    # A panel that is drawn while it is hidden has no width to go by.
    page.get_by_role("tab", name="Routing", exact=True).click()
    page.locator("#routing-run").click()
    page.get_by_role("tab", name="Complete", exact=True).click()
    page.locator("#complete-run").click()
    page.get_by_role("tab", name="Routing", exact=True).click()
    expect(page.locator("#routing-panel .tl-status")).to_contain_text("Stopped")
    n_cells = page.locator("#routing-panel .tl-cell").count()
    assert n_cells % MOE_LAYERS == 0 and n_cells > MOE_LAYERS * 40
    for width in (360, 1500, 700):
        page.set_viewport_size({"width": width, "height": 800})
        for tab, panels in (("Routing", ["routing", "surgery"]), ("Complete", ["complete", "proof", "attention"])):
            page.get_by_role("tab", name=tab, exact=True).click()
            page.wait_for_timeout(400)
            for panel in panels:
                assert _overflowing(page, f"#{panel}-panel") == [], (width, panel)
    assert page.locator("#routing-panel .tl-cell").count() == n_cells
    expect(page.locator("#complete-panel .tl-chip:not(.tl-end)")).to_have_count(40)


def test_charts_stay_whole_when_the_window_changes_while_tokens_stream(page: Page) -> None:
    drawn = {"Complete": (".tl-chip:not(.tl-end)", ["proof", "attention"]), "Routing": (".tl-cell", [])}
    for tab, (item, others) in drawn.items():
        name = tab.lower()
        page.get_by_role("tab", name=tab, exact=True).click()
        if tab == "Complete":
            page.locator("#complete-model input").click()
            page.get_by_role("option", name="deep").click()
        else:
            page.get_by_role("button", name="Settings").first.click()
        _set_new_tokens(page, 0 if tab == "Complete" else -1, 200)
        page.set_viewport_size({"width": 1280, "height": 900})
        page.evaluate(
            """([panel, item]) => {
                window.widths = new Set();
                const node = document.querySelector(panel);
                new MutationObserver(() => {
                    if (node.querySelector(".tl-status").dataset.state !== "running") return;
                    if (node.querySelectorAll(item).length) window.widths.add(innerWidth);
                }).observe(node, { childList: true, subtree: true });
            }""",
            [f"#{name}-panel", item],
        )
        status = page.locator(f"#{name}-panel .tl-status")
        for _ in range(6):  # a run may be over before a hand from outside has changed anything
            page.evaluate("window.widths = new Set()")
            page.locator(f"#{name}-run").click()
            width = 1280
            while not page.evaluate("window.widths.size") or status.get_attribute("data-state") != "done":
                width = 1280 if width < 420 else width - 170
                page.set_viewport_size({"width": width, "height": 800})
            if page.evaluate("window.widths.size") > 1:
                break
        assert len(page.evaluate("[...window.widths]")) > 1, tab  # it did change in the midst of a run
        whole = 200 if tab == "Complete" else MOE_LAYERS * 200
        assert page.locator(f"#{name}-panel {item}").count() >= whole
        for width in (360, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_timeout(400)
            for panel in (name, *others):
                assert _overflowing(page, f"#{panel}-panel") == [], (width, panel)


def test_two_browsers_at_once_see_their_own_texts(browser: Browser, address: str) -> None:
    prompts = ["Bees make", "The capital of France is"]
    pages = [browser.new_context().new_page() for _ in prompts]
    for page in pages:
        page.goto(address)
        expect(page.locator("#complete-panel .tl-chip").first).to_be_visible(timeout=30_000)
    for _ in range(2):
        for page, text in zip(pages, prompts, strict=True):
            page.locator("#complete-prompt textarea").fill(text)
        for page in pages:
            page.locator("#complete-run").click(no_wait_after=True)
        for page, text in zip(pages, prompts, strict=True):
            expect(page.locator("#complete-panel .tl-text")).to_contain_text(text)
            expect(page.locator("#complete-panel .tl-status")).to_have_text(
                "Stopped: it reached the number of new tokens asked for."
            )
            expect(page.locator("#complete-panel .tl-chip:not(.tl-end)")).to_have_count(40)
            assert _text(page, "#complete-panel .tl-text").startswith(text)
        prompts.reverse()
    for page in pages:
        page.context.close()


def test_weights_that_come_later_are_there_after_a_reload(browser: Browser, tmp_path: Path) -> None:
    with serve(tmp_path / "weights") as address:
        page = browser.new_page()
        page.goto(address)
        for tab, command in (("Complete", "text"), ("Caption", "vision"), ("Routing", "moe")):
            page.get_by_role("tab", name=tab, exact=True).click()
            status = page.locator(f"#{tab.lower()}-panel .tl-status")
            expect(status).to_contain_text(f"python train.py {command} --out weights/{command}")
            expect(page.locator(f"#{tab.lower()}-panel h2").first).to_be_hidden()
        make_weights(tmp_path / "weights")
        page.reload()
        expect(page.locator("#complete-panel .tl-chip").first).to_be_visible(timeout=30_000)
        page.close()
