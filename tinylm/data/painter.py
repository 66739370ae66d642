"""The flower painter: seeded storybook pictures of flowers, drawn with Pillow alone.

Each kind is one entry of a table (which scenes it grows in, how large it stands, which two functions draw its greenery
and its flower), and the flowers share the same parts: petals, rings of petals, ribbons for stems and strap leaves,
hearts of seeds or stamens. Pictures are drawn larger than asked for and shrunk, which softens every edge.

Coordinates: a `Frame` maps local units to pixels. The scene's frame is the unit square, y down; a flower's frame has
the flower's centre at the origin, its radius as unit, and petals that point up (negative y) before they are turned.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFilter

Point = tuple[float, float]
Colour = tuple[int, int, int]

MIN_SIZE = 16
_OVERSAMPLING = 3
_MIN_CANVAS = 160  # a finer canvas for small pictures: below this, stems would be thinner than a pixel
_GOLDEN_ANGLE = math.radians(137.508)

_WHITE: Colour = (252, 251, 246)
_BLACK: Colour = (14, 14, 16)
_SUN: Colour = (250, 205, 40)


# ---------------------------------------------------------------------------------------------------------------------
# Colours


def _mix(first: Colour, second: Colour, share: float) -> Colour:
    """Blend two colours; share 0 is the first, 1 the second."""
    return (
        int(first[0] + (second[0] - first[0]) * share),
        int(first[1] + (second[1] - first[1]) * share),
        int(first[2] + (second[2] - first[2]) * share),
    )


def _lit(colour: Colour, factor: float) -> Colour:
    """Darken (factor below 1) or brighten a colour; yellows and reds stay warm in shadow instead of turning olive."""
    if factor > 1:
        return _mix(colour, _WHITE, min(factor - 1, 1))
    red, green, blue = colour
    if red > green and red > blue:
        saturation = 1 - min(green, blue) / red
        return (
            int(red * factor ** (1 - 0.35 * saturation)),
            int(green * factor ** (1 + 0.2 * saturation)),
            int(blue * factor),
        )
    return (int(red * factor), int(green * factor), int(blue * factor))


def _varied(rng: random.Random, colour: Colour, amount: int = 14) -> Colour:
    """A colour near the given one: each channel moves by up to `amount`."""
    red, green, blue = (min(255, max(0, channel + rng.randint(-amount, amount))) for channel in colour)
    return (red, green, blue)


# ---------------------------------------------------------------------------------------------------------------------
# Geometry


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
        left: list[Point] = [(0.0, 0.0)]
        right: list[Point] = []
        for index, (t, half) in enumerate(_half_blade(self.base, self.tip, self.steps)):
            middle, y = self.bend * t * t, -self.length * t
            notch = 1 - self.teeth * (index % 2)
            if self.ruffle:
                wave = self.ruffle * t
                y -= self.length * rng.uniform(-wave, wave) * 0.6
                left.append((middle - self.width * half * (notch + rng.uniform(-wave, wave)), y))
                right.append((middle + self.width * half * (notch + rng.uniform(-wave, wave)), y))
            else:
                left.append((middle - self.width * half * notch, y))
                right.append((middle + self.width * half * notch, y))
        left.append((self.bend, -self.length))
        return left + right[::-1]


def _curve(start: Point, control: Point, end: Point, steps: int = 10) -> list[Point]:
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


def _ribbon(path: Sequence[Point], widths: Callable[[float], float]) -> list[Point]:
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


def _taper(start: float, end: float) -> Callable[[float], float]:
    """Half-widths of a ribbon that go evenly from one value to another."""
    return lambda share: start + (end - start) * share


def _swelling(width: float) -> Callable[[float], float]:
    """Half-widths of a ribbon that is widest in the middle and nearly closes at both ends."""
    return lambda share: width * math.sin(math.pi * (0.1 + 0.88 * share)) ** 0.8


def _heart(steps: int = 26) -> list[Point]:
    """The outline of a heart, notch up, point down, about two units wide."""
    points = []
    for i in range(steps):
        t = 2 * math.pi * i / steps
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((math.sin(t) ** 3, -y / 16))
    return points


# ---------------------------------------------------------------------------------------------------------------------
# The canvas and the parts that the kinds share


class Canvas:
    """A picture being drawn, its random numbers and its light; fills may be translucent."""

    def __init__(self, picture: Image.Image, rng: random.Random) -> None:
        self.picture = picture
        self.rng = rng
        self.side = picture.width
        self.draw = ImageDraw.Draw(picture, "RGBA")
        self.scene = Frame(self.side, 0, 0, self.side, 0, 0)
        self.light = rng.uniform(-60, 60)  # degrees from straight above
        self.green = _varied(rng, rng.choice(((74, 128, 48), (92, 150, 60), (60, 112, 52), (112, 156, 66))), 10)

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
                [(cx + x * reach, cy + y * reach) for x, y in arms], (*_mix(rim, heart, layer / (layers - 1)), 255)
            )


class Tint(NamedTuple):
    """How a petal is coloured: edge colour, inner colour, where the inner colour sits, and its veins."""

    rim: Colour
    heart: Colour
    anchor: float = 0.1  # share of the length
    veins: int = 0
    vein: Colour = _BLACK
    vein_alpha: int = 60
    layers: int = 6
    edge: float = 0.8  # brightness of the thin line round the petal, against the rim


def _draw_blade(canvas: Canvas, frame: Frame, blade: Blade, tint: Tint) -> None:
    """Draw one petal or leaf: a thin darker edge, a soft gradient, then veins that fan out from the base."""
    outline = blade.outline(canvas.rng)
    if tint.edge < 1:
        canvas.fill(frame, outline, _lit(tint.rim, tint.edge))
        frame_inside = frame.moved(0, -0.02 * blade.length).scaled(0.94, 0.965)
    else:
        frame_inside = frame
    middle = blade.bend * tint.anchor * tint.anchor
    canvas.glow(frame_inside, outline, (middle, -tint.anchor * blade.length), tint.rim, tint.heart, tint.layers)
    for i in range(tint.veins):
        spread = (i + 0.5) / tint.veins * 2 - 1 + canvas.rng.uniform(-0.08, 0.08)
        x, top = spread * blade.width, -blade.length * (0.86 - 0.2 * abs(spread))
        path = ((0.0, -0.06 * blade.length), (x * 0.62, top * 0.5), (x * 0.8 + blade.bend * 0.7, top))
        canvas.line(frame, path, tint.vein, 0.003, tint.vein_alpha)


def _ring(
    canvas: Canvas, frame: Frame, count: int, blade: Blade, tint: Tint, start: float = 0, unruly: float = 3
) -> None:
    """Draw petals all round the origin, each a little different and brighter where it faces the light."""
    rng = canvas.rng
    for i in range(count):
        degrees = start + 360 * i / count + rng.uniform(-unruly, unruly)
        lit = 0.97 + 0.07 * math.cos(math.radians(degrees - canvas.light)) + rng.uniform(-0.03, 0.03)
        shaded = tint._replace(rim=_lit(tint.rim, lit), heart=_lit(tint.heart, lit))
        grown = replace(
            blade, length=blade.length * rng.uniform(0.93, 1.04), width=blade.width * rng.uniform(0.93, 1.06)
        )
        _draw_blade(canvas, frame.turned(degrees), grown, shaded)


def _dome(canvas: Canvas, frame: Frame, radius: float, rim: Colour, heart: Colour) -> None:
    """Draw a rounded flower centre, lit from above, with a soft shadow round it."""
    canvas.disc(frame, (0, 0.03), radius * 1.14, _lit(rim, 0.45), 70)
    for layer in range(5):
        share = layer / 4
        canvas.disc(
            frame, (-0.1 * radius * share, -0.16 * radius * share), radius * (1 - 0.8 * share), _mix(rim, heart, share)
        )


def _seeds(canvas: Canvas, frame: Frame, count: int, radius: float, size: float, inner: Colour, outer: Colour) -> None:
    """Draw florets or seeds in the spiral that sunflowers make: one golden angle a seed."""
    for i in range(count):
        share = math.sqrt((i + 0.5) / count)
        angle = i * _GOLDEN_ANGLE
        spot = (radius * share * math.cos(angle), radius * share * math.sin(angle))
        colour = _lit(_mix(inner, outer, share), canvas.rng.uniform(0.82, 1.12))
        canvas.disc(frame, spot, size, colour)


def _stamens(
    canvas: Canvas, frame: Frame, count: int, reach: float, thread: Colour, anther: Colour, size: float
) -> None:
    """Draw threads from the centre, each with a dot of pollen at its end."""
    for i in range(count):
        angle = 2 * math.pi * (i + canvas.rng.uniform(-0.3, 0.3)) / count
        length = reach * canvas.rng.uniform(0.65, 1.05)
        end = (length * math.cos(angle), length * math.sin(angle))
        canvas.line(frame, ((0, 0), end), thread, 0.004)
        canvas.disc(frame, end, size, _lit(anther, canvas.rng.uniform(0.8, 1.15)))


def _stem(canvas: Canvas, path: Sequence[Point], width: float, colour: Colour | None = None) -> None:
    """Draw a stem along scene points: a dark side and a lit side."""
    colour = colour or canvas.green
    canvas.fill(canvas.scene, _ribbon(path, _taper(width, width)), _lit(colour, 0.68))
    lit = [(x - width * 0.25, y) for x, y in path]
    canvas.fill(canvas.scene, _ribbon(lit, _taper(width * 0.6, width * 0.6)), colour)
    canvas.fill(canvas.scene, _ribbon(lit, _taper(width * 0.2, width * 0.2)), _lit(colour, 1.18), 150)


def _strap(canvas: Canvas, path: Sequence[Point], width: float, colour: Colour) -> None:
    """Draw a long narrow leaf along scene points, pointed at its end, with a lit midrib."""

    def half_width(share: float) -> float:
        return width * (0.55 + 0.9 * share) * (1 - share) ** 0.5 * 1.1

    canvas.fill(canvas.scene, _ribbon(path, half_width), _lit(colour, 0.72))
    canvas.fill(canvas.scene, _ribbon(path, lambda share: half_width(share) * 0.72), colour)
    canvas.fill(canvas.scene, _ribbon(path, lambda share: half_width(share) * 0.14), _lit(colour, 1.25), 170)


def _leaf(canvas: Canvas, spot: Point, degrees: float, blade: Blade, colour: Colour) -> None:
    """Draw a broad leaf at a scene point: darker towards the edge, with a midrib and side veins."""
    frame = canvas.scene.moved(*spot).turned(degrees)
    tint = Tint(_lit(colour, 0.78), _lit(colour, 1.06), 0.55, layers=4, edge=0.8)
    _draw_blade(canvas, frame, blade, tint)
    pale = _lit(colour, 1.28)
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


def _shadow(canvas: Canvas, frame: Frame, radius: float) -> None:
    """Darken the ground behind a flower so that it stands out."""
    for layer in range(4):
        canvas.disc(frame, (0.06, 0.1), radius * (1.12 - 0.1 * layer), (6, 14, 6), 22)


# ---------------------------------------------------------------------------------------------------------------------
# Scenes: what is behind the flower. Drawn on a few coarse cells and stretched, they look out of focus.


def _mist(rng: random.Random, side: int, colours: Sequence[Colour], cells: int, amount: int = 12) -> Image.Image:
    """A blurred mottle of the given colours."""
    coarse = Image.new("RGB", (cells, cells))
    coarse.putdata([_varied(rng, rng.choice(colours), amount) for _ in range(cells * cells)])
    # Blurred at a middle size first: stretching at once would show the cells as a chequerboard.
    middle = coarse.resize((cells * 5, cells * 5), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(3))
    return middle.resize((side, side), Image.Resampling.BICUBIC)


def _gradient(rng: random.Random, side: int, colours: Sequence[Colour], amount: int = 6) -> Image.Image:
    """Colours that melt into each other from top to bottom."""
    coarse = Image.new("RGB", (2, len(colours)))
    coarse.putdata([_varied(rng, colour, amount) for colour in colours for _ in range(2)])
    return coarse.resize((side, side), Image.Resampling.BICUBIC)


def _grass(canvas: Canvas, count: int, colour: Colour, low: float = 0.25, high: float = 0.8) -> None:
    """Draw thin blades of grass from the lower edge."""
    rng = canvas.rng
    for _ in range(count):
        x, height = rng.uniform(-0.05, 1.05), rng.uniform(low, high)
        lean = rng.uniform(-0.2, 0.2)
        path = _curve((x, 1.02), (x, 1 - height * 0.6), (x + lean, 1 - height), 5)
        width = rng.uniform(0.006, 0.014)
        shade = _lit(colour, rng.uniform(0.6, 1.2))
        canvas.fill(canvas.scene, _ribbon(path, _taper(width, 0)), shade, 190)


def _bokeh(canvas: Canvas, count: int, colours: Sequence[Colour]) -> None:
    """Draw soft discs of light, as a camera does with far-off highlights."""
    rng = canvas.rng
    for _ in range(count):
        spot, radius = (rng.random(), rng.random()), rng.uniform(0.03, 0.11)
        colour = _varied(rng, rng.choice(colours))
        canvas.disc(canvas.scene, spot, radius, colour, 26)
        canvas.disc(canvas.scene, spot, radius * 0.8, colour, 26)


def _scene_shade(rng: random.Random, side: int) -> Canvas:
    greens: tuple[Colour, ...] = ((20, 40, 18), (34, 60, 26), (14, 24, 14), (52, 78, 38), (26, 34, 20))
    canvas = Canvas(_mist(rng, side, greens, rng.randint(5, 9)), rng)
    _bokeh(canvas, rng.randint(0, 6), ((70, 110, 50), (110, 140, 80)))
    return canvas


def _scene_garden(rng: random.Random, side: int) -> Canvas:
    greens: tuple[Colour, ...] = ((70, 108, 46), (96, 134, 62), (54, 84, 40), (120, 150, 84), (84, 104, 56))
    canvas = Canvas(_mist(rng, side, greens, rng.randint(4, 9)), rng)
    _bokeh(canvas, rng.randint(2, 9), ((170, 200, 110), (220, 230, 170), (60, 90, 40)))
    return canvas


def _scene_meadow(rng: random.Random, side: int) -> Canvas:
    colours: tuple[Colour, ...] = ((150, 178, 96), (112, 152, 68), (82, 126, 52), (58, 96, 40))
    canvas = Canvas(_gradient(rng, side, colours, 14), rng)
    _grass(canvas, rng.randint(18, 34), (98, 146, 58), 0.2, 1.0)
    return canvas


def _scene_sky(rng: random.Random, side: int) -> Canvas:
    top, bottom = rng.choice(
        (((62, 122, 204), (172, 208, 238)), ((96, 150, 214), (222, 232, 240)), ((40, 84, 170), (110, 160, 218)))
    )
    canvas = Canvas(_gradient(rng, side, (top, _mix(top, bottom, 0.5), bottom)), rng)
    for _ in range(rng.randint(0, 4)):
        x, y, spread = rng.random(), rng.uniform(0.05, 0.7), rng.uniform(0.08, 0.18)
        for _ in range(6):
            puff = (x + rng.uniform(-1.6, 1.6) * spread, y + rng.uniform(-0.4, 0.4) * spread)
            canvas.disc(canvas.scene, puff, spread * rng.uniform(0.5, 1), _WHITE, 38)
    if rng.random() < 0.5:
        _grass(canvas, rng.randint(24, 36), canvas.green, 0.08, 0.35)
    return canvas


def _scene_soil(rng: random.Random, side: int) -> Canvas:
    browns: tuple[Colour, ...] = ((84, 62, 42), (60, 44, 32), (108, 84, 58), (44, 34, 26), (70, 76, 42))
    canvas = Canvas(_mist(rng, side, browns, rng.randint(9, 14)), rng)
    for _ in range(26):
        spot = (rng.random(), rng.random())
        canvas.disc(canvas.scene, spot, rng.uniform(0.006, 0.022), _varied(rng, (112, 90, 66), 30), 120)
    _grass(canvas, rng.randint(6, 16), canvas.green, 0.15, 0.5)
    return canvas


def _scene_paper(rng: random.Random, side: int) -> Canvas:
    paper = rng.choice(((250, 247, 238), (244, 240, 226), (252, 252, 252), (238, 240, 232)))
    return Canvas(_mist(rng, side, (paper,), 6, 4), rng)


def _scene_wall(rng: random.Random, side: int) -> Canvas:
    wall = rng.choice(((206, 186, 160), (178, 186, 190), (196, 170, 150), (150, 160, 150), (120, 96, 84)))
    return Canvas(_gradient(rng, side, (_lit(wall, 1.2), wall, _lit(wall, 0.7)), 10), rng)


def _scene_dark(rng: random.Random, side: int) -> Canvas:
    return Canvas(_mist(rng, side, ((8, 10, 8), (16, 22, 14), (24, 34, 20), (12, 12, 16)), 6, 5), rng)


def _scene_snow(rng: random.Random, side: int) -> Canvas:
    colours: tuple[Colour, ...] = ((70, 84, 84), (104, 118, 112), (190, 202, 212), (226, 234, 242))
    return Canvas(_gradient(rng, side, colours, 10), rng)


def _scene_pond(rng: random.Random, side: int) -> Canvas:
    deep = rng.choice(((28, 52, 58), (40, 72, 92), (30, 50, 36), (64, 98, 118)))
    canvas = Canvas(_gradient(rng, side, (_lit(deep, 1.16), deep, _lit(deep, 0.66)), 8), rng)
    for _ in range(rng.randint(8, 16)):
        x, y, reach = rng.random(), rng.random(), rng.uniform(0.05, 0.2)
        ripple = _curve((x - reach, y), (x, y + 0.02), (x + reach, y), 6)
        canvas.line(canvas.scene, ripple, _lit(deep, 1.35), 0.006, 90)
    for _ in range(rng.randint(2, 4)):
        _lily_pad(
            canvas,
            (rng.uniform(0, 1), rng.choice((rng.uniform(0.05, 0.4), rng.uniform(0.6, 1)))),
            rng.uniform(0.16, 0.3),
        )
    return canvas


def _lily_pad(canvas: Canvas, centre: Point, radius: float) -> None:
    """Draw a round floating leaf with its notch, lying flat on the water."""
    rng = canvas.rng
    green = _varied(rng, rng.choice(((88, 138, 66), (66, 114, 58), (110, 150, 76), (76, 116, 84))))
    frame = canvas.scene.moved(*centre).scaled(radius, radius * 0.45)
    start = rng.uniform(0, 2 * math.pi)
    rim = [(math.cos(start + a / 20 * 5.9), math.sin(start + a / 20 * 5.9)) for a in range(21)]
    canvas.disc(frame.moved(0.04, 0.16), (0, 0), 1.04, (8, 20, 24), 90)
    canvas.glow(frame, [*rim, (0.0, 0.0)], (0, 0), _lit(green, 0.8), _lit(green, 1.1), 5)
    for x, y in rim[2:-1:3]:
        canvas.line(frame, ((0, 0), (x * 0.9, y * 0.9)), _lit(green, 1.3), 0.003, 110)


_SCENES: dict[str, Callable[[random.Random, int], Canvas]] = {
    "shade": _scene_shade,
    "garden": _scene_garden,
    "meadow": _scene_meadow,
    "sky": _scene_sky,
    "soil": _scene_soil,
    "paper": _scene_paper,
    "wall": _scene_wall,
    "dark": _scene_dark,
    "snow": _scene_snow,
    "pond": _scene_pond,
}


# ---------------------------------------------------------------------------------------------------------------------
# Greenery, drawn behind the flowers


@dataclass(frozen=True)
class Spot:
    """Where a flower stands, in scene units, and the colours that this picture's flowers have."""

    x: float
    y: float
    r: float
    palette: tuple[Colour, ...]

    def frame(self, canvas: Canvas, degrees: float = 0, squash: float = 1) -> Frame:
        """The flower's own frame, turned, and foreshortened along its height."""
        return canvas.scene.moved(self.x, self.y).scaled(self.r).turned(degrees).scaled(1, squash)


def _stalk(canvas: Canvas, spot: Spot, width: float = 0.05, colour: Colour | None = None) -> list[Point]:
    """Draw a stem from the flower to below the picture, slightly bent; answer its points, top first."""
    foot = spot.x + canvas.rng.uniform(-0.14, 0.14)
    path = _curve((spot.x, spot.y), (spot.x + canvas.rng.uniform(-0.05, 0.05), (spot.y + 1) / 2), (foot, 1.05), 8)
    _stem(canvas, path, spot.r * width, colour)
    return path


def _leafy_stalk(blade: Blade, count: int, width: float = 0.05, lean: float = 55) -> Callable[[Canvas, Spot], None]:
    """Greenery of a stem with leaves of the given shape (in units of the flower's radius) on both sides."""

    def grow(canvas: Canvas, spot: Spot) -> None:
        path = _stalk(canvas, spot, width)
        rng = canvas.rng
        for i in range(count):
            side = 1 if i % 2 else -1
            length = spot.r * blade.length * rng.uniform(0.8, 1.15)
            scaled = replace(blade, length=length, width=spot.r * blade.width, bend=side * length * 0.15)
            leaf_at = path[min(2 + i, len(path) - 1)]
            _leaf(canvas, leaf_at, side * rng.uniform(lean - 20, lean + 25), scaled, _varied(rng, canvas.green, 10))

    return grow


def _bushy(blade: Blade, count: int) -> Callable[[Canvas, Spot], None]:
    """Greenery of leaves that stick out from behind the flower on all sides."""

    def grow(canvas: Canvas, spot: Spot) -> None:
        _stalk(canvas, spot)
        rng = canvas.rng
        start = rng.uniform(0, 360)
        for i in range(count):
            degrees = start + 360 * i / count + rng.uniform(-22, 22)
            reach = math.radians(degrees)
            foot = (spot.x + math.sin(reach) * spot.r * 0.35, spot.y - math.cos(reach) * spot.r * 0.35)
            length = spot.r * blade.length * rng.uniform(0.85, 1.15)
            scaled = replace(blade, length=length, width=spot.r * blade.width, bend=length * rng.uniform(-0.15, 0.15))
            _leaf(canvas, foot, degrees, scaled, _lit(_varied(rng, canvas.green, 12), rng.uniform(0.7, 1.0)))

    return grow


def _strappy(count: int, width: float, tint: Colour | None = None, rise: float = 0.1) -> Callable[[Canvas, Spot], None]:
    """Greenery of a bare stem among long narrow leaves that rise from the ground."""

    def grow(canvas: Canvas, spot: Spot) -> None:
        rng = canvas.rng
        green = _mix(canvas.green, tint, 0.6) if tint else canvas.green
        for _ in range(count):
            foot, lean = spot.x + rng.uniform(-0.22, 0.22), rng.uniform(-0.3, 0.3)
            top = rng.uniform(spot.y - rise, spot.y + 0.45)
            path = _curve((foot, 1.05), (foot + lean * 0.2, (1 + top) / 2), (foot + lean, top), 8)
            _strap(canvas, path, spot.r * width, _varied(rng, green, 12))
        _stalk(canvas, spot, 0.06, green)

    return grow


def _dandelion_leaves(canvas: Canvas, spot: Spot) -> None:
    """A hollow pale stem over jagged leaves."""
    rng = canvas.rng
    for _ in range(4):
        blade = Blade(rng.uniform(0.4, 0.65), 0.075, 0.9, 0.5, rng.uniform(-0.1, 0.1), teeth=0.6, steps=13)
        foot = (spot.x + rng.uniform(-0.2, 0.2), 1.04)
        _leaf(canvas, foot, rng.uniform(-65, 65), blade, _varied(rng, (84, 132, 52)))
    _stalk(canvas, spot, 0.055, _varied(rng, (158, 162, 96)))


def _rose_leaves(canvas: Canvas, spot: Spot) -> None:
    """Dark toothed leaves on a stem with a few thorns."""
    rng = canvas.rng
    green = _lit(_varied(rng, (52, 104, 48)), rng.uniform(0.8, 1.15))
    path = _stalk(canvas, spot, 0.06, green)
    for x, y in path[3:7]:
        side = rng.choice((-1, 1))
        tip = (x + side * spot.r * 0.17, y + spot.r * 0.02)
        canvas.fill(canvas.scene, ((x, y - spot.r * 0.06), tip, (x, y + spot.r * 0.06)), _lit(green, 0.8))
    blade = Blade(spot.r * 0.85, spot.r * 0.3, 0.6, 0.75, teeth=0.12, steps=15)
    for i in range(5):
        degrees = (-115, 112, -150, 146, 60)[i] + rng.uniform(-18, 18)
        reach = math.radians(degrees)
        foot = (spot.x + math.sin(reach) * spot.r * 0.6, spot.y - math.cos(reach) * spot.r * 0.6)
        _leaf(canvas, foot, degrees, blade, _varied(rng, green, 10))


def _orchid_spray(canvas: Canvas, spot: Spot) -> None:
    """An arching dark stem with buds, and thick strap leaves at the foot."""
    rng = canvas.rng
    side = rng.choice((-1, 1))
    for lean in (-0.35, 0.3):
        arch = _curve((0.5, 1.05), (0.5 + lean * 0.4, 0.8), (0.5 + lean * 1.4, 0.9), 8)
        _strap(canvas, arch, 0.06, _varied(rng, (58, 104, 52)))
    foot, bow = (spot.x - side * 0.3, 1.05), (spot.x - side * 0.25, spot.y - 0.2)
    path = _curve(foot, bow, (spot.x + side * 0.62, spot.y - 0.3), 12)
    _stem(canvas, path, 0.012, _varied(rng, (96, 116, 62)))
    for x, y in path[-3:]:
        bud = Blade(0.11, 0.045, 0.6, 0.5)
        bud_colour = _mix(spot.palette[0], (150, 170, 90), 0.45)
        _draw_blade(
            canvas, canvas.scene.moved(x, y).turned(180 - side * 25), bud, Tint(_lit(bud_colour, 0.85), bud_colour, 0.5)
        )


def _poppy_stalk(canvas: Canvas, spot: Spot) -> None:
    """A thin hairy stem, feathery leaves and a nodding bud."""
    rng = canvas.rng
    green = _mix(canvas.green, (128, 150, 104), 0.4)
    for _ in range(7):
        foot, lean = spot.x + rng.uniform(-0.3, 0.3), rng.uniform(-0.2, 0.2)
        top = rng.uniform(0.55, 0.85)
        rib = _curve((foot, 1.05), (foot, (1 + top) / 2), (foot + lean, top), 6)
        canvas.line(canvas.scene, rib, green, 0.01)
        for x, y in rib[1:]:
            canvas.line(canvas.scene, ((x - 0.05, y - 0.05), (x, y), (x + 0.05, y - 0.05)), green, 0.008)
    path = _stalk(canvas, spot, 0.04, green)
    if rng.random() < 0.5:
        side = rng.choice((-1, 1))
        start, bud_at = path[5], (spot.x + side * spot.r * 1.1, spot.y + spot.r * 0.2)
        _stem(canvas, _curve(start, (bud_at[0], start[1] - 0.05), bud_at, 7), 0.008, green)
        bud = Blade(spot.r * 0.45, spot.r * 0.15)
        hanging = canvas.scene.moved(*bud_at).turned(180 - side * 15)
        _draw_blade(canvas, hanging, bud, Tint(_lit(green, 0.8), _lit(green, 1.1), 0.5))


def _pond_leaves(canvas: Canvas, spot: Spot) -> None:
    """The pads that a water lily rests on, and its shadow on them."""
    rng = canvas.rng
    for side in (-1, 1):
        centre = (spot.x + side * spot.r * rng.uniform(0.4, 0.9), spot.y + spot.r * rng.uniform(0.35, 0.6))
        _lily_pad(canvas, centre, spot.r * rng.uniform(0.95, 1.35))
    canvas.disc(
        canvas.scene.moved(spot.x, spot.y + spot.r * 0.5).scaled(spot.r, spot.r * 0.35), (0, 0), 0.95, (10, 26, 20), 90
    )


# ---------------------------------------------------------------------------------------------------------------------
# Flowers. Each palette below is read by its own kind's function.


def _paint_rose(canvas: Canvas, spot: Spot) -> None:
    """Rings of broad petals, each with a bright rim that sinks into shadow, closing on a spiral heart."""
    rng = canvas.rng
    rim, deep = spot.palette
    frame = spot.frame(canvas, rng.uniform(-15, 15), rng.uniform(0.82, 1))
    _shadow(canvas, frame, 1)
    lift = rng.uniform(0.0, 0.06)
    start = rng.uniform(0, 360)
    for level, (reach, count) in enumerate(((1.0, 6), (0.83, 5), (0.65, 5), (0.48, 4), (0.33, 3), (0.2, 3))):
        share = level / 5
        # The heart of a rose is deeper in colour than its outer petals.
        tint = Tint(_mix(_lit(rim, 1.1), rim, share), _lit(deep, 1 - 0.3 * share), 0.3, layers=10, edge=0.8)
        blade = Blade(reach, reach * 0.68, 0.8, 0.36, ruffle=0.03, steps=14)
        start += 360 / count * 0.5 + rng.uniform(-12, 12)
        risen = frame.moved(0, -lift * level)
        if level:
            canvas.disc(risen.moved(0.03, 0.05), (0, 0), reach * 0.96, _lit(deep, 0.35), 60)
        _ring(canvas, risen, count, blade, tint, start, 8)
    centre = frame.moved(0, -lift * 5)
    spiral = [(0.021 * t * math.cos(t * 0.9 + start), 0.021 * t * math.sin(t * 0.9 + start)) for t in range(10)]
    canvas.line(centre, spiral, _lit(deep, 0.5), 0.008, 200)


def _paint_tulip(canvas: Canvas, spot: Spot) -> None:
    """A cup seen from the side: three petals behind, three in front."""
    rng = canvas.rng
    body, flame, foot = spot.palette
    frame = spot.frame(canvas, rng.uniform(-9, 9)).moved(0, 0.95)
    openness = rng.uniform(0.6, 1.5)
    back = Tint(_lit(body, 0.66), _lit(_mix(body, flame, 0.3), 0.62), 0.3)
    for degrees in (-17, 17, 0):
        _draw_blade(canvas, frame.turned(degrees * openness), Blade(1.9, 0.5, 0.5, 0.62), back)
    for degrees in (-11, 11):
        side = 1 if degrees > 0 else -1
        lit = 0.86 if (side > 0) == (canvas.light < 0) else 1.0
        tint = Tint(_lit(body, lit * 0.92), _lit(_mix(body, flame, 0.75), lit), 0.4, 4, _lit(body, 0.6), 60)
        blade = Blade(1.86, 0.56, 0.45, 0.66, bend=side * 0.12, ruffle=0.015)
        _draw_blade(canvas, frame.moved(side * 0.12, 0).turned(degrees * openness), blade, tint)
    front = Tint(body, _mix(body, flame, 0.85), 0.5, 5, _lit(body, 0.62), 55)
    _draw_blade(canvas, frame, Blade(1.66, 0.56, 0.45, 0.7, rng.uniform(-0.1, 0.1), 0.02), front)
    for radius in (0.3, 0.2):
        canvas.disc(frame.moved(0, -0.14).scaled(1, 0.6), (0, 0), radius, foot, 60)


def _paint_daisy(canvas: Canvas, spot: Spot) -> None:
    """Narrow white rays round a yellow button."""
    rng = canvas.rng
    white, shade, gold = spot.palette
    frame = spot.frame(canvas, rng.uniform(-40, 40), rng.choice((1, rng.uniform(0.55, 1))))
    _shadow(canvas, frame, 0.9)
    count = rng.randint(11, 15)
    blade = Blade(1, 0.125, 0.5, 0.24, rng.uniform(-0.06, 0.06), steps=8)
    _ring(canvas, frame, count, blade, Tint(_lit(white, 0.87), _lit(shade, 0.9), 0.1, layers=4), rng.uniform(0, 30), 5)
    _ring(canvas, frame, count, blade, Tint(white, shade, 0.05, 2, _lit(shade, 0.8), 90, 4), rng.uniform(0, 30), 5)
    _dome(canvas, frame, 0.29, _lit(gold, 0.78), _lit(gold, 1.12))
    _seeds(canvas, frame, 46, 0.26, 0.021, _lit(gold, 0.84), _lit(gold, 1.1))


def _paint_dandelion(canvas: Canvas, spot: Spot) -> None:
    """A dense yellow mop of strap florets, or the white clock that it turns into."""
    if spot.palette[0] == _WHITE:
        _paint_dandelion_clock(canvas, spot)
        return
    rng = canvas.rng
    lemon, gold = spot.palette
    frame = spot.frame(canvas, rng.uniform(-20, 20), rng.choice((1, rng.uniform(0.6, 1))))
    _shadow(canvas, frame, 0.95)
    for reach, count in ((1, 34), (0.86, 30), (0.7, 25), (0.52, 18), (0.34, 12)):
        inner = _mix(gold, lemon, reach)
        tint = Tint(inner, _lit(_mix(gold, inner, 0.4), 0.86), 0.0, layers=3, edge=0.76)
        blade = Blade(reach, 0.062, 0.6, 0.12, rng.uniform(-0.05, 0.05), steps=6)
        _ring(canvas, frame.moved(0, -0.04 * (1 - reach)), count, blade, tint, rng.uniform(0, 30), 6)
    _stamens(canvas, frame.moved(0, -0.04), 18, 0.2, _lit(gold, 0.75), _lit(gold, 0.95), 0.02)


def _paint_dandelion_clock(canvas: Canvas, spot: Spot) -> None:
    """A globe of parachutes round a brown core."""
    rng = canvas.rng
    frame = spot.frame(canvas)
    for radius in (0.98, 0.86, 0.7, 0.5):
        canvas.disc(frame, (0, 0), radius, (236, 236, 230), 42)
    for i in range(74):
        reach = 0.93 * math.sqrt((i + 4) / 78)
        angle = i * _GOLDEN_ANGLE
        cos, sin = math.cos(angle), math.sin(angle)
        end = (reach * cos, reach * sin)
        canvas.line(frame, ((0.12 * cos, 0.12 * sin), end), (206, 204, 192), 0.003, 130)
        tuft = 0.15
        for turn in (-1.2, -0.6, 0, 0.6, 1.2):
            hair = (end[0] + tuft * math.cos(angle + turn), end[1] + tuft * math.sin(angle + turn))
            canvas.line(frame, (end, hair), _WHITE, 0.003, 150)
    _dome(canvas, frame, 0.16, (96, 74, 52), (160, 134, 96))
    _seeds(canvas, frame, 16, 0.14, 0.025, (120, 92, 60), (84, 62, 44))
    canvas.disc(frame, (-0.3, -0.35), 0.4, _WHITE, rng.randint(10, 30))


def _paint_sunflower(canvas: Canvas, spot: Spot) -> None:
    """Two rows of pointed golden rays round a broad seed disc."""
    rng = canvas.rng
    gold, amber, outer, inner = spot.palette
    frame = spot.frame(canvas, rng.uniform(-20, 20), rng.choice((1, rng.uniform(0.75, 1))))
    _shadow(canvas, frame, 0.95)
    count = rng.randint(15, 19)
    blade = Blade(1, 0.15, 0.75, 0.72, rng.uniform(-0.08, 0.08), steps=9)
    _ring(
        canvas, frame, count, blade, Tint(_lit(gold, 0.86), _lit(amber, 0.8), 0.3, 1, layers=4), rng.uniform(0, 24), 5
    )
    blade = replace(blade, length=0.93)
    _ring(canvas, frame, count, blade, Tint(gold, amber, 0.3, 2, _lit(amber, 0.7), 70, 5), rng.uniform(0, 24), 5)
    disc = rng.uniform(0.4, 0.5)
    _dome(canvas, frame, disc, _lit(outer, 0.8), _mix(outer, inner, 0.8))
    _seeds(canvas, frame, 105, disc * 0.96, disc * 0.058, inner, _lit(outer, 1.05))


def _paint_poppy(canvas: Canvas, spot: Spot) -> None:
    """Four crumpled-silk petals round a dark or golden heart."""
    rng = canvas.rng
    silk, deep, blotch, heart = spot.palette
    frame = spot.frame(canvas, rng.uniform(0, 90), rng.uniform(0.78, 1))
    _shadow(canvas, frame, 0.95)
    for start, count in ((0, 2), (90, 2)):
        blade = Blade(1.02, 0.84, 0.85, 0.58, rng.uniform(-0.1, 0.1), 0.05, steps=16)
        _ring(canvas, frame, count, blade, Tint(silk, deep, 0.1, 9, _lit(deep, 0.8), 55, 10, 0.8), start, 8)
        patch = Blade(0.42, 0.25, 0.6, 0.3, ruffle=0.1)
        _ring(canvas, frame, count, patch, Tint(_mix(deep, blotch, 0.75), blotch, 0.2, layers=3, edge=1), start, 4)
    _stamens(canvas, frame, 34, 0.34, _lit(heart, 0.8), heart, 0.034)
    pod = (124, 146, 84) if heart == _BLACK else _lit(heart, 1.1)
    _dome(canvas, frame, 0.13, _lit(pod, 0.75), pod)


def _paint_daffodil(canvas: Canvas, spot: Spot) -> None:
    """A star of six tepals with a frilled trumpet that leans towards the viewer."""
    rng = canvas.rng
    star, star_deep, trumpet = spot.palette
    frame = spot.frame(canvas, rng.uniform(-30, 30), rng.uniform(0.85, 1))
    _shadow(canvas, frame, 0.85)
    blade = Blade(1, 0.36, 0.55, 0.62, rng.uniform(-0.06, 0.06), ruffle=0.03)
    tint = Tint(star, star_deep, 0.15, 4, _lit(star_deep, 0.75), 70, 6, 0.78)
    _ring(canvas, frame, 3, blade, tint._replace(rim=_lit(star, 0.93)), 60, 5)
    _ring(canvas, frame, 3, blade, tint, 0, 5)
    lean = rng.uniform(0, 360)
    reach = rng.uniform(0.04, 0.3)
    mouth = (reach * math.cos(math.radians(lean)), reach * math.sin(math.radians(lean)))
    for layer in range(7):
        share = layer / 6
        spot_on = (mouth[0] * share, mouth[1] * share)
        canvas.disc(frame, spot_on, 0.26 + 0.1 * share, _lit(trumpet, 0.68 + 0.26 * share))
    frill = [
        (
            mouth[0] + (0.42 + 0.035 * (i % 2)) * math.cos(i * math.pi / 13),
            mouth[1] + (0.42 + 0.035 * (i % 2)) * math.sin(i * math.pi / 13),
        )
        for i in range(26)
    ]
    canvas.fill(frame, frill, _lit(trumpet, 0.74))
    canvas.glow(frame.moved(0, -0.012), frill, mouth, _lit(trumpet, 1.12), trumpet, 4)
    throat = (mouth[0] * 0.8, mouth[1] * 0.8 + 0.02)
    for layer in range(5):
        canvas.disc(frame, throat, 0.3 - 0.05 * layer, _lit(trumpet, 0.88 - 0.1 * layer))
    _stamens(canvas, frame.moved(*throat), 6, 0.11, _lit(trumpet, 1.2), (250, 224, 110), 0.035)


def _paint_iris(canvas: Canvas, spot: Spot) -> None:
    """Three ruffled standards that rise and three bearded falls that hang."""
    rng = canvas.rng
    standard, fall, fall_deep = spot.palette
    frame = spot.frame(canvas, rng.uniform(-8, 8)).moved(0, -0.02)
    pale = Tint(_lit(standard, 0.95), _lit(standard, 0.78), 0.1, 6, _lit(standard, 0.6), 60, 6, 0.78)
    for degrees, size in ((-92, 0.78), (92, 0.78)):
        blade = Blade(size, 0.3, 0.75, 0.42, ruffle=0.08, bend=-0.12 if degrees > 0 else 0.12)
        tint = Tint(_lit(fall, 0.9), _lit(fall_deep, 0.85), 0.25, 5, _lit(fall_deep, 0.6), 80)
        _draw_blade(canvas, frame.turned(degrees * rng.uniform(1.1, 1.3)), blade, tint)
    standards = Blade(1.0, 0.42, 0.62, 0.46, ruffle=0.07, steps=15)
    _draw_blade(canvas, frame, standards, pale._replace(rim=_lit(standard, 0.8), heart=_lit(standard, 0.6)))
    for degrees in (-26, 26):
        curled = replace(standards, bend=-degrees / 120)
        _draw_blade(canvas, frame.turned(degrees * rng.uniform(0.85, 1.2)), curled, pale)
    front = Blade(1.04, 0.46, 0.75, 0.44, ruffle=0.07, steps=15)
    _draw_blade(
        canvas,
        frame.turned(180 + rng.uniform(-6, 6)),
        front,
        Tint(_lit(fall, 1.12), fall_deep, 0.45, 8, _lit(fall_deep, 0.6), 80, 8, 0.76),
    )
    beard = Blade(0.42, 0.075, 0.5, 0.6, ruffle=0.2)
    _draw_blade(canvas, frame.turned(180), beard, Tint((232, 160, 30), (252, 214, 70), 0.4, layers=3, edge=0.9))
    for degrees in (-118, 118):
        _draw_blade(
            canvas,
            frame.turned(degrees),
            replace(beard, length=0.26, width=0.05),
            Tint((232, 160, 30), _SUN, 0.4, layers=3),
        )


def _paint_pansy(canvas: Canvas, spot: Spot) -> None:
    """Five round petals with a whiskered face."""
    rng = canvas.rng
    upper, side, lower, mark = spot.palette
    frame = spot.frame(canvas, rng.uniform(-16, 16), rng.uniform(0.9, 1))
    _shadow(canvas, frame, 0.85)
    blotched = rng.random() < 0.5
    petals: tuple[tuple[float, Colour, float, float, bool], ...] = (
        (-27, upper, 1.02, 0.58, False),
        (27, upper, 1.02, 0.58, False),
        (-88, side, 0.9, 0.5, True),
        (88, side, 0.9, 0.5, True),
        (180, lower, 0.95, 0.72, True),
    )
    for degrees, colour, length, width, faced in petals:
        turned = frame.turned(degrees + rng.uniform(-4, 4))
        blade = Blade(length, width, 0.75, 0.42, ruffle=0.03, steps=14)
        _draw_blade(canvas, turned, blade, Tint(colour, _lit(colour, 0.78), 0.1, 5, _lit(colour, 0.5), 50, 8, 0.74))
        if faced and blotched:
            blot = Blade(length * 0.6, width * 0.62, 0.7, 0.25, ruffle=0.12)
            _draw_blade(canvas, turned, blot, Tint(_mix(mark, colour, 0.25), mark, 0.3, layers=3, edge=1))
        if faced:
            for spread in (-0.3, -0.15, 0, 0.15, 0.3):
                canvas.line(
                    turned,
                    ((0, -0.1), (spread * 0.8, -0.34), (spread * 1.3, -0.6 + abs(spread) * 0.4)),
                    mark,
                    0.009,
                    220,
                )
    canvas.fill(frame, ((-0.12, 0.02), (0, -0.1), (0.12, 0.02), (0.08, 0.2), (-0.08, 0.2)), (250, 206, 44))
    canvas.disc(frame, (0, 0), 0.06, (226, 232, 160))


def _paint_lily(canvas: Canvas, spot: Spot) -> None:
    """Six recurved, freckled tepals and long stamens; orange ones may nod as a Turk's cap."""
    if spot.palette[0][2] < 70 and canvas.rng.random() < 0.4:
        _paint_turks_cap(canvas, spot)
        return
    rng = canvas.rng
    tepal, throat, freckle = spot.palette
    frame = spot.frame(canvas, rng.uniform(-40, 40), rng.uniform(0.82, 1))
    _shadow(canvas, frame, 0.7)
    for start, width in ((60, 0.23), (0, 0.3)):
        for degrees in (start, start + 120, start + 240):
            turned = frame.turned(degrees + rng.uniform(-5, 5))
            blade = Blade(rng.uniform(1.02, 1.15), width, 0.62, 0.85, rng.uniform(-0.22, 0.22), 0.03)
            tint = Tint(_lit(tepal, 0.95 if start else 1.0), throat, 0.2, 3, _lit(tepal, 0.7), 70, 6, 0.74)
            _draw_blade(canvas, turned, blade, tint)
            _freckles(canvas, turned, blade, freckle)
    canvas.disc(frame, (0, 0), 0.12, _mix(throat, (150, 170, 80), 0.5))
    for i in range(6):
        angle = math.radians(60 * i + rng.uniform(-14, 14) + 30)
        reach = rng.uniform(0.5, 0.66)
        end = (reach * math.cos(angle), reach * math.sin(angle) + 0.08)
        canvas.line(
            frame, _curve((0, 0), (end[0] * 0.5, end[1] * 0.5 - 0.12), end, 5), _mix(throat, (214, 226, 150), 0.7), 0.01
        )
        anther = Blade(0.2, 0.055)
        turned = frame.moved(*end).turned(math.degrees(angle) + rng.uniform(-20, 20)).moved(0, 0.1)
        _draw_blade(canvas, turned, anther, Tint((78, 36, 22), (132, 66, 30), 0.5, layers=3))


def _freckles(canvas: Canvas, frame: Frame, blade: Blade, colour: Colour) -> None:
    """Dot the lower two thirds of a tepal."""
    rng = canvas.rng
    for _ in range(11):
        t = rng.uniform(0.18, 0.66)
        x = blade.bend * t * t + rng.uniform(-0.7, 0.7) * blade.width
        canvas.disc(frame, (x, -t * blade.length), rng.uniform(0.014, 0.026), colour)


def _paint_turks_cap(canvas: Canvas, spot: Spot) -> None:
    """A nodding lily from the side: tepals that roll up and back, stamens that hang."""
    rng = canvas.rng
    tepal, throat, freckle = spot.palette
    frame = spot.frame(canvas, rng.uniform(-8, 8)).moved(0, -0.15)
    for i in range(6):
        x = (i - 2.5) * 0.16
        end = (x * 2.2, 0.9 + rng.uniform(-0.1, 0.1))
        canvas.line(frame, _curve((0, 0.1), (x * 0.9, 0.5), end, 5), _mix(throat, (220, 210, 140), 0.6), 0.01)
        anther = Blade(0.18, 0.05)
        _draw_blade(
            canvas,
            frame.moved(*end).turned(90 + x * 60).moved(0, 0.09),
            anther,
            Tint((66, 30, 20), (112, 54, 28), 0.5, layers=3),
        )
    for x in (-0.25, 0.25, -0.62, 0.62, -1.0, 1.0, 0.0):
        out = _curve((x * 0.15, 0.2), (x * 1.3, -0.05 - 0.1 * abs(x)), (x * 0.75, -0.78 + 0.15 * abs(x)), 10)
        shade = 0.84 if abs(x) == 0.25 else 1.0
        for width, colour in (
            (0.2, _lit(tepal, 0.7)),
            (0.175, _lit(tepal, shade)),
            (0.11, _mix(tepal, throat, 0.5)),
            (0.03, _lit(throat, 0.9)),
        ):
            canvas.fill(frame, _ribbon(out, _swelling(width)), colour)
        for px, py in out[2:9]:
            canvas.disc(frame, (px + rng.uniform(-0.1, 0.1), py + rng.uniform(-0.04, 0.04)), 0.024, freckle)


def _paint_water_lily(canvas: Canvas, spot: Spot) -> None:
    """Pointed petals in rising rings round golden stamens, or a cup seen from the side."""
    rng = canvas.rng
    tip, base, stamen = spot.palette
    if rng.random() < 0.35:
        _paint_lotus_cup(canvas, spot)
        return
    frame = spot.frame(canvas, rng.uniform(-6, 6)).moved(0, 0.12)
    for reach, count, squash, rise in (
        (1.06, 9, 0.56, 0.0),
        (0.96, 9, 0.7, 0.08),
        (0.78, 8, 0.84, 0.16),
        (0.55, 7, 0.95, 0.2),
    ):
        flat = frame.moved(0, -rise).scaled(1, squash)
        tint = Tint(tip, base, 0.1, 3, _lit(base, 0.8), 60, 6, 0.76)
        _ring(canvas, flat, count, Blade(reach, reach * 0.24, 0.62, 0.6, steps=10), tint, rng.uniform(0, 40), 5)
    heart = frame.moved(0, -0.22).scaled(1, 0.8)
    canvas.disc(heart, (0, 0), 0.22, _lit(stamen, 0.72))
    _stamens(canvas, heart, 30, 0.29, _lit(stamen, 0.85), _lit(stamen, 1.1), 0.035)
    _stamens(canvas, heart, 12, 0.12, _lit(stamen, 0.75), stamen, 0.04)


def _paint_lotus_cup(canvas: Canvas, spot: Spot) -> None:
    """A half-open water lily from the side: fans of petals, the hindmost first."""
    rng = canvas.rng
    tip, base, stamen = spot.palette
    frame = spot.frame(canvas, rng.uniform(-6, 6)).moved(0, 0.62)
    for spread, count, length, lit in ((62, 6, 1.3, 0.82), (80, 7, 1.28, 0.92), (100, 6, 1.1, 1.0)):
        if lit == 1.0:
            _stamens(canvas, frame.moved(0, -0.6).scaled(1, 0.5), 20, 0.3, _lit(stamen, 0.85), stamen, 0.04)
        sides = [i / (count - 1) * 2 - 1 for i in range(count)]
        for side in sorted(sides, key=abs, reverse=True):
            degrees = side * spread + rng.uniform(-4, 4)
            blade = Blade(length * rng.uniform(0.92, 1.04) * (1 - abs(degrees) / 700), 0.25, 0.55, 0.6, -degrees / 520)
            tint = Tint(_lit(tip, lit), _lit(base, lit), 0.15, 4, _lit(tip, 0.7), 60, 6, 0.76)
            _draw_blade(canvas, frame.turned(degrees), blade, tint)


def _paint_orchid(canvas: Canvas, spot: Spot) -> None:
    """A moth orchid: three sepals, two broad wings and a small bright lip."""
    rng = canvas.rng
    wing, throat, lip = spot.palette
    frame = spot.frame(canvas, rng.uniform(-14, 14), rng.uniform(0.88, 1))
    _shadow(canvas, frame, 0.8)
    veins = rng.choice((4, 8))
    tint = Tint(wing, throat, 0.05, veins, _mix(throat, lip, 0.5), 80, 7, 0.8)
    sepal = Blade(0.98, 0.33, 0.55, 0.42, ruffle=0.02)
    for degrees in (128, -128, 0):
        _draw_blade(canvas, frame.turned(degrees + rng.uniform(-4, 4)), sepal, tint._replace(rim=_lit(wing, 0.92)))
    for degrees in (-76, 76):
        _draw_blade(
            canvas,
            frame.turned(degrees + rng.uniform(-4, 4)),
            Blade(1.08, 0.64, 0.62, 0.4, ruffle=0.02, steps=14),
            tint,
        )
    if rng.random() < 0.3:
        for degrees in (-76, 76, 0, 128, -128):
            _freckles(canvas, frame.turned(degrees), sepal, _mix(lip, wing, 0.2))
    lip_tint = Tint(lip, _lit(lip, 0.7), 0.1, 3, _lit(lip, 0.5), 100, 4, 0.72)
    for degrees, length, width in ((140, 0.34, 0.15), (-140, 0.34, 0.15), (180, 0.52, 0.19)):
        _draw_blade(canvas, frame.turned(degrees), Blade(length, width, 0.6, 0.35), lip_tint)
    canvas.disc(frame, (0, 0.13), 0.1, (250, 202, 60))
    canvas.disc(frame, (0, 0.15), 0.05, _lit(lip, 0.6))
    _dome(canvas, frame.moved(0, -0.03), 0.1, _mix(wing, throat, 0.4), _lit(_WHITE, 1))


def _paint_hibiscus(canvas: Canvas, spot: Spot) -> None:
    """Five broad crinkled petals, a dark eye and one long column dusted with pollen."""
    rng = canvas.rng
    petal, deep, eye = spot.palette
    frame = spot.frame(canvas, rng.uniform(-36, 36), rng.uniform(0.8, 1))
    _shadow(canvas, frame, 0.95)
    start = rng.uniform(0, 72)
    blade = Blade(1.08, 0.6, 0.85, 0.44, rng.uniform(-0.1, 0.1), 0.055, steps=15)
    _ring(canvas, frame, 5, blade, Tint(_lit(petal, 1.08), deep, 0.05, 8, _lit(deep, 0.72), 75, 10, 0.76), start, 5)
    for reach, share in ((0.56, 0.2), (0.48, 0.45), (0.39, 0.75), (0.29, 1.0)):
        streak = Blade(reach, reach * 0.36, 0.6, 0.8, ruffle=0.06)
        colour = _mix(deep, eye, share)
        _ring(canvas, frame, 5, streak, Tint(colour, colour, layers=1, edge=1), start, 3)
    column = frame.turned(rng.uniform(-80, 80))
    bow = rng.uniform(-0.15, 0.15)
    path = _curve((0, 0), (bow, -0.4), (bow * 0.6, -0.82), 8)
    canvas.fill(column, _ribbon([(x + 0.05, y + 0.04) for x, y in path], _taper(0.04, 0.04)), _lit(eye, 0.4), 110)
    canvas.fill(column, _ribbon(path, _taper(0.05, 0.03)), _mix((250, 226, 150), petal, 0.3))
    for x, y in path[4:]:
        for _ in range(7):
            grain = (x + rng.uniform(-0.1, 0.1), y + rng.uniform(-0.06, 0.06))
            canvas.disc(column, grain, 0.026, _lit((250, 206, 60), rng.uniform(0.85, 1.2)))
    for x in (-0.08, 0, 0.08):
        canvas.disc(column, (path[-1][0] + x, -0.92 + abs(x) * 0.5), 0.04, (196, 40, 44))


def _paint_bluebell(canvas: Canvas, spot: Spot) -> None:
    """A spray that arches to one side, its bells hanging in a row."""
    rng = canvas.rng
    bell, deep = spot.palette
    side = rng.choice((-1, 1))
    top = (spot.x + side * spot.r * 0.55, spot.y - spot.r * 0.72)
    path = _curve(
        (spot.x - side * spot.r * 0.55, 1.05), (spot.x - side * spot.r * 0.75, spot.y - spot.r * 1.35), top, 12
    )
    _stem(canvas, path, spot.r * 0.045, _mix(canvas.green, deep, 0.3))
    for i, (x, y) in enumerate(path[4:]):
        out = side if i % 3 else -side
        hang = canvas.scene.moved(x + out * spot.r * (0.1 + 0.07 * (i % 2)), y + spot.r * 0.08).scaled(spot.r)
        canvas.line(
            canvas.scene, ((x, y), (x + out * spot.r * 0.12, y + spot.r * 0.1)), _mix(canvas.green, deep, 0.4), 0.009
        )
        size = 1.12 - 0.055 * i
        _bell(canvas, hang.turned(-out * rng.uniform(6, 30)).scaled(size), bell, deep)


def _bell(canvas: Canvas, frame: Frame, bell: Colour, deep: Colour) -> None:
    """One hanging bell, mouth down, with tips that curl outwards."""
    for side in (-1, 1, 0):
        curl = _curve((side * 0.12, 0.4), (side * 0.2, 0.66), (side * 0.36, 0.52) if side else (0.05, 0.66), 6)
        canvas.fill(frame, _ribbon(curl, _taper(0.075, 0.019)), _lit(bell, 0.8 if side else 1.0))
    half = ((0.06, 0.0), (0.15, 0.08), (0.18, 0.24), (0.21, 0.5))
    cup = [(-x, y) for x, y in half] + [(0.0, 0.56)] + list(half[::-1])
    canvas.fill(frame, cup, _lit(deep, 0.78))
    canvas.glow(frame.moved(0, 0.01).scaled(0.92, 0.97), cup, (-0.04, 0.3), deep, _lit(bell, 1.1), 6)
    for x in (-0.09, 0.02, 0.11):
        canvas.line(frame, ((x * 0.6, 0.06), (x, 0.3), (x * 1.3, 0.5)), _lit(deep, 0.7), 0.004, 120)
    canvas.disc(frame, (0, 0), 0.065, _mix(deep, (70, 80, 60), 0.5))


def _paint_snowdrop(canvas: Canvas, spot: Spot) -> None:
    """A white drop of three tepals under a green ovary, on a stem that crooks over."""
    rng = canvas.rng
    white, shade, green = spot.palette
    side = rng.choice((-1, 1))
    neck = (spot.x, spot.y - spot.r * 0.78)
    top = (spot.x - side * spot.r * 0.25, spot.y - spot.r * 1.12)
    rise = _curve((spot.x - side * spot.r * 0.75, 1.05), (spot.x - side * spot.r * 0.75, spot.y - spot.r * 0.9), top, 9)
    _stem(
        canvas, [*rise, *_curve(top, (spot.x, top[1] - 0.01), neck, 4)[1:]], spot.r * 0.05, _varied(rng, (122, 150, 84))
    )
    frame = spot.frame(canvas, side * rng.uniform(-14, 8)).moved(0, -0.5).turned(180)
    spread = rng.uniform(16, 40)
    tint = Tint(_lit(white, 0.97), shade, 0.15, 3, _lit(shade, 0.8), 90, 6, 0.78)
    _draw_blade(
        canvas, frame, Blade(0.95, 0.3, 0.6, 0.4), tint._replace(rim=_lit(white, 0.84), heart=_lit(shade, 0.84))
    )
    _draw_blade(canvas, frame, Blade(0.8, 0.3, 0.6, 0.25), tint._replace(rim=_lit(white, 0.92)))
    mark = frame.moved(0, -0.62)
    canvas.line(mark, ((-0.15, -0.06), (0, 0.08), (0.15, -0.06)), green, 0.024)
    for degrees in (-spread, spread):
        blade = Blade(1.35, 0.31, 0.75, 0.42, bend=degrees / 160)
        _draw_blade(canvas, frame.turned(degrees), blade, tint)
    if spread < 27:
        _draw_blade(canvas, frame.turned(rng.uniform(-6, 6)), Blade(1.3, 0.32, 0.75, 0.4), tint._replace(rim=white))
    _draw_blade(
        canvas, frame.moved(0, 0.28), Blade(0.36, 0.14), Tint(_lit(green, 0.85), _lit(green, 1.2), 0.6, layers=4)
    )


def _paint_anthurium(canvas: Canvas, spot: Spot) -> None:
    """A glossy heart-shaped bract with a knobbly spike."""
    rng = canvas.rng
    bract, pale, spike = spot.palette
    frame = spot.frame(canvas, rng.uniform(-50, 50), rng.uniform(0.8, 1))
    _shadow(canvas, frame, 0.85)
    heart = [(x, y * 1.04) for x, y in _heart()]
    canvas.fill(frame, heart, _lit(bract, 0.62))
    canvas.glow(frame.scaled(0.96), heart, (0, -0.2), _lit(bract, 0.86), _mix(bract, pale, 0.25), 8)
    for side in (-1, 1):
        for x, y in ((0.75, -0.62), (0.88, -0.15), (0.6, 0.3), (0.25, 0.65)):
            vein = _curve((0, -0.3), (side * x * 0.5, y * 0.5 - 0.25), (side * x, y), 6)
            canvas.line(frame, vein, _lit(bract, 0.62), 0.007, 120)
            canvas.line(frame, [(px, py - 0.03) for px, py in vein], _lit(pale, 1.1), 0.006, 70)
    canvas.line(frame, ((0, -0.3), (0, 0.9)), _lit(bract, 0.62), 0.008, 140)
    for centre, reach in (((-0.42, -0.42), 0.22), ((0.5, -0.2), 0.15)):
        for layer in range(3):
            canvas.disc(frame.scaled(1, 0.6), centre, reach * (1 - layer * 0.25), _WHITE, 26)
    bow = rng.uniform(-0.2, 0.2)
    path = _curve((0, -0.3), (bow * 0.3, 0.0), (bow + 0.12, rng.choice((0.5, -0.95))), 9)
    canvas.fill(frame, _ribbon([(x + 0.07, y + 0.05) for x, y in path], _taper(0.1, 0.07)), _lit(bract, 0.45), 120)
    for width, lit in ((0.1, 0.72), (0.078, 0.95), (0.04, 1.2)):
        canvas.fill(frame, _ribbon(path, _taper(width, 0.65 * width)), _lit(spike, lit))
    for x, y in path[1:]:
        for dx in (-0.05, 0, 0.05):
            canvas.disc(frame, (x + dx, y), 0.014, _lit(spike, 0.78))


# ---------------------------------------------------------------------------------------------------------------------
# The table of kinds


@dataclass(frozen=True)
class Kind:
    """What one kind of flower looks like and where it grows.

    Every palette holds the colours that the flower's function unpacks; repeats make a palette or scene more likely.
    """

    flower: Callable[[Canvas, Spot], None]
    greenery: Callable[[Canvas, Spot], None]
    scenes: tuple[str, ...]
    palettes: tuple[tuple[Colour, ...], ...]
    radius: float = 0.43  # of a flower that stands alone, as a share of the picture's side
    crowd: tuple[int, ...] = (1, 1, 1, 1, 2, 3)  # how many flowers, each as likely
    height: float = 0.47  # of the centre of a flower that stands alone, from the top
    flat: bool = False  # keep the colours as they are listed: the flower's function tells variants by them


_GARDEN = ("garden", "garden", "shade", "shade", "meadow", "sky", "dark", "wall")
_GREY_GREEN: Colour = (128, 158, 120)

_KINDS: dict[str, Kind] = {
    "rose": Kind(
        _paint_rose,
        _rose_leaves,
        ("garden", "garden", "shade", "shade", "dark", "wall", "paper"),
        (
            ((206, 24, 44), (122, 6, 24)),
            ((206, 24, 44), (122, 6, 24)),
            ((164, 14, 34), (84, 4, 20)),
            ((244, 150, 176), (206, 70, 112)),
            ((250, 196, 204), (222, 120, 140)),
            ((252, 244, 228), (226, 196, 156)),
            ((252, 178, 124), (226, 104, 60)),
            ((250, 214, 92), (222, 150, 40)),
            ((214, 132, 200), (156, 70, 150)),
        ),
    ),
    "tulip": Kind(
        _paint_tulip,
        _strappy(4, 0.2, _GREY_GREEN),
        ("garden", "garden", "meadow", "sky", "shade", "paper", "wall"),
        (
            ((214, 30, 46), (244, 90, 70), (240, 200, 80)),
            ((214, 30, 46), (244, 90, 70), (240, 200, 80)),
            ((232, 84, 140), (250, 170, 196), (250, 240, 220)),
            ((232, 84, 140), (250, 170, 196), (250, 240, 220)),
            ((246, 196, 44), (252, 226, 110), (180, 190, 80)),
            ((240, 116, 44), (250, 180, 80), (240, 210, 90)),
            ((116, 40, 120), (170, 90, 170), (220, 190, 210)),
            ((250, 246, 232), (240, 236, 206), (190, 204, 130)),
            ((206, 40, 40), (252, 206, 60), (250, 220, 90)),
        ),
        radius=0.33,
        crowd=(1, 2, 3, 3),
        height=0.42,
    ),
    "daisy": Kind(
        _paint_daisy,
        _leafy_stalk(Blade(0.5, 0.14, 1.0, 0.35), 2),
        ("shade", "shade", "garden", "meadow", "sky", "dark", "wall"),
        (
            ((252, 252, 252), (226, 230, 240), (244, 190, 30)),
            ((252, 252, 252), (226, 230, 240), (236, 166, 24)),
            ((248, 248, 244), (214, 222, 226), (226, 196, 50)),
        ),
    ),
    "dandelion": Kind(
        _paint_dandelion,
        _dandelion_leaves,
        ("meadow", "garden", "garden", "shade", "shade", "soil"),
        (
            ((252, 226, 30), (246, 188, 10)),
            ((254, 232, 44), (248, 206, 16)),
            ((250, 210, 24), (240, 164, 8)),
            (_WHITE, _WHITE),
        ),
        flat=True,
    ),
    "sunflower": Kind(
        _paint_sunflower,
        _leafy_stalk(Blade(0.85, 0.36, 0.4, 0.8), 3, 0.07),
        ("sky", "sky", "garden", "garden", "shade", "meadow", "dark"),
        (
            ((252, 204, 30), (240, 160, 14), (88, 52, 26), (52, 30, 20)),
            ((252, 204, 30), (240, 160, 14), (74, 42, 24), (40, 26, 18)),
            ((250, 190, 24), (228, 130, 14), (96, 54, 26), (112, 116, 50)),
            ((254, 218, 60), (246, 184, 30), (120, 84, 34), (92, 74, 34)),
        ),
        radius=0.44,
        crowd=(1, 1, 1, 1, 2),
    ),
    "poppy": Kind(
        _paint_poppy,
        _poppy_stalk,
        ("meadow", "garden", "garden", "shade", "sky", "soil"),
        (
            ((226, 44, 30), (190, 20, 20), (34, 14, 24), _BLACK),
            ((226, 44, 30), (190, 20, 20), (34, 14, 24), _BLACK),
            ((240, 92, 40), (214, 56, 24), (50, 16, 24), _BLACK),
            ((252, 196, 30), (246, 140, 14), (240, 112, 10), (250, 170, 30)),
            ((252, 196, 30), (246, 140, 14), (240, 112, 10), (250, 170, 30)),
            ((252, 252, 250), (232, 234, 236), (226, 226, 190), (246, 182, 26)),
        ),
        flat=True,
    ),
    "daffodil": Kind(
        _paint_daffodil,
        _strappy(5, 0.1, (104, 140, 96)),
        ("garden", "garden", "shade", "meadow", "sky", "soil"),
        (
            ((252, 226, 60), (246, 202, 30), (248, 176, 20)),
            ((252, 226, 60), (246, 202, 30), (244, 190, 24)),
            ((252, 240, 130), (248, 222, 84), (246, 164, 24)),
            ((250, 248, 228), (240, 232, 180), (246, 176, 30)),
        ),
        radius=0.42,
        crowd=(1, 1, 2, 3),
    ),
    "iris": Kind(
        _paint_iris,
        _strappy(4, 0.13, (98, 142, 92), 0.2),
        ("garden", "garden", "meadow", "meadow", "shade", "dark"),
        (
            ((150, 110, 206), (96, 54, 168), (70, 34, 132)),
            ((176, 150, 226), (120, 84, 196), (92, 56, 168)),
            ((162, 184, 236), (140, 160, 228), (104, 124, 206)),
            ((250, 226, 110), (246, 208, 60), (222, 168, 40)),
            ((240, 226, 150), (132, 36, 46), (92, 20, 32)),
            ((244, 244, 250), (226, 226, 246), (186, 186, 226)),
        ),
        crowd=(1, 1, 1, 2),
    ),
    "pansy": Kind(
        _paint_pansy,
        _bushy(Blade(0.6, 0.2, 0.6, 0.4, teeth=0.1), 5),
        ("garden", "shade", "shade", "soil", "soil", "wall"),
        (
            ((92, 44, 158), (120, 76, 186), (250, 214, 60), (40, 16, 60)),
            ((92, 44, 158), (104, 52, 170), (110, 60, 176), (36, 12, 56)),
            ((84, 40, 150), (238, 234, 246), (250, 222, 80), (52, 20, 80)),
            ((250, 246, 226), (252, 246, 220), (252, 216, 70), (80, 30, 60)),
            ((250, 214, 50), (250, 208, 40), (250, 196, 30), (70, 28, 24)),
            ((122, 22, 54), (220, 150, 60), (246, 196, 60), (52, 12, 26)),
            ((118, 136, 220), (150, 164, 232), (244, 236, 180), (44, 24, 90)),
        ),
        crowd=(1, 1, 2, 3),
    ),
    "lily": Kind(
        _paint_lily,
        _leafy_stalk(Blade(0.95, 0.13, 0.6, 0.8), 4, 0.05, 65),
        ("garden", "garden", "shade", "shade", "sky", "dark", "wall"),
        (
            ((240, 112, 30), (246, 150, 50), (70, 22, 16)),
            ((240, 112, 30), (246, 150, 50), (70, 22, 16)),
            ((226, 84, 36), (242, 130, 60), (70, 18, 16)),
            ((250, 206, 70), (250, 222, 120), (110, 44, 20)),
            ((238, 130, 176), (252, 226, 232), (166, 30, 84)),
            ((252, 250, 244), (226, 232, 170), (206, 150, 130)),
        ),
    ),
    "water lily": Kind(
        _paint_water_lily,
        _pond_leaves,
        ("pond", "pond", "pond", "shade", "garden"),
        (
            ((250, 176, 204), (252, 226, 232), (250, 204, 50)),
            ((232, 84, 150), (250, 176, 204), (250, 206, 60)),
            ((214, 44, 104), (240, 120, 160), (250, 200, 60)),
            ((252, 252, 250), (236, 240, 224), (250, 206, 50)),
            ((252, 252, 250), (236, 240, 224), (250, 206, 50)),
            ((252, 240, 150), (250, 232, 120), (248, 190, 40)),
        ),
        crowd=(1, 1, 1, 2),
        height=0.5,
    ),
    "orchid": Kind(
        _paint_orchid,
        _orchid_spray,
        ("wall", "wall", "dark", "shade", "garden", "paper"),
        (
            ((206, 40, 160), (160, 20, 120), (120, 10, 70)),
            ((206, 40, 160), (160, 20, 120), (120, 10, 70)),
            ((236, 150, 214), (216, 90, 176), (176, 24, 104)),
            ((252, 250, 250), (242, 236, 226), (236, 166, 40)),
            ((252, 250, 250), (240, 226, 236), (190, 30, 110)),
            ((244, 226, 90), (236, 206, 70), (204, 84, 50)),
        ),
        crowd=(1, 1, 2, 3),
    ),
    "hibiscus": Kind(
        _paint_hibiscus,
        _bushy(Blade(0.95, 0.34, 0.5, 0.75, teeth=0.1, steps=13), 6),
        ("shade", "shade", "garden", "garden", "dark", "sky"),
        (
            ((228, 44, 58), (196, 20, 44), (110, 4, 24)),
            ((244, 128, 168), (230, 84, 132), (150, 14, 54)),
            ((244, 128, 168), (230, 84, 132), (150, 14, 54)),
            ((246, 140, 60), (240, 110, 50), (176, 24, 36)),
            ((250, 216, 84), (248, 200, 70), (176, 34, 40)),
            ((252, 236, 214), (248, 214, 196), (160, 16, 50)),
        ),
        radius=0.45,
        crowd=(1, 1, 1, 1, 2),
    ),
    "bluebell": Kind(
        _paint_bluebell,
        _strappy(5, 0.07),
        ("garden", "garden", "meadow", "meadow", "shade", "soil"),
        (
            ((116, 104, 214), (78, 62, 176)),
            ((130, 130, 230), (86, 84, 196)),
            ((146, 110, 216), (100, 64, 176)),
        ),
        radius=0.47,
        crowd=(1, 1, 1, 2),
        height=0.55,
    ),
    "snowdrop": Kind(
        _paint_snowdrop,
        _strappy(4, 0.09, (112, 146, 116)),
        ("shade", "shade", "garden", "soil", "snow", "sky", "dark"),
        (
            ((252, 252, 252), (224, 230, 238), (92, 150, 60)),
            ((250, 252, 248), (220, 232, 226), (104, 156, 70)),
        ),
        radius=0.42,
        crowd=(1, 1, 2, 3),
        height=0.55,
    ),
    "anthurium": Kind(
        _paint_anthurium,
        _bushy(Blade(1.0, 0.34, 0.3, 0.8), 4),
        ("shade", "shade", "garden", "wall", "dark"),
        (
            ((218, 24, 36), (250, 120, 110), (246, 214, 110)),
            ((218, 24, 36), (250, 120, 110), (250, 236, 190)),
            ((240, 110, 120), (252, 196, 190), (246, 206, 120)),
            ((246, 242, 220), (252, 252, 244), (246, 190, 110)),
        ),
        crowd=(1, 1, 1, 2),
    ),
}

KINDS: tuple[str, ...] = tuple(_KINDS)


# ---------------------------------------------------------------------------------------------------------------------
# Composition


def _spots(rng: random.Random, kind: Kind) -> list[Spot]:
    """Choose where the flowers stand, how large they are and their colours; smaller ones further back."""
    base = rng.choice(kind.palettes)
    count = rng.choice(kind.crowd)
    jitter = 0.05 if count == 1 else 0.04
    places = {
        1: ((0.5, kind.height, 1.0),),
        2: ((0.29, kind.height - 0.1, 0.7), (0.68, kind.height + 0.11, 0.78)),
        3: ((0.23, kind.height - 0.06, 0.55), (0.76, kind.height - 0.14, 0.57), (0.5, kind.height + 0.18, 0.68)),
    }[count]
    mirrored = rng.random() < 0.5
    spots = []
    for x, y, share in places:
        palette = base if kind.flat else tuple(_varied(rng, colour, 10) for colour in base)
        spots.append(
            Spot(
                (1 - x if mirrored else x) + rng.uniform(-jitter, jitter),
                y + rng.uniform(-jitter, jitter),
                kind.radius * share * rng.uniform(0.88, 1.1),
                palette,
            )
        )
    return spots


def _illuminate(picture: Image.Image, rng: random.Random, light: float) -> Image.Image:
    """Lay soft light over a finished picture: brighter on the lit side, dimmer on the other, warm or cool."""
    side = picture.width
    sun, warmth, strength = math.radians(light), rng.uniform(-0.04, 0.05), rng.uniform(0.05, 0.22)
    exposure = rng.uniform(0.92, 1.06)
    mask = Image.new("L", (5, 5))
    mask.putdata(
        [
            int(max(0, min(255, 128 + 62 * (x * math.sin(sun) - y * math.cos(sun)) + rng.uniform(-20, 20))))
            for y in (-1, -0.5, 0, 0.5, 1)
            for x in (-1, -0.5, 0, 0.5, 1)
        ]
    )

    def curve(gain: float) -> list[int]:
        channels = (gain + warmth, gain, gain - warmth)
        return [min(255, int(value * channel)) for channel in channels for value in range(256)]

    bright = picture.point(curve(exposure + strength * 0.6))
    dim = picture.point(curve(exposure - strength))
    return Image.composite(bright, dim, mask.resize((side, side), Image.Resampling.BICUBIC))


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
    canvas = _SCENES[rng.choice(plan.scenes)](rng, max(size * _OVERSAMPLING, _MIN_CANVAS))
    spots = _spots(rng, plan)
    for spot in spots:
        plan.greenery(canvas, spot)
    for spot in spots:
        plan.flower(canvas, spot)
    return _illuminate(canvas.picture.resize((size, size), Image.Resampling.LANCZOS), rng, canvas.light)


def contact_sheet(per_kind: int = 8, size: int = 96, seed: int = 0) -> Image.Image:
    """Lay out a labelled grid of pictures, one row a kind, `per_kind` pictures of `size` pixels in each row.

    The pictures are those of the seeds `seed`, `seed + 1` and so on. Raises ValueError where `per_kind` is below 1 or
    `size` below 16.
    """
    if per_kind < 1:
        raise ValueError(f"a contact sheet needs at least one picture a kind, not {per_kind}")
    margin = 84
    sheet = Image.new("RGB", (margin + per_kind * size, len(KINDS) * size), _WHITE)
    label = ImageDraw.Draw(sheet)
    for row, kind in enumerate(KINDS):
        label.text((6, row * size + size // 2 - 6), kind, fill=_BLACK)
        for column in range(per_kind):
            sheet.paste(paint(kind, seed + column, size), (margin + column * size, row * size))
    return sheet
