"""The Training tab: what it counts and measures against the library called directly, and what a visitor sees of it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import article_recipe
import pytest
import torch
from browsing import MARKUP, watched_page
from playwright.sync_api import Browser, Page, expect
from serve import LINES, MOE_LAYERS, make_weights, serve

import tinylm
from tinylm import evaluation, training
from tinylm.data.batches import Lines, TextBatches
from tinylm.data.text import TextCorpus, load_corpus
from tinylm.ui.limits import Refused
from tinylm.ui.models import RunFolders
from tinylm.ui.service import Service
from tinylm.ui.service import trained as service_module
from tinylm.ui.service.trained import ARTICLE, measure, stamp, trained

HISTORY = [
    {"step": 10 * i, "seconds": 1.5 * i, "train_loss": round(4 / i + 0.1, 4), "val_loss": round(4 / i, 4)}
    for i in range(1, 9)
]
ARTICLE_HISTORY = [{"step": 40 * i, "seconds": 1.4 * i, "train_loss": 90 / i, "val_loss": 100 / i} for i in range(1, 9)]


def tell(weights: Path, name: str, **changes: Any) -> None:
    """Write a run's metrics as training does, with true sizes unless others are given."""
    run = tinylm.load(weights / name)
    info = {
        "variant": "moe" if run.model.config.moe else "text",
        "command": f"python train.py {name} --note '{MARKUP}'",
        "data": "built-in",
        "device": "cpu, 2 threads",
        "n_lines": {"train": 3, "validation": 3, "test": 0},
        "steps": 80,
        "seconds": 12.0,
        "parameters": run.model.n_parameters(),
        "active_parameters": run.model.n_parameters(active=True),
        "val_loss": HISTORY[-1]["val_loss"],
        "recall": 0.625,
        "recall_by_domain": {"animals": 0.5, "sums": 0.75},
        "n_probes": 8,
        "history": HISTORY,
    }
    (weights / name / "metrics.json").write_text(json.dumps(info | changes), encoding="utf-8")


def tell_article(weights: Path) -> None:
    """Write the article's curve for the data and vocabulary of the text run."""
    ours = json.loads((weights / "text" / "metrics.json").read_text(encoding="utf-8"))
    report = {key: ours[key] for key in ("variant", "data", "n_lines")}
    report |= {"val_loss": ARTICLE_HISTORY[-1]["val_loss"], "history": ARTICLE_HISTORY}
    report["tokenizer_sha256"] = hashlib.sha256((weights / "text" / "tokenizer.json").read_bytes()).hexdigest()
    (weights / ARTICLE).write_text(json.dumps(report), encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_weights(tmp_path_factory.mktemp("made") / "weights")


@pytest.fixture
def weights(made: Path, tmp_path: Path) -> Path:
    """Run folders of the test's own."""
    return shutil.copytree(made, tmp_path / "weights")


def read(weights: Path) -> dict[str, dict[str, Any]]:
    *_, update = trained(Service(RunFolders(weights)))
    json.dumps(update.result, allow_nan=False).encode()
    json.dumps(update.result, ensure_ascii=False).encode()  # as it travels: no lone surrogate
    return {run["name"]: run for run in update.result["runs"]}


def test_sizes_are_those_of_the_loaded_model_and_its_file(weights: Path) -> None:
    runs = read(weights)
    assert list(runs) == ["text", "vision", "moe", "deep"]
    for name, run in runs.items():
        loaded, path = tinylm.load(weights / name), weights / name / "model.safetensors"
        counted, config = run["counted"], loaded.model.config
        assert counted["parameters"] == sum(p.numel() for p in loaded.model.parameters())
        assert counted["file_bytes"] == len(path.read_bytes()) == counted["tensor_bytes"] + counted["header_bytes"]
        assert counted["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        images = torch.zeros(1, 3, 16, 16) if config.vision else None
        first, second, *_ = tinylm.stream(loaded.model, [1, 2, 3], images, max_new_tokens=3)
        assert counted["cache_bytes"] == second.cache_nbytes - first.cache_nbytes
        assert counted["full_cache_bytes"] == 2 * 32 * config.n_layers * 4
    dense, moe = runs["text"]["counted"], runs["moe"]["counted"]
    assert dense["active_parameters"] == dense["parameters"]
    feed_forward = 2 * 32 * 64 + 32 + 64  # of one of four experts, two of which are idle, in six layers
    assert moe["parameters"] - moe["active_parameters"] == MOE_LAYERS * 2 * feed_forward


def test_a_broken_run_says_so_and_leaves_the_others_alone(weights: Path) -> None:
    tell(weights, "text")
    path = weights / "text" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    for file in (weights / "moe").iterdir():
        file.unlink()
    runs = read(weights)
    assert "weights/text/model.safetensors" in runs["text"]["problem"]
    assert runs["text"]["counted"] is None and runs["text"]["history"] == HISTORY  # what training wrote is still there
    assert "python train.py moe --out weights/moe" in runs["moe"]["problem"]
    assert runs["moe"]["history"] == [] and runs["moe"]["told"] == {}
    assert runs["vision"]["problem"] is runs["deep"]["problem"] is None
    assert runs["vision"]["counted"]["parameters"] > 0


def test_metrics_of_any_kind_reach_the_page_as_plain_finite_values(weights: Path) -> None:
    junk = [{"step": 1, "seconds": 2, "val_loss": math.nan, "train_loss": "low"}, {"step": None, "seconds": 1}, 3, None]
    tell(weights, "text", history=junk, steps=10**400, seconds=math.inf, command="\ud800 x" + "y" * 10**5)
    run = read(weights)["text"]
    assert run["history"] == [{"step": 1, "seconds": 2, "train_loss": None, "val_loss": None}]
    assert run["told"]["steps"] is run["told"]["seconds"] is None
    assert run["told"]["command"].startswith("\ufffd x") and len(run["told"]["command"]) <= 5000
    for text in ("[1, 2]", "{", '{"history": 7, "test": [], "captions": 3}'):
        (weights / "moe" / "metrics.json").write_text(text, encoding="utf-8")
        assert read(weights)["moe"]["history"] == []


def test_the_article_stands_only_beside_a_run_of_the_same_data_and_vocabulary(weights: Path) -> None:
    for name in ("text", "moe", "deep"):
        tell(weights, name)
    assert read(weights)["text"]["article"] is None
    tell_article(weights)
    runs = read(weights)
    assert runs["text"]["article"]["history"] == runs["deep"]["article"]["history"] == ARTICLE_HISTORY
    assert runs["moe"]["article"] is None  # another variant
    tell(weights, "text", data="my-lines.txt")
    tokenizer = tinylm.Tokenizer.train([*LINES, "Other lines."], vocab_size=90)
    assert tokenizer.vocab_size == tinylm.load(weights / "deep").tokenizer.vocab_size
    tokenizer.save(weights / "deep" / "tokenizer.json")
    runs = read(weights)
    assert runs["text"]["article"] is runs["deep"]["article"] is None


def test_the_tab_is_read_anew_when_a_file_changes(weights: Path) -> None:
    service = Service(RunFolders(weights))
    before = stamp(service)
    assert stamp(service) == before
    tell(weights, "text")
    os.utime(weights / "text" / "metrics.json", (1, 1))
    after = stamp(service)
    tell_article(weights)
    assert len({before, after, stamp(service)}) == 3


def test_the_loss_measured_again_is_that_of_the_whole_held_out_text(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tuple(f"{line} {i}" for i in range(400) for line in LINES)
    monkeypatch.setattr(service_module, "held_out_lines", lambda: lines)
    for name in ("text", "moe"):
        tell(weights, name)
        run = tinylm.load(weights / name)
        held = Lines.encode(lines, run.tokenizer, run.model.config.max_seq_len)
        expected = evaluation.held_out(run.model, run.tokenizer, TextBatches(held, held, 64, 0).validation())
        updates = [update.result for update in measure(Service(RunFolders(weights)), name)]
        assert updates[0]["loss"] is None and updates[-1]["n_read"] == updates[-1]["n_lines"] == len(lines)
        read_so_far = [update["n_read"] for update in updates]
        assert read_so_far == sorted(read_so_far) and len(read_so_far) > 3
        assert updates[-1]["loss"] == pytest.approx(expected.nats_per_token, abs=1e-9)


@pytest.mark.parametrize("name", ["vision", "deep", "nothing", "../text", None, ["text"], {}, 3])
def test_what_has_no_held_out_lines_here_is_not_measured(weights: Path, name: Any) -> None:
    with pytest.raises(Refused):
        list(measure(Service(RunFolders(weights)), name))  # `deep` has no metrics that name its data


def test_the_article_s_recipe_is_measured_as_training_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = TextCorpus("built-in", tuple(f"{line} {i}" for i in range(40) for line in LINES), tuple(LINES))
    monkeypatch.setattr(training, "load_corpus", lambda *_: corpus)
    plan = training.Plan("text", tmp_path / "weights" / "text", minutes=0.01)
    ours = training.train(plan)
    report = article_recipe.measure(0.6)
    assert report["recipe"] == "article" and report["recipe_values"]["optimizer"] == "sgd"
    assert report["recipe_values"]["batch_size"] == 8 and report["recipe_values"]["scaled_init"] is False
    assert report["seconds"] == pytest.approx(0.6, abs=1.0) and len(report["history"]) > 1
    assert report["val_loss"] > ours["val_loss"]
    (tmp_path / "weights" / ARTICLE).write_text(json.dumps(report), encoding="utf-8")
    assert read(tmp_path / "weights")["text"]["article"]["history"] == report["history"]


# ---- In a browser


@pytest.fixture(scope="module")
def served(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = shutil.copytree(made, tmp_path_factory.mktemp("trained") / "weights")
    tell(weights, "text")
    tell(weights, "moe", parameters=7, expert_load=[[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]])
    tell(weights, "deep", device=MARKUP, data=MARKUP, recall_by_domain={MARKUP: 1})
    tell_article(weights)
    path = weights / "vision" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    return weights


@pytest.fixture(scope="module")
def address(served: Path) -> Iterator[str]:
    with serve(served) as address:
        yield address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page with the Training tab open."""
    with watched_page(browser) as page:
        page.goto(address)
        page.get_by_role("tab", name="Training", exact=True).click(timeout=30_000)
        expect(page.locator("#training-panel .tl-stop").first).to_be_visible(timeout=30_000)
        yield page


def choose(page: Page, name: str) -> None:
    page.locator(f'#training-panel [data-name="{name}"]').click()


def rows_of(page: Page, details: str) -> list[list[str]]:
    page.locator(f"#training-panel {details} summary").click()
    rows = page.locator(f"#training-panel {details} tbody tr")
    expect(rows.first).to_be_visible()
    return [row.locator("td").all_inner_texts() for row in rows.all()]


def figure(page: Page, name: str) -> str:
    """A figure with its words: what stands at its name."""
    return page.locator("#training-panel dl > div").filter(has=page.locator("dt", has_text=name)).first.inner_text()


@pytest.mark.browser
def test_the_curves_lie_where_the_numbers_say(page: Page) -> None:
    """Heights and places in the drawing against the history, on both scales and along both axes."""
    panel = page.locator("#training-panel")
    assert panel.locator(".tl-keys li").count() == 4

    def points(series: int) -> list[tuple[float, float]]:
        drawn = panel.locator(".tl-plot .tl-curve").nth(series).get_attribute("points") or ""
        return [tuple(map(float, point.split(","))) for point in drawn.split()]  # type: ignore[misc]

    def linear(found: list[float], wanted: list[float]) -> None:
        scale = (found[-1] - found[0]) / (wanted[-1] - wanted[0])
        assert found == pytest.approx([found[0] + scale * (value - wanted[0]) for value in wanted], abs=0.01)

    for along in ("seconds", "step"):
        page.locator(f'#training-panel [data-along="{along}"]').click()
        for scale, shape in (("log", math.log), ("even", lambda value: value)):
            page.locator(f'#training-panel [data-scale="{scale}"]').click()
            for series, key in ((0, "train_loss"), (1, "val_loss")):
                drawn = points(series)
                linear([x for x, _ in drawn], [row[along] for row in HISTORY])
                linear([y for _, y in drawn], [shape(row[key]) for row in HISTORY])
            # The article's lies on the same axes, and ends at the chart's edge where it has gone on further.
            article = [row for row in ARTICLE_HISTORY if row[along] <= HISTORY[-1][along]]
            both = points(1) + points(3)
            linear([x for x, _ in both], [row[along] for row in [*HISTORY, *article]])
            linear([y for _, y in both], [shape(row["val_loss"]) for row in [*HISTORY, *article]])
            beyond = panel.locator(".tl-beyond").inner_text()
            assert ("past the chart's edge" in beyond) == (len(article) < len(ARTICLE_HISTORY))


@pytest.mark.browser
def test_points_are_read_with_the_mouse_and_with_the_keyboard(page: Page) -> None:
    reading = page.locator("#training-panel .tl-reading")
    expect(reading).to_contain_text("At 12.0 s, step 80: training 0.600, validation 0.500 (perplexity 1.65).")
    page.locator("#training-panel .tl-stop").nth(1).hover()
    expect(reading).to_contain_text("At 3.0 s, step 20: training 2.100, validation 2.000 (perplexity 7.39).")
    expect(reading).to_contain_text("The article's recipe at 2.8 s, step 80: training 45.000, validation 50.000")
    page.locator("#training-panel .tl-stop").nth(1).focus()
    page.keyboard.press("ArrowRight")
    expect(reading).to_contain_text("At 4.5 s, step 30:")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == reading.inner_text()
    page.keyboard.press("Home")
    expect(reading).to_contain_text("At 1.5 s, step 10:")
    assert page.locator("#training-panel .tl-ring").count() == 4
    assert page.locator('#training-panel .tl-stop[tabindex="0"]').count() == 1


@pytest.mark.browser
def test_the_table_has_every_point(page: Page) -> None:
    rows = rows_of(page, ".tl-curve-table")
    wanted = [("this run", row) for row in HISTORY] + [("article's", row) for row in ARTICLE_HISTORY]
    assert len(rows) == len(wanted)
    for cells, (name, row) in zip(rows, wanted, strict=True):
        assert cells[0] == name and float(cells[1]) == pytest.approx(row["seconds"], abs=0.05)
        assert int(cells[2]) == row["step"] and float(cells[4]) == pytest.approx(row["val_loss"], abs=1e-4)
        assert float(cells[5].replace(",", "")) == pytest.approx(math.exp(row["val_loss"]), rel=0.06)


@pytest.mark.browser
def test_figures_stand_beside_what_is_counted(page: Page, served: Path) -> None:
    run = tinylm.load(served / "text")
    n = f"{run.model.n_parameters():,}"
    assert figure(page, "Parameters").split() == [
        *("Parameters", n, "Counted", "in", "the", "loaded", "tensors;", "training", "wrote", f"{n}:", "the", "same."),
    ]
    assert f"{math.exp(HISTORY[-1]['val_loss']):.3g}" in figure(page, "Perplexity")
    assert "62.5 %" in figure(page, "Recall") and "8 held-out sentences" in figure(page, "Recall")
    digest = hashlib.sha256((served / "text" / "model.safetensors").read_bytes()).hexdigest()
    assert digest in figure(page, "Its sha256")
    choose(page, "moe")
    assert "training wrote 7: not the same" in figure(page, "Parameters")
    expect(page.locator("#training-panel .tl-differs").first).to_be_visible()
    assert "2.00, 1.00 bits" in figure(page, "Load of the experts")
    assert rows_of(page, ".tl-domain-table") == [["animals", "50.0 %", "–"], ["sums", "75.0 %", "–"]]


@pytest.mark.browser
def test_a_broken_run_is_told_of_and_the_others_are_shown(page: Page) -> None:
    choose(page, "vision")
    expect(page.locator("#training-panel .tl-problem")).to_contain_text("weights/vision/model.safetensors")
    expect(page.locator("#training-panel .tl-curves")).to_be_hidden()
    choose(page, "text")
    expect(page.locator("#training-panel .tl-problem")).to_be_hidden()
    expect(page.locator("#training-panel .tl-stop").first).to_be_visible()


@pytest.mark.browser
def test_the_loss_is_measured_again_at_one_click(page: Page, served: Path) -> None:
    said = page.locator("#training-panel .tl-measured")
    page.locator("#training-panel .tl-measure").click()
    expect(said).to_contain_text("held-out lines")
    run, lines = tinylm.load(served / "text"), load_corpus().validation
    held = Lines.encode(lines, run.tokenizer, run.model.config.max_seq_len)
    loss = evaluation.held_out(run.model, run.tokenizer, TextBatches(held, held, 1, 0).validation()).nats_per_token
    expect(said).to_have_text(
        f"Measured now on {len(lines):,} held-out lines: {loss:.4f} nats a token; training wrote 0.5000.",
        timeout=30_000,
    )
    expect(said).to_have_class("tl-hint tl-measured tl-differs")  # these weights never trained


@pytest.mark.browser
def test_markup_in_a_run_s_files_is_shown_as_it_is(page: Page) -> None:
    choose(page, "deep")
    expect(page.locator("#training-panel .tl-command")).to_have_text(f"python train.py deep --note '{MARKUP}'")
    assert MARKUP in figure(page, "Device") and MARKUP in figure(page, "Data")
    assert rows_of(page, ".tl-domain-table")[0][0] == MARKUP
    assert page.locator("#training-panel img, #training-panel b").count() == 0


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 320])
def test_all_four_tabs_and_the_chart_fit_a_narrow_window(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.reload()
    for name in ("Complete", "Caption", "Routing", "Training"):
        tab = page.get_by_role("tab", name=name, exact=True)
        expect(tab).to_be_visible(timeout=30_000)
        box = tab.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
    expect(page.locator(".overflow-menu:visible button")).to_have_count(0)
    page.get_by_role("tab", name="Training", exact=True).click()
    expect(page.locator("#training-panel .tl-stop").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
