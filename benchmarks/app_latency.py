"""How long the page takes, from the server's generator to the browser's DOM, and what its first load weighs.

python benchmarks/app_latency.py [--rounds 7] [--chromium PATH]

The app is served on 127.0.0.1 with the shipped weights, in which `<eos>` is made unreachable, so that every run has its
60 tokens. A headless Chromium opens it and runs Complete and Routing at two speeds: as fast as the model goes, where
several tokens share an update, and paced to one token an update, as a larger model would stream. Measured are:

- yield to DOM: from the moment the server's generator yields to the moment the panel has drawn the newest token of it.
  Server and browser stamp the same clock, since they share a machine.
- the page's own work: CPU time of its main thread during a run, less an idle stretch of the same length. A trace of one
  more run tells what kind of work it is, and a profile of another whose script it is; both slow the page down. Routing
  runs in a page whose Complete tab has had runs before.
- whole runs at full speed against `tinylm.stream` run bare in the app's process right after each: the time inside the
  server's generator; from gradio's first ask to the last yield; and from the click until the page says that it is done.
  Once with browser and app on all cores, and once with half of the cores for each, as on two machines: a visitor's
  browser takes none of the server's time.
- the first load in a fresh browser context: bytes as sent and as unpacked, requests, requests to any other host, and
  the time until the finished example can be seen.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import inspect
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from browser import FLAGS, NAMES, chromium
from measure import ROOT, machine, table, write

import tinylm

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession, Page


class Tab(NamedTuple):
    """What the benchmark knows of a tab: the one place to change when the page does."""

    label: str
    run_folder: str
    prompt: str  # selectors from here on
    run: str
    token: str  # one node a token, those of the prompt included where the widget's value has them too
    status: str  # `data-state` is running, then done


TABS = (
    Tab(
        "Complete",
        "text",
        "#complete-prompt textarea",
        "#complete-run",
        "#complete-panel .tl-chip:not(.tl-end)",
        "#complete-panel .tl-status",
    ),
    Tab(
        "Routing",
        "moe",
        "#routing-prompt textarea",
        "#routing-run",
        "#routing-panel .tl-column",
        "#routing-panel .tl-status",
    ),
)
LENGTH_LABEL = "Max new tokens"  # of the fields that say how long a run is
GRADIO_FILES = ("/assets/", "/static/", "/gradio_api/")  # where gradio's own scripts come from

PROMPT = "Bees make"
N_NEW = 60
PACE = 0.05  # seconds between the yields of a paced run
FULL_SPEED = "full speed"
SPEEDS = {FULL_SPEED: 0.0, "paced": PACE}
FAST_RUNS = 3  # runs at full speed a round, which give few updates each
SETTLE_MS = 500
KINDS = {  # by how the names of Chromium's trace events begin
    "script": ("FunctionCall", "v8", "V8", "EvaluateScript", "TimerFire", "FireAnimationFrame", "BlinkScheduler_"),
    "style": ("UpdateLayoutTree",),
    "layout": ("Layout",),
    "paint": ("PrePaint", "Paint", "Layerize", "Commit"),
}
START_SECONDS = 120
# In the page, before anything else runs: notes when nodes that match `token` are drawn and when `status` changes.
WATCHER = """
window.latency = (() => {
  const now = () => performance.timeOrigin + performance.now(); // ms since 1970
  let token = "", status = "";
  let drawn = [], states = [], visible = null;
  const matches = (node) => node.nodeType === 1 && (node.matches(token) || node.querySelector(token));
  const observer = new MutationObserver((records) => {
    const at = now();
    if (records.some((record) => [...record.addedNodes].some(matches))) {
      drawn.push([at, document.querySelectorAll(token).length]);
      if (visible === null) requestAnimationFrame(lookForIt);
    }
    const changed = records.find((record) => record.attributeName && record.target.matches(status));
    if (changed) states.push([at, changed.target.dataset.state]);
  });
  const lookForIt = () => {
    if (visible !== null) return;
    if (document.querySelector(token)?.getClientRects().length) visible = performance.now();
    else requestAnimationFrame(lookForIt);
  };
  // How far the page's clock, which never jumps, has come off the machine's, which Date rounds down to whole ms.
  const skew = () => {
    const start = Date.now();
    let tick = start;
    while (tick === start) tick = Date.now();
    return tick - now();
  };
  return {
    watch(tokenSelector, statusSelector) {
      [token, status] = [tokenSelector, statusSelector];
      const what = { childList: true, subtree: true, attributes: true, attributeFilter: ["data-state"] };
      observer.observe(document, what);
    },
    click(selector) {
      [drawn, states] = [[], []];
      const at = now() + skew();
      document.querySelector(selector).click();
      return at;
    },
    take() {
      const late = skew();
      const shifted = (list) => list.map(([at, what]) => [at + late, what]);
      return { drawn: shifted(drawn), states: shifted(states) };
    },
    done: () => states.some(([, state]) => state === "done"),
    visible: () => visible,
    painted: () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
  };
})();
//# sourceURL=latency-watcher.js
"""
WATCHER_NAME = "latency-watcher.js"


Figures: TypeAlias = dict[str, dict[str, float]]


class Yield(NamedTuple):
    """One update of a run, as the server's generator gave it; times in seconds since 1970."""

    asked: float
    yielded: float
    n_tokens: int
    state: str


class Seen(NamedTuple):
    """One run from both sides; times in seconds since 1970."""

    yields: list[Yield]
    drawn: list[tuple[float, int]]  # when the page had drawn how many tokens
    clicked: float
    done: float  # when the page said so
    work: float  # ms of the page's main thread, idle work taken off
    bytes: int  # that the page received meanwhile, unpacked
    bare: float  # seconds of the same stream without any page


def main() -> None:
    args = parse()
    sync_playwright = playwright_or_exit()
    path = args.chromium or chromium_or_exit()
    measured_on = machine()  # before: what else ran shows in the load
    port = args.port or free_port()
    with tempfile.TemporaryDirectory(prefix="tinylm-") as folder:
        weights = endless(Path(args.weights), Path(folder) / "weights")
        with served(sync_playwright, path, weights, port) as (browser, app):
            loads = [first_load(browser, app.address) for _ in range(args.rounds + 1)][1:]
            runs, kinds, sources = stream_runs(browser, app, args.rounds)
            measured_on |= {"app_threads": app.ask("threads"), "chromium": browser.version}
        apart = {}
        if all(cores := halves()):
            with served(sync_playwright, path, weights, port, *cores) as (browser, app):
                apart = whole_runs(browser, app, args.rounds)
    report = {
        "machine": measured_on | {"load_after": round(os.getloadavg()[0], 2)},
        "rounds": args.rounds,
        "new_tokens": N_NEW,
        "pace_ms": PACE * 1000,
        "unit": "ms unless named otherwise; medians over the rounds, or over all updates of them",
        "drawing": {name: drawing(seen) for name, seen in runs.items()},
        "work_by_kind_per_token": kinds,
        "script_by_source_per_token": sources,
        "stream": {name: against_bare(seen) for name, seen in runs.items() if name.endswith(FULL_SPEED)},
        "stream_on_cores_of_its_own": {name: against_bare(seen) for name, seen in apart.items()},
        "first_load": load_summary(loads),
    }
    show(report)
    write(args.out, report)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default=str(ROOT / "weights"), help="folder of run folders (default: weights)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, of which medians are taken (default: 7)")
    parser.add_argument("--chromium", metavar="PATH", help=f"browser (default: the first of {', '.join(NAMES)})")
    parser.add_argument("--port", type=int, help="port of 127.0.0.1 for the app (default: one that is free)")
    parser.add_argument("--out", default="app_latency", help="name of the JSON file in benchmarks/results")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds} must be 1 or more")
    if args.chromium and not shutil.which(args.chromium):
        parser.error(f"--chromium {args.chromium} is no program")
    return args


def playwright_or_exit() -> Callable[[], Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.exit("app_latency.py needs Playwright: pip install -r requirements-bench.txt")
    return sync_playwright


def chromium_or_exit() -> str:
    found = chromium()
    return found or sys.exit("app_latency.py needs a Chromium on PATH, or its place: --chromium PATH")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def served(
    sync_playwright: Callable[[], Any],
    path: str,
    weights: Path,
    port: int,
    browser_cores: Sequence[int] = (),
    app_cores: Sequence[int] = (),
) -> Iterator[tuple[Browser, App]]:
    """The app and a browser, each on these cores, or on all."""
    with App(weights, port, app_cores) as app, pinned(browser_cores), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield browser, app
        browser.close()


def halves() -> tuple[list[int], list[int]]:
    """Cores for the browser and for the app; nothing where processes can't be pinned or there is one core."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    middle = len(cores) // 2
    return (cores[:middle], cores[middle:]) if middle else ([], [])


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Processes started meanwhile keep to these cores, if there are any."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def endless(weights: Path, folder: Path) -> Path:
    """Copies of the run folders in which `<eos>` is never the likeliest."""
    shutil.copytree(weights, folder)
    for name in {tab.run_folder for tab in TABS}:
        run = tinylm.load(weights / name)
        with torch.no_grad():
            run.model.head_bias[run.tokenizer.eos_id] = -100.0
        tinylm.save(folder / name, run.model, run.tokenizer, run.info)
    return folder


# The app, in a process of its own


class App:
    """The served page, its generators watched."""

    def __init__(self, weights: Path, port: int, cores: Sequence[int]) -> None:
        self._cores = cores
        self.address = f"http://127.0.0.1:{port}/"
        context = multiprocessing.get_context("spawn")
        self._pipe, self._other = context.Pipe()
        self._process = context.Process(target=serve, args=(self._other, str(weights), port), daemon=True)

    def __enter__(self) -> App:
        with pinned(self._cores):
            self._process.start()
        self._other.close()  # so that the pipe ends with the app
        try:
            if not self._pipe.poll(START_SECONDS):
                raise EOFError
            self._pipe.recv()
        except EOFError:
            self.__exit__()
            sys.exit("app_latency.py: the app did not start; its own words stand above")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    def ask(self, what: str, value: Any = None) -> Any:
        """The answer of `serve` to one question."""
        self._pipe.send((what, value))
        return self._pipe.recv()


def serve(pipe: Connection, weights: str, port: int) -> None:
    """Serve the page and answer questions about its runs."""
    from tinylm.ui import page
    from tinylm.ui.service.common import Pace

    demo = page.build(weights)
    lengths: list[Any] = [block for block in demo.blocks.values() if getattr(block, "label", None) == LENGTH_LABEL]
    assert len(lengths) >= len(TABS), f"the page has {len(lengths)} fields labelled {LENGTH_LABEL!r}"
    for block in lengths:
        block.value = N_NEW
    log: list[Yield] = []
    pace = [0.0]
    due = Pace.due
    Pace.due = lambda self: pace[0] > 0 or due(self)  # type: ignore[method-assign]  # paced: each token by itself
    for function in demo.fns.values():
        if inspect.isasyncgenfunction(function.fn):
            function.fn = stamped(function.fn, log, pace)
    runs = {tab.run_folder: tinylm.load(f"{weights}/{tab.run_folder}") for tab in TABS}

    def bare(name: str) -> float:
        run = runs[name]
        ids, eos_id = run.tokenizer.encode(PROMPT), run.tokenizer.eos_id
        start = time.perf_counter()
        n = sum(1 for _ in tinylm.stream(run.model, ids, max_new_tokens=N_NEW, eos_id=eos_id))
        assert n == N_NEW
        return time.perf_counter() - start

    demo.launch(server_name="127.0.0.1", server_port=port, prevent_thread_lock=True)
    pipe.send("ready")
    while True:
        what, value = pipe.recv()
        if what == "begin":  # a run at this pace
            log.clear()
            pace[0] = value
            pipe.send(None)
        elif what == "yields":
            pipe.send(list(log))
        elif what == "bare":
            pipe.send(bare(value))
        elif what == "threads":
            pipe.send(torch.get_num_threads())


def stamped(
    function: Callable[..., AsyncGenerator[Any, None]], log: list[Yield], pace: Sequence[float]
) -> Callable[..., Any]:
    """The same generator function; it notes when it yields what, and rests `pace[0]` seconds after each."""

    @functools.wraps(function)  # gradio reads the parameters off the original
    async def watched(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        asked = time.time()
        async with aclosing(function(*args, **kwargs)) as values:
            async for value in values:
                for part in value if isinstance(value, tuple) else (value,):
                    if isinstance(part, dict) and "run" in part:  # a panel's
                        log.append(Yield(asked, time.time(), part.get("tokens", "").count("\n"), part["state"]))
                yield value
                await asyncio.sleep(pace[0])
                asked = time.time()

    return watched


# The browser


class Traffic:
    """What a page asks for and is sent."""

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}  # all by the browser's number of the request
        self.kinds: dict[str, str] = {}
        self.sent: Counter[str] = Counter()  # bytes on the wire, headers included
        self.unpacked: Counter[str] = Counter()  # bytes of the bodies

    def watch(self, cdp: CDPSession) -> None:
        """Count from now on."""
        cdp.on("Network.requestWillBeSent", self._asked)
        cdp.on("Network.webSocketCreated", self._asked)
        cdp.on("Network.responseReceived", self._answered)
        cdp.on("Network.dataReceived", self._received)
        cdp.on("Network.loadingFinished", self._finished)
        cdp.send("Network.enable")

    def _asked(self, event: Mapping[str, Any]) -> None:
        url = event["request"]["url"] if "request" in event else event["url"]
        if urlsplit(url).scheme not in ("data", "blob"):
            self.urls[event["requestId"]] = url
            self.kinds[event["requestId"]] = event.get("type", "WebSocket")

    def _answered(self, event: Mapping[str, Any]) -> None:
        if event["requestId"] in self.urls:
            self.sent[event["requestId"]] += event["response"]["encodedDataLength"]

    def _received(self, event: Mapping[str, Any]) -> None:
        if event["requestId"] in self.urls:
            self.sent[event["requestId"]] += event["encodedDataLength"]
            self.unpacked[event["requestId"]] += event["dataLength"]

    def _finished(self, event: Mapping[str, Any]) -> None:
        if event["requestId"] in self.urls:  # a stream that stays open has no such end, and keeps its sum
            self.sent[event["requestId"]] = event["encodedDataLength"]


@contextmanager
def opened(browser: Browser, address: str, traffic: Traffic) -> Iterator[tuple[Page, CDPSession]]:
    """The page in a fresh context with an empty cache, its example drawn, the watcher in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script(WATCHER)
    page.add_init_script(f"latency.watch({TABS[0].token!r}, {TABS[0].status!r})")
    cdp = context.new_cdp_session(page)
    cdp.send("Performance.enable", {"timeDomain": "threadTicks"})  # what else the machine runs doesn't count
    traffic.watch(cdp)
    page.goto(address)
    end = time.monotonic() + START_SECONDS
    while page.evaluate("latency.visible()") is None:
        if time.monotonic() > end:
            sys.exit(f"app_latency.py: the page shows no {TABS[0].token}")
        page.wait_for_timeout(50)
    yield page, cdp
    context.close()


def first_load(browser: Browser, address: str) -> dict[str, Any]:
    """One visit with an empty cache: what it asks for, what that weighs and how long it takes."""
    traffic = Traffic()
    with opened(browser, address, traffic) as (page, _):
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(2 * SETTLE_MS)
        times = {"first_paint_ms": page.evaluate("latency.painted()"), "example_ms": page.evaluate("latency.visible()")}
    by_kind: Counter[str] = Counter()
    for request, kind in traffic.kinds.items():
        by_kind[kind] += traffic.sent[request]
    here = urlsplit(address).netloc
    return times | {
        "requests": len(traffic.urls),
        "bytes_sent": traffic.sent.total(),
        "bytes_unpacked": traffic.unpacked.total(),
        "bytes_sent_by_kind": dict(by_kind.most_common()),
        "largest": {urlsplit(traffic.urls[request]).path: n for request, n in traffic.sent.most_common(6)},
        "to_other_hosts": sorted(url for url in traffic.urls.values() if urlsplit(url).netloc != here),
    }


def stream_runs(browser: Browser, app: App, rounds: int) -> tuple[dict[str, list[Seen]], Figures, Figures]:
    """Runs of each tab at each speed, in turn; then of two more each the work by kind and the script by source."""
    runs: dict[str, list[Seen]] = defaultdict(list)
    kinds: Figures = {}
    sources: Figures = {}
    traffic = Traffic()
    with opened(browser, app.address, traffic) as (page, cdp):
        for round_ in range(rounds + 2):  # the first warms up, the last is looked into
            for tab in TABS:
                idle = go_to(page, cdp, tab)
                for speed, pace in SPEEDS.items():
                    name = f"{tab.label}, {speed}"
                    run = functools.partial(one_run, page, cdp, app, tab, pace, idle, traffic)
                    if round_ > rounds:
                        kinds[name] = traced(browser, page, run)
                        sources[name] = profiled(cdp, run)
                        continue
                    found = [run() for _ in range(1 if pace else FAST_RUNS)]
                    if round_:
                        runs[name] += found
    return runs, kinds, sources


def whole_runs(browser: Browser, app: App, rounds: int) -> dict[str, list[Seen]]:
    """Runs of each tab at full speed, in turn."""
    runs: dict[str, list[Seen]] = defaultdict(list)
    traffic = Traffic()
    with opened(browser, app.address, traffic) as (page, cdp):
        for round_ in range(rounds + 1):  # the first warms up
            for tab in TABS:
                idle = go_to(page, cdp, tab)
                found = [one_run(page, cdp, app, tab, 0.0, idle, traffic) for _ in range(FAST_RUNS)]
                if round_:
                    runs[f"{tab.label}, {FULL_SPEED}"] += found
    return runs


def go_to(page: Page, cdp: CDPSession, tab: Tab) -> float:
    """Open a tab and fill in its prompt; returns the page's work there in ms per idle second."""
    page.get_by_role("tab", name=tab.label, exact=True).click()
    page.locator(tab.prompt).fill(PROMPT)
    page.evaluate("selectors => latency.watch(...selectors)", [tab.token, tab.status])
    page.wait_for_timeout(2 * SETTLE_MS)
    before, start = work(cdp), time.monotonic()
    page.wait_for_timeout(2 * SETTLE_MS)
    after, seconds = work(cdp), time.monotonic() - start
    return (after - before) / seconds


def one_run(page: Page, cdp: CDPSession, app: App, tab: Tab, pace: float, idle: float, traffic: Traffic) -> Seen:
    """Click Run, leave the page alone while the server yields, and gather what both sides noted."""
    app.ask("begin", pace)
    before, start, bytes_before = work(cdp), time.monotonic(), traffic.unpacked.total()
    clicked = page.evaluate("selector => latency.click(selector)", tab.run)
    while not (yields := app.ask("yields")) or yields[-1].state == "running" or not page.evaluate("latency.done()"):
        if time.monotonic() - start > START_SECONDS:
            sys.exit(f"app_latency.py: a run of {tab.label} did not end")
        page.wait_for_timeout(50)
    page.wait_for_timeout(SETTLE_MS)
    after, seconds = work(cdp), time.monotonic() - start
    took = page.evaluate("latency.take()")
    drawn = [(at / 1000, n) for at, n in took["drawn"]]
    done = [at / 1000 for at, state in took["states"] if state == "done"]
    n_tokens = yields[-1].n_tokens
    if yields[-1].state != "done" or n_tokens < N_NEW or not done or not drawn or drawn[-1][1] != n_tokens:
        sys.exit(f"app_latency.py: {tab.label} drew {drawn[-1:]} of {yields[-1]}; are the selectors still right?")
    return Seen(
        yields,
        drawn,
        clicked / 1000,
        done[0],
        after - before - idle * seconds,
        traffic.unpacked.total() - bytes_before,
        app.ask("bare", tab.run_folder),
    )


def work(cdp: CDPSession) -> float:
    """CPU milliseconds of the page's main thread so far."""
    found = {metric["name"]: metric["value"] for metric in cdp.send("Performance.getMetrics")["metrics"]}
    return 1000 * found["TaskDuration"]


def traced(browser: Browser, page: Page, run: Callable[[], Seen]) -> dict[str, float]:
    """CPU milliseconds of the main thread a token by kind, of one run."""
    browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline", "v8"])
    run()
    found = by_kind(json.loads(browser.stop_tracing())["traceEvents"])
    return {kind: round(ms / N_NEW, 3) for kind, ms in found.items()}


def profiled(cdp: CDPSession, run: Callable[[], Seen]) -> dict[str, float]:
    """Milliseconds of script a token by source, of one run."""
    cdp.send("Profiler.enable")
    cdp.send("Profiler.setSamplingInterval", {"interval": 100})  # microseconds
    cdp.send("Profiler.start")
    run()
    found = by_source(cdp.send("Profiler.stop")["profile"])
    cdp.send("Profiler.disable")
    return {source: round(ms / N_NEW, 3) for source, ms in found.items()}


# Figures


def delays(yields: Sequence[Yield], drawn: Sequence[tuple[float, int]]) -> list[float]:
    """Milliseconds from each update that brought tokens to the moment when the page had drawn them.

    The page may draw several updates at once; each then has its own wait.
    """
    found, newest = [], 0
    for update in yields:
        if update.n_tokens > newest:
            newest = update.n_tokens
            at = next(at for at, n in drawn if n >= newest)
            found.append(1000 * (at - update.yielded))
    return found


def by_kind(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """CPU milliseconds of a trace by kind of work, on the main thread of the busiest page.

    Work inside other work counts once: layout that a script forces is layout.
    """
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event.get("name") == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    by_thread: dict[tuple[int, int], dict[str, float]] = {}
    for thread in threads:
        spans = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == thread and "tdur" in e]
        found = dict.fromkeys((*KINDS, "the rest"), 0.0)
        around: list[tuple[float, str]] = []  # when the spans that are open end, and their kinds
        for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
            while around and span["ts"] >= around[-1][0]:
                around.pop()
            kind = next((kind for kind, names in KINDS.items() if span["name"].startswith(names)), "the rest")
            found[kind] += span["tdur"] / 1000
            if around:
                found[around[-1][1]] -= span["tdur"] / 1000
            around.append((span["ts"] + span["dur"], kind))
        by_thread[thread] = found
    return max(by_thread.values(), key=lambda found: sum(found.values()))


def by_source(profile: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds of a V8 profile that were spent in gradio's scripts, in the page's own, and so on.

    A panel's script has no address, the shared one has the page's. Layout that a script forces counts as its time.
    """

    def source(frame: Mapping[str, Any]) -> str:
        if frame["functionName"] == "(garbage collector)":
            return "garbage collection"
        if frame["functionName"] in ("(idle)", "(root)", "(program)"):
            return frame["functionName"]
        path = urlsplit(frame["url"]).path
        if path.startswith(GRADIO_FILES):
            return "gradio"
        return "this benchmark" if path == WATCHER_NAME else "tinylm"

    sources = {node["id"]: source(node["callFrame"]) for node in profile["nodes"]}
    found = dict.fromkeys(("gradio", "tinylm", "garbage collection", "this benchmark"), 0.0)
    for node, microseconds in zip(profile["samples"], profile["timeDeltas"][1:], strict=False):
        if sources[node] in found:
            found[sources[node]] += microseconds / 1000  # until the next sample
    return found


def drawing(runs: Sequence[Seen]) -> dict[str, Any]:
    """What an update and a token cost the page, in ms."""
    waits = [wait for run in runs for wait in delays(run.yields, run.drawn)]
    return {
        "updates_per_run": median(len(run.yields) for run in runs),
        "yield_to_dom": {"median": median(waits), "p95": round(percentile(waits, 95), 2)},
        "page_work_per_token": median(run.work / N_NEW for run in runs),
        "page_work_per_update": median(run.work / len(run.yields) for run in runs),
        "bytes_per_update": round(median(run.bytes / len(run.yields) for run in runs)),
    }


def against_bare(runs: Sequence[Seen]) -> dict[str, float]:
    """How long whole runs take, in ms, and how many times the bare stream that is."""
    spans: dict[str, Callable[[Seen], float]] = {
        "in the generator": lambda run: sum(update.yielded - update.asked for update in run.yields),
        "first ask to last yield": lambda run: run.yields[-1].yielded - run.yields[0].asked,
        "click to done": lambda run: run.done - run.clicked,
    }
    steps: dict[str, Callable[[Seen], float]] = {
        "bare stream": lambda run: run.bare,
        "click to first ask": lambda run: run.yields[0].asked - run.clicked,
        "click to first token": lambda run: run.drawn[0][0] - run.clicked,
        "last yield to done": lambda run: run.done - run.yields[-1].yielded,
    }
    found = {name: median(1000 * span(run) for run in runs) for name, span in (steps | spans).items()}
    return found | {f"{name}, times bare": median(span(run) / run.bare for run in runs) for name, span in spans.items()}


def median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 2)


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that `percent` of all don't exceed."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def load_summary(loads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the times; what was asked for by the heaviest visit; other hosts of all visits."""
    heaviest = max(loads, key=lambda load: load["bytes_sent"])
    times = {name: round(statistics.median(load[name] for load in loads)) for name in ("first_paint_ms", "example_ms")}
    return heaviest | times | {"to_other_hosts": sorted({url for load in loads for url in load["to_other_hosts"]})}


def show(report: Mapping[str, Any]) -> None:
    rows = [
        (
            name,
            found["updates_per_run"],
            *found["yield_to_dom"].values(),
            found["page_work_per_token"],
            found["page_work_per_update"],
            found["bytes_per_update"],
        )
        for name, found in report["drawing"].items()
    ]
    heads = ("updates", "yield to DOM, ms", "p95", "work, ms/token", "work, ms/update", "bytes/update")
    table((f"{N_NEW} tokens", *heads), rows)
    for head, key in (("work, ms/token", "work_by_kind_per_token"), ("script, ms/token", "script_by_source_per_token")):
        found = report[key]
        table((head, *next(iter(found.values()))), [(name, *ms.values()) for name, ms in found.items()])
    for head, key in (("ms, at full speed", "stream"), ("on cores of its own", "stream_on_cores_of_its_own")):
        if streams := report[key]:
            names = next(iter(streams.values()))
            table((head, *streams), [(name, *(found[name] for found in streams.values())) for name in names])
    load = report["first_load"]
    table(
        ("first load", ""),
        [(key.replace("_", " "), f"{load[key]:,}") for key in load if isinstance(load[key], int)]
        + [(f"bytes sent, {kind}", f"{n:,}") for kind, n in load["bytes_sent_by_kind"].items()]
        + [(f"bytes sent, {path}", f"{n:,}") for path, n in load["largest"].items()]
        + [("requests to other hosts", ", ".join(load["to_other_hosts"]) or "none")],
    )


if __name__ == "__main__":
    main()
