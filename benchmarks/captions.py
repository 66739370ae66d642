"""Caption a folder of labelled photos that no training has seen, and pictures of other things; write what is right.

python benchmarks/captions.py --flowers DIR [--not-flowers DIR] [--weights weights/vision]
                              [--out benchmarks/results/captions.json] [--charts docs]

Two pictures are drawn into the folder of --charts: the confusion matrix of the photos, and drawings with the captions
that the model gives them. No photo is copied anywhere.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import PIL
import torch
from charts import DrawnExample, draw_confusions, draw_examples
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

import tinylm
from tinylm.caption_figures import figures, read
from tinylm.captioner import Captioner
from tinylm.data import painter
from tinylm.data.augment import nothing
from tinylm.data.batches import resized
from tinylm.data.flowers import CAPTION_PROMPT, EXAMPLE_SEED, caption, read_pictures
from tinylm.data.others import load_others
from tinylm.report import device_name

CONFUSIONS_PNG, EXAMPLES_PNG = "confusions.png", "drawn_captions.png"
EXAMPLES_PER_KIND = 3
DRAWING_SIZE = 132
N_MADE = 60
SLOT_PICTURES = 512
TEXTS = ("tinylm", "Hello!", "EXIT", "404", "this is no flower", "12:45", "buy milk", "rose", "SALE 50 %", "p. 17")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flowers", required=True, metavar="DIR", help="one folder of photos a label")
    parser.add_argument("--not-flowers", metavar="DIR", help="pictures of other things")
    parser.add_argument("--weights", default="weights/vision", help="run folder (default: weights/vision)")
    parser.add_argument("--out", default="benchmarks/results/captions.json", help="JSON file to write")
    parser.add_argument("--charts", default="docs", metavar="DIR", help="folder for the two PNGs (default: docs)")
    args = parser.parse_args()

    run = tinylm.load(args.weights)
    captioner = Captioner.of(run)
    assert run.model.config.vision is not None
    size = run.model.config.vision.image_size
    try:
        images, label_ids = labelled_photos(args.flowers, captioner.labels, size)
        others = other_pictures(args.not_flowers, size) if args.not_flowers else None
    except ValueError as error:
        raise SystemExit(str(error)) from None
    reading = read(captioner, images)
    report = {
        "weights": args.weights,
        "device": device_name(torch.device("cpu")),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pillow": PIL.__version__,
        "n_labels": len(captioner.labels),
        **figures(captioner, images, label_ids, others, reading, SLOT_PICTURES, largest_of(run.info)),
        "made_pictures_refused": {
            name: round(share_refused(captioner, made), 4) for name, made in made_pictures(size).items()
        },
    }
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    Path(args.out).write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    charts = Path(args.charts)
    charts.mkdir(parents=True, exist_ok=True)
    draw_confusions(reading.logprobs.argmax(dim=-1), label_ids, captioner.labels, charts / CONFUSIONS_PNG)
    draw_examples(drawn_examples(captioner, size), CAPTION_PROMPT, charts / EXAMPLES_PNG)
    shown = {key: value for key, value in report["captions"].items() if key != "accuracy_by_label"}
    print(json.dumps({**report, "captions": shown, "slots": report["slots"]["accuracy_by_n_muted"]}, indent=2))


def largest_of(info: dict[str, Any]) -> list[str]:
    """The ten largest kinds that the run's own figures of test pictures speak of, if there are such."""
    return info.get("test", {}).get("captions", {}).get("largest_labels", [])


def labelled_photos(folder: str, labels: tuple[str, ...], size: int) -> tuple[Tensor, Tensor]:
    """Images (B, 3, size, size) and their labels (B,). Raises ValueError if none is of a kind that the model knows."""
    images, label_ids = read_pictures(folder, size, labels)  # shrunk once, as the page does it
    return resized(images, size), label_ids


def other_pictures(folder: str, size: int) -> Tensor:
    """All pictures below a folder, or below its folder `test`, (M, 3, size, size). Raises ValueError if too few."""
    others = load_others(folder, size)
    return resized(others.test if len(others.test) else torch.cat([others.train, others.validation]), size)


def made_pictures(size: int) -> dict[str, Tensor]:
    """Pictures of nothing, made here: plain cards, cards with words, and blends, blots and noise."""
    generator = torch.Generator().manual_seed(EXAMPLE_SEED)
    colours = torch.randint(256, (N_MADE, 3), generator=generator).tolist()
    cards = [Image.new("RGB", (160, 160), tuple(colour)) for colour in colours]
    written = []
    for i, card in enumerate(cards):
        page = card.copy() if i % 2 else Image.new("RGB", card.size, "white")
        shade = page.convert("L").getpixel((0, 0))
        ink = "black" if isinstance(shade, int) and shade > 127 else "white"
        text, font = TEXTS[i % len(TEXTS)], ImageFont.load_default(16 + 6 * (i % 5))
        for line in range(1 + i % 4):
            ImageDraw.Draw(page).text((6 + 3 * (i % 7), 10 + 40 * line), text, fill=ink, font=font)
        written.append(page)

    def stacked(pictures: Iterable[Image.Image]) -> Tensor:
        return torch.stack([tinylm.image_to_tensor(picture, size) for picture in pictures])

    return {
        "plain cards": stacked(cards),
        "cards with words": stacked(written),
        "blends, blots and noise": nothing(N_MADE, size, generator),
    }


def share_refused(captioner: Captioner, images: Tensor) -> float:
    """Share of images (M, 3, size, size) that score below the captioner's threshold."""
    scores = captioner.flower_scores(captioner.logprobs(captioner.slots(images)))
    return float((scores < captioner.flower_threshold).double().mean())


def drawn_examples(captioner: Captioner, size: int) -> list[DrawnExample]:
    """The painter's kinds that the model knows, in drawings that it was not trained on, with its captions."""
    wanted = [kind for kind in painter.KINDS if kind in captioner.labels]
    wanted = [kind for kind in wanted for _ in range(EXAMPLES_PER_KIND)]
    drawings = [
        painter.paint(kind, EXAMPLE_SEED + i % EXAMPLES_PER_KIND, DRAWING_SIZE) for i, kind in enumerate(wanted)
    ]
    if not drawings:
        return []
    images = torch.stack([tinylm.image_to_tensor(drawing, size) for drawing in drawings])
    logprobs_BL, captions = read(captioner, images)
    columns = {caption(label): i for i, label in enumerate(captioner.labels)}
    probs_BL = captioner.probabilities(logprobs_BL)
    scores = captioner.flower_scores(logprobs_BL).tolist()
    examples = []
    for row, (kind, drawing, said) in enumerate(zip(wanted, drawings, captions, strict=True)):
        probability = float(probs_BL[row, columns[said]]) if said in columns else None
        known = scores[row] >= captioner.flower_threshold
        examples.append(DrawnExample(kind, drawing, said, probability, said == caption(kind), known))
    return examples


if __name__ == "__main__":
    main()
