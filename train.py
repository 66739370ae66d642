"""Train tinylm's models: `python train.py {text,vision,moe,all}`; `--help` tells the rest."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path

EXAMPLES = """examples:
  python train.py text                                   the built-in corpus, into runs/text
  python train.py text --corpus mine.txt                 your own text, one example a line
  python train.py vision --flowers drawn                 flowers that tinylm draws itself
  python train.py vision --flowers pictures/             your own pictures: one folder a label
  python train.py moe --minutes 3 --set learning_rate=0.002
  python app.py --weights runs                           see what you trained

Ctrl-C saves the run, and one that is killed was saved a minute ago at most: the same command with --resume goes on.
"""


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(
        description="Train tinylm's models on the CPU or a GPU and save a run folder for each.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("variant", choices=["text", "vision", "moe", "all"], help="which model; all trains the three")
    parser.add_argument(
        "--recipe",
        choices=["default", "article"],
        default="default",
        help="default: Muon and AdamW with warm-up and decay; article: the article's own plain SGD (default: default)",
    )
    parser.add_argument("--preset", default="article", help="model size: article, small or base (default: article)")
    parser.add_argument("--out", metavar="DIR", help="run folder (default: runs/VARIANT; with all: DIR/VARIANT)")
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto takes CUDA when there is one"
    )
    parser.add_argument(
        "--corpus", metavar="FILE|hub:ID", help="text to learn, one example a line (default: the built-in corpus)"
    )
    parser.add_argument("--test-corpus", metavar="FILE", help="held-out text (default: 5%% of the lines)")
    parser.add_argument(
        "--flowers",
        nargs="+",
        default=["hub"],
        metavar="hub[:ID]|drawn[:N]|DIR",
        help="pictures to learn, one source or several: from the Hugging Face Hub, drawn by tinylm (N of each "
        "kind), or a folder with one folder of pictures a label (default: hub)",
    )
    not_flowers = (
        "pictures of other things, to be told from flowers; those in DIR/test are for the report alone "
        "(default: a folder not_flowers beside the flowers, if there is one)"
    )
    parser.add_argument("--not-flowers", metavar="DIR", help=not_flowers)
    test_flowers = "labelled pictures for the report alone, beside the tenth of the pictures that is always set aside"
    parser.add_argument("--test-flowers", metavar="DIR", help=test_flowers)
    beside = "a finished vision run, whose figures the model card shows beside the new ones"
    parser.add_argument("--beside", metavar="RUN", help=beside)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, metavar="M", help="train for M minutes instead of the recipe's epochs")
    length.add_argument("--epochs", type=float, metavar="N", help="train for N passes over the data")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same run on the same machine (default: 0)")
    parser.add_argument("--note", metavar="TEXT", help="origin and licence of your data, for the model card")
    parser.add_argument("--resume", action="store_true", help="go on with the interrupted run in the run folder")
    every = "seconds between saves of what --resume goes on from, should the run be killed (default: 60)"
    parser.add_argument("--save-every", type=float, default=60.0, metavar="SECONDS", help=every)
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change a value of the recipe or the model, such as learning_rate=0.001, d_model=256, moe.n_experts=8, "
        "vision.encoder=mlp; an unknown key lists them all",
    )
    args = parser.parse_args(argv)
    for pair in args.set:
        if "=" not in pair:
            parser.error(f"--set {pair}: expected KEY=VALUE")
    for name in ("minutes", "epochs"):
        value = getattr(args, name)
        if value is not None and not 0 < value < float("inf"):
            parser.error(f"--{name} {value}: expected a number above 0")
    return args


def main(argv: list[str]) -> int:
    """Train what the command line asks for; the exit status."""
    args = parse(argv)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a file's name may be no text
    from tinylm import checkpoint, training  # after --help, which needs no PyTorch

    settings = dict(pair.split("=", 1) for pair in args.set)
    if args.epochs is not None:
        settings["epochs"] = str(args.epochs)
    variants = training.VARIANTS if args.variant == "all" else (args.variant,)
    one_folder = args.out and args.variant != "all"
    folders = {v: Path(args.out) if one_folder else Path(args.out or "runs") / v for v in variants}
    plan = training.Plan(
        variant=variants[0],
        out=folders[variants[0]],
        recipe_name=args.recipe,
        preset_name=args.preset,
        device=args.device,
        corpus=training.BUILT_IN if args.corpus is None else args.corpus,
        test_corpus=args.test_corpus,
        flowers=tuple(args.flowers),
        test_flowers=args.test_flowers,
        not_flowers=args.not_flowers,
        beside=args.beside,
        minutes=args.minutes,
        seed=args.seed,
        note=args.note,
        resume=args.resume,
        save_every=args.save_every,
        settings=settings,
        command=shlex.join(["python", "train.py", *argv]),
    )
    for variant in variants:
        out = folders[variant]
        resume = args.resume
        if args.resume and args.variant == "all":  # what is finished stays, what was not begun is begun
            resume = (out / training.STATE).exists()
            if not resume and (out / checkpoint.METRICS).exists():
                print(f"{variant}: already finished, in {out}")
                continue
        try:
            info = training.train(replace(plan, variant=variant, out=out, resume=resume))
        except (ValueError, OSError, training.TrainingError) as error:
            print(f"{variant}: {' '.join(str(error).splitlines())}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            if not (out / training.STATE).exists():
                print(f"\n{variant}: interrupted before the first step; nothing was saved", file=sys.stderr)
                return 130
            again = shlex.join(["python", "train.py", *argv, *([] if args.resume else ["--resume"])])
            print(f"\n{variant}: interrupted and saved in {out}; go on with: {again}", file=sys.stderr)
            return 130
        print(training.summary(info, out))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
