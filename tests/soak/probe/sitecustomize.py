"""Put on the served app's PYTHONPATH: tells on SIGUSR1 what is going on inside the process.

Python imports a module of this name before anything else. The app itself is served as it is.
"""

import asyncio
import gc
import json
import os
import signal
import sys
from pathlib import Path

FILE = os.environ.get("TINYLM_PROBE")
PACKAGE = str(Path.cwd() / "tinylm")  # the app is started in its own folder


contacts = 0


def _watch(event, arguments):
    """Counts what goes out: connections, and look-ups of names."""
    global contacts
    contacts += event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")


def _tell(*_):
    loops = [thing for thing in gc.get_objects() if isinstance(thing, asyncio.AbstractEventLoop)]
    tasks = [task for loop in loops if not loop.is_closed() for task in asyncio.all_tasks(loop)]
    busy = 0
    for frame in sys._current_frames().values():
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        busy += frame is not None
    told = {
        "tasks": sorted(getattr(task.get_coro(), "__qualname__", "?") for task in tasks),
        "busy_threads": busy,
        "contacts": contacts,
    }
    gc.collect()
    told["generators"] = sum(
        type(thing).__name__ == "generator"
        and thing.gi_frame is not None
        and thing.gi_code.co_filename.startswith(PACKAGE)
        for thing in gc.get_objects()
    )
    new = Path(f"{FILE}.new")
    new.write_text(json.dumps(told))
    new.replace(FILE)


if FILE:
    sys.addaudithook(_watch)
    signal.signal(signal.SIGUSR1, _tell)
