"""Bytes of a picture, as a client sent them, to one of three colours: within limits, or refused with the reason."""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING

import numpy as np

from ..options.config import Config
from ..options.objects.media import media_reading
from .headers import KINDS, read_header
from .refused import MediaRefused

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST_SIDE = 1 << 16
HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
SVG = re.compile(rb"^(\xef\xbb\xbf)?\s*(<\?xml|<!doctype svg|<!--|<svg)", re.IGNORECASE)
LOOKS_LIKE_TEXT = re.compile(rb"^\s*[<{]")


class Pictures:
    """Reads them, by the options."""

    def __init__(self, config: Config) -> None:
        self._most = config.max_media_pixels
        self._background = media_reading(config).image.rgba_background_color

    def read(self, data: bytes) -> Image:
        """The picture in a file's bytes; of an animated one the first frame."""
        from PIL import Image

        if not data:
            raise MediaRefused("there are no bytes.")
        header = read_header(data)
        if header is None:
            raise MediaRefused(_unknown(data))
        self._check(header.width, header.height)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                picture = Image.open(io.BytesIO(data), formats=[header.kind])
                self._check(*picture.size)  # which the first frame may have made larger
                picture.load()
                return self._plain(picture)
        except MediaRefused:
            raise
        except Exception as error:  # libraries raise anything for bytes that are broken
            raise MediaRefused(f"its {header.kind} cannot be read: {_short(error)}.") from None

    def checked(self, picture: Image) -> Image:
        """A picture that a program has, in three colours."""
        self._check(*picture.size)
        return self._plain(picture)

    def from_pixels(self, data: bytes, width: int) -> Image:
        """A picture of which a program on this machine has given the pixels, three bytes each."""
        from PIL import Image

        if width <= 0 or not data or len(data) % (3 * width):
            raise MediaRefused(f"{len(data)} bytes are no rows of {width} pixels.")
        self._check(width, len(data) // (3 * width))
        return Image.frombytes("RGB", (width, len(data) // (3 * width)), data)

    def _check(self, width: int, height: int) -> None:
        if not width or not height:
            raise MediaRefused("it has no pixels.")
        if max(width, height) > LONGEST_SIDE or width * height > self._most:
            raise MediaRefused(
                f"it has {width} times {height} pixels, more than the {self._most} that --max-media-pixels allows."
            )

    def check_resized(self, width: int, height: int) -> None:
        """So large it would be on its way through the model's processor."""
        if width * height > self._most:
            text = "one of its sides is too long for the other: the model's processor would make"
            raise MediaRefused(
                f"{text} {width} times {height} pixels of it, more than the {self._most} of --max-media-pixels."
            )

    def _plain(self, picture: Image) -> Image:
        """In three colours, upright, and with the background seen through what is transparent."""
        from PIL import Image, ImageOps

        turned = _of_eight_bits(ImageOps.exif_transpose(picture))
        if turned.mode == "RGB" and "transparency" not in turned.info:
            return turned
        if turned.has_transparency_data:
            seen = turned.convert("RGBA")
            whole = Image.new("RGB", seen.size, self._background)
            whole.paste(seen, mask=seen.getchannel("A"))
            return whole
        return turned.convert("RGB")


def _of_eight_bits(picture: Image) -> Image:
    """Of more bits the upper ones, and of fractions as many steps: to Pillow all above 255 is white."""
    from PIL import Image

    if not picture.mode.startswith(("I", "F")):
        return picture
    values = np.nan_to_num(np.asarray(picture).astype(np.float32))
    largest = float(values.max(initial=0.0))
    if picture.mode.startswith("I;16") or (picture.mode == "I" and 255 < largest < 1 << 16):
        values //= 256
    elif picture.mode == "F" or largest > 255:
        values *= 255 / max(largest, 1.0)
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))


def _unknown(data: bytes) -> str:
    """Why it is none of the pictures that are read."""
    if data[4:8] == b"ftyp":
        kind = "HEIC" if data[8:12].lower() in HEIC else "a film, or a picture"
        return f"it is {kind} in a form that is not read here; pictures are {KINDS}."
    if SVG.match(data[:256]):
        return f"it is SVG or another text of XML, which is not drawn here; pictures are {KINDS}."
    if LOOKS_LIKE_TEXT.match(data[:256]):
        return f"it is a text and no picture; pictures are {KINDS}."
    return f"it is no picture that is known, or ends too soon; pictures are {KINDS}."


def _short(error: BaseException) -> str:
    return (str(error) or type(error).__name__).rstrip(".")[:200]
