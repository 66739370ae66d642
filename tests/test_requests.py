"""Whatever a stranger sends, by whichever way: an answer in one sentence, and nothing of the machine in it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from serve import make_weights, serve

from tinylm.ui import door, limits
from tinylm.ui.limits import Refused

JSON = {"Content-Type": "application/json"}
FILE = {"_type": "gradio.FileData"}
SENTENCE = re.compile(r"[A-Z][^\n]*[.`]( To make it, run `[^`\n]+`\.)?")


def answer(
    address: str, path: str, body: bytes | None = None, method: str = "POST", headers: dict[str, str] = JSON
) -> tuple[int, bytes]:
    """Status and body of a request."""
    request = urllib.request.Request(address + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as found:
            return found.status, found.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def refusal(address: str, path: str, body: bytes | None = None, **more: Any) -> tuple[int, str]:
    """Status and sentence of a request that is turned away."""
    status, said = answer(address, path, body, **more)
    return status, json.loads(said)["detail"]


class App:
    """The served app, asked in raw JSON."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._n = 0
        config = json.loads(answer(address, "config", method="GET")[1])
        self.functions = {item["id"]: item for item in config["dependencies"] if item["backend_fn"]}
        # The buttons of the examples share theirs.
        kinds = {(*item["inputs"], None, *item["outputs"], item["queue"]): n for n, item in self.functions.items()}
        self.kinds = {number: self.functions[number] for number in kinds.values()}

    def event(self, number: int, values: Any, event_data: Any = None, **more: Any) -> dict[str, Any]:
        """What the event of that number comes to: `success`, and `output`."""
        self._n += 1
        session = f"stranger{self._n}"
        asked = {"fn_index": number, "data": values, "event_data": event_data, "session_hash": session, **more}
        body = json.dumps(asked).encode()
        if not self.functions[number]["queue"]:
            status, said = answer(self.address, "gradio_api/run/predict", body)
            return {"success": status == 200, "output": json.loads(said)}
        status, said = answer(self.address, "gradio_api/queue/join", body)
        assert status == 200, said
        _, stream = answer(self.address, f"gradio_api/queue/data?session_hash={session}", method="GET")
        messages = [json.loads(line.removeprefix("data: ")) for line in stream.decode().split("\n") if line]
        return next(message for message in messages if message["msg"] == "process_completed")

    def call(self, name: str, values: list[Any]) -> tuple[bool, Any]:
        """Whether a call succeeds, and its last object or its sentence."""
        status, said = answer(self.address, f"gradio_api/call/{name}", json.dumps({"data": values}).encode())
        assert status == 200, said
        event = json.loads(said)["event_id"]
        _, stream = answer(self.address, f"gradio_api/call/{name}/{event}", method="GET")
        kind, data = stream.decode().strip().split("\n\n")[-1].split("\ndata: ")
        found = json.loads(data)
        return (True, found[0]) if kind == "event: complete" else (False, found["error"])


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_weights(tmp_path_factory.mktemp("hostile") / "weights")


@pytest.fixture(scope="module")
def app(weights: Path) -> Iterator[App]:
    with serve(weights) as address:
        yield App(address)


def within(value: Any, n: int) -> Any:
    """A value inside so many lists."""
    return within([value], n - 1) if n else value


VALUES: dict[str, Any] = {
    "nothing": None,
    "a truth": True,
    "a huge number": 10**400,
    "no number": float("nan"),
    "infinity": float("-inf"),
    "text": "x",
    "a long text": "x" * (limits.MAX_CHARACTERS + 1),
    "half a character": "\ud800",
    "turned writing": "\u202ecilbup",
    "a list": [[]],
    "an object": {"a": {"b": None}},
    "a deep list": within(1, door.MAX_DEPTH - 4),
    "a file": {"path": "/etc/hostname", "meta": FILE},
    "an odd file": {"path": {"path": "\0"}, "url": [7], "meta": FILE},
    "a broken picture": {"url": "data:image/png;base64,%%%", "meta": FILE},
}
EVENTS: dict[str, Any] = {
    "nothing": None,
    "text": "x",
    "a list": [1],
    "a map of no tokens": {"model": "text", "ids": [10**400], "block": {}, "head": None},
    "a fork at half a character": {"prompt": "\ud800", "model": {}, "given": [[1]]},
    "a run of no name": {"name": {"a": 1}, "off": [[9**99]], "of": -1, "example": ["tulip"], "muted": 7},
    "slots of no number": {"example": "tulip", "other": "rose", "muted": [None, {}, 10**400], "of": 1},
}


def is_told(found: dict[str, Any]) -> str:
    """The sentence of an event that came to nothing, or "" if it came to something."""
    output = found["output"]
    if not found["success"]:
        assert output["error"], output
        return output["error"]
    panels = [value for value in output["data"] if isinstance(value, dict) and value.get("state") == "error"]
    return panels[0]["message"] if panels else ""


@pytest.mark.parametrize("what", VALUES)
def test_every_function_answers_any_value_in_a_sentence(app: App, what: str) -> None:
    for number, function in app.kinds.items():
        said = is_told(app.event(number, [VALUES[what]] * len(function["inputs"]), EVENTS["a list"]))
        assert not said or SENTENCE.fullmatch(said), (function["api_name"], said)
        assert not re.search(r"/(tmp|etc|home|work)\b|Error|Traceback", said), said


@pytest.mark.parametrize("what", EVENTS)
def test_every_function_answers_any_event_in_a_sentence(app: App, what: str) -> None:
    for number, function in app.kinds.items():
        said = is_told(app.event(number, [None] * len(function["inputs"]), EVENTS[what]))
        assert not said or SENTENCE.fullmatch(said), (function["api_name"], said)


def test_a_prompt_is_text_of_a_bounded_length_and_says_so(app: App) -> None:
    settings = ["text", 0, 0, 1, 3, 0]
    assert app.call("complete", [7, *settings]) == (False, "The prompt must be text.")
    long = "x" * (limits.MAX_CHARACTERS + 1)
    sentence = "The prompt has 10,001 characters; at most 10,000 are read."
    assert app.call("complete", [long, *settings]) == (False, sentence)
    for value in (float("nan"), float("inf"), True, "1", [1], 10**400, {}):
        whole = app.call("complete", ["A baby", "text", value, 0, 1, 3, 0])
        assert whole == (False, "Temperature must be a number from 0 to 2.")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\0b\x1b[31mc\x7f\x9b", "a\ufffdb\ufffd[31mc\ufffd\ufffd"),
        ("\ud83d", "\ufffd"),
        ("\u202eabc\u202c\u2066d\u2069\u200e\u200f\u061c", "\ufffdabc\ufffd\ufffdd\ufffd\ufffd\ufffd\ufffd"),
        ("tab\tline\nreturn\r", "tab\tline\nreturn\r"),
        ("שלום مرحبا 👩‍🚀 e\u0301 \u00a0 \ufeff", "שלום مرحبا 👩‍🚀 e\u0301 \u00a0 \ufeff"),
    ],
)
def test_what_cannot_be_shown_as_it_is_becomes_one_sign_and_the_rest_stays(app: App, text: str, told: str) -> None:
    assert limits.shown(text) == told and len(told) == len(text)
    is_whole, found = app.call("complete", ["A " + text, "text", 0, 0, 1, 2, 0])
    assert is_whole and found["text"].startswith("A " + told)


def test_no_address_and_no_file_of_the_server_is_opened_for_a_picture(app: App, weights: Path, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "own.png")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.5)
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        sources = [f"http://{host}/x.png", f"//{host}/x.png", f"ftp://{host}/x.png", "http://[::1]/x"]
        sources += ["file:///etc/hostname", "app.py", "/dev/zero", "/tmp/gradio/../own.png"]
        sources += [str(tmp_path / "own.png"), str(weights / "text" / "config.json")]
        for source in sources:
            for payload in ({"path": source}, {"url": source}, {"path": source, "url": source}, source):
                value = {**payload, "meta": FILE} if isinstance(payload, dict) else payload
                is_whole, said = app.call("caption", [value])
                assert not is_whole and said.startswith("Please upload the picture"), (value, said)
        status, said = answer(app.address, f"gradio_api/file=http://{host}/x.png", method="GET")
        assert status == 403
        with pytest.raises(TimeoutError):
            listener.accept()  # nobody came


def png(n_bytes: int) -> bytes:
    """A small picture in a file of that size."""
    file = BytesIO()
    Image.new("RGB", (8, 8), (200, 30, 60)).save(file, "PNG")
    return file.getvalue() + b"\0" * (n_bytes - len(file.getvalue()))


def test_a_picture_as_large_as_the_limit_travels_inside_a_request(app: App) -> None:
    url = "data:image/png;base64," + b64encode(png(30_000_000)).decode()
    is_whole, found = app.call("caption", [{"url": url, "meta": FILE}])
    assert is_whole and found["caption"]


def test_a_larger_picture_is_refused_in_a_sentence(app: App) -> None:
    url = "data:image/png;base64," + b64encode(png(31_000_000)).decode()
    body = json.dumps({"data": [{"url": url, "meta": FILE}]}).encode()
    assert refusal(app.address, "gradio_api/call/caption", body) == (413, door.TOO_LARGE)


LONG = b"x" * 30_000_000
PICTURE = b"data:image/png;base64,"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("gradio_api/call/complete", b'{"data": ["%s", "text", 0, 0, 1, 3, 0]}' % LONG),
        ("gradio_api/queue/join", b'{"fn_index": 4, "session_hash": "a", "data": [], "event_data": "%s"}' % LONG),
        # A picture is for functions that take one, one only, and nothing large beside it.
        ("gradio_api/call/complete", b'{"data": ["%s%s", "text", 0, 0, 1, 3, 0]}' % (PICTURE, LONG)),
        ("gradio_api/call/caption", b'{"data": [{"url": "%sAAAA", "path": "%s"}]}' % (PICTURE, LONG)),
        ("gradio_api/call/caption", b'{"data": [{"path": "%s", "url": "%sAAAA"}]}' % (LONG, PICTURE)),
        ("gradio_api/cancel", b'{"session_hash": "%s"}' % LONG),
        ("gradio_api/call/complete", b"[" * 20_000_000),
    ],
)
def test_a_long_text_is_refused_before_it_is_parsed(app: App, path: str, body: bytes) -> None:
    assert refusal(app.address, path, body) == (413, door.TOO_LARGE)


def test_a_long_text_in_chunks_is_refused_too(app: App) -> None:
    host, port = app.address.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = "POST /gradio_api/call/complete HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
        for _ in range(5):
            connection.sendall(b"%x\r\n%s\r\n" % (1_000_000, b"x" * 1_000_000))
        connection.sendall(b"0\r\n\r\n")
        said = b""
        while not said.endswith(b"}"):
            said += connection.recv(65536)
    assert said.startswith(b"HTTP/1.1 413 ") and door.TOO_LARGE.encode() in said


@pytest.mark.parametrize(("begins", "at_most"), [(b"[", 2_000_000), (b'["data:image/png;base64,', 43_000_000)])
def test_no_more_is_read_of_an_endless_request_than_could_be_used(begins: bytes, at_most: int) -> None:
    n_read = 0

    async def receive() -> dict[str, Any]:
        nonlocal n_read
        part = b"x" * 500_000 if n_read else begins
        n_read += len(part)
        return {"type": "http.request", "body": part, "more_body": True}

    with pytest.raises(door.Closed):
        asyncio.run(door._body({"headers": []}, receive))
    assert n_read < at_most


def test_an_upload_is_one_picture_at_most(app: App) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    part = b'--B\r\nContent-Disposition: form-data; name="files"; filename="x.png"\r\n\r\n%s\r\n'
    body = part % png(15_000_000) + part % png(16_000_000) + b"--B--\r\n"
    assert refusal(app.address, "gradio_api/upload", body, headers=headers) == (413, "An upload has at most 30 MB.")


def test_uploads_are_bounded_within_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [7 * 3600.0]
    monkeypatch.setattr(door.time, "monotonic", lambda: now[0])
    allowance = door.Allowance(100)
    assert [allowance.take(40) for _ in range(3)] == [True, True, False]
    now[0] += 3600
    assert allowance.take(100) and not allowance.take(1)


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"", 400, "This is no JSON that can be read."),
        (b"{", 400, "This is no JSON that can be read."),
        (b"\xff\xfe", 400, "This is no JSON that can be read."),
        (b'{"data": ' + b"[" * 100_000, 400, "This is no JSON that can be read."),
        (b'{"data": [' + b"9" * 5000 + b"]}", 400, "This is no JSON that can be read."),
        (b"[1]", 400, "What is asked must come as a JSON object."),
        (b'{"data": %s}' % (b"[" * 30 + b"]" * 30), 400, "Lists and objects may lie at most 20 deep in each other."),
        (b'{"data": {}, "fn_index": 0}', 400, "The values must come as a list, under the name data."),
        (b'{"fn_index": 0}', 400, "The values must come as a list, under the name data."),
        (b'{"data": [], "fn_index": 9999}', 404, "There is no function of that number."),
        (b'{"data": [], "fn_index": -1}', 404, "There is no function of that number."),
        (b'{"data": [], "fn_index": true}', 404, "There is no function of that number."),
        (b'{"data": []}', 404, "There is no function of that number."),
        (b'{"data": [], "session_hash": "\\ud800", "fn_index": 0}', 400, None),
        (b'{"data": [], "session_hash": {}, "fn_index": 0}', 400, None),
    ],
)
def test_what_is_no_request_is_refused_in_a_sentence(app: App, body: bytes, status: int, sentence: str | None) -> None:
    found, said = refusal(app.address, "gradio_api/queue/join", body)
    assert (found, said) == (status, sentence or said) and SENTENCE.fullmatch(said)


def test_the_number_of_values_is_checked_on_every_way(app: App) -> None:
    sentence = "This function takes 7 values, not 2."
    body = json.dumps({"data": ["A", "text"]}).encode()
    assert refusal(app.address, "gradio_api/call/complete", body) == (400, sentence)
    number = next(n for n, function in app.functions.items() if function["api_name"] == "complete")
    for n in (0, 6, 8, 1000):
        body = json.dumps({"data": [None] * n, "fn_index": number, "session_hash": "a"}).encode()
        status, said = refusal(app.address, "gradio_api/queue/join", body)
        assert (status, said) == (400, f"This function takes 7 values, not {n:,}.")


@pytest.mark.parametrize("field", ["event_id", "trigger_id", "batched", "simple_format", "oauth_token"])
def test_odd_fields_of_a_request_are_refused_in_a_sentence(app: App, field: str) -> None:
    for value in ("\ud800", {"a": [float("nan")]}, [1], 10**400):
        body = json.dumps({"data": [], "fn_index": 4, "session_hash": "odd", field: value}).encode()
        status, said = answer(app.address, "gradio_api/queue/join", body)
        assert status in (200, 400, 422)
        assert status == 200 or SENTENCE.fullmatch(json.loads(said)["detail"])


@pytest.mark.parametrize("path", ["/etc/passwd", "\0", "." * 5000, "x"])
def test_an_event_brings_no_file(app: App, path: str) -> None:
    number = next(n for n, function in app.functions.items() if function["api_name"] == "run_map")
    for event in ({"path": path, "meta": FILE}, {"ids": [{"path": path}], "model": "text"}):
        asked = {"data": [], "fn_index": number, "session_hash": "files", "event_data": event}
        said = refusal(app.address, "gradio_api/queue/join", json.dumps(asked).encode())
        assert said == (400, "No event of this page brings a file.")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("gradio_api/call/nothing", {"data": []}),
        ("gradio_api/call/v2/nothing", {}),
        ("gradio_api/call/v2/complete", {"bogus": "x"}),
        ("gradio_api/run/nothing", {"data": []}),
        ("gradio_api/run/complete", {"data": [None] * 7, "fn_index": 0}),
        ("gradio_api/api/caption", {"data": [None]}),
        ("gradio_api/component_server", {"data": 1, "component_id": 9999, "session_hash": "a", "fn_name": "x"}),
        ("gradio_api/cancel", {"session_hash": 7, "fn_index": "x", "event_id": []}),
        ("gradio_api/cancel", {"session_hash": "a", "fn_index": float("nan"), "event_id": "\ud800"}),
        ("gradio_api/reset", {"event_id": {"a": "\ud800"}}),
        ("gradio_api/stream/x", {"data": []}),
        ("gradio_api/process_recording", {}),
        ("gradio_api/vibe-edit", {"prompt": "x"}),
    ],
)
def test_no_way_ends_in_an_error_of_the_program(app: App, path: str, fields: dict[str, Any]) -> None:
    status, said = refusal(app.address, path, json.dumps(fields).encode())
    assert 400 <= status < 500 and SENTENCE.fullmatch(said)


@pytest.mark.parametrize("path", ["gradio_api/queue/data?session_hash=nobody", "gradio_api/call/complete/nothing"])
def test_the_stream_of_nobody_ends(app: App, path: str) -> None:
    status, said = answer(app.address, path, method="GET")
    assert status == 200 and b"error" in said


def test_strangers_at_the_same_time_change_nothing_for_a_visitor(app: App) -> None:
    before = app.call("complete", ["A baby", "text", 0, 0, 1, 8, 0])
    stop = threading.Event()

    def hammer() -> None:
        while not stop.is_set():
            answer(app.address, "gradio_api/queue/join", b'{"data": [[[[')
            answer(app.address, urllib.parse.quote("gradio_api/file=/etc/\0"), method="GET")

    threads = [threading.Thread(target=hammer) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert app.call("complete", ["A baby", "text", 0, 0, 1, 8, 0]) == before and before[0]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("value", [True, "1", [], {}, 10**400, -(10**400), float("nan"), 1.5, None])
def test_numbers_are_finite_whole_and_in_range_or_refused(value: Any) -> None:
    if value is None:
        assert limits.whole(value, "Seed", 0, 9, 4) == 4
        return
    with pytest.raises(Refused, match=r"^Seed must be a (whole )?number[^\n]*\.$"):
        limits.whole(value, "Seed", 0, 9, 4)
