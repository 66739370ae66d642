"""Between the service and gradio: updates as the page's and the API's streams, errors as sentences."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, cast

import gradio as gr

from tinylm.ui.limits import Refused
from tinylm.ui.models import Unavailable
from tinylm.ui.packing import Packing
from tinylm.ui.service import Update

CONCURRENCY_ID = "model"
BROKEN = "Something went wrong on this side. Please try again; the server's log tells more."
MAX_SESSIONS = 1000

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


def for_page(
    updates: Iterator[Update], is_newest: Callable[[], bool] = lambda: True, opening: bool = False
) -> Iterator[dict[str, Any]]:
    """A widget's values, packed: `run`, `state` (running, done, error), `message`, the update's `result` and `page`.

    `opening` marks an example that was made before anyone asked.
    """
    value: dict[str, Any] = {"run": run_number(), "state": "running", "message": "", "result": {}, "page": {}}
    packing, marks = Packing(), {"opening": True} if opening else {}

    def packed(**changed: Any) -> dict[str, Any]:
        return packing.pack(value | {"page": value["page"] | marks} | changed)

    try:
        with closing(cast(Generator[Update, None, None], updates)):
            for update in updates:
                if not is_newest():
                    return
                value |= {"result": update.result, "page": update.page}
                if update.last:
                    value["state"] = "done"
                yield packed()
        if value["state"] != "done":
            yield packed(state="done")
    except (Refused, Unavailable) as error:
        yield packed(state="error", message=str(error))
    except Exception:
        log.exception("a run failed")
        yield packed(state="error", message=BROKEN)


def for_api(updates: Iterator[Update]) -> Iterator[dict[str, Any]]:
    """The API's JSON objects. Raises gr.Error with a sentence."""
    try:
        with closing(cast(Generator[Update, None, None], updates)):
            for update in updates:
                yield update.result
    except (Refused, Unavailable) as error:
        raise gr.Error(str(error), print_exception=False) from None
    except Exception:
        log.exception("a run failed")
        raise gr.Error(BROKEN, print_exception=False) from None


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
