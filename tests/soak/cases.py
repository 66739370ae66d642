"""What is done to a server, what is measured, and what must hold; the sizes are the caller's."""

from __future__ import annotations

import asyncio
import statistics
import time
from base64 import b64encode
from contextlib import aclosing
from typing import Any

from soak.figures import Figure
from soak.pictures import giant_png
from soak.visitors import API, Page, Visitor
from soak.watch import DEEP, Counts, Sampler, Server
from soak.wire import ask, opened, posted, request

PROMPT = "A baby cat is called"
LONG = [PROMPT, DEEP, 1, 0, 1, 256, 0]
"""A completion that lasts: prompt, model, temperature, top-k, top-p, tokens, seed."""
SMALL = [PROMPT, "text", 0, 0, 1, 5, 0]
SMALL_SECONDS = 30
"""Within which a small request must be answered, whatever else goes on; far more than it takes."""
SETTLE_SECONDS = 30
UNREAD_SECONDS = 10
"""That a call takes at most, on a machine that does other work too."""
IDLE_SHARE = 0.5
"""Of one core, that an idle server may take: gradio's own 4 %, and a machine that others use too."""
SPARE = Counts(tasks=0, busy_threads=0, generators=0, threads=8, files=4, temporary_files=0)
"""More than before: threads that wait for work some seconds, and what a library opens once."""


async def _begun(port: int, fn_index: int, data: list[Any], updates: int = 1) -> None:
    """Join a stream, and drop the connection after some updates."""
    async with aclosing(Visitor(port).joined(fn_index, data)) as messages:
        async for message in messages:
            if message["msg"] == "process_generating":
                updates -= 1
            if updates == 0 or message["msg"] == "process_completed":
                return


async def _small_request(port: int) -> float:
    """Seconds that a small request takes, as a client sees it."""
    start = time.perf_counter()
    result = await asyncio.wait_for(Visitor(port).answer("complete", SMALL), SMALL_SECONDS)
    assert result["tokens"]
    return time.perf_counter() - start


async def _settled(server: Server, before: Counts) -> dict[str, Figure]:
    """What is left of what there was not before, as soon as that is nothing, or when the time is over.

    gradio's idle threads end when the next one is needed, so a small request now and then helps them to.
    """
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        figures = {
            f"{name} left": Figure(now - then, spare)
            for name, then, now, spare in zip(Counts._fields, before, server.counts(), SPARE, strict=True)
        }
        if all(figure.value <= figure.limit for figure in figures.values()) or time.monotonic() > end:
            return figures
        await asyncio.sleep(1)
        await _small_request(server.port)


def _idle(server: Server) -> Figure:
    """The share of a core that a server takes when nobody asks for anything."""
    start, spent = time.monotonic(), server.cpu_seconds()
    time.sleep(1)
    return Figure((server.cpu_seconds() - spent) / (time.monotonic() - start), IDLE_SHARE, "cores")


def dropped_streams(server: Server, n: int, ratio: float, slack: float) -> dict[str, Figure]:
    """Streams dropped after their first update, all of them at once; then a small request, as fast as before.

    That is: within `ratio` times what it took before, and `slack` milliseconds while the last of the dropped runs are
    still being cleared away, which takes about a second.
    """
    run = Page.of(server.address).fn_indices["complete-run", "click"]

    async def timed() -> float:
        return statistics.median([await _small_request(server.port) for _ in range(15)])

    async def go() -> dict[str, Figure]:
        await _begun(server.port, run, LONG)
        await timed()  # neither the first stream nor the first request counts
        before, usual = server.counts(), await timed()
        await asyncio.gather(*(_begun(server.port, run, LONG) for _ in range(n)))
        first = await _small_request(server.port)
        after = await timed()
        left = await _settled(server, before)
        later = await timed()
        return {
            "small request before": Figure(1000 * usual, None, "ms"),
            "small request at once after": Figure(1000 * after, round(1000 * usual * ratio + slack, 3), "ms"),
            "small request when they are over": Figure(1000 * later, round(1000 * usual * ratio, 3), "ms"),
            # The last stream's step and gradio's notice of the drop may still be on.
            "first small request": Figure(1000 * first, 2000, "ms"),
            **left,
        }

    figures = asyncio.run(go())
    return {**figures, "idle afterwards": _idle(server), **asyncio.run(_both_places(server, run))}


async def _both_places(server: Server, run: int) -> dict[str, Figure]:
    """Two long streams at once: each has its first update before either is done."""
    seen: list[str] = []

    async def stream() -> None:
        async with aclosing(Visitor(server.port).joined(run, LONG)) as messages:
            first = True
            async for message in messages:
                if message["msg"] == "process_completed":
                    seen.append("done")
                elif message["msg"] == "process_generating" and first:
                    seen.append("first")
                    first = False

    await asyncio.gather(stream(), stream())
    return {"places taken away": Figure(2 - seen.index("done"), 0)}


def unread_calls(server: Server, n: int, growth_limit: float) -> dict[str, Figure]:
    """Long calls whose answers nobody ever reads: what they leave in memory, and when they are over."""

    async def go() -> dict[str, Figure]:
        for _ in range(4):  # what is made once
            await Visitor(server.port).answer("complete", LONG)
        rss, before, began = server.rss(), server.counts(), time.monotonic()
        refused = 0
        for _ in range(n):
            answer = await ask(server.port, posted(f"{API}/call/complete", {"data": LONG}))
            assert answer.status in (200, 503), answer
            refused += answer.status == 503
        end = began + n * UNREAD_SECONDS
        while server.inside()["busy_threads"] and time.monotonic() < end:
            await asyncio.sleep(0.5)
        figures = {
            "calls": Figure(n),
            "refused": Figure(refused),
            "seconds until they are over": Figure(time.monotonic() - began, None, "s"),
            "memory growth": Figure(server.rss() - rss, growth_limit, "MB"),
        }
        return {**figures, **await _settled(server, before)}

    return asyncio.run(go())


def sessions(server: Server, n: int, warm_up: int, growth_limit: float) -> dict[str, Figure]:
    """Tabs opened, used and closed, eight at a time: each reads the page and a stream, and every third drops it."""
    page = Page.of(server.address)
    run = page.fn_indices["complete-run", "click"]
    short = [PROMPT, DEEP, 1, 0, 1, 12, 0]

    async def tab(i: int) -> None:
        visitor = Visitor(server.port)
        answer = await ask(server.port, request("GET", "/"))
        assert answer.status == 200 and answer.whole
        heartbeat = request("GET", f"{API}/heartbeat/{visitor.session}")
        async with opened(server.port, heartbeat) as alive, aclosing(alive.chunks()) as beats:
            assert b"ALIVE" in await beats.__anext__()
            for index in page.loads:
                body = {"data": [], "fn_index": index, "session_hash": visitor.session}
                loaded = await ask(server.port, posted(f"{API}/run/predict", body))
                assert loaded.status == 200, loaded
            n_updates = 0
            async with aclosing(visitor.joined(run, short)) as messages:
                async for message in messages:
                    n_updates += message["msg"] == "process_generating"
                    if i % 3 == 0 and n_updates:
                        break
            assert n_updates

    async def all_tabs(numbers: range) -> None:
        waiting = iter(numbers)

        async def some() -> None:
            for i in waiting:
                await tab(i)

        await asyncio.gather(*(some() for _ in range(8)))

    async def go() -> dict[str, Figure]:
        before = server.counts()
        await all_tabs(range(warm_up))
        await _settled(server, before)
        rss = server.rss()
        began = time.monotonic()
        await all_tabs(range(n))
        seconds = time.monotonic() - began
        left = await _settled(server, before)
        return {
            "sessions": Figure(n),
            "seconds a session": Figure(seconds / n, None, "s"),
            "memory": Figure(server.rss(), None, "MB"),
            "memory growth": Figure(server.rss() - rss, growth_limit, "MB"),
            **left,
        }

    return asyncio.run(go())


def giant_pictures(server: Server, n: int, side: int = 13_000) -> dict[str, Figure]:
    """Pictures of one colour, small as files and huge when unpacked: sent at once by upload, then as `data:` URLs."""
    pictures = [giant_png(side, kind) for kind in ("black and white", "palette", "grey", "grey", "black and white")[:n]]

    async def refusal(picture: bytes, inside: bool) -> str:
        visitor = Visitor(server.port)
        if inside:
            url = "data:image/png;base64," + b64encode(picture).decode()
            payload: dict[str, Any] = {"url": url, "meta": {"_type": "gradio.FileData"}}
        else:
            payload = await visitor.uploaded(picture)
        kind, value = "", None
        async with aclosing(visitor.called("caption", [payload])) as events:
            async for kind, value in events:  # noqa: B007
                pass
        assert kind == "error", (kind, value)
        return str(value)

    async def go() -> list[str]:
        refusals: list[str] = []
        for inside in (False, True):
            refusals += await asyncio.gather(*(refusal(picture, inside) for picture in pictures))
        return refusals

    with Sampler(server.rss) as rss:
        refusals = asyncio.run(go())
    for said in refusals:
        assert "million" in said, said
    assert server.lives()
    return {
        "pictures": Figure(len(refusals)),
        "largest file": Figure(max(map(len, pictures)) / 1000, None, "kB"),
        "memory at most": Figure(rss.most, 1500, "MB"),
    }
