"""Shared by the benchmarks: candidates measured in turn, what they ran on, a table and a JSON file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def in_turn(candidates: Mapping[str, Callable[[], float]], rounds: int = 5) -> dict[str, list[float]]:
    """What each candidate returns in every round, after one call that does not count.

    Each round calls every candidate once, so that a machine that gets slower does so for all alike.
    """
    for candidate in candidates.values():
        candidate()
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            found[name].append(candidate())
    return found


def ratio(found: Mapping[str, Sequence[float]], name: str, against: str) -> float:
    """The median over the rounds of one candidate's number divided by another's."""
    return statistics.median(a / b for a, b in zip(found[name], found[against], strict=True))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _git("rev-parse", "--short", "HEAD"),
        "clean": _git("status", "--porcelain", "--untracked-files=no") == "",
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print aligned columns."""
    shown = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in shown) for i in range(len(header))]
    for row in shown:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


def write(name: str, report: Mapping[str, Any]) -> None:
    """Put a report into benchmarks/results."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
