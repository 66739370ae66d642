"""Serve the real app for tests: tiny run folders with random weights, and `app.py` in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import tinylm
from tinylm.data.flowers import caption

ROOT = Path(__file__).parent.parent
LABELS = ["tulip", "rose", "iris", "daisy", "sunflower", "poppy", "lily"]
LINES = ["A baby cat is called a kitten.", "The capital of France is Paris.", "Bees make honey from nectar."]
CONTEXT = 320
MOE_LAYERS = 12  # slow enough for a run to be told of while it is on
START_SECONDS = 120


def make_weights(folder: Path) -> Path:
    """The three run folders and one more, `deep`, which is slow enough to be stopped."""
    torch.manual_seed(0)
    tokenizer = tinylm.Tokenizer.train(LINES, vocab_size=90)
    captions = tinylm.Tokenizer.train([caption(label) for label in LABELS], vocab_size=120)
    small = {"d_model": 32, "n_heads": 2, "d_latent": 8, "d_ff": 64}
    moe, vision = tinylm.MoEConfig(), tinylm.VisionConfig(image_size=16)
    configs = {
        "text": tinylm.ModelConfig(tokenizer.vocab_size, CONTEXT, n_layers=2, **small),
        "deep": tinylm.ModelConfig(tokenizer.vocab_size, CONTEXT, n_layers=120, **small),
        "moe": tinylm.ModelConfig(tokenizer.vocab_size, CONTEXT, n_layers=MOE_LAYERS, moe=moe, **small),
        "vision": tinylm.ModelConfig(captions.vocab_size, 40, n_layers=2, vision=vision, **small),
    }
    for name, config in configs.items():
        model = tinylm.TinyLM(config).eval()
        run_tokenizer = captions if name == "vision" else tokenizer
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4)  # far enough from uniform for choices to be clear
            model.head_bias[run_tokenizer.eos_id] = -100.0  # runs go on until their limit
        info = {"labels": LABELS, "flower_threshold": 0.5} if name == "vision" else {}
        tinylm.save(folder / name, model, run_tokenizer, info)
    return folder


@contextmanager
def serve(weights: Path) -> Iterator[str]:
    """The address of `app.py` over `weights`, ended by its own process id afterwards."""
    port = free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "app.py"), "--weights", str(weights), "--port", str(port)]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            address = f"http://127.0.0.1:{port}/"
            _wait(address, process, output)
            yield address
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(address: str, process: subprocess.Popen, output: tempfile._TemporaryFileWrapper) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    output.seek(0)
    raise RuntimeError(f"the app did not start; it said:\n{output.read()}")


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until something holds, which must come to pass."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.002)
