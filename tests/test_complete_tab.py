"""The Complete tab: tokens questioned and forked, temperature in the browser, and what the cache holds."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from browsing import MARKUP, watched_page
from playwright.sync_api import Browser, Locator, Page, Route, expect
from serve import make_weights

import tinylm
from tinylm.checkpoint import Run
from tinylm.ui import attention, zero_gpu
from tinylm.ui.limits import MAX_NEW_TOKENS, Refused
from tinylm.ui.models import RunFolders
from tinylm.ui.service import Service, Update
from tinylm.ui.service.common import coded
from tinylm.ui.service.complete import MAX_LATENTS, complete, logits

PROMPT = "A baby cat is called"
API_KEYS = {"text", "tokens", "stopped", "cache_bytes", "full_cache_bytes", "unknown", "unknown_words"}


def numbers(text: str) -> torch.Tensor:
    """The values of a string that `coded` made."""
    return torch.frombuffer(bytearray(b64decode(text)), dtype=torch.float32)


def positions(page: dict) -> torch.Tensor:
    """The latents that a page got, a row a position."""
    n_numbers = page["sizes"]["n_shown_layers"] * page["sizes"]["d_latent"]
    length = len(coded(torch.zeros(n_numbers)))
    texts = [page["latents"][i : i + length] for i in range(0, len(page["latents"]), length)]
    return torch.stack(list(map(numbers, texts)))


def logits_behind(run: Run, ids: list[int]) -> torch.Tensor:
    """The whole model's logits of the next token, without any cache."""
    with torch.inference_mode():
        return run.model(torch.tensor([ids])).logits[0, -1]


def latents_of(run: Run, ids: list[int]) -> torch.Tensor:
    """What the cache holds after all ids were read at once: (layers, positions, latents)."""
    cache = tinylm.LatentCache(run.model.config)
    with torch.inference_mode():
        run.model(torch.tensor([ids]), cache=cache)
    return cache.latents[:, 0]


def shares(logits_V: torch.Tensor, temperature: float, top_k: int, top_p: float) -> list[float]:
    """What a token is drawn with, by the definition: scale, cut to the k likeliest, cut to the share p."""
    probs = (logits_V.double() / temperature).softmax(-1).tolist()
    order = sorted(range(len(probs)), key=lambda i: -probs[i])
    order = order[: top_k or len(order)]
    held = sum(probs[i] for i in order)
    kept, ahead = [], 0.0
    for i in order:
        if kept and ahead >= top_p:
            break
        kept.append(i)
        ahead += probs[i] / held
    total = sum(probs[i] for i in kept)
    return [probs[i] / total if i in kept else 0.0 for i in range(len(probs))]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The usual run folders, and `ends`, which ends every text at once."""
    folder = make_weights(tmp_path_factory.mktemp("completed") / "weights")
    run = tinylm.load(folder / "text")
    with torch.no_grad():
        run.model.head_bias[run.tokenizer.eos_id] = 100.0
    tinylm.save(folder / "ends", run.model, run.tokenizer, run.info)
    return folder


@pytest.fixture
def service(weights: Path) -> Service:
    return Service(RunFolders(weights))


@pytest.fixture(scope="module")
def run(weights: Path) -> Run:
    return tinylm.load(weights / "text")


def last(updates: Iterator[Update]) -> Update:
    *_, update = updates
    return update


# ---- without a browser


@pytest.mark.parametrize("model", ["text", "moe"])
def test_a_fork_goes_on_as_if_its_tokens_had_been_the_prompts(service: Service, weights: Path, model: str) -> None:
    run = tinylm.load(weights / model)
    prompt = run.tokenizer.encode(PROMPT)
    first = [token["id"] for token in last(complete(service, PROMPT, model)).result["tokens"]]
    given = [*first[:3], next(i for i in range(5, 90) if i != first[3])]
    update = last(complete(service, PROMPT, model, max_new_tokens=12, given=given))
    ids = [token["id"] for token in update.result["tokens"]]
    assert ids[:4] == given
    assert ids[4:] == tinylm.generate(run.model, prompt + given, max_new_tokens=8)
    forced = logits_behind(run, prompt + given[:3]).softmax(-1)[given[3]].item()
    assert update.result["tokens"][3]["probability"] == pytest.approx(forced, abs=1e-5)
    assert update.page["given"] == given and update.result["text"] == PROMPT + run.tokenizer.decode(ids)


def test_a_fork_with_the_end_of_the_text_ends_there(service: Service, run: Run) -> None:
    first = [token["id"] for token in last(complete(service, PROMPT)).result["tokens"]]
    update = last(complete(service, PROMPT, given=[*first[:2], run.tokenizer.eos_id]))
    assert [token["id"] for token in update.result["tokens"]] == first[:2] and update.result["stopped"] == "eos"


def test_all_given_tokens_come_even_if_fewer_new_ones_are_asked_for(service: Service) -> None:
    given = [5, 6, 7, 8, 9]
    update = last(complete(service, PROMPT, max_new_tokens=2, given=given))
    assert [token["id"] for token in update.result["tokens"]] == given


def test_a_fork_takes_the_gpus_way_too(service: Service) -> None:
    inputs = (PROMPT, "text", 0.8, 0, 1, 9, 3, [5, 6])
    assert last(zero_gpu.complete(service, *inputs)).result == last(complete(service, *inputs)).result
    for result, page in zero_gpu.complete_on_gpu(str(service.runs.folder), *inputs):
        assert [token["id"] for token in result["tokens"]][:2] == [5, 6][: len(result["tokens"])]
        assert page["given"] == [5, 6]


@pytest.mark.parametrize("model", ["text", "moe"])
def test_the_page_gets_what_the_cache_holds(service: Service, weights: Path, model: str) -> None:
    run = tinylm.load(weights / model)
    update = last(complete(service, PROMPT, model, max_new_tokens=9))
    ids = update.page["ids"] + [token["id"] for token in update.result["tokens"]]
    assert update.page["ids"] == run.tokenizer.encode(PROMPT)
    expected = latents_of(run, ids[:-1])  # the last token was chosen but not read
    found = positions(update.page)
    assert len(found) == len(ids) - 1
    torch.testing.assert_close(found, expected.transpose(0, 1).flatten(1), atol=1e-4, rtol=1e-4)
    sizes = update.page["sizes"]
    product = len(found) * sizes["d_latent"] * sizes["n_layers"] * sizes["bytes_per_number"]
    assert update.result["cache_bytes"] == product == expected.numel() * 4


def test_a_large_models_first_blocks_stand_for_all(service: Service, weights: Path) -> None:
    update = last(complete(service, PROMPT, "deep", max_new_tokens=5))
    run = tinylm.load(weights / "deep")
    config, n_shown = run.model.config, update.page["sizes"]["n_shown_layers"]
    assert 1 <= n_shown < config.n_layers and n_shown * config.d_latent * config.max_seq_len <= MAX_LATENTS
    ids = update.page["ids"] + [token["id"] for token in update.result["tokens"]]
    expected = latents_of(run, ids[:-1])[:n_shown].transpose(0, 1).flatten(1)
    torch.testing.assert_close(positions(update.page), expected, atol=1e-3, rtol=1e-3)
    assert update.result["cache_bytes"] == config.n_layers * config.d_latent * len(expected) * 4


def test_each_alternative_has_its_id(service: Service, run: Run) -> None:
    update = last(complete(service, PROMPT, max_new_tokens=9))
    for token, ids in zip(update.result["tokens"], update.page["alternative_ids"], strict=True):
        texts = [run.tokenizer.decode([i]) or run.tokenizer.tokens[i] for i in ids]
        assert texts == [text for text, _ in token["alternatives"]]


def test_lists_only_grow_and_the_apis_object_stays_as_it_was(service: Service) -> None:
    before: dict[str, list | str] = {}
    for update in complete(service, PROMPT, "deep", max_new_tokens=30):
        assert set(update.result) == API_KEYS
        assert set(update.result["tokens"][0]) == {"id", "text", "probability", "alternatives"}
        lists = {name: update.page[name] for name in ("alternative_ids", "latents")} | {
            "tokens": update.result["tokens"]
        }
        assert all(lists[name][: len(old)] == old for name, old in before.items())
        assert json.loads(json.dumps(update.page)) == update.page
        before = lists


def test_settings_are_told_as_they_were_used(service: Service, weights: Path) -> None:
    page = last(complete(service, PROMPT, "moe", 0.7, 5, 0.9, 6, 11)).page
    asked = {"model": "moe", "temperature": 0.7, "top_k": 5, "top_p": 0.9, "max_new_tokens": 6, "seed": 11}
    assert page["settings"] == asked
    assert page["weights"] == service.weights("moe")


def test_the_logits_of_a_token_are_the_models(service: Service, run: Run) -> None:
    update = last(complete(service, PROMPT, max_new_tokens=9))
    ids = update.page["ids"] + [token["id"] for token in update.result["tokens"]][:4]
    answer = last(logits(service, "text", ids))
    torch.testing.assert_close(numbers(answer.result["logits"]), logits_behind(run, ids), atol=1e-5, rtol=1e-5)
    assert (answer.result["model"], answer.result["ids"]) == ("text", ids)
    assert answer.page["weights"] == update.page["weights"]
    # The run decoded with a cache; its probabilities are those of the logits read at once.
    token = update.result["tokens"][4]
    probs = numbers(answer.result["logits"]).softmax(-1)
    assert probs[token["id"]].item() == pytest.approx(token["probability"], abs=1e-5)
    assert [i for i, _, _ in answer.result["likeliest"]] == update.page["alternative_ids"][4]
    assert [p for _, _, p in answer.result["likeliest"]] == pytest.approx(
        [p for _, p in token["alternatives"]], abs=1e-5
    )


def test_numbers_travel_without_loss() -> None:
    values = torch.tensor([0.1, -3e-30, 7e30, -0.0, 1 / 3])
    assert torch.equal(numbers(coded(values)), values)


@pytest.mark.parametrize("sent", [None, "12", {"0": 1}, [1.0], [True], ["1"], [[1]], [None], [-1], [90], [2**70]])
def test_strange_tokens_are_refused_in_a_sentence(service: Service, sent: object) -> None:
    for ask in (lambda: list(complete(service, PROMPT, given=sent)), lambda: list(logits(service, "text", sent))):
        with pytest.raises(Refused, match=r"^[A-Z].*\.$"):
            ask()


def test_too_many_tokens_are_refused(service: Service, run: Run) -> None:
    with pytest.raises(Refused, match=f"at most {MAX_NEW_TOKENS}"):
        list(complete(service, PROMPT, given=[5] * (MAX_NEW_TOKENS + 1)))
    with pytest.raises(Refused, match="at most"):
        list(logits(service, "text", [5] * (run.model.config.max_seq_len + 1)))
    with pytest.raises(Refused, match="no tokens"):
        list(logits(service, "text", []))
    for name in ("../text", "vision", ["text"], 7):
        with pytest.raises(Refused, match="choose one of"):
            list(logits(service, name, [5]))


# ---- in a browser


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page, opened; afterwards: no error, no dialog, and no request to any other host."""
    with watched_page(browser) as page:
        page.goto(address)
        expect(page.locator("#complete-panel .tl-chip").first).to_be_visible(timeout=30_000)
        yield page


def panel(page: Page, selector: str) -> Locator:
    return page.locator(f"#complete-panel {selector}")


def run_prompt(page: Page, prompt: str) -> None:
    """Run a prompt and wait until it is over."""
    page.evaluate("window.tinylm.completeText = null")
    field = page.locator("#complete-prompt textarea")
    field.fill(prompt)
    field.press("Enter")
    page.wait_for_function("window.tinylm.completeText")
    expect(panel(page, ".tl-status")).to_contain_text("Stopped")


def choose_model(page: Page, name: str) -> None:
    page.locator("#complete-model input").click()
    page.get_by_role("option", name=name).click()


def drag(page: Page, field: str, value: float) -> None:
    """Move a slider as a hand does: the range's own value, then its event."""
    page.locator(f"#{field} input[type=range]").evaluate(
        "(node, value) => { node.value = value; node.dispatchEvent(new Event('input', { bubbles: true })) }", str(value)
    )


def text_of(page: Page) -> dict:
    """What the other panels are told of the text."""
    return page.evaluate("window.tinylm.completeText")


def bars(page: Page) -> list[tuple[int, float, float]]:
    """Token id, share before and share after of each row, as drawn."""
    return panel(page, ".tl-alternatives li").evaluate_all(
        """rows => rows.map((row) => [
            Number(row.querySelector(".tl-fork").dataset.id),
            ...[...row.querySelectorAll(".tl-fill")].map((fill) => parseFloat(fill.style.width) / 100),
        ])"""
    )


@pytest.mark.browser
def test_shares_after_temperature_top_k_and_top_p_are_those_that_are_drawn_with(page: Page) -> None:
    logits_V = torch.randn(60, generator=torch.Generator().manual_seed(1)) * 3
    for temperature in (1e-6, 0.3, 1, 2):
        for top_k, top_p in ((0, 1), (5, 1), (0, 0.7), (8, 0.9), (100, 0), (1, 1)):
            drawn = page.evaluate(
                "([values, ...rest]) => [...window.tinylm.distribution(new Float32Array(values), ...rest)]",
                [logits_V.tolist(), temperature, top_k, top_p],
            )
            assert drawn == pytest.approx(shares(logits_V, temperature, top_k, top_p), abs=1e-12)
    cold = page.evaluate("values => [...window.tinylm.distribution(new Float32Array(values), 0)]", logits_V.tolist())
    assert cold.index(1) == int(logits_V.argmax()) and sum(cold) == 1


@pytest.mark.browser
def test_a_chip_tells_its_alternatives_and_the_slider_moves_their_bars_without_a_run(page: Page, run: Run) -> None:
    run_prompt(page, "Bees make")
    panel(page, ".tl-chip").nth(5).click()
    expect(panel(page, ".tl-recomputed")).to_contain_text("The run said the same.")
    told = text_of(page)
    logits_V = logits_behind(run, told["ids"][: told["nPrompt"] + 5])
    own = told["ids"][told["nPrompt"] + 5]
    percent = f"{100 * logits_V.softmax(-1)[own].item():.2f} %"
    assert f"all {len(logits_V)} logits: {percent}" in panel(page, ".tl-recomputed").text_content()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    for temperature, top_k, top_p in ((0, 0, 1), (0.5, 0, 1), (1.7, 0, 1), (1.7, 4, 1), (1.7, 4, 0.6)):
        drag(page, "complete-temperature", temperature)
        drag(page, "complete-top-k", top_k)
        drag(page, "complete-top-p", top_p)
        page.wait_for_timeout(50)
        before = logits_V.softmax(-1)
        after = shares(logits_V, temperature or 1e-9, top_k, top_p)
        drawn = bars(page)
        assert len(drawn) == 10
        for token_id, share_before, share_after in drawn:
            assert share_before == pytest.approx(before[token_id].item(), abs=1e-5)
            assert share_after == pytest.approx(after[token_id], abs=1e-5)
        expect(panel(page, ".tl-after-note")).to_contain_text(f"temperature {temperature}")
    assert requests == []
    # The number beside the slider, its reset button and the handle beside the bars move the same setting.
    page.locator("#complete-temperature input[type=number]").fill("0.9")
    expect(panel(page, ".tl-after-note")).to_contain_text("temperature 0.9,")
    page.locator("#complete-temperature").get_by_label("Reset to default value").click()
    expect(panel(page, ".tl-after-note")).to_contain_text("at temperature 0 ")
    panel(page, ".tl-temperature").fill("1.25")
    expect(page.locator("#complete-temperature input[type=number]")).to_have_value("1.25")
    expect(panel(page, ".tl-after-note")).to_contain_text("temperature 1.25,")


@pytest.mark.browser
def test_another_token_forks_the_text_and_branches_can_be_gone_back_to(page: Page, run: Run) -> None:
    run_prompt(page, "Bees make")
    first = text_of(page)
    panel(page, ".tl-chip").nth(3).click()
    expect(panel(page, ".tl-recomputed")).to_contain_text("The run said the same.")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.post_data or ""))
    other = panel(page, ".tl-fork").nth(4)
    forced = int(other.get_attribute("data-id"))
    other.click()
    expect(panel(page, ".tl-branch")).to_have_count(2)
    expect(panel(page, ".tl-status")).to_contain_text("Stopped")
    expect(panel(page, ".tl-chip")).to_have_count(40)
    forked = text_of(page)
    start = [*first["ids"][: first["nPrompt"] + 3], forced]
    assert forked["ids"] == start + tinylm.generate(run.model, start, max_new_tokens=36)
    expect(panel(page, ".tl-forced")).to_have_count(1)
    expect(panel(page, ".tl-chip").nth(3)).to_have_attribute("aria-label", re.compile("your choice$"))
    expect(panel(page, ".tl-hint").first).to_contain_text("Your choice.")

    # A fork of the fork keeps the choice made before it; one before it drops it.
    panel(page, ".tl-chip").nth(6).click()
    panel(page, ".tl-fork").nth(2).press("Enter")
    expect(panel(page, ".tl-branch")).to_have_count(3)
    expect(panel(page, ".tl-forced")).to_have_count(2)
    expect(panel(page, ".tl-branches ul ul .tl-branch")).to_have_count(1)
    assert text_of(page)["ids"][: first["nPrompt"] + 6] == forked["ids"][: first["nPrompt"] + 6]

    assert sum('"given"' in body for body in sent) == 2  # one run each
    panel(page, ".tl-branch").first.click()
    expect(panel(page, ".tl-forced")).to_have_count(0)
    assert text_of(page) == first
    expect(panel(page, ".tl-latent-row")).to_have_count(len(first["ids"]) - 1)
    panel(page, ".tl-branch").nth(1).press("Enter")
    assert text_of(page) == forked
    expect(panel(page, ".tl-branch").nth(1)).to_be_focused()
    expect(panel(page, ".tl-branch").nth(1)).to_have_attribute("aria-pressed", "true")
    page.wait_for_timeout(300)
    assert sum('"given"' in body for body in sent) == 2
    run_prompt(page, "The capital")
    expect(panel(page, ".tl-branching")).to_be_hidden()
    expect(panel(page, ".tl-forced")).to_have_count(0)


@pytest.mark.browser
def test_a_full_tree_loses_its_oldest_leaf(page: Page) -> None:
    names = page.evaluate(
        """() => {
            const tree = window.tinylm.branches(4);
            const root = tree.plant();
            const a = tree.grow(root, 0, "a"), b = tree.grow(root, 1, "b"), inner = tree.grow(a, 5, "inner");
            const c = tree.grow(a, 2, "c"); // b is the oldest leaf
            const walk = (node) => [node.token, node.forced, tree.children(node).map(walk)];
            return walk(root);
        }"""
    )
    assert names == ["", [], [["a", [0], [["inner", [0, 5], []], ["c", [0, 2], []]]]]]


@pytest.mark.browser
def test_the_end_of_a_text_can_be_questioned_and_forked(page: Page, weights: Path) -> None:
    run = tinylm.load(weights / "ends")
    choose_model(page, "ends")
    run_prompt(page, "Bees make")
    expect(panel(page, ".tl-chip")).to_have_count(1)
    expect(panel(page, ".tl-end")).to_have_text("end of text")
    panel(page, ".tl-end").click()
    expect(panel(page, ".tl-alternatives li")).to_have_count(10)
    ids = run.tokenizer.encode("Bees make")
    probs = logits_behind(run, ids).softmax(-1)
    assert [i for i, _, _ in bars(page)] == probs.topk(10).indices.tolist()
    expect(panel(page, ".tl-recomputed")).to_contain_text("Computed in your browser")
    panel(page, ".tl-fork").nth(1).click()
    expect(panel(page, ".tl-chip")).to_have_count(2)
    assert text_of(page)["ids"] == [*ids, probs.topk(2).indices[1].item()]
    # And a text that goes on can be ended by choosing the end.
    panel(page, ".tl-chip").first.click()
    expect(panel(page, ".tl-alternatives li")).to_have_count(10)
    panel(page, ".tl-fork").first.click()
    expect(panel(page, ".tl-branch")).to_have_count(3)
    expect(panel(page, ".tl-chip")).to_have_count(1)
    assert text_of(page)["ids"] == ids


@pytest.mark.browser
def test_a_fork_that_is_refused_says_why_and_leaves_the_text(page: Page) -> None:
    run_prompt(page, "Bees make")
    panel(page, ".tl-chip").nth(5).click()
    expect(panel(page, ".tl-recomputed")).to_contain_text("The run said the same.")
    before = text_of(page)

    def ask_for_another(route: Route) -> None:
        """No token has this number: as a page that is older than the weights would ask."""
        data = route.request.post_data_json
        data["event_data"]["given"][-1] = 99999
        route.continue_(post_data=data)

    page.route("**/gradio_api/queue/join*", ask_for_another)
    panel(page, ".tl-fork").nth(3).click()
    expect(panel(page, ".tl-status")).to_contain_text("This model has no such token")
    page.unroute("**/gradio_api/queue/join*")
    expect(panel(page, ".tl-chip")).to_have_count(len(before["texts"]) - before["nPrompt"])
    assert text_of(page) == before and panel(page, ".tl-branch").count() <= 1
    # And the next fork goes.
    panel(page, ".tl-fork").nth(2).click()
    expect(panel(page, ".tl-branch")).to_have_count(2)
    assert text_of(page)["ids"][: before["nPrompt"] + 5] == before["ids"][: before["nPrompt"] + 5]


@pytest.mark.browser
def test_the_latents_are_shown_as_the_cache_holds_them(page: Page, run: Run) -> None:
    run_prompt(page, "Bees make")
    told = text_of(page)
    expected = latents_of(run, told["ids"][:-1])
    expect(panel(page, ".tl-latent-row")).to_have_count(expected.shape[1])
    panel(page, ".tl-latent-table summary").click()
    for block in (0, 1):
        panel(page, ".tl-latent-block").select_option(index=block)
        cells = panel(page, ".tl-latent-table tbody tr").evaluate_all(
            "rows => rows.map((row) => [...row.cells].slice(2).map((cell) => Number(cell.textContent)))"
        )
        torch.testing.assert_close(torch.tensor(cells), expected[block], atol=2e-3, rtol=0)
        # Blue where a latent is above zero, orange where it is below, and the stronger the larger it is.
        pixels = panel(page, ".tl-latent-row canvas").evaluate_all(
            "nodes => nodes.map((node) => [...node.getContext('2d').getImageData(0, 0, node.width, 1).data])"
        )
        rgba = torch.tensor(pixels).unflatten(1, (-1, 4))
        assert rgba.shape[:2] == expected[block].shape
        assert torch.equal(rgba[..., 2] > rgba[..., 0], expected[block] >= 0)
        order = expected[block].abs().flatten().argsort()
        alpha = rgba[..., 3].flatten()[order]
        assert (alpha.diff() >= -1).all() and alpha[-1] > 2 * alpha[0]
    # A row and its chip are marked together, whichever is chosen; a prompt's row marks the piece of the prompt.
    at = told["nPrompt"] + 4
    panel(page, ".tl-latent-row").nth(at).click()
    expect(panel(page, ".tl-chip.tl-current")).to_have_attribute("data-index", "4")
    said = panel(page, ".tl-latent-said").text_content()
    assert said.startswith(f"Block 2, position {at + 1}, ")
    shown = [float(n) for n in panel(page, ".tl-latent-numbers").text_content().split()]
    assert shown == pytest.approx(expected[1, at].tolist(), abs=6e-3)
    page.keyboard.press("ArrowDown")
    expect(panel(page, ".tl-chip.tl-current")).to_have_attribute("data-index", "5")
    panel(page, ".tl-chip").nth(2).click()
    expect(panel(page, ".tl-latent-row.tl-current")).to_have_attribute("data-position", str(told["nPrompt"] + 2))
    panel(page, ".tl-latent-row").first.click()
    expect(panel(page, ".tl-prompt.tl-current")).to_have_count(1)
    expect(panel(page, ".tl-chip.tl-current")).to_have_count(0)


@pytest.mark.browser
def test_the_cache_meter_multiplies_out_what_was_measured(page: Page, run: Run) -> None:
    run_prompt(page, "Bees make")
    positions, config = len(text_of(page)["ids"]) - 1, run.model.config
    latent = positions * config.d_latent * config.n_layers * 4
    full = positions * 2 * config.d_model * config.n_layers * 4
    expect(panel(page, ".tl-sum-latent")).to_have_text(
        f"{positions} positions × {config.d_latent} latents × {config.n_layers} blocks × 4 bytes = {latent:,} bytes, "
        "as measured"
    )
    expect(panel(page, ".tl-sum-full")).to_have_text(
        f"{positions} positions × 2 × {config.d_model} numbers × {config.n_layers} blocks × 4 bytes = {full:,} bytes"
    )
    width = panel(page, ".tl-cache .tl-fill").first.evaluate("node => parseFloat(node.style.width)")
    assert width == pytest.approx(100 * latent / full)


@pytest.mark.browser
def test_the_map_of_latents_grows_while_tokens_stream_and_a_stopped_run_can_be_questioned(page: Page) -> None:
    choose_model(page, "deep")
    drag(page, "complete-length", MAX_NEW_TOKENS)
    page.evaluate(
        """() => {
            const [rows, status] = [".tl-latent-rows", ".tl-status"].map((name) =>
                document.querySelector(`#complete-panel ${name}`));
            window.counts = [];
            const observer = new MutationObserver(() => {
                if (status.dataset.state !== "running") return;
                window.counts.push(rows.children.length);
                if (new Set(window.counts).size < 5) return;
                observer.disconnect(); // or it would stop the next run too
                // At once: on a busy machine a hand from outside comes too late.
                document.querySelector("#complete-stop").click();
            });
            observer.observe(rows, { childList: true });
        }"""
    )
    page.locator("#complete-run").click()
    expect(panel(page, ".tl-status")).to_have_text("You stopped it.")
    page.wait_for_timeout(600)
    counts = page.evaluate("window.counts")
    assert counts == sorted(counts) and len(set(counts)) >= 5
    told = text_of(page)
    expect(panel(page, ".tl-latent-row")).to_have_count(len(told["ids"]) - 1)
    panel(page, ".tl-chip").first.click()
    expect(panel(page, ".tl-recomputed")).to_contain_text("The run said the same.")
    drag(page, "complete-length", 5)
    run_prompt(page, "Bees")
    expect(panel(page, ".tl-chip")).to_have_count(5)
    expect(panel(page, ".tl-status")).to_contain_text("Stopped: it reached")


@pytest.mark.browser
def test_the_run_can_be_downloaded(page: Page, weights: Path, run: Run) -> None:
    run_prompt(page, "Bees make")
    panel(page, ".tl-chip").nth(2).click()
    panel(page, ".tl-fork").nth(3).click()
    expect(panel(page, ".tl-branch")).to_have_count(2)
    expect(panel(page, ".tl-status")).to_contain_text("Stopped")
    told = text_of(page)
    with page.expect_download() as download:
        panel(page, ".tl-download").click()
    saved = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert saved["prompt"] == "Bees make" and saved["stopped"] == "length"
    assert saved["weights"] == Service(RunFolders(weights)).weights("text")
    assert saved["settings"]["seed"] == 0 and saved["settings"]["temperature"] == 0
    ids = [token["id"] for token in saved["tokens"]]
    assert saved["prompt_ids"] + ids == told["ids"]
    assert [i for i, token in enumerate(saved["tokens"]) if token["chosen_by_visitor"]] == [2]
    steps = list(tinylm.stream(run.model, saved["prompt_ids"], max_new_tokens=40, given=ids[:3]))
    assert ids == [step.token_id for step in steps]
    for token, step in zip(saved["tokens"], steps, strict=True):
        assert [a["id"] for a in token["alternatives"]] == [i for i, _ in step.alternatives]
        assert [a["probability"] for a in token["alternatives"]] == pytest.approx(
            [p for _, p in step.alternatives], abs=1e-5
        )
    assert saved["cache_bytes"] == steps[-1].cache_nbytes


@pytest.mark.browser
def test_other_panels_hear_of_the_text_and_of_the_chosen_token(page: Page, run: Run, weights: Path) -> None:
    opening = text_of(page)
    assert opening["ids"][: opening["nPrompt"]] == run.tokenizer.encode(attention.EXAMPLE)
    page.evaluate(
        """() => {
            window.heard = [];
            for (const name of ["complete:text", "complete:chosen"])
                window.tinylm.bus.addEventListener(name, (event) => window.heard.push([name, event.detail]));
        }"""
    )
    run_prompt(page, "")  # from nothing: the mark between texts is the first token
    (name, detail), *more = page.evaluate("window.heard")
    assert name == "complete:text" and more == []
    assert detail["ids"][:1] == [run.tokenizer.eos_id] and detail["nPrompt"] == 1 and detail["texts"][0] == "<eos>"
    assert detail["texts"][1:] == [run.tokenizer.decode([i]) for i in detail["ids"][1:]]
    assert [piece["text"] for piece in detail["pieces"]] == detail["texts"]
    assert (detail["model"], detail["weights"]) == ("text", Service(RunFolders(weights)).weights("text"))
    panel(page, ".tl-chip").nth(4).click()
    assert page.evaluate("window.heard").pop() == ["complete:chosen", {"index": 5, "from": "complete"}]
    page.evaluate(
        "window.tinylm.bus.dispatchEvent(new CustomEvent('complete:chosen', { detail: { index: 8, from: 'map' } }))"
    )
    expect(panel(page, ".tl-chip.tl-current")).to_have_attribute("data-index", "7")


@pytest.mark.browser
def test_markup_in_a_prompt_is_shown_as_it_is_in_every_part(page: Page) -> None:
    run_prompt(page, MARKUP)
    panel(page, ".tl-chip").first.click()
    panel(page, ".tl-fork").nth(1).click()
    expect(panel(page, ".tl-branch")).to_have_count(2)
    expect(panel(page, ".tl-status")).to_contain_text("Stopped")
    n_prompt = text_of(page)["nPrompt"]
    rows = panel(page, ".tl-latent-token").all_text_contents()
    assert "".join(rows[:n_prompt]) == MARKUP
    for summary in panel(page, "summary").all():
        summary.click()
    assert panel(page, "img, b").count() == 0


@pytest.mark.browser
def test_keyboard_alone_questions_and_forks(page: Page) -> None:
    run_prompt(page, "Bees make")
    panel(page, ".tl-chip").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")  # from the text, whatever is chosen there, to the list
    expect(panel(page, ".tl-fork").first).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(panel(page, ".tl-branch")).to_have_count(2)
    expect(panel(page, ".tl-forced")).to_have_attribute("data-index", "1")
