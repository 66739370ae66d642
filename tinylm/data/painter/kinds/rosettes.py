"""Flowers of ring upon ring of petals that rise towards the middle: the rose and the water lily."""

from tinylm.data.painter.canvas import Canvas, mix, polar, toned, varied
from tinylm.data.painter.greenery import leaf, lily_pad, stalk
from tinylm.data.painter.kind import Kind, Spot
from tinylm.data.painter.petals import Blade, Tint, draw_blade, ring, shadow, stamens


def _rose(canvas: Canvas, spot: Spot) -> None:
    """Rings of broad petals, each with a bright rim that sinks into shadow, closing on a spiral heart."""
    rng = canvas.rng
    rim, deep = spot.palette
    frame = spot.frame(canvas, rng.uniform(-15, 15), rng.uniform(0.82, 1))
    shadow(canvas, frame, 1)
    lift = rng.uniform(0.0, 0.06)
    start = rng.uniform(0, 360)
    for level, (reach, count) in enumerate(((1.0, 6), (0.83, 5), (0.65, 5), (0.48, 4), (0.33, 3), (0.2, 3))):
        share = level / 5
        # The heart of a rose is deeper in colour than its outer petals.
        tint = Tint(mix(toned(rim, 1.1), rim, share), toned(deep, 1 - 0.3 * share), 0.3, layers=10, edge=0.8)
        blade = Blade(reach, reach * 0.68, 0.8, 0.36, ruffle=0.03, steps=14)
        start += 360 / count * 0.5 + rng.uniform(-12, 12)
        risen = frame.moved(0, -lift * level)
        if level:
            canvas.disc(risen.moved(0.03, 0.05), (0, 0), reach * 0.96, toned(deep, 0.35), 60)
        ring(canvas, risen, count, blade, tint, start, 8)
    centre = frame.moved(0, -lift * 5)
    spiral = [polar(t * 0.9 + start, 0.021 * t) for t in range(10)]
    canvas.line(centre, spiral, toned(deep, 0.5), 0.008, 200)


def _rose_leaves(canvas: Canvas, spot: Spot) -> None:
    """Dark toothed leaves on a stem with a few thorns."""
    rng = canvas.rng
    green = toned(varied(rng, (52, 104, 48)), rng.uniform(0.8, 1.15))
    path = stalk(canvas, spot, 0.06, green)
    for x, y in path[3:7]:
        side = rng.choice((-1, 1))
        tip = (x + side * spot.r * 0.17, y + spot.r * 0.02)
        canvas.fill(canvas.scene, ((x, y - spot.r * 0.06), tip, (x, y + spot.r * 0.06)), toned(green, 0.8))
    blade = Blade(spot.r * 0.85, spot.r * 0.3, 0.6, 0.75, teeth=0.12, steps=15)
    for i in range(5):
        degrees = (-115, 112, -150, 146, 60)[i] + rng.uniform(-18, 18)
        leaf(canvas, spot.beside(degrees, 0.6), degrees, blade, varied(rng, green, 10))


ROSE = Kind(
    _rose,
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
)


def _water_lily(canvas: Canvas, spot: Spot) -> None:
    """Pointed petals in rising rings round golden stamens, or a cup seen from the side."""
    rng = canvas.rng
    tip, base, stamen = spot.palette
    if rng.random() < 0.35:
        _lotus_cup(canvas, spot)
        return
    frame = spot.frame(canvas, rng.uniform(-6, 6)).moved(0, 0.12)
    for reach, count, squash, rise in (
        (1.06, 9, 0.56, 0.0),
        (0.96, 9, 0.7, 0.08),
        (0.78, 8, 0.84, 0.16),
        (0.55, 7, 0.95, 0.2),
    ):
        flat = frame.moved(0, -rise).scaled(1, squash)
        tint = Tint(tip, base, 0.1, 3, toned(base, 0.8), 60, 6, 0.76)
        ring(canvas, flat, count, Blade(reach, reach * 0.24, 0.62, 0.6, steps=10), tint, rng.uniform(0, 40), 5)
    heart = frame.moved(0, -0.22).scaled(1, 0.8)
    canvas.disc(heart, (0, 0), 0.22, toned(stamen, 0.72))
    stamens(canvas, heart, 30, 0.29, toned(stamen, 0.85), toned(stamen, 1.1), 0.035)
    stamens(canvas, heart, 12, 0.12, toned(stamen, 0.75), stamen, 0.04)


def _lotus_cup(canvas: Canvas, spot: Spot) -> None:
    """A half-open water lily from the side: fans of petals, the hindmost first."""
    rng = canvas.rng
    tip, base, stamen = spot.palette
    frame = spot.frame(canvas, rng.uniform(-6, 6)).moved(0, 0.62)
    for spread, count, length, lit in ((62, 6, 1.3, 0.82), (80, 7, 1.28, 0.92), (100, 6, 1.1, 1.0)):
        if lit == 1.0:
            stamens(canvas, frame.moved(0, -0.6).scaled(1, 0.5), 20, 0.3, toned(stamen, 0.85), stamen, 0.04)
        sides = [i / (count - 1) * 2 - 1 for i in range(count)]
        for side in sorted(sides, key=abs, reverse=True):
            degrees = side * spread + rng.uniform(-4, 4)
            blade = Blade(length * rng.uniform(0.92, 1.04) * (1 - abs(degrees) / 700), 0.25, 0.55, 0.6, -degrees / 520)
            tint = Tint(toned(tip, lit), toned(base, lit), 0.15, 4, toned(tip, 0.7), 60, 6, 0.76)
            draw_blade(canvas, frame.turned(degrees), blade, tint)


def _pond_leaves(canvas: Canvas, spot: Spot) -> None:
    """The pads that a water lily rests on, and its shadow on them."""
    rng = canvas.rng
    for side in (-1, 1):
        centre = (spot.x + side * spot.r * rng.uniform(0.4, 0.9), spot.y + spot.r * rng.uniform(0.35, 0.6))
        lily_pad(canvas, centre, spot.r * rng.uniform(0.95, 1.35))
    canvas.disc(
        canvas.scene.moved(spot.x, spot.y + spot.r * 0.5).scaled(spot.r, spot.r * 0.35), (0, 0), 0.95, (10, 26, 20), 90
    )


WATER_LILY = Kind(
    _water_lily,
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
)
