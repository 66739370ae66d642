"""Labelled pictures of flowers: from the Hub, drawn, or a folder of a user's own; and the captions they get."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor
from tqdm import tqdm

from tinylm.data import painter
from tinylm.data.english import with_article
from tinylm.vision import image_to_tensor, load_image

CAPTION_PROMPT = "This flower is obviously"
HUB_ID = "nroggendorff/flowers"
VALIDATION_SHARE = 0.1
DRAWN_PER_KIND, DRAWN_HELD_OUT = 200, 10
# Seeds of the drawings, apart from each other: training takes 0 and up, the others start here.
VALIDATION_SEED = 1_000_000
EXAMPLE_SEED = 2_000_000


def caption(label: str) -> str:
    """The caption that the models learn: "This flower is obviously a tulip!" (an before a vowel sound)."""
    return f"{CAPTION_PROMPT} {with_article(label)}!"


@dataclass(frozen=True)
class FlowerData:
    """Square pictures as uint8 (n, 3, stored, stored), and for each the index of its label."""

    source: str
    labels: tuple[str, ...]
    train_images: Tensor
    train_labels: Tensor
    validation_images: Tensor
    validation_labels: Tensor


Picture = tuple[Tensor, str]  # (3, stored, stored) uint8, and its label


def load_flowers(
    sources: Iterable[str], stored_size: int, seed: int = 0, warn: Callable[[str], None] = print
) -> FlowerData:
    """Pictures of all `sources`: `hub` or `hub:ID`, `drawn`, or a folder with one folder of pictures a label.

    Validation takes the test pictures that a data set on the Hub has, fresh drawings, or else a tenth of each label's
    pictures. A folder with a folder `train` in it is read from there. Files that can't
    be read are named through `warn` and passed over. Raises ValueError if nothing can be trained on.
    """
    sources = list(sources)
    train: list[Picture] = []
    validation: list[Picture] = []
    for source in sources:
        if source == "drawn":
            drawn_train, drawn_validation = _drawn(stored_size)
            train += drawn_train
            validation += drawn_validation
            continue
        if _is_hub(source):
            pictures, held_out = _hub_pictures(source, stored_size)
        else:
            pictures, held_out = _folder_pictures(source, stored_size, warn), []
        kept, set_aside = (pictures, held_out) if held_out else _split(pictures, seed)
        train += kept
        validation += set_aside
    labels = tuple(sorted({label for _, label in train}))
    if len(labels) < 2:
        raise ValueError(
            f"{' '.join(sources)} has {len(labels)} label(s); telling flowers apart takes at least 2, in a folder each"
        )
    index = {label: i for i, label in enumerate(labels)}
    if not validation:
        raise ValueError(f"{' '.join(sources)} has too few pictures; at least one label needs 3 or more")
    return FlowerData(" ".join(sources), labels, *_stack(train, index), *_stack(validation, index))


def read_pictures(folder: str, size: int, warn: Callable[[str], None] = print) -> tuple[Tensor, list[str]]:
    """All pictures of a folder with one folder a label, as uint8 (n, 3, size, size), and the label of each.

    Raises ValueError if there are none.
    """
    pictures = _folder_pictures(folder, size, warn)
    return torch.stack([image for image, _ in pictures]), [label for _, label in pictures]


def clean_label(name: str) -> str:
    """A folder's name as people say it: lower case, spaces for underscores and hyphens."""
    return " ".join(re.sub(r"[_-]+", " ", name).lower().split())


def _is_hub(source: str) -> bool:
    return source == "hub" or source.startswith("hub:")


def _drawn(size: int) -> tuple[list[Picture], list[Picture]]:
    def draw(first_seed: int, count: int) -> list[Picture]:
        wanted = [(kind, first_seed + i) for kind in painter.KINDS for i in range(count)]
        return [(_shrink(painter.paint(kind, n), size), kind) for kind, n in _bar(wanted, "drawing flowers")]

    return draw(0, DRAWN_PER_KIND), draw(VALIDATION_SEED, DRAWN_HELD_OUT)


def _hub_pictures(source: str, size: int) -> tuple[list[Picture], list[Picture]]:
    """Its pictures to train on, and those of its test split."""
    from tinylm.data.hub import load_hub_dataset

    name = source.partition(":")[2] or HUB_ID
    splits = load_hub_dataset(name, "give --flowers drawn, or --flowers DIR with a folder of pictures for each label")
    rows = splits["train"]
    if not {"image", "label"} <= set(rows.features):
        raise ValueError(f"{name} needs the columns image and label; it has {', '.join(rows.features)}")
    names = getattr(rows.features["label"], "names", None)

    def read(split: str) -> list[Picture]:
        pictures = []
        for row in _bar(splits[split], f"reading {name}"):
            label = names[row["label"]] if names else str(row["label"])
            pictures.append((_shrink(load_image(row["image"]), size), clean_label(label)))
        return pictures

    return read("train"), read("test") if "test" in splits else []


def _folder_pictures(folder: str, size: int, warn: Callable[[str], None]) -> list[Picture]:
    if not Path(folder).is_dir():
        raise ValueError(f"there is no folder {folder!r}; --flowers takes hub, drawn, or a folder of labelled pictures")
    import datasets

    datasets.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    # Named as one split: left to itself the loader reads splits out of file names such as train_1.jpg.
    root = Path(folder) / "train" if (Path(folder) / "train").is_dir() else Path(folder)
    try:
        files = {"train": os.path.join(root, "**")}
        rows: Any = datasets.load_dataset("imagefolder", data_files=files, drop_labels=False)["train"]
        if "label" not in rows.features or not any(path.is_dir() for path in root.iterdir()):
            raise ValueError("no labels")
    except Exception:  # the loader raises errors of many kinds on folders it can't use
        raise ValueError(
            f"{folder} holds no labelled pictures; it needs one folder a label, such as {folder}/tulip/1.jpg"
        ) from None
    names = rows.features["label"].names
    pictures, unreadable = [], []
    for row in _bar(rows.cast_column("image", datasets.Image(decode=False)), f"reading {folder}"):
        stored = row["image"]
        try:
            source = stored["path"] if stored["bytes"] is None else BytesIO(stored["bytes"])
            pictures.append((_shrink(load_image(source), size), clean_label(names[row["label"]])))
        except ValueError:
            unreadable.append(stored["path"])
    if unreadable:
        warn(f"passed over {len(unreadable)} file(s) that can't be read: {', '.join(map(str, unreadable[:5]))}")
    if not pictures:
        raise ValueError(f"no picture in {folder} can be read")
    return pictures


def _split(pictures: list[Picture], seed: int) -> tuple[list[Picture], list[Picture]]:
    """A tenth of each label, at least one where it has three, goes to validation."""
    shuffled = random.Random(seed).sample(pictures, len(pictures))
    counts = Counter(label for _, label in pictures)
    wanted = {label: max(1, round(VALIDATION_SHARE * n)) if n >= 3 else 0 for label, n in counts.items()}
    train, validation = [], []
    for picture in shuffled:
        if wanted[picture[1]] > 0:
            wanted[picture[1]] -= 1
            validation.append(picture)
        else:
            train.append(picture)
    return train, validation


def _bar(pictures: Sized, what: str) -> tqdm:
    return tqdm(pictures, desc=what, unit=" pictures", leave=False)


def _shrink(image: Image, size: int) -> Tensor:
    return image_to_tensor(image, size).mul(255).round().to(torch.uint8)


def _stack(pictures: list[Picture], index: dict[str, int]) -> tuple[Tensor, Tensor]:
    images = torch.stack([image for image, _ in pictures])
    return images, torch.tensor([index[label] for _, label in pictures])
