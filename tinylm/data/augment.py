"""Random views of training pictures, a whole batch at once."""

from __future__ import annotations

import math
import string

import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tinylm.vision import image_to_tensor

MAX_ROTATION = math.radians(20)
SCALE = (0.55, 1.1)  # share of the picture's side that the view shows
ASPECT = 1.25
LETTERS = string.ascii_letters + string.digits + " .,!?-"
BRIGHTNESS, CONTRAST, SATURATION = 0.25, 0.25, 0.3


def augment(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Views of uint8 images (B, 3, n, n) as floats (B, 3, size, size) in [0, 1].

    Each is cropped, stretched, turned by up to 20 degrees, mirrored half the time, and changed in brightness,
    contrast and saturation; each picture by its own draw.
    """
    return _recolour(_view(images.float() / 255, size, generator), generator).clamp_(0, 1)


def cutmix(images: Tensor, shares_BL: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Copies in which the first `count` pictures have a patch of another picture of the batch.

    The shares (B, labels) are mixed by the area of the patch. Source: Yun et al. 2019, "CutMix", eq. 1 and 2.
    """
    n, side = len(images), images.shape[-1]
    mixed, mixed_shares_BL = images.clone(), shares_BL.clone()
    others = torch.randperm(n, generator=generator)[:count].tolist()
    for i, other in enumerate(others):
        patch = round(side * float(torch.rand((), generator=generator)) ** 0.5)
        top, left = torch.randint(side - patch + 1, (2,), generator=generator).tolist()
        rows, columns = slice(top, top + patch), slice(left, left + patch)
        mixed[i, :, rows, columns] = images[other, :, rows, columns]
        area = (patch / side) ** 2
        mixed_shares_BL[i] = (1 - area) * shares_BL[i] + area * shares_BL[other]
    return mixed, mixed_shares_BL


def nothing(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Pictures of nothing (count, 3, size, size), floats in [0, 1]: plain cards, blends, soft blots, noise and words.

    Half of those without words are grey.
    """
    pictures = []
    for _ in range(count):
        kind = int(torch.randint(5, (), generator=generator))
        if kind == 4:
            pictures.append(_words(size, generator))
            continue
        n_cells = (1, 2, 5, size)[kind]
        channels = (1, 3)[int(torch.randint(2, (), generator=generator))]
        cells = torch.rand(1, channels, n_cells, n_cells, generator=generator).expand(-1, 3, -1, -1)
        pictures.append(F.interpolate(cells, (size, size), mode="bilinear", align_corners=True))
    return torch.cat(pictures)


def _words(size: int, generator: torch.Generator) -> Tensor:
    """A card (1, 3, size, size) with a few lines of random letters, in two colours far enough apart to be read."""

    def draw(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    paper = tuple(draw(256) for _ in range(3)) if draw(2) else (255, 255, 255)
    ink = (0, 0, 0) if sum(paper) > 3 * 127 else (255, 255, 255)
    card = Image.new("RGB", (2 * size, 2 * size), paper)
    font = ImageFont.load_default(size * (3 + draw(8)) / 10)
    for line in range(1 + draw(4)):
        text = "".join(LETTERS[draw(len(LETTERS))] for _ in range(1 + draw(9)))
        place = draw(size) // 2, (line * size) // 2 + draw(size) // 4
        ImageDraw.Draw(card).text(place, text, fill=ink, font=font)
    return image_to_tensor(card, size)[None]


def _view(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    n = len(images)
    side = _uniform(n, *SCALE, generator)
    stretch = _uniform(n, -math.log(ASPECT) / 2, math.log(ASPECT) / 2, generator).exp()
    angle = _uniform(n, -MAX_ROTATION, MAX_ROTATION, generator)
    mirror = (torch.rand(n, generator=generator) < 0.5).float() * 2 - 1
    # Shift as far as the view stays inside; a view larger than the picture shows its mirrored rim.
    room = (1 - side).clamp(min=0)
    shift_x, shift_y = (_uniform(n, -1, 1, generator) * room for _ in range(2))
    width, height = side * stretch * mirror, side / stretch
    theta = torch.stack(
        [
            torch.stack([width * angle.cos(), -height * angle.sin(), shift_x], dim=1),
            torch.stack([width * angle.sin(), height * angle.cos(), shift_y], dim=1),
        ],
        dim=1,
    )
    # Sampling every other pixel of a finer view aliases; take the view at the stored size, then shrink it.
    fine = images.shape[-1] if images.shape[-1] < 2 * size else 2 * size
    grid = F.affine_grid(theta, [n, 3, fine, fine], align_corners=False)
    views = F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    return F.interpolate(views, (size, size), mode="bilinear", antialias=True) if fine != size else views


def _recolour(images: Tensor, generator: torch.Generator) -> Tensor:
    n = len(images)
    brightness = _factors(n, BRIGHTNESS, generator)
    contrast = _factors(n, CONTRAST, generator)
    saturation = _factors(n, SATURATION, generator)
    images = images * brightness
    grey = images.mean(dim=1, keepdim=True)
    images = grey + (images - grey) * saturation
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return mean + (images - mean) * contrast


def _uniform(n: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(n, generator=generator)


def _factors(n: int, spread: float, generator: torch.Generator) -> Tensor:
    return _uniform(n, 1 - spread, 1 + spread, generator).view(n, 1, 1, 1)
