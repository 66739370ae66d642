"""Labelled pictures of flowers: from the Hub, drawn, or a folder of a user's own; and the captions they get."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from PIL.Image import Image
from torch import Tensor
from tqdm import tqdm

from tinylm.data import painter
from tinylm.data.english import with_article
from tinylm.data.text import readable
from tinylm.vision import image_to_tensor, load_image

CAPTION_PROMPT = "This flower is obviously"
HUB_ID = "nroggendorff/flowers"
VALIDATION_SHARE = 0.1
DRAWN_PER_KIND, DRAWN_HELD_OUT = 120, 10
# Seeds of the drawings, apart from each other: training takes 0 and up, the others start here.
VALIDATION_SEED = 1_000_000
EXAMPLE_SEED = 2_000_000

# What data sets call their parts, and what systems leave in every folder.
_TRAINING_PARTS = ("train", "training")
_PARTS = (*_TRAINING_PARTS, "test", "testing", "val", "valid", "validation", "dev", "eval")
_SYSTEM_FILES = ("thumbs.db", "desktop.ini")


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
    """Pictures of all `sources`: `hub` or `hub:ID`, `drawn` or `drawn:N` (N of each kind), or a folder of labels.

    Validation takes the test pictures that a data set on the Hub has, fresh drawings, or else a tenth of each label's
    pictures. Of a folder with parts, the one called `train` is read. Files that can't be read or lie in no label's
    folder, and labels without pictures, are named through `warn` and passed over. Raises ValueError if nothing can be
    trained on.
    """
    sources = list(sources)
    train: list[Picture] = []
    validation: list[Picture] = []
    for source in sources:
        if source.partition(":")[0] == "drawn":
            drawn_train, drawn_validation = _drawn(source, stored_size)
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


class LabelledPictures(NamedTuple):
    """Square pictures as uint8 (n, 3, stored, stored), and for each the index of its label (n,)."""

    images: Tensor
    label_ids: Tensor


def read_pictures(
    folder: str, size: int, labels: Sequence[str], warn: Callable[[str], None] = print
) -> LabelledPictures:
    """All pictures of a folder with one folder a label, for a model that knows `labels`.

    Pictures of other labels are passed over, and `warn` told. Raises ValueError if none is left.
    """
    index = {label: i for i, label in enumerate(labels)}
    pictures = _folder_pictures(folder, size, warn)
    unknown = Counter(label for _, label in pictures if label not in index)
    if unknown:
        warn(f"passed over {unknown.total()} picture(s) of labels that the model doesn't know: {', '.join(unknown)}")
    known = [(image, label) for image, label in pictures if label in index]
    if not known:
        raise ValueError(f"no picture in {folder} has a label that the model knows")
    return LabelledPictures(*_stack(known, index))


def clean_label(name: str) -> str:
    """A folder's name as people say it: lower case, spaces for underscores and hyphens."""
    return " ".join(re.sub(r"[_-]+", " ", readable(name)).lower().split())


def _is_hub(source: str) -> bool:
    return source == "hub" or source.startswith("hub:")


def _drawn(source: str, size: int) -> tuple[list[Picture], list[Picture]]:
    number = source.partition(":")[2] or str(DRAWN_PER_KIND)
    if not number.isdecimal() or not 0 < int(number) < VALIDATION_SEED:
        raise ValueError(f"{source}: expected a number of drawings of each kind, such as drawn:50")

    def draw(first_seed: int, count: int) -> list[Picture]:
        wanted = [(kind, first_seed + i) for kind in painter.KINDS for i in range(count)]
        return [(_shrink(painter.paint(kind, n), size), kind) for kind, n in _bar(wanted, "drawing flowers")]

    return draw(0, int(number)), draw(VALIDATION_SEED, DRAWN_HELD_OUT)


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
    """Each picture with the name of the folder directly below `folder`, or below its training part, that it is in."""
    if not folder or not Path(folder).is_dir():
        raise ValueError(f"there is no folder {folder!r}; --flowers takes hub, drawn, or a folder of labelled pictures")
    root = _folder_of_labels(Path(folder), warn)
    visible = [path for path in sorted(root.rglob("*")) if _is_visible(path.relative_to(root))]
    listed = _listed(visible)
    # Not the name of the innermost folder, as the loader would have it: it makes labels of rose/2024/1.jpg and of the
    # pictures beside the labels' folders.
    within = [path for path in listed if len(path.relative_to(root).parts) > 1]
    if not within:
        raise ValueError(
            f"{folder} holds no labelled pictures; it needs one folder a label, such as {folder}/tulip/1.jpg"
        )
    beside = [path for path in listed if path.parent == root]
    deeper = [path for path in within if len(path.relative_to(root).parts) > 2]
    left = set(listed)
    unreadable = [
        path for path in visible if not path.is_dir() and path not in left and path.name.lower() not in _SYSTEM_FILES
    ]
    pictures = []
    for path in _bar(within, f"reading {folder}"):
        name = path.relative_to(root).parts[0]
        try:
            pictures.append((_shrink(load_image(path), size), clean_label(name) or readable(name)))
        except ValueError:
            unreadable.append(path)
    if unreadable:
        warn(told_unreadable(unreadable, root))
    if beside:
        warn(f"passed over {len(beside)} picture(s) that are in no label's folder: {_named(beside, root)}")
    if deeper:
        warn(f"{len(deeper)} picture(s) in deeper folders got the outermost folder's label: {_named(deeper, root)}")
    if not pictures:
        raise ValueError(f"no picture in {folder} can be read")
    found = {label for _, label in pictures}
    empty = [path for path in visible if path.is_dir() and path.parent == root and clean_label(path.name) not in found]
    if empty:
        warn(f"no readable picture in {_named(empty, root)}; left out of the labels")
    return pictures


def _folder_of_labels(folder: Path, warn: Callable[[str], None]) -> Path:
    """The folder itself, or its training part. Raises ValueError if it has parts and none of them is for training."""
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir() and _is_visible(Path(path.name))]
    # A part of a data set has folders in it; a label of that name has pictures.
    parts = [path for path in inner if path.name.lower() in _PARTS and any(below.is_dir() for below in path.iterdir())]
    if not parts:
        return folder
    training = [path for path in parts if path.name.lower() in _TRAINING_PARTS]
    if not training:
        raise ValueError(
            f"{folder} holds {_named(parts, folder)} and no part called train; "
            "give the folder that has one folder a label in it"
        )
    others = [path for path in inner if path not in parts]
    if others:
        warn(f"read {training[0]} alone; passed over {_named(others, folder)} beside it")
    return training[0]


def _listed(visible: list[Path]) -> list[Path]:
    """The files that `datasets` takes for pictures too, by their endings."""
    # Not through its loader, which fails on a folder that has one name in it that is not UTF-8.
    from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

    endings = set(ImageFolder.EXTENSIONS)
    return [path for path in visible if path.suffix.lower() in endings and path.is_file()]


def _is_visible(path: Path) -> bool:
    return not any(part.startswith((".", "__")) for part in path.parts)


def told_unreadable(paths: list[Path], root: Path) -> str:
    """The files below `root` that a folder's reader left out, in a line."""
    return f"passed over {len(paths)} file(s) that can't be read: {_named(paths, root)}"


def _named(paths: list[Path], root: Path) -> str:
    """The first five, as seen from `root`, in one line."""
    names = [" ".join(readable(str(path.relative_to(root))).splitlines()) for path in paths[:5]]
    return ", ".join(names) + (", ..." if len(paths) > 5 else "")


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
