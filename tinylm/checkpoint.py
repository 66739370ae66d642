"""Run folders: what training writes, and what the app, the Hub and `--resume` read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, safe_open
from safetensors.torch import save as serialize
from torch import nn
from torch.overrides import TorchFunctionMode

from tinylm.config import ModelConfig
from tinylm.model import TinyLM
from tinylm.shapes import tensor_shapes
from tinylm.tokenizer import Tokenizer

CONFIG, WEIGHTS, TOKENIZER, METRICS, CARD = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "metrics.json",
    "README.md",
)
FILES = (CONFIG, WEIGHTS, TOKENIZER, METRICS, CARD)


@dataclass
class Run:
    """A loaded run folder; the model is in evaluation mode."""

    model: TinyLM
    tokenizer: Tokenizer
    info: dict[str, Any]


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

    Each file is written beside its place and then moved there, so a file is either the old one or the new one.
    `card` is the text of the model card; None writes a short one from `info`. Raises OSError if the folder can't be
    written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    # Not save_file, whose files only their owner may read.
    write_whole(folder / WEIGHTS, lambda path: path.write_bytes(serialize(tensors)))
    _write_text(folder / CONFIG, json.dumps(model.config.to_dict(), indent=2) + "\n")
    _write_text(folder / TOKENIZER, tokenizer.to_json() + "\n")
    _write_text(folder / METRICS, json.dumps(info, indent=2, ensure_ascii=False) + "\n")
    _write_text(folder / CARD, card if card is not None else _plain_card(info))


def load(folder_or_hub_id: str | os.PathLike[str], device: torch.device | str = "cpu") -> Run:
    """Read a run folder, or one on the Hugging Face Hub given as "owner/name".

    Raises ValueError, naming the file and what is wrong with it, if the folder is missing or not whole, or its files
    don't fit each other. No weight is allocated before config and weights are known to agree.
    """
    folder = _local_folder(folder_or_hub_id)
    config = _read(folder / CONFIG, lambda path: ModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8"))))
    tokenizer = _read(folder / TOKENIZER, Tokenizer.load)
    if tokenizer.vocab_size != config.vocab_size:
        raise ValueError(
            f"{folder / TOKENIZER} has {tokenizer.vocab_size} tokens, {folder / CONFIG} says {config.vocab_size}"
        )
    info: dict[str, Any] = {}
    if (folder / METRICS).exists():
        info = _read(folder / METRICS, _read_metrics)
    model = _read(folder / WEIGHTS, lambda path: _load_model(path, config))
    return Run(model.to(device).eval(), tokenizer, info)


def _read_metrics(path: Path) -> dict[str, Any]:
    info = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(info, dict):
        raise ValueError(f"the metrics must be an object, not {type(info).__name__}")
    return info


def _load_model(path: Path, config: ModelConfig) -> TinyLM:
    with safe_open(path, framework="pt") as header:
        found = {name: tuple(header.get_slice(name).get_shape()) for name in header.keys()}  # noqa: SIM118
    # The first tensor that does not fit ends this, whatever the config asks for behind it.
    for name, shape in tensor_shapes(config):
        if name not in found:
            raise ValueError(f"tensor {name} is missing, {CONFIG} asks for it with shape {shape}")
        if found[name] != shape:
            raise ValueError(f"tensor {name} has shape {found[name]}, {CONFIG} asks for {shape}")
        del found[name]
    if found:
        raise ValueError(f"tensor {min(found)} is none that {CONFIG} asks for")
    with _Unfilled():
        model = TinyLM(config)
    model.load_state_dict(load_file(path), assign=True)
    return model


class _Unfilled(TorchFunctionMode):
    """Leaves new weights as the memory was: a file's take their place, and random numbers would be drawn for nothing.

    Not the meta device, whose first use imports a system for symbolic mathematics, which takes longer than all else
    that loading does.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _local_folder(folder_or_hub_id: str | os.PathLike[str]) -> Path:
    folder = Path(folder_or_hub_id)
    if folder.is_dir():
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
        raise ValueError(f"{path} is missing; `python train.py` writes it") from None
    except (ValueError, KeyError, RuntimeError, OSError, SafetensorError) as error:
        hint = ""
        if path.is_file() and path.stat().st_size < 1000 and path.read_bytes().startswith(b"version https://git-lfs"):
            hint = "; it is a Git LFS pointer: run `git lfs pull`"
        raise ValueError(f"{path} can't be used: {error}{hint}") from None


def write_whole(path: Path, writer: Callable[[Path], Any]) -> None:
    """Let `writer` write a temporary file, flush it to the disk, and move it to `path`."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        writer(temporary)
        with open(temporary, "r+b") as file:  # Windows flushes only what is open for writing
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_text(path: Path, text: str) -> None:
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _plain_card(info: dict[str, Any]) -> str:
    figures = "\n".join(f"- {key}: {value}" for key, value in info.items() if isinstance(value, (str, int, float)))
    return f"# A tinylm run\n\nLoad it with `tinylm.load(folder)`.\n\n{figures}\n"
