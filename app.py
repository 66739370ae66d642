"""Serve the page: `python app.py`, then open the address it prints."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from typing import Any

WEIGHTS = "weights"
# glibc's: mallopt's numbers, and the values for them.
MEMORY = {-8: 2, -3: 4 * 2**20, -1: 8 * 2**20}  # M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; the environment's GRADIO_SERVER_NAME and GRADIO_SERVER_PORT stand in for --host and --port."""
    parser = argparse.ArgumentParser(
        prog="app.py",
        description="Serve the tinylm page: complete a sentence, caption a flower, watch tokens find their experts.",
        epilog="Weights that are missing don't stop the page: it opens and says which command makes them. "
        "Ctrl-C ends the server.",
    )
    parser.add_argument(
        "--weights",
        metavar="DIR",
        default=WEIGHTS,
        help="folder of run folders: DIR/text, DIR/vision and DIR/moe; any further text run in it can be chosen on "
        "the page (default: ./weights)",
    )
    parser.add_argument(
        "--host",
        default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        help="address to listen on; 0.0.0.0 lets other machines in (default: GRADIO_SERVER_NAME, else 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=os.environ.get("GRADIO_SERVER_PORT", "7860"),
        help="port to listen on (default: GRADIO_SERVER_PORT, else 7860)",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Build the page and serve it until interrupted."""
    options = parse(arguments)
    refusal = _cannot_listen(options.host, options.port)
    if refusal:
        sys.exit(refusal)
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("tinylm").setLevel(logging.INFO)  # a line for each request; see tinylm/ui/events.py
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it quotes from what was uploaded
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that what was put aside is tidied up
    # What the libraries make while they are imported stays. Searching it for garbage, over and over, would take a
    # sixth of the start, and every later search a sixth of a second.
    gc.disable()
    _bound_memory()
    from tinylm.ui import page

    demo = page.build(options.weights)
    gc.freeze()
    gc.enable()
    _, address, _ = demo.launch(server_name=options.host, server_port=options.port, prevent_thread_lock=True)
    print(f"tinylm is at {address}  (Ctrl-C ends it)", flush=True)
    demo.block_thread()


def _cannot_listen(host: str, port: int) -> str | None:
    if not 1 <= port <= 65535:
        return f"app.py: there is no port {port}; choose one from 1 to 65535."
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return f"app.py: can't listen on {host}:{port} ({error.strerror}). Choose another with --port or --host."
    return None


def _bound_memory() -> None:
    """Let threads share two pools of memory, where the C library (glibc) gives each its own; give large blocks back.

    What many visitors' runs have freed is then used again, and takes half as much. And blocks of 4 MB or more, such as
    pictures and long bodies, go back to the system when they are freed; left alone, glibc raises that bound to 32 MB
    once it has met such a block and keeps the next ones: 2,000 hostile requests left 26 to 59 MB behind, now 28 to 34.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        for number, value in MEMORY.items():
            ctypes.CDLL(None).mallopt(number, value)


def __getattr__(name: str) -> Any:
    """`demo`, for `gradio app.py` and Spaces that look for it; built when first asked for."""
    if name != "demo":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tinylm.ui import page

    globals()["demo"] = page.build(WEIGHTS)
    return globals()["demo"]


if __name__ == "__main__":
    main()
