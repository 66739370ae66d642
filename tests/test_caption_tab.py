"""The Caption tab: what a caption hangs on, against the library called directly, and as a visitor asks for it."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from browsing import watch
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect
from serve import ROOT, make_weights, serve
from torch import Tensor

import tinylm
from tinylm.captioner import Captioner, mute, occlusion_map, slot_effects
from tinylm.data import painter
from tinylm.data.flowers import CAPTION_PROMPT, EXAMPLE_SEED, caption
from tinylm.ui.caption import EXAMPLE_SIZE, EXAMPLES
from tinylm.ui.limits import Refused
from tinylm.ui.models import RunFolders
from tinylm.ui.service import Service
from tinylm.ui.service.caption import caption as captioned
from tinylm.ui.service.explain import explain

SHIPPED = ROOT / "weights"
MARKUP = ["${alert(1)}", "{{x}}", "<img src=x onerror=alert(1)>", "`"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_weights(tmp_path_factory.mktemp("explained") / "weights")


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    """A tulip and a sunflower, the page's own first examples."""
    return [painter.paint(kind, EXAMPLE_SEED + i, EXAMPLE_SIZE) for i, kind in enumerate(EXAMPLES[:2])]


class Known:
    """A run folder's vision model, the pictures as it takes them in, and what it says of the first."""

    def __init__(self, folder: Path, pictures: list[Image.Image]) -> None:
        run = tinylm.load(folder / "vision")
        self.captioner, self.size = Captioner.of(run), run.model.config.vision.image_size
        self.images = [tinylm.image_to_tensor(picture, self.size)[None] for picture in pictures]
        self.slots = [self.captioner.slots(image) for image in self.images]
        text = self.captioner.greedy(self.slots[0])[0]
        said = {caption(label): label for label in self.captioner.labels}
        self.label = said.get(text) or self.captioner.ranked(self.images[0])[0][0]

    def change(self, slots_1SD: Tensor) -> tuple[str, float, float]:
        """The caption of changed slots, the calibrated share of the first caption's label, and its change in nats."""
        column = self.captioner.labels.index(self.label)
        before, after = (self.captioner.logprobs(slots)[0] for slots in (self.slots[0], slots_1SD))
        share = torch.softmax(after / self.captioner.temperature, dim=-1)[column]
        return self.captioner.greedy(slots_1SD)[0], float(share), float(after[column] - before[column])


@pytest.fixture(scope="module", params=["random", "shipped"])
def folder(request: pytest.FixtureRequest, weights: Path) -> Path:
    return weights if request.param == "random" else SHIPPED


@pytest.fixture(scope="module")
def service(folder: Path) -> Service:
    return Service(RunFolders(folder))


@pytest.fixture(scope="module")
def known(folder: Path, pictures: list[Image.Image]) -> Known:
    return Known(folder, pictures)


def test_each_slots_effect_is_what_the_library_says(
    service: Service, known: Known, pictures: list[Image.Image]
) -> None:
    (update,) = explain(service, *pictures)
    assert update.result["label"] == known.label
    image, other = known.images
    for name, taken_from in (("muted", None), ("swapped", other)):
        expected = slot_effects(known.captioner, image, known.label, taken_from)
        found = update.result[name]
        assert [effect["logprob"] for effect in found] == pytest.approx([e.logprob for e in expected], abs=2e-5)
        for effect, right in zip(found, expected, strict=True):
            assert effect["labels"][0] == [right.label, pytest.approx(right.probability, abs=1e-5)]
            edited = known.slots[0].clone()
            edited[:, right.slot] = 0 if taken_from is None else known.slots[1][:, right.slot]
            text, share, _ = known.change(edited)
            assert effect["caption"] == text and effect["kept"] == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize(
    ("muted", "swapped"), [([], []), ([2], []), ([], [1]), ([0, 3], [1]), ([], [0, 1, 2, 3]), ([0, 1, 2, 3], [])]
)
def test_the_visitors_changes_are_all_made_at_once(
    service: Service, known: Known, pictures: list[Image.Image], muted: list[int], swapped: list[int]
) -> None:
    (update,) = explain(service, *pictures, muted, swapped)
    edited = mute(known.slots[0], muted)
    edited[:, swapped] = known.slots[1][:, swapped]
    text, share, change = known.change(edited)
    changed = update.result["changed"]
    assert changed["caption"] == text
    assert changed["kept"] == pytest.approx(share, abs=1e-5)
    assert changed["logprob"] == pytest.approx(change, abs=2e-5)
    assert (update.page["muted"], update.page["swapped"]) == (muted, swapped)
    if len(swapped) == 4:  # nothing of the first picture is left
        *_, other = captioned(service, pictures[1])
        assert text == other.result["caption"]
        label, p = other.result["labels"][0]
        assert changed["labels"][0] == [label, pytest.approx(p, abs=1e-5)]


def test_the_map_comes_last_and_is_the_librarys(weights: Path, pictures: list[Image.Image]) -> None:
    known = Known(weights, pictures)
    first, second = explain(Service(RunFolders(weights)), *pictures, with_map=True)
    assert "map" not in first.result and first.result.items() <= second.result.items()
    expected = occlusion_map(known.captioner, known.images[0], known.label, 8)
    torch.testing.assert_close(torch.tensor(second.result["map"]), expected, atol=2e-5, rtol=0)
    assert expected.abs().max() > 1e-3


def test_a_kept_map_is_given_again_for_the_same_weights_only(
    weights: Path, pictures: list[Image.Image], tmp_path: Path
) -> None:
    shutil.copytree(weights / "vision", tmp_path / "vision")
    service, kept = Service(RunFolders(tmp_path)), {}
    *_, first = explain(service, *pictures, with_map=True, kept=kept)
    assert kept == {first.page["weights"]["sha256"]: first.result["map"]}
    kept[first.page["weights"]["sha256"]] = [[7.0]]
    *_, again = explain(service, *pictures, with_map=True, kept=kept)
    assert again.result["map"] == [[7.0]]
    run = tinylm.load(tmp_path / "vision")
    with torch.no_grad():
        run.model.head_bias[0] += 1
    tinylm.save(tmp_path / "vision", run.model, run.tokenizer, run.info)
    *_, other = explain(service, *pictures, with_map=True, kept=kept)
    known = Known(tmp_path, pictures)
    expected = occlusion_map(known.captioner, known.images[0], known.label, 8)
    torch.testing.assert_close(torch.tensor(other.result["map"]), expected, atol=2e-5, rtol=0)


def test_the_caption_comes_token_by_token_from_one_encoding(
    folder: Path, service: Service, known: Known, pictures: list[Image.Image]
) -> None:
    model, tokenizer = known.captioner.model, known.captioner.tokenizer
    steps = list(tinylm.stream(model, tokenizer.encode(CAPTION_PROMPT), known.images[0], 24, eos_id=tokenizer.eos_id))
    encoded: list[int] = []
    hook = service.runs.get("vision").model.encoder.register_forward_hook(lambda *_: encoded.append(1))
    *_, update = captioned(service, pictures[0])
    hook.remove()
    assert len(encoded) == 1
    tokens = update.page["tokens"]
    assert [token["text"] for token in tokens] == [tokenizer.decode([step.token_id]) for step in steps]
    assert [token["probability"] for token in tokens] == pytest.approx([math.exp(s.logprob) for s in steps], abs=1e-4)
    product = math.prod(token["probability"] for token in tokens)
    assert update.result["probability"] == pytest.approx(product, abs=1e-5)
    if folder == SHIPPED:
        column = known.captioner.labels.index(known.label)
        scored = math.exp(known.captioner.logprobs(known.slots[0])[0, column])
        assert update.page["scored"] == pytest.approx(scored, abs=1e-5)
        assert product * update.page["end"] == pytest.approx(scored, abs=1e-4)
    else:  # random weights say none of the captions that they know, and never end
        assert update.page["scored"] is None and update.page["end"] is None


@pytest.mark.parametrize(
    ("muted", "swapped"),
    [
        ([4], []),
        ([], [-1]),
        ([1.5], []),
        (["0"], []),
        ([None], []),
        ([True], []),
        ("01", []),
        ({}, []),
        (7, []),
        (None, []),
        ([0] * 9, []),
        ([1], [1]),
    ],
)
def test_slots_that_are_not_there_are_refused_in_a_sentence(
    weights: Path, pictures: list[Image.Image], muted: Any, swapped: Any
) -> None:
    with pytest.raises(Refused, match=r"^[A-Z].*\.$"):
        next(explain(Service(RunFolders(weights)), *pictures, muted, swapped))


def test_nothing_is_explained_without_a_picture(weights: Path, pictures: list[Image.Image]) -> None:
    with pytest.raises(Refused, match="choose a picture"):
        next(explain(Service(RunFolders(weights)), None, pictures[1]))


# In the browser, on the shipped weights: random ones can't be asked whether a grey card is a flower.

WAIT = 30_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captioned") / "weights"
    shutil.copytree(SHIPPED / "vision", folder / "vision")
    return folder


@pytest.fixture(scope="module")
def address(served: Path) -> Iterator[str]:
    with serve(served) as address:
        yield address


@pytest.fixture(scope="module")
def context(browser: Browser, address: str) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, address: str) -> Iterator[Page]:
    """The Caption tab, its example explained; afterwards: no error, no dialog, no request to any other host."""
    page = context.new_page()
    wrong = watch(page)
    page.goto(address)
    page.get_by_role("tab", name="Caption", exact=True).click()
    expect(page.locator("#caption-panel .tl-heat")).to_be_visible(timeout=WAIT)
    yield page
    page.close()
    assert wrong == []


@pytest.fixture(scope="module")
def shipped(pictures: list[Image.Image]) -> Known:
    return Known(SHIPPED, pictures)


def explained(page: Page) -> Locator:
    """The slots panel, once what it shows is of the newest caption; and its map is there."""
    expect(page.locator("#slots-panel .tl")).to_have_attribute("aria-busy", "false", timeout=WAIT)
    expect(page.locator("#caption-panel .tl-heat")).to_be_visible(timeout=WAIT)
    return page.locator("#slots-panel")


def table(panel: Locator, title: str) -> list[list[str]]:
    """The cells of a folded table, opened."""
    details = panel.locator("details", has_text=title)
    if details.get_attribute("open") is None:
        details.locator("summary").click()
    expect(details.locator("td").first).to_be_visible()
    rows = details.locator("tbody tr").evaluate_all("rows => rows.map(r => [...r.cells].map(c => c.textContent))")
    details.locator("summary").click()
    return rows


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("%", "").strip())


def shown_map(page: Page) -> list[list[float]]:
    rows = table(page.locator("#caption-panel"), "The occlusion map as a table")
    return [[number(text) for text in row[1:]] for row in rows]


@pytest.mark.browser
def test_the_example_is_explained_without_a_click(page: Page, shipped: Known) -> None:
    panel = page.locator("#caption-panel")
    expected = occlusion_map(shipped.captioner, shipped.images[0], "tulip", 8)
    torch.testing.assert_close(torch.tensor(shown_map(page)), expected, atol=6e-5, rtol=0)
    effects = [
        slot_effects(shipped.captioner, shipped.images[0], "tulip", other) for other in (None, shipped.images[1])
    ]
    rows = table(page.locator("#slots-panel"), "The slots as a table")
    assert [(int(row[0]), row[1]) for row in rows] == [(i + 1, c) for c in ("muted", "swapped") for i in range(4)]
    assert [number(row[2]) for row in rows] == pytest.approx([e.logprob for group in effects for e in group], abs=6e-5)
    checks = panel.locator(".tl-checks li")
    assert checks.evaluate_all("items => items.map((item) => item.dataset.holds)") == ["true"] * 4
    tokens = panel.locator(".tl-said b").all_text_contents()
    assert "".join(tokens) == " a tulip!"
    shares = [number(text) / 100 for text in panel.locator(".tl-said span:not(.tl-space)").all_text_contents()]
    assert math.prod(shares[:-1]) == pytest.approx(shares[-1], abs=2e-4)
    expect(panel.locator(".tl-status")).to_contain_text("before calibration", timeout=WAIT)


@pytest.mark.browser
def test_slots_are_muted_and_swapped_by_keyboard(page: Page, shipped: Known) -> None:
    panel = explained(page)
    edited = shipped.slots[0].clone()
    mutes, swaps = torch.zeros_like(shipped.slots[0]), shipped.slots[1]
    for name, slot, new in (("Mute slot 2", 1, mutes), ("Swap slot 3", 2, swaps), ("Swap slot 4", 3, swaps)):
        button = panel.get_by_role("button", name=name)
        expect(button).to_have_attribute("aria-pressed", "false")
        button.focus()
        page.keyboard.press("Space")
        expect(button).to_have_attribute("aria-pressed", "true")
        edited[:, slot] = new[:, slot]
        text, _, change = shipped.change(edited)
        expect(panel.locator(".tl-changed-how")).to_contain_text(f"{abs(change):.4f} nats", timeout=WAIT)
        assert panel.locator(".tl-changed-caption").text_content() == text
    assert "slot 2 muted, slot 3 from sunflower" in (panel.locator(".tl-changed-how").text_content() or "")
    panel.get_by_role("button", name="Swap slot 2").click()  # instead of muted
    expect(panel.get_by_role("button", name="Mute slot 2")).to_have_attribute("aria-pressed", "false")
    panel.get_by_role("button", name="Swap slot 1").click()
    expect(panel.locator(".tl-changed-caption")).to_have_text(caption("sunflower"), timeout=WAIT)


@pytest.mark.browser
def test_slots_come_from_the_picture_that_is_chosen(page: Page, shipped: Known) -> None:
    panel = explained(page)
    panel.get_by_role("button", name="Swap slot 1").click()
    expect(panel.locator(".tl-agrees")).to_contain_text("slot 1, and agrees with it", timeout=WAIT)
    panel.locator("select").select_option("iris")
    expect(panel.locator(".tl-changed-how")).to_contain_text("slot 1 from iris", timeout=WAIT)
    iris = painter.paint("iris", EXAMPLE_SEED + EXAMPLES.index("iris"), EXAMPLE_SIZE)
    effects = slot_effects(
        shipped.captioner, shipped.images[0], "tulip", tinylm.image_to_tensor(iris, shipped.size)[None]
    )
    rows = table(panel, "The slots as a table")[4:]
    assert [number(row[2]) for row in rows] == pytest.approx([effect.logprob for effect in effects], abs=6e-5)


@pytest.mark.browser
def test_the_map_is_walked_by_keyboard_and_put_away(page: Page, shipped: Known) -> None:
    panel, values = page.locator("#caption-panel"), shown_map(page)
    panel.locator('.tl-places button[tabindex="0"]').focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    told = panel.locator(".tl-place").text_content() or ""
    assert told.startswith("Row 3, column 2 covered")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == told
    assert number(re.findall(r"by ([−+][\d.]+) nats", told)[0]) == pytest.approx(-values[2][1], abs=1e-9)
    expect(panel.locator(".tl-patch")).to_be_visible()
    panel.locator(".tl-opacity input").fill("0.3")
    assert panel.locator(".tl-heat").evaluate("canvas => getComputedStyle(canvas).opacity") == "0.3"
    button = panel.get_by_role("button", name="Occlusion map")
    button.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "false")
    expect(panel.locator(".tl-heat")).to_be_hidden(timeout=WAIT)
    assert panel.locator(".tl-places button").first.is_hidden()
    # No map is asked for while it is put away; it comes when it is wanted.
    page.get_by_role("button", name="rose").click()
    expect(panel.locator(".tl-caption")).to_have_text(caption("rose"), timeout=WAIT)
    expect(page.locator("#slots-panel .tl")).to_have_attribute("aria-busy", "false", timeout=WAIT)
    assert panel.locator(".tl-heat").is_hidden()
    button.click()
    explained(page)
    rose = tinylm.image_to_tensor(painter.paint("rose", EXAMPLE_SEED + 2, EXAMPLE_SIZE), shipped.size)[None]
    expected = occlusion_map(shipped.captioner, rose, "rose", 8)
    torch.testing.assert_close(torch.tensor(shown_map(page)), expected, atol=6e-5, rtol=0)


@pytest.mark.browser
def test_the_blank_card_is_no_flower(page: Page) -> None:
    page.get_by_role("button", name="grey card").click()
    verdict = page.locator("#caption-panel .tl-verdict")
    expect(verdict).to_contain_text("The blank card test is passed", timeout=WAIT)
    expect(verdict).to_contain_text("doesn't look like a flower the model knows", timeout=WAIT)
    expect(verdict).to_have_attribute("data-flower", "false")
    explained(page)


@pytest.mark.browser
def test_a_picture_is_pasted_from_the_clipboard(
    page: Page, pictures: list[Image.Image], context: BrowserContext
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    file = BytesIO()
    pictures[0].save(file, "PNG")
    page.evaluate(
        """async (coded) => {
            const bytes = Uint8Array.from(atob(coded), (c) => c.charCodeAt(0));
            const item = new ClipboardItem({ "image/png": new Blob([bytes], { type: "image/png" }) });
            await navigator.clipboard.write([item]);
        }""",
        b64encode(file.getvalue()).decode(),
    )
    before = page.locator("#caption-picture img").get_attribute("src")
    page.get_by_label("Remove Image").click()
    page.get_by_label("Paste from clipboard").click()
    expect(page.locator("#caption-picture img")).not_to_have_attribute("src", before or "", timeout=WAIT)
    page.locator("#caption-run").click()
    status = page.locator("#caption-panel .tl-status")
    expect(status).to_contain_text("The model gives this whole caption", timeout=WAIT)
    explained(page)


@pytest.mark.browser
def test_an_example_can_be_captioned_again_at_once(page: Page, pictures: list[Image.Image], tmp_path: Path) -> None:
    status = page.locator("#caption-panel .tl-status")
    page.evaluate(
        """() => {
            const node = document.querySelector("#caption-panel .tl-status");
            window.seen = [];
            new MutationObserver(() => window.seen.push(node.textContent)).observe(node, { childList: true });
        }"""
    )
    held: list[Route] = []
    page.route("**/gradio_api/run/predict", lambda route: held.append(route))  # the picture is late in its field
    page.get_by_role("button", name="rose").click()
    page.locator("#caption-run").click()
    page.wait_for_timeout(300)
    expect(page.locator("#caption-panel .tl-caption")).to_have_text(caption("rose"), timeout=WAIT)
    expect(status).to_contain_text("The model gives this whole caption", timeout=WAIT)
    expect(page.locator("#slots-panel .tl-label")).to_have_text("rose", timeout=WAIT)
    expect(page.locator("#caption-picture img")).not_to_have_attribute("src", re.compile("rose"), timeout=WAIT)
    for route in held:
        route.continue_()
    expect(page.locator("#caption-picture img")).to_have_attribute("src", re.compile("rose"), timeout=WAIT)
    page.unroute("**/gradio_api/run/predict")
    assert not [text for text in page.evaluate("window.seen") if "choose a picture" in text]
    # A visitor's own picture takes the example's place.
    pictures[0].save(tmp_path / "own.png")
    page.get_by_label("Remove Image").click()
    expect(status).to_have_text("Please choose a picture first.", timeout=WAIT)
    expect(page.locator("#slots-panel .tl")).to_be_hidden(timeout=WAIT)
    page.locator("#caption-run").click()
    page.wait_for_timeout(300)
    expect(status).to_have_text("Please choose a picture first.", timeout=WAIT)
    page.locator("#caption-picture input[type=file]").set_input_files(tmp_path / "own.png")
    expect(page.locator("#caption-panel .tl-caption")).to_have_text(caption("tulip"), timeout=WAIT)
    page.locator("#caption-run").click()
    expect(status).to_contain_text("The model gives this whole caption", timeout=WAIT)
    expect(page.locator("#caption-panel .tl-caption")).to_have_text(caption("tulip"), timeout=WAIT)
    explained(page)


@pytest.mark.browser
def test_the_download_holds_the_run(page: Page, shipped: Known) -> None:
    panel = explained(page)
    panel.get_by_role("button", name="Mute slot 1").click()
    expect(panel.locator(".tl-changed-how")).to_contain_text("slot 1 muted", timeout=WAIT)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download this run").locator("visible=true").click()
    run = json.loads(Path(download.value.path()).read_text())
    service = Service(RunFolders(SHIPPED))
    *_, update = captioned(service, painter.paint("tulip", EXAMPLE_SEED, EXAMPLE_SIZE))
    assert {key: run[key] for key in update.result} == update.result
    assert run["weights"] == service.weights("vision") and run["example"] == "tulip"
    assert run["tokens"] == update.page["tokens"] and run["threshold"] == update.page["threshold"]
    assert (run["slots"]["other"], run["slots"]["chosen"]) == ("sunflower", {"muted": [0], "swapped": []})
    expected = slot_effects(shipped.captioner, shipped.images[0], "tulip")
    assert [e["logprob"] for e in run["slots"]["muted"]] == pytest.approx([e.logprob for e in expected], abs=2e-5)
    assert len(run["slots"]["map"]) == 8 and "pixels" not in json.dumps(run)


@pytest.mark.browser
def test_the_tab_fits_a_narrow_window(page: Page) -> None:
    page.set_viewport_size({"width": 320, "height": 700})
    explained(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def ask_as_a_stranger(address: str, data: Any) -> dict[str, Any]:
    """What the slots panel would be told if a script of somebody else's asked."""
    with urllib.request.urlopen(f"{address}config", timeout=WAIT) as answer:
        config = json.load(answer)
    panel = next(c["id"] for c in config["components"] if c["props"].get("elem_id") == "slots-panel")
    asked = next(d["id"] for d in config["dependencies"] if [panel, "click"] in [list(t) for t in d["targets"]])
    session = f"stranger{time.time_ns()}"
    body = {"data": [None], "event_data": data, "fn_index": asked, "session_hash": session, "trigger_id": panel}
    request = urllib.request.Request(
        f"{address}gradio_api/queue/join", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=30).close()
    with urllib.request.urlopen(f"{address}gradio_api/queue/data?session_hash={session}", timeout=60) as stream:
        for line in stream:
            message = json.loads(line.decode().removeprefix("data:")) if line.startswith(b"data:") else {}
            if message.get("msg") in ("process_generating", "process_completed"):
                return message["output"]["data"][0]
    raise AssertionError("no answer")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "no example of that name"),
        ([], "no example of that name"),
        ({"example": "/etc/hostname", "other": "rose"}, "no example of that name"),
        ({"example": "rose", "other": "../rose"}, "no example of that name"),
        ({"example": ["rose"], "other": "rose"}, "no example of that name"),
        ({"example": "rose", "other": {"rose": 1}}, "no example of that name"),
        ({"other": "rose"}, "choose a picture"),
        ({"example": "rose", "other": "tulip", "of": "x"}, "must be a number"),
        ({"example": "rose", "other": "tulip", "of": 10**30}, "must be a number"),
        ({"example": "rose", "other": "tulip", "muted": [99]}, "number of a slot"),
        ({"example": "rose", "other": "tulip", "muted": {"0": 1}}, "name at most 4 slots"),
    ],
)
def test_what_a_stranger_asks_is_checked(address: str, data: Any, said: str) -> None:
    value = ask_as_a_stranger(address, data)
    assert value["state"] == "error" and said in value["message"] and json.loads(value["rest"])["result"] == {}


@pytest.mark.browser
def test_markup_in_labels_is_shown_as_it_is(page: Page, served: Path) -> None:
    metrics = served / "vision" / "metrics.json"
    info = json.loads(metrics.read_text())
    metrics.write_text(json.dumps({**info, "labels": MARKUP}))
    page.get_by_role("button", name="rose").click()
    panel = page.locator("#caption-panel")
    expect(panel.locator(".tl-labels li")).to_have_count(len(MARKUP), timeout=WAIT)
    shown = panel.locator(".tl-labels .tl-bar-label").all_text_contents()
    assert sorted(shown) == sorted(MARKUP)
    expect(panel.locator(".tl-checks")).to_contain_text(f"scores best, {shown[0]}.", timeout=WAIT)
    slots = explained(page)
    expect(slots.locator(".tl-label")).to_have_text(shown[0], timeout=WAIT)
    assert page.locator("#caption-panel figure img, #caption-panel .tl-split img, #slots-panel img").count() == 0
