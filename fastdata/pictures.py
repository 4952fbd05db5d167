"""Picture files by their first bytes, whatever their names say."""

from __future__ import annotations

import re

_MAGIC = {
    "jpeg": rb"\xff\xd8\xff",
    "png": rb"\x89PNG\r\n\x1a\n",
    "gif": rb"GIF8[79]a",
    "webp": rb"RIFF....WEBP",
    "bmp": rb"BM",
    "tiff": rb"II[*+]\0|MM\0[*+]",
    "jp2": rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "avif": rb"....ftyp(?:avif|avis)",
    "ppm": rb"P(?:[1-6]|f)\s",
}
_ANY = re.compile(b"|".join(b"(?P<%s>%s)" % (name.encode(), magic) for name, magic in _MAGIC.items()), re.DOTALL)

FORMATS = tuple(_MAGIC)
"""Formats that are known, by the names in the column `<field>.encoding`."""

MAX_PIXELS = 178_956_970
"""A picture with more is refused before memory is taken: half a GiB of RGB, where Pillow refuses too."""

HEAD_NBYTES = 16
"""Bytes that tell the format."""


def picture_format(head: bytes) -> str | None:
    """Tell the format of a file that begins with `head`; None where it is no picture that is known."""
    match = _ANY.match(head)
    return match.lastgroup if match else None
