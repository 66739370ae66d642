"""Cost of a decoded token as the context grows, and the bytes that it keeps.

python benchmarks/context_cost.py [--rounds 5]

A model of the article's sizes with random weights and a context of 4,097 positions, on one thread, behind caches filled
with random latents: tinylm's decoder; the model itself with its projections absorbed; with keys and values rebuilt from
the latents at every step; and plain attention over a cache of whole keys and values, in the same model.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from measure import ROOT, in_turn, machine, ratio, table, write
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from tinylm.cache import LatentCache
from tinylm.config import ModelConfig
from tinylm.decoder import Decoder
from tinylm.full_cache import FullCache, read
from tinylm.model import TinyLM

LENGTHS = (64, 256, 1024, 4096)
N_TIMED = 30
TICKS = (200, 500, 1000, 2000, 5000)  # microseconds
PNG = ROOT / "docs" / "context_cost.png"
COLOURS = {"decoder": "#0f766e", "absorb": "#0072b2", "expand": "#d55e00", "keys and values": "#475569"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which medians are taken (default: 5)")
    parser.add_argument("--out", default="context_cost", help="name of the JSON file in benchmarks/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    measured_on = machine()
    config = ModelConfig(vocab_size=1250, max_seq_len=max(LENGTHS) + 1)
    model = TinyLM(config)

    candidates: dict[str, Callable[[], float]] = {}
    size = {}
    for length in LENGTHS:
        cache, full = filled(config, length), filled_full(config, length)
        size[length] = {"latent": cache.nbytes, "key_value": full.nbytes}
        decoder = Decoder.of(model)
        assert decoder is not None
        steps: dict[str, tuple[Callable[[], object], LatentCache | FullCache]] = {
            "decoder": (lambda d=decoder, c=cache: d.step(7, c), cache),
            "absorb": (lambda c=cache: model(torch.tensor([[7]]), cache=c), cache),
            "expand": (lambda c=cache: expanded(model, c), cache),
            "keys and values": (lambda c=full: read(model, torch.tensor([[7]]), c), full),
        }
        for name, (step, behind) in steps.items():
            candidates[f"{name} {length}"] = lambda s=step, c=behind, n=length: microseconds(s, c, n)
    taken = in_turn(candidates, rounds=args.rounds)
    medians = {name: {n: round(statistics.median(taken[f"{name} {n}"]), 1) for n in LENGTHS} for name in COLOURS}
    growth = {name: round(ratio(taken, f"{name} {LENGTHS[-1]}", f"{name} {LENGTHS[0]}"), 2) for name in COLOURS}
    rows = [(name, *medians[name].values(), growth[name]) for name in COLOURS]
    table(("microseconds a token behind", *map(str, LENGTHS), "growth"), rows)
    report = {"machine": measured_on, "microseconds": medians, "growth": growth, "cache_bytes": size}
    write(args.out, report)
    draw(medians)


def filled(config: ModelConfig, length: int) -> LatentCache:
    """A cache that holds random latents of `length` positions."""
    cache = LatentCache(config)
    for layer in range(config.n_layers):
        cache.write(layer, torch.randn(1, length, config.d_latent))
    cache.advance(length)
    return cache


def filled_full(config: ModelConfig, length: int) -> FullCache:
    """A cache that holds random keys and values of `length` positions."""
    cache = FullCache(config)
    for layer in range(config.n_layers):
        k_1HSK, v_1HSK = torch.randn(2, 1, config.n_heads, length, config.d_head)
        cache.write(layer, k_1HSK, v_1HSK)
    cache.advance(length)
    return cache


@torch.inference_mode()
def microseconds(step: Callable[[], object], cache: LatentCache | FullCache, length: int) -> float:
    """A step's time, always at the same position."""
    started = time.perf_counter()
    for _ in range(N_TIMED):
        cache.length = length
        step()
    return (time.perf_counter() - started) / N_TIMED * 1e6


def expanded(model: TinyLM, cache: LatentCache) -> Tensor:
    """One step with every key and value rebuilt from its latent; logits (1, V)."""
    h_1D = model.embed.weight[7:8] + model.pos_embed.weight[cache.length : cache.length + 1]
    for layer, block in enumerate(model.blocks):
        attention, x_B1D = block.attention, block.norm1(h_1D)[None]
        c_kv_BSR = cache.write(layer, attention.w_dkv(x_B1D))
        q, k, v = (
            w(y).unflatten(2, (attention.n_heads, attention.d_head)).transpose(1, 2)
            for w, y in ((attention.w_q, x_B1D), (attention.w_uk, c_kv_BSR), (attention.w_uv, c_kv_BSR))
        )
        out_B1D = attention.w_o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h_1D = h_1D + out_B1D[0]
        h_1D = h_1D + block.ffn(block.norm2(h_1D))[0]
    return F.linear(model.norm(h_1D), model.embed.weight, model.head_bias)


def draw(medians: dict[str, dict[int, float]]) -> None:
    """Both axes logarithmic, each line named at its end."""
    figure = Figure(figsize=(7, 4.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    for name, points in medians.items():
        axes.plot(list(points), list(points.values()), marker="o", color=COLOURS[name], linewidth=2)
        axes.annotate(
            name,
            (LENGTHS[-1], points[LENGTHS[-1]]),
            (8, 0),
            textcoords="offset points",
            color=COLOURS[name],
            va="center",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_yticks(TICKS, [f"{tick:,}" for tick in TICKS])
    axes.minorticks_off()
    axes.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
    axes.set_xlim(LENGTHS[0] * 0.8, LENGTHS[-1] * 3.2)
    axes.set_xlabel("positions already read")
    axes.set_ylabel("microseconds a token, one thread")
    axes.set_title("Cost of a decoded token as the context grows", loc="left")
    axes.grid(True, which="major", color="#e2e8f0")
    axes.spines[["top", "right"]].set_visible(False)
    PNG.parent.mkdir(exist_ok=True)
    figure.savefig(PNG)


if __name__ == "__main__":
    main()
