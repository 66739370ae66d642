"""Files that no kill, full disk or power cut leaves half written: one, several together; and one writer a folder.

Several files become new in one moment because a folder does. They are written into `.tinylm-new.tmp` and flushed to
the disk; that folder's renaming to `.tinylm-new` is the moment; then its files are moved over the old ones, and it is
removed. A kill before the moment leaves the old files and some rubbish, which the next save throws away. A kill after
it leaves `.tinylm-new` with the files that are not moved yet: each of them goes before the one of its name beside the
folder (`current`), and whoever comes next moves the rest (`finish`), as often as it takes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NEW = ".tinylm-new"
TEMPORARY = ".tmp"  # what is added to the name of a file, or of `NEW`, that is still being written

Writer = Callable[[Path], Any]


class InUse(ValueError):
    """Another process writes into the folder."""


def write_whole(path: Path, writer: Writer) -> None:
    """Let `writer` write a temporary file, flush it to the disk, and move it to `path`. Raises OSError."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        writer(temporary)
        _flush(temporary)
        os.replace(temporary, path)
        flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_together(folder: Path, writers: Mapping[str, Writer]) -> None:
    """Write the files of these names so that all of them are the old ones or all are the new ones. Raises OSError.

    One process at a time (`locked`); others may read meanwhile.
    """
    finish(folder)
    unfinished = folder / (NEW + TEMPORARY)
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir()
        for name, writer in writers.items():
            writer(unfinished / name)
            _flush(unfinished / name)
        flush_folder(unfinished)
        os.replace(unfinished, folder / NEW)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    flush_folder(folder)
    finish(folder)


def finish(folder: Path) -> None:
    """Move what a save that was cut short has left to move; nothing where there is nothing or it may not be moved."""
    new = folder / NEW
    with suppress(OSError):
        for path in list(new.iterdir()):
            with suppress(FileNotFoundError):  # somebody else has just moved it
                os.replace(path, folder / path.name)
        flush_folder(folder)
        new.rmdir()


def current(folder: Path, name: str) -> Path:
    """Where the file of this name is to be read, which `finish` may not have moved yet."""
    new = folder / NEW / name
    return new if os.path.exists(new) else folder / name  # Path.exists would raise in a folder that can't be searched


def version(folder: Path, names: Iterable[str]) -> list[Any]:
    """Something that is another one when any of these files was replaced or moved."""
    found: list[Any] = []
    for path in (current(folder, name) for name in names):
        try:
            status = os.stat(path)
        except OSError:
            found.append(None)
        else:  # the place too: who opens a file just when it is moved finds none
            found.append((path, status.st_ino, status.st_mtime_ns, status.st_size))
    return found


def tidy(folder: Path, names: Iterable[str]) -> None:
    """Finish the last save of a killed process and throw away what it had only begun to write."""
    finish(folder)
    shutil.rmtree(folder / (NEW + TEMPORARY), ignore_errors=True)
    for name in names:
        (folder / (name + TEMPORARY)).unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only one who writes into `folder`, which must exist. Raises InUse if another process is.

    The lock lies on the folder itself, no file is made, and the system lifts it when the process ends, however it
    ends. Windows can't lock folders, and some network drives can't lock at all: there nobody is refused.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"another run is being trained into {folder}; wait for its end or give another --out") from None
        except OSError:
            pass  # no locks there
        yield
    finally:
        os.close(handle)


def flush_folder(folder: Path) -> None:
    """Have the disk remember what was renamed in `folder`."""
    if os.name == "nt":  # which opens no folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network drives can't
            os.fsync(handle)
    finally:
        os.close(handle)


def _flush(path: Path) -> None:
    with open(path, "r+b") as file:  # Windows flushes only what is open for writing
        os.fsync(file.fileno())
