"""Flowers whose few broad petals form a cup or a bowl: the tulip, the poppy and the hibiscus."""

from tinylm.data.painter.canvas import BLACK, Canvas, curve, mix, ribbon, taper, toned
from tinylm.data.painter.greenery import bushy, stalk, stem, strappy
from tinylm.data.painter.kind import Kind, Spot
from tinylm.data.painter.petals import Blade, Tint, dome, draw_blade, ring, shadow, stamens


def _tulip(canvas: Canvas, spot: Spot) -> None:
    """A cup seen from the side: three petals behind, three in front."""
    rng = canvas.rng
    body, flame, foot = spot.palette
    frame = spot.frame(canvas, rng.uniform(-9, 9)).moved(0, 0.95)
    openness = rng.uniform(0.6, 1.5)
    back = Tint(toned(body, 0.66), toned(mix(body, flame, 0.3), 0.62), 0.3)
    for degrees in (-17, 17, 0):
        draw_blade(canvas, frame.turned(degrees * openness), Blade(1.9, 0.5, 0.5, 0.62), back)
    for degrees in (-11, 11):
        side = 1 if degrees > 0 else -1
        lit = 0.86 if (side > 0) == (canvas.light < 0) else 1.0
        tint = Tint(toned(body, lit * 0.92), toned(mix(body, flame, 0.75), lit), 0.4, 4, toned(body, 0.6), 60)
        blade = Blade(1.86, 0.56, 0.45, 0.66, bend=side * 0.12, ruffle=0.015)
        draw_blade(canvas, frame.moved(side * 0.12, 0).turned(degrees * openness), blade, tint)
    front = Tint(body, mix(body, flame, 0.85), 0.5, 5, toned(body, 0.62), 55)
    draw_blade(canvas, frame, Blade(1.66, 0.56, 0.45, 0.7, rng.uniform(-0.1, 0.1), 0.02), front)
    for radius in (0.3, 0.2):
        canvas.disc(frame.moved(0, -0.14).scaled(1, 0.6), (0, 0), radius, foot, 60)


TULIP = Kind(
    _tulip,
    strappy(4, 0.2, (128, 158, 120)),
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
)


def _poppy(canvas: Canvas, spot: Spot) -> None:
    """Four crumpled-silk petals round a dark or golden heart."""
    rng = canvas.rng
    silk, deep, blotch, heart = spot.palette
    frame = spot.frame(canvas, rng.uniform(0, 90), rng.uniform(0.78, 1))
    shadow(canvas, frame, 0.95)
    for start, count in ((0, 2), (90, 2)):
        blade = Blade(1.02, 0.84, 0.85, 0.58, rng.uniform(-0.1, 0.1), 0.05, steps=16)
        ring(canvas, frame, count, blade, Tint(silk, deep, 0.1, 9, toned(deep, 0.8), 55, 10, 0.8), start, 8)
        patch = Blade(0.42, 0.25, 0.6, 0.3, ruffle=0.1)
        ring(canvas, frame, count, patch, Tint(mix(deep, blotch, 0.75), blotch, 0.2, layers=3, edge=1), start, 4)
    stamens(canvas, frame, 34, 0.34, toned(heart, 0.8), heart, 0.034)
    pod = (124, 146, 84) if heart == BLACK else toned(heart, 1.1)
    dome(canvas, frame, 0.13, toned(pod, 0.75), pod)


def _poppy_stalk(canvas: Canvas, spot: Spot) -> None:
    """A thin hairy stem, feathery leaves and a nodding bud."""
    rng = canvas.rng
    green = mix(canvas.green, (128, 150, 104), 0.4)
    for _ in range(7):
        foot, lean = spot.x + rng.uniform(-0.3, 0.3), rng.uniform(-0.2, 0.2)
        top = rng.uniform(0.55, 0.85)
        rib = curve((foot, 1.05), (foot, (1 + top) / 2), (foot + lean, top), 6)
        canvas.line(canvas.scene, rib, green, 0.01)
        for x, y in rib[1:]:
            canvas.line(canvas.scene, ((x - 0.05, y - 0.05), (x, y), (x + 0.05, y - 0.05)), green, 0.008)
    path = stalk(canvas, spot, 0.04, green)
    if rng.random() < 0.5:
        side = rng.choice((-1, 1))
        start, bud_at = path[5], (spot.x + side * spot.r * 1.1, spot.y + spot.r * 0.2)
        stem(canvas, curve(start, (bud_at[0], start[1] - 0.05), bud_at, 7), 0.008, green)
        bud = Blade(spot.r * 0.45, spot.r * 0.15)
        hanging = canvas.scene.moved(*bud_at).turned(180 - side * 15)
        draw_blade(canvas, hanging, bud, Tint(toned(green, 0.8), toned(green, 1.1), 0.5))


POPPY = Kind(
    _poppy,
    _poppy_stalk,
    ("meadow", "garden", "garden", "shade", "sky", "soil"),
    (
        ((226, 44, 30), (190, 20, 20), (34, 14, 24), BLACK),
        ((226, 44, 30), (190, 20, 20), (34, 14, 24), BLACK),
        ((240, 92, 40), (214, 56, 24), (50, 16, 24), BLACK),
        ((252, 196, 30), (246, 140, 14), (240, 112, 10), (250, 170, 30)),
        ((252, 196, 30), (246, 140, 14), (240, 112, 10), (250, 170, 30)),
        ((252, 252, 250), (232, 234, 236), (226, 226, 190), (246, 182, 26)),
    ),
    flat=True,
)


def _hibiscus(canvas: Canvas, spot: Spot) -> None:
    """Five broad crinkled petals, a dark eye and one long column dusted with pollen."""
    rng = canvas.rng
    petal, deep, eye = spot.palette
    frame = spot.frame(canvas, rng.uniform(-36, 36), rng.uniform(0.8, 1))
    shadow(canvas, frame, 0.95)
    start = rng.uniform(0, 72)
    blade = Blade(1.08, 0.6, 0.85, 0.44, rng.uniform(-0.1, 0.1), 0.055, steps=15)
    ring(canvas, frame, 5, blade, Tint(toned(petal, 1.08), deep, 0.05, 8, toned(deep, 0.72), 75, 10, 0.76), start, 5)
    for reach, share in ((0.56, 0.2), (0.48, 0.45), (0.39, 0.75), (0.29, 1.0)):
        streak = Blade(reach, reach * 0.36, 0.6, 0.8, ruffle=0.06)
        colour = mix(deep, eye, share)
        ring(canvas, frame, 5, streak, Tint(colour, colour, layers=1, edge=1), start, 3)
    column = frame.turned(rng.uniform(-80, 80))
    bow = rng.uniform(-0.15, 0.15)
    path = curve((0, 0), (bow, -0.4), (bow * 0.6, -0.82), 8)
    canvas.fill(column, ribbon([(x + 0.05, y + 0.04) for x, y in path], taper(0.04, 0.04)), toned(eye, 0.4), 110)
    canvas.fill(column, ribbon(path, taper(0.05, 0.03)), mix((250, 226, 150), petal, 0.3))
    for x, y in path[4:]:
        for _ in range(7):
            grain = (x + rng.uniform(-0.1, 0.1), y + rng.uniform(-0.06, 0.06))
            canvas.disc(column, grain, 0.026, toned((250, 206, 60), rng.uniform(0.85, 1.2)))
    for x in (-0.08, 0, 0.08):
        canvas.disc(column, (path[-1][0] + x, -0.92 + abs(x) * 0.5), 0.04, (196, 40, 44))


HIBISCUS = Kind(
    _hibiscus,
    bushy(Blade(0.95, 0.34, 0.5, 0.75, teeth=0.1, steps=13), 6),
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
)
