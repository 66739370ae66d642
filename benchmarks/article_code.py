"""What a reader of the article types in: the models and the tokenizer written plainly, to measure tinylm against.

The modules have the article's names, so that `tinylm.article.from_state_dict` reads their weights.

B batch, T positions, S key positions, D `d_model`, R `d_latent`, K head width, V vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.config import ModelConfig


class Head(nn.Module):
    """One head's projections."""

    def __init__(self, d_model: int, d_latent: int, d_head: int) -> None:
        super().__init__()
        self.q = nn.Linear(d_model, d_head, bias=False)
        self.k_up = nn.Linear(d_latent, d_head, bias=False)
        self.v_up = nn.Linear(d_latent, d_head, bias=False)

    def forward(self, x_BTD: Tensor, c_kv_BSR: Tensor) -> Tensor:
        """Keys and values rebuilt, for training."""
        q, k, v = self.q(x_BTD), self.k_up(c_kv_BSR), self.v_up(c_kv_BSR)
        scores = q @ k.transpose(1, 2) / math.sqrt(k.shape[-1])
        mask = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).tril()
        return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ v

    def absorbed(self, x_BTD: Tensor, c_kv_BSR: Tensor) -> Tensor:
        """In latent space, for decoding one position."""
        q = self.q(x_BTD) @ self.k_up.weight
        scores = q @ c_kv_BSR.transpose(1, 2) / math.sqrt(self.k_up.weight.shape[0])
        return scores.softmax(dim=-1) @ c_kv_BSR @ self.v_up.weight.T


class MoE(nn.Module):
    """Every expert in turn, on the tokens that chose it."""

    def __init__(self, d_model: int, d_ff: int, n_experts: int, top_k: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(feed_forward(d_model, d_ff) for _ in range(n_experts))
        self.top_k, self.load_balancing_loss = top_k, torch.zeros(())

    def forward(self, x_BTD: Tensor) -> Tensor:
        probs = self.gate(x_BTD).softmax(dim=-1)
        weights, chosen = probs.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x_BTD)
        for i, expert in enumerate(self.experts):
            picked = chosen == i
            tokens = picked.any(dim=-1)
            if tokens.any():
                weight = (weights * picked).sum(dim=-1)[tokens]
                out[tokens] += weight[:, None] * expert(x_BTD[tokens])
        if self.training:
            shares = F.one_hot(chosen, len(self.experts)).sum(dim=-2).float().mean(dim=(0, 1))
            self.load_balancing_loss = len(self.experts) * (shares * probs.mean(dim=(0, 1))).sum()
        return out


def feed_forward(d_model: int, d_ff: int) -> nn.Sequential:
    """Linear, GELU, Linear."""
    return nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model))


class Block(nn.Module):
    """Latent attention and a feed-forward layer, each behind its LayerNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(config.d_model), nn.LayerNorm(config.d_model)
        self.kv_down = nn.Linear(config.d_model, config.d_latent, bias=False)
        self.heads = nn.ModuleList(Head(config.d_model, config.d_latent, config.d_head) for _ in range(config.n_heads))
        self.proj = nn.Linear(config.d_model, config.d_model)
        self.mlp: nn.Module = feed_forward(config.d_model, config.d_ff)
        if config.moe is not None:
            self.mlp = MoE(config.d_model, config.d_ff, config.moe.n_experts, config.moe.top_k)

    def forward(self, x_BTD: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The new values and all latents so far; behind `past` latents one position at a time."""
        h = self.ln1(x_BTD)
        latents = self.kv_down(h)
        if past is None:
            attended = [head(h, latents) for head in self.heads]
        else:
            latents = torch.cat([past, latents], dim=1)
            attended = [head.absorbed(h, latents) for head in self.heads]
        x_BTD = x_BTD + self.proj(torch.cat(attended, dim=-1))
        return x_BTD + self.mlp(self.ln2(x_BTD)), latents


class ArticleLM(nn.Module):
    """The article's decoder, dense or with experts, without pictures."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.pos_embed = nn.Embedding(config.max_seq_len, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.lm_head = nn.Linear(config.d_model, config.vocab_size)
        self.lm_head.weight = self.embed.weight

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        return self.cached(ids_BT, None)[0]

    def cached(self, ids_BT: Tensor, past: list[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        """Logits of the new positions, and the latents of every block."""
        start = 0 if past is None else past[0].shape[1]
        positions = torch.arange(start, start + ids_BT.shape[1], device=ids_BT.device)
        x = self.embed(ids_BT) + self.pos_embed(positions)
        latents = []
        for i, block in enumerate(self.blocks):
            x, new = block(x, None if past is None else past[i])
            latents.append(new)
        return self.lm_head(x), latents

    @torch.no_grad()
    def generate(self, ids: list[int], max_new_tokens: int) -> list[int]:
        """Greedy continuation with the latent cache."""
        logits, past = self.cached(torch.tensor([ids]), None)
        new = [int(logits[0, -1].argmax())]
        while len(new) < max_new_tokens:
            logits, past = self.cached(torch.tensor([new[-1:]]), past)
            new.append(int(logits[0, -1].argmax()))
        return new


def vocabulary(lines: Iterable[str], vocab_size: int, max_token_length: int) -> list[str]:
    """The tokens by id: the most frequent substrings of the words, longest first, and `<pad>`."""
    counts: Counter[str] = Counter()
    for line in lines:
        for i, word in enumerate(line.strip().split()):
            chunk = word if i == 0 else " " + word
            for start in range(len(chunk)):
                for length in range(1, max_token_length + 1):
                    if start + length <= len(chunk):
                        counts[chunk[start : start + length]] += 1
    tokens = [token for token, _ in counts.most_common(vocab_size - 1)]
    return [*sorted(tokens, key=len, reverse=True), "<pad>"]


def encode(text: str, tokens: list[str]) -> list[int]:
    """The first token of the list that matches at each position; `<pad>` where none does."""
    ids, position = [], 0
    while position < len(text):
        for token_id, token in enumerate(tokens[:-1]):
            if text.startswith(token, position):
                ids.append(token_id)
                position += len(token)
                break
        else:
            ids.append(len(tokens) - 1)
            position += 1
    return ids
