"""Picture files made by hand: giants of one colour, and small ones that are each a little different."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO

from PIL import Image

KINDS = {"black and white": (1, 0), "grey": (8, 0), "palette": (8, 3)}  # bits, PNG's colour type


def giant_png(side: int, kind: str) -> bytes:
    """A square PNG of one colour; nothing of that size is ever in memory."""
    bits, colour_type = KINDS[kind]
    packer, row = zlib.compressobj(9), bytes(1 + (side * bits + 7) // 8)
    content = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    palette = _chunk(b"PLTE", bytes((200, 30, 90))) if colour_type == 3 else b""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, bits, colour_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + palette + _chunk(b"IDAT", content) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(image: Image.Image) -> bytes:
    """The file of a picture."""
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
