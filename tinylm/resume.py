"""The state of an unfinished run on the disk, which `--resume` goes on from, and what must be the same for that."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from tinylm import checkpoint, durable
from tinylm.data.known import Known
from tinylm.loop import NotFinite, Progress, Task
from tinylm.recipes import Plan

STATE = "training.pt"  # gone when the run is finished and its files are in their places


class Saves:
    """The state of a run on the disk, which `--resume` goes on from."""

    def __init__(
        self,
        folder: Path,
        fingerprint: dict[str, Any],
        trained: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        known: Known | None = None,
    ) -> None:
        """`fingerprint` is what must be the same for the run to go on."""
        self.failure: str | None = None  # why the last save was none
        self._step: int | None = None  # of the state on the disk, if it is this run's
        self._folder, self._fingerprint = folder, fingerprint
        self._trained, self._optimizers, self._known = trained, optimizers, known

    def try_to_save(self, progress: Progress) -> None:
        """Save the state; if the disk won't have it, say so once: training is worth more than its state.

        Nothing is drawn from PyTorch's own random numbers after the first weights, and batches hang on seed, epoch,
        step and what is known alone: there is no more state than this. Raises NotFinite, and leaves the old state, if
        a weight is no number any more.
        """
        if not all(bool(parameter.isfinite().all()) for parameter in self._trained.parameters()):
            raise NotFinite(f"the weights are no numbers any more at step {progress.step}")
        state = {
            "plan": self._fingerprint,
            "model": self._trained.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "known": self._known.state_dict() if self._known else None,
            "progress": dataclasses.asdict(progress),
        }
        try:
            durable.write_whole(self._folder / STATE, lambda path: _write_state(path, state))
        except OSError as error:
            if self.failure is None:
                tqdm.write(f"the state can't be saved in {self._folder}: {error.strerror or error}; going on without")
            self.failure = f"the state can't be saved in {self._folder}: {error.strerror or error}"
        else:
            self.failure, self._step = None, progress.step

    def resume(self) -> Progress:
        """Put the saved state into model and optimizers. Raises ValueError if there is none or another run's."""
        path = self._folder / STATE
        if not path.exists():
            if (self._folder / checkpoint.METRICS).exists():
                raise ValueError(f"--resume: {self._folder} holds no unfinished run, the one in it is finished")
            raise ValueError(f"--resume: {self._folder} holds no unfinished run; leave --resume out to start one")
        try:
            device = next(self._trained.parameters()).device
            state = torch.load(path, map_location=device, weights_only=True)
            old, progress = state["plan"], Progress(**state["progress"])
            changed = [key for key, value in self._fingerprint.items() if old.get(key) != value]
            if not changed:
                self._trained.load_state_dict(state["model"])
                for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
                    optimizer.load_state_dict(saved)
                if self._known:
                    self._known.load_state_dict(state["known"])
        except Exception as error:  # of many kinds, on a file that only has the name
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"--resume: {path} can't be used ({reason}); leave --resume out to start anew") from None
        if changed:
            told = ", ".join(f"{key} was {old.get(key)!r}" for key in changed)
            raise ValueError(f"--resume: the run in {self._folder} was started with other settings: {told}")
        self._step = progress.step
        return progress

    def kept(self, go_on: str, start: str) -> str:
        """What there is to go on from, and how; else how to start anew."""
        if self._step is None:
            return f"nothing of it was saved; start again {start}"
        return f"its state at step {self._step} is kept; go on from there {go_on}"


def _write_state(path: Path, state: dict[str, Any]) -> None:
    with open(path, "wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # in which PyTorch hides what the system said
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def fingerprint(plan: Plan, task: Task) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    return {
        "variant": plan.variant,
        "recipe": plan.recipe_name,
        "preset": plan.preset_name,
        "corpus": plan.corpus,
        "test_corpus": plan.test_corpus,
        "flowers": list(plan.flowers),
        "not_flowers": plan.not_flowers,
        "seed": plan.seed,
        # A run whose loss is no number any more goes on with another rate.
        "settings": {key: value for key, value in plan.settings.items() if key not in ("learning_rate", "clip")},
        # Files may have changed under the same name.
        "vocabulary": hashlib.sha256(task.tokenizer.to_json().encode()).hexdigest()[:16],
        "labels": list(task.flowers.labels) if task.flowers else [],
        "data": _digest(task),
    }


def _digest(task: Task) -> str:
    """Of all that is trained on, in its order."""
    digest = hashlib.sha256()
    if task.corpus is not None:
        for line in (*task.corpus.train, "", *task.corpus.validation):
            digest.update(line.encode() + b"\n")
    if task.flowers is not None:
        for images in (task.flowers.train_images, *([task.others.train] if task.others else [])):
            digest.update(images.numpy().tobytes())
        digest.update(task.flowers.train_labels.numpy().tobytes())
    return digest.hexdigest()[:16]
