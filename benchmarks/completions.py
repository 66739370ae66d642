"""Complete prompts with the shipped weights and print them as the README's table, right and wrong ones alike.

python benchmarks/completions.py [--weights weights]

The prompts are drawn at random from the free prompts that models are judged by, and a few wrong ones are drawn from
those that either model gets wrong, so that the table shows how they fail.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import tinylm
from tinylm.data.knowledge import free_prompts
from tinylm.evaluation import completions, starts_with_answer

MODELS = ("text", "moe")
N_DRAWN = 12
N_WRONG = 4
MAX_NEW_TOKENS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", default="weights", help="folder with the run folders text and moe")
    args = parser.parse_args()
    probes = free_prompts()
    prompts = [probe.prompt for probe in probes]
    said: dict[str, list[str]] = {}
    right: dict[str, list[bool]] = {}
    for name in MODELS:
        run = tinylm.load(Path(args.weights) / name)
        said[name] = completions(run.model, run.tokenizer, prompts, MAX_NEW_TOKENS)
        right[name] = [starts_with_answer(text, p.answers) for text, p in zip(said[name], probes, strict=True)]
    rng = random.Random(0)
    drawn = rng.sample(range(len(prompts)), N_DRAWN)
    wrong = [i for i in range(len(prompts)) if i not in drawn and not all(right[name][i] for name in MODELS)]
    print("| prompt | text | moe |")
    print("|---|---|---|")
    for i in drawn + rng.sample(wrong, min(N_WRONG, len(wrong))):
        cells = [f"{said[name][i].strip()}{'' if right[name][i] else ' (wrong)'}" for name in MODELS]
        print(f"| {prompts[i]} | {' | '.join(cells)} |")
    print()
    for name in MODELS:
        print(f"{name}: {sum(right[name])} of {len(prompts)} right")


if __name__ == "__main__":
    main()
