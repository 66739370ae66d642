"""The loss curve of the article's own recipe, for the time that the shipped text model took.

python benchmarks/article_recipe.py [--weights weights] [--seconds S]

It is what `python train.py text --recipe article` does: plain SGD at 3e-4 in batches of 8, PyTorch's first weights, no
final norm. Two things are ours. The loop: it takes the article's steps (the tests compare the models) in less time
than the article's code, so that on a clock the recipe looks better here than as typed in. And the vocabulary: that of
the shipped model, so that both losses are means over the same tokens of the same held-out lines.

The curve goes into `article_recipe.json` beside the run folders, where the page's Training tab finds it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from measure import machine, table

from tinylm.checkpoint import METRICS, TOKENIZER
from tinylm.durable import write_whole
from tinylm.tokenizer import EOS, PAD, UNK
from tinylm.training import Plan, train
from tinylm.ui.service.trained import ARTICLE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--weights", type=Path, default=Path("weights"), help="folder of run folders (default: weights)"
    )
    parser.add_argument("--seconds", type=float, help="of training (default: as long as the text run took)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    measured_on = machine()  # before: what else ran shows in the load
    ours = json.loads((args.weights / "text" / METRICS).read_text(encoding="utf-8"))
    report = {"machine": measured_on, **measure(args.seconds or ours["seconds"])}
    write_whole(
        args.weights / ARTICLE, lambda path: path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    )
    table(
        ("recipe", "seconds", "steps", "validation loss"),
        [(name, run["seconds"], run["steps"], run["val_loss"]) for name, run in (("ours", ours), ("article", report))],
    )


def measure(seconds: float) -> dict[str, Any]:
    """Train by the article's recipe for that long; what its run folder tells, and the hash of its vocabulary."""
    special_tokens = ",".join((PAD, EOS, UNK))
    minutes = round(seconds / 60, 3)
    command = f"python train.py text --recipe article --minutes {minutes} --set 'special_tokens={special_tokens}'"
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(
            "text",
            Path(folder),
            recipe_name="article",
            minutes=minutes,
            settings={"special_tokens": special_tokens},
            command=command,
        )
        info = train(plan)
        vocabulary = hashlib.sha256((plan.out / TOKENIZER).read_bytes()).hexdigest()
    return {**info, "tokenizer_sha256": vocabulary}


if __name__ == "__main__":
    main()
