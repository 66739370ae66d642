"""The parts of flowers: petals and rings of petals, domes, seeds, stamens, freckles and a flower's shadow."""

import math
import random
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from tinylm.data.painter.canvas import BLACK, Canvas, Colour, Frame, Point, mix, polar, toned

GOLDEN_ANGLE = math.radians(137.508)


@lru_cache(maxsize=128)
def _half_blade(base: float, tip: float, steps: int) -> tuple[Point, ...]:
    """Half-widths along a blade, as (share of the length, half-width), the widest being 1.

    The shape is t^base (1 - t)^tip: small exponents make a broad end, exponents near 1 a pointed one.
    """
    peak = base / (base + tip)
    highest = peak**base * (1 - peak) ** tip
    shares = [(1 - math.cos(math.pi * i / steps)) / 2 for i in range(1, steps)]
    return tuple((t, t**base * (1 - t) ** tip / highest) for t in shares)


@dataclass(frozen=True)
class Blade:
    """The shape of a petal or leaf: from the origin up to (0, -length), `width` being the half-width at the widest."""

    length: float
    width: float
    base: float = 0.5
    tip: float = 0.5
    bend: float = 0.0  # sideways drift of the tip
    ruffle: float = 0.0  # random waviness of the edge, as a share of the width
    teeth: float = 0.0  # regular notches, as a share of the width
    steps: int = 11

    def outline(self, rng: random.Random) -> list[Point]:
        """The closed outline, up the left side and down the right."""

        def sway(t: float) -> float:
            return rng.uniform(-self.ruffle * t, self.ruffle * t) if self.ruffle else 0.0

        left: list[Point] = [(0.0, 0.0)]
        right: list[Point] = []
        for index, (t, half) in enumerate(_half_blade(self.base, self.tip, self.steps)):
            middle, y = self.bend * t * t, -self.length * t
            notch = 1 - self.teeth * (index % 2)
            y -= self.length * sway(t) * 0.6
            left.append((middle - self.width * half * (notch + sway(t)), y))
            right.append((middle + self.width * half * (notch + sway(t)), y))
        left.append((self.bend, -self.length))
        return left + right[::-1]


class Tint(NamedTuple):
    """How a petal is coloured: edge colour, inner colour, where the inner colour sits, and its veins."""

    rim: Colour
    heart: Colour
    anchor: float = 0.1  # share of the length
    veins: int = 0
    vein: Colour = BLACK
    vein_alpha: int = 60
    layers: int = 6
    edge: float = 0.8  # brightness of the thin line round the petal, against the rim


def draw_blade(canvas: Canvas, frame: Frame, blade: Blade, tint: Tint) -> None:
    """Draw one petal or leaf: a thin darker edge, a soft gradient, then veins that fan out from the base."""
    outline = blade.outline(canvas.rng)
    inside = frame
    if tint.edge < 1:
        canvas.fill(frame, outline, toned(tint.rim, tint.edge))
        inside = frame.moved(0, -0.02 * blade.length).scaled(0.94, 0.965)
    middle = blade.bend * tint.anchor * tint.anchor
    canvas.glow(inside, outline, (middle, -tint.anchor * blade.length), tint.rim, tint.heart, tint.layers)
    for i in range(tint.veins):
        spread = (i + 0.5) / tint.veins * 2 - 1 + canvas.rng.uniform(-0.08, 0.08)
        x, top = spread * blade.width, -blade.length * (0.86 - 0.2 * abs(spread))
        path = ((0.0, -0.06 * blade.length), (x * 0.62, top * 0.5), (x * 0.8 + blade.bend * 0.7, top))
        canvas.line(frame, path, tint.vein, 0.003, tint.vein_alpha)


def ring(
    canvas: Canvas, frame: Frame, count: int, blade: Blade, tint: Tint, start: float = 0, unruly: float = 3
) -> None:
    """Draw petals all round the origin, each a little different and brighter where it faces the light."""
    rng = canvas.rng
    for i in range(count):
        degrees = start + 360 * i / count + rng.uniform(-unruly, unruly)
        lit = 0.97 + 0.07 * math.cos(math.radians(degrees - canvas.light)) + rng.uniform(-0.03, 0.03)
        shaded = tint._replace(rim=toned(tint.rim, lit), heart=toned(tint.heart, lit))
        grown = replace(
            blade, length=blade.length * rng.uniform(0.93, 1.04), width=blade.width * rng.uniform(0.93, 1.06)
        )
        draw_blade(canvas, frame.turned(degrees), grown, shaded)


def dome(canvas: Canvas, frame: Frame, radius: float, rim: Colour, heart: Colour) -> None:
    """Draw a rounded flower centre, lit from above, with a soft shadow round it."""
    canvas.disc(frame, (0, 0.03), radius * 1.14, toned(rim, 0.45), 70)
    for layer in range(5):
        share = layer / 4
        canvas.disc(
            frame, (-0.1 * radius * share, -0.16 * radius * share), radius * (1 - 0.8 * share), mix(rim, heart, share)
        )


def seeds(canvas: Canvas, frame: Frame, count: int, radius: float, size: float, inner: Colour, outer: Colour) -> None:
    """Draw florets or seeds in the spiral that sunflowers make: one golden angle a seed."""
    for i in range(count):
        share = math.sqrt((i + 0.5) / count)
        colour = toned(mix(inner, outer, share), canvas.rng.uniform(0.82, 1.12))
        canvas.disc(frame, polar(i * GOLDEN_ANGLE, radius * share), size, colour)


def stamens(
    canvas: Canvas, frame: Frame, count: int, reach: float, thread: Colour, anther: Colour, size: float
) -> None:
    """Draw threads from the centre, each with a dot of pollen at its end."""
    for i in range(count):
        angle = 2 * math.pi * (i + canvas.rng.uniform(-0.3, 0.3)) / count
        end = polar(angle, reach * canvas.rng.uniform(0.65, 1.05))
        canvas.line(frame, ((0, 0), end), thread, 0.004)
        canvas.disc(frame, end, size, toned(anther, canvas.rng.uniform(0.8, 1.15)))


def freckles(canvas: Canvas, frame: Frame, blade: Blade, colour: Colour) -> None:
    """Dot the lower two thirds of a tepal."""
    rng = canvas.rng
    for _ in range(11):
        t = rng.uniform(0.18, 0.66)
        x = blade.bend * t * t + rng.uniform(-0.7, 0.7) * blade.width
        canvas.disc(frame, (x, -t * blade.length), rng.uniform(0.014, 0.026), colour)


def shadow(canvas: Canvas, frame: Frame, radius: float) -> None:
    """Darken the ground behind a flower so that it stands out."""
    for layer in range(4):
        canvas.disc(frame, (0.06, 0.1), radius * (1.12 - 0.1 * layer), (6, 14, 6), 22)
