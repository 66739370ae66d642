"""Speed of the tokenizer, against the article's code and a library's byte pair encoding, on the built-in corpus.

python benchmarks/tokenizing.py [--rounds 3] [--lines 4000]

Training learns a vocabulary of 1,250 from all lines; encoding reads some of them, line by line.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tokenizers
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import article_code
from measure import in_turn, machine, ratio, table, write

from tinylm.data.text import load_corpus
from tinylm.tokenizer import PAD, Tokenizer

VOCAB_SIZE, MAX_TOKEN_LENGTH = 1250, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which medians are taken (default: 3)")
    parser.add_argument("--lines", type=int, default=4000, help="lines to encode (default: 4000)")
    parser.add_argument("--out", default="tokenizing", help="name of the JSON file in benchmarks/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    measured_on = machine()

    lines = list(load_corpus().train)
    some = lines[:: max(1, len(lines) // args.lines)]
    ours = Tokenizer.train(lines, VOCAB_SIZE, MAX_TOKEN_LENGTH, (PAD,))
    assert ours.tokens == article_code.vocabulary(lines, VOCAB_SIZE, MAX_TOKEN_LENGTH)
    library = library_bpe(lines)

    def fresh() -> None:
        # Nothing remembered from the round before.
        tokenizer = Tokenizer(ours.tokens, ours.special_tokens)
        for line in some:
            tokenizer.encode(line)

    training = {
        "tinylm": lambda: seconds(lambda: Tokenizer.train(lines, VOCAB_SIZE, MAX_TOKEN_LENGTH, (PAD,))),
        "article": lambda: seconds(lambda: article_code.vocabulary(lines, VOCAB_SIZE, MAX_TOKEN_LENGTH)),
        "tokenizers BPE": lambda: seconds(lambda: library_bpe(lines)),
    }
    encoding = {
        "tinylm": lambda: seconds(fresh),
        "article": lambda: seconds(lambda: [article_code.encode(line, ours.tokens) for line in some]),
        "tokenizers BPE": lambda: seconds(lambda: [library.encode(line) for line in some]),
    }
    report = {"machine": {**measured_on, "tokenizers": tokenizers.__version__}, "unit": "seconds"}
    for name, n_lines, candidates in (("training", len(lines), training), ("encoding", len(some), encoding)):
        taken = in_turn(candidates, rounds=args.rounds)
        medians = {who: statistics.median(values) for who, values in taken.items()}
        times = {who: round(ratio(taken, who, "tinylm"), 2) for who in taken}
        report[name] = {
            "lines": n_lines,
            "median": {who: round(value, 4) for who, value in medians.items()},
            "of_tinylm": times,
        }
        rows = [(who, f"{medians[who]:.3f}", times[who]) for who in taken]
        table((f"{name}, {n_lines:,} lines", "seconds", "times tinylm's"), rows)
    write(args.out, report)


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def library_bpe(lines: list[str]) -> tokenizers.Tokenizer:
    """Byte pair encoding of the same vocabulary size."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=PAD))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=[PAD], show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


if __name__ == "__main__":
    main()
