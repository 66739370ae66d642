"""What is behind the flowers, and the light over the finished picture."""

import math
import random
from collections.abc import Callable, Sequence

from PIL import Image, ImageFilter

from tinylm.data.painter.canvas import WHITE, Canvas, Colour, curve, mix, ribbon, taper, toned, varied
from tinylm.data.painter.greenery import lily_pad


def _mist(rng: random.Random, side: int, colours: Sequence[Colour], cells: int, amount: int = 12) -> Image.Image:
    """A blurred mottle of the given colours."""
    coarse = Image.new("RGB", (cells, cells))
    coarse.putdata([varied(rng, rng.choice(colours), amount) for _ in range(cells * cells)])
    # Blurred at a middle size first: stretching at once would show the cells as a chequerboard.
    middle = coarse.resize((cells * 5, cells * 5), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(3))
    return middle.resize((side, side), Image.Resampling.BICUBIC)


def _gradient(rng: random.Random, side: int, colours: Sequence[Colour], amount: int = 6) -> Image.Image:
    """Colours that melt into each other from top to bottom."""
    coarse = Image.new("RGB", (2, len(colours)))
    coarse.putdata([varied(rng, colour, amount) for colour in colours for _ in range(2)])
    return coarse.resize((side, side), Image.Resampling.BICUBIC)


def _grass(canvas: Canvas, count: int, colour: Colour, low: float = 0.25, high: float = 0.8) -> None:
    """Draw thin blades of grass from the lower edge."""
    rng = canvas.rng
    for _ in range(count):
        x, height = rng.uniform(-0.05, 1.05), rng.uniform(low, high)
        lean = rng.uniform(-0.2, 0.2)
        path = curve((x, 1.02), (x, 1 - height * 0.6), (x + lean, 1 - height), 5)
        width = rng.uniform(0.006, 0.014)
        shade = toned(colour, rng.uniform(0.6, 1.2))
        canvas.fill(canvas.scene, ribbon(path, taper(width, 0)), shade, 190)


def _bokeh(canvas: Canvas, count: int, colours: Sequence[Colour]) -> None:
    """Draw soft discs of light, as a camera does with far-off highlights."""
    rng = canvas.rng
    for _ in range(count):
        spot, radius = (rng.random(), rng.random()), rng.uniform(0.03, 0.11)
        colour = varied(rng, rng.choice(colours))
        canvas.disc(canvas.scene, spot, radius, colour, 26)
        canvas.disc(canvas.scene, spot, radius * 0.8, colour, 26)


def _shade(rng: random.Random, side: int) -> Canvas:
    """Dim leaves far behind, seldom with a highlight."""
    greens: tuple[Colour, ...] = ((20, 40, 18), (34, 60, 26), (14, 24, 14), (52, 78, 38), (26, 34, 20))
    canvas = Canvas(_mist(rng, side, greens, rng.randint(5, 9)), rng)
    _bokeh(canvas, rng.randint(0, 6), ((70, 110, 50), (110, 140, 80)))
    return canvas


def _garden(rng: random.Random, side: int) -> Canvas:
    """Sunlit leaves out of focus."""
    greens: tuple[Colour, ...] = ((70, 108, 46), (96, 134, 62), (54, 84, 40), (120, 150, 84), (84, 104, 56))
    canvas = Canvas(_mist(rng, side, greens, rng.randint(4, 9)), rng)
    _bokeh(canvas, rng.randint(2, 9), ((170, 200, 110), (220, 230, 170), (60, 90, 40)))
    return canvas


def _meadow(rng: random.Random, side: int) -> Canvas:
    """A slope of grass under tall blades."""
    colours: tuple[Colour, ...] = ((150, 178, 96), (112, 152, 68), (82, 126, 52), (58, 96, 40))
    canvas = Canvas(_gradient(rng, side, colours, 14), rng)
    _grass(canvas, rng.randint(18, 34), (98, 146, 58), 0.2, 1.0)
    return canvas


def _sky(rng: random.Random, side: int) -> Canvas:
    """Blue sky, with clouds or grass on some days."""
    top, bottom = rng.choice(
        (((62, 122, 204), (172, 208, 238)), ((96, 150, 214), (222, 232, 240)), ((40, 84, 170), (110, 160, 218)))
    )
    canvas = Canvas(_gradient(rng, side, (top, mix(top, bottom, 0.5), bottom)), rng)
    for _ in range(rng.randint(0, 4)):
        x, y, spread = rng.random(), rng.uniform(0.05, 0.7), rng.uniform(0.08, 0.18)
        for _ in range(6):
            puff = (x + rng.uniform(-1.6, 1.6) * spread, y + rng.uniform(-0.4, 0.4) * spread)
            canvas.disc(canvas.scene, puff, spread * rng.uniform(0.5, 1), WHITE, 38)
    if rng.random() < 0.5:
        _grass(canvas, rng.randint(24, 36), canvas.green, 0.08, 0.35)
    return canvas


def _soil(rng: random.Random, side: int) -> Canvas:
    """Crumbly earth with a little grass."""
    browns: tuple[Colour, ...] = ((84, 62, 42), (60, 44, 32), (108, 84, 58), (44, 34, 26), (70, 76, 42))
    canvas = Canvas(_mist(rng, side, browns, rng.randint(9, 14)), rng)
    for _ in range(26):
        spot = (rng.random(), rng.random())
        canvas.disc(canvas.scene, spot, rng.uniform(0.006, 0.022), varied(rng, (112, 90, 66), 30), 120)
    _grass(canvas, rng.randint(6, 16), canvas.green, 0.15, 0.5)
    return canvas


def _paper(rng: random.Random, side: int) -> Canvas:
    """A sheet of paper."""
    paper = rng.choice(((250, 247, 238), (244, 240, 226), (252, 252, 252), (238, 240, 232)))
    return Canvas(_mist(rng, side, (paper,), 6, 4), rng)


def _wall(rng: random.Random, side: int) -> Canvas:
    """A wall, brighter at the top."""
    wall = rng.choice(((206, 186, 160), (178, 186, 190), (196, 170, 150), (150, 160, 150), (120, 96, 84)))
    return Canvas(_gradient(rng, side, (toned(wall, 1.2), wall, toned(wall, 0.7)), 10), rng)


def _dark(rng: random.Random, side: int) -> Canvas:
    """Near black."""
    return Canvas(_mist(rng, side, ((8, 10, 8), (16, 22, 14), (24, 34, 20), (12, 12, 16)), 6, 5), rng)


def _snow(rng: random.Random, side: int) -> Canvas:
    """Snow below a grey wood."""
    colours: tuple[Colour, ...] = ((70, 84, 84), (104, 118, 112), (190, 202, 212), (226, 234, 242))
    return Canvas(_gradient(rng, side, colours, 10), rng)


def _pond(rng: random.Random, side: int) -> Canvas:
    """Water with ripples and floating leaves."""
    deep = rng.choice(((28, 52, 58), (40, 72, 92), (30, 50, 36), (64, 98, 118)))
    canvas = Canvas(_gradient(rng, side, (toned(deep, 1.16), deep, toned(deep, 0.66)), 8), rng)
    for _ in range(rng.randint(8, 16)):
        x, y, reach = rng.random(), rng.random(), rng.uniform(0.05, 0.2)
        ripple = curve((x - reach, y), (x, y + 0.02), (x + reach, y), 6)
        canvas.line(canvas.scene, ripple, toned(deep, 1.35), 0.006, 90)
    for _ in range(rng.randint(2, 4)):
        lily_pad(
            canvas,
            (rng.uniform(0, 1), rng.choice((rng.uniform(0.05, 0.4), rng.uniform(0.6, 1)))),
            rng.uniform(0.16, 0.3),
        )
    return canvas


SCENES: dict[str, Callable[[random.Random, int], Canvas]] = {
    "shade": _shade,
    "garden": _garden,
    "meadow": _meadow,
    "sky": _sky,
    "soil": _soil,
    "paper": _paper,
    "wall": _wall,
    "dark": _dark,
    "snow": _snow,
    "pond": _pond,
}


def illuminate(picture: Image.Image, rng: random.Random, light: float) -> Image.Image:
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

    def exposed(gain: float) -> list[int]:
        channels = (gain + warmth, gain, gain - warmth)
        return [min(255, int(value * channel)) for channel in channels for value in range(256)]

    bright = picture.point(exposed(exposure + strength * 0.6))
    dim = picture.point(exposed(exposure - strength))
    return Image.composite(bright, dim, mask.resize((side, side), Image.Resampling.BICUBIC))
