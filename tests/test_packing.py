"""What the server packs for a panel is what the panel's script unpacks, at every update of a run."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from serve import ROOT

from tinylm.ui.packing import Packing

ODD = 'a\nb\u2028 "c" \\ `${alert(1)}` {{x}} <img src=x onerror=alert(1)> 你🎉 </script>'


def values(run: int, n_updates: int) -> list[dict[str, Any]]:
    """A run's values as the tabs make them: some entries grow, some change, some stay."""
    found: list[dict[str, Any]] = []
    value: dict[str, Any] = {"run": run, "state": "running", "message": "", "result": {}, "page": {}}
    for n in range(n_updates):
        tokens = [{"text": f"{ODD}{i}", "alternatives": [[ODD, 0.5], ["", 0.25]]} for i in range(2 * n)]
        value["result"] = {"text": ODD * n, "tokens": tokens, "load": [[0.1 * n, 1 - 0.1 * n]], "loss": None}
        value["page"] = {
            "prompt": [{"text": ODD, "known": False}],
            "latents": "AAECAw==" * n,
            "alternative_ids": [[1, 2]] * n,
        }
        found.append(copy.deepcopy(value))
    found.append(found[-1] | {"state": "done"})
    return found


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    page.add_script_tag(path=ROOT / "tinylm" / "ui" / "widgets" / "draw.js")
    yield page
    page.close()


@pytest.mark.browser
def test_the_browser_gets_back_what_was_packed_run_after_run_and_in_between(page: Page) -> None:
    # Two runs take turns, as those of two panels do; one value is looked at twice, and late ones come at last.
    runs = [values(1, 4), values(2, 6)]
    packings = [Packing(), Packing()]
    packed = [[packing.pack(value) for value in run] for packing, run in zip(packings, runs, strict=True)]
    order = [(0, 0), (1, 0), (0, 1), (0, 1), (1, 1), (1, 3), (0, 2), (1, 5), (1, 6), (0, 3), (0, 4), (1, 6)]
    for run, n in order:
        assert page.evaluate("value => tinylm.unpacked(value)", packed[run][n]) == runs[run][n]


@pytest.mark.browser
def test_the_browser_still_knows_a_run_after_many_others(page: Page) -> None:
    (first, *_), packed = values(100, 3)[2:], Packing().pack(values(100, 3)[2])
    assert page.evaluate("value => tinylm.unpacked(value)", packed) == first
    for run in range(101, 140):
        page.evaluate("value => tinylm.unpacked(value)", Packing().pack(values(run, 2)[1]))
    assert page.evaluate("value => tinylm.unpacked(value)", packed) == first


def test_what_grows_is_sent_on_as_text_that_grows_and_has_few_leaves() -> None:
    packing, before = Packing(), {"tokens": "", "latents": "", "alternative_ids": ""}
    for value in values(3, 5):
        packed = packing.pack(value)
        assert all(isinstance(leaf, (str, int)) for leaf in packed.values())
        for key, text in before.items():
            assert packed[key].startswith(text)
            before[key] = packed[key]
    assert [json.loads(line)["text"] for line in before["tokens"].split("\n")[:-1]] == [f"{ODD}{i}" for i in range(8)]
