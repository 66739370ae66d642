"""Run folders: what training writes, and what the app, the Hub and `--resume` read."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import save as serialize
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tinylm import durable
from tinylm.config import ModelConfig
from tinylm.files import is_lfs_pointer, open_file, parse_json, read_json, shown
from tinylm.model import TinyLM
from tinylm.shapes import stored_type, tensor_shapes
from tinylm.tokenizer import Tokenizer

CONFIG, WEIGHTS, TOKENIZER, METRICS, CARD = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "metrics.json",
    "README.md",
)
FILES = (CONFIG, WEIGHTS, TOKENIZER, METRICS, CARD)

# Of what is read before it is known to fit; the weights' own size follows from the config.
MAX_CONFIG_BYTES, MAX_METRICS_BYTES, MAX_HEADER_BYTES = 1_000_000, 4_000_000, 8_000_000
MAX_WEIGHT = 1e6  # in size; beyond it a model computes infinities, and trained weights stay far below
MAX_LABELS = 10_000  # every picture is compared with each
TYPES = {"F32": torch.float32, "I64": torch.int64}

GIT_LFS_PULL = "git lfs pull"

_TEXTS = ("variant", "device")
_NUMBERS = (
    *("steps", "seconds", "tokens_per_second", "parameters", "active_parameters", "train_loss", "val_loss"),
    *("val_bits_per_character", "recall", "caption_accuracy", "caption_temperature", "flower_threshold"),
)
_LISTS = {"history": (dict, "objects"), "expert_load": (list, "lists"), "labels": (str, "texts")}
"""Metrics that others compute with, by what they must be; one that is None or missing was not measured."""


@dataclass
class Run:
    """A loaded run folder; the model is in evaluation mode."""

    model: TinyLM
    tokenizer: Tokenizer
    info: dict[str, Any]


class BrokenRun(ValueError):
    """A run folder that can't be loaded.

    `file` is the name of the file that is wrong, `reason` says how, and `remedy` is a command that may mend it.
    """

    def __init__(self, path: Path, reason: str, remedy: str = "") -> None:
        self.file, self.reason, self.remedy = path.name, _one_line(reason), remedy
        hint = f"; run `{remedy}`" if remedy else ""
        super().__init__(f"{_one_line(str(path))} {self.reason}{hint}")


def _one_line(text: str) -> str:
    """The text without line breaks and what can't be printed; names of folders can be any bytes."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


def unknown_words(source: Run | Tokenizer, text: str) -> list[str]:
    """The words of `text` that a run's training text did not have, each once, as written, in order.

    `source` is a loaded run or its tokenizer. Raises TypeError for a bare model, which knows no words.
    """
    tokenizer = source.tokenizer if isinstance(source, Run) else source
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"unknown_words needs a loaded run or its tokenizer, got {type(source).__name__}")
    return tokenizer.unknown_words(text)


def save(
    folder: str | os.PathLike[str], model: TinyLM, tokenizer: Tokenizer, info: dict[str, Any], card: str | None = None
) -> None:
    """Write a run folder: config, weights, tokenizer, metrics (`info`) and a model card.

    All files become new in one moment: whatever kills the process, the folder loads as the old run or as the new one.
    `card` is the text of the model card; None writes a short one from `info`. What is no finite number in `info`
    becomes null. Raises OSError if the folder can't be written, ValueError if `load` would refuse `info`.
    """
    info = _finite(info)
    _check_metrics(info)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    texts = {
        CONFIG: json.dumps(model.config.to_dict(), indent=2) + "\n",
        TOKENIZER: tokenizer.to_json() + "\n",
        METRICS: json.dumps(info, indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        CARD: card if card is not None else _plain_card(info),
    }
    # Not save_file, whose files only their owner may read.
    files = {WEIGHTS: serialize(tensors)} | {name: text.encode("utf-8") for name, text in texts.items()}
    durable.write_together(folder, {name: _writing(content) for name, content in files.items()})


def load(folder_or_hub_id: str | os.PathLike[str], device: torch.device | str = "cpu") -> Run:
    """Read a run folder, or one on the Hugging Face Hub given as "owner/name".

    Raises BrokenRun, a ValueError, naming the file and what is wrong with it, if a file is missing or not whole, holds
    anything but what `save` writes, or does not fit the others; a plain ValueError if there is no such folder. No
    weight is allocated before config and weights are known to agree. A run may be saved into
    the folder meanwhile: what is read is all old or all new.
    """
    folder = _local_folder(folder_or_hub_id)
    durable.finish(folder)
    while True:
        before = durable.version(folder, FILES)
        try:
            run = _load_once(folder)
        except ValueError:
            if durable.version(folder, FILES) == before:
                raise
        else:
            if durable.version(folder, FILES) == before:
                return Run(run.model.to(device).eval(), run.tokenizer, run.info)


def _load_once(folder: Path) -> Run:
    """The files as they are at the moment each is read."""
    config_file, tokenizer_file, metrics_file, weights_file = (
        durable.current(folder, name) for name in (CONFIG, TOKENIZER, METRICS, WEIGHTS)
    )
    config = _read(config_file, lambda path: ModelConfig.from_dict(read_json(path, MAX_CONFIG_BYTES)))
    tokenizer = _read(tokenizer_file, Tokenizer.load)
    if tokenizer.vocab_size != config.vocab_size:
        raise BrokenRun(
            tokenizer_file, f"has {tokenizer.vocab_size} tokens, {config_file.name} says {config.vocab_size}"
        )
    info: dict[str, Any] = {}
    if os.path.lexists(metrics_file):
        info = _read(metrics_file, lambda path: _read_metrics(path, tokenizer, config))
    model = _read(weights_file, lambda path: _load_model(path, config))
    return Run(model, tokenizer, info)


def _read_metrics(path: Path, tokenizer: Tokenizer, config: ModelConfig) -> dict[str, Any]:
    info = read_json(path, MAX_METRICS_BYTES)
    _check_metrics(info)
    room = config.max_seq_len
    for label in (info.get("labels") or ()) if config.vision else ():
        if len(label) > room and len(tokenizer.encode(label)) > room:
            raise ValueError(f"the label {shown(label)} is longer than the model's context of {room} tokens")
    return info


def _check_metrics(info: Any) -> None:
    """Raise ValueError on metrics that those who read them can't use."""
    if not isinstance(info, dict):
        raise ValueError(f"the metrics must be an object, not {type(info).__name__}")
    for name in (*_NUMBERS, *_TEXTS, *_LISTS):
        value = info.get(name)
        if value is None:
            continue
        if name in _NUMBERS and (not isinstance(value, (int, float)) or isinstance(value, bool)):
            raise ValueError(f"{name}={shown(value)} must be a number")
        if name in _TEXTS and not isinstance(value, str):
            raise ValueError(f"{name}={shown(value)} must be a text")
        kind, kinds = _LISTS.get(name, (None, ""))
        if kind and not (isinstance(value, list) and all(isinstance(item, kind) for item in value)):
            raise ValueError(f"{name}={shown(value)} must be a list of {kinds}")
    labels = info.get("labels") or ()
    if not all(labels) or len(set(labels)) != len(labels) or len(labels) > MAX_LABELS:
        raise ValueError(f"labels={shown(labels)} must be different names, at most {MAX_LABELS:,}")


def _finite(value: Any) -> Any:
    """The same with None for what is no finite number, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _load_model(path: Path, config: ModelConfig) -> TinyLM:
    with open_file(path) as file:
        tensors = _read_tensors(file, config)
    _check_values(tensors)
    with _Unfilled():
        model = TinyLM(config)
    model.load_state_dict(tensors, assign=True)
    return model


def _read_tensors(file: BinaryIO, config: ModelConfig) -> dict[str, Tensor]:
    """The tensors of a safetensors file, once its header tells of the very ones that `config` asks for.

    Not safetensors' own reader: its tensors lie in the file, mapped into memory, so that to write over it would change
    the model and to cut it would end the process. The format: eight bytes that give the header's length, the header in
    JSON, and the tensors without a gap (https://github.com/huggingface/safetensors#format).
    """
    n_bytes = os.fstat(file.fileno()).st_size
    n_header = int.from_bytes(file.read(8), "little")
    if not 2 <= n_header <= min(n_bytes - 8, MAX_HEADER_BYTES):
        raise ValueError("it is no safetensors file, or cut short")
    try:
        header = parse_json(file.read(n_header).decode("utf-8"))
        header.pop("__metadata__", None)
        found = {name: (entry["dtype"], entry["shape"], entry["data_offsets"]) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError("it is no safetensors file, or its header is broken") from None
    asked: dict[str, tuple[int, ...]] = {}
    # The first tensor that does not fit ends this, whatever the config asks for behind it.
    for name, shape in tensor_shapes(config):
        if name not in found:
            raise ValueError(f"tensor {name} is missing, {CONFIG} asks for it with shape {list(shape)}")
        found_type, found_shape, _ = found[name]
        if found_shape != list(shape):
            raise ValueError(f"tensor {name} has shape {shown(found_shape)}, {CONFIG} asks for {list(shape)}")
        if found_type != stored_type(name):
            raise ValueError(f"tensor {name} holds {shown(found_type)} numbers instead of {stored_type(name)}")
        asked[name] = shape
    unasked = found.keys() - asked.keys()
    if unasked:
        raise ValueError(f"tensor {shown(min(unasked))} is none that {CONFIG} asks for")
    n_data = sum(TYPES[found[name][0]].itemsize * math.prod(shape) for name, shape in asked.items())
    if n_bytes != 8 + n_header + n_data:
        raise ValueError(f"it has {n_bytes:,} bytes instead of the {8 + n_header + n_data:,} that its tensors take")
    data = bytearray(n_data)
    file.readinto(data)  # type: ignore[attr-defined]
    tensors, end = {}, 0
    for name in sorted(asked, key=lambda name: _start(found[name][2])):
        dtype, count, start = TYPES[found[name][0]], math.prod(asked[name]), end
        end += dtype.itemsize * count
        if found[name][2] != [start, end]:
            raise ValueError("its tensors overlap or leave gaps")
        tensors[name] = torch.frombuffer(data, dtype=dtype, count=count, offset=start).view(asked[name])
    return tensors


def _start(offsets: Any) -> int:
    """The first of a tensor's two offsets; -1 if they are something else."""
    return offsets[0] if isinstance(offsets, list) and offsets and isinstance(offsets[0], int) else -1


def _check_values(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError on a tensor that makes logits infinite or NaN."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        lowest, highest = map(float, tensor.aminmax())  # both NaN where there is one
        limit = 0.0 if name.endswith(".running_var") else -MAX_WEIGHT  # a root is taken of variances
        if not (limit <= lowest and highest <= MAX_WEIGHT):
            raise ValueError(
                f"tensor {name} holds numbers from {lowest:g} to {highest:g}; they must be {limit:g} to {MAX_WEIGHT:g}"
            )


class _Unfilled(TorchFunctionMode):
    """Leaves new weights as the memory was: a file's take their place, and random numbers would be drawn for nothing.

    Not the meta device, whose first use imports a system for symbolic mathematics, which takes longer than all else
    that loading does.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return kwargs["tensor"]
        if func is Tensor.div_:  # of what those have left as it was
            return args[0]
        return func(*args, **(kwargs or {}))


def _local_folder(folder_or_hub_id: str | os.PathLike[str]) -> Path:
    folder = Path(folder_or_hub_id)
    if os.path.isdir(folder):  # which is false, and no error, for a name that no folder can have
        return folder
    name = os.fspath(folder_or_hub_id)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name):
        raise ValueError(f"there is no run folder {name!r}; `python train.py` makes one")
    from huggingface_hub import snapshot_download  # only here: loading from disk needs no hub client

    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except Exception as error:  # the client raises errors of many libraries
        raise ValueError(
            f"there is no run folder {name!r}, and the Hugging Face Hub gave none of that name ({type(error).__name__})"
        ) from None


def _read(path: Path, reader: Callable[[Path], Any]) -> Any:
    try:
        return reader(path)
    except FileNotFoundError:
        raise BrokenRun(path, "is missing", "python train.py") from None
    except (ValueError, RuntimeError, OSError) as error:
        if is_lfs_pointer(path):
            raise BrokenRun(path, "is a Git LFS pointer, not the file itself", GIT_LFS_PULL) from None
        reason = error.strerror if isinstance(error, OSError) else None
        raise BrokenRun(path, f"can't be used: {reason or error}") from None


def _writing(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def _plain_card(info: dict[str, Any]) -> str:
    figures = "\n".join(f"- {key}: {value}" for key, value in info.items() if isinstance(value, (str, int, float)))
    return f"# A tinylm run\n\nLoad it with `tinylm.load(folder)`.\n\n{figures}\n"
