"""The sizes and options of a model, as frozen dataclasses that refuse what cannot work."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, TypeVar

from tinylm.files import shown

ENCODERS = ("mlp", "conv")
MAX_SCALE = 4  # a picture sixteen times as large costs sixteen times as much
# What no tensor of the conv encoder tells, so that a small file could ask for any amount of work.
MAX_SCALES, MAX_CONV_IMAGE_SIZE = 8, 512


@dataclass(frozen=True)
class MoEConfig:
    """Mixture of experts in place of each block's dense feed-forward layer.

    Raises ValueError if a count is below 1, `top_k` exceeds `n_experts`, or the coefficient is negative.
    """

    n_experts: int = 4
    top_k: int = 2
    load_balancing_coef: float = 0.01

    def __post_init__(self) -> None:
        _check_counts(self, "n_experts", "top_k")
        if self.top_k > self.n_experts:
            raise ValueError(f"top_k={self.top_k} must not exceed n_experts={self.n_experts}")
        if not _is_number(self.load_balancing_coef) or not 0 <= self.load_balancing_coef < float("inf"):
            raise ValueError(
                f"load_balancing_coef={shown(self.load_balancing_coef)} must be a finite number, 0 or more"
            )


@dataclass(frozen=True)
class VisionConfig:
    """An image in front of the text, as `n_slots` embeddings.

    `encoder` is "mlp" (the article's) or "conv". `d_hidden` is the width inside the slots' heads and of the mlp
    trunk's first layer; None takes the model's `d_ff`. The mlp trunk ends in `d_trunk` numbers; the conv trunk has
    one stage for each of `channels`, of as many residual blocks as `n_blocks` says (else one), and ends in the last
    of them. What the trunk makes of several views of a picture is averaged: of its mirror image too if `mirrored`,
    and of the picture enlarged or shrunk to each of `scales` times its size (conv; mlp reads one size alone).

    Raises ValueError on a count below 1, an unknown encoder, more numbers of blocks than channels, a scale that is not
    above 0 and at most 4, more than 8 scales, or an `image_size` beyond 512 that conv should read.
    """

    image_size: int = 32
    n_slots: int = 4
    encoder: str = "mlp"
    d_trunk: int = 1024
    d_hidden: int | None = None
    channels: tuple[int, ...] = (32, 64, 128, 256)
    n_blocks: tuple[int, ...] = ()
    mirrored: bool = False
    scales: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        for name in ("channels", "n_blocks", "scales"):
            value = getattr(self, name)
            if not isinstance(value, (list, tuple)):
                raise ValueError(f"{name}={shown(value)} must be a list of numbers")
            object.__setattr__(self, name, tuple(value))
        object.__setattr__(self, "n_blocks", self.n_blocks + (1,) * (len(self.channels) - len(self.n_blocks)))
        _check_counts(self, "image_size", "n_slots", "d_trunk")
        if self.encoder not in ENCODERS:
            raise ValueError(f"encoder={shown(self.encoder)} is unknown; choose one of {', '.join(ENCODERS)}")
        if self.d_hidden is not None:
            _check_counts(self, "d_hidden")
        if self.encoder == "conv" and not 2 <= self.image_size <= MAX_CONV_IMAGE_SIZE:
            raise ValueError(
                f"image_size={self.image_size} is none for the conv encoder; it takes 2 to {MAX_CONV_IMAGE_SIZE}"
            )
        if not self.channels or any(not _is_count(c) for c in self.channels):
            raise ValueError(f"channels={shown(self.channels)} must be whole numbers of 1 or more")
        if len(self.n_blocks) > len(self.channels) or any(not _is_count(n) for n in self.n_blocks):
            raise ValueError(f"n_blocks={shown(self.n_blocks)} must be whole numbers of 1 or more, at most one a stage")
        if not isinstance(self.mirrored, bool):
            raise ValueError(f"mirrored={shown(self.mirrored)} must be true or false")
        if not 1 <= len(self.scales) <= MAX_SCALES:
            raise ValueError(f"scales={shown(self.scales)} must be 1 to {MAX_SCALES} numbers")
        if any(not _is_number(s) or not 0 < s <= MAX_SCALE for s in self.scales):
            raise ValueError(f"scales={shown(self.scales)} must be numbers above 0 and at most {MAX_SCALE}")


@dataclass(frozen=True)
class ModelConfig:
    """Everything that fixes a model's tensors. The defaults are the article's sizes.

    Raises ValueError if a count is below 1 or `d_model` is not a multiple of `n_heads`.
    """

    vocab_size: int
    max_seq_len: int
    d_model: int = 128
    n_layers: int = 3
    n_heads: int = 2
    d_latent: int = 32
    d_ff: int = 512
    final_norm: bool = True
    moe: MoEConfig | None = None
    vision: VisionConfig | None = None

    def __post_init__(self) -> None:
        _check_counts(self, "vocab_size", "max_seq_len", "d_model", "n_layers", "n_heads", "d_latent", "d_ff")
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model={self.d_model} must be a multiple of n_heads={self.n_heads}")
        if not isinstance(self.final_norm, bool):
            raise ValueError(f"final_norm={shown(self.final_norm)} must be true or false")
        if self.moe is not None and not isinstance(self.moe, MoEConfig):
            raise ValueError(f"moe must be None or a MoEConfig, not {type(self.moe).__name__}")
        if self.vision is not None and not isinstance(self.vision, VisionConfig):
            raise ValueError(f"vision must be None or a VisionConfig, not {type(self.vision).__name__}")

    @property
    def d_head(self) -> int:
        """Width of one head (K = D / H)."""
        return self.d_model // self.n_heads

    @property
    def n_slots(self) -> int:
        """Image slots in front of the text; 0 without vision."""
        return self.vision.n_slots if self.vision else 0

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON can hold it; `from_dict` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """Build from `to_dict`'s form. Raises ValueError on unknown or missing keys and on bad values."""
        if not isinstance(values, dict):
            raise ValueError(f"the model config must be an object, not {type(values).__name__}")
        values = dict(values)
        for name, nested in (("moe", MoEConfig), ("vision", VisionConfig)):
            if values.get(name) is not None:
                values[name] = _from_dict(nested, values[name], name)
        return _from_dict(cls, values, "model")


# Sizes only; vocabulary, context and variant come from the data and the command.
PRESETS: dict[str, dict[str, int]] = {
    "article": {"d_model": 128, "n_layers": 3, "n_heads": 2, "d_latent": 32, "d_ff": 512},
    "small": {"d_model": 256, "n_layers": 6, "n_heads": 4, "d_latent": 64, "d_ff": 1024},
    "base": {"d_model": 768, "n_layers": 16, "n_heads": 12, "d_latent": 192, "d_ff": 3072},  # about 100M; for a GPU
}


def preset(name: str) -> dict[str, int]:
    """Sizes of a named preset, as keyword arguments for `ModelConfig`. Raises ValueError naming the presets."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
    return dict(PRESETS[name])


T = TypeVar("T")


def _from_dict(cls: type[T], values: Any, where: str) -> T:
    if not isinstance(values, dict):
        raise ValueError(f"{where} config must be an object, not {type(values).__name__}")
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"unknown {where} config keys: {shown(', '.join(unknown))[1:-1]}")
    missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in values]  # type: ignore[arg-type]
    if missing:
        raise ValueError(f"incomplete {where} config: {', '.join(missing)} missing")
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{where} config: {error}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_counts(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not _is_count(value):
            raise ValueError(f"{name}={shown(value)} must be a whole number of 1 or more")
