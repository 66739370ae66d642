"""Training speed of the article preset on the built-in corpus, against what people would write or use instead.

python benchmarks/training.py [--rounds 3] [--seconds 4]

Real tokens a second, padding not counted, of tinylm's own steps, in bfloat16 where the CPU has it, and in float32; of
the article's loop as a reader types it in (per-head modules, every batch padded to the longest line, batches of 8, SGD
or AdamW); of transformers' GPT-2 of the same size in a plain PyTorch loop with AdamW, at the batch size of tinylm, each
batch padded to its own longest line; and of the bare matrix products of tinylm's steps, forward and backward, in the
type tinylm computes them in, at the rate this machine does them.

Then the time to the validation loss that the article's recipe has at its end, on 1,500 lines.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from article_code import ArticleLM
from gpt2 import gpt2
from measure import in_turn, machine, ratio, table, write

from tinylm.config import ModelConfig
from tinylm.data.batches import IGNORED, Batch, BatchSource, Lines, TextBatches
from tinylm.loop import Precision, Task, take_step
from tinylm.model import TinyLM
from tinylm.recipes import Plan, Recipe, make_optimizers, settle
from tinylm.training import prepare

ARTICLE_BATCH, ARTICLE_RATE, ARTICLE_EPOCHS = 8, 3e-4, 50
SUBSET_LINES = 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which medians are taken (default: 3)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each candidate in a round (default: 4)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--variant", choices=("text", "moe"), default="text", help="of tinylm (default: text)")
    parser.add_argument("--skip-time-to-loss", action="store_true", help="measure the rates alone")
    parser.add_argument("--out", default="training", help="name of the JSON file in benchmarks/results")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    measured_on = machine()  # before: what else ran shows in the load

    plan = Plan(args.variant, Path(tempfile.gettempdir()))
    recipe, sizes = settle(plan)
    task = prepare(plan, recipe, sizes)
    corpus = task.corpus
    assert corpus is not None
    config = task.model.config
    # The article's loop pads to the longest line of all; its batches are lines in random order.
    padded = Lines.encode(corpus.train, task.tokenizer, config.max_seq_len)
    unbucketed = TextBatches(padded, padded, ARTICLE_BATCH, seed=0, bucket=False)
    shuffled = TextBatches(padded, padded, recipe.batch_size, seed=0, bucket=False)

    candidates = {
        "tinylm": lambda: rate_of(tinylm_steps(task, recipe), forever(task.batches), args.seconds),
        "tinylm, float32": lambda: rate_of(
            tinylm_steps(task, recipe, Precision(False, False)), forever(task.batches), args.seconds
        ),
        "article, SGD": lambda: rate_of(
            plain_steps(model := ArticleLM(config).train(), torch.optim.SGD(model.parameters(), lr=ARTICLE_RATE)),
            forever(unbucketed),
            args.seconds,
        ),
        "article, AdamW": lambda: rate_of(
            plain_steps(model := ArticleLM(config).train(), torch.optim.AdamW(model.parameters(), lr=ARTICLE_RATE)),
            forever(unbucketed),
            args.seconds,
        ),
        "transformers GPT-2, AdamW": lambda: rate_of(
            gpt2_steps(config, task.tokenizer.pad_id), trimmed(forever(shuffled)), args.seconds
        ),
    }
    if args.variant == "text":
        candidates["matrix products alone"] = lambda: product_rate(task.model, forever(task.batches), args.seconds)
    rates = in_turn(candidates, rounds=args.rounds)
    report = {
        "machine": measured_on,
        "variant": args.variant,
        "preset": plan.preset_name,
        "tinylm computes in": "bfloat16" if Precision.of(torch.device("cpu")).whole else "float32",
        "parameters": task.model.n_parameters(),
        "unit": "real tokens a second",
        "median": {name: round(statistics.median(values)) for name, values in rates.items()},
        "tinylm_against": {name: round(ratio(rates, "tinylm", name), 3) for name in rates if name != "tinylm"},
        "rounds": {name: [round(value) for value in values] for name, values in rates.items()},
    }
    rows = [(name, f"{report['median'][name]:,}", report["tinylm_against"].get(name, 1.0)) for name in rates]
    table(("training", "real tokens/s", "tinylm is ... times"), rows)
    if args.variant == "text" and not args.skip_time_to_loss:
        with tempfile.TemporaryDirectory() as folder:
            report["time_to_loss"] = time_to_loss(corpus.train, corpus.validation, Path(folder))
        table(("time to the article's last validation loss", ""), list(report["time_to_loss"].items()))
    write(args.out, report)


def forever(source: BatchSource) -> Iterator[Batch]:
    """Epoch after epoch."""
    for epoch in itertools.count():
        yield from source.epoch(epoch)


def trimmed(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches cut to their own longest line, as a collating function of a data loader does it."""
    for batch in batches:
        width = int((batch.targets != IGNORED).sum(dim=1).max())
        yield Batch(batch.ids[:, :width], batch.targets[:, :width])


def rate_of(step: Callable[[Batch], object], batches: Iterator[Batch], seconds: float) -> float:
    """Real tokens a second over `seconds` of steps, after three that don't count; making the batches counts."""
    for batch in itertools.islice(batches, 3):
        step(batch)
    n_tokens, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        batch = next(batches)
        step(batch)
        n_tokens += batch.n_tokens
    return n_tokens / (time.perf_counter() - started)


def tinylm_steps(task: Task, recipe: Recipe, precision: Precision | None = None) -> Callable[[Batch], object]:
    """The training script's own step, in the type that it takes on this CPU unless told otherwise."""
    model = task.model.train()
    parameters, optimizers = list(model.parameters()), make_optimizers(task.trained(), recipe)
    precision = precision or Precision.of(torch.device("cpu"))
    return lambda batch: take_step(task, batch, parameters, optimizers, recipe.clip, precision)


def plain_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    logits_of: Callable[[nn.Module, Batch], Tensor] = lambda model, batch: model(batch.ids),
) -> Callable[[Batch], object]:
    """A plain loop's step: forward, cross-entropy without the padding, backward, update."""

    def step(batch: Batch) -> None:
        logits_BTV = logits_of(model, batch)
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def gpt2_steps(config: ModelConfig, pad_id: int) -> Callable[[Batch], object]:
    """The same around transformers' GPT-2, which is told what is padding."""
    model = gpt2(config).train()

    def logits_of(model: nn.Module, batch: Batch) -> Tensor:
        return model(input_ids=batch.ids, attention_mask=(batch.ids != pad_id).long()).logits

    return plain_steps(model, torch.optim.AdamW(model.parameters(), lr=ARTICLE_RATE), logits_of)


def product_rate(model: TinyLM, batches: Iterator[Batch], seconds: float) -> float:
    """Tokens a second if a step were nothing but the model's matrix products, forward and backward.

    Each product is done as one bare call with its output in place: for a weight (n_in, n_out) and N positions the
    three of size N x n_in x n_out. Scores, and sums weighted by them, are of the size of the batch's longest line and
    in float32.
    """
    config = model.config
    dtype = torch.bfloat16 if Precision.of(torch.device("cpu")).whole else torch.float32
    d, r, k = config.d_model, config.d_latent, config.d_head
    layer = [(d, r), (d, d), (r, d), (r, d), (d, d), (d, config.d_ff), (config.d_ff, d)]
    weights = layer * config.n_layers + [(d, config.vocab_size)]
    made: dict[tuple[str, int, int, int], Tensor] = {}

    def tensor(role: str, *shape: int) -> Tensor:
        key = (role, *shape, 0)[:4]
        if key not in made:
            made[key] = torch.randn(shape, dtype=dtype if len(shape) == 2 else torch.float32)
        return made[key]

    def step(batch: Batch) -> None:
        n_lines, length = batch.ids.shape
        n = n_lines * length
        for n_in, n_out in weights:
            x, w, dy = tensor("x", n, n_in), tensor("w", n_in, n_out), tensor("dy", n, n_out)
            torch.mm(x, w, out=tensor("y", n, n_out))
            torch.mm(dy, w.t(), out=tensor("dx", n, n_in))
            torch.mm(x.t(), dy, out=tensor("dw", n_in, n_out))
        rows = n_lines * config.n_heads
        q, scores = tensor("q", rows, length, k), tensor("scores", rows, length, length)
        for _ in range(config.n_layers * 3):  # the scores and the sums; the gradients of both of their factors
            torch.bmm(q, q.transpose(1, 2), out=tensor("new scores", rows, length, length))
            torch.bmm(scores, q, out=tensor("sums", rows, length, k))

    with torch.no_grad():
        return rate_of(step, batches, seconds)


def time_to_loss(train: tuple[str, ...], validation: tuple[str, ...], folder: Path) -> dict[str, float]:
    """Seconds until tinylm has the validation loss with which the article's recipe ends, both on 1,500 lines.

    The article's: 50 epochs of SGD in batches of 8 at 3e-4, the same vocabulary. tinylm trains with its own recipe at
    its full rate and is read after every step; reading counts for neither.
    """
    lines = train[:: len(train) // SUBSET_LINES][:SUBSET_LINES]
    (folder / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "validation.txt").write_text("\n".join(validation[::10]), encoding="utf-8")
    plan = Plan("text", folder, corpus=str(folder / "train.txt"), test_corpus=str(folder / "validation.txt"))
    recipe, sizes = settle(plan)
    task = prepare(plan, recipe, sizes)
    padded = Lines.encode(lines, task.tokenizer, task.model.config.max_seq_len)
    batches = TextBatches(padded, padded, ARTICLE_BATCH, seed=0, bucket=False)

    torch.manual_seed(0)
    article = ArticleLM(task.model.config).train()
    step = plain_steps(article, torch.optim.SGD(article.parameters(), lr=ARTICLE_RATE))
    started = time.perf_counter()
    for epoch in range(ARTICLE_EPOCHS):
        for batch in batches.epoch(epoch):
            step(batch)
    article_seconds = time.perf_counter() - started
    wanted = validation_nats(article, task.batches)

    step = tinylm_steps(task, recipe)
    seconds, n_steps, loss = 0.0, 0, math.inf
    for batch in forever(task.batches):
        started = time.perf_counter()
        step(batch)
        seconds += time.perf_counter() - started
        n_steps += 1
        loss = validation_nats(lambda ids_BT: task.model(ids_BT).logits, task.batches)
        if loss <= wanted:
            break
    return {
        "lines": len(lines),
        "article_seconds": round(article_seconds, 1),
        "article_validation_loss": round(wanted, 4),
        "tinylm_seconds": round(seconds, 3),
        "tinylm_steps": n_steps,
        "tinylm_validation_loss": round(loss, 4),
        "share_of_the_time": round(seconds / article_seconds, 5),
    }


@torch.no_grad()
def validation_nats(logits_of: Callable[[Tensor], Tensor], batches: BatchSource) -> float:
    """Mean loss over the held-out targets."""
    nats, n_tokens = 0.0, 0
    for batch in batches.validation():
        nats += float(F.cross_entropy(logits_of(batch.ids).flatten(0, 1), batch.targets.flatten(), reduction="sum"))
        n_tokens += batch.n_tokens
    return nats / n_tokens


if __name__ == "__main__":
    main()
