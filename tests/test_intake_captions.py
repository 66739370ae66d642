"""However a picture is stored, the shipped model says of it what it says of the original."""

import functools
import io
import struct

import pytest
import torch
from conftest import ROOT
from PIL import Image, ImageChops, features

import tinylm
from tinylm.captioner import Captioner
from tinylm.data.painter import KINDS, paint

SIZE = 160
PICTURES = [(kind, seed) for kind in KINDS for seed in (5_000_000, 5_000_001)]
AS_IT_IS, INK, LOSSY = 0.0, 0.01, 0.25  # largest difference of a value in [0, 1] from the original's
CLEAR = 0.5  # nats between the likeliest label and the next, from which a lossy copy must not change the caption


@pytest.fixture(scope="module")
def captioner():
    return Captioner.of(tinylm.load(ROOT / "weights" / "vision"))


@pytest.fixture(scope="module")
def pictures():
    # Wider than high, so that a picture taken in on its side is another one.
    found = [paint(kind, seed, SIZE).crop((0, SIZE // 8, SIZE, SIZE - SIZE // 8)) for kind, seed in PICTURES]
    for picture in found:
        picture.paste((255, 255, 255), (30, 0, 60, 20))  # a part that can be stored as transparent
    return found


@pytest.fixture(scope="module")
def original(captioner, pictures):
    """The tensors of the pictures as they are, and their captions."""
    return said_of(captioner, pictures)


@pytest.fixture(scope="module")
def clear(captioner, original):
    """The places of the pictures that the model is not torn about."""
    likeliest = captioner.logprobs(captioner.slots(original[0])).topk(2).values
    return ((likeliest[:, 0] - likeliest[:, 1]) >= CLEAR).nonzero()[:, 0].tolist()


def said_of(captioner, sources):
    size = captioner.model.config.vision.image_size
    images = torch.stack([tinylm.image_to_tensor(tinylm.load_image(source), size) for source in sources])
    return images, captioner.greedy(captioner.slots(images))


def stored(image, kind, **options):
    file = io.BytesIO()
    image.copy().save(file, format=kind, **options)
    return file


def turned(image, orientation, kind):
    """The picture as a camera held otherwise stores it."""
    how = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    how |= {2: Image.Transpose.FLIP_LEFT_RIGHT, 4: Image.Transpose.FLIP_TOP_BOTTOM}
    how |= {5: Image.Transpose.TRANSPOSE, 7: Image.Transpose.TRANSVERSE}
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    return stored(image.transpose(how[orientation]), kind, exif=exif, **options)


def with_alpha(image):
    return stored(image.convert("RGBA"), "PNG")


def on_a_clear_ground(image):
    """What is white made transparent, with red under it."""
    opaque = image.convert("RGBA")
    opaque.putdata([(255, 0, 0, 0) if pixel == (255, 255, 255) else (*pixel, 255) for pixel in image.getdata()])
    return stored(opaque, "PNG")


def in_ink(image, kind):
    """CMYK with the black taken out of the three colours, as a printer wants it."""
    white = functools.reduce(ImageChops.lighter, image.split())  # 255 - black
    inks = []
    for channel in image.split():
        shares = zip(channel.tobytes(), white.tobytes(), strict=True)
        inks.append(Image.frombytes("L", image.size, bytes(255 - round(255 * a / max(b, 1)) for a, b in shares)))
    cmyk = Image.merge("CMYK", (*inks, ImageChops.invert(white)))
    return stored(cmyk, kind, **({"quality": 95, "subsampling": 0} if kind == "JPEG" else {}))


FORMS = {
    **{f"png, exif {n}": (lambda image, n=n: turned(image, n, "PNG"), AS_IT_IS) for n in range(2, 9)},
    **{f"jpeg, exif {n}": (lambda image, n=n: turned(image, n, "JPEG"), LOSSY) for n in (3, 6, 8)},
    "png, alpha": (with_alpha, AS_IT_IS),
    "png, transparent white": (on_a_clear_ground, AS_IT_IS),
    "webp, lossless": (lambda image: stored(image, "WEBP", lossless=True, method=0), AS_IT_IS),
    "webp, quality 90": (lambda image: stored(image, "WEBP", quality=90), LOSSY),
    "tiff": (lambda image: stored(image, "TIFF"), AS_IT_IS),
    "tiff, lzw": (lambda image: stored(image, "TIFF", compression="tiff_lzw"), AS_IT_IS),
    "tiff, cmyk": (lambda image: in_ink(image, "TIFF"), INK),
    "jpeg, cmyk": (lambda image: in_ink(image, "JPEG"), LOSSY),
    "bmp": (lambda image: stored(image, "BMP"), AS_IT_IS),
    "avif": (lambda image: stored(image, "AVIF", quality=90, speed=9), LOSSY),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_picture_stored_otherwise_gets_the_caption_of_the_original(captioner, pictures, original, clear, form):
    if form == "avif" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    store, tolerance = FORMS[form]
    images, captions = said_of(captioner, [store(picture) for picture in pictures])
    assert float((images - original[0]).abs().max()) <= tolerance
    compared = clear if tolerance == LOSSY else range(len(pictures))
    assert [captions[i] for i in compared] == [original[1][i] for i in compared]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_a_grey_picture_of_sixteen_bits_gets_the_caption_of_the_same_in_eight(captioner, pictures, kind):
    eight = [picture.convert("L") for picture in pictures]
    sixteen = []
    for grey in eight:
        values = [value * 257 for value in grey.getdata()]
        sixteen.append(stored(Image.frombytes("I;16", grey.size, struct.pack(f"<{len(values)}H", *values)), kind))
    images, captions = said_of(captioner, [stored(grey, kind) for grey in eight])
    deep_images, deep_captions = said_of(captioner, sixteen)
    assert torch.equal(deep_images, images)
    assert deep_captions == captions


def test_what_is_compared_could_come_out_otherwise(captioner, pictures, original, clear):
    assert len(clear) > len(pictures) // 2
    assert len(set(original[1])) > 5
    # A picture on its side is another tensor, so a rotation overlooked would be seen.
    on_its_side, _ = said_of(captioner, [picture.transpose(Image.Transpose.ROTATE_90) for picture in pictures])
    assert ((on_its_side - original[0]).abs().amax(dim=(1, 2, 3)) > 0.3).all()
