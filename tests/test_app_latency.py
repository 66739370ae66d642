"""The figures of the page's latency, on made-up runs."""

import asyncio
import itertools

import app_latency
import pytest
from app_latency import Yield


def updates(*rows):
    return [Yield(at - 0.001, at, n, "running") for at, n in rows]


def test_each_update_waits_until_its_own_tokens_are_drawn():
    waits = app_latency.delays(updates((1.0, 1), (1.1, 2), (1.2, 5)), [(1.004, 1), (1.103, 2), (1.21, 5)])
    assert waits == pytest.approx([4, 3, 10])


def test_updates_drawn_together_wait_for_the_same_drawing():
    assert app_latency.delays(updates((1.0, 1), (1.1, 2), (1.2, 3)), [(1.25, 3)]) == pytest.approx([250, 150, 50])


def test_an_update_without_new_tokens_is_not_waited_for():
    assert app_latency.delays(updates((1.0, 0), (1.1, 4), (1.2, 4)), [(1.15, 4)]) == pytest.approx([50])


def test_percentiles_are_values_that_were_measured():
    values = [float(n) for n in range(100, 0, -1)]
    assert app_latency.percentile(values, 95) == 95
    assert app_latency.percentile([7.0], 95) == 7
    assert app_latency.percentile([1.0, 2.0, 3.0], 50) == 2


def test_the_time_of_a_profile_goes_to_whose_script_ran():
    frames = [
        ("(idle)", ""),
        ("flush", "http://127.0.0.1:7860/assets/index-x.js"),
        ("draw", ""),  # a panel's script
        ("bars", "http://127.0.0.1:7860/"),  # the shared one, in the page's head
        ("(garbage collector)", ""),
        ("take", app_latency.WATCHER_NAME),
        ("(program)", ""),
    ]
    nodes = [{"id": i, "callFrame": {"functionName": name, "url": url}} for i, (name, url) in enumerate(frames)]
    # A sample's time lasts until the next one; that of the last is not known.
    profile = {
        "nodes": nodes,
        "samples": [0, 1, 2, 3, 4, 5, 6, 1],
        "timeDeltas": [9, 100, 1000, 2000, 3000, 400, 50, 7],
    }
    assert app_latency.by_source(profile) == pytest.approx(
        {"gradio": 1.0, "tinylm": 5.0, "garbage collection": 0.4, "this benchmark": 0.05}
    )


def test_the_work_of_a_trace_is_counted_once_and_on_the_busiest_page():
    def span(name, ts, dur, tid=1):
        return {"name": name, "ph": "X", "pid": 1, "tid": tid, "ts": ts, "dur": dur, "tdur": dur}

    def thread(tid, name):
        return {"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": name}}

    events = [
        thread(1, "CrRendererMain"),
        thread(2, "CrRendererMain"),
        thread(3, "Compositor"),
        span("Layout", 200, 300),  # forced by the script around it
        span("FunctionCall", 100, 1000),
        span("RunTask", 0, 2000),
        span("UpdateLayoutTree", 500, 100),
        span("Paint", 1500, 400),
        span("Layout", 0, 100, tid=2),
        span("Paint", 0, 9000, tid=3),
    ]
    assert app_latency.by_kind(events) == pytest.approx(
        {"script": 0.6, "style": 0.1, "layout": 0.3, "paint": 0.4, "the rest": 0.6}
    )


def test_watched_generators_yield_what_they_yielded_and_are_closed():
    closed = []

    async def panel(n, text="a"):
        try:
            for i in range(n):
                yield text, {"run": 1, "state": "running", "tokens": "0\n" * i}
        finally:
            closed.append(True)

    async def drained(values):
        return [value async for value in values]

    log = []
    watched = app_latency.stamped(panel, log, [0.0])
    assert asyncio.run(drained(watched(3, text="b"))) == asyncio.run(drained(panel(3, text="b")))
    assert [update.n_tokens for update in log] == [0, 1, 2]
    assert all(update.asked <= update.yielded for update in log)
    assert all(a.yielded <= b.asked for a, b in itertools.pairwise(log))
    closed.clear()

    async def left():
        stream = watched(3)
        await anext(stream)
        await stream.aclose()

    asyncio.run(left())
    assert closed == [True]
