"""Run every test marked soak and keep what they measured: `python tests/soak [pytest's arguments]`.

benchmarks/results/soak.json gets, for each test, its outcome, how long it took, and its figures with their limits;
and the table of figures in docs/SECURITY.md is made from it.
"""

from __future__ import annotations

import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# In place of this folder, whose modules are those of the package `soak`.
sys.path[:1] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]
from measure import machine, table, write  # noqa: E402

from soak.figures import put_into_docs  # noqa: E402

LIMIT_SECONDS = 15 * 60
"""On two cores, for all of it together."""


class Figures:
    """A pytest plugin: gathers what the tests record, and begins no test once the time is over."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def pytest_runtest_setup(self) -> None:
        if self.seconds > LIMIT_SECONDS:
            pytest.fail(f"the {LIMIT_SECONDS} s for the whole of it are over", pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0, "figures": {}})
        test["seconds"] = round(test["seconds"] + report.duration, 1)
        if report.outcome != "passed":
            test["outcome"] = report.outcome
        if report.when == "call":
            told = dict(report.user_properties)
            test["figures"] = {k: v if isinstance(v, dict) else {"value": v} for k, v in told.items()}


def main(arguments: list[str]) -> int:
    """pytest's exit status, or 1 if it took too long."""
    where, figures = machine(), Figures()
    status = pytest.main(
        ["--rootdir", str(ROOT), "-m", "soak", *(arguments or [str(ROOT / "tests")])], plugins=[figures]
    )
    seconds = round(figures.seconds, 1)
    for name, test in figures.tests.items():
        print(f"\n{name}: {test['outcome']} in {test['seconds']} s")
        columns = ("value", "limit", "unit")
        rows = [(name, *(figure.get(column) for column in columns)) for name, figure in test["figures"].items()]
        table(("figure", *columns), rows)
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    report = {
        "machine": where,
        "date": date,
        "seconds": seconds,
        "limit_seconds": LIMIT_SECONDS,
        "tests": figures.tests,
    }
    if not arguments:  # figures of some tests would look like those of all
        write("soak", report)
        put_into_docs(report, ROOT / "docs" / "SECURITY.md")
    print(f"{len(figures.tests)} tests in {seconds} s; {LIMIT_SECONDS} s are allowed")
    return int(status) or int(seconds > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
