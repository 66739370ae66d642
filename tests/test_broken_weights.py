"""Run folders that are missing, cut short, foreign or hostile: one line that names the file, at once and without harm.

Run as a script this is the worker: it loads every folder it is told of, with little memory, and prints what was said.
"""

from __future__ import annotations

import ast
import json
import math
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from browsing import watched_page
from conftest import ROOT, lively, random_images, tiny_config
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image
from playwright.sync_api import Browser, expect
from safetensors.torch import load_file, save_file
from serve import make_weights, serve

import tinylm
import tinylm.captioner
from tinylm import Tokenizer, VisionConfig, checkpoint
from tinylm.captioner import Captioner
from tinylm.checkpoint import BrokenRun
from tinylm.data.flowers import caption
from tinylm.ui.models import RunFolders, Unavailable

CONFIG, WEIGHTS, TOKENIZER, METRICS = READ = ("config.json", "model.safetensors", "tokenizer.json", "metrics.json")
VARIANTS = ("text", "vision", "moe")
LABELS = ["tulip", "rose", "iris"]
LINES = ["A baby cat is called a kitten.", "The capital of France is Paris.", *map(caption, LABELS)]
INFO = {"variant": "text", "steps": 3, "val_loss": 2.5, "history": [{"step": 1, "val_loss": 2.5}]}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 2811936\n"
MAX_CPU_SECONDS = 2.0
HEADROOM, MAX_GROWTH_MB = 600_000_000, 200
"""Bytes beyond which the worker gets no memory, and by how much it may really grow over all folders together."""

Break = Callable[[Path], Any]


def make_runs(folder: Path) -> Path:
    """A tiny run of each variant."""
    tokenizer = Tokenizer.train(LINES, 60)
    for variant in VARIANTS:
        config = tiny_config(variant, vocab_size=tokenizer.vocab_size, max_seq_len=60)
        known = {"labels": LABELS, "flower_threshold": 0.5} if variant == "vision" else {}
        tinylm.save(folder / variant, lively(config), tokenizer, INFO | known)
    return folder


# Ways to break a folder: what is done to it, the file that is named, and a word of the reason.


def with_json(name: str, change: Callable[[dict[str, Any]], Any]) -> Break:
    """Change a JSON file; `change` may return its whole new text."""

    def broken(folder: Path) -> None:
        values = json.loads((folder / name).read_text(encoding="utf-8"))
        text = change(values)
        (folder / name).write_text(text if isinstance(text, str) else json.dumps(values), encoding="utf-8")

    return broken


def setting(name: str, *path: str, to: Any) -> Break:
    """Set one value within a JSON file."""

    def change(values: dict[str, Any]) -> None:
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = to

    return with_json(name, change)


def writing(name: str, content: bytes) -> Break:
    return lambda folder: (folder / name).write_bytes(content)


def raw(name: str, key: str, text: str) -> Break:
    """Set one value of a JSON file's outermost object to a text that json.dumps would not write."""

    def change(values: dict[str, Any]) -> str:
        values.pop(key, None)
        return json.dumps(values)[:-1] + f', "{key}": {text}}}'

    return with_json(name, change)


def sparse(name: str, n_bytes: int, start: bytes = b"") -> Break:
    """A file that has this many bytes and takes no room on the disk."""

    def broken(folder: Path) -> None:
        with (folder / name).open("r+b") as file:
            file.write(start)
            file.truncate(n_bytes)

    return broken


def linking(name: str, target: str) -> Break:
    def broken(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return broken


def replacing(name: str, make: Callable[[Path], Any]) -> Break:
    def broken(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return broken


def with_tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Break:
    def broken(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return broken


def filling(name: str, value: float, at: int = 0) -> Break:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[at] = value

    return with_tensors(change)


def typed(name: str, dtype: torch.dtype) -> Break:
    return with_tensors(lambda tensors: tensors.update({name: tensors[name].to(dtype)}))


def with_header(change: Callable[[dict[str, Any]], Any], n_bytes: int | None = None) -> Break:
    """Change a safetensors file's header, and the length it claims for it."""

    def broken(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        n_header = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + n_header])
        text = change(header)
        packed = (text if isinstance(text, str) else json.dumps(header)).encode()
        claimed = len(packed) if n_bytes is None else n_bytes
        (folder / WEIGHTS).write_bytes(claimed.to_bytes(8, "little") + packed + data[8 + n_header :])

    return broken


def shift(header: dict[str, Any], name: str, by: int, end: int = 0) -> None:
    offsets = header[name]["data_offsets"]
    header[name]["data_offsets"] = [offsets[0] + by, offsets[1] + by + end]


class Shell:
    """What runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def bomb(folder: Path) -> bytes:
    """A pickle that makes the file `ran` beside the folder when it is read."""
    return pickle.dumps(Shell(f"touch {folder.parent.parent / 'ran'}"))


def torch_file(folder: Path, name: str) -> None:
    torch.save(Shell(f"touch {folder.parent.parent / 'ran'}"), folder / name)


HEAD, DEEP = "head_bias", "[" * 10_000 + "]" * 10_000
ALL = VARIANTS
ABSURD: dict[str, Any] = {
    "-1": -1, "0": 0, "1.5": 1.5, "2.0": 2.0, "a text": "128", "an object": {"a": 1}, "a list": [[[1]]], "null": None,
    "true": True, "10^9": 10**9, "10^17": 10**17, "10^30": 10**30,
}  # fmt: skip
COUNTS = ("vocab_size", "max_seq_len", "d_model", "n_layers", "n_heads", "d_latent", "d_ff")

Case = tuple[tuple[str, ...], Break, str, str]
CASES: dict[str, Case] = {}
for _name in READ:
    _missing = (lambda name: lambda folder: (folder / name).unlink())(_name)
    if _name != METRICS:
        CASES[f"{_name}: missing"] = ALL, _missing, _name, "is missing"
    CASES |= {
        f"{_name}: LFS pointer": (ALL, writing(_name, POINTER), _name, "Git LFS pointer.*`git lfs pull`"),
        f"{_name}: empty": (ALL, writing(_name, b""), _name, "can't be used"),
        f"{_name}: zeros": (ALL, writing(_name, bytes(130)), _name, "can't be used"),
        f"{_name}: a web page": (ALL, writing(_name, b"<!doctype html><title>404</title>"), _name, "can't be used"),
        f"{_name}: a list": (ALL, writing(_name, b"[1, 2, 3]"), _name, "can't be used"),
        f"{_name}: no UTF-8": (ALL, writing(_name, b'{"a": "\xff\xfe"}'), _name, "can't be used"),
        f"{_name}: 10,000 levels": (ALL, writing(_name, DEEP.encode()), _name, "can't be used"),
        f"{_name}: a folder": (ALL, replacing(_name, Path.mkdir), _name, "it is a folder"),
        f"{_name}: a link to itself": (ALL, linking(_name, _name), _name, "symbolic links"),
        f"{_name}: a link to nothing": (("text",), linking(_name, "nothing"), _name, "is missing"),
        f"{_name}: a pipe": (("text",), replacing(_name, os.mkfifo), _name, "it is no ordinary file"),
        f"{_name}: a device": (("text",), linking(_name, "/dev/zero"), _name, "it is no ordinary file"),
        # Whoever runs this may read every file; this one gives an error all the same.
        f"{_name}: unreadable": (ALL, linking(_name, "/proc/self/mem"), _name, "can't be used: Input/output error"),
        f"{_name}: a pickle": (ALL, (lambda n: lambda f: (f / n).write_bytes(bomb(f)))(_name), _name, "can't be used"),
        f"{_name}: a torch file": (ALL, (lambda n: lambda f: torch_file(f, n))(_name), _name, "can't be used"),
        f"{_name}: 3 GB of zeros": (("text",), sparse(_name, 3 * 10**9), _name, "can't be used"),
    }
for _count in COUNTS:
    for _word, _value in ABSURD.items():
        # Of numbers that could be, the weights or the vocabulary are the ones that don't fit.
        _file = "|".join(READ[:3]) if isinstance(_value, int) and _value > 1 else CONFIG
        CASES[f"{_count} is {_word}"] = ALL, setting(CONFIG, _count, to=_value), _file, ""
CASES |= {
    "config: unknown key": (ALL, setting(CONFIG, "d_modle", to=24), CONFIG, "d_modle"),
    "config: unknown key of 100,000": (ALL, setting(CONFIG, "x" * 100_000, to=24), CONFIG, "unknown"),
    "config: unknown key of two lines": (ALL, setting(CONFIG, "a\nb\x1b", to=24), CONFIG, "unknown"),
    "config: NaN": (ALL, raw(CONFIG, "d_model", "NaN"), CONFIG, "NaN is no finite number"),
    "config: infinity": (ALL, raw(CONFIG, "d_model", "1e999"), CONFIG, "1e999 is no finite number"),
    "config: 400 digits": (ALL, raw(CONFIG, "d_model", "9" * 400), CONFIG, "400 digits is too large"),
    "config: 5,000 digits": (ALL, raw(CONFIG, "n_layers", "-" + "9" * 5000), CONFIG, "digits is too large"),
    "config: 10,000 levels": (ALL, raw(CONFIG, "moe", DEEP), CONFIG, "deep"),
    "config: 100 levels": (ALL, raw(CONFIG, "moe", "[" * 100 + "]" * 100), CONFIG, "deep"),
    "config: a key twice": (ALL, with_json(CONFIG, lambda v: json.dumps(v)[:-1] + ', "d_ff": 40}'), CONFIG, "twice"),
    "config: a text of 900,000": (ALL, setting(CONFIG, "d_model", to="9" * 900_000), CONFIG, "d_model"),
    "config: a list of 100,000": (ALL, setting(CONFIG, "d_model", to=[1] * 100_000), CONFIG, "d_model"),
    "config: 2 MB": (ALL, writing(CONFIG, b" " * 2_000_000 + b"{}"), CONFIG, "more than 1 MB"),
    "config: no vocab_size": (ALL, with_json(CONFIG, lambda v: v.pop("vocab_size") and None), CONFIG, "vocab_size"),
    "config: an empty object": (ALL, writing(CONFIG, b"{}"), CONFIG, "vocab_size, max_seq_len missing"),
    "config: final_norm is 1": (ALL, setting(CONFIG, "final_norm", to=1), CONFIG, "final_norm"),
    "config: moe is a list": (ALL, setting(CONFIG, "moe", to=[]), CONFIG, "moe config must be an object"),
    "config: vision is false": (ALL, setting(CONFIG, "vision", to=False), CONFIG, "vision config must be an object"),
    "n_experts is 10^12": (("moe",), setting(CONFIG, "moe", "n_experts", to=10**12), WEIGHTS, "router"),
    "n_experts is -1": (("moe",), setting(CONFIG, "moe", "n_experts", to=-1), CONFIG, "n_experts=-1"),
    "top_k is 9": (("moe",), setting(CONFIG, "moe", "top_k", to=9), CONFIG, "top_k=9"),
    "coefficient is a text": (("moe",), setting(CONFIG, "moe", "load_balancing_coef", to="x"), CONFIG, "_coef='x'"),
    "image_size is 10^9": (("vision",), setting(CONFIG, "vision", "image_size", to=10**9), CONFIG, "image_size"),
    "image_size is 5,000": (("vision",), setting(CONFIG, "vision", "image_size", to=5000), CONFIG, "image_size"),
    "n_slots is 10^12": (("vision",), setting(CONFIG, "vision", "n_slots", to=10**12), WEIGHTS, "slot_heads"),
    "n_blocks is 10^12": (("vision",), setting(CONFIG, "vision", "n_blocks", to=[10**12]), WEIGHTS, "stages"),
    "channels is a text": (("vision",), setting(CONFIG, "vision", "channels", to="57"), CONFIG, "channels='57'"),
    "channels is 5": (("vision",), setting(CONFIG, "vision", "channels", to=5), CONFIG, "channels=5"),
    "channels are lists": (("vision",), setting(CONFIG, "vision", "channels", to=[[5], [7]]), CONFIG, "channels"),
    "100,000 scales": (("vision",), setting(CONFIG, "vision", "scales", to=[4.0] * 100_000), CONFIG, "scales"),
    "encoder is a list": (("vision",), setting(CONFIG, "vision", "encoder", to=["conv"]), CONFIG, "encoder"),
    "encoder of two lines": (("vision",), setting(CONFIG, "vision", "encoder", to="a\nb"), CONFIG, "encoder"),
    # The weights
    "weights: another shape": (ALL, with_tensors(lambda t: t.update({HEAD: torch.zeros(7)})), WEIGHTS, HEAD),
    "weights: a tensor more": (ALL, with_tensors(lambda t: t.update(extra=torch.zeros(7))), WEIGHTS, "extra"),
    "weights: a tensor less": (ALL, with_tensors(lambda t: t.pop("norm.bias")), WEIGHTS, "norm.bias"),
    "weights: bytes more": (ALL, lambda f: (f / WEIGHTS).open("ab").write(b"\0" * 64), WEIGHTS, "bytes"),
    "weights: 1 GB header": (ALL, with_header(lambda h: None, 10**9), WEIGHTS, "no safetensors file"),
    "weights: 1 GB header in 2 GB": (
        ALL,
        sparse(WEIGHTS, 2 * 10**9, (10**9).to_bytes(8, "little")),
        WEIGHTS,
        "no safetensors file",
    ),
    "weights: 99 MB header there": (
        ALL,
        sparse(WEIGHTS, 10**8, (99 * 10**6).to_bytes(8, "little") + b"{"),
        WEIGHTS,
        "no safetensors file",
    ),
    "weights: 2^64-1 header": (ALL, with_header(lambda h: None, 2**64 - 1), WEIGHTS, "no safetensors file"),
    "weights: header too short": (ALL, with_header(lambda h: None, 20), WEIGHTS, "header is broken"),
    "weights: header a list": (ALL, with_header(lambda h: "[" + json.dumps(h) + "]"), WEIGHTS, "header is broken"),
    "weights: header of lists": (ALL, with_header(lambda h: h.update({HEAD: [1]})), WEIGHTS, "header is broken"),
    "weights: a deep header": (ALL, with_header(lambda h: f'{{"a": {DEEP}}}'), WEIGHTS, "header is broken"),
    "weights: a name twice": (
        ALL,
        with_header(lambda h: json.dumps(h)[:-1] + f', "{HEAD}": {json.dumps(h[HEAD])}}}'),
        WEIGHTS,
        "header is broken",
    ),
    "weights: overlapping tensors": (ALL, with_header(lambda h: shift(h, "norm.bias", -4)), WEIGHTS, "overlap"),
    "weights: one place for two": (
        ALL,
        with_header(lambda h: h["norm.bias"].update(data_offsets=h["norm.weight"]["data_offsets"])),
        WEIGHTS,
        "overlap",
    ),
    "weights: offsets beyond": (ALL, with_header(lambda h: shift(h, "norm.bias", 10**12)), WEIGHTS, "overlap"),
    "weights: offsets below 0": (ALL, with_header(lambda h: shift(h, "norm.bias", -(10**9))), WEIGHTS, "overlap"),
    "weights: a tensor too long": (ALL, with_header(lambda h: shift(h, "norm.bias", 0, 4)), WEIGHTS, "overlap"),
    "weights: a shape of NaN": (
        ALL,
        with_header(lambda h: h[HEAD].update(shape=[float("nan")])),
        WEIGHTS,
        "header is broken",
    ),
    "weights: a shape of 10^18": (ALL, with_header(lambda h: h[HEAD].update(shape=[10**17])), WEIGHTS, "has shape"),
    "weights: 100,000 dimensions": (
        ALL,
        with_header(lambda h: h[HEAD].update(shape=[1] * 100_000)),
        WEIGHTS,
        "has shape",
    ),
    "weights: an unknown type": (ALL, with_header(lambda h: h[HEAD].update(dtype="F33")), WEIGHTS, "F33"),
    "weights: a long name": (
        ALL,
        with_header(lambda h: h.update({"a\n" * 50_000: h[HEAD]})),
        WEIGHTS,
        "is none that",
    ),
}  # fmt: skip
for _dtype in ("float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"):
    CASES[f"weights: {_dtype}"] = ALL, typed("embed.weight", getattr(torch, _dtype)), WEIGHTS, "embed.weight holds"
for _word, _value in {
    "NaN": math.nan, "infinity": math.inf, "minus infinity": -math.inf, "3e38": 3e38, "-2e6": -2e6
}.items():  # fmt: skip
    CASES[f"weights: {_word} first"] = ALL, filling("blocks.1.norm1.weight", _value), WEIGHTS, "blocks.1.norm1.weight"
    CASES[f"weights: {_word} last"] = ALL, filling("embed.weight", _value, -1), WEIGHTS, "embed.weight"
CASES |= {
    "weights: a variance below 0": (
        ("vision",),
        filling("encoder.trunk.norm.running_var", -1.0),
        WEIGHTS,
        "encoder.trunk.norm.running_var",
    ),
    "weights: a count of floats": (
        ("vision",),
        typed("encoder.trunk.norm.num_batches_tracked", torch.float32),
        WEIGHTS,
        "num_batches_tracked holds",
    ),
}  # fmt: skip


def with_tokens(change: Callable[[list[Any]], Any]) -> Break:
    return with_json(TOKENIZER, lambda values: change(values["tokens"]) and None)


CASES |= {
    "tokenizer: a token more": (ALL, with_tokens(lambda t: t.insert(0, "zebu")), TOKENIZER, "has 61 tokens"),
    "tokenizer: a token less": (ALL, with_tokens(lambda t: t.pop(0)), TOKENIZER, "has 59 tokens, config.json says 60"),
    "tokenizer: a token twice": (ALL, with_tokens(lambda t: t.__setitem__(0, t[1])), TOKENIZER, "a token twice"),
    "tokenizer: an empty token": (ALL, with_tokens(lambda t: t.__setitem__(3, "")), TOKENIZER, "must not be empty"),
    "tokenizer: a number": (ALL, with_tokens(lambda t: t.__setitem__(3, 7)), TOKENIZER, "lists of strings"),
    "tokenizer: a null": (ALL, with_tokens(lambda t: t.__setitem__(3, None)), TOKENIZER, "lists of strings"),
    "tokenizer: half a character": (ALL, with_tokens(lambda t: t.__setitem__(3, "\ud800")), TOKENIZER, "surrogate"),
    "tokenizer: an overlong token": (ALL, with_tokens(lambda t: t.__setitem__(0, "a" * 5000)), TOKENIZER, "128"),
    "tokenizer: no <pad>": (ALL, setting(TOKENIZER, "special_tokens", to=["<eos>", "<unk>"]), TOKENIZER, "<pad>"),
    "tokenizer: no specials": (ALL, setting(TOKENIZER, "special_tokens", to=[]), TOKENIZER, "<pad>"),
    "tokenizer: specials first": (ALL, with_tokens(lambda t: t.reverse()), TOKENIZER, "the last tokens"),
    "tokenizer: specials a text": (ALL, setting(TOKENIZER, "special_tokens", to="<pad>"), TOKENIZER, "lists of"),
    "tokenizer: tokens an object": (ALL, setting(TOKENIZER, "tokens", to={"a": 1}), TOKENIZER, "lists of strings"),
    "tokenizer: words a list": (ALL, setting(TOKENIZER, "words", to=["a"]), TOKENIZER, "'words'"),
    "tokenizer: no tokens": (ALL, with_json(TOKENIZER, lambda v: v.pop("tokens") and None), TOKENIZER, "'tokens'"),
    "tokenizer: 20 MB": (("text",), raw(TOKENIZER, "words", '"' + "a" * 20_000_000 + '"'), TOKENIZER, "more than"),
    # The metrics
    "metrics: NaN": (ALL, setting(METRICS, "val_loss", to=math.nan), METRICS, "NaN is no finite number"),
    "metrics: minus infinity": (ALL, setting(METRICS, "x", to=-math.inf), METRICS, "-Infinity is no finite number"),
    "metrics: 1e999": (ALL, raw(METRICS, "val_loss", "1e999"), METRICS, "1e999 is no finite number"),
    "metrics: 400 digits": (ALL, raw(METRICS, "steps", "1" * 400), METRICS, "400 digits is too large"),
    "metrics: a key twice": (ALL, raw(METRICS, "a", '1, "a": 2'), METRICS, "twice"),
    "metrics: half a character": (ALL, raw(METRICS, "command", '"\\ud800"'), METRICS, "surrogate"),
    "metrics: 10,000 levels": (ALL, raw(METRICS, "x", DEEP), METRICS, "deep"),
    "metrics: 5 MB": (ALL, raw(METRICS, "x", '"' + "a" * 5_000_000 + '"'), METRICS, "more than 4 MB"),
    "metrics: steps a text": (ALL, setting(METRICS, "steps", to="3"), METRICS, "steps='3' must be a number"),
    "metrics: recall true": (ALL, setting(METRICS, "recall", to=True), METRICS, "recall=True must be a number"),
    "metrics: threshold a list": (ALL, setting(METRICS, "flower_threshold", to=[0.5]), METRICS, "flower_threshold"),
    "metrics: device a number": (ALL, setting(METRICS, "device", to=3), METRICS, "device=3 must be a text"),
    "metrics: history an object": (ALL, setting(METRICS, "history", to={"step": 1}), METRICS, "history"),
    "metrics: history of numbers": (ALL, setting(METRICS, "history", to=[1, 2]), METRICS, "history"),
    "metrics: load of numbers": (ALL, setting(METRICS, "expert_load", to=[0.5]), METRICS, "expert_load"),
    "labels: a text": (ALL, setting(METRICS, "labels", to="tulip"), METRICS, "labels='tulip'"),
    "labels: numbers": (ALL, setting(METRICS, "labels", to=[1, 2]), METRICS, r"labels=\[1, 2\]"),
    "labels: a name twice": (ALL, setting(METRICS, "labels", to=["iris", "iris"]), METRICS, "must be different names"),
    "labels: an empty one": (ALL, setting(METRICS, "labels", to=["iris", ""]), METRICS, "must be different names"),
    "labels: 100,000": (ALL, setting(METRICS, "labels", to=[f"f{n}" for n in range(100_000)]), METRICS, "at most"),
    "labels: beyond the context": (
        ("vision",),
        setting(METRICS, "labels", to=["iris", "q" * 500]),
        METRICS,
        "longer than the model's context of 60 tokens",
    ),
}  # fmt: skip
for _name in READ:
    for _tenth in range(10):

        def _cut(folder: Path, name: str = _name, tenth: int = _tenth) -> None:
            data = (folder / name).read_bytes().rstrip()
            (folder / name).write_bytes(data[: len(data) * tenth // 10])

        CASES[f"{_name}: cut at {_tenth}0 %"] = ALL, _cut, _name, "can't be used"

EACH = [(variant, name) for name, (variants, *_) in CASES.items() for variant in variants]


def peak_mb() -> float:
    """The most resident memory that this process has had. Not `ru_maxrss`, which counts its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


def work(weights: list[str]) -> list[dict[str, Any]]:
    """Load every folder in a process that gets little memory; what `tinylm.load` and the app have to say of each."""
    torch.set_num_threads(1)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (in_use + HEADROOM, in_use + HEADROOM))
    said = []
    for folder in map(Path, weights):
        (variant,) = (path.name for path in folder.iterdir())
        found: dict[str, Any] = {}
        started = time.process_time()
        try:
            tinylm.load(folder / variant)
            found["load"] = "it loads"
        except BrokenRun as error:
            found |= {"load": str(error), "file": error.file}
        except BaseException as error:
            found["load"] = f"{type(error).__name__}: {error}"
        found["seconds"] = time.process_time() - started
        try:
            RunFolders(folder).get(variant)
            found["app"] = "it loads"
        except Unavailable as error:
            found["app"] = str(error)
        except BaseException as error:
            found["app"] = f"{type(error).__name__}: {error}"
        said.append(found)
    return said


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """What was said of each broken folder, by variant and case; and of the worker's memory, as `grown_mb`."""
    whole = make_runs(tmp_path_factory.mktemp("whole"))
    place = tmp_path_factory.mktemp("broken")
    folders = []
    for number, (variant, name) in enumerate(EACH):
        weights = place / str(number) / "weights"
        shutil.copytree(whole / variant, weights / variant)
        CASES[name][1](weights / variant)
        folders.append(str(weights))
    (place / "list").write_text("\n".join(folders))
    command = [sys.executable, __file__, str(place / "list")]
    # The worker imports what this file does, from where pytest found it.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert not list(place.glob("*/ran")), "a pickle was run"
    return dict(zip(EACH, told["said"], strict=True)) | {"grown_mb": told["grown_mb"], "place": str(place)}


@pytest.mark.parametrize(("variant", "name"), EACH)
def test_a_broken_folder_is_refused_in_one_line_that_names_the_file(
    broken: dict[Any, Any], variant: str, name: str
) -> None:
    found, (_, _, file, reason) = broken[variant, name], CASES[name]
    message = found["load"]
    assert "file" in found, message
    assert re.fullmatch(file, found["file"]), message
    assert re.search(reason, message), message
    assert f"weights/{variant}/{found['file']}" in message
    assert message.isprintable() and len(message) < 500 and "Error" not in message, message
    assert found["seconds"] < MAX_CPU_SECONDS


@pytest.mark.parametrize(("variant", "name"), EACH)
def test_the_app_names_the_file_and_the_command_and_no_place_above_the_weights(
    broken: dict[Any, Any], variant: str, name: str
) -> None:
    found = broken[variant, name]
    message = found["app"]
    assert message.startswith(f"The {variant} model can't run: weights/{variant}/{found['file']} "), message
    assert message.endswith(f"`python train.py {variant} --out weights/{variant}`.")
    assert ("git lfs pull" in message) == ("LFS" in name)
    assert message.isprintable() and len(message) < 500
    assert broken["place"] not in message and "/tmp" not in message and str(ROOT) not in message


def test_all_of_them_together_take_little_memory(broken: dict[Any, Any]) -> None:
    assert broken["grown_mb"] < MAX_GROWTH_MB


# What the system refuses, and what happens to files that were good


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = make_runs(tmp_path / "weights")
    real = open
    for name in READ:

        def forbidding(path: Any, *rest: Any, name: str = name, **options: Any) -> Any:
            if os.path.basename(str(path)) == name:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *rest, **options)

        with monkeypatch.context() as patched:  # whoever runs this may read everything
            patched.setattr("builtins.open", forbidding)
            with pytest.raises(BrokenRun, match=f"{name} can't be used: Permission denied$") as error:
                tinylm.load(weights / "text")
            assert error.value.file == name
            reason = rf"weights/text/{name} can't be used: Permission denied\. To make"
            with pytest.raises(Unavailable, match=reason) as told:
                RunFolders(weights).get("text")
            assert str(tmp_path) not in str(told.value)
    tinylm.load(weights / "text")


@pytest.mark.parametrize("name", ["a" * 5000, "nul\0byte", "\ud800", "a/" * 3000, "", ".", "x\n"])
def test_a_name_that_no_folder_can_have_is_no_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as error:
        tinylm.load(name)
    assert "\n" not in str(error.value)


def test_a_missing_folder_is_told_with_the_file_that_it_should_hold(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "text").symlink_to("text")
    (tmp_path / "weights" / "moe").write_text("a file")
    for variant in VARIANTS:
        message = f"weights/{variant}/model.safetensors is missing.*`python train.py {variant} --out weights/{variant}`"
        with pytest.raises(Unavailable, match=message) as told:
            RunFolders(tmp_path / "weights").get(variant)
        assert str(tmp_path) not in str(told.value)


@pytest.mark.parametrize("change", ["emptied", "overwritten"])
def test_a_loaded_model_outlives_its_file(tmp_path: Path, change: str) -> None:
    """Weights that lay in the file, mapped into memory, would change with it, or end the process."""
    weights = make_runs(tmp_path)
    script = f"""
import sys, torch, tinylm
run = tinylm.load({str(weights / "moe")!r})
ids = torch.tensor([[1, 2, 3]])
with torch.no_grad():
    before = run.model(ids).logits
    with open({str(weights / "moe" / WEIGHTS)!r}, "r+b") as file:
        if {change == "emptied"}:
            file.truncate(0)
        else:
            file.write(b"\\xff" * {(weights / "moe" / WEIGHTS).stat().st_size})
    assert torch.equal(run.model(ids).logits, before)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_of_another_kind_is_not_used_in_its_place(tmp_path: Path) -> None:
    weights = make_runs(tmp_path / "weights")
    for name, other in (("text", "vision"), ("moe", "vision"), ("vision", "text")):
        shutil.rmtree(weights / name)
        shutil.copytree(tmp_path / "weights" / other, weights / name)
        with pytest.raises(Unavailable, match=f"weights/{name}/config.json is of a model of another kind"):
            RunFolders(weights).get(name)
        make_runs(weights)


def test_further_folders_can_be_anything_and_are_looked_at_quickly(tmp_path: Path) -> None:
    weights = make_runs(tmp_path / "weights")
    shutil.copytree(weights / "text", weights / "mine")
    for name, content in {"deep": DEEP, "list": "[]", "cut": "{", "nan": '{"vision": NaN}', "blob": "\0" * 99}.items():
        (weights / name).mkdir()
        (weights / name / CONFIG).write_text(content)
    sparse(CONFIG, 3 * 10**9)(weights / "blob")
    for name in ("pipe", "loop", "folder", "empty"):
        (weights / name).mkdir()
    os.mkfifo(weights / "pipe" / CONFIG)
    (weights / "loop" / CONFIG).symlink_to(CONFIG)
    (weights / "folder" / CONFIG).mkdir()
    for name in (b"\xff\xfe", b"two\nlines", "\u202eevil".encode()):
        shutil.copytree(weights / "text", weights / os.fsdecode(name))
    runs = RunFolders(weights)
    started = time.process_time()
    assert runs.text_names() == ["text", "moe", "mine"]
    assert set(runs.names()) == {*VARIANTS, "mine", "deep", "list", "cut", "nan", "blob", "pipe", "loop", "folder"}
    assert time.process_time() - started < 0.5
    assert json.dumps(runs.names(), ensure_ascii=False).encode()
    assert RunFolders(weights / "text" / CONFIG).names() == list(VARIANTS)


def test_a_run_that_is_mended_or_broken_again_is_noticed(tmp_path: Path) -> None:
    weights = make_runs(tmp_path / "weights")
    runs, path = RunFolders(weights), weights / "text" / WEIGHTS
    good, stamps = path.read_bytes(), []
    for content in (good, good[:-1], good, POINTER, good):
        path.write_bytes(content)
        os.utime(path, (1, 1))  # its time of change alone does not tell
        stamps.append(runs.stamp("text"))
        if content == good:
            assert runs.get("text") is runs.get("text")
        else:
            with pytest.raises(Unavailable, match=WEIGHTS):
                runs.get("text")
    assert len(set(stamps)) == len(stamps)


# No code runs


CODE = [*(ROOT / "tinylm").rglob("*.py"), ROOT / "app.py", ROOT / "train.py"]
UNSAFE_MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "jsonpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "read_pickle", "unsafe_load"}


def unsafe_lines(source: str) -> list[int]:
    """Lines that could run what a file says: other readers than of JSON and tensors, `torch.load` with code allowed."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            bad = any(alias.name.split(".")[0] in UNSAFE_MODULES for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")[0]
            bad = module in UNSAFE_MODULES or (module == "torch" and any(alias.name == "load" for alias in node.names))
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            bad = called in UNSAFE_CALLS or called.rpartition(".")[2] in {"read_pickle", "unsafe_load"}
            bad |= called in ("torch.load", "torch.jit.load") and options.get("weights_only") != "True"
            bad |= options.get("allow_pickle") == "True" or options.get("weights_only") == "False"
        else:
            bad = False
        if bad:
            lines.append(node.lineno)
    return lines


def test_nothing_in_the_package_could_run_what_a_file_says() -> None:
    assert len(CODE) > 60
    assert {str(path): unsafe_lines(path.read_text(encoding="utf-8")) for path in CODE} == {str(p): [] for p in CODE}


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(path)", "torch.load(path, weights_only=False)", "import pickle", "from pickle import loads",
        "from torch import load", "eval(text)", "numpy.load(path, allow_pickle=True)", "import marshal as m",
        "pandas.read_pickle(path)", "torch.jit.load(path)", "def f():\n    torch.load(path, 'cpu')",
    ],
)  # fmt: skip
def test_the_search_for_unsafe_readers_finds_one(line: str) -> None:
    assert unsafe_lines(line)
    assert unsafe_lines("torch.load(path, map_location='cpu', weights_only=True); json.loads(text)") == []


def test_a_pickle_beside_the_weights_is_never_run(tmp_path: Path) -> None:
    weights = make_runs(tmp_path / "place" / "weights")
    folder = weights / "text"
    for name in ("training.pt", "model.pt", "pytorch_model.bin", "README.md", "data.pkl", "tokenizer.pkl"):
        (folder / name).write_bytes(bomb(folder))
    torch_file(folder, "training.pt")
    ran = tmp_path / "place" / "ran"
    tinylm.load(folder)
    RunFolders(weights).get("text")
    assert not ran.exists()
    pickle.loads(bomb(folder))  # it would be noticed
    assert ran.exists()


# What is written is what can be read


def test_what_is_no_number_is_saved_as_none(tmp_path: Path) -> None:
    run = tinylm.load(make_runs(tmp_path) / "text")
    info = {"train_loss": math.nan, "history": [{"step": 1, "train_loss": math.inf}], "more": {"x": (1.5, -math.inf)}}
    tinylm.save(tmp_path / "new", run.model, run.tokenizer, info)
    saved = tinylm.load(tmp_path / "new").info
    assert saved == {"train_loss": None, "history": [{"step": 1, "train_loss": None}], "more": {"x": [1.5, None]}}


@pytest.mark.parametrize("info", [{"labels": "tulip"}, {"steps": "3"}, {"labels": ["a", "a"]}, ["a list"]])
def test_metrics_that_could_not_be_loaded_are_not_saved(tmp_path: Path, info: Any) -> None:
    run = tinylm.load(make_runs(tmp_path) / "text")
    before = {path.name: path.read_bytes() for path in (tmp_path / "text").iterdir()}
    with pytest.raises(ValueError):
        tinylm.save(tmp_path / "text", run.model, run.tokenizer, info)
    assert {path.name: path.read_bytes() for path in (tmp_path / "text").iterdir()} == before


def test_a_vocabulary_of_too_many_words_is_saved_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.train(["many words are here"], 90)
    monkeypatch.setattr("tinylm.tokenizer.MAX_WORDS_BYTES", len("are here many words") - 1)
    tokenizer.save(tmp_path / TOKENIZER)
    found = Tokenizer.load(tmp_path / TOKENIZER)
    assert (found.tokens, found.words) == (tokenizer.tokens, frozenset())


def test_looking_at_every_weight_takes_a_small_part_of_loading() -> None:
    """CPU seconds, the least of several: another process may slow some of them."""
    checking, loading = [], []
    for _ in range(7):
        started = time.process_time()
        runs = [tinylm.load(ROOT / "weights" / variant) for variant in VARIANTS]
        loaded = time.process_time()
        for run in runs:
            checkpoint._check_values(run.model.state_dict())
        checking.append(time.process_time() - loaded)
        loading.append(loaded - started)
    assert min(checking) < min(loading) / 4
    n_bytes = sum((ROOT / "weights" / variant / WEIGHTS).stat().st_size for variant in VARIANTS)
    assert min(checking) / (n_bytes / 1e6) < 300e-6


# What the config of the conv encoder alone tells, and no tensor


@pytest.mark.parametrize(
    "settings", [{"image_size": 513}, {"image_size": 10**9}, {"scales": (1.0,) * 9}, {"scales": [1.0, "2"]}]
)
def test_work_that_no_tensor_pays_for_is_bounded(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        VisionConfig(encoder="conv", **settings)
    assert VisionConfig(encoder="conv", image_size=512, scales=(1.0,) * 8)


# Captions


def captioner_of(labels: list[str], **changes: Any) -> Captioner:
    tokenizer = Tokenizer.train(LINES, 60)
    config = tiny_config("vision", **({"vocab_size": tokenizer.vocab_size, "max_seq_len": 60} | changes))
    return Captioner(lively(config), tokenizer, tuple(labels))


def test_a_label_whose_caption_is_longer_than_the_context_is_named() -> None:
    label = "iris"
    room = len(Tokenizer.train(LINES, 60).encode(caption(label)))
    captioner = captioner_of([label], max_seq_len=room)
    assert captioner.logprobs(captioner.slots(random_images(1))).isfinite().all()
    with pytest.raises(ValueError, match="the caption of the label 'iris' is longer than the model's context"):
        captioner_of([label], max_seq_len=room - 1)


def test_captions_are_scored_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = [a + b for a in "abcdef" for b in "ghij"]
    images = random_images(2)
    whole = captioner_of(labels)
    expected = whole.logprobs(whole.slots(images))
    monkeypatch.setattr(tinylm.captioner, "MAX_CAPTIONS", 5)
    parts = captioner_of(labels)
    assert max(len(columns) for columns, _ in parts._tails) == 5
    torch.testing.assert_close(parts.logprobs(parts.slots(images)), expected, atol=1e-5, rtol=1e-5)


# The article's weights


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("embed.weight", torch.zeros(1).expand(10**9, 24), "more numbers than are stored"),
        ("embed.weight", torch.empty(10**9, 24, device="meta"), "in memory"),
        ("embed.weight", torch.zeros(31, 24).to_sparse(), "in memory"),
        ("embed.weight", torch.zeros(31, 24, dtype=torch.int64), "floating-point"),
        ("blocks.1.ln1.bias", torch.full((24,), math.nan), "NaN"),
        ("blocks.1.ln1.bias", torch.tensor([math.inf] * 24), "infinity"),
        ("blocks.0.heads.1.q.weight", torch.zeros(8, 25), "shape"),
        ("blocks.0.heads.1.k_up.weight", torch.tensor(1.0), "shape"),
        ("blocks.0.heads.0.v_up.weight", torch.zeros(8), "shape"),
        ("lm_head.bias", [0.0] * 31, "list"),
        ("lm_head.bias", None, "NoneType"),
        (3, torch.zeros(3), "3"),
    ],
)  # fmt: skip
def test_an_articles_tensor_that_no_training_leaves_is_named(name: Any, tensor: Any, reason: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=reason) as error:
        tinylm.article.from_state_dict(reference.article_weights() | {name: tensor})
    assert str(name) in str(error.value)
    assert time.process_time() - started < MAX_CPU_SECONDS


def test_the_articles_weights_come_from_a_file_that_runs_nothing(tmp_path: Path) -> None:
    """As the docstring says to read it."""
    torch.save(reference.article_weights(), tmp_path / "article.pt")
    model = tinylm.article.from_state_dict(torch.load(tmp_path / "article.pt", weights_only=True))
    assert model.config.n_layers > 0
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    torch_file(folder, "article.pt")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(folder / "article.pt", weights_only=True)
    assert not (tmp_path / "ran").exists()


# The served page


TABS: dict[str, tuple[str, list[Any]]] = {
    "text": ("/complete", ["A baby cat is called", "text", 0, 0, 1, 3, 0]),
    "vision": ("/caption", []),
    "moe": ("/route", ["A baby cat is called", 0, 3, 0]),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_weights(tmp_path_factory.mktemp("good") / "weights")


@pytest.fixture(scope="module")
def served(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The app over weights that are broken, all three of them, when it starts: (its address, the weights)."""
    weights = tmp_path_factory.mktemp("served") / "weights"
    shutil.copytree(good, weights)
    break_one(weights, "text", "model.safetensors: LFS pointer")
    break_one(weights, "vision", "metrics: NaN")
    break_one(weights, "moe", "config: 10,000 levels")
    with serve(weights) as address:
        yield address, weights


def break_one(weights: Path, variant: str, case: str) -> str:
    """Break a run as the case says; the file that is named then."""
    CASES[case][1](weights / variant)
    return CASES[case][2]


def page_of(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert answer.status == 200
        return answer.read().decode().replace("\\u0027", "'")


def ask(client: Client, variant: str, picture: Path) -> Any:
    endpoint, inputs = TABS[variant]
    return client.predict(*(inputs or [handle_file(picture)]), api_name=endpoint)


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("picture") / "flower.png"
    Image.effect_noise((40, 30), 90).convert("RGB").save(path)
    return path


def test_the_page_opens_with_all_three_broken_and_says_so_in_every_tab(served: tuple[str, Path], picture: Path) -> None:
    address, weights = served
    files = {"text": WEIGHTS, "vision": METRICS, "moe": CONFIG}
    page = page_of(address)
    client = Client(address, verbose=False)
    for variant, file in files.items():
        said = f"The {variant} model can't run: weights/{variant}/{file} "
        # In the tab that uses the model, and in Training, which lists all of them.
        assert page.count(said) >= 2, said
        with pytest.raises(AppError, match=re.escape(said) + f".*`python train.py {variant} --out weights/{variant}`"):
            ask(client, variant, picture)
    assert "git lfs pull" in page
    assert str(weights.parent) not in page and "Traceback" not in page


@pytest.mark.browser
@pytest.mark.parametrize(
    ("variant", "case"),
    [
        ("text", "model.safetensors: cut at 60 %"),
        ("vision", "tokenizer: a token less"),
        ("moe", "weights: NaN first"),
    ],
)
def test_one_broken_folder_is_told_in_its_tab_while_the_others_work(
    served: tuple[str, Path], good: Path, picture: Path, browser: Browser, variant: str, case: str
) -> None:
    address, weights = served
    for name in VARIANTS:
        shutil.rmtree(weights / name)
        shutil.copytree(good / name, weights / name)
    said = f"The {variant} model can't run: weights/{variant}/{break_one(weights, variant, case)} "
    with watched_page(browser) as page:
        page.goto(address)
        for other, tab in {"text": "Complete", "vision": "Caption", "moe": "Routing"}.items():
            page.get_by_role("tab", name=tab, exact=True).click()
            told = said if other == variant else "An example"
            expect(page.locator(f"#{tab.lower()}-panel .tl-status")).to_contain_text(told, timeout=30_000)
    client = Client(address, verbose=False)
    for other in VARIANTS:
        if other == variant:
            with pytest.raises(AppError, match=re.escape(said)):
                ask(client, other, picture)
        else:
            answer = ask(client, other, picture)
            assert len(answer["caption" if other == "vision" else "tokens"]) >= 3


if __name__ == "__main__":
    at_start = peak_mb()
    result = work(Path(sys.argv[1]).read_text().split("\n"))
    print(json.dumps({"said": result, "grown_mb": round(peak_mb() - at_start, 1)}))
