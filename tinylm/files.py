"""Files that anybody may have written: opened without waiting, read up to a limit; and JSON of one meaning only."""

from __future__ import annotations

import json
import math
import os
import stat
from typing import Any, BinaryIO

MAX_DEPTH = 32  # of lists and objects within each other
MAX_DIGITS = 18  # of a whole number; more than any size or count needs
MAX_SHOWN = 80  # characters of a foreign value in a message


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open an ordinary file. Raises OSError, also on a folder, a pipe or a device."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe would be to wait for somebody to write into it
        raise OSError(None, "it is a folder" if os.path.isdir(path) else "it is no ordinary file")
    return open(path, "rb")


def read_text(path: str | os.PathLike[str], max_bytes: int) -> str:
    """A file in UTF-8. Raises OSError, and ValueError if it is something else or larger."""
    with open_file(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes / 1e6:g} MB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None


def read_json(path: str | os.PathLike[str], max_bytes: int) -> Any:
    """What a JSON file holds. Raises as `read_text` and `parse_json` do."""
    return parse_json(read_text(path, max_bytes))


def parse_json(text: str) -> Any:
    """The values of a JSON text.

    Raises ValueError, in one short line, on anything else, and on what JSON or its readers take but no writer means:
    a key that stands twice, NaN and infinity, numbers of very many digits, half a character, lists within lists
    without end.
    """
    try:
        values = json.loads(
            text, object_pairs_hook=_object, parse_int=_whole, parse_float=_finite, parse_constant=_finite
        )
        _check_depth(values)
        if "\\u" in text:  # as which alone half a character can stand in a file
            json.dumps(values, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except UnicodeEncodeError:
        raise ValueError("it holds half of a character (a lone surrogate)") from None
    return values


_TOO_DEEP = f"its lists and objects lie more than {MAX_DEPTH} deep in each other"


def shown(value: Any) -> str:
    """A foreign value for a message: on one line, printable, and not long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)} stands twice")
    return found


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"the number {digits[:6]}… of {len(digits)} digits is too large")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:12]} is no finite number")
    return value


def _check_depth(values: Any) -> None:
    level = [values]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def is_lfs_pointer(path: str | os.PathLike[str]) -> bool:
    """Whether the file is what Git leaves in the place of a large file that it has not fetched."""
    try:
        with open_file(path) as file:
            return file.read(40).startswith(b"version https://git-lfs")
    except OSError:
        return False
