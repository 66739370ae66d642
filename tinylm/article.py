"""Import of weights trained with the article's own classes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from tinylm.config import ModelConfig, MoEConfig, VisionConfig
from tinylm.files import shown
from tinylm.model import TinyLM
from tinylm.shapes import tensor_shapes


def from_state_dict(state_dict: Mapping[str, Tensor], top_k: int = 2) -> TinyLM:
    """A model with the article's weights, for any of its three variants, in evaluation mode.

    Every size is read off the tensors, the heads by counting. `top_k` is not in the weights: give what the mixture
    was trained with. Raises ValueError on missing, unknown or ill-fitting tensors, naming them, and on any that no
    training leaves. A file of them is to be read with `torch.load(path, weights_only=True)`, which runs none of it.
    """
    source = dict(state_dict)
    _check_tensors(source)
    config = _read_config(source, top_k)
    target = _translate(source, config)
    if source:
        raise ValueError(f"these tensors are not the article's: {shown(', '.join(sorted(source)[:5]))[1:-1]}")
    for name, shape in tensor_shapes(config):
        if tuple(target[name].shape) != shape:
            raise ValueError(f"the tensors for {name} have shape {tuple(target[name].shape)}, not {shape}")
    model = TinyLM(config)
    model.load_state_dict(target)
    return model.eval()


def _check_tensors(source: Mapping[str, Tensor]) -> None:
    """Raise ValueError on what is no plain tensor of finite numbers, all of which are there."""
    for name, tensor in source.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ValueError(f"a state dict maps names to tensors; {shown(name)} is {type(tensor).__name__}")
        if tensor.layout != torch.strided or tensor.is_meta or not tensor.is_floating_point():
            raise ValueError(f"{shown(name)} is no tensor of floating-point numbers in memory")
        # One number can be said to be a billion, by a step of 0 from each to the next.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(f"{shown(name)} has shape {tuple(tensor.shape)}, more numbers than are stored")
        if not tensor.isfinite().all():
            raise ValueError(f"{shown(name)} holds NaN or infinity")


def _read_config(source: Mapping[str, Tensor], top_k: int) -> ModelConfig:
    vocab_size, d_model = _shape(source, "embed.weight", 2)
    max_seq_len, _ = _shape(source, "pos_embed.weight", 2)
    d_latent, _ = _shape(source, "blocks.0.kv_down.weight", 2)
    moe = None
    if "blocks.0.mlp.gate.weight" in source:
        n_experts = _shape(source, "blocks.0.mlp.gate.weight", 2)[0]
        moe = MoEConfig(n_experts=n_experts, top_k=top_k)
        d_ff = _shape(source, "blocks.0.mlp.experts.0.0.weight", 2)[0]
    else:
        d_ff = _shape(source, "blocks.0.mlp.0.weight", 2)[0]
    vision = None
    if "encoder.encoder.0.weight" in source:
        d_hidden, n_values = _shape(source, "encoder.encoder.0.weight", 2)
        image_size = math.isqrt(n_values // 3)
        if 3 * image_size**2 != n_values:
            raise ValueError(f"encoder.encoder.0.weight takes {n_values} values, which is no square RGB image")
        vision = VisionConfig(
            image_size=image_size,
            n_slots=_count(source, r"encoder\.embedders\.(\d+)\."),
            encoder="mlp",
            d_trunk=_shape(source, "encoder.encoder.2.weight", 2)[0],
            d_hidden=d_hidden,
        )
    return ModelConfig(
        vocab_size=vocab_size,
        max_seq_len=max_seq_len,
        d_model=d_model,
        n_layers=_count(source, r"blocks\.(\d+)\."),
        n_heads=_count(source, r"blocks\.0\.heads\.(\d+)\."),
        d_latent=d_latent,
        d_ff=d_ff,
        final_norm=False,
        moe=moe,
        vision=vision,
    )


def _translate(source: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our names for the article's tensors; each one used is taken out of `source`."""
    target: dict[str, Tensor] = {}

    def take(name: str) -> Tensor:
        if name not in source:
            raise ValueError(f"the article's tensor {name} is missing")
        return source.pop(name)

    def move(ours: str, theirs: str, *parts: str) -> None:
        for part in parts:
            target[f"{ours}.{part}"] = take(f"{theirs}.{part}")

    move("embed", "embed", "weight")
    move("pos_embed", "pos_embed", "weight")
    target["head_bias"] = take("lm_head.bias")
    if "lm_head.weight" in source and not torch.equal(source.pop("lm_head.weight"), target["embed.weight"]):
        raise ValueError("lm_head.weight differs from embed.weight; the article ties them")
    for i in range(config.n_layers):
        ours, theirs = f"blocks.{i}", f"blocks.{i}"
        move(f"{ours}.norm1", f"{theirs}.ln1", "weight", "bias")
        move(f"{ours}.norm2", f"{theirs}.ln2", "weight", "bias")
        move(f"{ours}.attention.w_dkv", f"{theirs}.kv_down", "weight")
        move(f"{ours}.attention.w_o", f"{theirs}.proj", "weight", "bias")
        for name, part in (("w_q", "q"), ("w_uk", "k_up"), ("w_uv", "v_up")):
            heads = [take(f"{theirs}.heads.{h}.{part}.weight") for h in range(config.n_heads)]
            shape = (config.d_head, config.d_model if part == "q" else config.d_latent)
            for h, head in enumerate(heads):
                if tuple(head.shape) != shape:
                    raise ValueError(f"{theirs}.heads.{h}.{part}.weight has shape {tuple(head.shape)}, not {shape}")
            target[f"{ours}.attention.{name}.weight"] = torch.cat(heads)
        if config.moe is None:
            layers = [(f"{ours}.ffn", f"{theirs}.mlp")]
        else:
            move(f"{ours}.ffn.router.w", f"{theirs}.mlp.gate", "weight")
            experts = range(config.moe.n_experts)
            layers = [(f"{ours}.ffn.experts.{e}", f"{theirs}.mlp.experts.{e}") for e in experts]
        for ffn, mlp in layers:
            move(f"{ffn}.w_in", f"{mlp}.0", "weight", "bias")
            move(f"{ffn}.w_out", f"{mlp}.2", "weight", "bias")
    if config.vision is not None:
        move("encoder.trunk.1", "encoder.encoder.0", "weight", "bias")
        move("encoder.trunk.3", "encoder.encoder.2", "weight", "bias")
        for s in range(config.vision.n_slots):
            move(f"encoder.slot_heads.{s}.0", f"encoder.embedders.{s}.0", "weight", "bias")
            move(f"encoder.slot_heads.{s}.2", f"encoder.embedders.{s}.2", "weight", "bias")
    return target


def _shape(source: Mapping[str, Tensor], name: str, n_dims: int) -> tuple[int, ...]:
    if name not in source:
        raise ValueError(f"the article's tensor {name} is missing")
    if source[name].dim() != n_dims:
        raise ValueError(f"{name} must have {n_dims} dimensions, it has {source[name].dim()}")
    return tuple(source[name].shape)


def _count(source: Mapping[str, Tensor], pattern: str) -> int:
    return len({match.group(1) for name in source if (match := re.match(pattern, name))})
