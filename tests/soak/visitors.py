"""What a browser and an API client say to gradio: the page's layout, uploads, joined queues and their streams."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, NamedTuple
from urllib.request import urlopen

from soak.wire import Opened, ask, opened, posted, request

API = "/gradio_api"
FULL_QUEUE = "Queue is full"


class Page(NamedTuple):
    """The page's events, by what raises them."""

    fn_indices: dict[tuple[str, str], int]  # (elem_id, event)
    n_inputs: dict[int, int]  # of every event, by its index
    component_ids: list[int]
    loads: list[int]  # events raised when the page is opened

    @classmethod
    def of(cls, address: str) -> Page:
        """Read from the running server."""
        with urlopen(f"{address}config", timeout=30) as answer:
            config = json.load(answer)
        names = {component["id"]: component["props"].get("elem_id") for component in config["components"]}
        targets = [(event["id"], target) for event in config["dependencies"] for target in event["targets"]]
        found = {(names.get(component) or "", name): index for index, (component, name) in targets}
        loads = [index for index, (_, name) in targets if name == "load"]
        n_inputs = {event["id"]: len(event["inputs"]) for event in config["dependencies"]}
        return cls(found, n_inputs, list(names), loads)

    @property
    def all_fn_indices(self) -> list[int]:
        return list(self.n_inputs)


class RefusedByQueue(Exception):
    """The server said in words that it takes no more now."""


class Visitor:
    """One browser tab, or one client of the API, on the machine that has the number."""

    def __init__(self, port: int, number: int = 0) -> None:
        self.port = port
        self.host = f"127.0.{number // 250}.{number % 250 + 1}"
        self.session = secrets.token_hex(6)

    async def joined(self, fn_index: int, data: list[Any], event_data: Any = None) -> AsyncIterator[dict[str, Any]]:
        """The messages of an event of the page, until it is completed. Closing this drops the connection."""
        body = {"data": data, "fn_index": fn_index, "session_hash": self.session, "event_data": event_data}
        await self._taken(f"{API}/queue/join", body)
        async with opened(
            self.port, request("GET", f"{API}/queue/data?session_hash={self.session}"), self.host
        ) as stream:
            async for message in _messages(stream):
                yield message
                if message["msg"] == "process_completed":
                    return

    async def called(self, name: str, data: list[Any]) -> AsyncIterator[tuple[str, Any]]:
        """The events of a call of the API, as (kind, data)."""
        event = await self._taken(f"{API}/call/{name}", {"data": data})
        async with opened(self.port, request("GET", f"{API}/call/{name}/{event}"), self.host) as stream:
            kind = ""
            async for line in stream.lines():
                if line.startswith(b"event: "):
                    kind = line[7:].decode()
                elif line.startswith(b"data: ") and kind != "heartbeat":
                    yield kind, json.loads(line[6:])

    async def answer(self, name: str, data: list[Any]) -> Any:
        """The whole answer of a call of the API. Raises AssertionError where there is none."""
        kind, value = "", None
        async with aclosing(self.called(name, data)) as events:
            async for kind, value in events:  # noqa: B007
                pass
        assert kind == "complete", f"{name} ended with {kind or 'nothing'}: {value}"
        return value[0]

    async def uploaded(self, picture: bytes, name: str = "picture.png") -> dict[str, Any]:
        """A picture's place on the server, as gr.Image takes it."""
        answer = await ask(self.port, upload(picture, name), host=self.host)
        assert answer.status == 200, answer
        return {"path": json.loads(answer.body)[0], "meta": {"_type": "gradio.FileData"}}

    async def _taken(self, target: str, body: dict[str, Any]) -> str:
        """The id of an event that the queue takes."""
        answer = await ask(self.port, posted(target, body), host=self.host)
        if answer.status == 503 and FULL_QUEUE.encode() in answer.body:
            raise RefusedByQueue(answer.body.decode())
        assert answer.status == 200, f"{target}: {answer.status} {answer.body[:200]!r}"
        return json.loads(answer.body)["event_id"]


def upload(
    content: bytes,
    name: str | bytes = "picture.png",
    field: str = "files",
    target: str = f"{API}/upload",
    boundary: bytes = b"tinylm",
    disposition: bytes = b"form-data;",
    end: bytes = b"\r\n--tinylm--\r\n",
) -> bytes:
    """The request that uploads a file; all but the first two are for those who break it."""
    shown = name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass")
    head = b'--tinylm\r\nContent-Disposition: %s name="%s"; filename="%s"\r\n\r\n' % (
        disposition,
        field.encode(),
        shown,
    )
    return request(
        "POST", target, head + content + end, [("Content-Type", b"multipart/form-data; boundary=" + boundary)]
    )


async def _messages(stream: Opened) -> AsyncIterator[dict[str, Any]]:
    async for line in stream.lines():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
