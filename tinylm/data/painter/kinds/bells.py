"""Flowers that hang from a stem which bends over: the bluebell and the snowdrop."""

from tinylm.data.painter.canvas import Canvas, Colour, Frame, curve, mix, ribbon, taper, toned, varied
from tinylm.data.painter.greenery import stem, strappy
from tinylm.data.painter.kind import Kind, Spot
from tinylm.data.painter.petals import Blade, Tint, draw_blade


def _bluebell(canvas: Canvas, spot: Spot) -> None:
    """A spray that arches to one side, its bells hanging in a row."""
    rng = canvas.rng
    bell, deep = spot.palette
    side = rng.choice((-1, 1))
    top = (spot.x + side * spot.r * 0.55, spot.y - spot.r * 0.72)
    path = curve(
        (spot.x - side * spot.r * 0.55, 1.05), (spot.x - side * spot.r * 0.75, spot.y - spot.r * 1.35), top, 12
    )
    stem(canvas, path, spot.r * 0.045, mix(canvas.green, deep, 0.3))
    for i, (x, y) in enumerate(path[4:]):
        out = side if i % 3 else -side
        hang = canvas.scene.moved(x + out * spot.r * (0.1 + 0.07 * (i % 2)), y + spot.r * 0.08).scaled(spot.r)
        canvas.line(
            canvas.scene, ((x, y), (x + out * spot.r * 0.12, y + spot.r * 0.1)), mix(canvas.green, deep, 0.4), 0.009
        )
        size = 1.12 - 0.055 * i
        _bell(canvas, hang.turned(-out * rng.uniform(6, 30)).scaled(size), bell, deep)


def _bell(canvas: Canvas, frame: Frame, bell: Colour, deep: Colour) -> None:
    """One hanging bell, mouth down, with tips that curl outwards."""
    for side in (-1, 1, 0):
        curl = curve((side * 0.12, 0.4), (side * 0.2, 0.66), (side * 0.36, 0.52) if side else (0.05, 0.66), 6)
        canvas.fill(frame, ribbon(curl, taper(0.075, 0.019)), toned(bell, 0.8 if side else 1.0))
    half = ((0.06, 0.0), (0.15, 0.08), (0.18, 0.24), (0.21, 0.5))
    cup = [(-x, y) for x, y in half] + [(0.0, 0.56)] + list(half[::-1])
    canvas.fill(frame, cup, toned(deep, 0.78))
    canvas.glow(frame.moved(0, 0.01).scaled(0.92, 0.97), cup, (-0.04, 0.3), deep, toned(bell, 1.1), 6)
    for x in (-0.09, 0.02, 0.11):
        canvas.line(frame, ((x * 0.6, 0.06), (x, 0.3), (x * 1.3, 0.5)), toned(deep, 0.7), 0.004, 120)
    canvas.disc(frame, (0, 0), 0.065, mix(deep, (70, 80, 60), 0.5))


BLUEBELL = Kind(
    _bluebell,
    strappy(5, 0.07),
    ("garden", "garden", "meadow", "meadow", "shade", "soil"),
    (
        ((116, 104, 214), (78, 62, 176)),
        ((130, 130, 230), (86, 84, 196)),
        ((146, 110, 216), (100, 64, 176)),
    ),
    radius=0.47,
    crowd=(1, 1, 1, 2),
    height=0.55,
)


def _snowdrop(canvas: Canvas, spot: Spot) -> None:
    """A white drop of three tepals under a green ovary, on a stem that crooks over."""
    rng = canvas.rng
    white, shade, green = spot.palette
    side = rng.choice((-1, 1))
    neck = (spot.x, spot.y - spot.r * 0.78)
    top = (spot.x - side * spot.r * 0.25, spot.y - spot.r * 1.12)
    rise = curve((spot.x - side * spot.r * 0.75, 1.05), (spot.x - side * spot.r * 0.75, spot.y - spot.r * 0.9), top, 9)
    stem(canvas, [*rise, *curve(top, (spot.x, top[1] - 0.01), neck, 4)[1:]], spot.r * 0.05, varied(rng, (122, 150, 84)))
    frame = spot.frame(canvas, side * rng.uniform(-14, 8)).moved(0, -0.5).turned(180)
    spread = rng.uniform(16, 40)
    tint = Tint(toned(white, 0.97), shade, 0.15, 3, toned(shade, 0.8), 90, 6, 0.78)
    draw_blade(
        canvas, frame, Blade(0.95, 0.3, 0.6, 0.4), tint._replace(rim=toned(white, 0.84), heart=toned(shade, 0.84))
    )
    draw_blade(canvas, frame, Blade(0.8, 0.3, 0.6, 0.25), tint._replace(rim=toned(white, 0.92)))
    mark = frame.moved(0, -0.62)
    canvas.line(mark, ((-0.15, -0.06), (0, 0.08), (0.15, -0.06)), green, 0.024)
    for degrees in (-spread, spread):
        blade = Blade(1.35, 0.31, 0.75, 0.42, bend=degrees / 160)
        draw_blade(canvas, frame.turned(degrees), blade, tint)
    if spread < 27:
        draw_blade(canvas, frame.turned(rng.uniform(-6, 6)), Blade(1.3, 0.32, 0.75, 0.4), tint._replace(rim=white))
    draw_blade(
        canvas, frame.moved(0, 0.28), Blade(0.36, 0.14), Tint(toned(green, 0.85), toned(green, 1.2), 0.6, layers=4)
    )


SNOWDROP = Kind(
    _snowdrop,
    strappy(4, 0.09, (112, 146, 116)),
    ("shade", "shade", "garden", "soil", "snow", "sky", "dark"),
    (
        ((252, 252, 252), (224, 230, 238), (92, 150, 60)),
        ((250, 252, 248), (220, 232, 226), (104, 156, 70)),
    ),
    radius=0.42,
    crowd=(1, 1, 2, 3),
    height=0.55,
)
