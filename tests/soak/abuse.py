"""Sends hostile requests, reads what comes back, and keeps count of what may not be."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soak.figures import Figure
from soak.hostile import API_NAMES, SECONDS, Grammar, Hostile, leaks
from soak.visitors import API, Page
from soak.watch import Server
from soak.wire import Answer, ask, posted, request

BROKEN = b"Something went wrong on this side"
"""What the app says of an error that nobody foresaw."""


class Findings:
    """What went on, and what should not have."""

    def __init__(self, server: Server) -> None:
        self._folder = str(server.folder).encode()
        self.wrong: list[str] = []
        self.statuses: Counter[int] = Counter()
        self.endings: Counter[str] = Counter()  # of events, by how they ended

    def look_at(self, asked: Hostile, answer: Answer) -> None:
        """Judge the answer to a request."""
        self.statuses[answer.status] += 1
        stated = answer.status == 503 and b"Queue is full" in answer.body
        if (answer.status >= 500 and not stated) or BROKEN in answer.body:
            self.note(asked, answer.status, answer.body)
        for leak in leaks(answer.body + repr(answer.headers).encode(), asked.raw):
            self.note(asked, f"tells {leak}", answer.body)

    def look_at_event(self, asked: Hostile, answer: Answer) -> None:
        """Judge the stream of an event that a request began."""
        self.look_at(asked, answer)
        # gradio names files by their paths, so the page's own pictures and uploads are known by theirs; no run is.
        if self._folder in answer.body and self._folder not in asked.raw:
            self.note(asked, "tells where temporary files are", answer.body)
        ending, said = ended(answer.body)
        self.endings[ending] += 1
        if ending == "nothing":
            self.note(asked, "its stream has no end", answer.body)
        elif ending == "error" and not said:
            self.note(asked, "refused without a word", answer.body)

    def note(self, asked: Hostile, what: object, body: bytes) -> None:
        """Keep what should not have been."""
        self.wrong.append(f"{asked.kind}: {what}: {asked.raw[:400]!r} -> {body[-300:]!r}")


def ended(stream: bytes) -> tuple[str, str]:
    """How an event's stream ended, and the words it had for it."""
    kind, ending, said = "", "nothing", ""
    for line in stream.splitlines():
        if line.startswith(b"event: "):
            kind = line[7:].decode()
        elif line.startswith(b"data: "):
            value = json.loads(line[6:])
            if kind in ("complete", "error"):
                ending = kind
                said = _words(value)
            elif isinstance(value, dict) and value.get("msg") in ("process_completed", "unexpected_error"):
                ending = "complete" if value.get("success") else "error"
                said = _words(value.get("output") or value.get("message"))
    return ending, said


def _words(value: Any) -> str:
    found = value.get("error") if isinstance(value, dict) else value
    return found if isinstance(found, str) else ""


async def send(server: Server, hostile: Hostile, findings: Findings) -> None:
    """Send one request, and follow the event that it may have begun."""
    answer = await ask(server.port, hostile.raw, hostile.seconds)
    if hostile.seconds == SECONDS and not answer.whole and not (answer.status and hostile.kind == "headers"):
        findings.note(hostile, "no answer, or not all of it", answer.body)
    findings.look_at(hostile, answer)
    event = _event(answer)
    if event is None or not hostile.follow:
        return
    if hostile.follow.startswith("?"):
        target = f"{API}/queue/data?session_hash={hostile.follow[1:]}"
    else:
        target = f"{API}/call/{hostile.follow}/{event}"
    findings.look_at_event(hostile, await ask(server.port, request("GET", target), SECONDS))


def _event(answer: Answer) -> str | None:
    try:
        value = json.loads(answer.body) if answer.status == 200 else None
    except ValueError:
        return None
    return value.get("event_id") if isinstance(value, dict) else None


async def send_all(server: Server, requests: Iterable[Hostile], findings: Findings, at_once: int = 6) -> None:
    """Send them, some at the same time; ends early when the server is gone."""
    waiting: Iterator[Hostile] = iter(requests)

    async def some() -> None:
        for hostile in waiting:
            await send(server, hostile, findings)
            if not server.lives():
                findings.wrong.append(f"the server died of {hostile.raw[:400]!r}")
                return

    await asyncio.gather(*(some() for _ in range(at_once)))


class Elsewhere(ThreadingTCPServer):
    """Another host, so to say: counts who connects to it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), BaseRequestHandler)
        self.connections = 0

    def process_request(self, *arguments: Any) -> None:
        self.connections += 1
        super().process_request(*arguments)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    """A listener on a port of its own."""
    with Elsewhere() as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield listener
        listener.shutdown()
        thread.join()


def hostile_requests(
    server: Server, n: int, seed: int, growth_limit: float, warm_up: int
) -> tuple[dict[str, Figure], list[str]]:
    """Requests by the grammar, and what was wrong with the answers.

    No server error, no word of the server's insides, no connection to anyone, and no memory lost.
    """
    page, findings, source = Page.of(server.address), Findings(server), random.Random(seed)
    with elsewhere() as other:
        grammar = Grammar(page, other.address)
        asyncio.run(send_all(server, (grammar.make(source) for _ in range(warm_up)), Findings(server)))
        rss, contacts, log = server.rss(), server.inside()["contacts"], server.log()
        asyncio.run(send_all(server, (grammar.make(source) for _ in range(n)), findings))
        connections = other.connections
    contacts = server.inside()["contacts"] - contacts
    return {
        "requests": Figure(sum(findings.statuses.values())),
        **{f"answers {status or 'none'}": Figure(count) for status, count in sorted(findings.statuses.items())},
        **{f"events: {ending}": Figure(count) for ending, count in sorted(findings.endings.items())},
        "wrong answers": Figure(len(findings.wrong), 0),
        "connections elsewhere": Figure(connections, 0),
        "connections and look-ups begun": Figure(contacts, 0),
        "tracebacks in the log": Figure(server.log().count("Traceback") - log.count("Traceback"), 0),
        "memory growth": Figure(server.rss() - rss, growth_limit, "MB"),
    }, findings.wrong


def any_json(server: Server, n: int) -> dict[str, Figure]:
    """What Hypothesis makes up, sent to all endpoints that read JSON; it shows the smallest request that breaks one."""
    numbers = st.integers() | st.floats()
    texts = st.text(st.characters(exclude_categories=()), max_size=30)  # lone surrogates too
    values = st.recursive(
        st.none() | st.booleans() | numbers | texts,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=12,
    )
    indices = st.sampled_from(Page.of(server.address).all_fn_indices) | st.integers()
    session = st.integers(0, 10**12).map("s{}".format)
    bodies = st.fixed_dictionaries({"data": st.lists(values, max_size=8)})
    calls = st.builds(
        lambda name, body: Hostile(posted(f"{API}/call/{name}", body), "call", follow=name),
        st.sampled_from(API_NAMES),
        bodies,
    )
    joins = st.builds(
        lambda body: Hostile(posted(f"{API}/queue/join", body), "join", follow=f"?{body['session_hash']}"),
        st.fixed_dictionaries(
            {"data": st.lists(values, max_size=8), "fn_index": indices, "session_hash": session, "event_data": values}
        ),
    )
    others = st.builds(
        lambda end, body: Hostile(posted(f"{API}/{end}", body), end),
        st.sampled_from(("run/predict", "cancel", "reset", "component_server", "call/v2/complete")),
        values,
    )
    n_sent = 0

    @settings(max_examples=n, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(calls | joins | others)
    def holds(hostile: Hostile) -> None:
        nonlocal n_sent
        findings = Findings(server)
        asyncio.run(send(server, hostile, findings))
        n_sent += 1
        assert not findings.wrong, findings.wrong

    holds()
    return {"requests": Figure(n_sent), "server lost": Figure(not server.lives(), 0)}
