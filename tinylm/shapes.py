"""Names and shapes of a model's tensors, told from its config alone: nothing is built and no tensor is made.

Run folders come from anywhere, and a config may ask for billions of layers: its weights are compared with these
shapes before there is a model to put them into.
"""

from __future__ import annotations

from collections.abc import Iterator

from tinylm.config import ModelConfig, VisionConfig
from tinylm.vision import SQUEEZE

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def tensor_shapes(config: ModelConfig) -> Shapes:
    """The name and shape of every tensor of `TinyLM(config).state_dict()`, in its order, each made when asked for."""
    yield "head_bias", (config.vocab_size,)
    yield "embed.weight", (config.vocab_size, config.d_model)
    yield "pos_embed.weight", (config.max_seq_len, config.d_model)
    if config.vision:
        yield from _encoder(config.vision, config.d_model, config.d_ff)
    for layer in range(config.n_layers):
        yield from _block(f"blocks.{layer}", config)
    if config.final_norm:
        yield from _norm("norm", config.d_model)


def stored_type(name: str) -> str:
    """What safetensors calls the numbers of the tensor of that name: batch norm counts in whole ones."""
    return "I64" if name.endswith(".num_batches_tracked") else "F32"


def _block(name: str, config: ModelConfig) -> Shapes:
    d_model, d_latent = config.d_model, config.d_latent
    yield from _norm(f"{name}.norm1", d_model)
    yield from _linear(f"{name}.attention.w_dkv", d_model, d_latent, bias=False)
    yield from _linear(f"{name}.attention.w_q", d_model, d_model, bias=False)
    yield from _linear(f"{name}.attention.w_uk", d_latent, d_model, bias=False)
    yield from _linear(f"{name}.attention.w_uv", d_latent, d_model, bias=False)
    yield from _linear(f"{name}.attention.w_o", d_model, d_model)
    yield from _norm(f"{name}.norm2", d_model)
    if config.moe is None:
        yield from _feed_forward(f"{name}.ffn", d_model, config.d_ff)
        return
    yield from _linear(f"{name}.ffn.router.w", d_model, config.moe.n_experts, bias=False)
    for expert in range(config.moe.n_experts):
        yield from _feed_forward(f"{name}.ffn.experts.{expert}", d_model, config.d_ff)


def _feed_forward(name: str, d_model: int, d_ff: int) -> Shapes:
    yield from _linear(f"{name}.w_in", d_model, d_ff)
    yield from _linear(f"{name}.w_out", d_ff, d_model)


def _encoder(vision: VisionConfig, d_model: int, d_ff: int) -> Shapes:
    d_hidden = vision.d_hidden or d_ff
    if vision.encoder == "mlp":
        d_trunk = vision.d_trunk
        yield from _linear("encoder.trunk.1", 3 * vision.image_size**2, d_hidden)
        yield from _linear("encoder.trunk.3", d_hidden, d_trunk)
    else:
        d_trunk = vision.channels[-1]
        yield from _conv_trunk("encoder.trunk", vision)
    for slot in range(vision.n_slots):
        yield from _linear(f"encoder.slot_heads.{slot}.0", d_trunk, d_hidden)
        yield from _linear(f"encoder.slot_heads.{slot}.2", d_hidden, d_model)


def _conv_trunk(name: str, vision: VisionConfig) -> Shapes:
    yield from _conv_norm(f"{name}.stem", 3, vision.channels[0], kernel=6)
    c_in, index = vision.channels[0], 0
    for c_out, n_blocks in zip(vision.channels, vision.n_blocks, strict=True):
        for _ in range(n_blocks):
            yield from _residual_block(f"{name}.stages.{index}", c_in, c_out)
            c_in, index = c_out, index + 1
    yield from _batch_norm(f"{name}.norm", vision.channels[-1])


def _residual_block(name: str, c_in: int, c_out: int) -> Shapes:
    d_squeezed = max(1, c_out // SQUEEZE)
    yield from _conv_norm(f"{name}.conv1", c_in, c_out, kernel=3)
    yield from _conv_norm(f"{name}.conv2", c_out, c_out, kernel=3)
    yield from _linear(f"{name}.excite.0", c_out, d_squeezed)
    yield from _linear(f"{name}.excite.2", d_squeezed, c_out)
    if c_in != c_out:  # where the picture is halved too, so that the averaging stands before it
        yield f"{name}.skip.1.weight", (c_out, c_in, 1, 1)


def _conv_norm(name: str, c_in: int, c_out: int, kernel: int) -> Shapes:
    yield f"{name}.0.weight", (c_out, c_in, kernel, kernel)
    yield from _batch_norm(f"{name}.1", c_out)


def _linear(name: str, d_in: int, d_out: int, bias: bool = True) -> Shapes:
    yield f"{name}.weight", (d_out, d_in)
    if bias:
        yield f"{name}.bias", (d_out,)


def _norm(name: str, width: int) -> Shapes:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _batch_norm(name: str, width: int) -> Shapes:
    yield from _norm(name, width)
    yield f"{name}.running_mean", (width,)
    yield f"{name}.running_var", (width,)
    yield f"{name}.num_batches_tracked", ()
