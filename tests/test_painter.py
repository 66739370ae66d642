"""The flower painter: deterministic, varied, and each kind tellable from the others."""

import ast
import hashlib
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from PIL import Image, ImageChops

from tinylm.data import painter
from tinylm.data.painter import KINDS, contact_sheet, paint

REQUIRED = {"rose", "tulip", "daisy", "dandelion", "sunflower", "orchid", "water lily"}


def fingerprint(picture: Image.Image) -> str:
    return hashlib.sha256(picture.tobytes()).hexdigest()


def layout(kind: str, seed: int) -> list[float]:
    """The picture as 16 x 16 colours, in one list."""
    small = paint(kind, seed, 32).resize((16, 16), Image.Resampling.BOX)
    return [float(value) for value in small.tobytes()]


def test_the_table_has_at_least_a_dozen_kinds_and_the_common_ones():
    assert len(KINDS) >= 12
    assert len(set(KINDS)) == len(KINDS)
    assert set(KINDS) >= REQUIRED


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_equal_pixels(kind):
    assert paint(kind, 7, 64).tobytes() == paint(kind, 7, 64).tobytes()


def test_a_fresh_process_paints_the_same_pixels():
    # Another hash seed as well: nothing may depend on the order of a set or on hash().
    script = (
        "import hashlib\n"
        "from tinylm.data.painter import KINDS, paint\n"
        "for kind in KINDS: print(hashlib.sha256(paint(kind, 3, 48).tobytes()).hexdigest())"
    )
    there = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "99", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert there.stdout.split() == [fingerprint(paint(kind, 3, 48)) for kind in KINDS]


def test_what_was_painted_before_does_not_matter():
    alone = paint("iris", 11, 48).tobytes()
    for kind in KINDS:
        paint(kind, 12, 48)
    assert paint("iris", 11, 48).tobytes() == alone


@pytest.mark.parametrize("kind", KINDS)
def test_different_seeds_give_different_pictures(kind):
    assert len({fingerprint(paint(kind, seed, 32)) for seed in range(12)}) == 12


def test_every_kind_differs_from_every_other_under_the_same_seed():
    assert len({fingerprint(paint(kind, 0, 48)) for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("size", [16, 32, 33, 96, 200])
def test_size_and_mode_are_as_asked(size):
    for kind in KINDS[::5]:
        picture = paint(kind, 1, size)
        assert picture.size == (size, size)
        assert picture.mode == "RGB"


@pytest.mark.parametrize("kind", KINDS)
def test_size_changes_the_resolution_but_not_the_picture(kind):
    large = paint(kind, 5, 192).resize((32, 32), Image.Resampling.LANCZOS)
    difference = ImageChops.difference(large, paint(kind, 5, 32))
    assert fmean(difference.convert("L").tobytes()) < 12


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_neither_flat_nor_blown_out(kind):
    for seed in range(4):
        grey = sorted(paint(kind, seed, 32).convert("L").tobytes())
        low, high = grey[len(grey) // 20], grey[-len(grey) // 20]
        assert high - low > 40
        assert high > 90


def test_an_unknown_kind_is_refused_with_the_kinds_named():
    with pytest.raises(ValueError, match="cabbage") as refusal:
        paint("cabbage", 0)
    assert all(kind in str(refusal.value) for kind in KINDS)


@pytest.mark.parametrize("size", [15, 1, 0, -3])
def test_a_size_below_sixteen_is_refused(size):
    with pytest.raises(ValueError, match=f"16.*{size}"):
        paint("rose", 0, size)


def test_every_scene_of_the_table_exists_and_every_palette_paints():
    for kind, plan in painter._KINDS.items():
        assert set(plan.scenes) <= set(painter.SCENES), kind
        assert len({len(palette) for palette in plan.palettes}) == 1, kind


@pytest.fixture(scope="module")
def layouts() -> tuple[np.ndarray, np.ndarray]:
    """Colour layouts to learn from and held-out ones, each kinds x seeds x values."""
    known = np.array([[layout(kind, seed) for seed in range(40)] for kind in KINDS])
    held_out = np.array([[layout(kind, seed) for seed in range(1000, 1012)] for kind in KINDS])
    return known, held_out


def accuracy(references: np.ndarray, held_out: np.ndarray) -> float:
    """How often the nearest reference of any kind is one of the right kind."""
    kinds, per_kind, width = references.shape
    distances = ((held_out[:, :, None] - references.reshape(1, 1, kinds * per_kind, width)) ** 2).sum(-1)
    return float((distances.argmin(-1) // per_kind == np.arange(kinds)[:, None]).mean())


def test_kinds_are_tellable_apart_from_the_colour_layout_of_other_pictures(layouts):
    """The most alike of 40 pictures a kind names a held-out picture's kind ten times as often as chance."""
    known, held_out = layouts
    found = accuracy(known, held_out)
    assert found >= 0.6, f"nearest-picture accuracy is {found:.2f}; chance is {1 / len(KINDS):.2f}"


def test_no_two_kinds_share_their_mean_colour_layout(layouts):
    """One mean picture a kind already does it, though a mean over red, white and yellow roses says little."""
    known, held_out = layouts
    centroids = known.mean(axis=1, keepdims=True)
    found = accuracy(centroids, held_out)
    assert found >= 0.4, f"nearest-centroid accuracy is {found:.2f}; chance is {1 / len(KINDS):.2f}"
    apart = np.sqrt(((centroids - centroids[:, 0]) ** 2).mean(-1))
    assert apart[~np.eye(len(KINDS), dtype=bool)].min() > 8


def test_a_contact_sheet_has_one_labelled_row_a_kind():
    sheet = contact_sheet(per_kind=2, size=32, seed=5)
    assert sheet.mode == "RGB"
    assert sheet.height == 32 * len(KINDS)
    for row, kind in enumerate(KINDS):
        top, right = row * 32, sheet.width
        assert sheet.crop((right - 32, top, right, top + 32)).tobytes() == paint(kind, 6, 32).tobytes()
        label = sheet.crop((0, top, right - 64, top + 32)).convert("L")
        assert label.getextrema()[0] < 100, f"no label beside {kind}"


def test_a_contact_sheet_without_columns_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        contact_sheet(per_kind=0)


def test_the_painter_needs_pillow_and_the_standard_library_only():
    files = sorted(Path(painter.__file__).parent.rglob("*.py"))
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}
    others = {name for name in modules if name.partition(".")[0] not in {*sys.stdlib_module_names, "PIL"}}
    assert all(name.startswith(f"{painter.__name__}.") for name in others), others


def test_loading_the_painter_prints_nothing():
    done = subprocess.run(
        [sys.executable, "-c", "import tinylm.data.painter"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
