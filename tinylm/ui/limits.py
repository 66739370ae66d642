"""What a run may take, and the checks on what visitors send.

A visitor is a session of the page, or of a client that names one; calls that name none are one visitor for each
address they come from. Who opens many sessions is many visitors: then the length of the queue and the deadline bound
what they take.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

MAX_RUNNING = 3
"""Runs at the same time. One visitor has all but one of these places at most, so that nobody holds every place."""
MAX_WAITING = 64
"""Runs that wait for a place; what comes when so many wait is refused."""
MAX_WAITING_EACH = 48
"""Of them one visitor's."""
MAX_REMEMBERED = 1000
"""Visitors of whom it is known when they last got a place."""
MAX_SECONDS_WAITING = 120.0
"""A run that got no place for so long is refused."""
MAX_SECONDS = 30.0
"""A run ends after this long, finished or not."""
MAX_CHARACTERS = 10_000
"""Of a prompt."""
MAX_NEW_TOKENS = 256
MAX_TEMPERATURE = 2.0
MAX_SEED = 2**32 - 1

# Control characters but tab, line feed and carriage return; marks that turn the direction of writing; lone surrogates.
UNSHOWABLE = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Refused(Exception):
    """What a visitor sent can't be used; the message is a sentence for them."""


class Left(Exception):
    """Nobody waits for this run any more."""


class Visit:
    """One request: whose it is, and whether anyone still waits for its answer."""

    def __init__(self, visitor: Hashable = None, gone: Callable[[], bool] = lambda: False) -> None:
        self.visitor = visitor
        self._gone = gone
        self._has_left = False
        self._wake: Callable[[], None] | None = None  # while it waits for a place

    def leave(self) -> None:
        """End the run at its next step, or now if it is still waiting for a place."""
        self._has_left = True
        if (wake := self._wake) is not None:
            wake()

    def is_over(self) -> bool:
        """Whether nobody waits for the answer."""
        return self._has_left or self._gone()

    def waits(self) -> bool:
        """Whether the run waits for a place."""
        return self._wake is not None

    @contextmanager
    def woken(self, wake: Callable[[], None]) -> Iterator[None]:
        """Within the block, in which the run waits for a place, `leave` calls `wake`."""
        self._wake = wake
        try:
            yield
        finally:
            self._wake = None


class Slots:
    """Places for runs: they go round between visitors, and first come first served within a visitor's own runs."""

    def __init__(self, count: int = MAX_RUNNING) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._running: Counter[Hashable] = Counter()  # places held, by visitor
        self._waiting: list[_Ticket] = []  # in order of arrival
        # When each visitor last got a place, in this order: who has had none for longest is next.
        self._last: dict[Hashable, int] = {}
        self._turns = itertools.count()

    @contextmanager
    def take(self, wait: float = MAX_SECONDS_WAITING, visit: Visit | None = None) -> Iterator[Deadline]:
        """Hold a place for the block. Raises Refused when too many wait, or when none is free within `wait` seconds."""
        visit = visit or Visit()
        ticket = self._join(visit.visitor)
        try:
            with visit.woken(ticket.turn.set):
                if not visit.is_over() and not ticket.turn.wait(wait):
                    raise Refused("All places are taken right now. Please try again in a minute.")
            deadline = Deadline(visit=visit)
            deadline.check()
            yield deadline
        finally:
            self._leave(ticket)

    def of(self, visit: Visit) -> SlotsOf:
        """These places, as one request takes them."""
        return SlotsOf(self, visit)

    def counts(self) -> tuple[int, int]:
        """Runs that hold a place, and runs that wait for one."""
        with self._lock:
            return self._running.total(), len(self._waiting)

    def _join(self, visitor: Hashable) -> _Ticket:
        ticket = _Ticket(visitor)
        with self._lock:
            is_free = self._running.total() < self._count and self._running[visitor] < self._share
            n_own = sum(other.visitor == visitor for other in self._waiting)
            if not is_free and (len(self._waiting) >= MAX_WAITING or n_own >= MAX_WAITING_EACH):
                raise Refused("Too many runs wait for a place right now. Please try again in a minute.")
            self._waiting.append(ticket)
            self._hand_out()
        return ticket

    def _leave(self, ticket: _Ticket) -> None:
        visitor = ticket.visitor
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            else:
                self._running[visitor] -= 1
            if not self._running[visitor]:
                del self._running[visitor]
            self._hand_out()

    def _hand_out(self) -> None:
        while self._running.total() < self._count:
            able = [ticket for ticket in self._waiting if self._running[ticket.visitor] < self._share]
            if not able:
                return
            ticket = min(able, key=lambda ticket: self._last.get(ticket.visitor, -1))  # of equals, who came first
            self._waiting.remove(ticket)
            self._running[ticket.visitor] += 1
            self._last.pop(ticket.visitor, None)
            self._last[ticket.visitor] = next(self._turns)
            if len(self._last) > MAX_REMEMBERED:
                del self._last[next(iter(self._last))]
            ticket.turn.set()

    @property
    def _share(self) -> int:
        return max(1, self._count - 1)


class _Ticket:
    """A run's place in the queue; `turn` is set when it may go on."""

    def __init__(self, visitor: Hashable) -> None:
        self.visitor = visitor
        self.turn = threading.Event()


class SlotsOf:
    """Places as one request takes them."""

    def __init__(self, slots: Slots, visit: Visit) -> None:
        self._slots, self._visit = slots, visit

    @contextmanager
    def take(self) -> Iterator[Deadline]:
        """Hold a place for the block. Raises Refused as `Slots.take` does, and Left when nobody waits any more."""
        with self._slots.take(visit=self._visit) as deadline:
            yield deadline


class Deadline:
    """When a run must have ended: its time is over, or nobody waits for it."""

    def __init__(self, seconds: float = MAX_SECONDS, visit: Visit | None = None) -> None:
        self._end = time.monotonic() + seconds
        self._visit = visit

    def check(self) -> None:
        """Called before each step. Raises Refused once the time is over, and Left when nobody waits any more."""
        if time.monotonic() > self._end:
            raise Refused(f"This run was ended after {MAX_SECONDS:.0f} seconds.")
        if self._visit is not None and self._visit.is_over():
            raise Left


def shown(text: str) -> str:
    """A text as any page and any terminal can show it, of the same length.

    One rule for characters that can't be shown as they are: each becomes U+FFFD. These are the control characters (but
    tab, line feed and carriage return), NUL among them; the marks that turn the direction of writing (U+061C, U+200E,
    U+200F, U+202A to U+202E, U+2066 to U+2069), which would let a text look like another; and lone surrogates, which no
    UTF-8 can carry. Letters of any script are left alone, those written from right to left too.
    """
    return UNSHOWABLE.sub("\ufffd", text)


def prompt(value: Any) -> str:
    """A text to continue, `shown`; None is an empty one. Raises Refused in words."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Refused("The prompt must be text.")
    if len(value) > MAX_CHARACTERS:
        raise Refused(f"The prompt has {len(value):,} characters; at most {MAX_CHARACTERS:,} are read.")
    return shown(value)


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
