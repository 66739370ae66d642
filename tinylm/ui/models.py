"""Run folders under one weights folder: found, loaded when first needed, and reloaded when they change."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from tinylm.checkpoint import CONFIG, FILES, WEIGHTS, Run, load

TEXT, VISION, MOE = "text", "vision", "moe"
SHIPPED = (TEXT, VISION, MOE)


class Unavailable(Exception):
    """A run folder can't be used; the message is one sentence or two, fit for a visitor."""


class RunFolders:
    """The run folders below `folder`; making one opens nothing."""

    def __init__(self, folder: str | os.PathLike[str], device: str = "cpu") -> None:
        self.folder = Path(folder)
        self.device = device
        self._lock = threading.Lock()
        self._loaded: dict[str, tuple[tuple[float, ...], Run]] = {}

    def text_names(self) -> list[str]:
        """Runs that complete text: `text` and `moe`, there or not, then any further one without vision."""
        further = []
        if self.folder.is_dir():
            for path in sorted(self.folder.iterdir()):
                if path.name not in SHIPPED and _reads_text_only(path / CONFIG):
                    further.append(path.name)
        return [TEXT, MOE, *further]

    def get(self, name: str) -> Run:
        """The run of that name, loaded once. Raises Unavailable in words that name the file and the command."""
        folder = self.folder / name
        with self._lock:
            stamp = _stamp(folder)
            found = self._loaded.get(name)
            if found and found[0] == stamp:
                return found[1]
            try:
                if not folder.is_dir():
                    raise ValueError(f"{folder / WEIGHTS} is missing")
                run = load(folder, self.device)
            except ValueError as error:
                raise Unavailable(self._in_words(name, error)) from None
            self._loaded[name] = (stamp, run)
            return run

    def stamp(self, name: str) -> tuple[float, ...]:
        """Changes when the run's files do; () while there are none."""
        return _stamp(self.folder / name)

    def _in_words(self, name: str, error: ValueError) -> str:
        # The visitor gets the weights folder's own name, not where it lies on this machine.
        shown = self.folder.name or "weights"
        reason = str(error).replace(str(self.folder) + os.sep, shown + os.sep).splitlines()[0]
        reason = reason.partition("; `python train.py`")[0]
        variant = name if name in SHIPPED else TEXT
        command = f"python train.py {variant} --out {shown}/{name}"
        return f"The {name} model can't run: {reason}. To make it, run `{command}`."


def _stamp(folder: Path) -> tuple[float, ...]:
    try:
        files = sorted(path for path in folder.iterdir() if path.name in FILES)
        return tuple(path.stat().st_mtime for path in files)
    except OSError:
        return ()


def _reads_text_only(config: Path) -> bool:
    try:
        return json.loads(config.read_text(encoding="utf-8")).get("vision") is None
    except (OSError, ValueError, AttributeError):
        return False
