"""Store photos in other ways, and write how many keep their caption.

python benchmarks/caption_intake.py --flowers DIR
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

import tinylm
from tinylm.captioner import Captioner

ORIENTATION = 0x0112  # the EXIF tag
TURNED_BACK = {
    3: Image.Transpose.ROTATE_180,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}  # what a camera held that way does to the pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flowers", required=True, metavar="DIR", help="a folder of photos, read to any depth")
    parser.add_argument("--photos", type=int, default=300, metavar="N", help="at most so many (default: 300)")
    parser.add_argument("--weights", default="weights/vision", help="run folder (default: weights/vision)")
    parser.add_argument("--out", default="benchmarks/results/caption_intake.json", help="JSON file to write")
    args = parser.parse_args()

    captioner = Captioner.of(tinylm.load(args.weights))
    paths = sorted(path for path in Path(args.flowers).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    paths = paths[:: max(1, len(paths) // args.photos)][: args.photos]
    if not paths:
        raise SystemExit(f"there is no photo in {args.flowers}")
    originals = [tinylm.load_image(path) for path in paths]
    greys = [image.convert("L") for image in originals]
    as_it_is, grey = captions(captioner, originals), captions(captioner, greys)
    kept = {name: same(captioner, originals, store, as_it_is) for name, store in STORED.items()}
    kept["grey, 16 bits, against 8 bits"] = same(captioner, greys, deep_grey, grey)
    report = {
        "weights": args.weights,
        "machine": platform.machine(),
        "torch": torch.__version__,
        "pillow": PIL.__version__,
        "n_photos": len(paths),
        "caption_kept": kept,
    }
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    Path(args.out).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))


def captions(captioner: Captioner, sources: list[Any]) -> list[str]:
    """The greedy captions of pictures or open files."""
    assert captioner.model.config.vision is not None
    size = captioner.model.config.vision.image_size
    images = torch.stack([tinylm.image_to_tensor(tinylm.load_image(source), size) for source in sources])
    return captioner.greedy(captioner.slots(images))


def same(
    captioner: Captioner, images: list[Image.Image], store: Callable[[Image.Image], io.BytesIO], said: list[str]
) -> float:
    """Share of the images whose stored copy gets the caption of the original."""
    found = captions(captioner, [store(image) for image in images])
    return round(sum(a == b for a, b in zip(found, said, strict=True)) / len(said), 4)


def stored(image: Image.Image, kind: str, **options: Any) -> io.BytesIO:
    """The image as an open file of that kind."""
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    file.seek(0)
    return file


def turned(orientation: int) -> Callable[[Image.Image], io.BytesIO]:
    """Stores an image as a camera held another way does: turned, with a note of it; without loss."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return lambda image: stored(image.transpose(TURNED_BACK[orientation]), "PNG", exif=exif)


def deep_grey(image: Image.Image) -> io.BytesIO:
    """An 8-bit grey image with 16 bits: every value times 257."""
    values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).to(torch.int32) * 257
    low_high = torch.stack([values % 256, values // 256], dim=1).to(torch.uint8)
    return stored(Image.frombytes("I;16", image.size, bytes(low_high.flatten().tolist())), "PNG")


STORED: dict[str, Callable[[Image.Image], io.BytesIO]] = {
    **{f"turned, EXIF orientation {orientation}": turned(orientation) for orientation in TURNED_BACK},
    "PNG with alpha": lambda image: stored(image.convert("RGBA"), "PNG"),
    "WebP without loss": lambda image: stored(image, "WEBP", lossless=True),
    "WebP, quality 90": lambda image: stored(image, "WEBP", quality=90),
    "CMYK TIFF": lambda image: stored(image.convert("CMYK"), "TIFF"),
    "CMYK JPEG, quality 95": lambda image: stored(image.convert("CMYK"), "JPEG", quality=95, subsampling=0),
    "JPEG again, quality 90": lambda image: stored(image, "JPEG", quality=90),
    "AVIF, quality 90": lambda image: stored(image, "AVIF", quality=90),
    "BMP": lambda image: stored(image, "BMP"),
    "GIF, 256 colours": lambda image: stored(image, "GIF"),
}


if __name__ == "__main__":
    main()
