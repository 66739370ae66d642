"""Pictures come in upright, on white and whole, or are refused in plain words; the encoder keeps them apart."""

import io
import struct
import time
import zlib

import pytest
import reference
import torch
from conftest import random_images
from PIL import Image, ImageFile, features

from tinylm import VisionConfig, image_to_tensor, load_image
from tinylm.vision import MAX_BYTES, MAX_PIXELS, ImageEncoder

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
