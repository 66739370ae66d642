"""What a kind of flower is made of, and where its flowers stand in a picture."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from tinylm.data.painter.canvas import Canvas, Colour, Frame, Point, varied


@dataclass(frozen=True)
class Spot:
    """Where a flower stands, in scene units, and the colours that this picture's flowers have."""

    x: float
    y: float
    r: float
    palette: tuple[Colour, ...]

    def beside(self, degrees: float, share: float) -> Point:
        """The point at a share of the radius from the centre; 0 degrees is up, 90 to the right."""
        angle = math.radians(degrees)
        return (self.x + math.sin(angle) * self.r * share, self.y - math.cos(angle) * self.r * share)

    def frame(self, canvas: Canvas, degrees: float = 0, squash: float = 1) -> Frame:
        """The flower's own frame, turned, and foreshortened along its height."""
        return canvas.scene.moved(self.x, self.y).scaled(self.r).turned(degrees).scaled(1, squash)


Draw = Callable[[Canvas, Spot], None]


@dataclass(frozen=True)
class Kind:
    """What one kind of flower looks like and where it grows.

    Every palette holds the colours that the flower's function unpacks; repeats make a palette or scene more likely.
    """

    flower: Draw
    greenery: Draw
    scenes: tuple[str, ...]
    palettes: tuple[tuple[Colour, ...], ...]
    radius: float = 0.43  # of a flower that stands alone, as a share of the picture's side
    crowd: tuple[int, ...] = (1, 1, 1, 1, 2, 3)  # how many flowers, each as likely
    height: float = 0.47  # of the centre of a flower that stands alone, from the top
    flat: bool = False  # keep the colours as they are listed: the flower's function tells variants by them

    def spots(self, rng: random.Random) -> list[Spot]:
        """Choose where the flowers stand, how large they are and their colours; smaller ones further back."""
        base = rng.choice(self.palettes)
        count = rng.choice(self.crowd)
        jitter = 0.05 if count == 1 else 0.04
        places = {
            1: ((0.5, self.height, 1.0),),
            2: ((0.29, self.height - 0.1, 0.7), (0.68, self.height + 0.11, 0.78)),
            3: ((0.23, self.height - 0.06, 0.55), (0.76, self.height - 0.14, 0.57), (0.5, self.height + 0.18, 0.68)),
        }[count]
        mirrored = rng.random() < 0.5
        spots = []
        for x, y, share in places:
            palette = base if self.flat else tuple(varied(rng, colour, 10) for colour in base)
            spots.append(
                Spot(
                    (1 - x if mirrored else x) + rng.uniform(-jitter, jitter),
                    y + rng.uniform(-jitter, jitter),
                    self.radius * share * rng.uniform(0.88, 1.1),
                    palette,
                )
            )
        return spots
