"""Places for runs: they go round between visitors, and come free at once when nobody waits for a run any more."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from browsing import open_browser, watched_page
from gradio_client import Client
from playwright.sync_api import expect
from serve import free_port, make_weights, until

from tinylm.generate import stream
from tinylm.ui import limits, page
from tinylm.ui.limits import MAX_NEW_TOKENS, MAX_RUNNING, Left, Refused, Slots, Visit
from tinylm.ui.models import RunFolders
from tinylm.ui.service import Service
from tinylm.ui.service.complete import complete

PROMPT = "A baby cat is called"
EACH = MAX_RUNNING - 1  # places that one visitor has at most
LONG = [PROMPT, "deep", 0, 0, 1, MAX_NEW_TOKENS, 0]
SHORT = [PROMPT, "text", 0, 0, 1, 3, 0]


# ---- The places themselves


class Runs:
    """Threads that each take a place, note it and hold it until told to let go."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.began: list[str] = []
        self.ended: dict[str, BaseException | None] = {}
        self._let_go: dict[str, threading.Event] = {}
        self.visits: dict[str, Visit] = {}

    def start(self, visitor: str, name: str) -> None:
        """Begin a run, and wait until it holds a place or waits for one."""
        waits, let_go, visit = self.slots.counts()[1], threading.Event(), Visit(visitor)
        self._let_go[name], self.visits[name] = let_go, visit

        def run() -> None:
            try:
                with self.slots.of(visit).take():
                    self.began.append(name)
                    let_go.wait(20)
                self.ended[name] = None
            except (Left, Refused) as error:
                self.ended[name] = error

        threading.Thread(target=run, daemon=True).start()
        until(lambda: name in self.began or name in self.ended or self.slots.counts()[1] > waits)

    def finish(self, name: str) -> None:
        """Let a run go, and wait until whoever is next has begun."""
        self._let_go[name].set()
        until(lambda: name in self.ended)

    def holders(self) -> list[str]:
        """Those that hold a place."""
        return [name for name in self.began if name not in self.ended]


def test_places_go_round_between_visitors_and_first_come_first_served_within_one() -> None:
    runs = Runs(Slots(2))
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1", "a5"):
        runs.start(name[0], name)
    while runs.holders():
        runs.finish(runs.holders()[0])
        until(lambda: len(runs.holders()) == runs.slots.counts()[0])
    assert sorted(runs.began) == ["a1", "a2", "a3", "a4", "a5", "b1", "b2", "c1"]
    assert runs.began[:3] == ["a1", "b1", "c1"]  # who came later and has had none goes before who had one
    for visitor in "ab":
        own = [name for name in runs.began if name[0] == visitor]
        assert own == sorted(own)
    assert runs.began.index("b2") < runs.began.index("a3")
    assert runs.slots.counts() == (0, 0)


def test_one_visitor_never_holds_every_place() -> None:
    runs = Runs(Slots(3))
    for i in range(6):
        runs.start("a", f"a{i}")
    assert runs.slots.counts() == (2, 4)
    runs.start("b", "b")
    assert "b" in runs.began  # at once, with all the others waiting
    for name in [*runs.visits]:
        runs.visits[name].leave()
        runs.finish(name)


def test_a_visitor_who_asks_again_and_again_does_not_overtake_one_who_waits() -> None:
    runs = Runs(Slots(1))
    runs.start("a", "a0")
    runs.start("b", "b0")
    runs.start("b", "b1")
    for i in range(3):  # each new run of a comes when its last one is over
        runs.finish(runs.holders()[0])
        runs.start("a", f"a{i + 1}")
    until(lambda: "b1" in runs.began)  # its thread may tell of it a moment later
    assert runs.began.index("b1") < 4
    for name in [*runs.visits]:
        runs.visits[name].leave()
        runs.finish(name)


def test_the_queue_is_bounded_for_each_visitor_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WAITING", 5)
    monkeypatch.setattr(limits, "MAX_WAITING_EACH", 3)
    runs = Runs(Slots(2))
    for i in range(5):
        runs.start("a", f"a{i}")
    assert isinstance(runs.ended["a4"], Refused)  # one runs, three wait
    for visitor in "bcd":
        runs.start(visitor, visitor)
    assert runs.holders() == ["a0", "b"] and runs.slots.counts() == (2, 5)
    runs.start("e", "e0")
    assert str(runs.ended["e0"]) == "Too many runs wait for a place right now. Please try again in a minute."
    for name in [*runs.visits]:
        runs.visits[name].leave()
        runs.finish(name)
    assert runs.slots.counts() == (0, 0)


def test_who_leaves_while_waiting_is_gone_at_once_and_takes_nobodys_place() -> None:
    runs = Runs(Slots(1))
    runs.start("a", "a")
    runs.start("b", "b")
    runs.start("c", "c")
    runs.visits["b"].leave()
    until(lambda: "b" in runs.ended)
    assert isinstance(runs.ended["b"], Left) and runs.slots.counts() == (1, 1)
    runs.finish("a")
    until(lambda: runs.began == ["a", "c"])
    runs.finish("c")
    assert runs.slots.counts() == (0, 0)


def test_a_wait_that_takes_too_long_is_refused_in_a_sentence() -> None:
    slots = Slots(1)
    with slots.take(), pytest.raises(Refused, match=r"^All places are taken.*minute\.$"), slots.take(wait=0.01):
        pass
    assert slots.counts() == (0, 0)


def test_no_place_is_lost_however_runs_come_leave_and_end() -> None:
    rng = random.Random(0)
    slots = Slots(3)
    held: list[int] = []
    most = 0

    def life(seed: int) -> None:
        nonlocal most
        own = random.Random(seed)
        visit = Visit(own.randrange(4))
        if own.random() < 0.4:
            threading.Timer(own.random() * 0.02, visit.leave).start()
        try:
            with slots.of(visit).take() as deadline:
                held.append(seed)
                most = max(most, slots.counts()[0])
                for _ in range(own.randrange(5)):
                    time.sleep(own.random() * 0.003)
                    deadline.check()
        except (Left, Refused):
            pass

    threads = [threading.Thread(target=life, args=(rng.random(),)) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert slots.counts() == (0, 0) and most == 3 and len(held) > 50
    assert not slots._running and len(slots._last) == 4


def test_what_is_remembered_of_visitors_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_REMEMBERED", 5)
    slots = Slots(2)
    for i in range(20):
        with slots.of(Visit(i)).take():
            pass
    assert [*slots._last] == [15, 16, 17, 18, 19]


# ---- The app, served in this process: how many steps its models take


class Counter:
    """Steps that the models have taken since the last `clear`."""

    def __init__(self) -> None:
        self.n = 0

    def stream(self, *inputs: Any, **settings: Any) -> Any:
        """`tinylm.stream`, counted."""
        steps = stream(*inputs, **settings)
        counter = self

        class Counted:
            @property
            def stopped(self) -> str | None:
                return steps.stopped

            def __iter__(self) -> Counted:
                return self

            def __next__(self) -> Any:
                counter.n += 1
                return next(steps)

        return Counted()


class App:
    """The page, served."""

    def __init__(self, weights: Path, patch: pytest.MonkeyPatch) -> None:
        self.steps = Counter()
        self.services: list[Service] = []
        patch.setattr("tinylm.ui.service.complete.stream", self.steps.stream)
        make = page.Service
        patch.setattr(page, "Service", lambda runs: self.services.append(make(runs)) or self.services[-1])
        self.demo = page.build(weights)
        _, self.address, _ = self.demo.launch(
            server_name="127.0.0.1", server_port=free_port(), prevent_thread_lock=True
        )

    def counts(self) -> tuple[int, int]:
        """Runs that hold a place, and those that wait."""
        return self.services[0].slots.counts()  # type: ignore[union-attr]

    def post(self, path: str, **fields: Any) -> dict[str, Any]:
        """The answer to a JSON object."""
        body, headers = json.dumps(fields).encode(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.address + path, body, headers), timeout=20) as answer:
            return json.load(answer)

    def read(self, path: str) -> socket.socket:
        """A stream, opened but not read."""
        host, port = self.address.removeprefix("http://").rstrip("/").split(":")
        connection = socket.create_connection((host, int(port)), timeout=20)
        connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return connection

    def number(self, name: str) -> int:
        """gradio's number of a function of the page or the API."""
        return next(i for i, function in self.demo.fns.items() if getattr(function.fn, "__name__", "") == name)

    def run(self, session: str, data: list[Any]) -> str:
        """Start a run as the page does."""
        number = self.number("complete")
        return self.post("gradio_api/queue/join", data=data, fn_index=number, session_hash=session)["event_id"]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    weights = make_weights(tmp_path_factory.mktemp("fair") / "weights")
    with pytest.MonkeyPatch.context() as patch:
        app = App(weights, patch)
        yield app
        app.demo.close()


@pytest.fixture(autouse=True)
def all_free(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test on the app: every place is free, and nobody waits."""
    yield
    if "app" in request.fixturenames:
        app = request.getfixturevalue("app")
        until(lambda: app.counts() == (0, 0), 40)


def read_until(stream: socket.socket, sign: bytes) -> None:
    """Read until such a message has come."""
    read = b""
    while sign not in read:
        read += stream.recv(65536)


def ends_within_a_step(app: App) -> None:
    """No more than the step that is under way follows, and the place is free."""
    n = app.steps.n
    until(lambda: app.counts()[0] == 0)
    assert app.steps.n <= n + 1 and app.steps.n < MAX_NEW_TOKENS


def started(app: App, session: str) -> tuple[str, socket.socket]:
    """A long run that streams: its event and the stream."""
    app.steps.n = 0
    event = app.run(session, LONG)
    stream = app.read(f"gradio_api/queue/data?session_hash={session}")
    read_until(stream, b"process_generating")
    return event, stream


def test_the_second_visitor_gets_first_tokens_while_the_first_still_streams(app: App) -> None:
    first, second = Client(app.address, verbose=False), Client(app.address, verbose=False)
    long = first.submit(*LONG, api_name="/complete")
    next(iter(long))
    assert second.predict(*SHORT, api_name="/complete")["tokens"]
    assert not long.done()
    long.cancel()


def test_a_visitor_with_many_long_runs_does_not_keep_another_waiting(app: App) -> None:
    client = Client(app.address, verbose=False)
    for _ in range(10):
        app.run("greedy", LONG)
    until(lambda: app.counts() == (EACH, 10 - EACH))
    app.steps.n = 0
    assert len(client.predict(*SHORT, api_name="/complete")["tokens"]) == 3
    assert app.steps.n < MAX_NEW_TOKENS  # while the first of the ten were still on
    stream = app.read("gradio_api/queue/data?session_hash=greedy")
    read_until(stream, b"process_generating")
    stream.close()  # and all ten end


def test_stop_ends_the_run_within_a_step(app: App) -> None:
    event, stream = started(app, "stops")
    app.post("gradio_api/cancel", session_hash="stops", fn_index=app.number("complete"), event_id=event)
    ends_within_a_step(app)
    stream.close()
    app.run("stops", SHORT)  # and another can follow
    until(lambda: app.counts() == (0, 0))


def test_a_client_that_vanishes_ends_its_run(app: App) -> None:
    _, stream = started(app, "vanishes")
    n = app.steps.n
    stream.close()
    until(lambda: app.counts()[0] == 0)
    assert n <= app.steps.n < MAX_NEW_TOKENS * 0.8  # the server hears of it with its next update


def test_a_client_that_vanishes_while_it_waits_leaves_the_queue_at_once(app: App) -> None:
    for i in range(MAX_RUNNING):
        app.run(f"holds{i}", LONG)
    until(lambda: app.counts() == (MAX_RUNNING, 0))
    app.run("waits", LONG)
    app.run("waits", LONG)
    until(lambda: app.counts() == (MAX_RUNNING, 2))
    stream = app.read("gradio_api/queue/data?session_hash=waits")
    read_until(stream, b"process_starts")
    stream.close()
    until(lambda: app.counts()[1] == 0)
    running = app.services[0].slots._running  # type: ignore[union-attr]
    assert running == {("session", f"holds{i}"): 1 for i in range(MAX_RUNNING)}  # no run had to end for it
    for i in range(MAX_RUNNING):
        app.post("gradio_api/cancel", session_hash=f"holds{i}", fn_index=app.number("complete"), event_id="any")


def test_stop_while_waiting_leaves_the_queue_at_once(app: App) -> None:
    _, stream = started(app, "one")
    app.run("three", LONG)
    for _ in range(4):
        app.run("two", LONG)
    until(lambda: app.counts() == (3, 3))
    n = app.steps.n
    number = app.number("complete")
    app.post("gradio_api/cancel", session_hash="two", fn_index=number, event_id="any")  # all of that session's
    until(lambda: app.counts() == (2, 0))
    assert app.steps.n - n < MAX_NEW_TOKENS  # while the others still run
    app.post("gradio_api/cancel", session_hash="three", fn_index=number, event_id="any")
    stream.close()


@contextmanager
def all_places_taken(app: App) -> Iterator[None]:
    """Other visitors hold every place."""
    with ExitStack() as places:
        for i in range(MAX_RUNNING):
            places.enter_context(app.services[0].slots.take(visit=Visit(f"other {i}")))  # type: ignore[call-arg]
        yield


@pytest.mark.browser
def test_a_run_that_waits_for_its_place_says_so_and_what_stood_there_stays(app: App) -> None:
    with open_browser() as browser, watched_page(browser) as page:
        page.goto(app.address)
        status, panel = page.locator("#complete-panel .tl-status"), page.locator("#complete-panel .tl-text")
        expect(panel.locator(".tl-chip").first).to_be_visible()
        before = panel.text_content()
        page.locator("#complete-prompt textarea").fill("Bees make")
        with all_places_taken(app):
            page.locator("#complete-run").click()
            expect(status).to_have_text("Waiting for a free place: others are being served…")
            assert panel.text_content() == before
        expect(status).to_have_attribute("data-state", "done")
        expect(panel.locator(".tl-prompt").first).to_have_text(re.compile("^B"))
        with all_places_taken(app):
            page.locator("#complete-run").click()
            expect(status).to_have_attribute("data-state", "waiting")
            page.locator("#complete-stop").click()
            expect(status).to_have_text("You stopped it.")


def test_a_run_that_has_said_that_it_waits_leaves_the_queue_at_once_when_stopped(app: App) -> None:
    number = app.number("run_prompt")
    with all_places_taken(app):
        run = app.post("gradio_api/queue/join", data=SHORT, fn_index=number, session_hash="patient")
        with app.read("gradio_api/queue/data?session_hash=patient") as stream:
            read_until(stream, b'"waiting"')
            assert app.counts() == (MAX_RUNNING, 1)
            app.post("gradio_api/cancel", session_hash="patient", fn_index=number, event_id=run["event_id"])
            until(lambda: app.counts() == (MAX_RUNNING, 0))


def test_a_run_that_gets_its_place_at_once_never_says_that_it_waits(app: App) -> None:
    app.post("gradio_api/queue/join", data=SHORT, fn_index=app.number("run_prompt"), session_hash="at_once")
    with app.read("gradio_api/queue/data?session_hash=at_once") as stream:
        read = b""
        while b"process_completed" not in read:
            read += stream.recv(65536)
    assert b'"done"' in read and b'"waiting"' not in read


def test_a_client_that_never_reads_ends_at_its_length_and_leaves_few_messages(app: App) -> None:
    app.steps.n = 0
    event = app.post("gradio_api/call/complete", data=LONG)["event_id"]
    until(lambda: app.steps.n > 0)
    until(lambda: app.counts() == (0, 0), 40)
    assert app.steps.n <= MAX_NEW_TOKENS + 1
    assert app.demo._queue.pending_messages_per_session[event].qsize() < 15
    with urllib.request.urlopen(f"{app.address}gradio_api/call/complete/{event}", timeout=20) as stream:
        last = stream.read().decode().split("event: complete\ndata: ")[1]
    assert len(json.loads(last.strip())[0]["tokens"]) == MAX_NEW_TOKENS  # and is still told the end of it


def test_a_run_that_takes_too_long_is_ended_in_a_sentence(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.Deadline.__init__, "__defaults__", (0.3, None))
    service = Service(RunFolders(app.services[0].runs.folder))
    with pytest.raises(Refused, match="This run was ended after"):
        list(complete(service, *LONG))


def test_cheap_events_are_answered_while_many_wait(app: App) -> None:
    for i in range(40):
        app.run(f"crowd{i}", LONG)
    until(lambda: app.counts() == (MAX_RUNNING, 40 - MAX_RUNNING))
    number = app.number("restore")
    began = time.monotonic()
    app.post("gradio_api/run/predict", data=[], fn_index=number, session_hash="calm")
    assert time.monotonic() - began < 5
    for i in range(40):
        app.post("gradio_api/cancel", session_hash=f"crowd{i}", fn_index=app.number("complete"), event_id="any")


def test_calls_without_a_session_are_one_visitor_by_their_address(app: App) -> None:
    for _ in range(3):
        app.post("gradio_api/call/complete", data=LONG)
    until(lambda: app.counts() == (EACH, 3 - EACH))
    assert app.services[0].slots._running == {("address", "127.0.0.1"): EACH}  # type: ignore[union-attr]


def test_messages_that_nobody_reads_are_dropped_before_those_of_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_UNREAD_SESSIONS", 3)
    messages = page.Messages(100)

    async def come() -> None:
        messages["read"] = asyncio.Queue()
        for i in range(10):
            messages[f"unread{i}"] = asyncio.Queue()
            messages[f"unread{i}"].put_nowait("an update")
            messages["read"].put_nowait("an update")
            assert messages["read"].get_nowait()
        messages["dropped"].put_nowait("an update")  # which goes nowhere

    asyncio.run(come())
    assert sorted(messages) == ["read", "unread7", "unread8", "unread9"]
