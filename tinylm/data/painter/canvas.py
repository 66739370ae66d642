"""What every picture is drawn with: colours, coordinates, curves, and a canvas that fills shapes.

Coordinates: a `Frame` maps local units to pixels. The scene's frame is the unit square, y down; a flower's frame has
the flower's centre at the origin, its radius as unit, and petals that point up (negative y) before they are turned.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw

Point = tuple[float, float]
Colour = tuple[int, int, int]

WHITE: Colour = (252, 251, 246)
BLACK: Colour = (14, 14, 16)


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """Blend two colours; share 0 is the first, 1 the second."""
    return (
        int(first[0] + (second[0] - first[0]) * share),
        int(first[1] + (second[1] - first[1]) * share),
        int(first[2] + (second[2] - first[2]) * share),
    )


def toned(colour: Colour, factor: float) -> Colour:
    """Darken (factor below 1) or brighten a colour; yellows and reds stay warm in shadow instead of turning olive."""
    if factor > 1:
        return mix(colour, WHITE, min(factor - 1, 1))
    red, green, blue = colour
    if red > green and red > blue:
        saturation = 1 - min(green, blue) / red
        return (
            int(red * factor ** (1 - 0.35 * saturation)),
            int(green * factor ** (1 + 0.2 * saturation)),
            int(blue * factor),
        )
    return (int(red * factor), int(green * factor), int(blue * factor))


def varied(rng: random.Random, colour: Colour, amount: int = 14) -> Colour:
    """A colour near the given one: each channel moves by up to `amount`."""
    red, green, blue = (min(255, max(0, channel + rng.randint(-amount, amount))) for channel in colour)
    return (red, green, blue)


class Frame(NamedTuple):
    """An affine map from local units to canvas pixels: x' = a x + c y + e, y' = b x + d y + f."""

    a: float
    b: float
    c: float
    d: float
    e: float
    f: float

    def place(self, points: Sequence[Point]) -> list[Point]:
        """Map local points to pixels."""
        a, b, c, d, e, f = self
        return [(a * x + c * y + e, b * x + d * y + f) for x, y in points]

    def moved(self, dx: float, dy: float) -> "Frame":
        """The frame with its origin at local (dx, dy)."""
        a, b, c, d, e, f = self
        return Frame(a, b, c, d, a * dx + c * dy + e, b * dx + d * dy + f)

    def scaled(self, sx: float, sy: float | None = None) -> "Frame":
        """The frame with its units stretched; one factor serves both axes when the second is left out."""
        sy = sx if sy is None else sy
        return Frame(self.a * sx, self.b * sx, self.c * sy, self.d * sy, self.e, self.f)

    def turned(self, degrees: float) -> "Frame":
        """The frame turned clockwise, as seen on the picture."""
        a, b, c, d, e, f = self
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        return Frame(a * cos + c * sin, b * cos + d * sin, c * cos - a * sin, d * cos - b * sin, e, f)


def polar(angle: float, reach: float, centre: Point = (0.0, 0.0)) -> Point:
    """The point at a distance from a centre; the angle is in radians, clockwise from the right."""
    return (centre[0] + reach * math.cos(angle), centre[1] + reach * math.sin(angle))


def curve(start: Point, control: Point, end: Point, steps: int = 10) -> list[Point]:
    """Points along a quadratic Bezier curve."""
    points = []
    for i in range(steps + 1):
        t = i / steps
        u = 1 - t
        points.append(
            (
                u * u * start[0] + 2 * u * t * control[0] + t * t * end[0],
                u * u * start[1] + 2 * u * t * control[1] + t * t * end[1],
            )
        )
    return points


def ribbon(path: Sequence[Point], widths: Callable[[float], float]) -> list[Point]:
    """The outline of a band along a path; `widths` gives the half-width at each share of the way."""
    left, right = [], []
    last = len(path) - 1
    for i, (x, y) in enumerate(path):
        before, after = path[max(i - 1, 0)], path[min(i + 1, last)]
        dx, dy = after[0] - before[0], after[1] - before[1]
        reach = widths(i / last) / (math.hypot(dx, dy) or 1.0)
        left.append((x - dy * reach, y + dx * reach))
        right.append((x + dy * reach, y - dx * reach))
    return left + right[::-1]


def taper(start: float, end: float) -> Callable[[float], float]:
    """Half-widths of a ribbon that go evenly from one value to another."""
    return lambda share: start + (end - start) * share


class Canvas:
    """A picture being drawn, its random numbers and its light; fills may be translucent."""

    def __init__(self, picture: Image.Image, rng: random.Random) -> None:
        self.picture = picture
        self.rng = rng
        self.side = picture.width
        self.draw = ImageDraw.Draw(picture, "RGBA")
        self.scene = Frame(self.side, 0, 0, self.side, 0, 0)
        self.light = rng.uniform(-60, 60)  # degrees from straight above
        self.green = varied(rng, rng.choice(((74, 128, 48), (92, 150, 60), (60, 112, 52), (112, 156, 66))), 10)

    def fill(self, frame: Frame, points: Sequence[Point], colour: Colour, alpha: int = 255) -> None:
        """Fill a polygon given in local units."""
        self.draw.polygon(frame.place(points), (*colour, alpha))

    def line(
        self, frame: Frame, points: Sequence[Point], colour: Colour, width: float = 0.004, alpha: int = 255
    ) -> None:
        """Draw a line through local points; the width is a share of the picture's side."""
        self.draw.line(frame.place(points), (*colour, alpha), max(1, round(width * self.side)))

    def disc(self, frame: Frame, centre: Point, radius: float, colour: Colour, alpha: int = 255) -> None:
        """Fill a disc (an ellipse in a foreshortened frame that is not turned)."""
        ((x, y),) = frame.place((centre,))
        rx = radius * math.hypot(frame.a, frame.b)
        ry = radius * math.hypot(frame.c, frame.d)
        self.draw.ellipse((x - rx, y - ry, x + rx, y + ry), (*colour, alpha))

    def glow(
        self, frame: Frame, outline: Sequence[Point], centre: Point, rim: Colour, heart: Colour, layers: int
    ) -> None:
        """Fill an outline with a soft gradient, from `rim` at its edge to `heart` at `centre`."""
        ((cx, cy),) = frame.place((centre,))
        arms = [(x - cx, y - cy) for x, y in frame.place(outline)]
        self.draw.polygon([(cx + x, cy + y) for x, y in arms], (*rim, 255))
        for layer in range(1, layers):
            reach = 1 - layer / layers
            self.draw.polygon(
                [(cx + x * reach, cy + y * reach) for x, y in arms], (*mix(rim, heart, layer / (layers - 1)), 255)
            )
