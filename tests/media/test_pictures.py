"""Reading pictures: every kind, what is broken, and what says that it is huge, before anybody makes room for it."""

from __future__ import annotations

import contextlib
import io
import random
import resource
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from actorserve.actors.media import headers
from actorserve.actors.media.headers import Header, read_header
from actorserve.actors.media.pictures import Pictures
from actorserve.actors.media.refused import MediaRefused
from actorserve.actors.options.config import Config

KINDS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MOST = 1_000_000


def file(kind: str, size: tuple[int, int] = (30, 20), mode: str = "RGB", **options: Any) -> bytes:
    made = io.BytesIO()
    colours = random.Random(1).randbytes(size[0] * size[1] * len(mode))
    Image.frombytes(mode, size, colours).save(made, kind, **options)
    return made.getvalue()


@pytest.fixture
def pictures() -> Pictures:
    return Pictures(Config(max_media_pixels=MOST))


FILES = {
    **{kind: file(kind) for kind in KINDS},
    "JPEG progressive": file("JPEG", progressive=True),
    "WEBP lossless": file("WEBP", lossless=True),
    "WEBP with alpha": file("WEBP", mode="RGBA"),
    "PNG with alpha": file("PNG", mode="RGBA"),
    "grey": file("PNG", mode="L"),
    "CMYK": file("JPEG", mode="CMYK"),
    "TIFF compressed": file("TIFF", compression="tiff_lzw"),
    "AVIF": file("AVIF"),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_is_read(pictures: Pictures, name: str) -> None:
    found = read_header(FILES[name])
    assert found is not None and (found.width, found.height) == (30, 20)
    read = pictures.read(FILES[name])
    assert (read.size, read.mode) == ((30, 20), "RGB")


def look_at(pictures: Pictures, data: bytes) -> None:
    """It is read, or refused with a reason."""
    with contextlib.suppress(MediaRefused):
        assert pictures.read(data).mode == "RGB"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_or_changed_is_refused_or_read(pictures: Pictures, name: str) -> None:
    """Never anything else: whatever a library raises is this picture's fault."""
    whole, rng = FILES[name], random.Random(name)
    for size in {0, 1, 2, 3, 8, 12, 20, 30, len(whole) // 2, len(whole) - 1}:
        look_at(pictures, whole[:size])
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        look_at(pictures, bytes(changed))


def png(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return headers.PNG + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def webp(width: int, height: int) -> bytes:
    body = b"VP8X" + struct.pack("<I", 10) + b"\x02\0\0\0"
    body += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body + bytes(64)


def gif(width: int, height: int, inside: tuple[int, int] | None = None) -> bytes:
    frame = struct.pack("<HHHH", 0, 0, *(inside or (width, height)))
    pixels = b"\x02\x02\x44\x01\x00"
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0" + bytes(6) + b"," + frame + b"\0" + pixels + b";"


def tiff(width: int, height: int, tile: int = 0) -> bytes:
    """In tiles of so many pixels each way, or of lines."""
    tags = [(256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 5), (262, 3, 1)]
    if tile:
        tags += [(322, 4, tile), (323, 4, tile), (324, 4, 200), (325, 4, 10)]
    else:
        tags += [(273, 4, 200), (278, 4, height), (279, 4, 10)]
    body = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + body + bytes(300)


def jpeg(width: int, height: int) -> bytes:
    small = bytearray(FILES["JPEG"])
    at = next(at for at in range(len(small)) if small[at] == 0xFF and small[at + 1] in headers.FRAMES)
    small[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(small)


BOMBS = {
    "PNG": png(60_000, 60_000, bytes(1_000_000)),
    "PNG of one line": png(1 << 30, 1),
    "WEBP": webp(16_000_000, 16_000_000),
    "WEBP that a library makes room for": webp(16_383, 16_383),
    "GIF": gif(65_535, 65_535),
    "GIF whose frame is larger": gif(10, 10, (60_000, 60_000)),
    "TIFF": tiff(1 << 31, 1 << 31),
    "TIFF of one tile": tiff(16, 16, 60_000),
    "JPEG": jpeg(65_500, 65_500),
    "AVIF": FILES["AVIF"].replace(struct.pack(">II", 30, 20), struct.pack(">II", 60_000, 60_000)),
    "BMP": b"BM" + bytes(12) + struct.pack("<Iii", 40, 1 << 30, -(1 << 30)) + bytes(40),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_picture_that_says_it_is_huge_takes_no_memory(pictures: Pictures, name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MediaRefused, match=r"--max-media-pixels|cannot be read"):
        pictures.read(BOMBS[name])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 64 << 20, "less than its pixels would take"


def test_texts_of_a_png_that_grow_are_refused(pictures: Pictures) -> None:
    text = b"zTXt" + b"Comment\0\0" + zlib.compress(bytes(80 << 20), 9)
    whole = FILES["PNG"]
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    with pytest.raises(MediaRefused, match="cannot be read"):
        pictures.read(whole[:33] + chunk + whole[33:])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"  <?xml version='1.0'?><!DOCTYPE svg [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>", "SVG"),
        (b"<html>", "a text and no picture"),
        (b'{"error": 1}', "a text and no picture"),
        (b"%PDF-1.7", "no picture that is known"),
        (b"", "there are no bytes"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "no picture that is known"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "it is HEIC in a form that is not read"),
    ],
)
def test_what_is_no_picture(pictures: Pictures, data: bytes, said: str) -> None:
    with pytest.raises(MediaRefused, match=said):
        pictures.read(data)


def test_what_is_transparent_shows_its_background() -> None:
    made = io.BytesIO()
    Image.new("RGBA", (2, 2), (10, 20, 30, 0)).save(made, "PNG")
    assert Pictures(Config()).read(made.getvalue()).getpixel((0, 0)) == (255, 255, 255)
    black = Config(media_io_kwargs='{"image": {"rgba_background_color": [0, 0, 0]}}')
    assert Pictures(black).read(made.getvalue()).getpixel((0, 0)) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_of_more_bits_the_upper_ones_are_seen(pictures: Pictures, kind: str) -> None:
    made = io.BytesIO()
    Image.fromarray(np.array([[0, 255, 256, 32_768, 65_535]], np.uint16)).save(made, kind)
    assert np.asarray(pictures.read(made.getvalue()))[0, :, 2].tolist() == [0, 0, 1, 128, 255]


def test_fractions_and_whole_numbers_of_a_tiff(pictures: Pictures) -> None:
    for values, seen in (
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[np.nan, 2.0, 4.0]], np.float32), [0, 128, 255]),
        (np.array([[0, 7, 255]], np.int32), [0, 7, 255]),
        (np.array([[0, 1 << 10, 1 << 15]], np.int32), [0, 4, 128]),
    ):
        made = io.BytesIO()
        Image.fromarray(values).save(made, "TIFF")
        assert np.asarray(pictures.read(made.getvalue()))[0, :, 0].tolist() == seen


def test_a_picture_is_turned_as_its_camera_was(pictures: Pictures) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert pictures.read(file("JPEG", exif=exif)).size == (20, 30)


def test_pixels_as_they_are(pictures: Pictures) -> None:
    assert pictures.from_pixels(bytes(range(18)), 3).getpixel((2, 1)) == (15, 16, 17)
    for data, width in ((b"", 3), (bytes(10), 3), (bytes(9), 0), (bytes(3 * 1001 * 1001), 1001)):
        with pytest.raises(MediaRefused):
            pictures.from_pixels(data, width)


def test_headers_of_the_first_bytes_are_those_of_the_library() -> None:
    for name, data in FILES.items():
        with Image.open(io.BytesIO(data)) as opened:
            assert read_header(data) == Header(str(opened.format), *opened.size), name
