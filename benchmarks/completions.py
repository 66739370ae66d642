"""Complete a few prompts with the shipped weights and print them as the README's table, good and bad alike.

python benchmarks/completions.py [--weights weights]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import tinylm
from tinylm.evaluation import completions

PROMPTS = (
    "trees lose leaves in",
    "bees make",
    "the opposite of hot is",
    "a baby cat is called a",
    "Paris is the capital of",
    "What do cows eat?",
    "two plus two is",
    "seven plus five is",
    "the day after monday is",
    "we use scissors to",
    "the largest planet is",
    "My dog",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", default="weights", help="folder with the run folders text and moe")
    args = parser.parse_args()
    runs = {name: tinylm.load(Path(args.weights) / name) for name in ("text", "moe")}
    said = {name: completions(run.model, run.tokenizer, PROMPTS, 30) for name, run in runs.items()}
    print("| prompt | text | moe |")
    print("|---|---|---|")
    for i, prompt in enumerate(PROMPTS):
        print(f"| {prompt} | {said['text'][i].strip()} | {said['moe'][i].strip()} |")


if __name__ == "__main__":
    main()
