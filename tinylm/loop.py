"""The training loop: steps, the evaluations between them, and the progress bar."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from tinylm import evaluation
from tinylm.data.batches import Batch, BatchSource
from tinylm.data.flowers import FlowerData, LabelledPictures
from tinylm.data.known import Known
from tinylm.data.others import OtherPictures
from tinylm.data.text import TextCorpus
from tinylm.gpu_step import GpuStep
from tinylm.losses import LabelHead, Loss, training_loss
from tinylm.model import TinyLM
from tinylm.recipes import Plan, Recipe, learning_rate
from tinylm.tokenizer import Tokenizer

N_EVALUATIONS = 20
STEPS_BETWEEN_READINGS = 20  # reading the loss waits for a GPU


class TrainingError(Exception):
    """Training can't go on; the message says what to do."""


class NotFinite(TrainingError):
    """The loss or a weight is no number any more; the message names the step."""


@dataclass
class Task:
    """A model and what it is to learn."""

    model: TinyLM
    tokenizer: Tokenizer
    batches: BatchSource
    source: str
    corpus: TextCorpus | None = None
    flowers: FlowerData | None = None
    others: OtherPictures | None = None
    test_flowers: LabelledPictures | None = None
    beside: dict[str, Any] | None = None  # the figures of another run, for the model card
    label_head: LabelHead | None = None
    known: Known | None = None

    def trained(self) -> nn.ModuleDict:
        """All modules with weights to train, the shipped model and what only training needs."""
        heads = {} if self.label_head is None else {"label_head": self.label_head}
        return nn.ModuleDict({"model": self.model, **heads})


@dataclass
class Progress:
    """How far a run has come; the seconds are those of the loop, its evaluations included."""

    step: int = 0
    seconds: float = 0.0
    n_tokens: int = 0
    train_loss: float = math.nan
    history: list[dict[str, float]] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Targets learned from a second, padding not counted."""
        return self.n_tokens / self.seconds if self.seconds else 0.0


class Precision(NamedTuple):
    """What is computed in bfloat16 instead of float32, under autocast."""

    whole: bool
    trunk: bool  # the image trunk

    @classmethod
    def of(cls, device: torch.device, has_images: bool = False) -> Precision:
        """The fastest that `device` computes itself; emulated bfloat16 is slower than float32.

        On a CPU a captioner's text stays in float32: its image trunk is most of the work.
        """
        if device.type == "cuda":
            hardware = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            hardware = device.type == "cpu" and cpu_computes_bf16()
        return cls(hardware and not (has_images and device.type == "cpu"), hardware)


def take_step(
    task: Task,
    batch: Batch,
    parameters: list[nn.Parameter],
    optimizers: list[torch.optim.Optimizer],
    clip: float,
    precision: Precision,
) -> Loss:
    """One update from one batch; its loss, which nothing has waited for yet."""
    with torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=precision.whole):
        loss = training_loss(task.model, batch, task.label_head, precision.trunk)
    for parameter in parameters:
        parameter.grad = None
    loss.total.backward()
    if clip:
        nn.utils.clip_grad_norm_(parameters, clip)
    for optimizer in optimizers:
        optimizer.step()
    return loss


def step_on(
    device: torch.device,
    task: Task,
    parameters: list[nn.Parameter],
    optimizers: list[torch.optim.Optimizer],
    clip: float,
) -> Callable[[Batch], Tensor]:
    """How a step is taken there, from a batch on the CPU; it gives back the loss in nats a token.

    On a CPU it also notes how well each answer was known; a GPU would have to be waited for.
    """
    precision = Precision.of(device, has_images=task.model.encoder is not None)
    if device.type == "cuda":
        return GpuStep(task.model, task.label_head, optimizers, clip, precision.whole)

    def step(batch: Batch) -> Tensor:
        loss = take_step(task, batch, parameters, optimizers, clip, precision)
        if task.known is not None and batch.rows is not None and loss.answers_B is not None:
            task.known.note(batch.rows, loss.answers_B)
        return loss.nats

    return step


def run_steps(
    plan: Plan,
    recipe: Recipe,
    task: Task,
    optimizers: list[torch.optim.Optimizer],
    progress: Progress,
    interrupted: threading.Event,
    save_state: Callable[[], None],
) -> None:
    """Train until the plan's end or until `interrupted`, saving the state every `plan.save_every` seconds.

    Raises NotFinite if the loss stops being a number: at that step on a CPU, up to 20 later on a GPU.
    """
    model, device = task.model, task.model.head_bias.device
    parameters = list(task.trained().parameters())
    n_batches = task.batches.n_batches()
    n_steps = max(1, recipe.min_steps, math.ceil(recipe.epochs * n_batches))
    limit = None if plan.minutes is None else 60 * plan.minutes
    step = step_on(device, task, parameters, optimizers, recipe.clip)
    # A resumed run evaluates at the same steps as one that was never interrupted.
    evaluated = progress.history[-1] if progress.history else {"step": 0, "seconds": 0.0}
    last_evaluation = evaluated["step"] / n_steps if limit is None else evaluated["seconds"] / limit
    last_save = started = time.monotonic()
    with _bar(plan, progress, n_steps, limit) as bar:
        for batch in _batches(task.batches, progress.step):
            done = _done(progress, n_steps, limit)
            if done >= 1 or interrupted.is_set():
                break
            model.train()
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group.get("share", 1.0) * learning_rate(recipe, done)
            n_tokens = batch.n_tokens
            nats = step(batch)
            progress.step += 1
            progress.n_tokens += n_tokens
            read = progress.step % STEPS_BETWEEN_READINGS == 1
            if read or device.type == "cpu":
                value = _finite(nats, progress.step)
                progress.train_loss = _smoothed(progress.train_loss, value) if read else progress.train_loss
            now = time.monotonic()
            progress.seconds, started = progress.seconds + now - started, now
            if _done(progress, n_steps, limit) - last_evaluation >= 1 / N_EVALUATIONS:
                last_evaluation = _done(progress, n_steps, limit)
                _evaluate(task, progress)
            if now - last_save >= plan.save_every:
                save_state()
                last_save = time.monotonic()
            _show(bar, progress, limit)
        if not interrupted.is_set() and (not progress.history or progress.history[-1]["step"] != progress.step):
            _evaluate(task, progress)
            _show(bar, progress, limit)


def _batches(source: BatchSource, first_step: int) -> Iterator[Batch]:
    """Batches from `first_step` on, epoch after epoch, the same whether or not the run was interrupted."""
    epoch, skip = divmod(first_step, source.n_batches())
    while True:
        for i, batch in enumerate(source.epoch(epoch)):
            if i >= skip:
                yield batch
        epoch, skip = epoch + 1, 0


def _done(progress: Progress, n_steps: int, limit: float | None) -> float:
    return progress.step / n_steps if limit is None else progress.seconds / limit


def _finite(nats: Tensor | float, step: int) -> float:
    value = float(nats.detach() if isinstance(nats, Tensor) else nats)
    if not math.isfinite(value):
        raise NotFinite(f"the loss is {value} at step {step}")
    return value


def _smoothed(old: float, new: float) -> float:
    return new if math.isnan(old) else 0.8 * old + 0.2 * new


def _evaluate(task: Task, progress: Progress) -> None:
    held_out = evaluation.held_out(task.model, task.tokenizer, task.batches.validation())
    _finite(held_out.nats_per_token, progress.step)
    progress.history.append(
        {
            "step": progress.step,
            "seconds": round(progress.seconds, 2),
            "train_loss": round(progress.train_loss, 4),
            "val_loss": round(held_out.nats_per_token, 4),
        }
    )


def cpu_computes_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; False where PyTorch can't tell."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _bar(plan: Plan, progress: Progress, n_steps: int, limit: float | None) -> tqdm:
    shape = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit} [{elapsed}<{remaining}]{postfix}"
    if limit is None:
        return tqdm(total=n_steps, initial=progress.step, desc=plan.variant, unit=" steps", bar_format=shape)
    total, initial = round(limit), min(round(progress.seconds), round(limit))
    return tqdm(total=total, initial=initial, desc=plan.variant, unit=" s", bar_format=shape)


def _show(bar: tqdm, progress: Progress, limit: float | None) -> None:
    history = progress.history
    if progress.step % STEPS_BETWEEN_READINGS == 1 or (history and history[-1]["step"] == progress.step):
        val_loss = history[-1]["val_loss"] if history else math.nan
        speed = f"{progress.tokens_per_second:,.0f} tokens/s"
        bar.set_postfix_str(f"train {progress.train_loss:.3f}, val {val_loss:.3f}, {speed}", refresh=False)
    if limit is None:
        bar.update(progress.step - bar.n)
    else:
        bar.update(min(round(progress.seconds), round(limit)) - bar.n)
