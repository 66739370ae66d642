"""Pictures of other things than flowers, for a model that is to know when it sees none."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from tinylm.data.flowers import told_unreadable
from tinylm.vision import image_to_tensor, load_image

VALIDATION_SHARE = 0.2
TEST = "test"
BESIDE = "not_flowers"


@dataclass(frozen=True)
class OtherPictures:
    """Square pictures as uint8 (n, 3, stored, stored)."""

    train: Tensor
    validation: Tensor
    test: Tensor  # none where the folder has no folder `test`


def others_beside(sources: Iterable[str]) -> str | None:
    """The folder `not_flowers` that lies beside a folder of flowers, or beside the folder that this one is in.

    None if there is none; where there are several, that of the first source.
    """
    for source in sources:
        folder = Path(source)
        if source and folder.is_dir():
            for around in (folder.resolve().parent, folder.resolve().parent.parent):
                if (around / BESIDE).is_dir():
                    return os.path.relpath(around / BESIDE)
    return None


def load_others(folder: str, stored_size: int, seed: int = 0, warn: Callable[[str], None] = print) -> OtherPictures:
    """All pictures below `folder`, whatever its folders are called; those below a folder `test` of it are set apart.

    A fifth of the others is for validation. Files that can't be read are named through `warn` and passed over. Raises
    ValueError if there is no such folder, or if fewer than two pictures are there to train on.
    """
    root = Path(folder)
    if not folder or not root.is_dir():
        raise ValueError(f"there is no folder {folder!r}; --not-flowers takes a folder of pictures of other things")
    paths = sorted(path for path in root.rglob("*") if not path.is_dir() and not path.name.startswith("."))
    pictures: dict[bool, list[Tensor]] = {False: [], True: []}
    unreadable = []
    for path in tqdm(paths, desc=f"reading {folder}", unit=" pictures", leave=False):
        try:
            image = image_to_tensor(load_image(path), stored_size).mul(255).round().to(torch.uint8)
        except ValueError:
            unreadable.append(path)
            continue
        pictures[path.relative_to(root).parts[0] == TEST].append(image)
    if unreadable:
        warn(told_unreadable(unreadable, root))
    known, test = pictures[False], pictures[True]
    if len(known) < 2:
        raise ValueError(f"{folder} has {len(known)} picture(s) to train on; at least 2 are needed")
    random.Random(seed).shuffle(known)
    n_validation = max(1, round(VALIDATION_SHARE * len(known)))
    none = torch.zeros(0, 3, stored_size, stored_size, dtype=torch.uint8)
    return OtherPictures(
        torch.stack(known[n_validation:]), torch.stack(known[:n_validation]), torch.stack(test) if test else none
    )
