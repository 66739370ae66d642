"""The flower painter: seeded storybook pictures of flowers, drawn with Pillow alone.

Each kind is one entry of a table (which scenes it grows in, how large it stands, which two functions draw its greenery
and its flower), and the flowers share the same parts. Pictures are drawn larger than asked for and shrunk, which
softens every edge. From the bottom up: `canvas`, `kind`, `petals`, `greenery`, `scene`, `kinds`, then this file.
"""

import random

from PIL import Image, ImageDraw

from tinylm.data.painter.canvas import BLACK, WHITE
from tinylm.data.painter.kind import Kind
from tinylm.data.painter.kinds import bells, cups, daisies, faces, rosettes, stars
from tinylm.data.painter.scene import SCENES, illuminate

MIN_SIZE = 16
_OVERSAMPLING = 3
_MIN_CANVAS = 160  # a finer canvas for small pictures: below this, stems would be thinner than a pixel

_KINDS: dict[str, Kind] = {
    "rose": rosettes.ROSE,
    "tulip": cups.TULIP,
    "daisy": daisies.DAISY,
    "dandelion": daisies.DANDELION,
    "sunflower": daisies.SUNFLOWER,
    "poppy": cups.POPPY,
    "daffodil": stars.DAFFODIL,
    "iris": faces.IRIS,
    "pansy": faces.PANSY,
    "lily": stars.LILY,
    "water lily": rosettes.WATER_LILY,
    "orchid": faces.ORCHID,
    "hibiscus": cups.HIBISCUS,
    "bluebell": bells.BLUEBELL,
    "snowdrop": bells.SNOWDROP,
    "anthurium": faces.ANTHURIUM,
}

KINDS: tuple[str, ...] = tuple(_KINDS)


def paint(kind: str, seed: int, size: int = 96) -> Image.Image:
    """Paint one picture of a kind of flower, as an RGB image of `size` by `size` pixels.

    The same kind, seed and size always give the same pixels. Another seed changes the colours, the pose, the number of
    flowers (one to three), the greenery, the scene and the light. Raises ValueError for a kind that is not in `KINDS`
    and for a size below 16 pixels.
    """
    if kind not in _KINDS:
        raise ValueError(f"unknown kind of flower {kind!r}; the painter knows: {', '.join(KINDS)}")
    if size < MIN_SIZE:
        raise ValueError(f"a picture needs at least {MIN_SIZE} pixels a side, not {size}")
    rng = random.Random(f"{kind}:{seed}")
    plan = _KINDS[kind]
    canvas = SCENES[rng.choice(plan.scenes)](rng, max(size * _OVERSAMPLING, _MIN_CANVAS))
    spots = plan.spots(rng)
    for spot in spots:
        plan.greenery(canvas, spot)
    for spot in spots:
        plan.flower(canvas, spot)
    return illuminate(canvas.picture.resize((size, size), Image.Resampling.LANCZOS), rng, canvas.light)


def contact_sheet(per_kind: int = 8, size: int = 96, seed: int = 0) -> Image.Image:
    """Lay out a labelled grid of pictures, one row a kind, `per_kind` pictures of `size` pixels in each row.

    The pictures are those of the seeds `seed`, `seed + 1` and so on. Raises ValueError where `per_kind` is below 1 or
    `size` below 16.
    """
    if per_kind < 1:
        raise ValueError(f"a contact sheet needs at least one picture a kind, not {per_kind}")
    margin = 84
    sheet = Image.new("RGB", (margin + per_kind * size, len(KINDS) * size), WHITE)
    label = ImageDraw.Draw(sheet)
    for row, kind in enumerate(KINDS):
        label.text((6, row * size + size // 2 - 6), kind, fill=BLACK)
        for column in range(per_kind):
            sheet.paste(paint(kind, seed + column, size), (margin + column * size, row * size))
    return sheet
