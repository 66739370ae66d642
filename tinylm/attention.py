"""Multi-head latent attention, computed two equal ways.

B batch, T query positions, S key positions, D `d_model`, R `d_latent`, H heads, K = D/H head width.
Source: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1, without the query's own compression and without rotary
position embedding.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.cache import LatentCache
from tinylm.config import ModelConfig

MOST_KEYS_IN_BF16 = 64
"""Up to here all scores at once, in bfloat16, beat the fused kernel on a CPU; behind it they would need much memory."""


class MultiHeadLatentAttention(nn.Module):
    """Attention whose keys and values are rebuilt from one small latent a position, shared by all heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads, self.d_head, self.d_latent = config.n_heads, config.d_head, config.d_latent
        self.w_dkv = nn.Linear(config.d_model, config.d_latent, bias=False)
        self.w_q = nn.Linear(config.d_model, config.d_model, bias=False)
        self.w_uk = nn.Linear(config.d_latent, config.d_model, bias=False)
        self.w_uv = nn.Linear(config.d_latent, config.d_model, bias=False)
        self.w_o = nn.Linear(config.d_model, config.d_model)

    def forward(self, x_BTD: Tensor, cache: LatentCache | None = None, layer: int = 0) -> Tensor:
        """Attend from the new positions to all positions up to each of them, (B, T, D).

        Without a cache, or at prefill into an empty one, keys and values are expanded; behind cached positions the
        projections are absorbed. With a cache the new latents are written to `layer` of it.
        """
        c_kv_BTR = self.w_dkv(x_BTD)  # eq. 9
        if cache is None:
            return self.expand(x_BTD, c_kv_BTR)
        c_kv_BSR = cache.write(layer, c_kv_BTR)
        if cache.length == 0:
            return self.expand(x_BTD, c_kv_BTR)
        return self.absorb(x_BTD, c_kv_BSR)

    def expand(self, x_BTD: Tensor, c_kv_BSR: Tensor) -> Tensor:
        """Rebuild every head's keys and values (eqs. 10, 11), then plain attention. For training and prefill."""
        q_BHTK = self._split_heads(self.w_q(x_BTD))
        k_BHSK = self._split_heads(self.w_uk(c_kv_BSR))
        v_BHSK = self._split_heads(self.w_uv(c_kv_BSR))
        return self.w_o(_attend(q_BHTK, k_BHSK, v_BHSK).transpose(1, 2).flatten(2))

    def absorb(self, x_BTD: Tensor, c_kv_BSR: Tensor) -> Tensor:
        """Attend in latent space: q (W_UK c) = (W_UK^T q) c, and W_UV after the weighted sum. For decoding.

        No key or value is ever rebuilt (section 2.1.2, "absorbed").
        """
        q_BHTK = self._split_heads(self.w_q(x_BTD))
        w_uk_HKR = self.w_uk.weight.view(self.n_heads, self.d_head, self.d_latent)
        w_uv_HKR = self.w_uv.weight.view(self.n_heads, self.d_head, self.d_latent)
        q_BHTR = q_BHTK @ w_uk_HKR
        scores_BHTS = q_BHTR @ c_kv_BSR.transpose(1, 2).unsqueeze(1) / math.sqrt(self.d_head)
        if x_BTD.shape[1] > 1:  # a single query is the last position and sees all keys
            mask_TS = visible(x_BTD.shape[1], c_kv_BSR.shape[1], x_BTD.device)
            scores_BHTS = scores_BHTS.masked_fill(~mask_TS, float("-inf"))
        context_BHTR = scores_BHTS.softmax(dim=-1) @ c_kv_BSR.unsqueeze(1)
        out_BHTK = context_BHTR @ w_uv_HKR.transpose(1, 2)
        return self.w_o(out_BHTK.transpose(1, 2).flatten(2))

    def weights(self, x_BTD: Tensor) -> Tensor:
        """How much each position attends to each position up to itself, (B, H, T, T); every row sums to 1.

        What `expand` computes inside its fused kernel for whole rows without a cache.
        """
        q_BHTK = self._split_heads(self.w_q(x_BTD))
        k_BHTK = self._split_heads(self.w_uk(self.w_dkv(x_BTD)))
        scores_BHTT = q_BHTK @ k_BHTK.transpose(2, 3) / math.sqrt(self.d_head)
        n = x_BTD.shape[1]
        return scores_BHTT.masked_fill(~visible(n, n, x_BTD.device), float("-inf")).softmax(dim=-1)

    def _split_heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(2, (self.n_heads, self.d_head)).transpose(1, 2)


def _attend(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor) -> Tensor:
    """The weighted sum of the values, (B, H, T, K), for the last T of S positions."""
    n_queries, n_keys = q_BHTK.shape[2], k_BHSK.shape[2]
    rule: dict[str, Any] = {"is_causal": True}  # as `visible`, named so that fused kernels can use it
    if n_queries != n_keys:
        rule = {"attn_mask": visible(n_queries, n_keys, q_BHTK.device)}
    if q_BHTK.device.type == "cpu" and q_BHTK.dtype == torch.bfloat16:  # training; the kernel is slow in bfloat16
        if n_keys <= MOST_KEYS_IN_BF16:
            scores_BHTS = (q_BHTK @ k_BHSK.transpose(2, 3)).float() / math.sqrt(q_BHTK.shape[3])
            hidden_TS = ~visible(n_queries, n_keys)
            return scores_BHTS.masked_fill(hidden_TS, float("-inf")).softmax(dim=-1).bfloat16() @ v_BHSK
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(q_BHTK.float(), k_BHSK.float(), v_BHSK.float(), **rule).bfloat16()
    return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, **rule)


def visible(n_queries: int, n_keys: int, device: torch.device | str = "cpu") -> Tensor:
    """Which keys each query may see, (T, S) of bool: q_pos >= k_pos, the queries being the last positions."""
    k_pos_S = torch.arange(n_keys, device=device)
    q_pos_T = k_pos_S[n_keys - n_queries :]
    return q_pos_T[:, None] >= k_pos_S[None, :]
