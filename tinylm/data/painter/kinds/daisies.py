"""Flowers of many narrow rays round a button: the daisy, the dandelion and the sunflower."""

import math
from dataclasses import replace

from tinylm.data.painter.canvas import WHITE, Canvas, mix, polar, toned, varied
from tinylm.data.painter.greenery import leaf, leafy_stalk, stalk
from tinylm.data.painter.kind import Kind, Spot
from tinylm.data.painter.petals import GOLDEN_ANGLE, Blade, Tint, dome, ring, seeds, shadow, stamens


def _daisy(canvas: Canvas, spot: Spot) -> None:
    """Narrow white rays round a yellow button."""
    rng = canvas.rng
    white, shade, gold = spot.palette
    frame = spot.frame(canvas, rng.uniform(-40, 40), rng.choice((1, rng.uniform(0.55, 1))))
    shadow(canvas, frame, 0.9)
    count = rng.randint(11, 15)
    blade = Blade(1, 0.125, 0.5, 0.24, rng.uniform(-0.06, 0.06), steps=8)
    ring(canvas, frame, count, blade, Tint(toned(white, 0.87), toned(shade, 0.9), 0.1, layers=4), rng.uniform(0, 30), 5)
    ring(canvas, frame, count, blade, Tint(white, shade, 0.05, 2, toned(shade, 0.8), 90, 4), rng.uniform(0, 30), 5)
    dome(canvas, frame, 0.29, toned(gold, 0.78), toned(gold, 1.12))
    seeds(canvas, frame, 46, 0.26, 0.021, toned(gold, 0.84), toned(gold, 1.1))


DAISY = Kind(
    _daisy,
    leafy_stalk(Blade(0.5, 0.14, 1.0, 0.35), 2),
    ("shade", "shade", "garden", "meadow", "sky", "dark", "wall"),
    (
        ((252, 252, 252), (226, 230, 240), (244, 190, 30)),
        ((252, 252, 252), (226, 230, 240), (236, 166, 24)),
        ((248, 248, 244), (214, 222, 226), (226, 196, 50)),
    ),
)


def _dandelion(canvas: Canvas, spot: Spot) -> None:
    """A dense yellow mop of strap florets, or the white clock that it turns into."""
    if spot.palette[0] == WHITE:
        _dandelion_clock(canvas, spot)
        return
    rng = canvas.rng
    lemon, gold = spot.palette
    frame = spot.frame(canvas, rng.uniform(-20, 20), rng.choice((1, rng.uniform(0.6, 1))))
    shadow(canvas, frame, 0.95)
    for reach, count in ((1, 34), (0.86, 30), (0.7, 25), (0.52, 18), (0.34, 12)):
        inner = mix(gold, lemon, reach)
        tint = Tint(inner, toned(mix(gold, inner, 0.4), 0.86), 0.0, layers=3, edge=0.76)
        blade = Blade(reach, 0.062, 0.6, 0.12, rng.uniform(-0.05, 0.05), steps=6)
        ring(canvas, frame.moved(0, -0.04 * (1 - reach)), count, blade, tint, rng.uniform(0, 30), 6)
    stamens(canvas, frame.moved(0, -0.04), 18, 0.2, toned(gold, 0.75), toned(gold, 0.95), 0.02)


def _dandelion_clock(canvas: Canvas, spot: Spot) -> None:
    """A globe of parachutes round a brown core."""
    rng = canvas.rng
    frame = spot.frame(canvas)
    for radius in (0.98, 0.86, 0.7, 0.5):
        canvas.disc(frame, (0, 0), radius, (236, 236, 230), 42)
    for i in range(74):
        reach = 0.93 * math.sqrt((i + 4) / 78)
        angle = i * GOLDEN_ANGLE
        end = polar(angle, reach)
        canvas.line(frame, (polar(angle, 0.12), end), (206, 204, 192), 0.003, 130)
        for turn in (-1.2, -0.6, 0, 0.6, 1.2):
            canvas.line(frame, (end, polar(angle + turn, 0.15, end)), WHITE, 0.003, 150)
    dome(canvas, frame, 0.16, (96, 74, 52), (160, 134, 96))
    seeds(canvas, frame, 16, 0.14, 0.025, (120, 92, 60), (84, 62, 44))
    canvas.disc(frame, (-0.3, -0.35), 0.4, WHITE, rng.randint(10, 30))


def _dandelion_leaves(canvas: Canvas, spot: Spot) -> None:
    """A hollow pale stem over jagged leaves."""
    rng = canvas.rng
    for _ in range(4):
        blade = Blade(rng.uniform(0.4, 0.65), 0.075, 0.9, 0.5, rng.uniform(-0.1, 0.1), teeth=0.6, steps=13)
        foot = (spot.x + rng.uniform(-0.2, 0.2), 1.04)
        leaf(canvas, foot, rng.uniform(-65, 65), blade, varied(rng, (84, 132, 52)))
    stalk(canvas, spot, 0.055, varied(rng, (158, 162, 96)))


DANDELION = Kind(
    _dandelion,
    _dandelion_leaves,
    ("meadow", "garden", "garden", "shade", "shade", "soil"),
    (
        ((252, 226, 30), (246, 188, 10)),
        ((254, 232, 44), (248, 206, 16)),
        ((250, 210, 24), (240, 164, 8)),
        (WHITE, WHITE),
    ),
    flat=True,
)


def _sunflower(canvas: Canvas, spot: Spot) -> None:
    """Two rows of pointed golden rays round a broad seed disc."""
    rng = canvas.rng
    gold, amber, outer, inner = spot.palette
    frame = spot.frame(canvas, rng.uniform(-20, 20), rng.choice((1, rng.uniform(0.75, 1))))
    shadow(canvas, frame, 0.95)
    count = rng.randint(15, 19)
    blade = Blade(1, 0.15, 0.75, 0.72, rng.uniform(-0.08, 0.08), steps=9)
    ring(
        canvas, frame, count, blade, Tint(toned(gold, 0.86), toned(amber, 0.8), 0.3, 1, layers=4), rng.uniform(0, 24), 5
    )
    blade = replace(blade, length=0.93)
    ring(canvas, frame, count, blade, Tint(gold, amber, 0.3, 2, toned(amber, 0.7), 70, 5), rng.uniform(0, 24), 5)
    disc = rng.uniform(0.4, 0.5)
    dome(canvas, frame, disc, toned(outer, 0.8), mix(outer, inner, 0.8))
    seeds(canvas, frame, 105, disc * 0.96, disc * 0.058, inner, toned(outer, 1.05))


SUNFLOWER = Kind(
    _sunflower,
    leafy_stalk(Blade(0.85, 0.36, 0.4, 0.8), 3, 0.07),
    ("sky", "sky", "garden", "garden", "shade", "meadow", "dark"),
    (
        ((252, 204, 30), (240, 160, 14), (88, 52, 26), (52, 30, 20)),
        ((252, 204, 30), (240, 160, 14), (74, 42, 24), (40, 26, 18)),
        ((250, 190, 24), (228, 130, 14), (96, 54, 26), (112, 116, 50)),
        ((254, 218, 60), (246, 184, 30), (120, 84, 34), (92, 74, 34)),
    ),
    radius=0.44,
    crowd=(1, 1, 1, 1, 2),
)
