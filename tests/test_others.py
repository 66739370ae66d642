"""Pictures of other things than flowers: found, split and counted."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from tinylm.data.others import load_others, others_beside


def shades_of(images):
    return sorted(int(image[0, 0, 0]) for image in images)


@pytest.fixture
def folder(tmp_path):
    """Ten pictures in two folders, three below `test`, each of a shade of its own."""
    names = [f"train/{i}.png" for i in range(6)] + [f"more/deep/{i}.JPG" for i in range(6, 10)]
    for i, name in enumerate([*names, "test/10.png", "test/a/11.png", "test/12.png"]):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 30), (10 * i, 10 * i, 10 * i)).save(path, quality=100)
    return tmp_path


def test_a_fifth_is_for_validation_and_the_test_folder_is_apart(folder):
    others = load_others(str(folder), 8)
    assert others.train.shape == (8, 3, 8, 8) and others.train.dtype == torch.uint8
    assert len(others.validation) == 2
    assert sorted(shades_of(others.train) + shades_of(others.validation)) == [10 * i for i in range(10)]
    assert shades_of(others.test) == [100, 110, 120]


def test_the_split_hangs_on_the_seed_alone(folder):
    first, again, other = (shades_of(load_others(str(folder), 8, seed).validation) for seed in (0, 0, 1))
    assert first == again != other


def test_a_file_that_is_no_picture_is_named_and_passed_over(folder):
    (folder / "train" / "notes.txt").write_text("not a picture")
    (folder / ".DS_Store").write_bytes(b"\0\0")
    told = []
    assert len(load_others(str(folder), 8, warn=told.append).train) == 8
    assert len(told) == 1 and "notes.txt" in told[0] and "DS_Store" not in told[0]


def test_without_a_test_folder_there_are_no_test_pictures(folder):
    assert load_others(str(folder / "train"), 8).test.shape == (0, 3, 8, 8)


def test_a_folder_without_enough_pictures_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="no folder"):
        load_others(str(tmp_path / "nowhere"), 8)
    Image.new("RGB", (4, 4)).save(tmp_path / "one.png")
    with pytest.raises(ValueError, match=r"1 picture\(s\) to train on"):
        load_others(str(tmp_path), 8)


def test_a_folder_of_other_things_beside_the_flowers_is_found(tmp_path, monkeypatch):
    for name in ("data/flowers/train/rose", "data/not_flowers", "plain/rose", "deep/a/b/c"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "plain")
    for source in ("../data/flowers", "../data/flowers/train", str(tmp_path / "data" / "flowers" / "train")):
        assert others_beside(["drawn", source]) == "../data/not_flowers"
    for source in ("rose", "../deep/a/b/c", "drawn", "hub", "nowhere"):
        assert others_beside([source]) is None
