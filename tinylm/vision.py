"""Pictures: taking in a file whatever it is, and encoding an image as slots.

B batch, S slots, D `d_model`.
"""

from __future__ import annotations

import io
import logging
import os
import stat
import sys
import warnings
from typing import IO, Any, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from tinylm.config import VisionConfig

# Pillow opens a phone's MPO as JPEG; it knows no opener of that name.
ACCEPTED_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
ACCEPTED_IN_WORDS = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
SQUEEZE = 8  # channels of a residual block to each number that their weights are made from
MAX_PIXELS = 50_000_000
MAX_BYTES = 30_000_000
MAX_JPEG_SCANS = 100

_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Numbers of TIFF's tags.
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT, _TILE_WIDTH, _TILE_LENGTH = 258, 262, 339, 322, 323
_WHITE_IS_ZERO, _UNSIGNED, _SIGNED = 0, 1, 2


def load_image(source: str | os.PathLike[str] | IO[bytes] | Image.Image) -> Image.Image:
    """Read a picture as people see it: RGB, upright by its EXIF orientation, alpha on white, the first frame.

    `source` is a path, an open binary file, or a PIL image (which is left as it is, and taken at the frame it stands
    at). The header is looked at before anything is decoded. Of deep greys the upper 8 bits are kept, whatever the
    picture's own darkest and brightest values are.
    Raises ValueError, in a sentence fit for a visitor, if it is no picture of an accepted format, is damaged, or has
    more than `MAX_PIXELS` pixels or `MAX_BYTES` bytes.
    """
    with warnings.catch_warnings():
        # What Pillow has to say about a file is said in the ValueError, or does not matter. Filters belong to the
        # whole process: should another thread leave this one behind, it hides no more than Pillow's warnings.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        if not logging.getLogger("PIL").handlers:  # else its errors go to stderr in a program without logging
            logging.getLogger("PIL").addHandler(logging.NullHandler())
        if isinstance(source, Image.Image):
            return _read(source)
        with _open(source) as image:
            return _read(image)


def _open(source: Any) -> Image.Image:
    """Look at a file's header. Raises ValueError if it is too large or no picture."""
    if not isinstance(source, (str, os.PathLike)) and not hasattr(source, "read"):
        raise ValueError(f"Please give a picture ({ACCEPTED_IN_WORDS}).")
    try:
        source, n_bytes = _measured(source)
        if n_bytes > MAX_BYTES:
            raise _Refused(f"This file has {n_bytes / 1e6:.0f} MB; at most {MAX_BYTES // 1_000_000} MB are read.")
        if n_bytes == 0:
            raise _Refused(f"This file is empty; please give a {ACCEPTED_IN_WORDS} file.")
        return Image.open(source, formats=ACCEPTED_FORMATS)
    except _Refused as refused:
        raise ValueError(str(refused)) from None
    except FileNotFoundError:
        raise ValueError(f"There is no file {os.fspath(source)!r}.") from None
    except PermissionError:
        raise ValueError(f"This file may not be read; please give a {ACCEPTED_IN_WORDS} file.") from None
    except Image.DecompressionBombError:
        raise ValueError(
            f"This picture is too large; at most {MAX_PIXELS // 1_000_000} million pixels are read."
        ) from None
    except Exception:  # decoders raise errors of many kinds on files that only pretend
        raise ValueError(f"{_what_it_is(source)}; please give a {ACCEPTED_IN_WORDS} file.") from None


class _Refused(Exception):
    """A message for the visitor, on its way through a net that catches all other errors."""


def _measured(source: Any) -> tuple[Any, int]:
    """The source, and its size in bytes; what can't be measured is read, up to the limit."""
    if isinstance(source, (str, os.PathLike)):
        status = os.stat(source)
        # To open a pipe would be to wait for somebody to write into it.
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no ordinary file"
            raise _Refused(f"This is {kind}; please give a {ACCEPTED_IN_WORDS} file.")
        return source, status.st_size
    try:
        source.seek(0, os.SEEK_END)
        n_bytes = source.tell()
        source.seek(0)
    except (AttributeError, OSError):
        content = source.read(MAX_BYTES + 1)
        return io.BytesIO(content), len(content)
    return source, n_bytes


def _what_it_is(source: Any) -> str:
    """The beginning of a sentence about a file that is no picture of an accepted format."""
    try:
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file:
                head = file.read(1024)
        else:
            source.seek(0)
            head = source.read(1024)
        if head[4:8] == b"ftyp" and head[8:12] in _HEIC_BRANDS and b"avif" not in head[:64]:
            return "This is a HEIC picture, which I can't read"
        if b"<svg" in head.lower():
            return "This is an SVG drawing, which I can't read"
    except Exception:  # what can't be read now could not be read before either
        pass
    return "This is not a picture I can read"


def _read(image: Image.Image) -> Image.Image:
    """Decode an opened picture. Raises ValueError if it is too large or damaged."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ValueError(
            f"This picture has {width} x {height} pixels; at most {MAX_PIXELS // 1_000_000} million are read."
        )
    if not width or not height:
        raise ValueError("This picture has no pixels.")
    try:
        _check_parts(image)
        stored = _Stored.of(image)
        image.load()
        upright = _flatten_on_white(image, stored)
        turn = _UPRIGHT.get(_orientation(image))
        if turn is not None:
            upright = upright.transpose(turn)
        upright.info = {}  # what it says of the stored picture, its orientation say, is no longer so
        return upright
    except Exception:  # decoders raise errors of many kinds on damaged files
        raise ValueError(
            f"This picture is damaged or cut short; please give a whole {ACCEPTED_IN_WORDS} file."
        ) from None


def _check_parts(image: Image.Image) -> None:
    """Raise ValueError on a small picture whose parts take long to decode, or much memory."""
    tags = getattr(image, "tag_v2", {})
    # A TIFF's tiles are decoded whole, however little of them lies inside the picture.
    if int(tags.get(_TILE_WIDTH, 0)) * int(tags.get(_TILE_LENGTH, 0)) > MAX_PIXELS:
        raise ValueError("tiles larger than any picture")
    file = getattr(image, "fp", None)
    if image.format in ("JPEG", "MPO") and image.info.get("progressive") and file is not None:
        # Each scan of a progressive JPEG goes over the whole picture, and can be a few bytes long.
        file.seek(0)
        n_scans = file.read(MAX_BYTES).count(b"\xff\xda")
        if n_scans > MAX_JPEG_SCANS:
            raise ValueError("too many scans")


class _Stored(NamedTuple):
    """How a picture's samples are stored, as far as Pillow tells it before decoding and not after."""

    raw_mode: str  # Pillow's name for the samples in the file; "" if it has been decoded
    frame: tuple[int, int, int, int] | None  # a GIF's first frame within its screen

    @classmethod
    def of(cls, image: Image.Image) -> _Stored:
        tiles = getattr(image, "tile", None)
        if not tiles:
            return cls("", None)
        arguments = tiles[0][3]
        raw_mode = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
        frame = tiles[0][1] if image.format == "GIF" else None
        return cls(raw_mode if isinstance(raw_mode, str) else "", frame)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # a broken EXIF block is no reason to refuse the pixels
        return 1


def _flatten_on_white(image: Image.Image, stored: _Stored) -> Image.Image:
    """The pixels in RGB; a copy."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        grey = _eight_bit_grey(image)
        alpha = _deep_grey_alpha(image)
        return _on_white(grey.convert("RGB"), alpha) if alpha else grey.convert("RGB")
    if not image.has_transparency_data:
        rgb = image.convert("RGB")
    else:
        if "transparency" in image.info:
            image = _with_transparency_as_decoded(image, stored)
        if image.mode in ("RGBa", "La"):
            image = image.convert({"RGBa": "RGBA", "La": "LA"}[image.mode])
        if image.mode != "RGBA":
            image = image.convert("RGBA")
        rgb = _on_white(image, image.getchannel("A"))
    if stored.frame and stored.frame != (0, 0, *image.size):
        # Nothing is drawn outside the frame; Pillow fills it with the first colour of the palette.
        whole, rgb = rgb, Image.new("RGB", image.size, (255, 255, 255))
        rgb.paste(whole.crop(stored.frame), stored.frame[:2])
    return rgb


def _on_white(image: Image.Image, alpha: Image.Image) -> Image.Image:
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=alpha)
    return white


def _with_transparency_as_decoded(image: Image.Image, stored: _Stored) -> Image.Image:
    """The image with its transparent colour in 8 bits, as its pixels are; Pillow leaves it as the PNG had it."""
    value = image.info["transparency"]
    factor = {"L;2": 85, "L;4": 17}.get(stored.raw_mode, 1)
    if image.mode == "L" and isinstance(value, int):
        value *= factor
    elif image.mode == "RGB" and (stored.raw_mode == "RGB;16B" or max(value) > 255):
        value = tuple(part >> 8 for part in value)
    if value == image.info["transparency"]:
        return image
    image = image.copy()
    image.info["transparency"] = value
    return image


def _deep_grey_alpha(image: Image.Image) -> Image.Image | None:
    """0 where a 16-bit grey is the transparent one, 255 elsewhere; None if no grey is."""
    value = image.info.get("transparency")
    if not isinstance(value, int) or image.mode == "F":
        return None
    return image.convert("I").point([0 if grey == value else 255 for grey in range(65536)], "L")


def _eight_bit_grey(image: Image.Image) -> Image.Image:
    """Deep greys as 8 bits: the upper 8 of the bits there are, floats of at most 1 as shares of white.

    The depth is the file's where the file tells it. Else greys are taken as 16 bits deep, unless values are beyond
    that; floats as at most 1, 255 or 65535, the first that holds all values.
    """
    tags = getattr(image, "tag_v2", {})
    bits = int(tags.get(_BITS_PER_SAMPLE, (16,))[0])
    sample_format = int(tags.get(_SAMPLE_FORMAT, (_UNSIGNED,))[0])
    if image.mode == "F":
        grey = _grey_of_floats(image)
    elif image.mode == "I":
        low, high = image.getextrema()
        beyond_16_bits = high > 65535 or low < -32768  # type: ignore[operator]
        if bits == 32 and sample_format == _UNSIGNED and beyond_16_bits:
            # Pillow reads them as if they were signed; the uppermost byte is what it is.
            pixels = Image.frombytes("RGBA", image.size, image.tobytes())
            grey = pixels.getchannel(3 if sys.byteorder == "little" else 0)
        else:
            depth = 31 if beyond_16_bits else 15 if bits == 16 and sample_format == _SIGNED else 16
            grey = image.point(lambda value: value * 2.0 ** (8 - depth)).convert("L")
    else:
        depth = bits if bits == 12 else 16
        grey = image.convert("I").point(lambda value: value * 2.0 ** (8 - depth)).convert("L")
    # Pillow turns these round itself where samples have 8 bits or fewer.
    return grey.point(range(255, -1, -1)) if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else grey


def _grey_of_floats(image: Image.Image) -> Image.Image:
    # Comparisons on the clipped 8 bits, where no NaN is left. A little beyond 1 is what resampling gives.
    def reaches(limit: float) -> bool:
        return image.point(lambda value: value * (255 / limit)).convert("L").getextrema()[1] == 255

    if not reaches(2):
        return image.point(lambda value: value * 255 + 0.5).convert("L")
    if not reaches(256):
        return image.point(lambda value: value * 1 + 0.5).convert("L")
    return image.point(lambda value: value * (1 / 256)).convert("L")


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
            self.trunk = ConvTrunk(config.channels, config.n_blocks)
        self.mirrored = config.mirrored
        self.scales = config.scales if config.encoder == "conv" else (1.0,)
        self.slot_heads = nn.ModuleList(
            nn.Sequential(nn.Linear(self.d_trunk, d_hidden), nn.ReLU(), nn.Linear(d_hidden, d_model))
            for _ in range(config.n_slots)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Slots (B, S, D) of images (B, 3, size, size) with values in [0, 1]."""
        views = self.views(images)
        return self.fill_slots(sum(self.trunk(view) for view in views) / len(views))

    def views(self, images: Tensor) -> list[Tensor]:
        """What the trunk reads of images (B, 3, size, size), all of it averaged: each scale, and its mirror image.

        Random crops in training show things larger than a whole picture does; a trunk reads better what is shown at
        the size it learned (Touvron et al. 2019, "Fixing the train-test resolution discrepancy").
        """
        views = []
        for scale in self.scales:
            scaled = images
            if scale != 1:
                side = max(2, round(scale * images.shape[-1]))
                scaled = F.interpolate(images, (side, side), mode="bicubic", antialias=scale < 1).clamp(0, 1)
            views += [scaled, scaled.flip(-1)] if self.mirrored else [scaled]
        return views

    def fill_slots(self, features: Tensor) -> Tensor:
        """Slots (B, S, D) of the trunk's features (B, d_trunk)."""
        return torch.stack([head(features) for head in self.slot_heads], dim=1)


class ConvTrunk(nn.Module):
    """A small residual network (He et al. 2015): the stem and every stage but the first halve the picture.

    The last stage is averaged over the picture and normalised: without that, what all pictures have in common drowns
    what tells them apart, and the slots take long to differ.
    """

    def __init__(self, channels: tuple[int, ...], n_blocks: tuple[int, ...]) -> None:
        super().__init__()
        # One 6x6 convolution at half size costs a quarter of what 3x3 ones at full size do.
        self.stem = _conv_norm(3, channels[0], kernel=6, stride=2)
        self.stages = nn.Sequential()
        c_in, stride = channels[0], 1
        for c_out, n in zip(channels, n_blocks, strict=True):
            for _ in range(n):
                self.stages.append(ResidualBlock(c_in, c_out, stride))
                c_in, stride = c_out, 1
            stride = 2
        self.norm = nn.BatchNorm1d(channels[-1])

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, channels[-1]) of images (B, 3, size, size)."""
        images = images.contiguous(memory_format=torch.channels_last)
        return self.norm(self.stages(self.stem(images).relu()).mean(dim=(2, 3)))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, weighted by channel and added to the input.

    The weights come from the channels' means over the picture, between 0 and 2 (Hu et al. 2017, "Squeeze-and-excitation
    networks", eq. 3). With stride 2 the input is averaged to half the size first.
    """

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv_norm(c_in, c_out, kernel=3, stride=stride)
        self.conv2 = _conv_norm(c_out, c_out, kernel=3, stride=1)
        d_squeezed = max(1, c_out // SQUEEZE)
        self.excite = nn.Sequential(nn.Linear(c_out, d_squeezed), nn.ReLU(), nn.Linear(d_squeezed, c_out))
        self.skip = nn.Sequential()
        if stride > 1:
            self.skip.append(nn.AvgPool2d(stride, ceil_mode=True))
        if c_in != c_out:
            self.skip.append(nn.Conv2d(c_in, c_out, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """(B, c_in, n, n) to (B, c_out, n / stride, n / stride), rounded up."""
        y = self.conv2(self.conv1(x).relu())
        weights = 2 * self.excite(y.mean(dim=(2, 3))).sigmoid()
        return (y * weights[:, :, None, None] + self.skip(x)).relu()


def _conv_norm(c_in: int, c_out: int, kernel: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, kernel, stride=stride, padding=(kernel - 1) // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out))
