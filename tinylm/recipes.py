"""How each variant is trained: recipes, what `--set` changes in them, rates and optimizers; and the plan of one run."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tinylm.config import MoEConfig, VisionConfig, preset
from tinylm.data.text import BUILT_IN
from tinylm.model import TinyLM
from tinylm.muon import Muon
from tinylm.tokenizer import EOS, PAD, UNK

VARIANTS = ("text", "vision", "moe")


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
    known_share: float = 1.0  # how often a line is read whose answer is known, beside one whose is not; on a CPU
    joined_share: float = 0.05  # added examples of several lines after each other, for longer prompts
    stored_size: int = 96  # side of the pictures that views are cut from
    augmented: bool = True
    balance: float = 0.5  # 0 shows every picture as often, 1 every label
    nothing_share: float = 0.05  # pictures of nothing with labels at random, so that a blank card gets no sure name
    mixed_share: float = 0.25  # pictures with a patch of another one, for the trunk's own labels; without a caption
    view_sizes: tuple[float, ...] = (1.0,)  # shares of the model's own, over the run: small pictures cost less
    label_loss: float = 1.0  # weight of naming the label straight from the image trunk; training only
    label_smoothing: float = 0.1  # share of each right label that is spread over all, in the trunk's loss

    def __post_init__(self) -> None:
        for name, (lowest, highest) in _BOUNDS.items():
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple) else (value,)
            if not numbers or not all(lowest <= number <= highest for number in numbers):  # nan is neither
                raise ValueError(f"{name}={value} must be from {lowest:g} to {highest:g}")


_ABOVE_0, _FINITE = 1e-12, 1e38
# From here to there, both included; beyond, a run can't work or would never end.
_BOUNDS: dict[str, tuple[float, float]] = {
    "epochs": (1e-6, 1e6),
    "batch_size": (1, 1e6),
    "learning_rate": (_ABOVE_0, _FINITE),
    "min_steps": (0, 1e9),
    "rest_rate": (_ABOVE_0, 1e6),
    "weight_decay": (0, 1e6),
    "beta2": (0, 0.999999),
    "warmup": (0, 1),
    "final_rate": (0, 1),
    "clip": (0, _FINITE),
    "vocab_size": (1, 1e6),
    "max_token_length": (1, 64),
    "max_seq_len": (1, 65536),
    "start_share": (0, 1),
    "answer_weight": (_ABOVE_0, 1e6),
    "known_share": (0.01, 1),
    "joined_share": (0, 100),
    "stored_size": (2, 1024),
    "balance": (0, 1),
    "nothing_share": (0, 1),
    "mixed_share": (0, 1),
    "view_sizes": (0.01, 4),
    "label_loss": (0, 1e6),
    "label_smoothing": (0, 1),
}

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
_TEXT = Recipe(
    epochs=9.6,
    batch_size=128,
    learning_rate=6e-3,
    optimizer="muon",
    answer_weight=8.0,
    known_share=0.3,
    joined_share=0.01,
)
RECIPES: dict[str, dict[str, Recipe]] = {
    "default": {
        "text": _TEXT,
        "moe": dataclasses.replace(_TEXT, epochs=7.5),
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
# What a preset changes in the default recipe. In a wide model a step moves more with the same rate, and Muon's own
# products, in float32, would take longer than the rest of the step.
_FOR_PRESET: dict[str, dict[str, dict[str, Any]]] = {
    "base": {
        "text": {"batch_size": 512, "learning_rate": 6e-4, "optimizer": "adamw"},
        "moe": {"batch_size": 512, "learning_rate": 6e-4, "optimizer": "adamw"},
        "vision": {"learning_rate": 2e-3},
    },
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
    save_every: float = 60.0  # seconds between saves of the state that `resume` goes on from; 0: after every step
    settings: dict[str, str] = field(default_factory=dict)
    command: str = ""


def settle(plan: Plan) -> tuple[Recipe, dict[str, Any]]:
    """The plan's recipe and model sizes, with its settings applied."""
    if plan.variant not in VARIANTS:
        raise ValueError(f"unknown variant {plan.variant!r}; choose one of {', '.join(VARIANTS)}")
    if not 0 <= plan.seed < 2**32:
        raise ValueError(f"--seed {plan.seed}: expected a whole number from 0 to {2**32 - 1}")
    if not 0 <= plan.save_every < math.inf:
        raise ValueError(f"--save-every {plan.save_every}: expected a number of seconds, 0 or more")
    recipe: Any = RECIPES[plan.recipe_name][plan.variant]
    sizes: dict[str, Any] = preset(plan.preset_name)
    if plan.recipe_name == "default":
        recipe = dataclasses.replace(recipe, **_FOR_PRESET.get(plan.preset_name, {}).get(plan.variant, {}))
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


def learning_rate(recipe: Recipe, done: float) -> float:
    """Rate when a share `done` of the run is over: linear warm-up, then a cosine down to `final_rate`."""
    if done < recipe.warmup:
        return recipe.learning_rate * max(done / recipe.warmup, 1e-3)
    along = min((done - recipe.warmup) / max(1 - recipe.warmup, 1e-9), 1.0)
    share = recipe.final_rate + (1 - recipe.final_rate) * 0.5 * (1 + math.cos(math.pi * along))
    return recipe.learning_rate * share


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


def pytorch_init(model: TinyLM) -> None:
    """PyTorch's default weights, as the article has them."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.LayerNorm)):
            module.reset_parameters()
    bound = 1 / math.sqrt(model.config.d_model)  # nn.Linear's own for a bias
    nn.init.uniform_(model.head_bias, -bound, bound)
