"""Speed on one GPU: training with its share of the bfloat16 matrix product peak, and decoding of one row.

python benchmarks/gpu.py [--cases text:article moe:article text:base] [--rounds 3] [--seconds 1]

Training: real tokens a second, padding not counted, of the steps that `train.py` takes on the built-in corpus, and of
plain steps without graphs and compilation. The share of the peak is that of the operations which the real tokens need
(`step_flops`) in what this GPU does in large bfloat16 matrix products, measured in the same run.

Decoding: greedy tokens a second of `GraphedDecoder`, one replayed graph a token, and of `tinylm.generate`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from measure import in_turn, machine, ratio, table, write

import tinylm
from tinylm.config import ModelConfig
from tinylm.data.batches import IGNORED, Batch
from tinylm.graphed import GraphedDecoder
from tinylm.loop import Precision, Task, step_on, take_step
from tinylm.recipes import Plan, Recipe, make_optimizers, settle
from tinylm.training import prepare

CASES = ("text:article", "moe:article", "text:base")
MOST_WARM_UP_STEPS, MOST_WARM_UP_SECONDS = 120, 60.0  # until most shapes of batches have come twice
PEAK_SIZE = {"cuda": 8192, "cpu": 256}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", nargs="+", default=CASES, metavar="VARIANT:PRESET", help=f"text or moe (default: {' '.join(CASES)})"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which medians are taken (default: 3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each candidate in a round (default: 1)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only tries the script out")
    parser.add_argument("--out", default="gpu", help="name of the JSON file in benchmarks/results")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu.py: PyTorch sees no CUDA device here; nothing was measured")
    device = torch.device(args.device)
    torch.manual_seed(0)
    report: dict[str, Any] = {"machine": machine() | gpu(device), "unit": "tokens a second"}
    peak = matmul_peak(device, args.seconds)
    report["bf16_matmul_tflops"] = round(peak / 1e12, 3)
    report |= {"training": {}, "decoding": {}}
    for case in args.cases:
        variant, preset = case.split(":")
        plan = Plan(variant, Path(tempfile.gettempdir()), preset_name=preset)
        recipe, sizes = settle(plan)
        task = prepare(plan, recipe, sizes)
        task.trained().to(device)
        report["training"][case] = training(task, recipe, device, peak, args.rounds, args.seconds)
        report["decoding"][case] = decoding(task, args.rounds, args.seconds)
        write(args.out, report)  # what is known so far, should a later case run out of time
        print(f"{case}: measured", flush=True)
    show(report)


def gpu(device: torch.device) -> dict[str, Any]:
    """What is known of the device beside the machine."""
    if device.type != "cuda":
        return {"device": "cpu"}
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return {"device": torch.cuda.get_device_name(device), "capability": capability, "cuda": torch.version.cuda}


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_peak(device: torch.device, seconds: float) -> float:
    """Operations a second in large bfloat16 matrix products of random numbers, the best of five times."""
    n = PEAK_SIZE[device.type]
    a, b = (torch.randn(n, n, device=device).to(torch.bfloat16) for _ in range(2))
    out, n_products, best = torch.empty_like(a), 1, 0.0
    for _ in range(6):  # the first only tells how many products fill the time
        wait(device)
        started = time.perf_counter()
        for _ in range(n_products):
            torch.mm(a, b, out=out)
        wait(device)
        took = time.perf_counter() - started
        rate, n_products = 2 * n**3 * n_products / took, max(1, round(n_products / took * seconds / 5))
        best = max(best, rate)
    return best


def step_flops(config: ModelConfig, lengths_B: Tensor) -> int:
    """Operations that a training step on lines of so many tokens needs; padding and masked scores don't count.

    A token's products, forward: D R for the latent, D D for the queries, 2 R D for keys and values, D D for the output,
    2 D F for each of k experts (one if dense) and D E for the router, in every layer; D V for the head. Token number
    n of a line also has n scores and a sum over n values, of D in all heads together. Each product is a multiplication
    and an addition, and the backward pass needs every product twice more.
    """
    d, r, f = config.d_model, config.d_latent, config.d_ff
    n_experts, top_k = (config.moe.n_experts, config.moe.top_k) if config.moe else (0, 1)
    a_layer = d * r + d * d + 2 * r * d + d * d + top_k * 2 * d * f + d * n_experts
    a_token = config.n_layers * a_layer + d * config.vocab_size
    n_tokens = int(lengths_B.sum())
    n_pairs = int((lengths_B * (lengths_B + 1) // 2).sum())
    return 3 * 2 * (n_tokens * a_token + n_pairs * config.n_layers * 2 * d)


def training(
    task: Task, recipe: Recipe, device: torch.device, peak: float, rounds: int, seconds: float
) -> dict[str, Any]:
    """Real tokens a second of `train.py`'s steps and of plain ones, and the share of the peak."""
    model = task.model.train()
    parameters, optimizers = list(model.parameters()), make_optimizers(task.trained(), recipe)
    precision = Precision.of(device, has_images=task.model.encoder is not None)
    steps = {
        "tinylm": step_on(device, task, parameters, optimizers, recipe.clip),
        "plain": lambda batch: take_step(task, batch.to(device), parameters, optimizers, recipe.clip, precision),
    }
    flops: dict[str, list[float]] = {name: [] for name in steps}
    started = time.perf_counter()
    for batch in itertools.islice(forever(task), MOST_WARM_UP_STEPS):
        steps["tinylm"](batch)
        wait(device)
        if time.perf_counter() - started > min(MOST_WARM_UP_SECONDS, 30 * seconds):
            break
    warm_up_seconds = time.perf_counter() - started

    def measured(name: str) -> Callable[[], float]:
        batches = forever(task)

        def rate() -> float:
            n_tokens, n_flops, n_steps, started = 0, 0, 0, time.perf_counter()
            while time.perf_counter() - started < seconds:
                batch = next(batches)
                steps[name](batch)
                lengths_B = (batch.targets != IGNORED).sum(dim=1)
                n_tokens += int(lengths_B.sum())
                n_flops += step_flops(model.config, lengths_B)
                n_steps += 1
                if n_steps % 20 == 0:  # as the training loop, which reads the loss every so often
                    wait(device)
            wait(device)
            took = time.perf_counter() - started
            flops[name].append(n_flops / took)
            return n_tokens / took

        return rate

    rates = in_turn({name: measured(name) for name in steps}, rounds)
    found: dict[str, Any] = {"parameters": model.n_parameters(), "batch_size": recipe.batch_size}
    found |= {"optimizer": recipe.optimizer, "warm_up_seconds": round(warm_up_seconds, 1)}
    for name, values in rates.items():
        share = statistics.median(flops[name][1:]) / peak  # the first round does not count
        found[name] = {"tokens_per_second": round(statistics.median(values)), "share_of_peak": round(share, 5)}
    return found | {"against_plain": round(ratio(rates, "tinylm", "plain"), 2)}


def forever(task: Task) -> Iterator[Batch]:
    """Epoch after epoch."""
    for epoch in itertools.count():
        yield from task.batches.epoch(epoch)


def decoding(task: Task, rounds: int, seconds: float) -> dict[str, Any]:
    """Greedy tokens a second of one row, from the second token of the context to its last."""
    model = task.model.eval()
    decoder = GraphedDecoder(model)
    n_new = model.config.max_seq_len

    def measured(generate: Callable[[], list[int]]) -> Callable[[], float]:
        def rate() -> float:
            n, started = 0, time.perf_counter()
            while time.perf_counter() - started < seconds / 2:
                n += len(generate())
            return n / (time.perf_counter() - started)

        return rate

    candidates = {
        "graph": lambda: decoder.greedy([1], max_new_tokens=n_new),
        "generate": lambda: tinylm.generate(model, [1], max_new_tokens=n_new),
    }
    rates = in_turn({name: measured(generate) for name, generate in candidates.items()}, rounds)
    found: dict[str, Any] = {name: round(statistics.median(values)) for name, values in rates.items()}
    return found | {"against_generate": round(ratio(rates, "graph", "generate"), 2)}


def show(report: dict[str, Any]) -> None:
    """The figures as tables."""
    print(f"\nbfloat16 matrix products: {report['bf16_matmul_tflops']:,} TFLOP/s on {report['machine']['device']}\n")
    rows = []
    for case, found in report["training"].items():
        for name in ("tinylm", "plain"):
            rows.append((case, name, f"{found[name]['tokens_per_second']:,}", f"{found[name]['share_of_peak']:.2%}"))
    table(("training", "steps", "real tokens/s", "of the peak"), rows)
    rows = [(case, f"{found['graph']:,}", f"{found['generate']:,}") for case, found in report["decoding"].items()]
    table(("decoding, one row", "graph, tokens/s", "generate, tokens/s"), rows)


if __name__ == "__main__":
    main()
