"""Requests that mean no good, made by a grammar from a seeded random source, and what no answer may hold."""

from __future__ import annotations

import json
import platform
import random
import socket
import sys
import sysconfig
from base64 import b64encode
from pathlib import Path
from typing import Any, NamedTuple

from serve import ROOT

from soak.pictures import giant_png
from soak.visitors import API, Page, upload
from soak.wire import posted, request

SECONDS = 30
"""Within which every request has its answer, whatever waits before it."""
API_NAMES = ("complete", "caption", "route")
SENSIBLE: dict[int, list[Any]] = {
    0: [],
    3: ["A baby cat", "text", 5],
    4: ["A baby cat", 0, 5, 0],
    5: [0, 0, 1, 5, 0],
    6: ["text", 0, 0, 1, 5, 0],
    7: ["A baby cat", "text", 0, 0, 1, 5, 0],
}
"""What an event takes that has so many inputs."""
TEXTS = [
    "",
    " ",
    "\n\r\t",
    "A baby cat is called",
    "\0",
    "a\0b" * 20,
    "\ud800",
    "\udfff\ud800 x",
    "\u202eevil\u202c \u2066x\u2069 \u200b\u200e\ufeff",
    "\x1b[31m\x07\x08\x7f\x85\u2028\u2029",
    "Zürich? 你好 🎉 €",
    "e\u0301" * 300,
    "\U0010ffff\uffff\ufffe",
    "<b>x</b> <img src=x onerror=alert(1)> ${alert(1)} {{x}} `",
    "{{7*7}} ${7*7} #{7*7} %s%s%n {0.__class__}",
    "'; DROP TABLE x; -- ",
    "$(id) `id` | id && id",
    "<eos><pad><unk>",
    "__proto__",
    "constructor",
    "../../../../etc/passwd",
    "file:///etc/passwd",
    "x" * 9_999,
    "x" * 10_001,
    "word " * 30_000,
    "🎉" * 20_000,
]
NUMBERS: list[Any] = [
    *(0, -1, 1, 2, 0.5, 1e-320, 1e308, -1e308, 2**31, 2**53 + 1, 2**63, -(2**63), 2**200, 10**400, 1.5),
    *(float("nan"), float("inf"), float("-inf"), "NaN", "1e999", "0x10", "١٢"),
    *(True, False, None, "", [], {}, [1], {"a": 1}),
]
EVENT: dict[str, Any] = {
    **{"model": "text", "ids": [1, 2, 3], "block": 1, "head": 1, "prompt": "A baby cat", "given": [1], "name": "text"},
    **{"of": 1, "off": [[0], [1], []], "muted": [0], "swapped": [], "map": False, "example": "tulip", "other": "rose"},
}
"""What the panels' scripts send along, all of them together."""
BAD_JSON = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"7",
    b'"x"',
    b'{"data":',
    b'{"data": [}',
    b'{"data": null}',
    b'{"data": {}}',
    b'{"data": "x"}',
    b'{"data": [NaN, Infinity, -Infinity]}',
    b'{"data": ["\\ud800"]}',
    b'{"data": ["\xff\xfe"]}',
    b'\xef\xbb\xbf{"data": []}',
    b'{"data": []}{"data": []}',
    b'{"data": [1e999999]}',
    b'{"data": [%s]}' % (b"9" * 5_000),
    b'{"data": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b'{"data": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
    b'{"a": 1, "a": 2, "data": [], "data": ["x"]}',
    b"\0" * 100,
    b"<xml/>",
    b"a=1&b=2",
]
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "CONNECT", "get", "FOO")
CLIMBS = ("../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..\\", "..%5c", "%252e%252e%252f", "....//", "..;/", "%c0%ae%c0%ae/")
FILES = ("etc/passwd", "etc/hostname", "proc/self/environ", "proc/self/cmdline", "app.py", "weights/text/config.json")
PATHS = """
    / /config /config/ /theme.css /robots.txt /favicon.ico /manifest.json /pwa_icon/9 /login /logout /monitoring
    /monitoring/summary /monitoring/x /docs /redoc /openapi.json /svelte/x /static/ /assets/ /static/img/logo.svg
    /assets/index.js /.git/config /app.py /metrics /gradio_api/ /gradio_api/info /gradio_api/info/
    /gradio_api/openapi.json /gradio_api/app_id /gradio_api/user /gradio_api/token /gradio_api/login_check
    /gradio_api/runs /gradio_api/startup-events /gradio_api/queue/status /gradio_api/theme.css /gradio_api/dev/reload
    /gradio_api/run-history/buckets /gradio_api/run-history/records /gradio_api/deep_link?session_hash=x
    /gradio_api/upload_progress?upload_id=x /gradio_api/queue/data /gradio_api/queue/data?session_hash=nobody
    /gradio_api/vibe-edit /gradio_api/call/complete/nothing /gradio_api/call/v2/route/x /gradio_api/mcp/sse
    /gradio_api/stream/x/1/1/playlist.m3u8 /gradio_api/stream/x/1/1/playlist-file /gradio_api/stream/x/1/1/x.ts
    /gradio_api/custom_component/x/client/component/index.js
""".split()  # noqa: SIM905
FIELDS = ("session_hash", "fn_index", "data", "event_data", "trigger_id", "event_id", "simple_format", "batched")
REFUSED_PICTURES = [
    b"",
    b"not a picture",
    b"GIF89a",
    b"\x89PNG\r\n\x1a\n" + b"\0" * 40,
    b"\xff\xd8\xff\xe0" + b"\xff" * 200,
    b"RIFF\xff\xff\xff\xffWEBPVP8 " + b"\0" * 30,
    b"BM" + b"\xff" * 60,
    b"II*\0\x08\0\0\0\xff\xff" + b"\xff" * 200,
    b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>",
    b"\0\0\0\x20ftypheic" + b"\0" * 100,
    b"\0\0\0\x20ftypavif" + b"\0" * 100,
    giant_png(13_000, "black and white"),
]


class Hostile(NamedTuple):
    """A request, and what is done about its answer."""

    raw: bytes
    kind: str
    follow: str = ""  # where an event that it begins is read: API name of a call, or "?session" of a joined queue
    seconds: float = SECONDS  # after which the client goes, if that is to be before the answer


class Grammar:
    """Makes hostile requests; `elsewhere` is the address of a listener that the server must never ask anything."""

    def __init__(self, page: Page, elsewhere: str) -> None:
        self._page, self._elsewhere = page, elsewhere
        self._makers = [
            *(self.call, self.call, self.call, self.call_v2, self.join, self.join, self.join, self.run, self.upload),
            *(self.file, self.file, self.static, self.path, self.bad_json, self.cancel, self.unfinished),
            *(self.component, self.heartbeat),
            *(self.headers, self.elsewhere, self.picture, self.picture),
        ]

    def make(self, source: random.Random) -> Hostile:
        """One request."""
        return source.choice(self._makers)(source)

    def _other(self, source: random.Random) -> str:
        # gradio refuses private addresses by itself; a name it would have to look up.
        return source.choice((self._elsewhere, "http://tinylm.invalid/", "https://tinylm.invalid:8443/"))

    def value(self, source: random.Random, depth: int = 0) -> Any:
        """Any JSON value that a field may get."""
        kind = source.randrange(8 if depth < 3 else 3)
        if kind < 3:
            return source.choice(TEXTS if kind else NUMBERS)
        if kind == 3:
            return [self.value(source, depth + 1) for _ in range(source.randrange(5))]
        if kind == 4:
            return {source.choice(TEXTS)[:40]: self.value(source, depth + 1) for _ in range(source.randrange(4))}
        if kind == 5:
            nested: Any = source.choice(NUMBERS)
            for _ in range(source.choice((2, 8, 15, 200, 900))):
                nested = [nested] if source.randrange(2) else {"a": nested}
            return nested
        if kind == 6:
            return self.payload(source)
        return {"__type__": source.choice(("update", "state", "skip", "x")), "value": self.value(source, depth + 1)}

    def payload(self, source: random.Random) -> dict[str, Any]:
        """What passes for a picture."""
        url = self._other(source) + source.choice(("x.png", "?a=%00", "../x", "x.png#data:"))
        inside = "data:image/png;base64," + b64encode(source.choice(REFUSED_PICTURES)).decode()
        own = str(ROOT / "app.py")
        entries: dict[str, tuple[Any, ...]] = {
            "path": (None, "", url, inside, 7, "\0", "/etc/passwd", "app.py", "C:\\x", "." * 5_000, [], own),
            "url": (None, "", url, inside, inside[:-3] + "===", "data:;base64,%%", "file:///etc/passwd", 7, []),
            "orig_name": ("x.png", "../../x.png", "\ud800", 7),
            "is_stream": (True, False, "x"),
            "size": (-1, 10**30, float("nan"), "x"),
            "meta": ({"_type": "gradio.FileData"}, {}, None, "x", {"_type": "x"}),
        }
        chosen = {name: source.choice(values) for name, values in entries.items() if source.randrange(3)}
        return {"meta": {"_type": "gradio.FileData"}, **chosen}

    def data(self, source: random.Random, name: str) -> list[Any]:
        """The data of an endpoint: about as many values as it takes, some of them sensible."""
        if name == "caption":
            return [self.payload(source) if source.randrange(3) else self.value(source)]
        return self.filled(source, SENSIBLE[7 if name == "complete" else 4])

    def filled(self, source: random.Random, sensible: list[Any]) -> list[Any]:
        """Values among which one is hostile, or about a third, or only a text; now and then too few or too many."""
        data, way = list(sensible), source.randrange(4)
        if data and way == 0:
            data[source.randrange(len(data))] = self.value(source)
        elif way == 1:
            data = [self.value(source) if source.randrange(3) == 0 else value for value in data]
        elif data:
            data[0] = source.choice(TEXTS)
        if source.randrange(10) == 0:
            data = data[: source.randrange(len(data) + 1)] if source.randrange(2) else data * source.choice((2, 30))
        return data

    def call(self, source: random.Random) -> Hostile:
        name = source.choice(API_NAMES)
        body: dict[str, Any] = {"data": self.data(source, name)}
        if source.randrange(5) == 0:
            body[source.choice(FIELDS)] = self.value(source)
        asked = (
            name
            if source.randrange(12)
            else source.choice(("nothing", "../complete", "%00", "Complete", "run_prompt", "_"))
        )
        return Hostile(posted(f"{API}/call/{asked}", body), "call", follow=asked if source.randrange(4) else "")

    def call_v2(self, source: random.Random) -> Hostile:
        name = source.choice((*API_NAMES, "nothing", ""))
        names = ("prompt", "model", "temperature", "seed", "image", "session_hash", "oauth_token", "x", "__class__")
        body = {source.choice(names): self.value(source) for _ in range(source.randrange(4))}
        return Hostile(posted(f"{API}/call/v2/{name}", body), "call v2", follow=name)

    def join(self, source: random.Random) -> Hostile:
        known = source.randrange(8) > 0
        index = source.choice(self._page.all_fn_indices) if known else source.choice(NUMBERS)
        session = f"s{source.randrange(10**12)}"
        n = self._page.n_inputs.get(index, 1) if isinstance(index, int) else 1
        data = self.filled(source, SENSIBLE.get(n, [self.payload(source)] * n))
        body: dict[str, Any] = {"data": data, "fn_index": index, "session_hash": session}
        if source.randrange(2):
            asked = {**EVENT, **{source.choice(list(EVENT)): self.value(source) for _ in range(source.randrange(3))}}
            body["event_data"] = asked if source.randrange(4) else self.value(source)
        if source.randrange(6) == 0:
            body[source.choice(FIELDS)] = self.value(source)
        return Hostile(posted(f"{API}/queue/join", body), "join", follow=f"?{session}" if source.randrange(4) else "")

    def run(self, source: random.Random) -> Hostile:
        way, name = (
            source.choice(("run", "api")),
            source.choice((*API_NAMES, "predict", "nothing", "restore", "refresh", "%00")),
        )
        body = {
            "data": [self.value(source) for _ in range(source.randrange(8))],
            "session_hash": source.choice(TEXTS)[:50],
        }
        if source.randrange(2):
            body["fn_index"] = source.choice([*self._page.all_fn_indices, *NUMBERS])
        return Hostile(posted(f"{API}/{way}/{name}", body), "run")

    def upload(self, source: random.Random) -> Hostile:
        names = (
            "x.png",
            "../../x.png",
            "/etc/passwd",
            "\0.png",
            "\ud800.png",
            "a" * 3_000,
            "",
            "x.html",
            '"; x="',
            "con",
            ".",
        )
        broken: list[dict[str, Any]] = [
            *({}, {}, {"end": b""}, {"end": b"\r\n--tinylm"}, {"end": b"--tinylm--" * 50}),
            *({"boundary": boundary} for boundary in (b"", b"\xff", b"x" * 300, b"tinylm; boundary=x", b'"')),
            *(
                {"disposition": disposition}
                for disposition in (b"", b"form-data; \r\n x", b"\xff\xfe;", b"attachment;")
            ),
            *({"target": f"{API}/upload?upload_id={name}"} for name in ("", "%00", "x" * 5_000)),
        ]
        file, field = source.choice(REFUSED_PICTURES), source.choice(("files", "files", "file", "", "files[]"))
        raw = upload(file, source.choice(names), field, **source.choice(broken))
        return Hostile(raw, "upload")

    def unfinished(self, source: random.Random) -> Hostile:
        """A body that ends before its length, from a client that waits."""
        whole = source.choice((upload(b"x" * 5_000), posted(f"{API}/call/complete", {"data": ["x" * 5_000]})))
        return Hostile(whole[: -source.randrange(1, 4_000)], "unfinished", seconds=0.2)

    def file(self, source: random.Random) -> Hostile:
        ends = [
            *(f"/{source.choice(FILES)}", source.choice(CLIMBS) * source.randrange(1, 9) + source.choice(FILES)),
            *(
                str(ROOT / "app.py"),
                str(ROOT / "weights/text/config.json"),
                sys.executable,
                self._elsewhere,
                "%00",
                "",
                ".",
            ),
            *(
                f"http:{source.choice(('', '/'))}{self._elsewhere.partition(':')[2]}",
                "a" * 9_000,
                "//etc/passwd",
                "%ff%fe",
            ),
        ]
        place = source.choice(("file=", "file/", "proxy=", "file=/gradio_api/file=", "file%3D"))
        return Hostile(request(source.choice(("GET", "GET", "HEAD")), f"{API}/{place}{source.choice(ends)}"), "file")

    def static(self, source: random.Random) -> Hostile:
        place = source.choice(("/static/", "/assets/", "/svelte/", "/", f"{API}/custom_component/1/client/component/"))
        climb = source.choice(CLIMBS) * source.randrange(1, 9)
        return Hostile(request("GET", place + climb + source.choice((*FILES, "%00", "x" * 4_000))), "static")

    def path(self, source: random.Random) -> Hostile:
        target = source.choice(PATHS)
        seconds = 0.2 if target.endswith("dev/reload") else SECONDS  # its stream has no end
        if source.randrange(3) == 0:
            query = source.choice(
                ("a=1", "__theme=%00", "view=api", "deep_link=../x", "tab=%ed%a0%80", "prompt=" + "x" * 9_000)
            )
            target += ("&" if "?" in target else "?") + query
        return Hostile(
            request(source.choice(METHODS) if source.randrange(2) else "GET", target), "path", seconds=seconds
        )

    def bad_json(self, source: random.Random) -> Hostile:
        ends = (
            "call/complete",
            "call/v2/route",
            "queue/join",
            "run/predict",
            "cancel",
            "reset",
            "component_server",
            "login",
        )
        kinds = (
            "application/json",
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "\xff",
            "",
        )
        content_type = ("Content-Type", source.choice(kinds) if source.randrange(3) == 0 else "application/json")
        return Hostile(
            request("POST", f"{API}/{source.choice(ends)}", source.choice(BAD_JSON), [content_type]), "bad JSON"
        )

    def cancel(self, source: random.Random) -> Hostile:
        body = {name: self.value(source) for name in ("session_hash", "fn_index", "event_id") if source.randrange(5)}
        if source.randrange(2):
            body = {"session_hash": "x", "fn_index": source.choice(self._page.all_fn_indices), "event_id": "x"}
        return Hostile(
            posted(f"{API}/{source.choice(('cancel', 'reset', 'stream/x', 'stream/x/close'))}", body), "cancel"
        )

    def component(self, source: random.Random) -> Hostile:
        names = ("__init__", "postprocess", "_is_server_fn", "", "\0", "__class__", "get_config", "value")
        body = {
            "data": self.value(source),
            "component_id": source.choice([*self._page.component_ids, *NUMBERS]),
            "session_hash": source.choice(TEXTS)[:50],
            "fn_name": source.choice(names) if source.randrange(4) else self.value(source),
        }
        return Hostile(posted(f"{API}/component_server", body), "component")

    def heartbeat(self, source: random.Random) -> Hostile:
        name = source.choice(("x", "%00", "%ed%a0%80", "..%2f..", "a" * 8_000, "%F0%9F%8E%89", ""))
        return Hostile(request("GET", f"{API}/heartbeat/{name}"), "heartbeat", seconds=0.2)

    def headers(self, source: random.Random) -> Hostile:
        headers: list[tuple[str, str | bytes]] = [
            ("Host", source.choice(("evil.example", "127.0.0.1:1", "[::1", "\xff", "a" * 3_000))),
            ("X-Forwarded-Host", source.choice(("evil.example", self._elsewhere, "a b", "\xff"))),
            ("X-Forwarded-Proto", source.choice(("https", "javascript", "\xff"))),
            ("X-Forwarded-For", source.choice(("1.2.3.4", "x" * 5_000, "\xff"))),
            ("Forwarded", f"for=1.2.3.4;host={self._elsewhere}"),
            ("Origin", source.choice(("https://evil.example", "null", "\xff"))),
            ("Referer", self._elsewhere),
            ("Range", source.choice(("bytes=0-", "bytes=-1", "bytes=9-1", "bytes=0-0,1-1,2-2", "x" * 100))),
            ("Cookie", source.choice(("access-token=x", "a=" + "b" * 5_000, "\xff", "access-token-unsecure=x"))),
            ("Accept-Encoding", source.choice(("gzip", "br;q=99", "\xff"))),
            ("Accept-Language", "x" * 2_000),
            ("If-None-Match", '"' + "x" * 2_000 + '"'),
            ("Transfer-Encoding", source.choice(("chunked", "gzip", "x"))),
            ("Content-Length", source.choice(("-1", "99", "x", "9" * 40))),
            ("X-HF-Token", "x"),
            ("x-ip-token", source.choice(("x", "\xff"))),
            ("X" * 3_000, "x"),
        ]
        chosen = source.sample(headers, source.randrange(1, 6))
        if source.randrange(3):
            return Hostile(
                request("GET", source.choice(("/", "/config", f"{API}/info", "/static/img/logo.svg")), b"", chosen),
                "headers",
            )
        chosen.append(("Content-Type", "application/json"))
        body = json.dumps({"data": ["A baby cat"]}).encode() + b"\r\n"  # a whole line, should it be taken for a chunk
        return Hostile(request("POST", f"{API}/call/complete", body, chosen), "headers", follow="complete")

    def elsewhere(self, source: random.Random) -> Hostile:
        """Anything that may make the server ask another host."""
        url = self._other(source) + source.choice(("x.png", "", "a b"))
        payload = {"path": url, "url": url, "meta": {"_type": "gradio.FileData"}, "orig_name": "x.png"}
        way = source.randrange(4)
        if way == 0:
            payload.pop(source.choice(("path", "url")))
            return Hostile(posted(f"{API}/call/caption", {"data": [payload]}), "elsewhere", follow="caption")
        if way == 1:
            session = f"s{source.randrange(10**12)}"
            body = {
                "data": [payload] * 2,
                "fn_index": source.choice(self._page.all_fn_indices),
                "session_hash": session,
            }
            return Hostile(posted(f"{API}/queue/join", body), "elsewhere", follow=f"?{session}")
        if way == 2:
            return Hostile(request("GET", f"{API}/{source.choice(('file=', 'proxy=', 'file/'))}{url}"), "elsewhere")
        return Hostile(request("GET", f"/?deep_link={url}&url={url}", b"", [("X-Forwarded-Host", url)]), "elsewhere")

    def picture(self, source: random.Random) -> Hostile:
        inside = "data:image/png;base64," + b64encode(source.choice(REFUSED_PICTURES)).decode()
        payload = {
            "url": inside,
            "path": source.choice((None, "", "x.png", inside)),
            "meta": {"_type": "gradio.FileData"},
        }
        return Hostile(posted(f"{API}/call/caption", {"data": [payload]}), "picture", follow="caption")


def machine_paths() -> list[bytes]:
    """What only this machine's owner knows: no answer may hold any of it."""
    places = {
        str(ROOT),
        str(Path(sys.prefix)),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("stdlib"),
        str(Path.home()),
    }
    return [place.encode() for place in places | {socket.gethostname(), platform.release()} if len(place) > 5]


TRACEBACK = (b"Traceback", b'File "', b'File \\"', b'.py", line', b"site-packages", b"Internal Server Error")


def leaks(answer: bytes, asked: bytes) -> list[str]:
    """What an answer tells that it may not; what the request itself said may come back."""
    found = [mark for mark in (*TRACEBACK, *machine_paths()) if mark in answer and mark not in asked]
    return [mark.decode() for mark in found]
