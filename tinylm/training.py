"""Training: the data and model that a plan asks for, the run itself, and picking up where it stopped."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from tinylm import checkpoint
from tinylm.card import model_card
from tinylm.config import ModelConfig
from tinylm.data.batches import BatchSource, Lines, PictureBatches, TextBatches, Views, batches_an_epoch
from tinylm.data.flowers import caption, load_flowers, read_pictures
from tinylm.data.others import load_others, others_beside
from tinylm.data.text import BUILT_IN, load_corpus
from tinylm.loop import Progress, Task, TrainingError, run_steps
from tinylm.losses import LabelHead
from tinylm.model import TinyLM
from tinylm.recipes import RECIPES, VARIANTS, Plan, Recipe, make_optimizers, pytorch_init, settle
from tinylm.report import beside, metrics, summary
from tinylm.tokenizer import Tokenizer

__all__ = [
    "BUILT_IN",
    "RECIPES",
    "STATE",
    "VARIANTS",
    "Plan",
    "Recipe",
    "TrainingError",
    "choose_device",
    "join_lines",
    "prepare",
    "run_epochs",
    "summary",
    "train",
]

STATE = "training.pt"  # what --resume needs; gone when the run is finished
LONGEST_CONTEXT = 512  # tokens that the longest line may raise the context to


def train(plan: Plan) -> dict[str, Any]:
    """Carry out `plan`, write the run folder, and return what its `metrics.json` holds.

    Raises ValueError on settings or data that can't work, TrainingError if the loss stops being a number, and
    KeyboardInterrupt once an interrupted run is saved.
    """
    recipe, sizes = settle(plan)
    _check_folder(plan.out)
    device = choose_device(plan.device)
    task = prepare(plan, recipe, sizes)
    trained = task.trained().to(device)
    optimizers = make_optimizers(trained, recipe)
    fingerprint = _fingerprint(plan, task)
    progress = _resumed(plan.out, fingerprint, trained, optimizers) if plan.resume else Progress()

    def save_state() -> None:
        state = {
            "plan": fingerprint,
            "model": trained.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            "progress": dataclasses.asdict(progress),
        }
        checkpoint.write_whole(plan.out / STATE, lambda path: torch.save(state, path))

    with _interruptible() as interrupted:
        run_steps(plan, recipe, task, optimizers, progress, interrupted, save_state)
    save_state()  # also of a whole run, should anything go wrong from here on
    if interrupted.is_set():
        raise KeyboardInterrupt
    info = metrics(plan, recipe, task, progress)
    checkpoint.save(plan.out, task.model, task.tokenizer, info, model_card(info))
    (plan.out / STATE).unlink(missing_ok=True)
    return info


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, so that a step is never left half done; the second stops at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # signals reach the main thread alone
        return

    def first(_signal: int, _frame: Any) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, first)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA when there is one. Raises ValueError if `cuda` is asked for and missing."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch sees no CUDA device here; leave --device out to train on the CPU")
    return torch.device(name)


def prepare(plan: Plan, recipe: Recipe, sizes: dict[str, Any]) -> Task:
    """Load the data, learn the vocabulary, and build the model with its first random weights."""
    torch.manual_seed(plan.seed)
    corpus, flowers, others, test_flowers = None, None, None, None
    if plan.variant == "vision":
        flowers = load_flowers(plan.flowers, recipe.stored_size, plan.seed, tqdm.write)
        not_flowers = plan.not_flowers or others_beside(plan.flowers)
        if not_flowers is not None:
            others = load_others(not_flowers, recipe.stored_size, plan.seed, tqdm.write)
            if plan.not_flowers is None:
                tqdm.write(f"pictures of other things: {not_flowers}, which lies beside the flowers")
        if plan.test_flowers is not None:
            test_flowers = read_pictures(plan.test_flowers, recipe.stored_size, flowers.labels, tqdm.write)
        lines = [caption(label) for label in flowers.labels]
    else:
        corpus = load_corpus(plan.corpus, plan.test_corpus, plan.seed)
        lines = list(corpus.train)
    tokenizer = Tokenizer.train(lines, recipe.vocab_size, recipe.max_token_length, recipe.special_tokens)
    longest = max(len(tokenizer.encode(line)) for line in lines) + 1
    # Longer lines are cut: the context's cost grows with its square, and one stray line must not set it.
    max_seq_len = max(recipe.max_seq_len, min(longest, LONGEST_CONTEXT))
    config = ModelConfig(tokenizer.vocab_size, max_seq_len, final_norm=recipe.final_norm, **sizes)
    model = TinyLM(config)
    if not recipe.scaled_init:
        pytorch_init(model)
    batches: BatchSource
    if flowers is not None:
        assert config.vision is not None
        # A plain encoder takes pictures of one size alone.
        shares = recipe.view_sizes if config.vision.encoder == "conv" else ()
        sides = tuple(max(2, round(share * config.vision.image_size)) for share in shares)
        batches = PictureBatches(
            flowers,
            tokenizer,
            config.vision.image_size,
            max_seq_len,
            recipe.batch_size,
            plan.seed,
            Views(recipe.augmented, recipe.balance, recipe.nothing_share, recipe.mixed_share, sides),
            None if plan.minutes is not None else run_epochs(recipe, len(flowers.train_labels)),
            others.train if others else None,
        )
        head = None
        if recipe.label_loss and model.encoder is not None:
            head = LabelHead(model.encoder, len(flowers.labels), recipe.label_loss, recipe.label_smoothing)
        return Task(
            model,
            tokenizer,
            batches,
            flowers.source,
            flowers=flowers,
            others=others,
            test_flowers=test_flowers,
            beside=beside(plan.beside) if plan.beside else None,
            label_head=head,
        )
    assert corpus is not None
    lines += join_lines(corpus.train, recipe.joined_share, tokenizer, max_seq_len, plan.seed)
    batches = TextBatches(
        Lines.encode(lines, tokenizer, max_seq_len, corpus.answer_starts, recipe.answer_weight),
        Lines.encode(corpus.validation, tokenizer, max_seq_len),
        recipe.batch_size,
        plan.seed,
        recipe.bucket,
        recipe.start_share,
    )
    return Task(model, tokenizer, batches, corpus.source, corpus=corpus)


def run_epochs(recipe: Recipe, n_pictures: int) -> float:
    """How many times a run goes through its pictures."""
    return max(recipe.epochs, recipe.min_steps / batches_an_epoch(n_pictures, recipe.batch_size))


def join_lines(lines: tuple[str, ...], share: float, tokenizer: Tokenizer, max_seq_len: int, seed: int) -> list[str]:
    """`share` times as many examples as there are lines, each of random lines after each other up to the context."""
    rng = random.Random(seed)
    joined = []
    for _ in range(round(share * len(lines))):
        example = rng.choice(lines)
        for line in rng.choices(lines, k=20):
            longer = f"{example} {line}"
            if len(tokenizer.encode(longer)) >= max_seq_len:
                break
            example = longer
        joined.append(example)
    return joined


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"the run folder {folder} can't be written: {error.strerror}") from None


def _fingerprint(plan: Plan, task: Task) -> dict[str, Any]:
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
        "settings": dict(plan.settings),
        # Files may have changed under the same name.
        "vocabulary": hashlib.sha256(task.tokenizer.to_json().encode()).hexdigest()[:16],
        "labels": list(task.flowers.labels) if task.flowers else [],
    }


def _resumed(
    folder: Path, fingerprint: dict[str, Any], trained: nn.Module, optimizers: list[torch.optim.Optimizer]
) -> Progress:
    path = folder / STATE
    if not path.exists():
        raise ValueError(f"--resume: {folder} holds no unfinished run; leave --resume out to start one")
    state = torch.load(path, map_location=next(trained.parameters()).device, weights_only=True)
    changed = [key for key, value in fingerprint.items() if state["plan"].get(key) != value]
    if changed:
        told = ", ".join(f"{key} was {state['plan'].get(key)!r}" for key in changed)
        raise ValueError(f"--resume: the run in {folder} was started with other settings: {told}")
    trained.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return Progress(**state["progress"])
