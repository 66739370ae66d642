"""Run folders under one weights folder: found, loaded when first needed, and reloaded when they change."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tinylm.checkpoint import CONFIG, FILES, GIT_LFS_PULL, MAX_CONFIG_BYTES, WEIGHTS, BrokenRun, Run, load
from tinylm.files import read_json

TEXT, VISION, MOE = "text", "vision", "moe"
SHIPPED = (TEXT, VISION, MOE)

Stamp = tuple[float, ...]


class Unavailable(Exception):
    """A run folder can't be used; the message is one sentence or two, fit for a visitor."""


class RunFolders:
    """The run folders below `folder`; making one opens nothing."""

    def __init__(self, folder: str | os.PathLike[str], device: str = "cpu") -> None:
        self.folder = Path(folder)
        self.device = device
        self._lock = threading.Lock()
        self._loaded: dict[str, tuple[Stamp, Run]] = {}

    def names(self) -> list[str]:
        """The shipped runs, there or not, then every further folder with a config."""
        try:
            found = sorted(os.listdir(self.folder))
        except OSError:
            found = []
        # A folder's name can be any bytes; one that can't be shown is not offered.
        further = (name for name in found if name not in SHIPPED and name.isprintable())
        return [*SHIPPED, *(name for name in further if os.path.lexists(self.folder / name / CONFIG))]

    def text_names(self) -> list[str]:
        """Runs that complete text: `text` and `moe`, there or not, then any further one without vision."""
        further = [name for name in self.names() if name not in SHIPPED]
        return [TEXT, MOE, *(name for name in further if _reads_text_only(self.folder / name / CONFIG))]

    def get(self, name: str) -> Run:
        """The run of that name, loaded once. Raises Unavailable in words that name the file and the command."""
        folder = self.folder / name
        with self._lock:
            stamp = _stamp(folder)
            found = self._loaded.get(name)
            if found and found[0] == stamp:
                return found[1]
            try:
                if not os.path.isdir(folder):
                    raise BrokenRun(folder / WEIGHTS, "is missing")
                run = load(folder, self.device)
                if name in SHIPPED and (run.model.config.vision is not None) != (name == VISION):
                    raise BrokenRun(folder / CONFIG, "is of a model of another kind")
            except BrokenRun as error:
                raise Unavailable(self._in_words(name, error)) from None
            self._loaded[name] = (stamp, run)
            return run

    def stamp(self, name: str) -> Stamp:
        """Changes when the run's files do; () while there are none."""
        return _stamp(self.folder / name)

    def _in_words(self, name: str, error: BrokenRun) -> str:
        # The visitor gets the weights folder's own name, not where it lies on this machine.
        shown = self.folder.name or "weights"
        variant = name if name in SHIPPED else TEXT
        commands = [f"`python train.py {variant} --out {shown}/{name}`"]
        if error.remedy == GIT_LFS_PULL:
            commands.insert(0, f"`{GIT_LFS_PULL}`")
        reason = f"{shown}/{name}/{error.file} {error.reason}"
        return f"The {name} model can't run: {reason}. To make it, run {' or '.join(commands)}."


def _stamp(folder: Path) -> Stamp:
    found: list[float] = []
    for name in FILES:
        try:
            status = os.stat(folder / name)
        except OSError:
            found.append(-1)
        else:
            found += [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]
    return tuple(found) if max(found) >= 0 else ()


def _reads_text_only(config: Path) -> bool:
    try:
        values = read_json(config, MAX_CONFIG_BYTES)
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and values.get("vision") is None
