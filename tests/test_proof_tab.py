""" "Prove it" and the attention map: what the page shows against the library called directly."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
import torch
from browsing import MARKUP, watched_page
from playwright.sync_api import Browser, Locator, Page, expect
from serve import CONTEXT, free_port, make_weights

import tinylm
from tinylm import comparison
from tinylm.ui import attention, proof
from tinylm.ui.events import Turns
from tinylm.ui.limits import Deadline, Refused, Slots
from tinylm.ui.models import RunFolders, Unavailable
from tinylm.ui.page import launch_options
from tinylm.ui.service import Service, attend, prove

PROMPT = "A baby cat is called"
WAYS = ["again", "latent", "folded", "full"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_weights(tmp_path_factory.mktemp("proved") / "weights")


@pytest.fixture(scope="module")
def service(weights: Path) -> Service:
    return Service(RunFolders(weights))


def last(updates: Iterator) -> tuple[dict, dict]:
    *_, update = updates
    return update


def ids_of(run: tinylm.Run, prompt: str = PROMPT, max_new_tokens: int = 12) -> list[int]:
    """A prompt with its likeliest continuation."""
    ids = run.tokenizer.encode(prompt)
    return ids + tinylm.generate(run.model, ids, max_new_tokens=max_new_tokens)


def map_of(result: dict) -> np.ndarray:
    """The lower triangle that a result carries, (n, n)."""
    n = len(result["ids"])
    whole = np.zeros((n, n), np.float32)
    whole[np.tril_indices(n)] = np.frombuffer(b64decode(result["map"]), "<f4")
    return whole


# The service: Prove it


@pytest.mark.parametrize("name", ["text", "moe"])
def test_a_proof_says_what_the_library_says(service: Service, weights: Path, name: str) -> None:
    result, page, _ = last(prove.prove(service, PROMPT, name, 12))
    run = tinylm.load(weights / name)
    ids, config = run.tokenizer.encode(PROMPT), run.model.config
    new = tinylm.generate(run.model, ids, max_new_tokens=12)
    assert [row["way"] for row in result["rows"]] == WAYS
    n_read = len(ids) + 12 - 1
    kept = {"again": 0, "latent": config.d_latent, "folded": config.d_latent, "full": 2 * config.d_model}
    for row in result["rows"]:
        assert row["same"] and row["n_new"] == row["n_compared"] == 12 and row["n_read"] == n_read
        assert row["text"] == run.tokenizer.decode(new)
        assert row["bytes"] == config.n_layers * n_read * kept[row["way"]] * 4
        assert row["largest_difference"] < 1e-3 and row["ms_per_token"] > 0
    assert page["weights"] == service.weights(name) and page["running"] is None


def test_a_proof_comes_a_row_at_a_time(service: Service) -> None:
    seen = [
        ([row["way"] for row in result["rows"]], page["running"]) for result, page, _ in prove.prove(service, PROMPT)
    ]
    for n, name in enumerate(WAYS):
        assert (WAYS[:n], name) in seen
    assert (WAYS, "times") in seen
    assert seen[-1] == (WAYS, None)
    assert [len(rows) for rows, _ in seen] == sorted(len(rows) for rows, _ in seen)


def test_a_proof_starts_from_nothing_and_from_what_no_token_covers(service: Service, weights: Path) -> None:
    run = tinylm.load(weights / "text")
    result, page, _ = last(prove.prove(service, " ", "text", 4))
    assert page["from_nothing"]
    assert result["rows"][0]["text"] == run.tokenizer.decode(
        tinylm.generate(run.model, [run.tokenizer.eos_id], max_new_tokens=4)
    )
    result, page, _ = last(prove.prove(service, "Zürich \ud800", "text", 4))
    assert page["prompt"] == "Zürich \ufffd" and all(row["same"] for row in result["rows"])


def test_a_proof_is_bounded_by_tokens_and_by_the_context(service: Service) -> None:
    result, page, _ = last(prove.prove(service, PROMPT, "text", 256))
    assert result["rows"][0]["n_new"] == page["max_tokens"] == prove.MAX_TOKENS and page["shortened"]
    result, *_ = last(prove.prove(service, "?" * (CONTEXT - 1), "text", 40))
    assert [row["n_new"] for row in result["rows"]] == [2] * 4  # the second is chosen, never read


def test_a_proof_can_fail(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    read = comparison.Latent.read

    def stale(way: comparison.Latent, ids: list[int]) -> torch.Tensor:
        logits_V = read(way, ids)
        way._cache.latents[:, :, -1] = way._cache.latents[:, :, 0].clone() + 1
        return logits_V

    monkeypatch.setattr(comparison.Latent, "read", stale)
    rows = {row["way"]: row for row in last(prove.prove(service, PROMPT, "text", 12))[0]["rows"]}
    assert not rows["latent"]["same"] and rows["latent"]["largest_difference"] > 0.1
    assert rows["full"]["same"] and rows["folded"]["same"]


def test_a_difference_that_is_no_number_travels_as_none(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    read = comparison.Full.read
    monkeypatch.setattr(comparison.Full, "read", lambda way, ids: read(way, ids) * float("nan"))
    result, *_ = last(prove.prove(service, PROMPT, "text", 3))
    assert result["rows"][-1]["largest_difference"] is None and result["rows"][1]["largest_difference"] is not None


@pytest.mark.parametrize(
    "setting",
    [
        {"prompt": 7},
        {"prompt": "x" * 10_001},
        {"prompt": "?" * (CONTEXT + 1)},
        {"model": "vision"},
        {"model": ["text"]},
        {"max_new_tokens": 0},
        {"max_new_tokens": 1.5},
        {"max_new_tokens": float("nan")},
        {"max_new_tokens": "many"},
    ],
)
def test_a_proof_of_what_makes_no_sense_is_refused_in_a_sentence(service: Service, setting: dict) -> None:
    with pytest.raises(Refused, match=r"^[A-Z].*\.$"):
        list(prove.prove(service, **{"prompt": PROMPT, **setting}))


def test_a_dropped_proof_gives_its_place_back_and_a_late_one_is_ended(weights: Path) -> None:
    service = Service(RunFolders(weights), Slots(1))
    for _ in range(3):
        updates = prove.prove(service, PROMPT, "deep")
        next(updates)
        updates.close()
    assert len(last(prove.prove(service, PROMPT, "text", 2))[0]["rows"]) == 4

    class Late(Slots):
        @contextmanager
        def take(self) -> Iterator[Deadline]:
            yield Deadline(-1)

    with pytest.raises(Refused, match="ended after"):
        list(prove.prove(Service(RunFolders(weights), Late()), PROMPT))


def test_missing_weights_are_named(tmp_path: Path) -> None:
    nothing = Service(RunFolders(tmp_path / "weights"))
    for updates in (prove.prove(nothing, PROMPT), attend.attend(nothing, {"model": "text", "ids": [1]})):
        with pytest.raises(Unavailable, match=r"python train.py text"):
            next(updates)


# The service: the attention map


@pytest.mark.parametrize("name", ["text", "moe"])
def test_a_map_is_the_models_own(service: Service, weights: Path, name: str) -> None:
    run = tinylm.load(weights / name)
    ids = ids_of(run)
    maps = run.model.attention_maps(torch.tensor([ids]))
    for block, head in ((1, 1), (2, 1), (1, 2), (2, 2)):
        question = {"model": name, "ids": ids, "block": block, "head": head}
        result, page, _ = last(attend.attend(service, question))
        np.testing.assert_array_equal(map_of(result), maps[block - 1, 0, head - 1].numpy())
        assert {key: result[key] for key in question} == question
    assert page["texts"] == [run.tokenizer.decode([i]) or run.tokenizer.tokens[i] for i in ids]
    assert (page["n_blocks"], page["n_heads"], page["context"]) == (run.model.config.n_layers, 2, CONTEXT)
    assert page["weights"] == service.weights(name)


def test_a_full_context_is_drawn_without_the_token_that_was_never_read(service: Service) -> None:
    result, *_ = last(attend.attend(service, {"model": "text", "ids": [1] * (CONTEXT + 1)}))
    assert result["ids"] == [1] * CONTEXT and (result["block"], result["head"]) == (1, 1)


@pytest.mark.parametrize(
    "question",
    [
        None,
        [],
        "text",
        {},
        {"model": "vision"},
        {"model": {"text": 1}},
        {"ids": None},
        {"ids": []},
        {"ids": "123"},
        {"ids": [1] * (CONTEXT + 2)},
        {"ids": [-1]},
        {"ids": [90]},
        {"ids": [1.0]},
        {"ids": [True]},
        {"ids": ["1"]},
        {"ids": [[1]]},
        {"block": 0},
        {"block": 3},
        {"block": "1"},
        {"head": 3},
        {"head": 1.5},
        {"head": float("nan")},
    ],
)
def test_a_map_of_what_makes_no_sense_is_refused_in_a_sentence(service: Service, question: object) -> None:
    if isinstance(question, dict) and question:
        question = {"model": "text", "ids": [1, 2], "block": 1, "head": 1, **question}
    with pytest.raises(Refused, match=r"^[A-Z].*\.$"):
        list(attend.attend(service, question))


def test_a_map_too_large_to_compute_is_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend, "MAX_VALUES", 2 * 2 * 9)
    assert last(attend.attend(service, {"model": "text", "ids": [1, 2, 3]}))
    with pytest.raises(Refused, match="shorter text"):
        list(attend.attend(service, {"model": "text", "ids": [1, 2, 3, 4]}))


# The page


def _build(service: Service) -> gr.Blocks:
    """The two widgets under fields of the kind that the Complete tab has, the map below the window's edge."""
    turns = Turns()
    with gr.Blocks() as demo:
        prompt = gr.Textbox(PROMPT, label="Prompt", elem_id="prompt")
        model = gr.Dropdown(service.runs.text_names(), value="text", label="Model")
        max_new_tokens = gr.Number(8, label="Max new tokens", elem_id="tokens")
        proof.build(service, turns, prompt, model, max_new_tokens)
        gr.HTML('<div style="height: 1500px"></div>', js_on_load=None)
        attention.build(service, turns)
    return demo.queue(api_open=False)


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    demo = _build(service)
    _, address, _ = demo.launch(
        server_name="127.0.0.1", server_port=free_port(), prevent_thread_lock=True, **launch_options()
    )
    yield address
    demo.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page, opened; afterwards: no error, no dialog, and no request to any other host."""
    with watched_page(browser) as page:
        page.goto(address)
        expect(page.locator("#attention-panel .tl-map-rows span").first).to_be_attached(timeout=30_000)
        yield page


def _share(value: float) -> str:
    return f"{100 * value:.2f} %" if value < 0.1 else f"{100 * value:.1f} %"


def _said(text: str) -> str:
    return text.replace(" ", "␣")


def _tell(page: Page, name: str, detail: dict) -> None:
    """What the chips tell the other panels."""
    page.evaluate(
        "([name, detail]) => window.tinylm.bus.dispatchEvent(new CustomEvent(name, { detail }))", [name, detail]
    )


def _text_event(service: Service, run: tinylm.Run, name: str, ids: list[int], texts: list[str] | None = None) -> dict:
    texts = texts or [run.tokenizer.decode([i]) for i in ids]
    return {"model": name, "weights": service.weights(name), "ids": ids, "texts": texts, "nPrompt": 3}


def _at(page: Page, row: int, column: int) -> dict[str, float]:
    """Where in the canvas a cell lies."""
    cell = (
        page.locator(".tl-map-cells canvas").evaluate("node => node.clientWidth")
        / page.locator(".tl-map-rows span").count()
    )
    return {"x": (column + 0.5) * cell, "y": (row + 0.5) * cell}


def _cells(page: Page, way: str) -> Locator:
    return page.locator(f'#proof-panel tr[data-way="{way}"] td')


class TestPage:
    pytestmark = pytest.mark.browser

    def test_the_proof_opens_with_a_finished_example(self, page: Page, weights: Path) -> None:
        run = tinylm.load(weights / "text")
        new = tinylm.generate(run.model, run.tokenizer.encode(PROMPT), max_new_tokens=8)
        expect(page.locator("#proof-panel .tl-status")).to_have_text(
            "An example, computed when the page was made ready. All 4 ways give the same 8 tokens."
        )
        shown = page.locator("#proof-panel .tl-proof-text").evaluate("node => node.textContent")
        assert shown == PROMPT + run.tokenizer.decode(new)

    def test_prove_it_runs_the_prompt_model_and_number_of_the_tab(self, page: Page, weights: Path) -> None:
        run = tinylm.load(weights / "moe")
        config, ids = run.model.config, run.tokenizer.encode("Bees make")
        n_read = len(ids) + 20 - 1
        page.get_by_label("Model").click()
        page.get_by_role("option", name="moe").click()
        page.locator("#prompt textarea").fill("Bees make")
        page.locator("#tokens input").fill("20")
        page.locator("#proof-run").click()
        expect(page.locator("#proof-panel .tl-status")).to_have_text("All 4 ways give the same 20 tokens.")
        expected = "Bees make" + run.tokenizer.decode(tinylm.generate(run.model, ids, max_new_tokens=20))
        assert page.locator("#proof-panel .tl-proof-text").evaluate("node => node.textContent") == expected
        for way, kept, words in (
            ("latent", config.d_latent, f"{config.d_latent} numbers"),
            ("folded", config.d_latent, f"{config.d_latent} numbers"),
            ("full", 2 * config.d_model, f"2 × {config.d_model} numbers"),
        ):
            same, difference, size, time = _cells(page, way).all_inner_texts()
            assert same.splitlines()[0] == "yes"
            assert "× 10⁻" in difference or difference.startswith("0")
            measured, again = size.splitlines()
            assert measured == f"{config.n_layers * n_read * kept * 4:,} B"
            assert again == f"= {config.n_layers} blocks × {n_read} tokens × {words} × 4 B"
            assert float(time.splitlines()[0]) > 0

    def test_a_way_that_says_something_else_is_shown_as_such(self, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
        read = comparison.Full.read
        monkeypatch.setattr(comparison.Full, "read", lambda way, ids: read(way, ids).roll(1))
        page.locator("#proof-run").click()
        status = page.locator("#proof-panel .tl-status")
        expect(status).to_have_text("1 of 3 ways do not give the 8 tokens that reading everything again gives.")
        same, difference, *_ = _cells(page, "full").all_inner_texts()
        assert same.startswith("no\ndiffers at token 1\nIt says: ") and float(difference.splitlines()[0]) > 1
        assert _cells(page, "latent").first.inner_text().startswith("yes")

    def test_a_slow_proof_grows_and_can_be_stopped(self, page: Page) -> None:
        page.get_by_label("Model").click()
        page.get_by_role("option", name="deep").click()
        page.locator("#tokens input").fill("200")
        page.locator("#proof-run").click()
        running = page.locator('#proof-panel tr[data-running="true"]')
        expect(running).to_have_attribute("data-way", "latent", timeout=25_000)
        assert _cells(page, "again").first.inner_text() == "64 tokens"
        page.locator("#proof-stop").click()
        expect(page.locator("#proof-panel .tl-status")).to_have_text("You stopped it.")
        expect(running).to_have_count(0)
        expect(page.locator("#proof-panel .tl-proof-times")).to_contain_text(
            "Only the first 64 new tokens are compared."
        )
        page.locator("#tokens input").fill("1")
        page.locator("#proof-run").click()
        expect(page.locator("#proof-panel .tl-status")).to_have_text(
            "All 4 ways give the same 1 token.", timeout=25_000
        )
        assert _cells(page, "full").last.inner_text() == "–\none step alone"

    def test_markup_is_shown_as_it_is(self, page: Page, service: Service, weights: Path) -> None:
        page.locator("#prompt textarea").fill(MARKUP)
        page.locator("#proof-run").click()
        expect(page.locator("#proof-panel .tl-proof-text")).to_contain_text(MARKUP)
        run = tinylm.load(weights / "text")
        pieces = [MARKUP, "`", "${alert(1)}", "{{x}}", "\n"]
        page.locator("#attention-panel").scroll_into_view_if_needed()
        _tell(page, "complete:text", _text_event(service, run, "text", [1, 2, 3, 4, 5], pieces))
        labels = page.locator("#attention-panel .tl-map-rows span")
        expect(labels).to_have_count(5)
        assert labels.all_text_contents() == [
            f"{_said(text)} {i}".replace("\n", "↵") for i, text in enumerate(pieces, 1)
        ]
        page.locator("#attention-panel .tl-details summary").click()
        expect(page.locator("#attention-panel .tl-table")).to_contain_text("${alert(1)}")
        for panel in ("proof", "attention"):
            assert page.locator(f"#{panel}-panel img, #{panel}-panel b").count() == 0

    def test_the_map_opens_with_a_finished_example(self, page: Page, weights: Path) -> None:
        run = tinylm.load(weights / "text")
        ids = ids_of(run, attention.EXAMPLE, attention.EXAMPLE_TOKENS)
        labels = page.locator("#attention-panel .tl-map-rows span").all_text_contents()
        assert labels == [f"{_said(run.tokenizer.decode([i]))} {n}" for n, i in enumerate(ids, 1)]
        expect(page.locator("#attention-panel .tl-status")).to_contain_text("An example")

    def test_the_map_asks_only_when_it_is_seen_and_the_text_is_at_rest(
        self, page: Page, service: Service, weights: Path
    ) -> None:
        run = tinylm.load(weights / "text")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url) if "queue/join" in request.url else None)
        for n in (3, 4, 5):
            _tell(page, "complete:text", _text_event(service, run, "text", ids_of(run, max_new_tokens=n)))
        page.wait_for_timeout(600)
        assert asked == []
        page.locator("#attention-panel").scroll_into_view_if_needed()
        n_tokens = len(ids_of(run, max_new_tokens=5))
        expect(page.locator("#attention-panel .tl-map-rows span")).to_have_count(n_tokens)
        assert len(asked) == 1
        events = [_text_event(service, run, "text", ids_of(run, max_new_tokens=n)) for n in (6, 7, 8, 9)]
        page.evaluate(
            """events => events.forEach((detail, i) => setTimeout(() =>
                tinylm.bus.dispatchEvent(new CustomEvent("complete:text", { detail })), 100 * i))""",
            events,
        )
        expect(page.locator("#attention-panel .tl-map-rows span")).to_have_count(n_tokens + 4)
        assert len(asked) == 2
        _tell(page, "complete:text", _text_event(service, run, "text", ids_of(run, max_new_tokens=9)))
        page.wait_for_timeout(600)
        assert len(asked) == 2  # it has that map already

    def test_the_map_of_a_block_and_head_says_what_the_model_says(
        self, page: Page, service: Service, weights: Path
    ) -> None:
        run = tinylm.load(weights / "moe")
        ids = ids_of(run)
        texts = [_said(run.tokenizer.decode([i])) for i in ids]
        maps = run.model.attention_maps(torch.tensor([ids])).double()
        page.locator("#attention-panel").scroll_into_view_if_needed()
        _tell(page, "complete:text", _text_event(service, run, "moe", ids))
        status = page.locator("#attention-panel .tl-status")
        expect(status).to_have_text("Block 1, head 1.")
        page.locator("#attention-panel .tl-block").select_option("5")
        expect(status).to_have_text("Block 5, head 1.")
        page.locator("#attention-panel .tl-head").select_option("2")
        expect(status).to_have_text("Block 5, head 2.")
        map_LL = maps[4, 0, 1]
        said, most = page.locator("#attention-panel .tl-map-said"), page.locator("#attention-panel .tl-map-most")

        page.locator(".tl-map-cells").hover(position=_at(page, 6, 2))
        expect(said).to_have_text(f"Token 7, {texts[6]}, takes {_share(map_LL[6, 2])} from token 3, {texts[2]}.")
        page.locator(".tl-map-cells").hover(position=_at(page, 2, 6))
        expect(said).to_have_text(f"Token 3, {texts[2]}, can't see token 7, {texts[6]}: it comes later.")
        page.locator(".tl-map-cells").click(position=_at(page, 8, 3))
        expect(said).to_have_text(f"Token 9, {texts[8]}, takes {_share(map_LL[8, 3])} from token 4, {texts[3]}.")
        top = map_LL[8, :9].argsort(descending=True)[:3].tolist()
        words = [f"{'itself' if j == 8 else f'{texts[j]} ({j + 1})'} {_share(map_LL[8, j])}" for j in top]
        total = f"{100 * map_LL[8].sum():.4f} %"
        expect(most).to_have_text(f"Token 9 attends most to {', '.join(words)}. Its row adds up to {total}.")

        page.locator(".tl-map-box").focus()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowRight")
        expect(said).to_have_text(f"Token 8, {texts[7]}, takes {_share(map_LL[7, 4])} from token 5, {texts[4]}.")
        page.keyboard.press("End")
        page.keyboard.press("ArrowRight")
        expect(said).to_have_text(f"Token 8, {texts[7]}, takes {_share(map_LL[7, 7])} from itself.")

        sums = map_LL.sum(dim=1)
        low, high = f"{100 * sums.min():.4f} %", f"{100 * sums.max():.4f} %"
        expect(page.locator(".tl-map-sum")).to_have_text(
            f"Each of the {len(ids)} rows adds up to {low if low == high else f'{low} to {high}'}, "
            "added up in this browser from the numbers shown."
        )
        page.locator("#attention-panel .tl-details summary").click()
        rows = page.locator("#attention-panel .tl-table tbody tr")
        expect(rows).to_have_count(len(ids))
        shares = rows.nth(8).locator("td").nth(2).inner_text().split(", ")
        assert sorted(shares) == sorted(f"{j + 1} {texts[j]}: {_share(map_LL[8, j])}" for j in range(9))
        assert rows.nth(8).locator("td").nth(3).inner_text() == total

    def test_map_and_chips_mark_each_other(self, page: Page) -> None:
        page.locator("#attention-panel").scroll_into_view_if_needed()
        said = page.locator("#attention-panel .tl-map-said")
        _tell(page, "complete:chosen", {"index": 5, "from": "complete"})
        expect(said).to_contain_text("Token 6,")
        expect(page.locator(".tl-map-rows .tl-current")).to_contain_text(" 6")
        for index in (-1, 10**6, "2", None):
            _tell(page, "complete:chosen", {"index": index})
        expect(said).to_contain_text("Token 6,")
        page.evaluate("window.tinylm.bus.addEventListener('complete:chosen', ({ detail }) => (window.heard = detail))")
        page.locator(".tl-map-rows span").nth(3).click()
        expect(said).to_contain_text("Token 4,")
        assert page.evaluate("window.heard") == {"index": 3, "from": "attention"}

    def test_a_question_that_is_refused_says_so_and_the_next_one_is_answered(
        self, page: Page, service: Service, weights: Path
    ) -> None:
        run = tinylm.load(weights / "text")
        page.locator("#attention-panel").scroll_into_view_if_needed()
        _tell(page, "complete:text", _text_event(service, run, "text", [10**6], ["x"]))
        status = page.locator("#attention-panel .tl-status")
        expect(status).to_have_text("This text has tokens that this model doesn't know.")
        _tell(page, "complete:text", _text_event(service, run, "text", [1, 2, 3]))
        expect(status).to_have_text("Block 1, head 1.")
        expect(page.locator(".tl-map-rows span")).to_have_count(3)

    def test_both_fit_a_narrow_window_and_a_long_map_scrolls_in_its_box(
        self, page: Page, service: Service, weights: Path
    ) -> None:
        run = tinylm.load(weights / "text")
        page.set_viewport_size({"width": 390, "height": 800})
        page.locator("#attention-panel").scroll_into_view_if_needed()
        _tell(page, "complete:text", _text_event(service, run, "text", ids_of(run, max_new_tokens=50)))
        expect(page.locator(".tl-map-rows span")).to_have_count(len(ids_of(run, max_new_tokens=50)))
        box = page.locator(".tl-map-box")
        assert box.evaluate("node => node.scrollWidth > node.clientWidth && node.clientWidth > 200")
        for width in (390, 320):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        box.focus()
        page.keyboard.press("Home")
        page.keyboard.press("End")  # the last cell, far right
        assert box.evaluate("node => node.scrollLeft + node.clientWidth >= node.scrollWidth - 40")
