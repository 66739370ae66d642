"""Training: the data and model that a plan asks for, and the run itself."""

from __future__ import annotations

import dataclasses
import math
import random
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tinylm import checkpoint, durable
from tinylm.card import model_card
from tinylm.config import ModelConfig
from tinylm.data.batches import BatchSource, Lines, PictureBatches, TextBatches, Views, batches_an_epoch
from tinylm.data.flowers import caption, load_flowers, read_pictures
from tinylm.data.known import Known
from tinylm.data.others import load_others, others_beside
from tinylm.data.text import BUILT_IN, TextCorpus, load_corpus
from tinylm.loop import NotFinite, Progress, Task, TrainingError, run_steps
from tinylm.losses import LabelHead
from tinylm.model import TinyLM
from tinylm.recipes import RECIPES, VARIANTS, Plan, Recipe, make_optimizers, pytorch_init, settle
from tinylm.report import beside, metrics, summary
from tinylm.resume import STATE, Saves, fingerprint
from tinylm.shapes import tensor_shapes
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

LONGEST_CONTEXT = 512  # tokens that the longest line may raise the context to
MOST_PARAMETERS = 2_000_000_000  # training keeps four numbers for each
MOST_TENSORS = 100_000
LARGEST_PICTURE = 1024  # pixels a side


def train(plan: Plan) -> dict[str, Any]:
    """Carry out `plan`, write the run folder, and return what its `metrics.json` holds.

    Raises ValueError on settings or data that can't work or on a folder that another run writes into, TrainingError if
    the loss stops being a number or the finished run can't be saved, and KeyboardInterrupt once a run that Ctrl-C or
    SIGTERM interrupted is saved.
    """
    recipe, sizes = settle(plan)
    with _sigterm_as_ctrl_c(), durable.locked(_made(plan.out)):
        durable.tidy(plan.out, (STATE,))
        if not plan.resume and (plan.out / STATE).exists():
            tqdm.write(f"{plan.out} holds an unfinished run, which this one replaces; --resume would go on with it")
        try:
            return _train(plan, recipe, sizes)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            raise TrainingError(
                "the memory is not enough for this model and batch; try a smaller one, such as "
                f"--set batch_size={max(1, recipe.batch_size // 4)}"
            ) from None


def _train(plan: Plan, recipe: Recipe, sizes: dict[str, Any]) -> dict[str, Any]:
    device = choose_device(plan.device)
    task = prepare(plan, recipe, sizes)
    trained = task.trained().to(device)
    optimizers = make_optimizers(trained, recipe)
    saves = Saves(plan.out, fingerprint(plan, task), trained, optimizers, task.known)
    progress = saves.resume() if plan.resume else Progress()
    try:
        with _interruptible() as interrupted:
            run_steps(plan, recipe, task, optimizers, progress, interrupted, lambda: saves.try_to_save(progress))
        # Also of a whole run, should anything go wrong from here on.
        saves.try_to_save(progress)
    except NotFinite as error:
        slower = f"--set learning_rate={min(recipe.learning_rate / 4, 0.001):g}"
        kept = saves.kept(f"with a smaller rate: --resume {slower}", f"with a smaller rate: {slower}")
        raise TrainingError(f"{error}; {kept}") from None
    if interrupted.is_set():
        if saves.failure is not None:
            raise TrainingError(
                f"interrupted, but {saves.failure}; {saves.kept('with --resume', 'once there is room')}"
            )
        raise KeyboardInterrupt
    info = metrics(plan, recipe, task, progress)
    try:
        checkpoint.save(plan.out, task.model, task.tokenizer, info, model_card(info))
    except OSError as error:
        again = saves.kept("with --resume, once there is room", "once there is room")
        raise TrainingError(f"the run can't be saved in {plan.out}: {error.strerror or error}; {again}") from None
    (plan.out / STATE).unlink(missing_ok=True)
    return info


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM, with which hosts end a program, does what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets, so that no step is left half done; the second stops at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def first(_signal: int, _frame: Any) -> None:
        event.set()
        restore()

    for number in before:
        signal.signal(number, first)
    try:
        yield event
    finally:
        restore()


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
    if corpus is not None and tokenizer.eos_id is None:
        corpus = _of_two_tokens(corpus, tokenizer)
        lines = list(corpus.train)
    n_tokens = [len(tokenizer.encode(line)) + 1 for line in lines]
    # Longer lines are cut: the context's cost grows with its square, and one stray line must not set it.
    max_seq_len = max(recipe.max_seq_len, min(max(n_tokens), LONGEST_CONTEXT))
    n_cut = sum(n > max_seq_len for n in n_tokens)
    if n_cut:
        tqdm.write(f"{n_cut:,} of {len(lines):,} lines are cut after {max_seq_len} tokens, the context")
    config = ModelConfig(tokenizer.vocab_size, max_seq_len, final_norm=recipe.final_norm, **sizes)
    _check_size(config)
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
    train = Lines.encode(lines, tokenizer, max_seq_len, corpus.answer_starts, recipe.answer_weight)
    known = Known(len(lines), recipe.known_share) if train.weights is not None and recipe.known_share < 1 else None
    batches = TextBatches(
        train,
        Lines.encode(corpus.validation, tokenizer, max_seq_len),
        recipe.batch_size,
        plan.seed,
        recipe.bucket,
        recipe.start_share,
        known,
    )
    return Task(model, tokenizer, batches, corpus.source, corpus=corpus, known=known)


def _of_two_tokens(corpus: TextCorpus, tokenizer: Tokenizer) -> TextCorpus:
    """The lines of two tokens and more: without an end token there is nothing to learn from one alone."""
    train, validation = (
        tuple(line for line in lines if len(tokenizer.encode(line)) > 1) for lines in (corpus.train, corpus.validation)
    )
    if not train or not validation:
        raise ValueError(f"{corpus.source}: every line is a single token, after which there is nothing to learn")
    return dataclasses.replace(corpus, train=train, validation=validation)


def _check_size(config: ModelConfig) -> None:
    """Raises ValueError, before anything is allocated, on a model that no training here could hold."""
    n = 0
    for i, (_, shape) in enumerate(tensor_shapes(config)):
        n += math.prod(shape)
        if n > MOST_PARAMETERS or i > MOST_TENSORS:
            raise ValueError(
                f"these sizes make a model of more than {MOST_PARAMETERS:,} parameters; choose smaller ones"
            )
    if config.vision and config.vision.image_size > LARGEST_PICTURE:
        raise ValueError(f"vision.image_size={config.vision.image_size} must be at most {LARGEST_PICTURE}")


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


def _made(folder: Path) -> Path:
    """The folder, made if need be. Raises ValueError if files can't be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # without a name, so that whatever ends the process leaves nothing
            pass
    except OSError as error:
        raise ValueError(f"the run folder {folder} can't be written: {error.strerror}") from None
    return folder
