"""What a case measured, each figure with the limit that it has to keep; and the table of them for the docs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

BEGIN, END = "<!-- figures of make soak -->", "<!-- end of figures -->"


class Figure(NamedTuple):
    """`value` may not be over `limit`; None is a figure without a limit, told only."""

    value: float
    limit: float | None = None
    unit: str = ""


def hold(record: Callable[[str, object], None], figures: dict[str, Figure], wrong: list[str] | None = None) -> None:
    """Record all figures of a test, then fail if any is over its limit; `wrong` tells what the counts are of."""
    for name, figure in figures.items():
        record(name, {"value": round(figure.value, 3), "limit": figure.limit, "unit": figure.unit})
    over = [
        f"{n}: {f.value:.6g} > {f.limit:g}"
        for n, f in figures.items()
        if f.limit is not None and not f.value <= f.limit
    ]
    assert not over, "\n".join([*over, *(wrong or [])[:10]])


def percentile(values: list[float], share: float) -> float:
    """The value that this share of the values are not above."""
    return sorted(values)[max(0, min(len(values), round(share * len(values) + 0.5)) - 1)]


def as_table(report: Mapping[str, Any]) -> str:
    """The figures of soak.json in Markdown, a row each."""
    where = report["machine"]
    tree = "" if where["clean"] else ", with changes"
    rows = [
        f"{report['date']}, {where['cores']} cores of an {where['cpu']}, commit {where['commit']}{tree}: "
        f"{len(report['tests'])} tests in {report['seconds']:.0f} s.",
        "",
        "| what | measured | at most |",
        "|---|---|---|",
    ]
    for test, found in report["tests"].items():
        name = test.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        rows.append(f"| **{name}** | {found['outcome']} in {found['seconds']:.0f} s | |")
        for figure, told in found["figures"].items():
            value, limit, unit = told.get("value"), told.get("limit"), told.get("unit") or ""
            measured = f"{value:g} {unit}" if isinstance(value, (int, float)) else str(value)
            at_most = "" if limit is None else f"{limit:g} {unit}"
            rows.append(f"| {figure} | {measured.strip()} | {at_most.strip()} |")
    return "\n".join(rows)


def put_into_docs(report: Mapping[str, Any], path: Path) -> None:
    """Replace the table between the two marks in a Markdown file."""
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    new = pattern.sub(lambda _: f"{BEGIN}\n{as_table(report)}\n{END}", text)
    path.write_text(new, encoding="utf-8")
