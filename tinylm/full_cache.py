"""A plain key/value cache: what decoding would keep without latents. For comparison; nothing else runs on it.

B batch, T new positions, S all positions so far, D `d_model`, H heads, K = D/H head width, N layers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tinylm.attention import MultiHeadLatentAttention, visible
from tinylm.config import ModelConfig
from tinylm.model import TinyLM


class FullCache:
    """Keys and values of every head, layer and position: 2 D numbers a token and layer.

    Allocated once, at the first write, for `n_slots + max_seq_len` positions, on the keys' device and in their dtype,
    as the latent cache is.
    """

    def __init__(self, config: ModelConfig, batch_size: int = 1) -> None:
        self.capacity = config.n_slots + config.max_seq_len
        self.length = 0
        self._kv_N2BHSK = torch.empty(config.n_layers, 2, batch_size, config.n_heads, 0, config.d_head)

    @property
    def nbytes(self) -> int:
        """Bytes of the filled part, measured on the tensor."""
        return self._kv_N2BHSK[..., : self.length, :].numel() * self._kv_N2BHSK.element_size()

    def write(self, layer: int, k_BHTK: Tensor, v_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values behind the filled part; return all of that layer's, (B, H, S, K) each.

        `length` stays as it is until `advance`. Raises ValueError when the positions don't fit.
        """
        end = self.length + k_BHTK.shape[2]
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} positions; {end} don't fit")
        if self._kv_N2BHSK.shape[4] == 0:
            n_layers, _, batch_size, n_heads, _, d_head = self._kv_N2BHSK.shape
            self._kv_N2BHSK = k_BHTK.new_empty(n_layers, 2, batch_size, n_heads, self.capacity, d_head)
        k_BHSK, v_BHSK = self._kv_N2BHSK[layer, :, :, :, :end].unbind()
        k_BHSK[:, :, self.length :] = k_BHTK.detach()
        v_BHSK[:, :, self.length :] = v_BHTK.detach()
        return k_BHSK, v_BHSK

    def advance(self, n_positions: int) -> None:
        """Count `n_positions` as filled, once every layer has written them."""
        self.length += n_positions


def read(model: TinyLM, ids_BT: Tensor, cache: FullCache, images: Tensor | None = None) -> Tensor:
    """Read ids behind the cache with plain multi-head attention; logits (B, T, V) float32 of the text positions.

    Each new position's keys and values are expanded from its latent once and then kept. `images` (B, 3, size, size)
    go in at the first call, into a model with vision. Raises ValueError when the positions don't fit.
    """
    start = max(0, cache.length - model.config.n_slots)
    end = start + ids_BT.shape[1]
    if end > model.config.max_seq_len:
        raise ValueError(f"{end} text positions exceed the context of {model.config.max_seq_len}")
    h_BTD = model.embed(ids_BT) + model.pos_embed.weight[start:end]
    if model.encoder is not None and cache.length == 0:
        h_BTD = torch.cat([model.encoder(images) + model.pos_embed.weight[0], h_BTD], dim=1)
    for layer, block in enumerate(model.blocks):
        h_BTD = h_BTD + _attend(block.attention, block.norm1(h_BTD), cache, layer)  # type: ignore[arg-type,operator]
        h_BTD = h_BTD + block.ffn(block.norm2(h_BTD))[0]  # type: ignore[operator]
    cache.advance(h_BTD.shape[1])
    h_BTD = model.norm(h_BTD[:, h_BTD.shape[1] - ids_BT.shape[1] :])
    return F.linear(h_BTD, model.embed.weight, model.head_bias).float()


def _attend(attention: MultiHeadLatentAttention, x_BTD: Tensor, cache: FullCache, layer: int) -> Tensor:
    c_kv_BTR = attention.w_dkv(x_BTD)
    q_BHTK, k_BHTK, v_BHTK = (
        y.unflatten(2, (attention.n_heads, attention.d_head)).transpose(1, 2)
        for y in (attention.w_q(x_BTD), attention.w_uk(c_kv_BTR), attention.w_uv(c_kv_BTR))
    )
    k_BHSK, v_BHSK = cache.write(layer, k_BHTK, v_BHTK)
    mask_TS = visible(x_BTD.shape[1], k_BHSK.shape[2], x_BTD.device) if x_BTD.shape[1] > 1 else None
    out_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=mask_TS)
    return attention.w_o(out_BHTK.transpose(1, 2).flatten(2))
