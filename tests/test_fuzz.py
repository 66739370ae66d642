"""Mutated files: each is read and works, or is refused in one line; nothing else, nothing slow, nothing large.

Run as a script this is the worker: `test_fuzz.py KIND SEED N` tries N mutated files and prints what came of them.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, lively, tiny_config

import tinylm
from tinylm.captioner import Captioner
from tinylm.data.flowers import caption
from tinylm.vision import MAX_PIXELS

MAX_CPU_SECONDS = 2.0
"""Of one file."""
HEADROOM = 1_500_000_000
"""Bytes that the worker may ask for beside what it starts with; beyond them memory is refused."""
MAX_MB = {"picture": 900, "tokenizer": 150, "run": 150}
"""By which the worker's resident memory may grow: a picture of 50 million pixels is 200 MB in each form it takes."""
LABELS = ["tulip", "rose", "iris"]
LINES = ["A baby cat is called a kitten.", "The capital of France is Paris.", *map(caption, LABELS)]
TEXT = "A baby cat 你好 \t is\n" + "called the a " * 60

Rng = random.Random
Mutation = Callable[[Rng, bytes], bytes]


# Mutations of bytes

EXTREMES = (0, 1, -1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def place(rng: Rng, data: bytes) -> int:
    """Half of the places lie within the header."""
    return rng.randrange(1 + min(len(data), rng.choice((64, 1 + len(data)))))


def span(rng: Rng, data: bytes) -> tuple[int, int]:
    start = place(rng, data)
    return start, min(len(data), start + rng.choice((1, 4, 16, 200, 5000)))


def flip(rng: Rng, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20)) if data else 0):
        changed[place(rng, data) % len(data)] ^= rng.choice((1 << rng.randrange(8), rng.randrange(256)))
    return bytes(changed)


def delete(rng: Rng, data: bytes) -> bytes:
    start, end = span(rng, data)
    return data[:start] + data[end:]


def repeat(rng: Rng, data: bytes) -> bytes:
    start, end = span(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 2, 50)) + data[end:]


def move(rng: Rng, data: bytes) -> bytes:
    start, end = span(rng, data)
    rest = data[:start] + data[end:]
    to = place(rng, rest)
    return rest[:to] + data[start:end] + rest[to:]


def cut(rng: Rng, data: bytes) -> bytes:
    return data[: rng.randrange(1 + len(data))]


def insert(rng: Rng, data: bytes) -> bytes:
    at = place(rng, data)
    return data[:at] + rng.randbytes(rng.choice((1, 4, 100))) + data[at:]


def blank(rng: Rng, data: bytes) -> bytes:
    start, end = span(rng, data)
    return data[:start] + rng.choice((b"\0", b"\xff", b" ", b"[", b"9")) * (end - start) + data[end:]


def put_extreme(rng: Rng, data: bytes) -> bytes:
    width, value = rng.choice((2, 4, 8)), rng.choice(EXTREMES)
    packed = (value % 2 ** (8 * width)).to_bytes(width, rng.choice(("little", "big")))
    at = place(rng, data)
    return data[:at] + packed + data[at + width :]


BYTES: tuple[Mutation, ...] = (flip, flip, flip, delete, repeat, move, cut, insert, blank, put_extreme, put_extreme)


def splice(rng: Rng, data: bytes, others: list[bytes]) -> bytes:
    """The beginning of one file and the end of another, or a piece of it in the middle."""
    other = rng.choice(others)
    start, end = span(rng, other)
    if rng.random() < 0.5:
        return data[: place(rng, data)] + other[start:]
    at = place(rng, data)
    return data[:at] + other[start:end] + data[at + end - start :]


# Mutations of JSON

DEEP, HUGE = '"@deep@"', '"@huge@"'  # in whose places the worker puts what json.dumps can't write
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 7, 10**6, 10**9, 10**12, 10**17, 10**30, -(10**12), 0.5, 1.0, 2.5, -0.0),
    *(1e-300, 1e300, float("nan"), float("inf"), float("-inf"), "", " ", "x", "\ud800", "\0", "1", "<pad>", "<eos>"),
    *("a\nb", "\u202ea", "x" * 200, "x" * 100_000, "conv", "mlp", "F32", "F64", "BF16", "F8_E4M3", "I64", "BOOL"),
    *([], [[]], [1], [0], [-1], [0.5], ["a"], [None], [10**9], [2**31, 2**31, 4], [5] * 10_000, [[[[1]]]]),
    *({}, {"a": 1}, json.loads(DEEP), json.loads(HUGE)),
)


def holders(value: Any) -> list[Any]:
    """Every list and object in a JSON value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(h for item in inner for h in holders(item))] if isinstance(value, (dict, list)) else []


def mutate_json(rng: Rng, data: bytes) -> bytes:
    """Change keys and values somewhere in it, and write it as some other program might."""
    root = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        holder = rng.choice([root, rng.choice(holders(root))])
        if isinstance(holder, dict):
            _mutate_object(rng, holder)
        else:
            _mutate_list(rng, holder)
    text = json.dumps(root, ensure_ascii=rng.random() < 0.3, indent=rng.choice((None, 0, 2)))
    text = text.replace(DEEP, "[" * 10_000 + "]" * 10_000).replace(HUGE, "9" * rng.choice((25, 400, 5000)))
    if rng.random() < 0.05:  # a key twice
        text = text.replace("{", '{"tokens": 1, "tokens": 1,', 1)
    return text.encode("utf-8", "surrogatepass")


def _mutate_object(rng: Rng, holder: dict[str, Any]) -> None:
    key = rng.choice(list(holder) or ["a"])
    change = rng.randrange(5)
    if change == 0:
        holder.pop(key, None)
    elif change == 1:
        new_key = rng.choice((key + "s", key.upper(), "", "x" * 10_000, "a\nb", "\ud800", "__metadata__"))
        holder[new_key] = copy.deepcopy(holder.get(key))
    elif change == 2:
        other = rng.choice(list(holder) or ["a"])
        holder[key], holder[other] = holder.get(other), holder.get(key)
    else:
        holder[key] = copy.deepcopy(rng.choice(VALUES))


def _mutate_list(rng: Rng, holder: list[Any]) -> None:
    change = rng.randrange(5)
    at = rng.randrange(len(holder)) if holder else 0
    if change == 0:
        del holder[at : at + rng.choice((1, 1, 3))]
    elif change == 1:
        holder[at:at] = holder[at : at + 1] * rng.choice((1, 1, 1000))
    elif change == 2 and holder:
        other = rng.randrange(len(holder))
        holder[at], holder[other] = holder[other], holder[at]
    elif holder:
        holder[at] = copy.deepcopy(rng.choice(VALUES))


def mutate_safetensors(rng: Rng, data: bytes) -> bytes:
    """Change its header as JSON, the length it claims, or numbers of its tensors."""
    n_header = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + n_header], data[8 + n_header :]
    change = rng.randrange(4)
    if change < 2:
        header = mutate_json(rng, header)
        n_header = len(header)
    elif change == 2:
        n_header = rng.choice((*EXTREMES, n_header + 1, n_header - 1, 10**9, 99_999_999)) % 2**64
    else:
        numbers = bytearray(body)
        for _ in range(rng.choice((1, 1, 3, 30))):
            value = rng.choice((float("nan"), float("inf"), float("-inf"), 3e38, -3e38, 1e6, -1e6, 1e-45, -1.0, 0.0))
            struct.pack_into("<f", numbers, 4 * rng.randrange(len(body) // 4), value)
        body = bytes(numbers)
    return n_header.to_bytes(8, "little") + header + body


def mutate(rng: Rng, name: str, data: bytes, others: list[bytes]) -> bytes:
    """The file, changed once or a few times; by what its name says it is, or byte by byte."""
    changed = data
    if name.endswith(".json") and rng.random() < 0.6:
        changed = mutate_json(rng, data)
    elif name.endswith(".safetensors") and rng.random() < 0.6:
        changed = mutate_safetensors(rng, data)
    elif rng.random() < 0.1:
        changed = splice(rng, data, others)
    if changed == data or rng.random() < 0.1:
        for _ in range(rng.choice((1, 1, 2, 5))):
            changed = rng.choice(BYTES)(rng, changed)
    return changed


# What is tried. Each reads one mutated file and works with what it got; a ValueError refuses it.


class Pictures:
    """`tinylm.load_image`."""

    def __init__(self, folder: Path) -> None:
        from test_vision import SMALL_FILES

        self.path = folder / "picture"
        self.files = list(SMALL_FILES.items())

    def mutated(self, rng: Rng) -> None:
        name, data = rng.choice(self.files)
        self.path.write_bytes(mutate(rng, name, data, [other for _, other in self.files]))

    def use(self, rng: Rng) -> None:
        image = tinylm.load_image(self.path if rng.random() < 0.5 else io.BytesIO(self.path.read_bytes()))
        assert image.mode == "RGB" and 0 < image.width * image.height <= MAX_PIXELS
        values = tinylm.image_to_tensor(image, 16)
        assert values.shape == (3, 16, 16) and 0 <= float(values.min()) <= float(values.max()) <= 1


class Tokenizers:
    """`Tokenizer.load`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokenizer.json"
        specials = (("<pad>", "<eos>", "<unk>"), ("<pad>",))
        self.files = [
            tinylm.Tokenizer.train(LINES, size, special_tokens=special).to_json().encode()
            for special in specials
            for size in (50, 300)
        ]

    def mutated(self, rng: Rng) -> None:
        data = rng.choice(self.files)
        self.path.write_bytes(mutate(rng, self.path.name, data, self.files))

    def use(self, rng: Rng) -> None:
        check_tokenizer(tinylm.Tokenizer.load(self.path))


class Runs:
    """`tinylm.load`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "run"
        tokenizer = tinylm.Tokenizer.train(LINES, 60)
        captions = {"labels": LABELS, "flower_threshold": 0.5, "caption_temperature": 1.1}
        history = [{"step": 1, "seconds": 0.5, "train_loss": 3.0, "val_loss": 2.5}] * 3
        info = {"variant": "text", "steps": 5, "val_loss": 2.5, "history": history, "expert_load": [[0.5, 0.5]]}
        self.runs: list[dict[str, bytes]] = []
        for variant in ("text", "vision", "moe", "vision+moe"):
            config = tiny_config(variant, vocab_size=tokenizer.vocab_size, max_seq_len=60)
            tinylm.save(folder / variant, lively(config), tokenizer, info | captions if config.vision else info)
            self.runs.append({path.name: path.read_bytes() for path in sorted((folder / variant).iterdir())})
        self.folder.mkdir()

    def mutated(self, rng: Rng) -> None:
        files = dict(rng.choice(self.runs))
        name = rng.choice(["config.json", "config.json", "model.safetensors", "model.safetensors", *files])
        others = [run[rng.choice(list(files))] for run in self.runs]
        files[name] = mutate(rng, name, files[name], others)
        for other, data in files.items():
            (self.folder / other).write_bytes(data)

    @torch.inference_mode()
    def use(self, rng: Rng) -> None:
        run = tinylm.load(self.folder)
        check_tokenizer(run.tokenizer)
        vision = run.model.config.vision
        images = torch.rand(1, 3, vision.image_size, vision.image_size) if vision else None
        ids = run.tokenizer.encode("A baby")
        assert run.model(torch.tensor([ids]), images).logits.isfinite().all()
        run.tokenizer.decode(tinylm.generate(run.model, ids, images, max_new_tokens=2))
        tinylm.generate(run.model, ids, images, max_new_tokens=2, temperature=1.0, seed=1)
        if vision and run.info.get("labels"):
            captioner = Captioner.of(run)
            assert captioner.logprobs(captioner.slots(images)).isfinite().all()
            json.dumps(captioner.ranked(images), allow_nan=False).encode()
        json.dumps(run.info, allow_nan=False, ensure_ascii=False).encode()


def check_tokenizer(tokenizer: tinylm.Tokenizer) -> None:
    """It encodes any text, and decodes every id to what can be sent on."""
    ids = tokenizer.encode(TEXT)
    assert ids and all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
    tokenizer.decode(range(tokenizer.vocab_size)).encode()
    tokenizer.unknown_words(TEXT)
    assert tinylm.Tokenizer.from_json(tokenizer.to_json()).tokens == tokenizer.tokens


KINDS: dict[str, Callable[[Path], Any]] = {"picture": Pictures, "tokenizer": Tokenizers, "run": Runs}


def wrong_with(message: str) -> str:
    """What a visitor should not have to read; "" if it is a plain line."""
    if "\n" in message or not message.isprintable():
        return "more than one line, or not printable"
    internals = ("Error", "Traceback", "object at 0x", "site-packages", "__init__")
    return next((word for word in internals if word in message), "")


def peak_mb() -> float:
    """The most resident memory that this process has had. Not `ru_maxrss`, which counts its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


def work(kind: str, seed: int, n: int, progress: Path) -> dict[str, Any]:
    """Try `n` mutated files; the number of the one in hand is always in `progress`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        target = KINDS[kind](Path(folder))
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (in_use + HEADROOM, in_use + HEADROOM))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        at_start = peak_mb()
        found: dict[str, Any] = {"read": 0, "refused": 0, "slowest": 0.0, "slowest_case": -1, "faults": []}
        for case in range(n):
            progress.write_text(str(case))
            rng = random.Random(f"{kind} {seed} {case}")
            target.mutated(rng)
            started = time.process_time()
            try:
                target.use(rng)
                found["read"] += 1
            except ValueError as error:
                found["refused"] += 1
                wrong = wrong_with(str(error))
                if wrong:
                    found["faults"].append(f"case {case}: {wrong}: {error}"[:500])
            except BaseException as error:
                found["faults"].append(f"case {case}: {type(error).__name__}: {error}"[:500])
            seconds = time.process_time() - started
            if seconds > found["slowest"]:
                found |= {"slowest": round(seconds, 3), "slowest_case": case}
    return found | {"grown_mb": round(peak_mb() - at_start, 1)}


def tried(kind: str, seed: int, n: int, folder: Path, seconds: float) -> dict[str, Any]:
    """What came of `n` mutated files in a process of their own. Fails with the case in which it died or hung."""
    progress, output = folder / "progress", folder / "output"
    command = [sys.executable, __file__, kind, str(seed), str(n), str(progress)]
    with output.open("w+b") as file:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=file)
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            pytest.fail(f"{kind} {seed}: case {progress.read_text()} hangs, or all take more than {seconds} s")
    assert process.returncode == 0, (process.returncode, progress.read_text(), output.read_bytes()[-2000:].decode())
    return json.loads(said)


def assert_sound(kind: str, found: dict[str, Any]) -> None:
    assert found["faults"] == []
    assert found["read"] > 0 and found["refused"] > 0, "the mutations are all too weak or too strong"
    assert found["slowest"] < MAX_CPU_SECONDS, f"case {found['slowest_case']} takes {found['slowest']} s"
    assert found["grown_mb"] < MAX_MB[kind]


@pytest.mark.parametrize(("kind", "n"), [("picture", 400), ("tokenizer", 400), ("run", 250)])
def test_a_mutated_file_works_or_is_refused_in_one_line(tmp_path: Path, kind: str, n: int) -> None:
    assert_sound(kind, tried(kind, 0, n, tmp_path, seconds=120))


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "n"), [("picture", 20_000), ("tokenizer", 8_000), ("run", 8_000)])
def test_thousands_of_mutated_files_work_or_are_refused_in_one_line(
    tmp_path: Path, record_property: Callable[[str, object], None], kind: str, n: int
) -> None:
    found = tried(kind, 1, n, tmp_path, seconds=600)
    record_property(f"mutated {kind} files read", {"value": found["read"], "unit": "files"})
    record_property(f"mutated {kind} files refused", {"value": found["refused"], "unit": "files"})
    slowest = {"value": found["slowest"], "limit": MAX_CPU_SECONDS, "unit": "CPU seconds"}
    record_property(f"slowest mutated {kind} file", slowest)
    grown = {"value": found["grown_mb"], "limit": MAX_MB[kind], "unit": "MB"}
    record_property(f"memory over mutated {kind} files", grown)
    assert_sound(kind, found)


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))))
