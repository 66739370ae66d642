"""A panel's values as few strings: what gradio carries to the browser at the least cost.

At each update gradio copies and compares every leaf of a panel's data several times, the other panels' too, and sends
only what a string or a list has grown by. A run of 60 tokens with ten alternatives each has thousands of leaves; as
strings it has eight, and the browser spends a third of the time on an update (`benchmarks/LOG.md`). `tinylm.unpacked`
in widgets/draw.js undoes this.
"""

from __future__ import annotations

from typing import Any

import orjson  # gradio's own, ten times as fast as json

GROWING = ("tokens", "alternative_ids", "latents")
"""Entries of `result` or `page` that only grow within a run: lists, or one string."""


class Packing:
    """Packs the values of one run, in order."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._first: dict[tuple[str, str], Any] = {}
        self._fixed = ""

    def pack(self, value: dict[str, Any]) -> dict[str, Any]:
        """`run`, `state`, `message`; `fixed` and `rest`, JSON of all else but what grows; and that as strings.

        A list that grows becomes a line of JSON for each item. `rest` names where what grows belongs, under `lists`
        and `texts`. Lists and dicts of the first value that stay the same objects are told once, in `fixed`.
        """
        rest: dict[str, Any] = {"lists": {}, "texts": {}, "result": {}, "page": {}}
        grown = {}
        if not self._fixed:
            self._first = {
                (part, key): content
                for part in ("result", "page")
                for key, content in value[part].items()
                if key not in GROWING and isinstance(content, (list, dict))
            }
            self._fixed = _json([[*place, content] for place, content in self._first.items()])
        for part in ("result", "page"):
            for key, content in value[part].items():
                if key not in GROWING:
                    if (part, key) not in self._first or self._first[part, key] is not content:
                        rest[part][key] = content
                elif isinstance(content, list):
                    lines = self._lines.setdefault(key, [])
                    lines += (_json(item) + "\n" for item in content[len(lines) :])
                    rest["lists"][key] = part
                    grown[key] = "".join(lines)
                elif isinstance(content, str):
                    rest["texts"][key] = part
                    grown[key] = content
        kept = {key: value[key] for key in ("run", "state", "message")}
        return kept | {"fixed": self._fixed, "rest": _json(rest)} | grown


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
