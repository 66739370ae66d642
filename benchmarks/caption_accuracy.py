"""Caption a folder of labelled photos that no training has seen, and write how many captions are right.

python benchmarks/caption_accuracy.py --flowers DIR
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import tinylm
from tinylm.data.batches import resized
from tinylm.data.flowers import read_pictures
from tinylm.evaluation import judge_captions
from tinylm.training import device_name

# The kinds with most photos in the shipped weights' data.
LARGEST = ("rose", "tulip", "daisy", "dandelion", "sunflower", "orchid", "water lily", "lily", "dahlia", "petunia")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flowers", required=True, metavar="DIR", help="one folder of photos a label")
    parser.add_argument("--weights", default="weights/vision", help="run folder (default: weights/vision)")
    parser.add_argument("--out", default="benchmarks/results/captions.json", help="JSON file to write")
    args = parser.parse_args()

    run = tinylm.load(args.weights)
    labels = run.info["labels"]
    size = run.model.config.vision.image_size
    images, names = read_pictures(args.flowers, size)  # shrunk once, as the page does it
    known = [i for i, name in enumerate(names) if name in labels]
    label_ids = torch.tensor([labels.index(names[i]) for i in known])
    figures = judge_captions(run.model, run.tokenizer, resized(images[known], size), label_ids, labels)
    large = [name for name in LARGEST if name in figures["accuracy_by_label"]]
    counts = {name: sum(names[i] == name for i in known) for name in large}
    right = sum(figures["accuracy_by_label"][name] * counts[name] for name in large)
    report = {
        "weights": args.weights,
        "device": device_name(torch.device("cpu")),
        "torch": torch.__version__,
        "n_photos": len(known),
        "n_labels": len(labels),
        "caption_accuracy": figures["caption_accuracy"],
        "top3_accuracy": figures["top3_accuracy"],
        "ten_largest_accuracy": round(right / max(sum(counts.values()), 1), 4),
        "accuracy_by_label": figures["accuracy_by_label"],
    }
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    Path(args.out).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    figures_shown = {key: value for key, value in report.items() if key != "accuracy_by_label"}
    print(json.dumps(figures_shown, indent=2))


if __name__ == "__main__":
    main()
