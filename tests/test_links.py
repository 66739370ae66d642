"""Links that restore the page: what a query string may ask for, and that a visitor gets it back from "Copy link"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from browsing import MARKUP, watch
from playwright.sync_api import Browser, BrowserContext, Page, expect
from serve import make_weights

import tinylm
from tinylm.ui import links, page
from tinylm.ui.limits import MAX_CHARACTERS, MAX_SEED
from tinylm.ui.tab import Tab

# Presses Stop as soon as the run shows, sooner than a test could from outside.
STOP_AT_ONCE = """new MutationObserver((_, observer) => {
    const status = document.querySelector("#complete-panel .tl-status");
    if (status?.dataset.state !== "running") return;
    observer.disconnect();
    document.querySelector("#complete-stop").click();
}).observe(document, { childList: true, subtree: true, attributes: true });"""
DONE = "Stopped: it reached the number of new tokens asked for."


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_weights(tmp_path_factory.mktemp("linked") / "weights")


@pytest.fixture(scope="module")
def tabs(weights: Path) -> dict[str, Tab]:
    """The real page's tabs, caught where the page hands them over."""
    caught: dict[str, Tab] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "wire", lambda demo, container, tabs, button: caught.update(tabs))
        page.build(weights)
    return caught


def test_a_link_names_a_tab_and_its_fields(tabs: dict[str, Tab]) -> None:
    query = {"tab": "routing", "prompt": "Bees make", "temperature": "0.8", "seed": "3", "max_new_tokens": "12"}
    values = {"prompt": "Bees make", "temperature": 0.8, "seed": 3, "max_new_tokens": 12}
    assert links.read(query, tabs) == ("routing", values)
    assert list(tabs) == ["complete", "caption", "routing", "training"]
    assert links.read({"tab": "training"}, tabs) == ("training", {})


def test_without_a_tab_the_first_one_is_meant(tabs: dict[str, Tab]) -> None:
    assert links.read({"prompt": "Bees"}, tabs) == ("complete", {"prompt": "Bees"})
    assert links.read({"tab": "nonsense", "prompt": "Bees"}, tabs) == ("complete", {"prompt": "Bees"})
    assert links.read({}, tabs) is None
    assert links.read({"tab": "nonsense", "__theme": "dark"}, tabs) is None


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(("temperature", text) for text in ("", "warm", "nan", "inf", "-0.1", "2.01", "1e0", "0x1", "1_0", "٣", " 1")),
        *(("top_k", text) for text in ("-1", "2.5", "201", "9" * 400)),
        *(("top_p", text) for text in ("1.01", "-1")),
        *(("max_new_tokens", text) for text in ("0", "257", "1.5")),
        *(("seed", text) for text in ("-1", "0.5", str(MAX_SEED + 1), "1e400")),
        *(("model", text) for text in ("", "vision", "../text", "nothing")),
        ("prompt", "x" * (MAX_CHARACTERS + 1)),
        ("stop", "1"),
    ],
)
def test_what_is_unknown_or_out_of_range_is_left_out(tabs: dict[str, Tab], field: str, text: str) -> None:
    assert links.read({"tab": "complete", field: text}, tabs) == ("complete", {})


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        *(("temperature", "0", 0), ("temperature", "2", 2), ("top_k", "200", 200), ("top_p", "0.95", 0.95)),
        *(("max_new_tokens", "256", 256), ("seed", str(MAX_SEED), MAX_SEED), ("model", "deep", "deep")),
        *(("prompt", "", ""), ("prompt", "a\0b", "a\ufffdb"), ("prompt", MARKUP, MARKUP)),
    ],
)
def test_what_the_page_can_be_set_to_is_taken(tabs: dict[str, Tab], field: str, text: str, value: object) -> None:
    assert links.read({"tab": "complete", field: text}, tabs) == ("complete", {field: value})


# ---- In a browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()


@pytest.fixture
def visit(context: BrowserContext, address: str) -> Iterator[Page]:
    """A page, not yet opened; at the end nothing may have gone wrong in it."""
    page = context.new_page()
    wrong = watch(page)
    yield page
    assert wrong == []


def copied(page: Page) -> str:
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator(".tl-link-said")).to_have_text("Copied")
    return page.evaluate("navigator.clipboard.readText()")


def selected(page: Page) -> str:
    return page.locator('[role="tab"][aria-selected="true"]').inner_text()


@pytest.mark.browser
def test_a_link_opens_its_tab_with_its_fields_and_runs(visit: Page, address: str, weights: Path) -> None:
    query = {"tab": "routing", "prompt": "Bees make", "temperature": "1.5", "seed": "3", "max_new_tokens": "12"}
    visit.goto(f"{address}?{urlencode(query)}")
    expect(visit.locator("#routing-panel .tl-status")).to_have_text(DONE, timeout=30_000)
    run = tinylm.load(weights / "moe")
    ids = run.tokenizer.encode("Bees make")
    ids += tinylm.generate(run.model, ids, None, 12, 1.5, seed=3)
    tokens = visit.locator("#routing-panel .tl-column .tl-token").all_text_contents()
    assert tokens == [run.tokenizer.decode([i]) for i in ids]
    assert selected(visit) == "Routing"
    # Fields of a tab, and inside a folded box, that were not on the page when they were set.
    expect(visit.locator("#routing-prompt textarea")).to_have_value("Bees make")
    visit.get_by_role("button", name="Settings").first.click()
    visible = visit.locator('[role="tabpanel"]:visible input[type=number]')
    expect(visible.first).to_be_visible()
    assert [float(node.input_value()) for node in visible.all()] == [1.5, 12, 3]
    # The same prompt by hand gives the same text: the fields hold what the link said.
    visit.locator("#routing-panel .tl-status").evaluate("node => { node.textContent = 'asked'; }")
    visit.locator("#routing-run").click()
    expect(visit.locator("#routing-panel .tl-status")).to_have_text(DONE)
    assert visit.locator("#routing-panel .tl-column .tl-token").all_text_contents() == tokens


@pytest.mark.browser
def test_a_copied_link_brings_the_page_back(visit: Page, context: BrowserContext, address: str) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.goto(address)
    expect(visit.locator("#complete-panel .tl-chip").first).to_be_visible(timeout=30_000)
    assert copied(visit) == f"{address}?tab=complete"  # nothing differs from a fresh page
    visit.get_by_role("tab", name="Routing", exact=True).click()
    visit.locator("#routing-prompt textarea").fill(MARKUP)
    visit.locator("#routing-prompt textarea").press("Enter")
    expect(visit.locator("#routing-panel .tl-status")).not_to_contain_text("An example")
    expect(visit.locator("#routing-panel .tl-status")).to_have_text(DONE)
    link = copied(visit)
    assert dict(parse_qsl(urlsplit(link).query)) == {"tab": "routing", "prompt": MARKUP}
    tokens = visit.locator("#routing-panel .tl-column .tl-token").all_text_contents()
    visit.goto(link)
    expect(visit.locator("#routing-panel .tl-status")).to_have_text(DONE, timeout=30_000)
    expect(visit.locator("#routing-prompt textarea")).to_have_value(MARKUP)
    assert visit.locator("#routing-panel .tl-column .tl-token").all_text_contents() == tokens
    assert "".join(tokens).startswith(MARKUP)
    assert visit.locator("#routing-panel img, #routing-panel b:text-is('x')").count() == 0


@pytest.mark.browser
def test_a_setting_takes_the_prompt_along_in_the_link(visit: Page, context: BrowserContext, address: str) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    query = {"tab": "complete", "prompt": "A baby cat is called", "model": "moe", "temperature": "0.8", "top_k": "5"}
    visit.goto(f"{address}?{urlencode(query)}")
    expect(visit.locator("#complete-panel .tl-status")).to_have_text(DONE, timeout=30_000)
    assert dict(parse_qsl(urlsplit(copied(visit)).query)) == query


@pytest.mark.browser
def test_a_bad_link_opens_the_page_as_ever(visit: Page, address: str) -> None:
    visit.goto(f"{address}?tab=nonsense&temperature=nan&seed=-3&top_k=1e9&model=..%2Ftext&tab[]=x&__proto__=1")
    expect(visit.locator("#complete-panel .tl-status")).to_contain_text("An example", timeout=30_000)
    assert selected(visit) == "Complete"
    assert visit.locator(".toast-wrap .toast-body").count() == 0


@pytest.mark.browser
@pytest.mark.parametrize("tab", ["Caption", "Training"])
def test_a_prompt_for_a_tab_that_takes_none_only_opens_the_tab(visit: Page, address: str, tab: str) -> None:
    with visit.expect_response(lambda answer: "queue/data" in answer.url):
        visit.goto(f"{address}?tab={tab.lower()}&prompt=Bees")
    expect(visit.locator(f"#{tab.lower()}-panel .tl")).to_be_visible(timeout=30_000)
    visit.wait_for_timeout(500)
    assert selected(visit) == tab
    assert visit.locator(".toast-wrap .toast-body").count() == 0


@pytest.mark.browser
def test_stop_ends_the_run_of_a_link(visit: Page, address: str) -> None:
    query = {"prompt": "Bees make", "model": "deep", "max_new_tokens": "256"}
    visit.add_init_script(STOP_AT_ONCE)
    visit.goto(f"{address}?{urlencode(query)}")
    expect(visit.locator("#complete-panel .tl-status")).to_have_text("You stopped it.", timeout=30_000)
    chips = visit.locator("#complete-panel .tl-chip")
    visit.wait_for_timeout(700)
    count = chips.count()
    visit.wait_for_timeout(1000)
    assert 0 < count == chips.count() < 256


@pytest.mark.browser
def test_where_the_clipboard_is_closed_the_link_is_laid_out(visit: Page, address: str) -> None:
    visit.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    visit.goto(f"{address}?tab=training")
    expect(visit.locator("#training-panel .tl")).to_be_visible(timeout=30_000)
    visit.get_by_role("button", name="Copy link").click()
    expect(visit.get_by_label("The link, to copy by hand")).to_have_value(f"{address}?tab=training")
    expect(visit.get_by_label("The link, to copy by hand")).to_be_focused()
