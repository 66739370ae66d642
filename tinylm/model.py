"""The whole model: embed (image slots in front) -> blocks -> norm -> tied head.

B batch, T text positions, S image slots, L = S + T positions, N layers, H heads, D `d_model`, V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.attention import MultiHeadLatentAttention
from tinylm.cache import LatentCache
from tinylm.config import ModelConfig
from tinylm.moe import Routing, feed_forward
from tinylm.vision import ImageEncoder


class ModelOutput(NamedTuple):
    """What `TinyLM.forward` returns, always."""

    logits: Tensor  # (B, T, V) float32, text positions only
    routings: tuple[Routing, ...]  # one a layer, of all positions read; () when dense


class Block(nn.Module):
    """Pre-norm: `h = h + MLA(LayerNorm(h))`, then `h = h + FFN(LayerNorm(h))`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.d_model)
        self.attention = MultiHeadLatentAttention(config)
        self.norm2 = nn.LayerNorm(config.d_model)
        self.ffn = feed_forward(config)

    def forward(self, h_BLD: Tensor, cache: LatentCache | None, layer: int) -> tuple[Tensor, Routing | None]:
        """One layer's update, and its routing if it is a mixture."""
        h_BLD = h_BLD + self.attention(self.norm1(h_BLD), cache, layer)
        y_BLD, routing = self.ffn(self.norm2(h_BLD))
        return h_BLD + y_BLD, routing


class TinyLM(nn.Module):
    """A decoder-only transformer with latent attention; dense or mixture of experts, with or without image slots."""

    def __init__(self, config: ModelConfig) -> None:
        """Build with scaled random weights: std 0.02, residual outputs by 1/sqrt(2 n_layers).

        The model starts in evaluation mode: the conv encoder's batch norm would mix the rows of a batch in training
        mode. Nothing else tells the modes apart; a training loop calls `train()`.
        """
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.pos_embed = nn.Embedding(config.max_seq_len, config.d_model)
        self.encoder = ImageEncoder(config.vision, config.d_model, config.d_ff) if config.vision else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model) if config.final_norm else nn.Identity()
        self.head_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self._scale_init()
        self.eval()

    def _scale_init(self) -> None:
        """Small weights, so that the first loss is close to ln V. The image encoder keeps PyTorch's own init."""
        for name, parameter in self.named_parameters():
            if name.startswith("encoder.") or "norm" in name:
                continue
            if parameter.dim() < 2:
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, std=0.02)
                if name.endswith(("w_o.weight", "w_out.weight")):
                    parameter.data.div_(math.sqrt(2 * self.config.n_layers))

    def forward(
        self,
        ids_BT: Tensor,
        images: Tensor | None = None,
        cache: LatentCache | None = None,
        slots: Tensor | None = None,
    ) -> ModelOutput:
        """Read `ids_BT` (B, T), behind `images` (B, 3, size, size) or behind what `cache` holds.

        `slots` (B, S, D) are embeddings in the images' place, such as the encoder's output with a slot changed.
        With a cache the new positions are appended to it; images or slots go in at the first call only.
        Raises ValueError if the positions exceed the context, if images or slots are missing, unexpected, both there
        or of the wrong shape, or if the cache has other rows.
        """
        self._check(ids_BT, images, cache, slots)
        h_BLD = self._embed(ids_BT, images, cache.length if cache is not None else 0, slots)
        routings = []
        for layer, block in enumerate(self.blocks):
            h_BLD, routing = block(h_BLD, cache, layer)
            if routing is not None:
                routings.append(routing)
        if cache is not None:
            cache.advance(h_BLD.shape[1])
        h_BTD = self.norm(h_BLD[:, h_BLD.shape[1] - ids_BT.shape[1] :])
        logits_BTV = F.linear(h_BTD, self.embed.weight, self.head_bias)
        return ModelOutput(logits_BTV.float(), tuple(routings))

    @torch.no_grad()
    def attention_maps(self, ids_BT: Tensor, images: Tensor | None = None) -> Tensor:
        """Who attends to whom when `ids_BT` (B, T) is read without a cache: (N, B, H, L, L), image slots first.

        Entry [n, b, h, i, j] is the share of position j in what head h of layer n takes in at position i; each row
        sums to 1. Raises ValueError as `forward` does.
        """
        self._check(ids_BT, images, None, None)
        h_BLD, maps = self._embed(ids_BT, images, 0, None), []
        for layer, block in enumerate(self.blocks):
            maps.append(block.attention.weights(block.norm1(h_BLD)))  # type: ignore[union-attr,operator]
            h_BLD, _ = block(h_BLD, None, layer)
        return torch.stack(maps)

    def _embed(self, ids_BT: Tensor, images: Tensor | None, start: int, slots: Tensor | None) -> Tensor:
        # Slots share position embedding 0 and text counts from 0 behind them; the causal order is that of the row.
        text_start = max(0, start - self.config.n_slots)
        pos_T = torch.arange(text_start, text_start + ids_BT.shape[1], device=ids_BT.device)
        h_BLD: Tensor = self.embed(ids_BT) + self.pos_embed(pos_T)
        if self.encoder is not None and start == 0:
            slots_BSD = self.encoder(images) if slots is None else slots
            h_BLD = torch.cat([slots_BSD + self.pos_embed.weight[0], h_BLD], dim=1)
        return h_BLD

    def _check(self, ids_BT: Tensor, images: Tensor | None, cache: LatentCache | None, slots: Tensor | None) -> None:
        config = self.config
        if ids_BT.dim() != 2 or ids_BT.shape[1] == 0:
            raise ValueError(
                f"ids must have shape (batch, positions) with at least one position, got {tuple(ids_BT.shape)}"
            )
        start = cache.length if cache is not None else 0
        n_text = max(0, start - config.n_slots) + ids_BT.shape[1]
        if n_text > config.max_seq_len:
            raise ValueError(f"{n_text} text positions exceed the context of {config.max_seq_len}")
        if cache is not None and cache.batch_size != ids_BT.shape[0]:
            raise ValueError(f"the cache has {cache.batch_size} rows, the ids have {ids_BT.shape[0]}")
        if config.vision is None or start > 0:
            if images is not None or slots is not None:
                raise ValueError("images or slots go in once, at the first call, and only into a model with vision")
            return
        batch, size = ids_BT.shape[0], config.vision.image_size
        if images is not None and slots is not None:
            raise ValueError("pass images, or slots in their place, not both")
        if slots is not None:
            if slots.shape != (batch, config.n_slots, config.d_model):
                raise ValueError(
                    f"slots must have shape ({batch}, {config.n_slots}, {config.d_model}), got {tuple(slots.shape)}"
                )
        elif images is None:
            raise ValueError(f"this model reads an image first: pass images of shape (batch, 3, {size}, {size})")
        elif images.shape != (batch, 3, size, size):
            raise ValueError(f"images must have shape ({batch}, 3, {size}, {size}), got {tuple(images.shape)}")

    def n_parameters(self, active: bool = False) -> int:
        """Number of weights; `active` counts those that one token uses (`top_k` of the experts)."""
        total = sum(parameter.numel() for parameter in self.parameters())
        if active and self.config.moe is not None:
            experts = sum(p.numel() for name, p in self.named_parameters() if ".experts." in name)
            total -= experts * (self.config.moe.n_experts - self.config.moe.top_k) // self.config.moe.n_experts
        return total
