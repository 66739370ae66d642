"""Training: recipes, the data and model they ask for, the loop, and picking up where it stopped."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from tinylm import checkpoint, evaluation
from tinylm.caption_figures import N_LARGEST, calibrated, figures, most_pictured
from tinylm.captioner import Captioner
from tinylm.card import model_card
from tinylm.config import ModelConfig, MoEConfig, VisionConfig, preset
from tinylm.data.batches import Batch, BatchSource, Lines, PictureBatches, TextBatches, Views, batches_an_epoch, resized
from tinylm.data.flowers import FlowerData, LabelledPictures, caption, load_flowers, read_pictures
from tinylm.data.knowledge import Probe
from tinylm.data.others import OtherPictures, load_others, others_beside
from tinylm.data.text import BUILT_IN, TextCorpus, load_corpus
from tinylm.experts import expert_preferences
from tinylm.losses import LabelHead, training_loss
from tinylm.model import TinyLM
from tinylm.muon import Muon
from tinylm.tokenizer import EOS, PAD, UNK, Tokenizer

VARIANTS = ("text", "vision", "moe")
STATE = "training.pt"  # what --resume needs; gone when the run is finished
N_EVALUATIONS = 20
SECONDS_BETWEEN_SAVES = 60
LONGEST_CONTEXT = 512  # tokens that the longest line may raise the context to
N_COPY_PROMPTS = 200  # completed to see how many of the completions are whole training lines
FIGURES = ("captions", "slots", "not_flowers")  # of held-out pictures
STEPS_BETWEEN_READINGS = 20  # reading the loss waits for the device


class TrainingError(Exception):
    """Training can't go on; the message says what to do."""


@dataclass(frozen=True)
class Recipe:
    """How to train; lengths in epochs, rates per step, shares between 0 and 1."""

    epochs: float
    batch_size: int
    learning_rate: float
    min_steps: int = 0  # of a run, however little data there is; 0 where epochs are asked for by hand
    optimizer: str = "adamw"  # or "muon" (inside the blocks; AdamW for the rest), "sgd"
    rest_rate: float = 1.0  # beside muon: AdamW's rate for the rest, as a share of the learning rate
    weight_decay: float = 0.1
    beta2: float = 0.99
    warmup: float = 0.05  # share of the run
    final_rate: float = 0.02  # share of the learning rate left at the end; cosine between
    clip: float = 1.0  # largest norm of the gradient; 0 for none
    scaled_init: bool = True  # False: PyTorch's own
    final_norm: bool = True
    vocab_size: int = 1250
    max_token_length: int = 8
    special_tokens: tuple[str, ...] = (PAD, EOS, UNK)
    max_seq_len: int = 64  # raised to the longest line if that is longer, up to 512
    bucket: bool = True  # batches of lines of like length
    start_share: float = 0.1  # batches that begin with <eos>, so that the model can start from nothing
    answer_weight: float = 1.0  # how much the answers of the built-in corpus count against the rest of their lines
    joined_share: float = 0.05  # added examples of several lines after each other, for longer prompts
    stored_size: int = 96  # side of the pictures that views are cut from
    augmented: bool = True
    balance: float = 0.5  # 0 shows every picture as often, 1 every label
    nothing_share: float = 0.05  # pictures of nothing with labels at random, so that a blank card gets no sure name
    mixed_share: float = 0.25  # pictures with a patch of another one, for the trunk's own labels; without a caption
    view_sizes: tuple[float, ...] = (1.0,)  # shares of the model's own, over the run: small pictures cost less
    label_loss: float = 1.0  # weight of naming the label straight from the image trunk; training only
    label_smoothing: float = 0.1  # share of each right label that is spread over all, in the trunk's loss


# The article's own training, beside one that really trains. The sizes are not part of a recipe.
_ARTICLE = Recipe(
    epochs=50.0,
    batch_size=8,
    learning_rate=3e-4,
    optimizer="sgd",
    weight_decay=0.0,
    warmup=0.0,
    final_rate=1.0,
    clip=0.0,
    scaled_init=False,
    final_norm=False,
    special_tokens=(PAD,),
    bucket=False,
    start_share=0.0,
    joined_share=0.0,
    augmented=False,
    balance=0.0,
    nothing_share=0.0,
    mixed_share=0.0,
    label_loss=0.0,
)
RECIPES: dict[str, dict[str, Recipe]] = {
    "default": {
        "text": Recipe(
            epochs=13.5, batch_size=128, learning_rate=6e-3, optimizer="muon", answer_weight=8.0, joined_share=0.01
        ),
        "moe": Recipe(
            epochs=11.5, batch_size=128, learning_rate=6e-3, optimizer="muon", answer_weight=8.0, joined_share=0.01
        ),
        "vision": Recipe(
            epochs=50.0,
            batch_size=128,
            learning_rate=6e-3,
            min_steps=700,
            # All that captions can be cut into: labels then differ from their first token on, and the greedy caption is
            # that of the likeliest label where the model is torn between many.
            vocab_size=2500,
            optimizer="muon",
            rest_rate=0.35,
            max_seq_len=32,
            balance=0.25,
            nothing_share=0.1,
            mixed_share=0.5,
            view_sizes=(0.625, 0.75, 0.875, 1.0),
        ),
    },
    "article": {"text": _ARTICLE, "moe": _ARTICLE, "vision": _ARTICLE},
}
_ENCODERS = {
    "default": VisionConfig(
        image_size=64,
        encoder="conv",
        d_hidden=128,
        channels=(32, 64, 128, 208),
        n_blocks=(1, 2, 2, 1),
        mirrored=True,
        scales=(1.0, 1.25),
    ),
    "article": VisionConfig(image_size=32, encoder="mlp"),
}


@dataclass(frozen=True)
class Plan:
    """One run as the command line asks for it."""

    variant: str
    out: Path
    recipe_name: str = "default"
    preset_name: str = "article"
    device: str = "auto"
    corpus: str = BUILT_IN
    test_corpus: str | None = None
    flowers: tuple[str, ...] = ("hub",)
    test_flowers: str | None = None
    not_flowers: str | None = None
    beside: str | None = None
    minutes: float | None = None
    seed: int = 0
    note: str | None = None
    resume: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    command: str = ""


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


def train(plan: Plan) -> dict[str, Any]:
    """Carry out `plan`, write the run folder, and return what its `metrics.json` holds.

    Raises ValueError on settings or data that can't work, TrainingError if the loss stops being a number, and
    KeyboardInterrupt once an interrupted run is saved.
    """
    recipe, sizes = _settle(plan)
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
        _loop(plan, recipe, task, optimizers, progress, interrupted, save_state)
    save_state()  # also of a whole run, should anything go wrong from here on
    if interrupted.is_set():
        raise KeyboardInterrupt
    info = _metrics(plan, recipe, task, progress)
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


def cpu_computes_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; False where PyTorch can't tell."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


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


def pytorch_init(model: TinyLM) -> None:
    """PyTorch's default weights, as the article has them."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.LayerNorm)):
            module.reset_parameters()
    bound = 1 / math.sqrt(model.config.d_model)  # nn.Linear's own for a bias
    nn.init.uniform_(model.head_bias, -bound, bound)


def make_optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """AdamW (decaying matrices only), plain SGD, or Muon for the matrices inside the blocks and AdamW for the rest.

    Raises ValueError on another name.
    """
    if recipe.optimizer == "sgd":
        return [torch.optim.SGD(model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)]
    if recipe.optimizer not in ("adamw", "muon"):
        raise ValueError(f"optimizer={recipe.optimizer!r} is unknown; choose muon, adamw or sgd")
    inner = []
    if recipe.optimizer == "muon":
        inner = [p for name, p in model.named_parameters() if p.dim() >= 2 and _is_inside(name)]
    taken = {id(p) for p in inner}
    rest = [p for p in model.parameters() if id(p) not in taken]
    groups = [
        {"params": [p for p in rest if p.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, recipe.beta2), fused=True)
    if not inner:
        return [adamw]
    for group in adamw.param_groups:
        group["share"] = recipe.rest_rate
    return [adamw, Muon(inner, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)]


def _is_inside(name: str) -> bool:
    """Whether a weight lies between others: not the first or the last of the network."""
    # A router has one row an expert: as good as no directions to balance.
    return ("blocks." in name or "encoder." in name) and "router" not in name and ".stem." not in name


def learning_rate(recipe: Recipe, done: float) -> float:
    """Rate when a share `done` of the run is over: linear warm-up, then a cosine down to `final_rate`."""
    if done < recipe.warmup:
        return recipe.learning_rate * max(done / recipe.warmup, 1e-3)
    along = min((done - recipe.warmup) / max(1 - recipe.warmup, 1e-9), 1.0)
    share = recipe.final_rate + (1 - recipe.final_rate) * 0.5 * (1 + math.cos(math.pi * along))
    return recipe.learning_rate * share


def _loop(
    plan: Plan,
    recipe: Recipe,
    task: Task,
    optimizers: list[torch.optim.Optimizer],
    progress: Progress,
    interrupted: threading.Event,
    save_state: Callable[[], None],
) -> None:
    model, device = task.model, task.model.head_bias.device
    parameters = list(task.trained().parameters())
    n_batches = task.batches.n_batches()
    n_steps = max(1, recipe.min_steps, math.ceil(recipe.epochs * n_batches))
    limit = None if plan.minutes is None else 60 * plan.minutes
    # Emulated bfloat16 is slower than float32; on a CPU it pays for convolutions only.
    bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    bf16_trunk = bf16 or (device.type == "cpu" and cpu_computes_bf16())
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
            batch = batch.to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                loss, nats = training_loss(model, batch, task.label_head, bf16_trunk)
            for parameter in parameters:
                parameter.grad = None
            loss.backward()
            if recipe.clip:
                nn.utils.clip_grad_norm_(parameters, recipe.clip)
            for optimizer in optimizers:
                optimizer.step()
            progress.step += 1
            progress.n_tokens += n_tokens
            if progress.step % STEPS_BETWEEN_READINGS == 1:
                progress.train_loss = _smoothed(progress.train_loss, _finite(nats, progress.step))
            now = time.monotonic()
            progress.seconds, started = progress.seconds + now - started, now
            if _done(progress, n_steps, limit) - last_evaluation >= 1 / N_EVALUATIONS:
                last_evaluation = _done(progress, n_steps, limit)
                _evaluate(task, progress)
                if time.monotonic() - last_save > SECONDS_BETWEEN_SAVES:
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
        raise TrainingError(
            f"the loss is {value} at step {step}; the last saved weights are kept. "
            "Try a smaller rate: --set learning_rate=0.001"
        )
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


def _metrics(plan: Plan, recipe: Recipe, task: Task, progress: Progress) -> dict[str, Any]:
    model, tokenizer = task.model, task.tokenizer
    model.eval()
    held_out = evaluation.held_out(model, tokenizer, task.batches.validation())
    info: dict[str, Any] = {
        "variant": plan.variant,
        "recipe": plan.recipe_name,
        "preset": plan.preset_name,
        "command": plan.command,
        "data": task.source,
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
        info["data_note"] = plan.note
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


def _settle(plan: Plan) -> tuple[Recipe, dict[str, Any]]:
    """The plan's recipe and model sizes, with its settings applied."""
    if plan.variant not in VARIANTS:
        raise ValueError(f"unknown variant {plan.variant!r}; choose one of {', '.join(VARIANTS)}")
    recipe: Any = RECIPES[plan.recipe_name][plan.variant]
    sizes: dict[str, Any] = preset(plan.preset_name)
    nested: dict[str, Any] = {
        "moe": MoEConfig() if plan.variant == "moe" else None,
        "vision": _ENCODERS[plan.recipe_name] if plan.variant == "vision" else None,
    }
    recipe_keys = {f.name for f in dataclasses.fields(Recipe)}
    inside: dict[str, dict[str, Any]] = {"moe": {}, "vision": {}}  # changed together: they must fit each other
    for key, text in plan.settings.items():
        outer, _, inner = key.rpartition(".")
        if not outer and key in recipe_keys:
            recipe = dataclasses.replace(recipe, **{key: parse_value(key, text, getattr(recipe, key))})
        elif not outer and key in sizes:
            sizes[key] = parse_value(key, text, sizes[key])
        elif nested.get(outer) is not None and hasattr(nested[outer], inner):
            old = getattr(nested[outer], inner)
            inside[outer][inner] = parse_value(key, text, 0 if old is None else old)
        else:
            of_nested = [f"{name}.{f.name}" for name, c in nested.items() if c for f in dataclasses.fields(c)]
            known = sorted(recipe_keys) + sorted(sizes) + of_nested
            raise ValueError(f"--set {key}: there is no such setting; there are {', '.join(known)}")
    for name, changes in inside.items():
        if changes:
            nested[name] = dataclasses.replace(nested[name], **changes)
    if "epochs" in plan.settings and "min_steps" not in plan.settings:
        recipe = dataclasses.replace(recipe, min_steps=0)
    if recipe.batch_size < 1 or recipe.epochs <= 0:
        raise ValueError(f"batch_size={recipe.batch_size} and epochs={recipe.epochs} must be above 0")
    return recipe, {**sizes, **nested}


def parse_value(key: str, text: str, old: Any) -> Any:
    """`text` as the type that `old` has. Raises ValueError naming the key."""
    try:
        if isinstance(old, bool):
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if isinstance(old, tuple):
            kind = type(old[0]) if old else str
            return tuple(kind(part) for part in text.split(","))
        return type(old)(text)
    except (KeyError, ValueError):
        raise ValueError(f"--set {key}={text}: expected a value like {old}") from None


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
