"""The log: a line for each request that tells what it came to, and nothing of what was asked or by whom."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from gradio_client import Client
from gradio_client.exceptions import AppError
from PIL import Image
from serve import ROOT, free_port, make_weights, until

from tinylm.ui import events
from tinylm.ui.limits import Refused, Visit
from tinylm.ui.service import Update

LINE = re.compile(r"\S+ (done|refused|stopped|failed \([\w.]+ at [\w.: >]+\)) \d+\.\d{3} s \d+ tokens")
SECRET = "Wermut"  # a word of the visitor's, which no log may hold


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """What the log says."""
    caplog.set_level(logging.INFO, logger="tinylm")
    return caplog


def an_answer(n: int, error: Exception | None = None, last: bool = True) -> Iterator[Update]:
    for i in range(n):
        yield Update({"tokens": [SECRET] * (i + 1), "text": SECRET}, {}, last and i == n - 1)
    if error:
        raise error


@pytest.mark.parametrize(
    ("error", "outcome", "n"),
    [
        (None, "done", 3),
        (Refused(f"{SECRET} is no prompt."), "refused", 3),
        (ValueError(f"{SECRET} broke it"), "failed (ValueError at events.py", 3),
    ],
)
@pytest.mark.parametrize("way", ["page", "api"])
def test_a_run_is_told_in_one_line_with_its_outcome_and_tokens(
    lines: Any, way: str, error: Exception | None, outcome: str, n: int
) -> None:
    told = events.Told("complete")
    answer = an_answer(n, error)
    values = events.for_page(answer, Visit(), told) if way == "page" else events.for_api(answer, told)
    if error and way == "api":
        with pytest.raises(events.gr.Error):
            list(values)
    else:
        list(values)
    told.write()
    (line,) = lines.messages
    assert line.startswith(f"complete {outcome}") and line.endswith(f" s {n} tokens")
    assert LINE.fullmatch(line) and SECRET not in line


def test_a_run_that_nobody_waits_for_is_told_as_stopped(lines: Any) -> None:
    told, visit = events.Told("route"), Visit()
    values = events.for_page(an_answer(5, last=False), visit, told)
    next(values)
    visit.leave()
    assert list(values) == []
    told.write()
    assert re.fullmatch(r"route stopped \d\.\d{3} s 1 tokens", lines.messages[0])


def test_a_failure_names_places_in_the_code_and_not_what_the_error_says(lines: Any) -> None:
    told = events.Told("complete")
    list(events.for_page(complete_that_breaks(), Visit(), told))
    told.write()
    assert re.match(r"complete failed \(RuntimeError at events\.py:\d+ > test_logs\.py:\d+\)", lines.messages[0])
    assert "shape" not in lines.messages[0] and "\n" not in lines.messages[0]


def complete_that_breaks() -> Iterator[Update]:
    torch.nn.functional.linear(torch.zeros(2, 3), torch.zeros(4, 5))
    yield Update({}, {})


def test_a_line_costs_microseconds(lines: Any) -> None:
    began = time.perf_counter()
    for _ in range(1000):
        events.Told("complete").write()
    assert (time.perf_counter() - began) / 1000 < 0.001


# ---- The served app


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_weights(tmp_path_factory.mktemp("logged") / "weights")


def test_the_served_app_writes_such_lines_to_stderr_and_nothing_else(weights: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "stderr.txt"
    with open(log, "w") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "app.py"), "--weights", str(weights), "--port", str(port)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        try:
            assert process.stdout is not None and "tinylm is at" in process.stdout.readline()
            ask(f"http://127.0.0.1:{port}/", tmp_path)
            until(lambda: " request refused " in log.read_text())  # the line comes a moment after the answer
        finally:
            process.terminate()
            process.wait(20)
    text = log.read_text()
    said = [line.split(" ", 2)[2] for line in text.splitlines()]
    outcomes = [" ".join(line.split()[:2]) for line in said]
    assert outcomes == [
        "/complete done",
        "/complete refused",
        "/caption done",
        "/caption refused",
        "/route done",
        "/gradio_api/call refused",
        "request refused",
    ]
    assert said[0].endswith(" 7 tokens") and said[4].endswith(" 6 tokens")
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line) for line in text.splitlines())
    for secret in (SECRET, "127.0.0.1", str(tmp_path), "base64", "Traceback", "gradio.FileData"):
        assert secret not in text


def ask(address: str, folder: Path) -> None:
    """Requests of several kinds, each with the visitor's own words or picture."""
    client = Client(address, verbose=False)
    client.predict(f"{SECRET} is", "text", 0, 0, 1, 7, 0, api_name="/complete")
    with pytest.raises(AppError):
        client.predict(SECRET * 5000, api_name="/complete")
    picture = BytesIO()
    Image.new("RGB", (9, 9)).save(picture, "PNG")
    url = "data:image/png;base64," + b64encode(picture.getvalue()).decode()
    client.predict({"url": url, "path": None, "meta": {"_type": "gradio.FileData"}}, api_name="/caption")
    with pytest.raises(AppError):
        client.predict({"url": f"data:image/png;base64,{SECRET}", "meta": {}}, api_name="/caption")
    client.predict(f"{SECRET} is", 0, 6, 0, api_name="/route")
    for path, body in ((f"gradio_api/call/{SECRET}", b"{}"), (f"{SECRET}?{SECRET}", None)):
        request = urllib.request.Request(address + path, body, {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=20)


def test_the_log_is_set_up_by_the_program_and_not_by_an_import() -> None:
    script = """
import logging
from tinylm.ui import events, page
log = logging.getLogger("tinylm")
print(log.handlers, logging.getLogger().handlers, log.level)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[] [] 0", "")
