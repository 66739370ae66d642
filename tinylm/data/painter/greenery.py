"""The green parts: stems and leaves, and the ways that they grow behind a flower."""

import math
from collections.abc import Sequence
from dataclasses import replace

from tinylm.data.painter.canvas import Canvas, Colour, Point, curve, mix, polar, ribbon, taper, toned, varied
from tinylm.data.painter.kind import Draw, Spot
from tinylm.data.painter.petals import Blade, Tint, draw_blade


def stem(canvas: Canvas, path: Sequence[Point], width: float, colour: Colour | None = None) -> None:
    """Draw a stem along scene points: a dark side and a lit side."""
    colour = colour or canvas.green
    canvas.fill(canvas.scene, ribbon(path, taper(width, width)), toned(colour, 0.68))
    lit = [(x - width * 0.25, y) for x, y in path]
    canvas.fill(canvas.scene, ribbon(lit, taper(width * 0.6, width * 0.6)), colour)
    canvas.fill(canvas.scene, ribbon(lit, taper(width * 0.2, width * 0.2)), toned(colour, 1.18), 150)


def strap(canvas: Canvas, path: Sequence[Point], width: float, colour: Colour) -> None:
    """Draw a long narrow leaf along scene points, pointed at its end, with a lit midrib."""

    def half_width(share: float) -> float:
        return width * (0.55 + 0.9 * share) * (1 - share) ** 0.5 * 1.1

    canvas.fill(canvas.scene, ribbon(path, half_width), toned(colour, 0.72))
    canvas.fill(canvas.scene, ribbon(path, lambda share: half_width(share) * 0.72), colour)
    canvas.fill(canvas.scene, ribbon(path, lambda share: half_width(share) * 0.14), toned(colour, 1.25), 170)


def leaf(canvas: Canvas, foot: Point, degrees: float, blade: Blade, colour: Colour) -> None:
    """Draw a broad leaf at a scene point: darker towards the edge, with a midrib and side veins."""
    frame = canvas.scene.moved(*foot).turned(degrees)
    tint = Tint(toned(colour, 0.78), toned(colour, 1.06), 0.55, layers=4, edge=0.8)
    draw_blade(canvas, frame, blade, tint)
    pale = toned(colour, 1.28)
    canvas.line(
        frame,
        ((0, 0), (blade.bend * 0.25, -blade.length / 2), (blade.bend * 0.9, -blade.length * 0.94)),
        pale,
        0.005,
        170,
    )
    for share in (0.25, 0.42, 0.59, 0.74):
        rib = blade.bend * share * share, -blade.length * share
        for side in (-1, 1):
            tip = (rib[0] + side * blade.width * 0.72 * (1.15 - share), rib[1] - blade.length * 0.13)
            canvas.line(frame, (rib, tip), pale, 0.003, 90)


def lily_pad(canvas: Canvas, centre: Point, radius: float) -> None:
    """Draw a round floating leaf with its notch, lying flat on the water."""
    rng = canvas.rng
    green = varied(rng, rng.choice(((88, 138, 66), (66, 114, 58), (110, 150, 76), (76, 116, 84))))
    frame = canvas.scene.moved(*centre).scaled(radius, radius * 0.45)
    start = rng.uniform(0, 2 * math.pi)
    rim = [polar(start + a / 20 * 5.9, 1) for a in range(21)]
    canvas.disc(frame.moved(0.04, 0.16), (0, 0), 1.04, (8, 20, 24), 90)
    canvas.glow(frame, [*rim, (0.0, 0.0)], (0, 0), toned(green, 0.8), toned(green, 1.1), 5)
    for x, y in rim[2:-1:3]:
        canvas.line(frame, ((0, 0), (x * 0.9, y * 0.9)), toned(green, 1.3), 0.003, 110)


def stalk(canvas: Canvas, spot: Spot, width: float = 0.05, colour: Colour | None = None) -> list[Point]:
    """Draw a stem from the flower to below the picture, slightly bent; answer its points, top first."""
    foot = spot.x + canvas.rng.uniform(-0.14, 0.14)
    path = curve((spot.x, spot.y), (spot.x + canvas.rng.uniform(-0.05, 0.05), (spot.y + 1) / 2), (foot, 1.05), 8)
    stem(canvas, path, spot.r * width, colour)
    return path


def leafy_stalk(blade: Blade, count: int, width: float = 0.05, lean: float = 55) -> Draw:
    """Greenery of a stem with leaves of the given shape (in units of the flower's radius) on both sides."""

    def grow(canvas: Canvas, spot: Spot) -> None:
        path = stalk(canvas, spot, width)
        rng = canvas.rng
        for i in range(count):
            side = 1 if i % 2 else -1
            length = spot.r * blade.length * rng.uniform(0.8, 1.15)
            scaled = replace(blade, length=length, width=spot.r * blade.width, bend=side * length * 0.15)
            leaf_at = path[min(2 + i, len(path) - 1)]
            leaf(canvas, leaf_at, side * rng.uniform(lean - 20, lean + 25), scaled, varied(rng, canvas.green, 10))

    return grow


def bushy(blade: Blade, count: int) -> Draw:
    """Greenery of leaves that stick out from behind the flower on all sides."""

    def grow(canvas: Canvas, spot: Spot) -> None:
        stalk(canvas, spot)
        rng = canvas.rng
        start = rng.uniform(0, 360)
        for i in range(count):
            degrees = start + 360 * i / count + rng.uniform(-22, 22)
            length = spot.r * blade.length * rng.uniform(0.85, 1.15)
            scaled = replace(blade, length=length, width=spot.r * blade.width, bend=length * rng.uniform(-0.15, 0.15))
            green = toned(varied(rng, canvas.green, 12), rng.uniform(0.7, 1.0))
            leaf(canvas, spot.beside(degrees, 0.35), degrees, scaled, green)

    return grow


def strappy(count: int, width: float, tint: Colour | None = None, rise: float = 0.1) -> Draw:
    """Greenery of a bare stem among long narrow leaves that rise from the ground."""

    def grow(canvas: Canvas, spot: Spot) -> None:
        rng = canvas.rng
        green = mix(canvas.green, tint, 0.6) if tint else canvas.green
        for _ in range(count):
            foot, lean = spot.x + rng.uniform(-0.22, 0.22), rng.uniform(-0.3, 0.3)
            top = rng.uniform(spot.y - rise, spot.y + 0.45)
            path = curve((foot, 1.05), (foot + lean * 0.2, (1 + top) / 2), (foot + lean, top), 8)
            strap(canvas, path, spot.r * width, varied(rng, green, 12))
        stalk(canvas, spot, 0.06, green)

    return grow
