"""The Routing tab and its expert surgery: what a visitor does and reads, against the library called directly."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import reference
import torch
from browsing import MARKUP, watch
from playwright.sync_api import Browser, Locator, Page, expect
from serve import LINES

import tinylm
from tinylm.surgery import mean_loss, read, without_experts
from tinylm.ui.limits import Deadline, Refused, Slots
from tinylm.ui.models import RunFolders
from tinylm.ui.service import Service
from tinylm.ui.service.common import Pace
from tinylm.ui.service.operate import example, operate
from tinylm.ui.service.route import route

PROMPT = "A baby cat is called"
N_LAYERS, N_EXPERTS, CONTEXT = 3, 4, 160
EVERYWHERE_3 = [[2]] * N_LAYERS


def preference(layer: int, expert: int) -> dict:
    return {"tokens": [[f" t{layer}{expert}", 1.5 + expert], ["<b>`${x}", 1.25]], "kinds": [[f"kind {layer}", 2.0]]}


PREFERENCES = [[preference(layer, expert) for expert in range(N_EXPERTS)] for layer in range(N_LAYERS)]


def make_moe(folder: Path, info: dict, eos_bias: float = -100.0) -> tinylm.TinyLM:
    """A run folder `moe` with random weights, whose texts go on to their limit unless `<eos>` is made likely."""
    tokenizer = tinylm.Tokenizer.train([*LINES, *["<b>x</b>"] * 3], vocab_size=100)  # with markup in a single token
    sizes = {"d_model": 32, "n_heads": 2, "d_latent": 8, "d_ff": 64, "n_layers": N_LAYERS}
    config = tinylm.ModelConfig(tokenizer.vocab_size, CONTEXT, moe=tinylm.MoEConfig(N_EXPERTS, 2), **sizes)
    torch.manual_seed(3)
    model = tinylm.TinyLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # far enough from uniform for choices to be clear
        model.head_bias[tokenizer.pad_id] = -100.0
        model.head_bias[tokenizer.eos_id] = eos_bias
    tinylm.save(folder / "moe", model, tokenizer, info)
    return model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("routed") / "weights"
    make_moe(folder, {"expert_preferences": PREFERENCES})
    return folder


@pytest.fixture(scope="module")
def run(weights: Path) -> tinylm.checkpoint.Run:
    return tinylm.load(weights / "moe")


@pytest.fixture
def service(weights: Path) -> Service:
    return Service(RunFolders(weights))


def everywhere(expert: int) -> dict[int, list[int]]:
    return {layer: [expert] for layer in range(N_LAYERS)}


# The service


def test_an_operation_says_what_the_library_says(service: Service, run: tinylm.checkpoint.Run) -> None:
    off = [[2], [], [0, 3]]
    *_, update = operate(service, PROMPT, off, 0, 12, 0)
    result, ids = update.result, run.tokenizer.encode(PROMPT)
    without = without_experts(run.model, dict(enumerate(off)))
    for name, model in (("plain", run.model), ("operated", without)):
        new = tinylm.generate(model, ids, max_new_tokens=12)
        assert result[name]["ids"] == ids + new and result[name]["stopped"] == "length"
        assert result[name]["text"] == run.tokenizer.decode(ids + new) == "".join(result[name]["tokens"])
        given = torch.tensor([(ids + new)[:-1]])  # the newest token is not read
        by_layer = [routing.expert_ids.tolist() for routing in model(given).routings]
        assert result[name]["experts"] == [list(token) for token in zip(*by_layer, strict=True)]
    assert result["off"] == off
    plain = read(run.model, result["plain"]["ids"])
    assert result["losses"]["plain"] == pytest.approx(plain.losses, abs=1e-4)
    assert result["losses"]["operated"] == pytest.approx(read(without, result["plain"]["ids"]).losses, abs=1e-4)
    assert result["loss"]["operated"] == pytest.approx(mean_loss(without, result["plain"]["ids"]), abs=1e-4)
    assert update.page["settings"] == {"prompt": PROMPT, "temperature": 0, "max_new_tokens": 12, "seed": 0}


@pytest.mark.parametrize(("text", "n_new"), [(PROMPT, 12), ("A", 2)])
def test_the_table_tells_what_each_expert_is_for(
    service: Service, run: tinylm.checkpoint.Run, text: str, n_new: int
) -> None:
    *_, update = operate(service, text, [[0, 1], [2], []], 0, n_new, 0)
    ids, prompt = update.result["plain"]["ids"], run.tokenizer.encode(text)
    with torch.inference_mode():
        routings = run.model(torch.tensor([ids])).routings
    own, *rows = update.result["rows"]
    assert own["expert"] is None and [row["expert"] for row in rows] == list(range(N_EXPERTS))
    for row, off in [(own, {0: [0, 1], 1: [2], 2: []}), *((row, everywhere(row["expert"])) for row in rows)]:
        without = without_experts(run.model, off)
        assert row["change"] == pytest.approx(mean_loss(without, ids) - mean_loss(run.model, ids), abs=1e-4)
        choices = [(layer, e) for layer, r in enumerate(routings) for e in r.expert_ids.flatten().tolist()]
        assert row["share"] == pytest.approx(sum(e in off[layer] for layer, e in choices) / len(choices), abs=1e-5)
        # What the table says of the text was computed without generating it.
        new = tinylm.generate(without, prompt, max_new_tokens=n_new)
        same = list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(new, ids[len(prompt) :], strict=True)))
        assert (row["first"] is None) == (row["n_other"] == 0) == (len(same) == len(new))
        if row["first"]:
            assert row["first"]["token"] == len(prompt) + len(same)
            assert row["first"]["now"] == run.tokenizer.decode([new[len(same)]])
            assert row["first"]["was"] == update.result["plain"]["tokens"][row["first"]["token"]]
    for row in rows:
        surest = []
        for token in range(len(ids)):
            sent = [(float(r.probs[token, row["expert"]]), layer) for layer, r in enumerate(routings)]
            sent = [(p, layer) for p, layer in sent if row["expert"] in routings[layer].expert_ids[token]]
            surest += [(*max(sent), token)] if sent else []
        right = sorted(surest, reverse=True)[:5]
        assert [p for _, _, p in row["surest"]] == pytest.approx([p for p, _, _ in right], abs=1e-3)
        assert {(text, layer) for text, layer, _ in row["surest"]} == {
            (run.tokenizer.decode([ids[token]]), layer) for _, layer, token in right
        }
        assert len(row["surest"]) == len(right)  # fewer than five where an expert took fewer tokens
    assert any(row["first"] for row in rows) and own["surest"] == []


def test_a_text_that_the_model_ends_is_compared_up_to_its_end(tmp_path: Path) -> None:
    firsts = set()
    for eos_bias, text in ((2.5, "honey"), (2.5, "A cat"), (8.0, "A cat")):
        make_moe(tmp_path / "weights", {}, eos_bias)
        service, run = Service(RunFolders(tmp_path / "weights")), tinylm.load(tmp_path / "weights" / "moe")
        prompt, rest = run.tokenizer.encode(text), {"max_new_tokens": 40, "eos_id": run.tokenizer.eos_id}
        for expert in range(N_EXPERTS):
            *_, update = operate(service, text, [[expert]] * N_LAYERS, 0, 40, 0)
            row, plain, operated = update.result["rows"][0], update.result["plain"], update.result["operated"]
            new = tinylm.generate(without_experts(run.model, everywhere(expert)), prompt, **rest)
            assert operated["ids"] == prompt + new
            assert plain["stopped"] == "eos" and row["n_choices"] == len(plain["ids"]) - len(prompt) + 1
            assert (row["n_other"] == 0) == (plain["ids"] == operated["ids"])
            firsts.add((row["first"] or {}).get("was"))
    assert {None, "<eos>"} < firsts  # some texts stay, and some go on where they had ended


def test_the_operation_is_streamed_and_its_lists_only_grow(service: Service) -> None:
    updates = [update.result for update in operate(service, PROMPT, EVERYWHERE_3, 0, 60, 0)]
    assert updates[0]["operated"] is None and updates[0]["rows"] == [] and len(updates[-1]["rows"]) == N_EXPERTS + 1
    for before, after in itertools.pairwise(updates):
        for name in ("plain", "operated"):
            for part in ("ids", "tokens", "experts"):
                old = (before[name] or {}).get(part, [])
                assert (after[name] or {}).get(part, [])[: len(old)] == old
        assert after["rows"][: len(before["rows"])] == before["rows"]


@pytest.mark.parametrize("n_prompt", [CONTEXT - 1, CONTEXT])
def test_a_full_context_is_no_trouble(service: Service, n_prompt: int) -> None:
    *_, update = operate(service, "?" * n_prompt, EVERYWHERE_3, 0, 40, 0)
    assert update.result["plain"]["stopped"] == update.result["operated"]["stopped"] == "context"
    assert len(update.result["losses"]["plain"]) == CONTEXT and len(update.result["rows"]) == N_EXPERTS + 1


def test_a_text_of_one_token_has_no_loss(tmp_path: Path) -> None:
    make_moe(tmp_path / "weights", {}, eos_bias=100.0)
    *_, update = operate(Service(RunFolders(tmp_path / "weights")), "", EVERYWHERE_3)
    assert update.result["plain"]["tokens"] == ["<eos>"] and update.page["from_nothing"]
    assert update.result["loss"] == {"plain": None, "operated": None}
    assert [(row["change"], row["n_choices"]) for row in update.result["rows"]] == [(None, 1)] * (N_EXPERTS + 1)


@pytest.mark.parametrize(
    "off",
    [
        None,
        "all",
        {},
        [],
        [[2]] * (N_LAYERS + 1),
        [[2], [2], 2],
        [[2], [2], ["2"]],
        [[2], [2], [True]],
        [[2], [2], [1.0]],
        [[2], [2], [-1]],
        [[2], [2], [N_EXPERTS]],
        [[2], [2], [2] * 10**6],
        [[2], [2], [[]]],
        [[2], [0, 1, 2, 3], []],
    ],
)
def test_an_operation_that_makes_no_sense_is_refused_in_a_sentence(service: Service, off: object) -> None:
    with pytest.raises(Refused, match=r"^(Layer \d|The experts).*\.$"):
        next(operate(service, PROMPT, off))


def test_a_layer_must_keep_an_expert_and_the_refusal_names_it_as_the_page_does(service: Service) -> None:
    with pytest.raises(Refused, match="Layer 2 would have no expert left"):
        next(operate(service, PROMPT, [[], [0, 1, 2, 3], []]))


class Counted(Slots):
    """Places whose deadline is over after so many checks."""

    def __init__(self, checks: int) -> None:
        super().__init__()
        self.left = checks

    @contextmanager
    def take(self, wait: float = 1.0) -> Iterator[Deadline]:
        yield self  # type: ignore[misc]

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Refused("The time is over.")


@pytest.mark.parametrize(("checks", "n_operated", "n_rows"), [(5, 0, 0), (15, 4, 0), (2 * 12 + 2, 12, 3)])
def test_an_operation_ends_at_its_deadline_and_keeps_what_it_has(
    weights: Path, checks: int, n_operated: int, n_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "due", lambda _: True)  # tell of every token
    slots, seen = Counted(checks), []
    with pytest.raises(Refused, match="over"):
        for update in operate(Service(RunFolders(weights), slots), PROMPT, EVERYWHERE_3, 0, 12, 0):
            seen.append(update.result)
    n_prompt = seen[-1]["plain"]["tokens"].index(seen[0]["plain"]["tokens"][-1])
    operated = seen[-1]["operated"]
    assert len(operated["tokens"]) - n_prompt <= n_operated if operated else n_operated == 0
    assert len(seen[-1]["rows"]) == n_rows


def test_a_dropped_operation_gives_its_place_back_and_the_model_is_as_it_was(weights: Path) -> None:
    service = Service(RunFolders(weights), Slots(1))
    *_, before = route(service, PROMPT, 0, 5, 0)
    for _ in range(3):
        updates = operate(service, PROMPT, EVERYWHERE_3)
        next(updates)
        updates.close()
    *_, after = route(service, PROMPT, 0, 5, 0)
    assert after.result == before.result


def test_the_opening_operation_fits_the_model(service: Service) -> None:
    *_, update = example(service, PROMPT)
    assert update.result["off"] == [[1]] * N_LAYERS


def test_entropy_and_losses_are_those_of_the_tokens_shown(service: Service) -> None:
    for update in route(service, PROMPT, 0, 20, 0):
        tokens = update.result["tokens"]
        assert len(update.page["ids"]) == len(tokens)
        for layer in range(N_LAYERS):
            routes = [reference.Route(t["probs"][layer], t["experts"][layer], t["weights"][layer]) for t in tokens]
            assert update.page["layer_losses"][layer] == pytest.approx(reference.load_balancing_loss(routes), abs=1e-3)
            chosen = [e for t in tokens for e in t["experts"][layer]]
            shares = [chosen.count(e) / len(chosen) for e in set(chosen)]
            assert update.page["entropy"][layer] == pytest.approx(-sum(p * math.log2(p) for p in shares), abs=1e-4)
    assert update.page["settings"] == {"prompt": PROMPT, "temperature": 0, "max_new_tokens": 20, "seed": 0}


@pytest.mark.parametrize("written", [None, "none", [[]], PREFERENCES[1:], [[{"tokens": 7, "kinds": []}] * 4] * 3])
def test_preferences_that_training_did_not_write_for_this_model_are_not_shown(tmp_path: Path, written: object) -> None:
    make_moe(tmp_path / "weights", {} if written is None else {"expert_preferences": written})
    *_, update = route(Service(RunFolders(tmp_path / "weights")), PROMPT, 0, 2, 0)
    assert update.page["preferences"] is None


def test_preferences_are_those_of_the_run_folder(service: Service) -> None:
    *_, update = route(service, PROMPT, 0, 2, 0)
    assert update.page["preferences"] == PREFERENCES


# The page


@pytest.fixture(scope="module")
def visit(browser: Browser, address: str) -> Iterator[tuple[Page, list[str]]]:
    """One visit to the Routing tab, and what went wrong in it: errors, dialogs, requests to any other host."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    wrong = watch(page)
    page.goto(address)
    page.get_by_role("tab", name="Routing", exact=True).click()
    expect(page.locator("#routing-panel .tl-cell").first).to_be_visible(timeout=30_000)
    expect(page.locator("#surgery-panel .tl-switch-off").first).to_be_visible()
    yield page, wrong
    page.close()


@pytest.fixture
def page(visit: tuple[Page, list[str]]) -> Iterator[Page]:
    """The same page for all tests, as a visitor would keep it."""
    page, wrong = visit
    yield page
    assert wrong == []


def run_and_wait(page: Page, panel: str, button: Locator, told: str) -> None:
    status = page.locator(f"#{panel}-panel .tl-status")
    status.evaluate("node => { node.textContent = ''; }")  # what it says from now on is of this run
    button.click()
    expect(status).to_have_text(re.compile(told), timeout=30_000)


def route_prompt(page: Page, prompt: str) -> None:
    page.locator("#routing-prompt textarea").fill(prompt)
    run_and_wait(page, "routing", page.locator("#routing-run"), "^Stopped: it reached the number of new tokens asked")


def operate_on(page: Page, *names: str) -> None:
    """Click the switches of these names, run the prompt, and wait for the end."""
    for name in names:
        page.get_by_role("button", name=name, exact=True).click()
    run = page.get_by_role("button", name="Run it like this")
    run_and_wait(page, "surgery", run, "^With .* the text (changes|stays)")


def unfold_all(page: Page) -> None:
    folded = page.locator(":is(#routing-panel, #surgery-panel) details:not([open]) > summary")
    while folded.count():
        folded.first.click()


def number(found: Locator) -> float:
    return float(found.text_content().replace("−", "-"))  # type: ignore[union-attr]


def routed(run: tinylm.checkpoint.Run, prompt: str) -> tuple[list[int], list[tinylm.moe.Routing]]:
    """The text as the page continues it, and where its tokens go."""
    ids = run.tokenizer.encode(prompt)
    ids += tinylm.generate(run.model, ids, max_new_tokens=40)
    with torch.inference_mode():
        return ids, run.model(torch.tensor([ids])).routings


@pytest.mark.browser
def test_the_tab_opens_with_a_finished_operation(page: Page, run: tinylm.checkpoint.Run) -> None:
    status = page.locator("#surgery-panel .tl-status")
    expect(status).to_contain_text("An example, computed when the page was made ready. With expert 2 off everywhere")
    expect(page.locator("#surgery-panel tbody tr")).to_have_count(N_EXPERTS + 1)
    pressed = page.locator('.tl-switch-off[aria-pressed="true"]').evaluate_all("nodes => nodes.map((n) => n.ariaLabel)")
    assert pressed == ["Expert 2 off everywhere", *(f"Expert 2 off in layer {n + 1}" for n in range(N_LAYERS))]


@pytest.mark.browser
def test_the_text_is_coloured_by_the_likeliest_expert_of_the_chosen_layer(
    page: Page, run: tinylm.checkpoint.Run
) -> None:
    route_prompt(page, "Bees make")
    ids, routings = routed(run, "Bees make")
    text = page.locator("#routing-panel .tl-painted-token")
    for layer in (0, 2, 1):
        page.get_by_role("group", name="The likeliest expert of").get_by_text(f"Layer {layer + 1}").click()
        likeliest = [str(e + 1) for e in routings[layer].probs.argmax(dim=1).tolist()]
        expect(text).to_have_count(len(ids))
        assert text.evaluate_all("nodes => nodes.map((node) => node.dataset.expert)") == likeliest
        colours = text.evaluate_all("nodes => nodes.map((node) => getComputedStyle(node).borderBottomColor)")
        assert len(set(zip(likeliest, colours, strict=True))) == len(set(likeliest)) > 1
        assert page.locator('.tl-layer-buttons [aria-pressed="true"]').all_text_contents() == [f"Layer {layer + 1}"]
    assert "".join(text.all_text_contents()) == run.tokenizer.decode(ids)


@pytest.mark.browser
def test_laying_out_the_chart_does_not_ask_for_its_width_at_every_column(page: Page) -> None:
    """It did: each time the browser had to lay out the page anew, 88 ms in a run of 60 tokens."""
    route_prompt(page, "Bees make")
    columns = page.locator("#routing-panel .tl-column")
    n_columns, n_bands = columns.count(), page.locator("#routing-panel .tl-band").count()
    page.evaluate(
        """() => {
            window.asked = 0;
            const real = Object.getOwnPropertyDescriptor(Element.prototype, "clientWidth").get;
            const get = function () { window.asked++; return real.call(this); };
            Object.defineProperty(document.querySelector("#routing-panel .tl-chart"), "clientWidth", { get });
        }"""
    )
    page.set_viewport_size({"width": 400, "height": 900})
    page.wait_for_function(f"document.querySelectorAll('#routing-panel .tl-band').length > {n_bands}")
    assert columns.count() == n_columns > 30
    assert 0 < page.evaluate("window.asked") < n_columns / 2


@pytest.mark.browser
def test_loss_and_entropy_are_computed_again_from_the_chart(page: Page, run: tinylm.checkpoint.Run) -> None:
    route_prompt(page, "Bees make")
    ids, routings = routed(run, "Bees make")
    loss = sum(float(tinylm.load_balancing_loss(routing)) for routing in routings) / N_LAYERS
    shares = [routing.expert_ids.flatten().bincount(minlength=N_EXPERTS) / (2 * len(ids)) for routing in routings]
    bits = [-sum(p * math.log2(p) for p in layer.tolist() if p) for layer in shares]
    panel = page.locator("#routing-panel")
    for name in (".tl-loss-server", ".tl-loss-browser"):
        assert number(panel.locator(name)) == pytest.approx(loss, abs=6e-4)
    again = [float(value) for value in panel.locator(".tl-entropy-browser").text_content().split(", ")]
    assert again == pytest.approx(bits, abs=6e-3)
    figures = panel.locator(".tl-layer-figures").all_text_contents()
    for layer, (line, routing) in enumerate(zip(figures, routings, strict=True)):
        of_layer = float(tinylm.load_balancing_loss(routing))
        assert [float(n) for n in re.findall(r"\d\.\d\d", line)] == pytest.approx([bits[layer], 2, of_layer], abs=6e-3)
    expect(panel.locator(".tl-agree")).to_have_text("The same.")


@pytest.mark.browser
def test_an_operation_shows_both_texts_and_the_change_of_the_loss(page: Page, run: tinylm.checkpoint.Run) -> None:
    page.locator("#routing-prompt textarea").fill("Bees make")
    page.get_by_role("button", name="All on").click()
    operate_on(page, "Expert 3 off everywhere", "Expert 3 off in layer 2", "Expert 1 off in layer 3")
    off = {0: [2], 2: [0, 2]}
    without, ids = without_experts(run.model, off), run.tokenizer.encode("Bees make")
    old, new = (ids + tinylm.generate(model, ids, max_new_tokens=40) for model in (run.model, without))
    panel = page.locator("#surgery-panel")
    assert panel.locator(".tl-plain-text").text_content() == run.tokenizer.decode(old)
    assert panel.locator(".tl-operated-text").text_content() == run.tokenizer.decode(new)
    parts = next(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
    told = panel.locator(".tl-operated-text .tl-told-token")
    assert told.evaluate_all("nodes => nodes.findIndex((n) => n.classList.contains('tl-other'))") == parts
    expect(panel.locator(".tl-operation")).to_have_text("With expert 3 off in layer 1, experts 1, 3 off in layer 3")
    expect(panel.locator(".tl-status")).to_have_text(
        f"With expert 3 off in layer 1, experts 1, 3 off in layer 3, the text changes from token {parts + 1} on."
    )
    change = mean_loss(without, old) - mean_loss(run.model, old)
    assert number(panel.locator(".tl-before")) == pytest.approx(mean_loss(run.model, old), abs=6e-4)
    assert number(panel.locator(".tl-after")) == pytest.approx(mean_loss(without, old), abs=6e-4)
    assert number(panel.locator(".tl-change")) == pytest.approx(change, abs=6e-4)
    assert number(panel.locator(".tl-change-again")) == pytest.approx(change, abs=6e-4)
    expect(panel.locator(".tl-agree")).to_have_text("The same.")
    n_choices = (len(new) - 1) * N_LAYERS * 2  # two experts are left in each layer
    expect(panel.locator(".tl-taken")).to_contain_text(f"took 0 of {n_choices} choices")
    figures = [number(row) for row in panel.locator("tbody td:nth-child(2) .tl-figure").all()]
    losses = [mean_loss(without_experts(run.model, everywhere(e)), old) for e in range(N_EXPERTS)]
    right = [change, *(loss - mean_loss(run.model, old) for loss in losses)]
    assert figures == pytest.approx(right, abs=6e-4)
    expect(panel.locator("tbody th").nth(3)).to_have_text("expert 3")


@pytest.mark.browser
def test_one_expert_can_be_forced_and_all_put_back(page: Page, run: tinylm.checkpoint.Run) -> None:
    panel, force = page.locator("#surgery-panel"), page.get_by_label("Force one expert everywhere")
    page.locator("#routing-prompt textarea").fill("A baby dog is called")
    force.select_option("expert 4")
    operate_on(page)
    ids = run.tokenizer.encode("A baby dog is called")
    alone = without_experts(run.model, {layer: [0, 1, 2] for layer in range(N_LAYERS)})
    new = tinylm.generate(alone, ids, max_new_tokens=40)
    assert panel.locator(".tl-operated-text").text_content() == "A baby dog is called" + run.tokenizer.decode(new)
    expect(panel.locator(".tl-operation")).to_have_text("With expert 4 alone everywhere")
    page.get_by_role("button", name="Expert 1 off in layer 1").click()  # on again, so that none is forced
    expect(force).to_have_value("")
    page.get_by_role("button", name="All on").click()
    expect(panel.locator('.tl-switch-off[aria-pressed="false"]')).to_have_count(N_EXPERTS * (N_LAYERS + 1))
    operate_on(page)
    expect(panel.locator(".tl-status")).to_have_text("With all experts on, the text stays the same.")
    expect(panel.locator(".tl-change")).to_have_text("+0.000")
    assert panel.locator(".tl-operated-text").text_content() == panel.locator(".tl-plain-text").text_content()


@pytest.mark.browser
def test_a_layer_without_experts_is_refused_before_it_is_sent(page: Page) -> None:
    page.get_by_role("button", name="All on").click()
    for expert in (1, 2, 3, 4):
        page.get_by_role("button", name=f"Expert {expert} off in layer 2").click()
    expect(page.locator(".tl-refusal")).to_have_text("Layer 2 would have no expert left. Leave at least one on.")
    expect(page.get_by_role("button", name="Run it like this")).to_be_disabled()
    page.get_by_role("button", name="Expert 4 off in layer 2").click()
    expect(page.locator(".tl-refusal")).to_have_text("")
    expect(page.get_by_role("button", name="Run it like this")).to_be_enabled()


@pytest.mark.browser
def test_the_operation_is_done_by_keyboard_alone(page: Page) -> None:
    page.get_by_role("button", name="All on").click()
    page.locator(".tl-switch-off").first.focus()
    for key, name in (
        ("ArrowRight", "Expert 2 off everywhere"),
        ("ArrowDown", "Expert 2 off in layer 1"),
        ("ArrowRight", "Expert 3 off in layer 1"),
    ):
        page.keyboard.press(key)
        expect(page.get_by_role("button", name=name, exact=True)).to_be_focused()
    page.keyboard.press("Space")
    expect(page.locator(":focus")).to_have_attribute("aria-pressed", "true")
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Run it like this")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#surgery-panel .tl-operation")).to_have_text("With expert 3 off in layer 1")


@pytest.mark.browser
def test_preferences_are_shown_by_layer_and_expert(page: Page) -> None:
    unfold_all(page)
    found = page.locator("#routing-panel .tl-preference")
    expect(found).to_have_count(N_LAYERS * N_EXPERTS)
    for i, (layer, expert) in enumerate(itertools.product(range(N_LAYERS), range(N_EXPERTS))):
        lines = [f"kind {layer} ×2.0", f" t{layer}{expert} ×{1.5 + expert:.1f}", "<b>`${x} ×1.3"]
        assert found.nth(i).locator("li").all_text_contents() == lines
    expect(page.locator(".tl-preferences p")).to_contain_text("From the training data, written by training")


@pytest.mark.browser
def test_a_run_is_downloaded_as_it_was_shown(page: Page, run: tinylm.checkpoint.Run, weights: Path) -> None:
    route_prompt(page, MARKUP)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download this run").locator("visible=true").click()
    found = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    *_, update = route(Service(RunFolders(weights)), MARKUP)
    assert found["settings"] == {"prompt": MARKUP, "temperature": 0, "max_new_tokens": 40, "seed": 0}
    digest = hashlib.sha256((weights / "moe" / "model.safetensors").read_bytes()).hexdigest()
    assert found["weights"] == {"name": "moe", "sha256": digest}
    ids = run.tokenizer.encode(MARKUP)
    ids += tinylm.generate(run.model, ids, max_new_tokens=40)
    assert [token.pop("id") for token in found["tokens"]] == ids
    assert {name: found[name] for name in update.result} == update.result
    assert (found["entropy"], found["stopped"]) == (update.page["entropy"], "length")


@pytest.mark.browser
def test_markup_stays_text_in_both_panels(page: Page, run: tinylm.checkpoint.Run) -> None:
    assert run.tokenizer.decode(run.tokenizer.encode(MARKUP)[:1]) == "<b>x</b>"
    route_prompt(page, MARKUP)
    operate_on(page)
    assert "".join(page.locator(".tl-painted-token").all_text_contents()).startswith(MARKUP)
    for name in (".tl-plain-text", ".tl-operated-text"):
        assert page.locator(name).text_content().startswith(MARKUP)  # type: ignore[union-attr]
    unfold_all(page)
    expect(page.locator("#surgery-panel .tl-table tr").first).to_be_visible()
    assert (
        page.locator(
            ":is(#routing-panel, #surgery-panel) :is(img, .tl-painted b, .tl-chart b, .tl-told b, td b)"
        ).count()
        == 0
    )


@pytest.mark.browser
def test_a_text_from_nothing_begins_with_its_start(page: Page) -> None:
    route_prompt(page, "")
    operate_on(page)
    for name in (".tl-painted-token", ".tl-column .tl-token", ".tl-plain-text span", ".tl-operated-text span"):
        expect(page.locator(name).first).to_have_text("start")
        assert "start" not in page.locator(name).nth(2).text_content()  # type: ignore[operator]


@pytest.mark.browser
def test_both_panels_fit_a_narrow_window_with_all_unfolded(page: Page) -> None:
    page.set_viewport_size({"width": 320, "height": 700})
    unfold_all(page)
    expect(page.locator("#surgery-panel .tl-table tr").first).to_be_visible()
    width = page.evaluate("document.documentElement.scrollWidth")
    page.set_viewport_size({"width": 1280, "height": 900})
    assert width <= 320


def test_a_strangers_event_is_refused_in_words(address: str) -> None:
    with urllib.request.urlopen(f"{address}config", timeout=10) as answer:
        config = json.load(answer)
    names = {component["id"]: component["props"].get("elem_id") for component in config["components"]}
    [event] = [
        dependency["id"]
        for dependency in config["dependencies"]
        if any(names.get(i) == "surgery-panel" and name == "operate" for i, name in dependency["targets"])
    ]
    for i, data in enumerate(("all", 7, [], {}, {"off": "all"}, {"off": [[0, 1, 2, 3]] * N_LAYERS}, None)):
        session = f"stranger{i}"
        call = {"data": [PROMPT, 0, 5, 0], "fn_index": event, "session_hash": session, "event_data": data}
        request = urllib.request.Request(
            f"{address}gradio_api/queue/join", json.dumps(call).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=10).close()
        with urllib.request.urlopen(f"{address}gradio_api/queue/data?session_hash={session}", timeout=10) as stream:
            told = stream.read().decode()
        assert re.search(r"(must come as 3 lists|would have no expert left)", told), (data, told)
