"""Slow, obvious versions of everything the package computes, written from the papers and the design alone.

Loops and textbook formulas in double precision, one row at a time. Nothing here imports the package.

The models are given as the article's own state dicts: `embed.weight`, `pos_embed.weight`,
`blocks.{i}.kv_down.weight`, `blocks.{i}.heads.{h}.{q,k_up,v_up}.weight`, `blocks.{i}.proj.*`, `blocks.{i}.ln1.*`,
`blocks.{i}.ln2.*`, `blocks.{i}.mlp.{0,2}.*` or `blocks.{i}.mlp.gate.weight` with
`blocks.{i}.mlp.experts.{e}.{0,2}.*`, `lm_head.*`, and with pictures `encoder.encoder.{0,2}.*` and
`encoder.embedders.{s}.{0,2}.*`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SPECIAL = ("<pad>", "<eos>", "<unk>")


# Attention


def textbook_attention(
    x: Tensor,
    kv_down: Tensor,
    heads: Sequence[tuple[Tensor, Tensor, Tensor]],
    proj_weight: Tensor,
    proj_bias: Tensor,
) -> Tensor:
    """Causal multi-head attention of one row (T, D) whose keys and values come from the latents, head by head.

    `heads` holds (q, k_up, v_up) of each head, weights as (out, in).
    """
    latents = x @ kv_down.T
    outputs = []
    for w_q, w_k, w_v in heads:
        q, k, v = x @ w_q.T, latents @ w_k.T, latents @ w_v.T
        rows = []
        for t in range(len(x)):
            scores = torch.stack([torch.dot(q[t], k[s]) / math.sqrt(len(q[t])) for s in range(t + 1)])
            weights = scores.exp() / scores.exp().sum()
            rows.append(sum(weights[s] * v[s] for s in range(t + 1)))
        outputs.append(torch.stack(rows))
    return torch.cat(outputs, dim=1) @ proj_weight.T + proj_bias


# Layers


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each row to mean 0 and variance 1, then scaled and shifted."""
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def gelu(x: Tensor) -> Tensor:
    """x times the probability that a standard normal number is below it."""
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


class Route(NamedTuple):
    """What one token's router decided."""

    probs: list[float]
    expert_ids: list[int]
    weights: list[float]


def route(logits: Sequence[float], top_k: int) -> Route:
    """Softmax over all experts, the likeliest `top_k`, their probabilities scaled to sum to 1."""
    exps = [math.exp(value) for value in logits]
    probs = [value / sum(exps) for value in exps]
    chosen = sorted(range(len(probs)), key=lambda e: -probs[e])[:top_k]
    total = sum(probs[e] for e in chosen)
    return Route(probs, chosen, [probs[e] / total for e in chosen])


def mixture_of_experts(
    x: Tensor, gate: Tensor, experts: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]], top_k: int
) -> tuple[Tensor, list[Route]]:
    """Token by token: route, run the chosen experts (w_in, b_in, w_out, b_out), add up. x is (N, D)."""
    outputs, routes = [], []
    for token in x:
        logits = gate @ token
        decision = route(logits.tolist(), top_k)
        # The same probabilities again as tensors, so that gradients flow through them.
        probs = logits.exp() / logits.exp().sum()
        total = sum(probs[e] for e in decision.expert_ids)
        output = torch.zeros_like(token)
        for e in decision.expert_ids:
            w_in, b_in, w_out, b_out = experts[e]
            output = output + probs[e] / total * (w_out @ gelu(w_in @ token + b_in) + b_out)
        outputs.append(output)
        routes.append(decision)
    return torch.stack(outputs), routes


def load_balancing_loss(routes: Sequence[Route], counted: Sequence[bool] | None = None) -> float:
    """`E * sum_i f_i P_i` by counting; tokens that are not `counted` are thrown away first."""
    if counted is not None:
        routes = [r for r, counts in zip(routes, counted, strict=True) if counts]
    n_experts = len(routes[0].probs)
    total = 0.0
    for e in range(n_experts):
        share = sum(1 for r in routes if e in r.expert_ids) / len(routes)
        mean_probability = sum(r.probs[e] for r in routes) / len(routes)
        total += share * mean_probability
    return n_experts * total


# The whole model


def textbook_model(
    weights: Mapping[str, Tensor],
    ids: Sequence[int],
    image: Tensor | None = None,
    top_k: int = 2,
    final_norm: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, list[list[Route]]]:
    """Logits (T, V) of one row's text positions, and each layer's routes of all its positions."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    rows = []
    n_slots = 0
    if image is not None:
        slots = textbook_slots(w, image)
        n_slots = len(slots)
        rows += [slot + w["pos_embed.weight"][0] for slot in slots]
    for position, token_id in enumerate(ids):
        rows.append(w["embed.weight"][token_id] + w["pos_embed.weight"][position])
    h = torch.stack(rows)
    all_routes = []
    for i in range(_count(w, "blocks", "ln1.weight")):
        block = f"blocks.{i}"
        heads = []
        while f"{block}.heads.{len(heads)}.q.weight" in w:
            head = f"{block}.heads.{len(heads)}"
            heads.append((w[f"{head}.q.weight"], w[f"{head}.k_up.weight"], w[f"{head}.v_up.weight"]))
        normed = layer_norm(h, w[f"{block}.ln1.weight"], w[f"{block}.ln1.bias"])
        h = h + textbook_attention(
            normed, w[f"{block}.kv_down.weight"], heads, w[f"{block}.proj.weight"], w[f"{block}.proj.bias"]
        )
        normed = layer_norm(h, w[f"{block}.ln2.weight"], w[f"{block}.ln2.bias"])
        if f"{block}.mlp.gate.weight" in w:
            experts = []
            while f"{block}.mlp.experts.{len(experts)}.0.weight" in w:
                experts.append(_two_layers(w, f"{block}.mlp.experts.{len(experts)}"))
            update, routes = mixture_of_experts(normed, w[f"{block}.mlp.gate.weight"], experts, top_k)
            all_routes.append(routes)
        else:
            w_in, b_in, w_out, b_out = _two_layers(w, f"{block}.mlp")
            update = torch.stack([w_out @ gelu(w_in @ token + b_in) + b_out for token in normed])
        h = h + update
    text = h[n_slots:]
    if final_norm is not None:
        text = layer_norm(text, final_norm[0].double(), final_norm[1].double())
    return text @ w["lm_head.weight"].T + w["lm_head.bias"], all_routes


def textbook_slots(weights: Mapping[str, Tensor], image: Tensor) -> list[Tensor]:
    """The article's encoder on one image (3, size, size): a ReLU network, then one more for each slot."""
    w_in, b_in, w_out, b_out = _two_layers(weights, "encoder.encoder")
    trunk = w_out @ (w_in @ image.double().reshape(-1) + b_in).clamp(min=0) + b_out
    slots = []
    while f"encoder.embedders.{len(slots)}.0.weight" in weights:
        w_in, b_in, w_out, b_out = _two_layers(weights, f"encoder.embedders.{len(slots)}")
        slots.append(w_out @ (w_in @ trunk + b_in).clamp(min=0) + b_out)
    return slots


def greedy(
    weights: Mapping[str, Tensor], ids: Sequence[int], n_new: int, image: Tensor | None = None, top_k: int = 2
) -> list[int]:
    """The likeliest token again and again, everything computed from the start each time."""
    ids = list(ids)
    new = []
    for _ in range(n_new):
        logits, _ = textbook_model(weights, [*ids, *new], image, top_k)
        new.append(int(logits[-1].argmax()))
    return new


def article_weights(
    vocab_size: int = 31,
    max_seq_len: int = 12,
    d_model: int = 24,
    n_layers: int = 3,
    n_heads: int = 3,
    d_latent: int = 5,
    d_ff: int = 40,
    n_experts: int = 0,
    image_size: int = 0,
    n_slots: int = 4,
    d_trunk: int = 14,
    d_hidden: int = 11,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Random weights in the article's layout; `n_experts` 0 is dense, `image_size` 0 has no pictures.

    Large enough that every part of the model changes the logits.
    """
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}

    def linear(name: str, d_in: int, d_out: int, bias: bool = True) -> None:
        weights[f"{name}.weight"] = torch.randn(d_out, d_in, generator=generator) * 1.2 / math.sqrt(d_in)
        if bias:
            weights[f"{name}.bias"] = torch.randn(d_out, generator=generator) * 0.3

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = 1 + 0.3 * torch.randn(d_model, generator=generator)
        weights[f"{name}.bias"] = 0.3 * torch.randn(d_model, generator=generator)

    weights["embed.weight"] = torch.randn(vocab_size, d_model, generator=generator)
    weights["pos_embed.weight"] = torch.randn(max_seq_len, d_model, generator=generator)
    for i in range(n_layers):
        linear(f"blocks.{i}.kv_down", d_model, d_latent, bias=False)
        for h in range(n_heads):
            linear(f"blocks.{i}.heads.{h}.q", d_model, d_model // n_heads, bias=False)
            linear(f"blocks.{i}.heads.{h}.k_up", d_latent, d_model // n_heads, bias=False)
            linear(f"blocks.{i}.heads.{h}.v_up", d_latent, d_model // n_heads, bias=False)
        linear(f"blocks.{i}.proj", d_model, d_model)
        norm(f"blocks.{i}.ln1")
        norm(f"blocks.{i}.ln2")
        if n_experts:
            linear(f"blocks.{i}.mlp.gate", d_model, n_experts, bias=False)
        for prefix in [f"blocks.{i}.mlp.experts.{e}" for e in range(n_experts)] or [f"blocks.{i}.mlp"]:
            linear(f"{prefix}.0", d_model, d_ff)
            linear(f"{prefix}.2", d_ff, d_model)
    linear("lm_head", d_model, vocab_size)
    weights["lm_head.weight"] = weights["embed.weight"]
    if image_size:
        linear("encoder.encoder.0", 3 * image_size * image_size, d_hidden)
        linear("encoder.encoder.2", d_hidden, d_trunk)
        for s in range(n_slots):
            linear(f"encoder.embedders.{s}.0", d_trunk, d_hidden)
            linear(f"encoder.embedders.{s}.2", d_hidden, d_model)
    return weights


def _two_layers(w: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return w[f"{name}.0.weight"], w[f"{name}.0.bias"], w[f"{name}.2.weight"], w[f"{name}.2.bias"]


def _count(w: Mapping[str, Tensor], before: str, after: str) -> int:
    n = 0
    while f"{before}.{n}.{after}" in w:
        n += 1
    return n


# Sampling


def sampling_probabilities(
    logits: Sequence[float], temperature: float, top_k: int | None = None, top_p: float | None = None
) -> list[float]:
    """The exact distribution of a drawn token: temperature, then the `top_k` likeliest, then the smallest set of
    likeliest tokens that holds `top_p`."""
    largest = max(logits)
    exps = [math.exp((value - largest) / temperature) for value in logits]
    order = sorted(range(len(exps)), key=lambda i: -exps[i])
    if top_k:
        order = order[:top_k]
    total = sum(exps[i] for i in order)
    probs = {i: exps[i] / total for i in order}
    if top_p is not None:
        kept, mass = [], 0.0
        for i in order:
            kept.append(i)
            mass += probs[i]
            if mass >= top_p:
                break
        probs = {i: probs[i] / sum(probs[j] for j in kept) for i in kept}
    return [probs.get(i, 0.0) for i in range(len(logits))]


# Tokenizer


def vocabulary(
    lines: Iterable[str], vocab_size: int, max_token_length: int, special_tokens: Sequence[str] = SPECIAL
) -> list[str]:
    """Tokens by id, counting every substring of every chunk of every line."""
    counts: dict[str, int] = {}
    for line in lines:
        for number, word in enumerate(line.strip().split()):
            chunk = word if number == 0 else " " + word
            for start in range(len(chunk)):
                for length in range(1, max_token_length + 1):
                    if start + length <= len(chunk):
                        piece = chunk[start : start + length]
                        counts[piece] = counts.get(piece, 0) + 1
    seen = list(counts)
    ranked = sorted(seen, key=lambda piece: (-counts[piece], seen.index(piece)))
    room = vocab_size - len(special_tokens)
    kept = ranked[:room]
    if "<unk>" in special_tokens:
        characters = [piece for piece in ranked if len(piece) == 1]
        longer = [piece for piece in ranked if len(piece) > 1]
        kept = characters + longer[: room - len(characters)]
    kept = sorted(kept, key=lambda piece: (-len(piece), ranked.index(piece)))
    return [*kept, *special_tokens]


def encode(text: str, tokens: Sequence[str], special_tokens: Sequence[str] = SPECIAL) -> list[int]:
    """The longest token that matches at each place, found by looking at all of them."""
    plain = tokens[: len(tokens) - len(special_tokens)]
    unknown = len(plain) + special_tokens.index("<unk>" if "<unk>" in special_tokens else "<pad>")
    ids = []
    place = 0
    while place < len(text):
        best = None
        for token_id, token in enumerate(plain):
            if text[place:].startswith(token) and (best is None or len(token) > len(plain[best])):
                best = token_id
        ids.append(unknown if best is None else best)
        place += 1 if best is None else len(plain[best])
    return ids


# Pictures


def resize_then_crop(pixels: Sequence[Sequence[Sequence[int]]], size: int) -> list[list[list[float]]]:
    """Rows of RGB pixels, the shorter side resized to `size` and the centre cropped; values in [0, 1].

    Each new pixel is a mean of old ones, weighted by a triangle whose half width is one new pixel, or one old pixel
    where the picture grows.
    """
    height, width = len(pixels), len(pixels[0])
    short = min(height, width)

    def weights_of(old: int) -> list[list[float]]:
        new = max(size, int(size * old / short))
        offset = round((new - size) / 2)
        scale = old / new
        reach = max(scale, 1.0)
        rows = []
        for i in range(offset, offset + size):
            centre = (i + 0.5) * scale
            row = [max(0.0, 1 - abs(j + 0.5 - centre) / reach) for j in range(old)]
            rows.append([value / sum(row) for value in row])
        return rows

    down = torch.tensor(weights_of(height), dtype=torch.float64)
    across = torch.tensor(weights_of(width), dtype=torch.float64)
    values = torch.tensor(pixels, dtype=torch.float64) / 255
    return torch.einsum("yh,hwc,xw->cyx", down, values, across).tolist()
