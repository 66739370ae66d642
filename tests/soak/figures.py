"""What a case measured, each figure with the limit that it has to keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


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
