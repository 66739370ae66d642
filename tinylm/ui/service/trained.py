"""The Training tab: what training wrote into each run folder, beside what can be counted and measured again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tinylm.cache import LatentCache
from tinylm.checkpoint import MAX_METRICS_BYTES, METRICS, TOKENIZER, WEIGHTS, Run
from tinylm.data.batches import Lines, TextBatches
from tinylm.data.text import BUILT_IN, load_corpus
from tinylm.evaluation import held_out
from tinylm.files import read_text
from tinylm.ui import limits
from tinylm.ui.limits import Refused
from tinylm.ui.models import Unavailable
from tinylm.ui.service.common import GONE, Service, Update

ARTICLE = "article_recipe.json"
"""Beside the run folders: the loss curve of the article's own recipe, measured by benchmarks/article_recipe.py."""
MAX_CHARACTERS, MAX_ITEMS, LARGEST = 5_000, 1_000, 1e15
"""Of what a metrics file may bring to the page: of a text, of a list, and of a number."""
CACHED_TOKENS = 4

# The page shows these; what else a run's metrics hold stays in its folder.
SHOWN = (
    *("variant", "recipe", "preset", "command", "data", "data_note", "seed", "device", "torch", "steps", "seconds"),
    *("tokens_per_second", "parameters", "active_parameters", "train_loss", "val_loss", "val_bits_per_character"),
    *("recall", "recall_by_domain", "n_probes", "free_recall", "free_recall_by_domain", "n_free_prompts"),
    *("copied_share", "n_copy_prompts", "n_lines", "expert_load", "captions", "not_flowers", "flower_threshold"),
    *("caption_temperature", "encoder", "recipe_values"),
)
SHOWN_OF_TEST = ("captions", "not_flowers")


def run_names(service: Service) -> list[str]:
    """The shipped runs, there or not, then every further folder that holds a run."""
    return service.runs.names()


def stamp(service: Service) -> tuple[Any, ...]:
    """Changes when any run's files, or the article's curve, do."""
    try:
        article = (service.runs.folder / ARTICLE).stat().st_mtime
    except OSError:
        article = None
    return (article, *((name, service.runs.stamp(name)) for name in run_names(service)))


def trained(service: Service) -> Iterator[Update]:
    """All runs, in one update; one whose files can't be used says so in its `problem` and leaves the others alone."""
    runs: list[dict[str, Any]] = []
    with service.slots.take() as deadline:
        for name in run_names(service):
            deadline.check()
            runs.append(_described(service, name))
    yield Update({"runs": runs}, {})


def measure(service: Service, name: Any) -> Iterator[Update]:
    """The validation loss of a run, measured now on the lines that its training held out; it grows line by line.

    `loss` is in nats a token, over the `n_read` lines of `n_lines` so far. Raises Refused or Unavailable.
    """
    if name not in run_names(service):
        raise Refused("There is no run of that name.")
    with service.slots.take() as deadline:
        run = service.runs.get(name)
        if not _can_measure(run):
            raise Refused("The held-out data of this run are no part of the project, so they can't be read again here.")
        result: dict[str, Any] = {"name": name, "n_read": 0, "n_lines": 0, "loss": None}
        yield Update(result, {})
        lines = Lines.encode(held_out_lines(), run.tokenizer, run.model.config.max_seq_len)
        nats, n_tokens, n_read = 0.0, 0, 0
        for batch in TextBatches(lines, lines, batch_size=1, seed=0).validation():
            deadline.check()
            nats += held_out(run.model, run.tokenizer, [batch]).nats_per_token * batch.n_tokens
            n_tokens += batch.n_tokens
            n_read += len(batch.ids)
            yield Update({"name": name, "n_read": n_read, "n_lines": len(lines.lengths), "loss": nats / n_tokens}, {})


@cache
def held_out_lines() -> tuple[str, ...]:
    """Those of the built-in corpus, which takes seconds to put together."""
    return load_corpus().validation


def _can_measure(run: Run) -> bool:
    return run.model.config.vision is None and run.info.get("data") == BUILT_IN


def _described(service: Service, name: str) -> dict[str, Any]:
    folder = service.runs.folder / name
    metrics = _read(folder / METRICS)
    told = {key: metrics[key] for key in SHOWN if key in metrics}
    if isinstance(metrics.get("test"), dict):
        told["test"] = {key: metrics["test"].get(key) for key in SHOWN_OF_TEST}
    run: dict[str, Any] = {"name": name, "problem": None, "counted": None, "can_measure": False}
    try:
        run["counted"] = _counted(service, name)
        run["can_measure"] = _can_measure(service.runs.get(name))
    except Unavailable as error:
        run["problem"] = str(error)
    except OSError:
        run["problem"] = GONE
    return run | {"told": told, "history": _history(metrics), "article": _article(folder, metrics)}


def _counted(service: Service, name: str) -> dict[str, Any]:
    """Sizes of the loaded run, counted and measured now. Raises Unavailable, and OSError if its files go meanwhile."""
    run, path = service.runs.get(name), service.runs.folder / name / WEIGHTS
    model, config = run.model, run.model.config
    cache = LatentCache(config)
    device = model.head_bias.device
    ids_BT = torch.zeros(1, min(CACHED_TOKENS, config.max_seq_len), dtype=torch.long, device=device)
    images = None
    if config.vision is not None:
        images = torch.zeros(1, 3, config.vision.image_size, config.vision.image_size, device=device)
    with torch.inference_mode():
        model(ids_BT, images, cache)
    return {
        "parameters": model.n_parameters(),
        "active_parameters": model.n_parameters(active=True),
        "file_bytes": path.stat().st_size,
        "tensor_bytes": sum(tensor.nbytes for tensor in model.state_dict().values()),
        "header_bytes": _header_bytes(path),
        "sha256": service.weights(name)["sha256"],
        "cache_bytes": cache.nbytes // cache.length,
        "cache_tokens": cache.length,
        "full_cache_bytes": 2 * config.d_model * config.n_layers * model.head_bias.element_size(),
        "n_layers": config.n_layers,
        "d_model": config.d_model,
        "d_latent": config.d_latent,
        "vocab_size": config.vocab_size,
        "max_seq_len": config.max_seq_len,
    }


def _header_bytes(path: Path) -> int:
    """Of a safetensors file: eight bytes that give a length, and that many of names and shapes."""
    with open(path, "rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def _article(folder: Path, metrics: dict[str, Any]) -> dict[str, Any] | None:
    """The article's own recipe, measured on the same data: None unless both losses are of the very same tokens."""
    report = _read(folder.parent / ARTICLE)
    if not report or any(report.get(key) != metrics.get(key) for key in ("variant", "data", "n_lines")):
        return None
    try:
        vocabulary = hashlib.sha256((folder / TOKENIZER).read_bytes()).hexdigest()
    except OSError:
        return None
    if report.get("tokenizer_sha256") != vocabulary:
        return None
    return {"told": {key: report[key] for key in SHOWN if key in report}, "history": _history(report)}


def _history(metrics: dict[str, Any]) -> list[dict[str, float | None]]:
    """The points of the loss curves; what is no number is None, and a point without a place is left out."""
    points = []
    rows = metrics.get("history")
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            point = {key: _number(row.get(key)) for key in ("step", "seconds", "train_loss", "val_loss")}
            if point["step"] is not None and point["seconds"] is not None:
                points.append(point)
    return points


def _read(path: Path) -> dict[str, Any]:
    """What a JSON file holds, fit to travel; {} if there is none or it is no object."""
    try:
        found = _plain(json.loads(read_text(path, MAX_METRICS_BYTES)))
    except (OSError, ValueError, RecursionError):  # a file of lists within lists without end
        return {}
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> Any:
    """Anyone may have written the file: numbers are finite, and texts and lists of a length that a page can show."""
    if isinstance(value, str):
        return limits.shown(value[:MAX_CHARACTERS])
    if isinstance(value, list):
        return [_plain(item) for item in value[:MAX_ITEMS]]
    if isinstance(value, dict):
        return {limits.shown(key[:MAX_CHARACTERS]): _plain(item) for key, item in list(value.items())[:MAX_ITEMS]}
    return value if value is None or isinstance(value, bool) else _number(value)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and abs(value) < LARGEST else None  # NaN fails every comparison
