"""The served process from outside: its memory, threads, open files, temporary files, and the tasks inside it."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from serve import ROOT, make_weights, serve

needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory and threads are read from /proc")
PROBE = Path(__file__).parent / "probe"
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
DEEP = "deep"
"""A text run of 120 layers that never ends a text by itself: a stream of it lasts."""


class Counts(NamedTuple):
    """What a server holds at one moment."""

    tasks: int  # of asyncio
    busy_threads: int  # that are inside tinylm
    generators: int  # of tinylm that were begun and are neither finished nor closed
    threads: int
    files: int  # open file descriptors: connections too
    temporary_files: int


class Server(NamedTuple):
    """A running app."""

    address: str
    pid: int
    folder: Path  # of its temporary files: uploads, the example pictures

    @property
    def port(self) -> int:
        return int(self.address.rstrip("/").rpartition(":")[2])

    def rss(self) -> float:
        """Resident memory, in MB."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_SIZE / 1e6

    def cpu_seconds(self) -> float:
        """Time that the process has spent on the processor since it began."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def lives(self) -> bool:
        """Whether the process runs."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def log(self) -> str:
        """All that it has printed."""
        return Path(f"/proc/{self.pid}/fd/1").read_text(errors="replace")

    def inside(self) -> dict[str, Any]:
        """What the probe tells: the names of the tasks, the threads that compute, the runs that are open."""
        told = self.folder.parent / "probe.json"
        told.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        wait_until(told.exists, "the probe has answered", 20)
        return json.loads(told.read_text())

    def counts(self) -> Counts:
        """Everything that must come back to where it was."""
        told = self.inside()
        return Counts(
            len(told["tasks"]),
            told["busy_threads"],
            told["generators"],
            len(list(Path(f"/proc/{self.pid}/task").iterdir())),
            len(list(Path(f"/proc/{self.pid}/fd").iterdir())),
            sum(path.is_file() for path in self.folder.rglob("*")),
        )


def wait_until(condition: Callable[[], object], what: str, seconds: float) -> None:
    """Return as soon as the condition holds; fail when it does not within the time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


@contextmanager
def served(weights: Path) -> Iterator[Server]:
    """The app over `weights`, with temporary files of its own and the probe inside."""
    with tempfile.TemporaryDirectory(prefix="tinylm-soak-") as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name) / "temporary"
        folder.mkdir()
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("GRADIO_TEMP_DIR", str(folder / "gradio"))
        patch.setenv("GRADIO_HEARTBEAT_INTERVAL", "2")  # a closed tab leaves a task until then; 15 s by default
        patch.setenv("PYTHONPATH", str(PROBE))
        patch.setenv("TINYLM_PROBE", str(Path(name) / "probe.json"))
        with serve(weights) as address:
            yield Server(address, _child_of_ours(address), folder)


def shipped_weights(folder: Path) -> Path:
    """The weights that ship, by links, and beside them the deep run."""
    folder.mkdir()
    for run in (ROOT / "weights").iterdir():
        if run.is_dir():
            (folder / run.name).symlink_to(run)
    (folder / DEEP).symlink_to(make_weights(folder.parent / "made") / DEEP)
    return folder


def _child_of_ours(address: str) -> int:
    port = address.rstrip("/").rpartition(":")[2]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            command = (process / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if parent == os.getpid() and command[-3:-1] == ["--port", port]:
            return int(process.name)
    raise RuntimeError(f"no process of ours serves {address}")


class Sampler:
    """The most of a number while a block runs, looked at every 50 ms."""

    def __init__(self, number: Callable[[], float]) -> None:
        self.most = number()
        self._number, self._over = number, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.most = max(self.most, self._number())

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
