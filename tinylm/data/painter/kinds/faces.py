"""Flowers with a top and a bottom, alike left and right: the iris, the pansy, the orchid and the anthurium."""

import math
from dataclasses import replace

from tinylm.data.painter.canvas import WHITE, Canvas, Colour, Point, curve, mix, ribbon, taper, toned, varied
from tinylm.data.painter.greenery import bushy, stem, strap, strappy
from tinylm.data.painter.kind import Kind, Spot
from tinylm.data.painter.petals import Blade, Tint, dome, draw_blade, freckles, shadow


def _iris(canvas: Canvas, spot: Spot) -> None:
    """Three ruffled standards that rise and three bearded falls that hang."""
    rng = canvas.rng
    standard, fall, fall_deep = spot.palette
    frame = spot.frame(canvas, rng.uniform(-8, 8)).moved(0, -0.02)
    pale = Tint(toned(standard, 0.95), toned(standard, 0.78), 0.1, 6, toned(standard, 0.6), 60, 6, 0.78)
    for degrees, size in ((-92, 0.78), (92, 0.78)):
        blade = Blade(size, 0.3, 0.75, 0.42, ruffle=0.08, bend=-0.12 if degrees > 0 else 0.12)
        tint = Tint(toned(fall, 0.9), toned(fall_deep, 0.85), 0.25, 5, toned(fall_deep, 0.6), 80)
        draw_blade(canvas, frame.turned(degrees * rng.uniform(1.1, 1.3)), blade, tint)
    standards = Blade(1.0, 0.42, 0.62, 0.46, ruffle=0.07, steps=15)
    draw_blade(canvas, frame, standards, pale._replace(rim=toned(standard, 0.8), heart=toned(standard, 0.6)))
    for degrees in (-26, 26):
        curled = replace(standards, bend=-degrees / 120)
        draw_blade(canvas, frame.turned(degrees * rng.uniform(0.85, 1.2)), curled, pale)
    front = Blade(1.04, 0.46, 0.75, 0.44, ruffle=0.07, steps=15)
    draw_blade(
        canvas,
        frame.turned(180 + rng.uniform(-6, 6)),
        front,
        Tint(toned(fall, 1.12), fall_deep, 0.45, 8, toned(fall_deep, 0.6), 80, 8, 0.76),
    )
    beard = Blade(0.42, 0.075, 0.5, 0.6, ruffle=0.2)
    draw_blade(canvas, frame.turned(180), beard, Tint((232, 160, 30), (252, 214, 70), 0.4, layers=3, edge=0.9))
    for degrees in (-118, 118):
        draw_blade(
            canvas,
            frame.turned(degrees),
            replace(beard, length=0.26, width=0.05),
            Tint((232, 160, 30), (250, 205, 40), 0.4, layers=3),
        )


IRIS = Kind(
    _iris,
    strappy(4, 0.13, (98, 142, 92), 0.2),
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
)


def _pansy(canvas: Canvas, spot: Spot) -> None:
    """Five round petals with a whiskered face."""
    rng = canvas.rng
    upper, side, lower, mark = spot.palette
    frame = spot.frame(canvas, rng.uniform(-16, 16), rng.uniform(0.9, 1))
    shadow(canvas, frame, 0.85)
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
        draw_blade(canvas, turned, blade, Tint(colour, toned(colour, 0.78), 0.1, 5, toned(colour, 0.5), 50, 8, 0.74))
        if faced and blotched:
            blot = Blade(length * 0.6, width * 0.62, 0.7, 0.25, ruffle=0.12)
            draw_blade(canvas, turned, blot, Tint(mix(mark, colour, 0.25), mark, 0.3, layers=3, edge=1))
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


PANSY = Kind(
    _pansy,
    bushy(Blade(0.6, 0.2, 0.6, 0.4, teeth=0.1), 5),
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
)


def _orchid(canvas: Canvas, spot: Spot) -> None:
    """A moth orchid: three sepals, two broad wings and a small bright lip."""
    rng = canvas.rng
    wing, throat, lip = spot.palette
    frame = spot.frame(canvas, rng.uniform(-14, 14), rng.uniform(0.88, 1))
    shadow(canvas, frame, 0.8)
    veins = rng.choice((4, 8))
    tint = Tint(wing, throat, 0.05, veins, mix(throat, lip, 0.5), 80, 7, 0.8)
    sepal = Blade(0.98, 0.33, 0.55, 0.42, ruffle=0.02)
    for degrees in (128, -128, 0):
        draw_blade(canvas, frame.turned(degrees + rng.uniform(-4, 4)), sepal, tint._replace(rim=toned(wing, 0.92)))
    for degrees in (-76, 76):
        draw_blade(
            canvas,
            frame.turned(degrees + rng.uniform(-4, 4)),
            Blade(1.08, 0.64, 0.62, 0.4, ruffle=0.02, steps=14),
            tint,
        )
    if rng.random() < 0.3:
        for degrees in (-76, 76, 0, 128, -128):
            freckles(canvas, frame.turned(degrees), sepal, mix(lip, wing, 0.2))
    lip_tint = Tint(lip, toned(lip, 0.7), 0.1, 3, toned(lip, 0.5), 100, 4, 0.72)
    for degrees, length, width in ((140, 0.34, 0.15), (-140, 0.34, 0.15), (180, 0.52, 0.19)):
        draw_blade(canvas, frame.turned(degrees), Blade(length, width, 0.6, 0.35), lip_tint)
    canvas.disc(frame, (0, 0.13), 0.1, (250, 202, 60))
    canvas.disc(frame, (0, 0.15), 0.05, toned(lip, 0.6))
    dome(canvas, frame.moved(0, -0.03), 0.1, mix(wing, throat, 0.4), WHITE)


def _orchid_spray(canvas: Canvas, spot: Spot) -> None:
    """An arching dark stem with buds, and thick strap leaves at the foot."""
    rng = canvas.rng
    side = rng.choice((-1, 1))
    for lean in (-0.35, 0.3):
        arch = curve((0.5, 1.05), (0.5 + lean * 0.4, 0.8), (0.5 + lean * 1.4, 0.9), 8)
        strap(canvas, arch, 0.06, varied(rng, (58, 104, 52)))
    foot, bow = (spot.x - side * 0.3, 1.05), (spot.x - side * 0.25, spot.y - 0.2)
    path = curve(foot, bow, (spot.x + side * 0.62, spot.y - 0.3), 12)
    stem(canvas, path, 0.012, varied(rng, (96, 116, 62)))
    for x, y in path[-3:]:
        bud = Blade(0.11, 0.045, 0.6, 0.5)
        bud_colour = mix(spot.palette[0], (150, 170, 90), 0.45)
        draw_blade(
            canvas,
            canvas.scene.moved(x, y).turned(180 - side * 25),
            bud,
            Tint(toned(bud_colour, 0.85), bud_colour, 0.5),
        )


ORCHID = Kind(
    _orchid,
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
)


def _heart() -> list[Point]:
    """The outline of a heart, notch up, point down, about two units wide."""
    points = []
    for i in range(26):
        t = 2 * math.pi * i / 26
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((math.sin(t) ** 3, -y / 16 * 1.04))
    return points


def _anthurium(canvas: Canvas, spot: Spot) -> None:
    """A glossy heart-shaped bract with a knobbly spike."""
    rng = canvas.rng
    bract, pale, spike = spot.palette
    frame = spot.frame(canvas, rng.uniform(-50, 50), rng.uniform(0.8, 1))
    shadow(canvas, frame, 0.85)
    heart = _heart()
    canvas.fill(frame, heart, toned(bract, 0.62))
    canvas.glow(frame.scaled(0.96), heart, (0, -0.2), toned(bract, 0.86), mix(bract, pale, 0.25), 8)
    for side in (-1, 1):
        for x, y in ((0.75, -0.62), (0.88, -0.15), (0.6, 0.3), (0.25, 0.65)):
            vein = curve((0, -0.3), (side * x * 0.5, y * 0.5 - 0.25), (side * x, y), 6)
            canvas.line(frame, vein, toned(bract, 0.62), 0.007, 120)
            canvas.line(frame, [(px, py - 0.03) for px, py in vein], toned(pale, 1.1), 0.006, 70)
    canvas.line(frame, ((0, -0.3), (0, 0.9)), toned(bract, 0.62), 0.008, 140)
    for centre, reach in (((-0.42, -0.42), 0.22), ((0.5, -0.2), 0.15)):
        for layer in range(3):
            canvas.disc(frame.scaled(1, 0.6), centre, reach * (1 - layer * 0.25), WHITE, 26)
    bow = rng.uniform(-0.2, 0.2)
    path = curve((0, -0.3), (bow * 0.3, 0.0), (bow + 0.12, rng.choice((0.5, -0.95))), 9)
    canvas.fill(frame, ribbon([(x + 0.07, y + 0.05) for x, y in path], taper(0.1, 0.07)), toned(bract, 0.45), 120)
    for width, lit in ((0.1, 0.72), (0.078, 0.95), (0.04, 1.2)):
        canvas.fill(frame, ribbon(path, taper(width, 0.65 * width)), toned(spike, lit))
    for x, y in path[1:]:
        for dx in (-0.05, 0, 0.05):
            canvas.disc(frame, (x + dx, y), 0.014, toned(spike, 0.78))


ANTHURIUM = Kind(
    _anthurium,
    bushy(Blade(1.0, 0.34, 0.3, 0.8), 4),
    ("shade", "shade", "garden", "wall", "dark"),
    (
        ((218, 24, 36), (250, 120, 110), (246, 214, 110)),
        ((218, 24, 36), (250, 120, 110), (250, 236, 190)),
        ((240, 110, 120), (252, 196, 190), (246, 206, 120)),
        ((246, 242, 220), (252, 252, 244), (246, 190, 110)),
    ),
    crowd=(1, 1, 1, 2),
)
