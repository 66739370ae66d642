"""What docs/SECURITY.md says is what was measured, and what it names is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from soak.figures import BEGIN, END, as_table, put_into_docs

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "SECURITY.md"


def test_the_figures_are_those_of_the_last_long_run() -> None:
    report = json.loads((ROOT / "benchmarks" / "results" / "soak.json").read_text(encoding="utf-8"))
    assert f"{BEGIN}\n{as_table(report)}\n{END}" in PAGE.read_text(encoding="utf-8")
    assert {test["outcome"] for test in report["tests"].values()} == {"passed"}
    assert report["seconds"] <= report["limit_seconds"]


def test_a_new_run_replaces_the_table_alone(tmp_path: Path) -> None:
    report = {
        "machine": {"cpu": "AMD EPYC", "cores": 2, "commit": "abc", "clean": True},
        "date": "2026-01-01 00:00 UTC",
        "seconds": 12.0,
        "tests": {
            "tests/a.py::test_one_thing": {
                "outcome": "passed",
                "seconds": 3.2,
                "figures": {"growth": {"value": 1.5, "limit": 50, "unit": "MB"}, "moment": {"value": "start-up"}},
            }
        },
    }
    path = tmp_path / "page.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    put_into_docs(report, path)
    put_into_docs(report, path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n2026-01-01") and text.endswith(f"{END}\nafter\n") and "old" not in text
    assert "| **one thing** | passed in 3 s | |\n| growth | 1.5 MB | 50 MB |\n| moment | start-up" in text


NAMED = set(re.findall(r"`((?:tinylm|tests)/[\w/.]+|test_\w+\.py)`", PAGE.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", sorted(NAMED))
def test_what_is_named_is_there(name: str) -> None:
    assert (ROOT / name).exists() or (ROOT / "tests" / name).exists()
