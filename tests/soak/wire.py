"""HTTP as bytes on a socket: what no client library would send can be sent, and an answer can be dropped half-way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

MAX_LINE = 2**24
"""Bytes of one line of an answer; an update of a run is one line."""


class Answer(NamedTuple):
    """What came back."""

    status: int  # 0 if the connection ended without an answer
    headers: dict[str, str]  # names in lower case
    body: bytes
    whole: bool  # False if it broke off, or went on past the time


def request(
    method: str, target: str | bytes, body: bytes = b"", headers: Iterable[tuple[str, str | bytes]] = ()
) -> bytes:
    """A request for one connection of its own; `target` and the headers are sent as they are."""
    lines = [method.encode("latin-1") + b" " + _raw(target) + b" HTTP/1.1", b"Host: 127.0.0.1", b"Connection: close"]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(b"Content-Length: %d" % len(body))
    lines += [name.encode("latin-1") + b": " + _raw(value) for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def posted(target: str, value: Any) -> bytes:
    """A POST of JSON. NaN and lone surrogates are sent as Python's json writes them."""
    return request("POST", target, json.dumps(value).encode(), [("Content-Type", "application/json")])


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


class Opened:
    """An answer whose head has been read."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str], bodiless: bool) -> None:
        self.status, self.headers = status, headers
        self._reader, self._bodiless = reader, bodiless

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises asyncio.IncompleteReadError if it breaks off."""
        if self._bodiless or self.status in (204, 304):
            return
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
        elif "content-length" in self.headers:
            yield await self._reader.readexactly(int(self.headers["content-length"]))
        else:
            while chunk := await self._reader.read(2**16):
                yield chunk

    async def lines(self) -> AsyncIterator[bytes]:
        """The body's lines, without their ends."""
        rest = b""
        async for chunk in self.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line
        if rest:
            yield rest


@asynccontextmanager
async def opened(port: int, raw: bytes, host: str = "127.0.0.1") -> AsyncIterator[Opened]:
    """Send a request and read the answer's head; the connection is closed with the block, the body read or not.

    `host` is the loopback address that asks. Raises OSError or asyncio.IncompleteReadError where no answer comes.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MAX_LINE, local_addr=(host, 0))
    try:
        try:
            writer.write(raw)
            await writer.drain()
        except ConnectionError:
            pass  # the server may have answered, and closed, before it had read all
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        yield Opened(reader, int(head[0].split()[1]), headers, raw.startswith(b"HEAD "))
    finally:
        writer.transport.abort()  # no lingering for an answer that is not read


async def ask(port: int, raw: bytes, seconds: float = 30, host: str = "127.0.0.1") -> Answer:
    """The answer, or what came of it within the time."""
    status, headers, body = 0, {}, bytearray()

    async def read() -> None:
        nonlocal status, headers
        async with opened(port, raw, host) as answer:
            status, headers = answer.status, answer.headers
            async for chunk in answer.chunks():
                body.extend(chunk)

    try:
        await asyncio.wait_for(read(), seconds)
    except (OSError, EOFError, asyncio.TimeoutError):
        return Answer(status, headers, bytes(body), False)
    return Answer(status, headers, bytes(body), True)
