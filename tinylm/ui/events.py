"""Between the service and gradio: updates as the page's and the API's streams, errors as sentences, a line of log each.

A run lives in a thread of its own: one that waits for its place, or whose step takes long, keeps none of gradio's
threads and none of its turns, and it ends at its next step when nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator, Hashable, Iterator, Sequence
from contextlib import aclosing, closing, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import gradio as gr
from gradio.context import LocalContext

from tinylm.ui.limits import Left, Refused, Visit
from tinylm.ui.models import Unavailable
from tinylm.ui.packing import Packing
from tinylm.ui.service import Service, Update
from tinylm.ui.service.common import n_tokens

STREAMS: dict[str, Any] = {
    "preprocess": False,  # the service checks everything itself, and says so in words
    "concurrency_limit": None,  # runs wait for the app's own places, where they go round between visitors
    "show_progress": "hidden",
}
"""How gradio runs an event that asks a model."""
BROKEN = "Something went wrong on this side. Please try again; the server's log tells more."
MAX_SESSIONS = 1000
MAX_UNREAD = 6
"""Messages of a session that wait to be read; while there are so many, a run's further updates are skipped."""
SECONDS_BETWEEN_LOOKS = 0.1
"""How often a run that has nothing to tell, such as one that waits for its place, looks whether anyone still waits."""
SECONDS_BEFORE_NOTICE = 0.3
"""A run that got no place for so long tells the page that it waits for one."""

T = TypeVar("T")
Answer = Callable[[Service], Iterator[Update]]

log = logging.getLogger("tinylm")


# From the time on, so that a page that stays open over a restart of the server sees larger numbers.
_numbers = itertools.count(time.time_ns() // 1000)


class Turns:
    """The newest run of each visitor and tab; an older one ends at its next step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: OrderedDict[tuple[str | None, str], int] = OrderedDict()

    def begin(self, session: str | None, tab: str) -> Callable[[], bool]:
        """Start a run; the function returned tells whether it is still the newest."""
        key, run = (session, tab), run_number()
        with self._lock:
            self._newest[key] = run
            self._newest.move_to_end(key)
            while len(self._newest) > MAX_SESSIONS:
                self._newest.popitem(last=False)
        return lambda: self._newest.get(key, run) == run


def run_number() -> int:
    """Grows from run to run; the page drops what comes late from an older one."""
    return next(_numbers)


class Told:
    """What a request came to, for its line of log: nothing of what was asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcome = "stopped"
        self.n_tokens = 0
        self._began = time.perf_counter()

    def write(self) -> None:
        """Log it."""
        seconds = time.perf_counter() - self._began
        log.info("%s %s %.3f s %d tokens", self.name, self.outcome, seconds, self.n_tokens)


def for_page(
    updates: Iterator[Update], visit: Visit | None = None, told: Told | None = None, opening: bool = False
) -> Iterator[dict[str, Any]]:
    """A widget's values, packed: `run`, `state` (running, done, error), `message`, the update's `result` and `page`.

    Before them `page_run` may put one whose state is waiting, with nothing in it. `opening` marks an example that was
    made before anyone asked.
    """
    visit, told = visit or Visit(), told or Told("opening")
    value: dict[str, Any] = {"run": run_number(), "state": "running", "message": "", "result": {}, "page": {}}
    packing, marks = Packing(), {"opening": True} if opening else {}

    def packed(**changed: Any) -> dict[str, Any]:
        return packing.pack(value | {"page": value["page"] | marks} | changed)

    try:
        with closing(cast(Generator[Update, None, None], updates)):
            for update in updates:
                if visit.is_over():
                    return
                told.n_tokens = n_tokens(update)
                value |= {"result": update.result, "page": update.page}
                if update.last:
                    value["state"], told.outcome = "done", "done"
                yield packed()
        if value["state"] != "done":
            told.outcome = "done"
            yield packed(state="done")
    except (Refused, Unavailable) as error:
        told.outcome = "refused"
        yield packed(state="error", message=str(error))
    except Left:
        return
    except Exception as error:
        told.outcome = f"failed ({_where(error)})"
        yield packed(state="error", message=BROKEN)


def for_api(updates: Iterator[Update], told: Told) -> Iterator[dict[str, Any]]:
    """The API's JSON objects. Raises gr.Error with a sentence."""
    try:
        with closing(cast(Generator[Update, None, None], updates)):
            for update in updates:
                told.n_tokens = n_tokens(update)
                if update.last:
                    told.outcome = "done"
                yield update.result
        told.outcome = "done"
    except (Refused, Unavailable) as error:
        told.outcome = "refused"
        raise gr.Error(str(error), print_exception=False) from None
    except Left:
        return
    except Exception as error:
        told.outcome = f"failed ({_where(error)})"
        raise gr.Error(BROKEN, print_exception=False) from None


async def page_run(
    service: Service, turns: Turns, name: str, answer: Answer, tab: str | None = None, ends: Sequence[str] = ()
) -> AsyncGenerator[dict[str, Any], None]:
    """`for_page` of an answer to the request that gradio is serving. `name` is for the log.

    The visitor's older run of the same `tab` ends, and so do those of the tabs that this one `ends`.
    """
    caller = Caller.now()
    for other in ends:
        turns.begin(caller.session, other)
    is_newest = turns.begin(caller.session, tab) if tab else lambda: True
    visit, told = Visit(caller.visitor, lambda: caller.has_gone() or not is_newest()), Told(name)
    # Numbered before the run's own values, which may come right behind it.
    notice = Packing().pack({"run": run_number(), "state": "waiting", "message": "", "result": {}, "page": {}})
    updates = for_page(answer(service.of(visit)), visit, told)
    async with aclosing(_in_a_thread(updates, caller, visit, told, notice)) as values:
        async for value in values:
            yield value


async def api_run(service: Service, name: str, answer: Answer) -> AsyncGenerator[dict[str, Any], None]:
    """`for_api` of an answer to the request that gradio is serving."""
    caller = Caller.now()
    visit, told = Visit(caller.visitor, caller.has_gone), Told(name)
    async with aclosing(_in_a_thread(for_api(answer(service.of(visit)), told), caller, visit, told)) as values:
        async for value in values:
            yield value


class Caller(NamedTuple):
    """Who asks, by what gradio knows of the request that it is serving."""

    session: str | None
    visitor: Hashable
    has_gone: Callable[[], bool]
    n_unread: Callable[[], int]  # messages for the session that wait to be read

    @classmethod
    def now(cls) -> Caller:
        """The caller of the function that gradio is in."""
        request, blocks, event_id = LocalContext.request.get(), LocalContext.blocks.get(), LocalContext.event_id.get()
        assert request is not None and blocks is not None and event_id is not None  # every run comes by the queue
        session, event = request.session_hash, blocks._queue.event_ids_to_events.get(event_id)
        unread = blocks._queue.pending_messages_per_session.get(session)
        # gradio names a session that has no name after its one event.
        address = request.client.host if request.client else ""
        visitor = ("session", session) if session and session != event_id else ("address", address)
        return cls(
            session,
            visitor,
            lambda: event is None or not event.alive,
            lambda: unread.qsize() if unread else 0,
        )


async def _in_a_thread(
    values: Iterator[T], caller: Caller, visit: Visit, told: Told, notice: T | None = None
) -> AsyncGenerator[T, None]:
    """What a generator yields, each value made when it is asked for; logs the request when it is over.

    `notice` comes first if the run has to wait for its place.
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Queue[tuple[Literal["notice", "value", "end"], Any]] = asyncio.Queue()
    asked = threading.Semaphore(0)
    timer: asyncio.TimerHandle | None = None
    noticed_from = loop.time() + SECONDS_BEFORE_NOTICE

    def hand(kind: Literal["value", "end"], what: Any) -> None:
        with suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(ready.put_nowait, (kind, what))

    def work() -> None:
        error = None
        try:
            with closing(cast(Generator[T, None, None], values)):
                for value in values:
                    hand("value", value)
                    asked.acquire()
                    if visit.is_over():
                        break
        except BaseException as raised:
            error = raised
        told.write()
        hand("end", error)

    def look() -> None:
        nonlocal timer, notice
        if visit.is_over():
            visit.leave()
        elif notice is not None and visit.waits() and loop.time() >= noticed_from:
            ready.put_nowait(("notice", notice))
            notice = None
        timer = loop.call_later(SECONDS_BETWEEN_LOOKS, look)

    look()
    threading.Thread(target=contextvars.copy_context().run, args=(work,), name="tinylm run", daemon=True).start()
    skipped: list[T] = []
    try:
        while True:
            kind, what = await ready.get()
            if kind == "end":
                break
            if kind == "notice":
                yield what
                continue
            if caller.n_unread() < MAX_UNREAD:
                skipped.clear()
                yield what
            else:
                skipped[:] = [what]
            asked.release()
        if what is not None:
            raise what
        for value in skipped:  # the last one is told in any case
            yield value
    finally:
        if timer:
            timer.cancel()
        visit.leave()
        asked.release()


def _where(error: BaseException) -> str:
    """The kind of an error and the places in the code that it passed; what it says may quote the visitor."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    places = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__} at {places}"


class Opening:
    """The finished example that a tab opens with: computed by the model, anew when its files change."""

    def __init__(self, stamp: Callable[[], Any], compute: Callable[[], Iterator[Update]]) -> None:
        self._stamp, self._compute = stamp, compute
        self._lock = threading.Lock()
        self._made: tuple[Any, dict[str, Any]] | None = None
        self._built = self.value()

    def built(self) -> dict[str, Any]:
        """The value that the page is built with."""
        return self._built

    def value(self) -> dict[str, Any]:
        """The widget's value."""
        with self._lock:
            stamp = self._stamp()
            if self._made is None or self._made[0] != stamp:
                *_, value = for_page(self._compute(), opening=True)
                self._made = (stamp, value)
            return self._made[1]

    def refresh(self) -> Any:
        """The widget's value if the model changed since the page was built, else nothing to do."""
        value = self.value()
        return gr.skip() if value is self._built else value
