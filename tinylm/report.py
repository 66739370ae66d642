"""What a finished run tells: the figures for metrics.json, and a few lines for the terminal."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinylm import checkpoint, evaluation
from tinylm.caption_figures import N_LARGEST, calibrated, figures, most_pictured
from tinylm.captioner import Captioner
from tinylm.data.batches import resized
from tinylm.data.knowledge import Probe
from tinylm.data.text import TextCorpus, readable
from tinylm.experts import expert_preferences
from tinylm.loop import Progress, Task
from tinylm.model import TinyLM
from tinylm.recipes import Plan, Recipe
from tinylm.tokenizer import Tokenizer

N_COPY_PROMPTS = 200  # completed to see how many of the completions are whole training lines
FIGURES = ("captions", "slots", "not_flowers")  # of held-out pictures


def metrics(plan: Plan, recipe: Recipe, task: Task, progress: Progress) -> dict[str, Any]:
    model, tokenizer = task.model, task.tokenizer
    model.eval()
    held_out = evaluation.held_out(model, tokenizer, task.batches.validation())
    info: dict[str, Any] = {
        "variant": plan.variant,
        "recipe": plan.recipe_name,
        "preset": plan.preset_name,
        "command": readable(plan.command),
        "data": readable(task.source),
        "seed": plan.seed,
        "device": device_name(model.head_bias.device),
        "torch": torch.__version__,
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "tokens_per_second": round(progress.tokens_per_second),
        "parameters": model.n_parameters(),
        "active_parameters": model.n_parameters(active=True),
        "train_loss": round(progress.train_loss, 4),
        "val_loss": round(held_out.nats_per_token, 4),
        "val_bits_per_character": round(held_out.bits_per_character, 4),
    }
    if task.corpus is not None:
        info |= _text_figures(task.corpus, model, tokenizer)
    if model.config.moe is not None:
        loads = evaluation.expert_load(model, task.batches.validation())
        info["expert_load"] = [[round(share, 4) for share in layer] for layer in loads]
        kinds = task.corpus.kinds if task.corpus is not None else {}
        info["expert_preferences"] = expert_preferences(model, tokenizer, task.batches.validation(), kinds)
    if task.flowers is not None:
        info |= _caption_figures(task)
    if task.beside:
        info["beside"] = task.beside
    if plan.note:
        info["data_note"] = readable(plan.note)
    info["recipe_values"] = dataclasses.asdict(recipe)
    info["history"] = progress.history
    return info


def _caption_figures(task: Task) -> dict[str, Any]:
    """How well held-out pictures are captioned: those set aside for validation, and the test pictures if given."""
    flowers, others, vision = task.flowers, task.others, task.model.config.vision
    assert flowers is not None and vision is not None

    def seen(images: Tensor) -> Tensor:
        return resized(images, vision.image_size)

    images, label_ids = seen(flowers.validation_images), flowers.validation_labels
    captioner = calibrated(Captioner(task.model, task.tokenizer, flowers.labels), images, label_ids)
    info: dict[str, Any] = {"labels": list(flowers.labels), "encoder": vision.encoder}
    info |= figures(captioner, images, label_ids, seen(others.validation) if others else None)
    if task.test_flowers is not None:
        images, label_ids = seen(task.test_flowers.images), task.test_flowers.label_ids
        largest = most_pictured(label_ids, flowers.labels, N_LARGEST, flowers.train_labels)
        of_test = figures(captioner, images, label_ids, seen(others.test) if others else None, largest=largest)
        info["test"] = {key: of_test[key] for key in FIGURES}
    return info


def beside(folder: str) -> dict[str, Any]:
    """The figures of a finished vision run, for the model card of another. Raises ValueError if it has none."""
    metrics = checkpoint.load(folder).info
    told = metrics.get("test") or metrics
    try:
        known = {key: metrics[key] for key in ("command", "parameters", "seconds")}
        return known | {"encoder": metrics["encoder"]} | {key: told[key] for key in FIGURES}
    except KeyError as error:
        raise ValueError(f"--beside {folder}: its metrics.json has no {error.args[0]!r}; is it a vision run?") from None


def _text_figures(corpus: TextCorpus, model: TinyLM, tokenizer: Tokenizer) -> dict[str, Any]:
    """How much of what it read a text model can tell."""

    def share_of(probes: tuple[Probe, ...], name: str) -> dict[str, Any]:
        share, by_domain = evaluation.recall(model, tokenizer, probes)
        return {
            name: round(share, 4) if probes else None,
            f"{name}_by_domain": {domain: round(value, 4) for domain, value in by_domain.items()},
        }

    info = {
        **share_of(corpus.probes, "recall"),
        "n_probes": len(corpus.probes),
        "n_lines": {"train": len(corpus.train), "validation": len(corpus.validation), "test": len(corpus.test)},
    }
    if corpus.free_prompts:
        prompts = [probe.prompt for probe in corpus.free_prompts]
        some = prompts[:: max(1, len(prompts) // N_COPY_PROMPTS)][:N_COPY_PROMPTS]
        info |= {
            **share_of(corpus.free_prompts, "free_recall"),
            "n_free_prompts": len(prompts),
            "copied_share": round(evaluation.copied_share(model, tokenizer, some, corpus.train), 4),
            "n_copy_prompts": len(some),
        }
    return info


def device_name(device: torch.device) -> str:
    """The device in words: a GPU's name, or how many CPU threads PyTorch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu, {torch.get_num_threads()} threads"


def summary(info: dict[str, Any], folder: str | os.PathLike[str]) -> str:
    """What a finished run tells, in a few lines."""
    lines = [
        f"{info['variant']}: {info['steps']:,} steps in {info['seconds']:.0f} s on {info['device']}, "
        f"{info['tokens_per_second']:,} tokens/s",
        f"  validation loss {info['val_loss']:.3f} nats a token, {info['val_bits_per_character']:.3f} bits a character",
    ]
    if info.get("recall") is not None:
        lines.append(f"  recall {info['recall']:.1%} of {info['n_probes']} held-out questions")
    if info.get("free_recall") is not None:
        lines.append(f"  right on {info['free_recall']:.1%} of {info['n_free_prompts']} prompts as visitors type them")
    if info.get("expert_load"):
        loads = [share for layer in info["expert_load"] for share in layer]
        lines.append(f"  expert loads between {min(loads):.0%} and {max(loads):.0%}")
    if info.get("caption_accuracy") is not None:
        lines.append(f"  captions right on {info['caption_accuracy']:.1%} of the held-out pictures")
    if info.get("test"):
        lines.append(f"  captions right on {info['test']['captions']['caption_accuracy']:.1%} of the test pictures")
    lines.append(f"  saved in {os.fspath(folder)}")
    if Path(folder).name == info["variant"]:
        lines[-1] += f"; see it with: python app.py --weights {Path(folder).parent}"
    return "\n".join(lines)
