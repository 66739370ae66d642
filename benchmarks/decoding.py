"""Decoding speed of one row, against what people would write or use instead, and the bytes in the cache.

python benchmarks/decoding.py [--rounds 7] [--threads 1]

Greedy tokens a second of `tinylm.generate` with the shipped weights; of the article's code as a reader types it in,
with random weights of the same sizes; of transformers' GPT-2 of the same size through `generate`; and of the bare
matrix products of one step with folded weights.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from article_code import ArticleLM
from gpt2 import gpt2
from measure import in_turn, machine, ratio, table, write

import tinylm
from tinylm.config import ModelConfig

PROMPT = "bees make"
N_NEW = 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="weights", help="folder with the runs text and moe (default: weights)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, of which medians are taken (default: 7)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--out", default="decoding", help="name of the JSON file in benchmarks/results")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    measured_on = machine()  # before: what else ran shows in the load

    candidates: dict[str, Callable[[], float]] = {}
    cache = {}
    for name in ("text", "moe"):
        run = tinylm.load(f"{args.weights}/{name}")
        ids, config = run.tokenizer.encode(PROMPT), run.model.config
        article = ArticleLM(config).eval()
        candidates[f"tinylm, {name}"] = lambda m=run.model, i=ids: rate(
            lambda: tinylm.generate(m, i, max_new_tokens=N_NEW)
        )
        candidates[f"article, {name}"] = lambda m=article, i=ids: rate(lambda: m.generate(i, N_NEW))
        cache[name] = cache_bytes(run.model, ids)
        if name == "text":
            candidates["transformers GPT-2"] = gpt2_rate(config, ids)
            candidates["matrix products alone"] = lambda c=config: rate(products(c))
    rates = in_turn(candidates, rounds=args.rounds)
    pairs = [
        ("tinylm, text", "article, text"),
        ("tinylm, text", "transformers GPT-2"),
        ("tinylm, text", "matrix products alone"),
        ("tinylm, moe", "article, moe"),
    ]
    report = {
        "machine": measured_on,
        "new_tokens": N_NEW,
        "unit": "tokens a second",
        "median": {name: round(statistics.median(values)) for name, values in rates.items()},
        "ratios": {f"{ours} / {theirs}": round(ratio(rates, ours, theirs), 2) for ours, theirs in pairs},
        "cache_bytes": cache,
    }
    table(("decoding, one row", "tokens/s"), [(name, f"{value:,}") for name, value in report["median"].items()])
    table(("ratio", ""), list(report["ratios"].items()))
    table(("cache", "latent bytes", "key/value bytes"), [(n, *values.values()) for n, values in cache.items()])
    write(args.out, report)


def rate(generate: Callable[[], list[int]]) -> float:
    """Tokens a second over half a second of generations."""
    n, started = 0, time.perf_counter()
    while time.perf_counter() - started < 0.5:
        n += len(generate())
    return n / (time.perf_counter() - started)


def cache_bytes(model: tinylm.TinyLM, ids: list[int]) -> dict[str, int]:
    """Bytes in the latent cache after the last step, and in keys and values of the same positions and type."""
    *_, last = tinylm.stream(model, ids, max_new_tokens=N_NEW)
    config = model.config
    n_positions = len(ids) + N_NEW - 1
    keys = torch.zeros(config.n_layers, n_positions, config.d_model, dtype=model.head_bias.dtype)
    return {"latent": last.cache_nbytes, "key_value": 2 * keys.numel() * keys.element_size()}


def gpt2_rate(config: ModelConfig, ids: list[int]) -> Callable[[], float]:
    """`generate` of transformers' GPT-2 of the same size."""
    model = gpt2(config).eval()
    ids_BT = torch.tensor([ids])
    mask_BT = torch.ones_like(ids_BT)

    def generate() -> list[int]:
        found = model.generate(
            ids_BT,
            attention_mask=mask_BT,
            do_sample=False,
            use_cache=True,
            min_new_tokens=N_NEW,
            max_new_tokens=N_NEW,
            pad_token_id=0,
        )
        return found[0, len(ids) :].tolist()

    return lambda: rate(generate)


def products(config: ModelConfig) -> Callable[[], list[int]]:
    """The matrix-vector products of as many steps of a dense model, weights folded, outputs in place."""
    d, r, queries = config.d_model, config.d_latent, config.n_heads * config.d_latent
    layer = [(queries + r, d), (d, queries), (config.d_ff, d), (d, config.d_ff)]
    shapes = layer * config.n_layers + [(config.vocab_size, d)]
    calls = [(torch.randn(n_out, n_in), torch.randn(n_in), torch.empty(n_out)) for n_out, n_in in shapes]

    @torch.inference_mode()
    def steps() -> list[int]:
        for _ in range(N_NEW):
            for w, x, y in calls:
                torch.mv(w, x, out=y)
        return [0] * N_NEW

    return steps


if __name__ == "__main__":
    main()
