"""Stars of six tepals: the daffodil with its trumpet and the lily with its freckles."""

import math
from collections.abc import Callable

from tinylm.data.painter.canvas import Canvas, Colour, Frame, curve, mix, polar, ribbon, toned
from tinylm.data.painter.greenery import leafy_stalk, strappy
from tinylm.data.painter.kind import Kind, Spot
from tinylm.data.painter.petals import Blade, Tint, draw_blade, freckles, ring, shadow, stamens


def _daffodil(canvas: Canvas, spot: Spot) -> None:
    """A star of six tepals with a frilled trumpet that leans towards the viewer."""
    rng = canvas.rng
    star, star_deep, trumpet = spot.palette
    frame = spot.frame(canvas, rng.uniform(-30, 30), rng.uniform(0.85, 1))
    shadow(canvas, frame, 0.85)
    blade = Blade(1, 0.36, 0.55, 0.62, rng.uniform(-0.06, 0.06), ruffle=0.03)
    tint = Tint(star, star_deep, 0.15, 4, toned(star_deep, 0.75), 70, 6, 0.78)
    ring(canvas, frame, 3, blade, tint._replace(rim=toned(star, 0.93)), 60, 5)
    ring(canvas, frame, 3, blade, tint, 0, 5)
    lean = rng.uniform(0, 360)
    mouth = polar(math.radians(lean), rng.uniform(0.04, 0.3))
    for layer in range(7):
        share = layer / 6
        spot_on = (mouth[0] * share, mouth[1] * share)
        canvas.disc(frame, spot_on, 0.26 + 0.1 * share, toned(trumpet, 0.68 + 0.26 * share))
    frill = [polar(i * math.pi / 13, 0.42 + 0.035 * (i % 2), mouth) for i in range(26)]
    canvas.fill(frame, frill, toned(trumpet, 0.74))
    canvas.glow(frame.moved(0, -0.012), frill, mouth, toned(trumpet, 1.12), trumpet, 4)
    throat = (mouth[0] * 0.8, mouth[1] * 0.8 + 0.02)
    for layer in range(5):
        canvas.disc(frame, throat, 0.3 - 0.05 * layer, toned(trumpet, 0.88 - 0.1 * layer))
    stamens(canvas, frame.moved(*throat), 6, 0.11, toned(trumpet, 1.2), (250, 224, 110), 0.035)


DAFFODIL = Kind(
    _daffodil,
    strappy(5, 0.1, (104, 140, 96)),
    ("garden", "garden", "shade", "meadow", "sky", "soil"),
    (
        ((252, 226, 60), (246, 202, 30), (248, 176, 20)),
        ((252, 226, 60), (246, 202, 30), (244, 190, 24)),
        ((252, 240, 130), (248, 222, 84), (246, 164, 24)),
        ((250, 248, 228), (240, 232, 180), (246, 176, 30)),
    ),
    radius=0.42,
    crowd=(1, 1, 2, 3),
)


def _lily(canvas: Canvas, spot: Spot) -> None:
    """Six recurved, freckled tepals and long stamens; orange ones may nod as a Turk's cap."""
    if spot.palette[0][2] < 70 and canvas.rng.random() < 0.4:
        _turks_cap(canvas, spot)
        return
    rng = canvas.rng
    tepal, throat, freckle = spot.palette
    frame = spot.frame(canvas, rng.uniform(-40, 40), rng.uniform(0.82, 1))
    shadow(canvas, frame, 0.7)
    for start, width in ((60, 0.23), (0, 0.3)):
        for degrees in (start, start + 120, start + 240):
            turned = frame.turned(degrees + rng.uniform(-5, 5))
            blade = Blade(rng.uniform(1.02, 1.15), width, 0.62, 0.85, rng.uniform(-0.22, 0.22), 0.03)
            tint = Tint(toned(tepal, 0.95 if start else 1.0), throat, 0.2, 3, toned(tepal, 0.7), 70, 6, 0.74)
            draw_blade(canvas, turned, blade, tint)
            freckles(canvas, turned, blade, freckle)
    canvas.disc(frame, (0, 0), 0.12, mix(throat, (150, 170, 80), 0.5))
    for i in range(6):
        angle = math.radians(60 * i + rng.uniform(-14, 14) + 30)
        end = polar(angle, rng.uniform(0.5, 0.66), (0, 0.08))
        canvas.line(
            frame, curve((0, 0), (end[0] * 0.5, end[1] * 0.5 - 0.12), end, 5), mix(throat, (214, 226, 150), 0.7), 0.01
        )
        turned = frame.moved(*end).turned(math.degrees(angle) + rng.uniform(-20, 20))
        _anther(canvas, turned, Blade(0.2, 0.055), (78, 36, 22), (132, 66, 30))


def _anther(canvas: Canvas, frame: Frame, blade: Blade, rim: Colour, heart: Colour) -> None:
    """Draw the pollen-bearing end of a stamen, its middle at the frame's origin."""
    draw_blade(canvas, frame.moved(0, blade.length / 2), blade, Tint(rim, heart, 0.5, layers=3))


def _swelling(width: float) -> Callable[[float], float]:
    """Half-widths of a ribbon that is widest in the middle and nearly closes at both ends."""
    return lambda share: width * math.sin(math.pi * (0.1 + 0.88 * share)) ** 0.8


def _turks_cap(canvas: Canvas, spot: Spot) -> None:
    """A nodding lily from the side: tepals that roll up and back, stamens that hang."""
    rng = canvas.rng
    tepal, throat, freckle = spot.palette
    frame = spot.frame(canvas, rng.uniform(-8, 8)).moved(0, -0.15)
    for i in range(6):
        x = (i - 2.5) * 0.16
        end = (x * 2.2, 0.9 + rng.uniform(-0.1, 0.1))
        canvas.line(frame, curve((0, 0.1), (x * 0.9, 0.5), end, 5), mix(throat, (220, 210, 140), 0.6), 0.01)
        _anther(canvas, frame.moved(*end).turned(90 + x * 60), Blade(0.18, 0.05), (66, 30, 20), (112, 54, 28))
    for x in (-0.25, 0.25, -0.62, 0.62, -1.0, 1.0, 0.0):
        out = curve((x * 0.15, 0.2), (x * 1.3, -0.05 - 0.1 * abs(x)), (x * 0.75, -0.78 + 0.15 * abs(x)), 10)
        shade = 0.84 if abs(x) == 0.25 else 1.0
        for width, colour in (
            (0.2, toned(tepal, 0.7)),
            (0.175, toned(tepal, shade)),
            (0.11, mix(tepal, throat, 0.5)),
            (0.03, toned(throat, 0.9)),
        ):
            canvas.fill(frame, ribbon(out, _swelling(width)), colour)
        for px, py in out[2:9]:
            canvas.disc(frame, (px + rng.uniform(-0.1, 0.1), py + rng.uniform(-0.04, 0.04)), 0.024, freckle)


LILY = Kind(
    _lily,
    leafy_stalk(Blade(0.95, 0.13, 0.6, 0.8), 4, 0.05, 65),
    ("garden", "garden", "shade", "shade", "sky", "dark", "wall"),
    (
        ((240, 112, 30), (246, 150, 50), (70, 22, 16)),
        ((240, 112, 30), (246, 150, 50), (70, 22, 16)),
        ((226, 84, 36), (242, 130, 60), (70, 18, 16)),
        ((250, 206, 70), (250, 222, 120), (110, 44, 20)),
        ((238, 130, 176), (252, 226, 232), (166, 30, 84)),
        ((252, 250, 244), (226, 232, 170), (206, 150, 130)),
    ),
)
