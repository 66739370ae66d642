"""Pictures come in upright, on white and whole, or are refused in plain words; the encoder keeps them apart."""

import builtins
import dataclasses
import gc
import io
import logging
import math
import os
import random
import socket
import struct
import time
import warnings
import zlib

import pytest
import reference
import torch
from conftest import random_images
from PIL import Image, ImageFile, features

from tinylm import VisionConfig, image_to_tensor, load_image
from tinylm.vision import MAX_BYTES, MAX_PIXELS, ImageEncoder, ResidualBlock

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)
NAMED_FORMATS = ("JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF", "AVIF")


def quarters(width=40, height=24):
    """Red, green, blue, black: top left, top right, bottom left, bottom right."""
    image = Image.new("RGB", (width, height))
    for colour, x, y in [(RED, 0, 0), (GREEN, 1, 0), (BLUE, 0, 1), (BLACK, 1, 1)]:
        image.paste(colour, (x * width // 2, y * height // 2, (x + 1) * width // 2, (y + 1) * height // 2))
    return image


def as_file(image, **options):
    file = io.BytesIO()
    image.save(file, **options)
    file.seek(0)
    return file


def corners(image):
    w, h = image.size
    return [
        image.getpixel(p)
        for p in [(w // 4, h // 4), (3 * w // 4, h // 4), (w // 4, 3 * h // 4), (3 * w // 4, 3 * h // 4)]
    ]


def close(colour, other, tolerance=12):
    return all(abs(a - b) <= tolerance for a, b in zip(colour, other, strict=True))


def assert_quarters(image, tolerance=12):
    assert image.mode == "RGB"
    found = corners(image)
    assert all(close(a, b, tolerance) for a, b in zip(found, [RED, GREEN, BLUE, BLACK], strict=True)), found


def refused(source):
    """The message of the ValueError, which must be fit for a visitor."""
    with pytest.raises(ValueError) as error:
        load_image(source)
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert "Error" not in message and "object at 0x" not in message
    return message


# What must come in


@pytest.mark.parametrize(
    ("orientation", "stored"),
    [
        (1, None),
        (2, Image.Transpose.FLIP_LEFT_RIGHT),
        (3, Image.Transpose.ROTATE_180),
        (4, Image.Transpose.FLIP_TOP_BOTTOM),
        (5, Image.Transpose.TRANSPOSE),
        (6, Image.Transpose.ROTATE_90),
        (7, Image.Transpose.TRANSVERSE),
        (8, Image.Transpose.ROTATE_270),
    ],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_turned_photo_stands_upright(orientation, stored, kind):
    # frappe #37998: the camera stores the picture turned and notes how.
    upright = quarters()
    turned = upright if stored is None else upright.transpose(stored)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    image = load_image(as_file(turned, format=kind, exif=exif, **options))
    assert image.size == upright.size
    assert_quarters(image)
    difference = (image_to_tensor(image, 16) - image_to_tensor(upright, 16)).abs().max()
    assert difference < 0.05


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_broken_exif_block_is_no_reason_to_refuse_the_pixels():
    data = as_file(quarters(), format="JPEG", quality=95, subsampling=0, exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert_quarters(load_image(data))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_red_under_full_transparency_is_white(kind):
    # gradio #10842, #7636
    image = Image.new("RGBA", (20, 10), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (10, 0, 20, 10))
    image.paste((0, 0, 0, 128), (0, 5, 10, 10))
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    found = load_image(as_file(image, format=kind, **options))
    assert found.mode == "RGB"
    assert close(found.getpixel((3, 2)), WHITE, 2)
    assert close(found.getpixel((15, 5)), BLUE, 2)
    assert close(found.getpixel((3, 8)), (127, 127, 127), 3)


def test_grey_with_alpha_is_on_white():
    image = Image.new("LA", (20, 10), (0, 0))
    image.paste((60, 255), (10, 0, 20, 10))
    found = load_image(as_file(image, format="PNG"))
    assert found.getpixel((3, 5)) == WHITE
    assert found.getpixel((15, 5)) == (60, 60, 60)


@pytest.mark.parametrize("transparency", [1, bytes([255, 0, 255])])
def test_a_transparent_palette_colour_is_white(transparency):
    image = Image.new("P", (20, 10), 0)
    image.putpalette([*BLUE, *RED, *GREEN])
    image.paste(1, (10, 0, 20, 10))
    found = load_image(as_file(image, format="PNG", transparency=transparency))
    assert found.getpixel((3, 5)) == BLUE
    assert found.getpixel((15, 5)) == WHITE


def test_a_transparent_colour_of_an_rgb_png_is_white():
    image = Image.new("RGB", (20, 10), BLUE)
    image.paste(RED, (10, 0, 20, 10))
    found = load_image(as_file(image, format="PNG", transparency=RED))
    assert found.getpixel((3, 5)) == BLUE
    assert found.getpixel((15, 5)) == WHITE


@pytest.mark.parametrize("mode", ["RGBA", "RGBa", "LA", "La", "PA"])
def test_a_pil_image_with_alpha_is_on_white(mode):
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    if mode == "PA":
        image = Image.new("PA", (8, 8), (0, 0))
    else:
        through = {"La": "LA"}.get(mode)
        image = image.convert(through).convert(mode) if through else image.convert(mode)
    assert load_image(image).getpixel((4, 4)) == WHITE


@pytest.mark.parametrize("animated", [False, True])
def test_a_gif_is_its_first_frame_in_rgb(animated):
    # gradio #8589, #1965
    later = [Image.new("RGB", (40, 24), WHITE), Image.new("RGB", (40, 24), RED)] if animated else []
    options = {"save_all": True, "append_images": later, "duration": 50} if animated else {}
    file = as_file(quarters(), format="GIF", **options)
    if animated:
        assert Image.open(file).n_frames == 3
    assert_quarters(load_image(file))


def test_a_transparent_gif_is_on_white():
    image = Image.new("P", (20, 10), 0)
    image.putpalette([*BLUE, *RED])
    image.paste(1, (10, 0, 20, 10))
    found = load_image(as_file(image, format="GIF", transparency=1))
    assert close(found.getpixel((3, 5)), BLUE)
    assert found.getpixel((15, 5)) == WHITE


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_keeps_its_brightness(kind):
    row = struct.pack("<30H", *[0] * 10, *[0x8000] * 10, *[0xFFFF] * 10)
    image = Image.frombytes("I;16", (30, 10), row * 10)
    found = load_image(as_file(image, format=kind))
    greys = [found.getpixel((x, 5)) for x in (5, 15, 25)]
    assert all(close(a, (b, b, b), 1) for a, b in zip(greys, [0, 128, 255], strict=True)), greys


def test_grey_one_bit_and_cmyk_pictures_come_in_as_they_look():
    assert load_image(as_file(Image.new("L", (9, 9), 77), format="PNG")).getpixel((4, 4)) == (77, 77, 77)
    assert load_image(as_file(Image.new("1", (9, 9), 1), format="PNG")).getpixel((4, 4)) == WHITE
    cmyk = Image.new("CMYK", (20, 10), (0, 255, 255, 0))
    cmyk.paste((0, 0, 0, 0), (10, 0, 20, 10))
    found = load_image(as_file(cmyk, format="JPEG", quality=95, subsampling=0))
    assert close(found.getpixel((3, 5)), RED)
    assert close(found.getpixel((16, 5)), WHITE)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "MPO", "AVIF"])
def test_every_accepted_format_is_read(tmp_path, kind):
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    # An explicit list of formats that names one without an opener of its own hides all that come behind it.
    path = tmp_path / "picture"  # the content tells the format, not the name
    quarters().save(path, format=kind, quality=95)
    for source in (path, str(path), io.BytesIO(path.read_bytes()), Image.open(path)):
        assert_quarters(load_image(source), tolerance=40)
    with path.open("rb") as file:
        file.read(10)  # wherever the file stands
        assert_quarters(load_image(file), tolerance=40)


@pytest.mark.parametrize("size", [(1, 3000), (3000, 1), (1, 1), (2, 7000), (31, 33), (5000, 4999)])
def test_extreme_shapes_come_in_and_become_squares(size):
    image = load_image(as_file(Image.new("RGB", size, (10, 200, 60)), format="PNG"))
    x = image_to_tensor(image, 32)
    assert x.shape == (3, 32, 32)
    assert x.dtype == torch.float32
    for channel, value in zip(x, (10, 200, 60), strict=True):
        assert torch.allclose(channel, torch.tensor(value / 255), atol=1e-6)


def png(width, height, depth, colour_type, rows, *between):
    """A PNG of packed rows, by hand; `between` are chunks behind the header."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = [(b"IHDR", header), *between, (b"IDAT", body), (b"IEND", b"")]
    packed = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return io.BytesIO(b"\x89PNG\r\n\x1a\n" + b"".join(packed))


def tiff(width, height, data, order="<", **tags):
    """A TIFF of one strip, by hand; values of a tag are 16-bit, or 32-bit where they need to be."""
    numbers = {"width": 256, "height": 257, "bits": 258, "compression": 259, "photometric": 262, "offset": 273}
    numbers |= {"samples": 277, "length": 279, "tile_width": 322, "tile_length": 323, "extra": 338, "format": 339}
    tags = {"bits": 8, "compression": 1, "photometric": 1, "samples": 1, **tags}
    tags |= {"width": width, "height": height, "length": len(data), "offset": 0}
    entries = sorted((numbers[name], [v] if isinstance(v, int) else list(v)) for name, v in tags.items())
    far_at = 8 + 2 + 12 * len(entries) + 4
    far = b""
    directory = struct.pack(order + "H", len(entries))
    for number, values in entries:
        kind, letter = (4, "I") if number == 273 or max(values) > 65535 else (3, "H")
        packed = struct.pack(f"{order}{len(values)}{letter}", *values)
        if number == 273:
            where = 8 + len(directory) + 8  # written once it is known what lies before the strip
        if len(packed) > 4:
            far, packed = far + packed, struct.pack(order + "I", far_at + len(far))
        directory += struct.pack(order + "HHI", number, kind, len(values)) + packed.ljust(4, b"\0")
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    whole = bytearray(start + directory + bytes(4) + far + data)
    struct.pack_into(order + "I", whole, where, far_at + len(far))
    return io.BytesIO(bytes(whole))


def row(image):
    """The first row's colours."""
    return [image.getpixel((x, 0)) for x in range(image.width)]


def greys(source):
    """The first row of a grey picture."""
    colours = row(load_image(source))
    assert all(len(set(colour)) == 1 for colour in colours)
    return [colour[0] for colour in colours]


def deep(mode, values):
    """A PIL image of one row of deep greys."""
    letter = {"F": "<{}f", "I": "<{}i", "I;16B": ">{}H"}.get(mode, "<{}H")
    return Image.frombytes(mode, (len(values), 1), struct.pack(letter.format(len(values)), *values))


# value, and its upper 8 bits
SIXTEEN = {0: 0, 255: 0, 256: 1, 1000: 3, 0x7FFF: 127, 0x8000: 128, 0xFEFF: 254, 0xFFFF: 255}
DARK = {0: 0, 100: 0, 300: 1, 1100: 4}


@pytest.mark.parametrize("table", [SIXTEEN, DARK])
@pytest.mark.parametrize("order", ["<", ">"])
def test_deep_greys_keep_their_upper_bits_however_dark_the_picture_is(table, order):
    values, right = list(table), list(table.values())
    sixteen = struct.pack(f"{order}{len(values)}H", *values)
    big = struct.pack(f">{len(values)}H", *values)
    assert greys(tiff(len(values), 1, sixteen, order, bits=16)) == right
    assert greys(png(len(values), 1, 16, 0, [big])) == right
    for mode in ("I", "I;16", "I;16L", "I;16B"):
        assert greys(deep(mode, values)) == right
    halved = struct.pack(f"{order}{len(values)}h", *[v // 2 for v in values])
    assert greys(tiff(len(values), 1, halved, order, bits=16, format=2)) == right
    floats = struct.pack(f"{order}{len(values)}f", *values)
    assert greys(tiff(len(values), 1, floats, order, bits=32, format=3)) == right
    assert greys(deep("F", values)) == right


def test_deep_greys_of_other_depths_are_scaled_by_what_the_file_says():
    assert greys(tiff(4, 1, bytes([0x00, 0x08, 0x00, 0x3E, 0x8F, 0xFF]), bits=12)) == [0, 128, 62, 255]
    whole = struct.pack("<4I", 0, 2**24, 2**31, 2**32 - 1)
    assert greys(tiff(4, 1, whole, bits=32)) == [0, 1, 128, 255]
    signed = struct.pack("<4i", -(2**31), 0, 2**30, 2**31 - 1)
    assert greys(tiff(4, 1, signed, bits=32, format=2)) == [0, 0, 128, 255]
    sixteen = struct.pack("<4i", -9, 0, 0x8000, 0xFFFF)  # what Pillow writes of a mode I image of 16-bit values
    assert greys(tiff(4, 1, sixteen, bits=32, format=2)) == [0, 0, 128, 255]


@pytest.mark.parametrize("photometric", [0, 1])
def test_a_tiff_may_count_from_white(photometric):
    def counted(right):
        return right if photometric else [255 - grey for grey in right]

    sixteen = struct.pack("<4H", 0, 1000, 0x8000, 0xFFFF)
    assert greys(tiff(4, 1, sixteen, bits=16, photometric=photometric)) == counted([0, 3, 128, 255])
    floats = struct.pack(">4f", 0, 0.25, 0.5, 1)
    assert greys(tiff(4, 1, floats, ">", bits=32, format=3, photometric=photometric)) == counted([0, 64, 128, 255])
    assert greys(tiff(4, 1, bytes([0, 3, 128, 255]), photometric=photometric)) == counted([0, 3, 128, 255])


def test_floats_are_shares_of_white_or_of_the_8_or_16_bits_they_fit_in():
    assert greys(deep("F", [0, 0.1, 0.5, 1.0])) == [0, 26, 128, 255]
    assert greys(deep("F", [0, 0.1, 0.2, 0.3])) == [0, 26, 51, 77]
    assert greys(deep("F", [-0.1, 0.5, 1.0, 1.1])) == [0, 128, 255, 255]
    assert greys(deep("F", [0, 7, 128, 255])) == [0, 7, 128, 255]
    assert greys(deep("F", [0, 256, 0x8000, 0xFFFF])) == [0, 1, 128, 255]
    for at in (0, 3):  # a NaN hides the others from Pillow's extrema if it stands first
        values = [64.0, 128.0, 255.0]
        values.insert(at, math.nan)
        found = greys(deep("F", values))
        del found[at]
        assert found == [64, 128, 255]


def test_sixteen_bits_equal_the_same_picture_in_eight():
    eight = smooth(40, 30).convert("L")
    values = list(eight.getdata())
    for factor in (256, 257):
        sixteen = Image.frombytes("I;16", eight.size, struct.pack(f"<{len(values)}H", *[v * factor for v in values]))
        for kind in ("PNG", "TIFF"):
            assert load_image(as_file(sixteen, format=kind)).tobytes() == eight.convert("RGB").tobytes()


@pytest.mark.parametrize(
    ("depth", "colour_type", "packed", "transparent", "right"),
    [
        (1, 0, [0b01000000], [0], [255, 255, 255]),  # black is transparent: all white
        (1, 0, [0b01000000], [1], [0, 255, 0]),
        (2, 0, [0b00011011], [1], [0, 255, 170]),
        (4, 0, [0x05, 0xA0], [5], [0, 255, 170]),
        (8, 0, [9, 60, 200], [60], [9, 255, 200]),
        (16, 0, [0x12, 0x34, 0x12, 0x35, 0xC0, 0], [0x1234], [255, 18, 192]),
        (8, 2, [9, 9, 9, 60, 60, 60, 60, 60, 60], [60] * 3, [9, 255, 255]),
        (16, 2, [9, 7] * 3 + [60, 8] * 6, [60 * 256 + 8] * 3, [9, 255, 255]),
    ],
)
def test_a_pngs_transparent_colour_is_white_at_every_depth(depth, colour_type, packed, transparent, right):
    chunk = (b"tRNS", struct.pack(f">{len(transparent)}H", *transparent))
    assert greys(png(3, 1, depth, colour_type, [bytes(packed)], chunk)) == right


def test_sixteen_bit_colours_and_alphas_keep_their_upper_bits():
    colours = struct.pack(">6H", 0x1234, 0x2000, 0xFFFF, 0x8000, 1, 0x7FFF)
    right = [(0x12, 0x20, 255), (128, 0, 127)]
    assert row(load_image(png(2, 1, 16, 2, [colours]))) == right
    assert row(load_image(tiff(2, 1, colours, ">", bits=[16] * 3, photometric=2, samples=3))) == right
    with_alpha = struct.pack(">8H", 0x1234, 0x2000, 0xFFFF, 0xFFFF, 0xFFFF, 0, 0, 0)
    assert row(load_image(png(2, 1, 16, 6, [with_alpha]))) == [right[0], WHITE]
    assert greys(png(2, 1, 16, 4, [struct.pack(">4H", 0x8000, 0xFFFF, 0, 0)])) == [128, 255]


def test_a_palette_may_have_many_degrees_of_transparency():
    palette, alphas = bytes([*RED, *GREEN, *BLUE]), bytes([0, 128])
    found = row(load_image(png(3, 1, 8, 3, [b"\0\1\2"], (b"PLTE", palette), (b"tRNS", alphas))))
    assert found == [WHITE, (127, 255, 127), BLUE]
    image = Image.new("P", (2, 1))
    image.putpalette([*RED, 0, *BLUE, 255], "RGBA")  # alpha in the palette itself
    image.putpixel((1, 0), 1)
    assert row(load_image(image)) == [WHITE, BLUE]


def test_tiffs_with_alpha_are_on_white():
    straight, premultiplied = bytes([255, 0, 0, 128, 255, 0, 0, 0]), bytes([128, 0, 0, 128, 0, 0, 0, 0])
    for data, extra in [(straight, 2), (premultiplied, 1)]:
        found = row(load_image(tiff(2, 1, data, bits=[8] * 4, photometric=2, samples=4, extra=extra)))
        assert found == [(255, 127, 127), WHITE]
    assert greys(tiff(2, 1, bytes([9, 255, 9, 0]), bits=[8] * 2, samples=2, extra=2)) == [9, 255]


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "lzma", "zstd"])
def test_compressed_tiffs_are_read(compression):
    options = {"quality": 95} if compression == "jpeg" else {}
    found = load_image(as_file(quarters(), format="TIFF", compression=compression, **options))
    assert_quarters(found, tolerance=40 if compression == "jpeg" else 0)


def test_a_tiff_is_its_first_page_and_stands_upright_once():
    first, others = quarters(), [Image.new("RGB", (9, 9), WHITE), Image.new("RGB", (60, 50), RED)]
    assert_quarters(load_image(as_file(first, format="TIFF", save_all=True, append_images=others)), tolerance=0)
    for compression in ("raw", "tiff_lzw"):
        exif = Image.Exif()
        exif[0x0112] = 6
        turned = first.transpose(Image.Transpose.ROTATE_90)
        found = load_image(as_file(turned, format="TIFF", exif=exif, compression=compression))
        assert found.size == first.size
        assert_quarters(found, tolerance=0)


def test_colours_of_other_spaces_come_in_as_they_look():
    cmyk = bytes([0, 255, 255, 0, 0, 0, 0, 255, 0, 0, 0, 0])
    assert row(load_image(tiff(3, 1, cmyk, bits=[8] * 4, photometric=5, samples=4))) == [RED, BLACK, WHITE]
    lab = bytes([255, 0, 0, 0, 0, 0, 136, 208, 195, 136, 80, 67])  # white, black, green, red in CIE L*a*b*
    found = row(load_image(tiff(4, 1, lab, bits=[8] * 3, photometric=8, samples=3)))
    assert close(found[0], WHITE) and close(found[1], BLACK)
    assert found[2][1] > 100 > found[2][0] and found[3][0] > 200 > 60 > found[3][1]
    ycc = quarters().convert("YCbCr")
    assert_quarters(load_image(ycc))
    assert_quarters(load_image(quarters().convert("HSV")))
    assert_quarters(load_image(quarters().convert("LAB")), tolerance=25)


@pytest.mark.parametrize("ycck", [False, True])
def test_the_inverted_cmyk_of_photo_programs_is_turned_round(ycck):
    # Adobe's programs store 255 - C, M, Y, K; as YCCK the first three are a YCbCr of the C, M and Y themselves.
    wanted = (0, 200, 200, 30)  # RGB (225, 48, 48)
    if ycck:
        c, m, y, k = wanted
        luma = 0.299 * c + 0.587 * m + 0.114 * y
        stored = [luma, 128 + 0.564 * (y - luma), 128 + 0.713 * (c - luma), 255 - k]
    else:
        stored = [255 - ink for ink in wanted]
    # Pillow's writer inverts, so it is given the inverse of what is to stand in the file.
    image = Image.new("CMYK", (16, 16), tuple(255 - round(value) for value in stored))
    data = bytearray(as_file(image, format="JPEG", quality=100, subsampling=0).getvalue())
    data[data.index(b"Adobe") + 11] = 2 if ycck else 0
    assert close(load_image(io.BytesIO(bytes(data))).getpixel((8, 8)), (225, 48, 48), 3)


def bmp(width, height, bits, rows, masks=b"", palette=b""):
    """A BMP with a header of its fourth version if it has masks, else of its third; rows from the top."""
    extra = masks.ljust(16, b"\0") + bytes(52) if masks else b""
    size = 40 + len(extra)
    header = struct.pack(
        "<IiiHHIIiiII", size, width, -height, 1, bits, 3 if masks else 0, 0, 0, 0, len(palette) // 4, 0
    )
    start = 14 + size + len(palette)
    body = b"".join(line.ljust(-len(line) % 4 + len(line), b"\0") for line in rows)
    return io.BytesIO(b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + header + extra + palette + body)


def test_bitmaps_of_every_depth_are_read():
    assert row(load_image(bmp(2, 1, 24, [bytes([0, 0, 255, 255, 0, 0])]))) == [RED, BLUE]
    assert row(load_image(bmp(2, 1, 32, [bytes([0, 0, 255, 0, 255, 0, 0, 0])]))) == [RED, BLUE]  # no alpha is meant
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    found = row(load_image(bmp(3, 1, 32, [bytes([0, 0, 255, 255, 255, 0, 0, 0, 255, 0, 0, 128])], masks)))
    assert found == [RED, WHITE, (127, 127, 255)]
    assert row(load_image(bmp(2, 1, 16, [struct.pack("<2H", 0x7C00, 0x1F)]))) == [RED, BLUE]
    palette = bytes([255, 0, 0, 0, 0, 0, 255, 0])
    for bits, line in [(1, b"\x40"), (4, b"\x01"), (8, b"\0\1")]:
        assert row(load_image(bmp(2, 1, bits, [line], palette=palette))) == [BLUE, RED]
    from_below = bytearray(bmp(1, 2, 24, [bytes([0, 0, 255]), bytes([255, 0, 0])]).getvalue())
    struct.pack_into("<i", from_below, 22, 2)
    found = load_image(io.BytesIO(bytes(from_below)))
    assert [found.getpixel((0, y)) for y in (0, 1)] == [BLUE, RED]


def gif(screen, frame, index, transparent=None):
    """A GIF by hand: one frame (left, top, width, height) of one colour of blue, red, green, black."""
    codes = []
    for n in range(frame[2] * frame[3]):
        codes += [4, index] if n % 2 == 0 else [index]  # cleared often, so that codes stay at 3 bits
    bits = "".join(format(code, "03b")[::-1] for code in [*codes, 5])
    body = bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))
    control = b"" if transparent is None else bytes([0x21, 0xF9, 4, 1, 0, 0, transparent, 0])
    parts = [
        b"GIF89a" + struct.pack("<HHBBB", *screen, 0x81, 0, 0) + bytes([*BLUE, *RED, *GREEN, *BLACK]),
        control + b"," + struct.pack("<HHHHB", *frame, 0) + bytes([2, len(body)]) + body + b"\0;",
    ]
    return io.BytesIO(b"".join(parts))


def test_nothing_is_drawn_outside_a_gifs_first_frame():
    found = load_image(gif((6, 4), (1, 1, 3, 2), 1))
    assert found.size == (6, 4)
    inside = {(x, y) for x in range(1, 4) for y in range(1, 3)}
    for x in range(6):
        for y in range(4):
            assert found.getpixel((x, y)) == (RED if (x, y) in inside else WHITE)
    assert row(load_image(gif((3, 2), (0, 0, 3, 2), 1, transparent=1))) == [WHITE] * 3
    assert load_image(gif((2, 2), (1, 0, 3, 2), 1)).size == (4, 2)  # a frame larger than its screen


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "AVIF"])
@pytest.mark.parametrize("disposal", [1, 2])
def test_an_animation_is_its_first_frame_with_what_is_transparent_in_white(kind, disposal):
    first = quarters().convert("RGBA")
    first.paste((0, 255, 0, 0), (0, 0, 20, 12))  # the red quarter is seen through
    later = [Image.new("RGBA", first.size, (*BLUE, 255)), Image.new("RGBA", first.size, (*RED, 255))]
    options = {"WEBP": {"lossless": True}, "AVIF": {"quality": 100}, "GIF": {"disposal": disposal}}.get(kind, {})
    if kind == "PNG":
        options = {"disposal": disposal}
    file = as_file(first, format=kind, save_all=True, append_images=later, duration=50, **options)
    assert Image.open(file).n_frames == 3
    found = corners(load_image(file))
    assert all(close(a, b, 12) for a, b in zip(found, [WHITE, GREEN, BLUE, BLACK], strict=True)), found


def test_loading_twice_is_loading_once():
    exif = Image.Exif()
    exif[0x0112] = 6
    for image, options in [(quarters(), {}), (quarters().quantize(4), {"transparency": 0})]:
        once = load_image(as_file(image, format="PNG", exif=exif, **options))
        assert once.size == (24, 40)
        assert load_image(once).tobytes() == once.tobytes()
        assert load_image(once).size == once.size
        assert load_image(once) is not once


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "AVIF"])
def test_a_photo_with_odd_notes_beside_its_orientation_stands_upright(kind):
    exif = Image.Exif()
    exif[0x0112] = 8
    for tag, value in [(0x010F, "m" * 3000), (0x9286, b"\xff" * 50), (0x927C, b"Nikon\0" + b"\x80" * 99)]:
        exif[tag] = value
    turned = quarters().transpose(Image.Transpose.ROTATE_270)
    data = exif.tobytes().replace(b"m" * 3000, bytes(range(250)) * 12)
    assert_quarters(load_image(as_file(turned, format=kind, exif=data, quality=95)), tolerance=40)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(3, b"\0\0\0\0"), (3, b"\x09\0\0\0"), (3, b"\x60\xea\0\0"), (2, b"abc\0"), (99, b"\6\0\0\0")],
)
def test_an_orientation_that_does_not_exist_leaves_the_picture_as_it_is(kind, value):
    entry = struct.pack("<HHI", 0x0112, kind, 4 if kind == 2 else 1) + value
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4)
    assert_quarters(load_image(as_file(quarters(), format="PNG", exif=exif)))


# What must not


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.9, 0.6, 0.2])
def test_a_picture_cut_short_is_refused(kind, share):
    # gradio #7482, #10381, #6489
    noise = Image.frombytes("RGB", (64, 64), random_images(1, 64).mul(255).byte().numpy().tobytes())
    data = as_file(noise, format=kind).getvalue()
    message = refused(io.BytesIO(data[: int(share * len(data))]))
    assert "damaged" in message or "not a picture" in message
    assert all(name in message for name in NAMED_FORMATS)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        b"This is a text that somebody named flower.jpg.\n" * 20,
        b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>',
        b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + b"\x00" * 200,
        b"%PDF-1.7\n",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
    ],
)
def test_a_file_that_is_no_picture_is_refused_with_the_accepted_formats(tmp_path, content):
    path = tmp_path / "flower.jpg"
    path.write_bytes(content)
    for source in (path, io.BytesIO(content)):
        message = refused(source)
        assert all(name in message for name in NAMED_FORMATS)


def test_what_is_no_file_at_all_is_refused(tmp_path):
    assert "There is no file" in refused(tmp_path / "missing.png")
    refused(tmp_path)  # a folder
    for source in (None, 3, b"bytes", ["a"]):
        assert "Please give a picture" in refused(source)


def png_of_one_colour(width, height):
    """A one-bit PNG, packed by hand row after row."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    packer = zlib.compressobj(1)
    row = bytes(1 + (width + 7) // 8)
    body = b"".join(packer.compress(row * 100) for _ in range(height // 100)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("width", "height"), [(20_000, 10_000), (13_000, 13_000), (8_000, 6_300)])
def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(monkeypatch, width, height):
    # baserow #3013
    assert width * height > MAX_PIXELS
    data = io.BytesIO(png_of_one_colour(width, height))
    assert data.getbuffer().nbytes < 300_000
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
    started = time.process_time()
    assert "at most 50 million" in refused(data)
    assert time.process_time() - started < 0.5


def test_a_picture_of_just_few_enough_pixels_is_read():
    data = io.BytesIO(png_of_one_colour(10_000, 5_000))
    assert load_image(data).size == (10_000, 5_000)


def test_a_file_of_too_many_bytes_is_refused_unread(tmp_path):
    path = tmp_path / "huge.png"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert "at most 30 MB" in refused(path)
    with path.open("rb") as file:
        assert "at most 30 MB" in refused(file)


def test_a_pil_image_of_too_many_pixels_or_none_is_refused():
    assert "8000 x 6300" in refused(Image.new("1", (8000, 6300)))
    assert "no pixels" in refused(Image.new("RGB", (0, 5)))


def test_loading_leaves_the_callers_image_alone():
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    load_image(image)
    assert image.mode == "RGBA"
    assert image.getpixel((0, 0)) == (255, 0, 0, 0)


def noise(size=24, seed=0):
    return Image.frombytes("RGB", (size, size), random.Random(seed).randbytes(3 * size * size))


def small_files():
    """A small file of each kind that the intake tells apart."""
    colour, second = noise(), noise(seed=1)
    clear = colour.copy()
    clear.putalpha(second.convert("L"))
    exif = Image.Exif()
    exif[0x0112] = 6
    wanted = {
        "jpeg": ("JPEG", colour, {"exif": exif}),
        "jpeg, progressive": ("JPEG", colour, {"progressive": True}),
        "jpeg, cmyk": ("JPEG", colour.convert("CMYK"), {}),
        "mpo": ("MPO", colour, {"save_all": True, "append_images": [second]}),
        "png": ("PNG", clear, {"exif": exif}),
        "png, palette": ("PNG", colour.quantize(16), {"transparency": 1}),
        "png, deep": ("PNG", colour.convert("L").convert("I").convert("I;16"), {}),
        "apng": ("PNG", colour, {"save_all": True, "append_images": [second]}),
        "webp": ("WEBP", colour, {"exif": exif}),
        "webp, lossless": ("WEBP", clear, {"lossless": True}),
        "gif": ("GIF", colour, {}),
        "gif, animated": ("GIF", colour, {"save_all": True, "append_images": [second]}),
        "bmp": ("BMP", colour, {}),
        "bmp, palette": ("BMP", colour.quantize(16), {}),
        "tiff": ("TIFF", colour, {"exif": exif}),
        "tiff, deflated": ("TIFF", clear, {"compression": "tiff_adobe_deflate"}),
        "tiff, lzw": ("TIFF", colour, {"compression": "tiff_lzw"}),
        "avif": ("AVIF", clear, {"exif": exif}),
    }
    return {
        name: as_file(image.copy(), format=kind, **options).getvalue()
        for name, (kind, image, options) in wanted.items()
    }


SMALL_FILES = small_files()


@pytest.fixture
def quiet(recwarn, capsys):
    """No warning and nothing printed by Python."""
    warnings.simplefilter("always")
    yield
    assert [str(warning.message) for warning in recwarn if "PIL" in warning.filename] == []
    assert capsys.readouterr() == ("", "")


def taken_in(data):
    """Whether bytes come in, as a picture of allowed size; else they must be refused in plain words."""
    try:
        image = load_image(io.BytesIO(data))
    except ValueError as error:
        message = str(error)
        assert message.endswith(".") and "\n" not in message and len(message) < 200
        assert "at most 50 million" in message or all(name in message for name in NAMED_FORMATS)
        return False
    assert image.mode == "RGB"
    assert image.width * image.height <= MAX_PIXELS
    return True


@pytest.mark.parametrize("name", SMALL_FILES)
def test_a_file_cut_at_any_tenth_is_refused_or_still_holds_its_whole_first_picture(name, quiet):
    data = SMALL_FILES[name]
    assert taken_in(data)
    for tenth in range(10):
        cut = data[: len(data) * tenth // 10]
        if taken_in(cut):
            assert name in ("mpo", "apng", "gif, animated")
            assert load_image(io.BytesIO(cut)).tobytes() == load_image(io.BytesIO(data)).tobytes()


@pytest.mark.parametrize("name", SMALL_FILES)
def test_damaged_files_come_in_or_are_refused_in_plain_words_and_quickly(name, quiet):
    started = time.process_time()
    random_of = random.Random(name)
    n_refused = 0
    for _ in range(300):
        data = bytearray(SMALL_FILES[name])
        for _ in range(random_of.choice((1, 1, 2, 4, 16))):
            at = random_of.randrange(random_of.choice((64, len(data))))  # half of it within the header
            change = random_of.randrange(4)
            if change == 0:
                data[at] = random_of.randrange(256)
            elif change == 1:
                data[at] ^= 1 << random_of.randrange(8)
            elif change == 2:
                data[at : at + 4] = b"\xff\xff\xff\xff"
            else:
                data[at : at + random_of.randrange(9)] = random_of.randbytes(random_of.randrange(9))
        n_refused += not taken_in(bytes(data))
    assert n_refused > 0
    assert time.process_time() - started < 20


def test_what_pillow_warns_of_is_not_printed(quiet, monkeypatch):
    for name in (None, "PIL"):  # as in a program that has set up no logging
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    # A header that lies about the size of its EXIF, an APNG of no frames, more samples than can be read, and a size at
    # which Pillow warns.
    broken = as_file(quarters(), format="JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff").getvalue()
    assert taken_in(broken)
    assert taken_in(png(1, 1, 8, 0, [b"\7"], (b"acTL", bytes(8))).getvalue())
    assert not taken_in(tiff(1, 1, bytes(9), bits=[8] * 9, photometric=2, samples=9).getvalue())
    assert not taken_in(png_of_one_colour(10_000, 10_000))


def test_the_callers_warnings_are_left_as_they_were():
    before = list(warnings.filters)
    load_image(as_file(quarters(), format="PNG"))
    refused(io.BytesIO(b"no picture"))
    assert warnings.filters == before


@pytest.mark.parametrize(
    "source",
    [
        gif((65535, 65535), (0, 0, 1, 1), 1),
        gif((9000, 9000), (0, 0, 1, 1), 1),
        io.BytesIO(
            gif((4, 4), (0, 0, 2, 2), 1)
            .getvalue()
            .replace(struct.pack("<4H", 0, 0, 2, 2), struct.pack("<4H", 0, 0, 9000, 9000))
        ),
        tiff(9000, 9000, b"\0"),
        tiff(60_000, 60_000, b"\0", compression=5),
        bmp(9000, 9000, 8, [b"\0"]),
        png(9000, 9000, 8, 6, [b"\0"]),
    ],
    ids=["gif screen, huge", "gif screen", "gif frame", "tiff", "tiff, lzw", "bmp", "png"],
)
def test_a_small_file_that_claims_many_pixels_is_refused_before_it_is_decoded(monkeypatch, source):
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
    assert "at most 50 million" in refused(source)


@pytest.mark.parametrize("kind", ["WEBP", "AVIF", "JPEG"])
def test_a_coded_picture_of_too_many_pixels_is_refused_before_it_is_decoded(monkeypatch, kind):
    size = (9000, 9000)
    if kind == "AVIF":  # slow to make: its header is changed instead
        data = as_file(Image.new("RGB", (16, 16)), format="AVIF").getvalue()
        at = data.index(b"ispe") + 8
        file = io.BytesIO(data[:at] + struct.pack(">2I", *size) + data[at + 8 :])
    elif kind == "WEBP":
        data = bytearray(as_file(Image.new("RGBA", (16, 16), (1, 2, 3, 4)), format="WEBP", exif=b"Exif\0\0").getvalue())
        at = data.index(b"VP8X") + 12
        data[at : at + 6] = (size[0] - 1).to_bytes(3, "little") + (size[1] - 1).to_bytes(3, "little")
        file = io.BytesIO(bytes(data))
    else:
        data = bytearray(as_file(Image.new("RGB", (16, 16)), format="JPEG").getvalue())
        at = data.index(b"\xff\xc0") + 5
        struct.pack_into(">2H", data, at, *size)
        file = io.BytesIO(bytes(data))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
    message = refused(file)
    assert "at most 50 million" in message or "not a picture" in message


def test_a_tiff_of_tiles_larger_than_any_picture_is_refused_before_it_is_decoded(monkeypatch):
    # One tile is decoded whole, whatever the size of the picture: a small file can take all memory there is.
    body = zlib.compress(bytes(100))
    whole = tiff(10, 10, body, compression=8, tile_width=10_000, tile_length=10_000).getvalue()
    swapped = whole.replace(struct.pack("<HH", 273, 4), struct.pack("<HH", 324, 4))
    swapped = swapped.replace(struct.pack("<HH", 279, 3), struct.pack("<HH", 325, 3))
    assert Image.open(io.BytesIO(swapped)).size == (10, 10)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
    assert "damaged" in refused(io.BytesIO(swapped))


def test_tiled_tiffs_are_read():
    tile = bytes(range(256))
    whole = tiff(16, 16, tile, tile_width=16, tile_length=16).getvalue()
    swapped = whole.replace(struct.pack("<HH", 273, 4), struct.pack("<HH", 324, 4))
    swapped = swapped.replace(struct.pack("<HH", 279, 3), struct.pack("<HH", 325, 3))
    assert load_image(io.BytesIO(swapped)).getchannel("R").tobytes() == tile


def test_a_progressive_jpeg_of_very_many_scans_is_refused_before_it_is_decoded(monkeypatch):
    data = as_file(noise(), format="JPEG", progressive=True).getvalue()
    last = data[data.rindex(b"\xff\xda") : -2]
    assert taken_in(data)
    assert taken_in(data[:-2] + last * 50 + data[-2:])
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
    assert "damaged" in refused(io.BytesIO(data[:-2] + last * 3000 + data[-2:]))


@pytest.mark.parametrize(
    ("size", "kind"), [((1, 20_000), "PNG"), ((20_000, 1), "TIFF"), ((1, 65_000), "JPEG"), ((16_000, 2), "WEBP")]
)
def test_very_long_pictures_are_read_in_every_format(size, kind):
    found = load_image(as_file(Image.new("RGB", size, (10, 200, 60)), format=kind))
    assert found.size == size
    assert (image_to_tensor(found, 64) - torch.tensor([10, 200, 60]).view(3, 1, 1) / 255).abs().max() < 0.03


@pytest.mark.parametrize(
    ("head", "named"),
    [
        (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic", "a HEIC picture"),
        (b"\x00\x00\x00\x18ftypmif1\x00\x00\x00\x00mif1heic", "a HEIC picture"),
        (b"\x00\x00\x00\x18ftypmif1\x00\x00\x00\x00mif1avif", "not a picture"),
        (b'<?xml version="1.0"?>\n<!-- a flower -->\n<SVG width="9" height="9">', "an SVG drawing"),
        (b'<svg xmlns="http://www.w3.org/2000/svg">', "an SVG drawing"),
        (b"", "empty"),
        (b"GIF", "not a picture"),
        (b"8BPS\x00\x01" + bytes(30), "not a picture"),
        (b"\x00\x00\x01\x00\x01\x00\x10\x10", "not a picture"),
    ],
)
def test_the_message_says_what_a_file_is_where_that_is_plain(tmp_path, head, named):
    path = tmp_path / "IMG_0001.jpg"
    path.write_bytes(head + b"\0" * (200 if head else 0))
    for source in (path, io.BytesIO(path.read_bytes())):
        message = refused(source)
        assert named in message
        assert all(name in message for name in NAMED_FORMATS)


def test_what_lies_at_a_path_and_is_no_file_is_refused_without_waiting(tmp_path, monkeypatch):
    assert "a folder" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)  # a socket's path must be short
        listening.bind("socket.png")
        for name in ("pipe.jpg", "socket.png", "/dev/null", "/dev/zero"):
            message = refused(name)
            assert "no ordinary file" in message
            assert all(known in message for known in NAMED_FORMATS)
    for path in ("with\0nothing.png", "a" * 5000, "\ud800.png"):
        refused(path)


def test_a_file_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "mine.png"
    quarters().save(path)

    def forbidden(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", forbidden)  # whoever runs this may read everything
    message = refused(path)
    assert "may not be read" in message
    assert all(known in message for known in NAMED_FORMATS)


class OneWay(io.RawIOBase):
    """A stream that can only be read on, as one out of the network."""

    def __init__(self, data):
        self._rest = io.BytesIO(data)

    def readable(self):
        return True

    def readinto(self, buffer):
        return self._rest.readinto(buffer)


def test_a_stream_that_cannot_be_rewound_is_read_up_to_the_limit():
    assert_quarters(load_image(OneWay(as_file(quarters(), format="PNG").getvalue())))
    endless = OneWay(bytes(MAX_BYTES + 10))
    assert "at most 30 MB" in refused(endless)
    refused(io.StringIO("a text"))


def test_files_are_closed_and_the_callers_are_left_open(tmp_path, recwarn):
    warnings.simplefilter("always")
    for name, data in SMALL_FILES.items():
        path = tmp_path / "picture"
        path.write_bytes(data)
        load_image(path)
        path.write_bytes(data[: len(data) // 3])
        refused(path)
        file = io.BytesIO(data)
        load_image(file)
        assert not file.closed, name
    path.write_bytes(png_of_one_colour(8_000, 6_300))
    refused(path)
    gc.collect()
    assert [str(warning.message) for warning in recwarn if warning.category is ResourceWarning] == []


# The tensor


def smooth(width, height):
    """Waves, slow enough that any sound way to shrink them gives about the same."""
    image = Image.new("RGB", (width, height))
    image.putdata(
        [
            (int(128 + 100 * ((x / width * 6) % 2 - 1)), int(255 * y / height), int(255 * (x + y) / (width + height)))
            for y in range(height)
            for x in range(width)
        ]
    )
    return image


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [(32, 32, 32), (64, 64, 32), (96, 64, 32), (61, 97, 32), (50, 120, 16), (20, 13, 32), (7, 7, 32), (33, 32, 32)],
)
def test_the_tensor_equals_resizing_the_shorter_side_and_cropping_the_centre(width, height, size):
    for image in (smooth(width, height), quarters(width, height)):
        rows = [[image.getpixel((x, y)) for x in range(width)] for y in range(height)]
        right = torch.tensor(reference.resize_then_crop(rows, size))
        difference = (image_to_tensor(image, size).double() - right).abs()
        assert difference[:, 1:-1, 1:-1].max() < 0.02
        assert difference.max() < 0.12  # at the rim of the crop the filter sees what is inside it


def test_a_picture_of_the_right_size_is_taken_as_it_is():
    image = smooth(32, 32)
    x = image_to_tensor(image, 32)
    for column, row in [(0, 0), (5, 20), (31, 31), (30, 1)]:
        assert x[:, row, column].mul(255).round().int().tolist() == list(image.getpixel((column, row)))


def test_shrinking_averages_instead_of_picking():
    # Stripes one pixel wide: picking every other pixel would give all black or all white.
    image = Image.new("RGB", (128, 128))
    for x in range(0, 128, 2):
        image.paste(WHITE, (x, 0, x + 1, 128))
    assert (image_to_tensor(image, 32) - 0.5).abs().max() < 0.06


# The encoder


@pytest.fixture(params=["mlp", "conv"])
def encoder(request):
    torch.manual_seed(0)
    config = VisionConfig(image_size=9, n_slots=3, encoder=request.param, d_trunk=8, d_hidden=12, channels=(4, 6, 8))
    return ImageEncoder(config, d_model=10, d_ff=20).eval()


@torch.no_grad()
def test_a_pictures_slots_are_the_same_alone_and_in_a_batch(encoder):
    images = random_images(4, 9)
    together = encoder(images)
    assert together.shape == (4, 3, 10)
    for row in range(4):
        torch.testing.assert_close(encoder(images[row : row + 1])[0], together[row], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_slots_differ_from_each_other_and_from_picture_to_picture(encoder):
    slots = encoder(random_images(2, 9))
    assert (slots[0] - slots[1]).abs().max() > 1e-3
    for s in range(3):
        for other in range(s):
            assert (slots[0, s] - slots[0, other]).abs().max() > 1e-3


def test_every_pixel_reaches_every_slot(encoder):
    for s in range(3):
        images = random_images(1, 9, seed=1).requires_grad_(True)
        encoder(images)[0, s].square().sum().backward()
        assert (images.grad[0].abs().sum(dim=0) > 0).all()


@torch.no_grad()
def test_evaluation_mode_forgets_what_it_has_seen(encoder):
    images = random_images(2, 9)
    first = encoder(images)
    encoder(random_images(6, 9, seed=2) * 5)
    assert torch.equal(encoder(images), first)


@pytest.mark.parametrize("image_size", [2, 5, 32, 33])
def test_the_convolutional_encoder_takes_any_size(image_size):
    config = VisionConfig(image_size=image_size, n_slots=2, encoder="conv", channels=(4, 6))
    encoder = ImageEncoder(config, d_model=10, d_ff=20).eval()
    slots = encoder(random_images(2, image_size))
    assert slots.shape == (2, 2, 10)
    assert (slots[0] - slots[1]).abs().max() > 0


@torch.no_grad()
def test_a_mirrored_encoder_averages_what_the_trunk_makes_of_picture_and_mirror_image():
    torch.manual_seed(0)
    config = VisionConfig(image_size=12, n_slots=2, encoder="conv", channels=(4, 6), mirrored=True)
    encoder = ImageEncoder(config, d_model=10, d_ff=20).eval()
    images = random_images(3, 12)
    mirrored = torch.stack([torch.stack([channel[:, list(range(11, -1, -1))] for channel in x]) for x in images])
    features = (encoder.trunk(images) + encoder.trunk(mirrored)) / 2
    torch.testing.assert_close(encoder(images), encoder.fill_slots(features))
    torch.testing.assert_close(encoder(images), encoder(mirrored), atol=1e-5, rtol=1e-4)
    plain = ImageEncoder(dataclasses.replace(config, mirrored=False), d_model=10, d_ff=20).eval()
    plain.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(plain(images), plain.fill_slots(plain.trunk(images)))
    assert (plain(images) - plain(mirrored)).abs().max() > 1e-3


@torch.no_grad()
def test_scales_average_what_the_trunk_makes_of_the_picture_in_several_sizes():
    torch.manual_seed(0)
    config = VisionConfig(
        image_size=12, n_slots=2, encoder="conv", channels=(4, 6), mirrored=True, scales=(1.0, 1.25, 0.5)
    )
    encoder = ImageEncoder(config, d_model=10, d_ff=20).eval()
    images = random_images(3, 12)
    views = [images]
    for side in (15, 6):
        rows = []
        for image in images:  # one by one, by another library's bicubic filter
            channels = [Image.fromarray(channel.numpy(), "F").resize((side, side), Image.BICUBIC) for channel in image]
            rows.append(torch.stack([torch.tensor(list(c.getdata())).view(side, side) for c in channels]))
        views.append(torch.stack(rows).clamp(0, 1))
    assert [view.shape[-1] for view in encoder.views(images)] == [12, 12, 15, 15, 6, 6]
    # Pillow's cubic is a little softer where it enlarges.
    for ours, theirs in zip(encoder.views(images)[::2], views, strict=True):
        assert (ours - theirs).abs().mean() < 0.03
    expected = [encoder.trunk(view) for picture in encoder.views(images)[::2] for view in (picture, picture.flip(-1))]
    torch.testing.assert_close(encoder(images), encoder.fill_slots(torch.stack(expected).mean(dim=0)))
    assert (encoder(images) - encoder.fill_slots(encoder.trunk(images))).abs().max() > 1e-3


@torch.no_grad()
def test_an_mlp_encoder_reads_pictures_of_one_size_alone():
    encoder = ImageEncoder(VisionConfig(image_size=6, encoder="mlp", scales=(1.0, 1.25)), d_model=10, d_ff=20)
    images = random_images(2, 6)
    torch.testing.assert_close(encoder(images), encoder.fill_slots(encoder.trunk(images)))


def test_stages_have_as_many_blocks_as_told_and_all_but_the_first_halve_the_picture():
    config = VisionConfig(image_size=32, encoder="conv", channels=(4, 6, 8), n_blocks=(2, 3))
    trunk = ImageEncoder(config, d_model=10, d_ff=20).trunk
    x, sides = trunk.stem(random_images(2, 32)), []
    for block in trunk.stages:
        x = block(x)
        sides.append(tuple(x.shape[1:]))
    assert sides == [(4, 16, 16)] * 2 + [(6, 8, 8)] * 3 + [(8, 4, 4)]


@torch.no_grad()
def test_a_residual_block_weighs_its_channels_by_their_means():
    torch.manual_seed(0)
    block = ResidualBlock(16, 16, stride=1).eval()
    x = torch.randn(2, 16, 5, 5)
    y = block.conv2(block.conv1(x).relu())
    first, _, second = block.excite
    means = torch.tensor([[float(y[b, c].mean()) for c in range(16)] for b in range(2)])
    squeezed = (means @ first.weight.T + first.bias).clamp(min=0)
    weights = 2 / (1 + (-(squeezed @ second.weight.T + second.bias)).exp())
    right = torch.stack([torch.stack([y[b, c] * weights[b, c] + x[b, c] for c in range(16)]) for b in range(2)])
    torch.testing.assert_close(block(x), right.clamp(min=0))
    assert squeezed.shape == (2, 2) and float(weights.std()) > 0
