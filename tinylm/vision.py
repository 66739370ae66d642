"""Pictures: taking in a file whatever it is, and encoding an image as slots.

B batch, S slots, D `d_model`.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import IO, Any

import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from tinylm.config import VisionConfig

# Pillow opens a phone's MPO as JPEG; it knows no opener of that name.
ACCEPTED_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
ACCEPTED_IN_WORDS = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
MAX_PIXELS = 50_000_000
MAX_BYTES = 30_000_000


def load_image(source: str | os.PathLike[str] | IO[bytes] | Image.Image) -> Image.Image:
    """Read a picture as people see it: RGB, upright by its EXIF orientation, alpha on white, the first frame.

    `source` is a path, an open binary file, or a PIL image. The header is looked at before anything is decoded.
    Raises ValueError, in a sentence fit for a visitor, if it is no picture of an accepted format, is damaged, or has
    more than `MAX_PIXELS` pixels or `MAX_BYTES` bytes.
    """
    if isinstance(source, Image.Image):
        image = source
    elif isinstance(source, (str, os.PathLike)) or hasattr(source, "read"):
        image = _open(source)
    else:
        raise ValueError(f"Please give a picture ({ACCEPTED_IN_WORDS}).")
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(
            f"This picture has {image.width} x {image.height} pixels; "
            f"at most {MAX_PIXELS // 1_000_000} million are read."
        )
    if not image.width or not image.height:
        raise ValueError("This picture has no pixels.")
    try:
        image.load()
        return _flatten_on_white(_upright(image))
    except Exception:  # decoders raise errors of many kinds on damaged files
        raise ValueError(
            f"This picture is damaged or cut short. Please give a whole {ACCEPTED_IN_WORDS} file."
        ) from None


def _open(source: Any) -> Image.Image:
    not_a_picture = f"This is not a picture I can read. Please give a {ACCEPTED_IN_WORDS} file."
    try:
        if isinstance(source, (str, os.PathLike)):
            n_bytes = Path(source).stat().st_size
        else:
            n_bytes = source.seek(0, os.SEEK_END)
            source.seek(0)
        if n_bytes > MAX_BYTES:
            raise ValueError(f"This file has {n_bytes / 1e6:.0f} MB; at most {MAX_BYTES // 1_000_000} MB are read.")
        return Image.open(source, formats=ACCEPTED_FORMATS)
    except FileNotFoundError:
        raise ValueError(f"There is no file {os.fspath(source)!r}.") from None
    except Image.DecompressionBombError:
        raise ValueError(
            f"This picture is too large; at most {MAX_PIXELS // 1_000_000} million pixels are read."
        ) from None
    except ValueError as error:
        if str(error).startswith("This file has"):
            raise
        raise ValueError(not_a_picture) from None
    except Exception:  # decoders raise errors of many kinds on files that only pretend
        raise ValueError(not_a_picture) from None


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a broken EXIF block is no reason to refuse the pixels
        return image


def _flatten_on_white(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _eight_bit_grey(image).convert("RGB")
    has_alpha = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    if not has_alpha:
        return image.convert("RGB")
    if image.mode in ("RGBa", "La"):
        image = image.convert({"RGBa": "RGBA", "La": "LA"}[image.mode])
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image.getchannel("A"))
    return white


def _eight_bit_grey(image: Image.Image) -> Image.Image:
    """Deep greys as 8 bits: 16-bit values by their high byte, floats of at most 1 as shares of white."""
    if image.mode == "F":
        low, high = image.getextrema()
        scale = 255.0 if low >= 0 and high <= 1 else 255.0 / max(high, 1e-9)  # type: ignore[operator]
        return image.point(lambda value: value * scale).convert("L")
    if image.mode == "I":
        _, high = image.getextrema()
        return image.point(lambda value: value * (1 / 256 if high > 255 else 1)).convert("L")  # type: ignore[operator]
    return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")


def image_to_tensor(image: Image.Image, image_size: int) -> Tensor:
    """An RGB image as the model sees it, (3, size, size) float32 in [0, 1].

    The shorter side is resized to `image_size` (bilinear, antialiased), then the centre is cropped. Both are done in
    one step, so that a very long picture costs no memory.
    """
    image = image.convert("RGB")
    width, height = image.size
    short = min(width, height)
    box = []
    for side in (width, height):
        resized = max(image_size, int(image_size * side / short))
        offset = round((resized - image_size) / 2)
        box.append((offset * side / resized, (offset + image_size) * side / resized))
    (left, right), (top, bottom) = box
    small = image.resize((image_size, image_size), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    values = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
    return values.view(image_size, image_size, 3).permute(2, 0, 1).float() / 255


class ImageEncoder(nn.Module):
    """An image as `n_slots` embeddings: one trunk, then a small head for each slot."""

    def __init__(self, config: VisionConfig, d_model: int, d_ff: int) -> None:
        super().__init__()
        d_hidden = config.d_hidden or d_ff
        self.trunk: nn.Module
        if config.encoder == "mlp":
            self.d_trunk = config.d_trunk
            self.trunk = nn.Sequential(
                nn.Flatten(),
                nn.Linear(3 * config.image_size**2, d_hidden),
                nn.ReLU(),
                nn.Linear(d_hidden, self.d_trunk),
            )
        else:
            self.d_trunk = config.channels[-1]
            self.trunk = ConvTrunk(config.channels)
        self.slot_heads = nn.ModuleList(
            nn.Sequential(nn.Linear(self.d_trunk, d_hidden), nn.ReLU(), nn.Linear(d_hidden, d_model))
            for _ in range(config.n_slots)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Slots (B, S, D) of images (B, 3, size, size) with values in [0, 1]."""
        features = self.trunk(images)
        return torch.stack([head(features) for head in self.slot_heads], dim=1)


class ConvTrunk(nn.Module):
    """A small residual network (He et al. 2015): the stem and every stage but the first halve the picture.

    The last stage is averaged over the picture and normalised: without that, what all pictures have in common drowns
    what tells them apart, and the slots take long to differ.
    """

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        first = channels[0]
        # One 6x6 convolution at half size costs a quarter of what 3x3 ones at full size do.
        self.stem = _conv_norm(3, first, kernel=6, stride=2)
        self.stages = nn.Sequential(
            ResidualBlock(first, first, stride=1),
            *(ResidualBlock(c_in, c_out, stride=2) for c_in, c_out in itertools.pairwise(channels)),
        )
        self.norm = nn.BatchNorm1d(channels[-1])

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, channels[-1]) of images (B, 3, size, size)."""
        images = images.contiguous(memory_format=torch.channels_last)
        return self.norm(self.stages(self.stem(images).relu()).mean(dim=(2, 3)))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, added to the input; with stride 2 the input is averaged to half the size first."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv_norm(c_in, c_out, kernel=3, stride=stride)
        self.conv2 = _conv_norm(c_out, c_out, kernel=3, stride=1)
        self.skip = nn.Sequential()
        if stride > 1:
            self.skip.append(nn.AvgPool2d(stride, ceil_mode=True))
        if c_in != c_out:
            self.skip.append(nn.Conv2d(c_in, c_out, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """(B, c_in, n, n) to (B, c_out, n / stride, n / stride), rounded up."""
        return (self.conv2(self.conv1(x).relu()) + self.skip(x)).relu()


def _conv_norm(c_in: int, c_out: int, kernel: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, kernel, stride=stride, padding=(kernel - 1) // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out))
