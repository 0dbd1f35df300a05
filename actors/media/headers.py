"""How large a picture says that it is, read from its first bytes: before any library makes room for it.

Some libraries make room for all of a picture when they open it, and some pictures of a hundred bytes say that they are
huge. Only what is recognised here is opened at all.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

PNG, GIF, RIFF, JPEG = b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF", b"\xff\xd8\xff"
TIFF = {b"II*\0": "<", b"MM\0*": ">"}
FRAMES = (*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))  # of JPEG: that tell its size
ALONE = (0x01, *range(0xD0, 0xDA))  # of JPEG: markers without a length, and those behind which it is too late
WIDTH, HEIGHT = 256, 257  # tags of TIFF, and those of its tiles, each of which room is made for as a whole
TILES = {322: WIDTH, 323: HEIGHT}
MOST_TAGS = 512
KINDS = "PNG, JPEG, WebP, AVIF, GIF, BMP or TIFF"
AVIF = (b"avif", b"avis")
BEFORE_PIXELS = 1 << 14  # bytes in which an AVIF tells the sizes of its parts


class Header(NamedTuple):
    """What a file says of its picture."""

    kind: str  # as Pillow names it
    width: int
    height: int


def read_header(data: bytes) -> Header | None:
    """Of a picture whose kind is known; None of anything else, or of what ends too soon."""
    try:
        return _read(data)
    except (IndexError, ValueError):
        return None


def _read(data: bytes) -> Header | None:
    if data.startswith(PNG) and data[12:16] == b"IHDR":
        return Header("PNG", *_two(">I", data, 16))
    if data.startswith(GIF):
        return Header("GIF", *_two("<H", data, 6))
    if data.startswith(RIFF) and data[8:12] == b"WEBP":
        return _webp(data)
    if data.startswith(JPEG):
        return _jpeg(data)
    if data[4:8] == b"ftyp" and data[8:12] in AVIF:
        return _avif(data[:BEFORE_PIXELS])
    if data[:2] == b"BM":
        return _bmp(data)
    if data[:4] in TIFF:
        return _tiff(data, TIFF[data[:4]])
    return None


def _two(code: str, data: bytes, at: int) -> tuple[int, int]:
    return _one(code, data, at), _one(code, data, at + Struct(code).size)


def _one(code: str, data: bytes, at: int) -> int:
    form = Struct(code)
    if at < 0 or at + form.size > len(data):
        raise IndexError(at)
    return int(form.unpack_from(data, at)[0])


def _webp(data: bytes) -> Header | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return Header("WEBP", 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little"))
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = _one("<I", data, 21)
        return Header("WEBP", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = _two("<H", data, 26)
        return Header("WEBP", width & 0x3FFF, height & 0x3FFF)
    return None


def _jpeg(data: bytes) -> Header | None:
    at = 2
    while True:
        while data[at] != 0xFF:
            at += 1
        while data[at] == 0xFF:
            at += 1
        marker, at = data[at], at + 1
        if marker in FRAMES:
            height, width = _two(">H", data, at + 3)
            return Header("JPEG", width, height)
        if marker in (0xD9, 0xDA):  # its end, or its pixels, before a size
            return None
        if marker not in ALONE:
            at += max(2, _one(">H", data, at))


def _avif(data: bytes) -> Header | None:
    """The largest of the sizes that it tells: it may have a small picture of it beside, and parts that make one."""
    sizes = []
    at = data.find(b"ispe")
    while at >= 0:
        sizes.append(_two(">I", data, at + 8))
        at = data.find(b"ispe", at + 4)
    return Header("AVIF", max(wide for wide, _ in sizes), max(high for _, high in sizes)) if sizes else None


def _bmp(data: bytes) -> Header:
    if _one("<I", data, 14) == 12:  # the oldest form
        return Header("BMP", *_two("<H", data, 18))
    width, height = _two("<i", data, 18)
    return Header("BMP", abs(width), abs(height))


def _tiff(data: bytes, order: str) -> Header | None:
    first = _one(f"{order}I", data, 4)
    sizes: dict[int, int] = {}
    for index in range(min(MOST_TAGS, _one(f"{order}H", data, first))):
        at = first + 2 + 12 * index
        tag, kind = _one(f"{order}H", data, at), _one(f"{order}H", data, at + 2)
        side = TILES.get(tag, tag)
        if side in (WIDTH, HEIGHT) and kind in (3, 4):
            sizes[side] = max(sizes.get(side, 0), _one(f"{order}{'H' if kind == 3 else 'I'}", data, at + 8))
    return Header("TIFF", sizes[WIDTH], sizes[HEIGHT]) if len(sizes) == 2 else None
