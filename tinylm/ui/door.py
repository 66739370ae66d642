"""What every HTTP request passes before gradio sees it: the ways that are open, how much may come, and safe headers."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import gradio as gr

from tinylm.vision import MAX_BYTES

MAX_JSON = 1_000_000
"""Bytes of a request beside a picture: enough for the longest prompt, each character of it written as an escape."""
MAX_PICTURE = MAX_BYTES * 4 // 3 + 1000
"""Bytes of a picture inside a request, a data: URL in base64."""
MAX_UPLOAD = MAX_BYTES + 100_000
"""Bytes of an upload: one picture and the form around it."""
MAX_UPLOADS_AN_HOUR = 1_000_000_000
"""Bytes of all uploads, which gradio deletes after an hour (see page.py), and of large pictures inside requests."""
MAX_DEPTH = 20
"""Lists and objects inside each other."""
MAX_LEFT_OVER = 100_000_000
"""Bytes of a refused request that are read and thrown away, so that its sender can hear why."""

POLICY = {
    "default-src": "'self'",
    # gradio keeps its settings in a script inside the page, and the panels' scripts come as text.
    "script-src": "'self' 'unsafe-inline' 'unsafe-eval'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "media-src": "'self' data: blob:",
    "connect-src": "'self' data: blob:",
    "worker-src": "'self' blob:",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
    # Hugging Face shows a Space inside its own page.
    "frame-ancestors": "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space",
}
HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "camera=(self), clipboard-read=(self), clipboard-write=(self), microphone=(), geolocation=()",
}

API = "/gradio_api"
READ = re.compile(
    rf"/|/(config|theme\.css|manifest\.json|robots\.txt|favicon\.ico)/?|/(assets|static|svelte)/.+"
    rf"|{API}/(info|openapi\.json|app_id|startup-events|theme\.css|queue/data|upload_progress)/?"
    rf"|{API}/(heartbeat/[^/]+|call/(v2/)?[^/]+/[^/]+|file=.+)",
    re.DOTALL,
)
CALL = re.compile(rf"{API}/call/(?P<v2>v2/)?(?P<name>[^/]+)/?")
ASKED = re.compile(rf"{API}/(queue/join|run/[^/]+)/?")
STEERED = re.compile(rf"{API}/(cancel|reset)/?")
UPLOADED = re.compile(rf"{API}/upload/?")
FILE = f"{API}/file="
ADDRESS = re.compile(r"[\s/\\]*[a-z][a-z0-9+.-]*:", re.IGNORECASE)
SESSION = re.compile(r"[\w-]{1,100}", re.ASCII)
PICTURE = re.compile(rb'"data:[\w.+/-]{0,80};base64,')
NOTHING_HERE = "There is nothing here."
UNREADABLE = "This request can't be read; the page's API tells what it takes."
SENTENCES = {403: "Only the page's own files are served.", 422: UNREADABLE}
TOO_MANY = "Too many pictures were sent within an hour. Please try again later."
TOO_LARGE = (
    f"A request has at most {MAX_JSON // 1_000_000} MB, beside a picture of at most {MAX_BYTES // 1_000_000} MB."
)

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger("tinylm")


class Closed(Exception):
    """What came is turned away: an HTTP status, and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class Door:
    """The ASGI app around gradio's own. What goes wrong inside without an answer gets one, in a sentence."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._uploads = Allowance(MAX_UPLOADS_AN_HOUR)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close"})  # the page uses none
            return
        began, answer, question = time.perf_counter(), Answer(send), Question(receive)
        try:
            await self._app(scope, await self._checked(scope, question.receive), answer.send)
        except Closed as closed:
            await question.throw_away()
            await answer.replace(closed.status, closed.sentence)
            _log(scope, f"refused ({closed.status})", began)
        except Exception as error:
            await answer.replace(400, UNREADABLE)
            _log(scope, f"failed ({type(error).__name__})", began)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """What the app inside is to read from. Raises Closed."""
        method, path = scope["method"], _path(scope)
        if method in ("GET", "HEAD") and READ.fullmatch(path):
            # A file by its path alone: nothing is fetched from any address.
            if path.startswith(FILE) and ADDRESS.match(path.removeprefix(FILE)):
                raise Closed(403, SENTENCES[403])
            return receive
        if method == "POST" and UPLOADED.fullmatch(path):
            return self._uploaded(scope, receive)
        call, asked = CALL.fullmatch(path), ASKED.fullmatch(path)
        if method != "POST" or not (call or asked or STEERED.fullmatch(path)):
            raise Closed(404, NOTHING_HERE)
        body = await _body(scope, receive)
        rest, has_picture = _without_picture(body)
        fields = _fields(rest)
        functions = scope["app"].get_blocks().fns
        function = None
        if call:
            named = [function for function in functions.values() if function.api_name == call["name"]]
            if not named:
                raise Closed(404, "There is no function of that name.")
            function = named[0]
        elif asked:
            number = fields.get("fn_index")
            if type(number) is not int or number not in functions or functions[number].fn is None:
                raise Closed(404, "There is no function of that number.")
            function = functions[number]
        if function and not (call and call["v2"]):
            _check_values(fields, len(function.inputs))
        event = fields.get("event_data")
        if function and function.collects_event_data and any("path" in part for part in _parts(event)):
            raise Closed(400, "No event of this page brings a file.")  # gradio would look for it
        if has_picture and not (function and any(isinstance(block, gr.Image) for block in function.inputs)):
            raise Closed(413, TOO_LARGE)
        if has_picture and not self._uploads.take(len(body)):
            raise Closed(503, TOO_MANY)
        return _again(body, receive)

    def _uploaded(self, scope: Scope, receive: Receive) -> Receive:
        """An upload, as it comes. Raises Closed, here or while it is read."""
        sentence = f"An upload has at most {MAX_BYTES // 1_000_000} MB."
        if _announced(scope) > MAX_UPLOAD:
            raise Closed(413, sentence)
        n_bytes = 0

        async def counted() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_new = len(message.get("body", b""))
            n_bytes += n_new
            if n_bytes > MAX_UPLOAD:
                raise Closed(413, sentence)
            if not self._uploads.take(n_new):
                raise Closed(503, TOO_MANY)
            return message

        return counted


class Allowance:
    """So many an hour."""

    def __init__(self, an_hour: int) -> None:
        self._an_hour = an_hour
        self._hour, self._taken = -1, 0

    def take(self, n: int) -> bool:
        """Whether there were so many left."""
        hour = int(time.monotonic() // 3600)
        if hour != self._hour:
            self._hour, self._taken = hour, 0
        self._taken += n
        return self._taken <= self._an_hour


class Question:
    """What comes in."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._more = True

    async def receive(self) -> Message:
        """The next part."""
        message = await self._receive()
        self._more = message.get("more_body", False)
        return message

    async def throw_away(self) -> None:
        """Read what is left, and keep nothing of it."""
        n_bytes = 0
        while self._more and n_bytes < MAX_LEFT_OVER:
            n_bytes += len((await self.receive()).get("body", b""))


class Answer:
    """What goes back: gradio's answer with the headers, or a sentence in its place."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = self._is_replaced = False

    async def send(self, message: Message) -> None:
        """Pass on; an answer that tells of a path, or of the program's own terms, becomes a sentence."""
        if message["type"] == "http.response.start":
            if message["status"] in SENTENCES:
                await self.replace(message["status"], SENTENCES[message["status"]])
                self._is_replaced = True
                return
            self._has_begun = True
            known = {name.lower() for name, _ in message.get("headers", ())}
            added = [(name, value) for name, value in ENCODED if name not in known]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        if not self._is_replaced:
            await self._send(message)

    async def replace(self, status: int, sentence: str) -> None:
        """Answer with a sentence; an answer that is on its way already just ends."""
        if self._has_begun:
            if not self._is_replaced:
                await self._send({"type": "http.response.body", "body": b""})
            return
        body = json.dumps({"detail": sentence, "error": sentence}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *ENCODED]
        self._has_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


ENCODED = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


def _path(scope: Scope) -> str:
    """Behind what a server in front of this one has put before it."""
    return scope["path"].removeprefix(scope.get("root_path", "").rstrip("/")) or "/"


def _log(scope: Scope, outcome: str, began: float) -> None:
    """A line about a request that reached no function; of its path only what is the app's own."""
    own = re.match(rf"{API}/(queue/join|queue/data|run|call|cancel|reset|upload|file|heartbeat)\b", _path(scope))
    log.info("%s %s %.3f s 0 tokens", own[0] if own else "request", outcome, time.perf_counter() - began)


def _announced(scope: Scope) -> int:
    """Bytes of the body, as its sender says; 0 if it does not."""
    text = dict(scope["headers"]).get(b"content-length", b"0")
    return int(text) if re.fullmatch(rb"\d{1,18}", text) else 0


async def _body(scope: Scope, receive: Receive) -> bytes:
    """The whole body. Raises Closed once it is too large: the rest of it is not kept, and nothing of it is parsed."""
    if _announced(scope) > MAX_JSON + MAX_PICTURE:
        raise Closed(413, TOO_LARGE)
    body, more, has_picture = bytearray(), True, False
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise Closed(400, UNREADABLE)  # the sender has gone
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_JSON:
            has_picture = has_picture or PICTURE.search(body, 0, MAX_JSON) is not None
            if not has_picture or len(body) > MAX_JSON + MAX_PICTURE:
                raise Closed(413, TOO_LARGE)
    return bytes(body)


def _without_picture(body: bytes) -> tuple[bytes, bool]:
    """A large body with the picture left out, and whether there was one. Raises Closed if the rest is large too."""
    if len(body) <= MAX_JSON:
        return body, False
    begins = PICTURE.search(body, 0, MAX_JSON)
    ends = body.find(b'"', begins.end()) if begins else -1
    if begins is None or ends < 0 or begins.start() + len(body) - ends > MAX_JSON:
        raise Closed(413, TOO_LARGE)
    return body[: begins.end()] + body[ends:], True


def _fields(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is. Raises Closed."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise Closed(400, "This is no JSON that can be read.") from None
    if not isinstance(fields, dict):
        raise Closed(400, "What is asked must come as a JSON object.")
    for _ in _parts(fields):  # which looks at their depth
        pass
    session = fields.get("session_hash")
    if session is not None and not (isinstance(session, str) and SESSION.fullmatch(session)):
        raise Closed(400, "The name of a session has at most 100 letters, digits, hyphens and underscores.")
    return fields


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a value. Raises Closed if they and lists lie too deep in each other."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [item for item in level if isinstance(item, (dict, list))]
        yield from (item for item in level if isinstance(item, dict))
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    if any(isinstance(item, (dict, list)) for item in level):
        raise Closed(400, f"Lists and objects may lie at most {MAX_DEPTH} deep in each other.")


def _check_values(fields: dict[str, Any], n_values: int) -> None:
    values = fields.get("data")
    if not isinstance(values, list):
        raise Closed(400, "The values must come as a list, under the name data.")
    if len(values) != n_values:
        raise Closed(400, f"This function takes {n_values} values, not {len(values):,}.")


def _again(body: bytes, receive: Receive) -> Receive:
    """Reads a body that was read already."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def read() -> Message:
        return messages.pop() if messages else await receive()

    return read
