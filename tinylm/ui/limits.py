"""What a run may take, and the checks on what visitors send."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_RUNNING = 2
"""Runs at the same time; the others wait."""
MAX_SECONDS = 30.0
"""A run ends after this long, finished or not."""
MAX_CHARACTERS = 10_000
"""Of a prompt."""
MAX_NEW_TOKENS = 256
MAX_TEMPERATURE = 2.0
MAX_SEED = 2**32 - 1


class Refused(Exception):
    """What a visitor sent can't be used; the message is a sentence for them."""


class Slots:
    """Places for runs, handed out one by one."""

    def __init__(self, count: int = MAX_RUNNING) -> None:
        self._places = threading.BoundedSemaphore(count)

    @contextmanager
    def take(self, wait: float = MAX_SECONDS) -> Iterator[Deadline]:
        """Hold a place for the block. Raises Refused when none is free within `wait` seconds."""
        if not self._places.acquire(timeout=wait):
            raise Refused("All places are taken right now. Please try again in a minute.")
        try:
            yield Deadline()
        finally:
            self._places.release()


class Deadline:
    """When a run must have ended."""

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raises Refused once the time is over."""
        if time.monotonic() > self._end:
            raise Refused(f"This run was ended after {MAX_SECONDS:.0f} seconds.")


def prompt(value: Any) -> str:
    """A text to continue; characters that can't travel (NUL, lone surrogates) become U+FFFD."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Refused("The prompt must be text.")
    if len(value) > MAX_CHARACTERS:
        raise Refused(f"The prompt has {len(value):,} characters; at most {MAX_CHARACTERS:,} are read.")
    return "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in value)


def number(value: Any, name: str, low: float, high: float, default: float) -> float:
    """A finite number from `low` to `high`; None gives the default. Raises Refused in words."""
    if value is None:
        return default
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # NaN fails every comparison
        raise Refused(f"{name} must be a number from {low:g} to {high:,.10g}.")
    return value


def whole(value: Any, name: str, low: int, high: int, default: int) -> int:
    """A whole number from `low` to `high`; None gives the default. Raises Refused in words."""
    checked = number(value, name, low, high, default)
    if checked != int(checked):
        raise Refused(f"{name} must be a whole number, not {checked:g}.")
    return int(checked)
