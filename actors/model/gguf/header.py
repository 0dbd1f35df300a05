"""The header of a GGUF file: fields with a type each, and type, shape and place of each tensor. No tensor is read.

    "GGUF"  version u32  tensors u64  fields u64
    fields: key, type u32, value            a text is a length u64 and bytes; an array a type u32, a count u64, values
    tensors: name, dimensions u32, their sizes u64 (columns first), type u32, offset u64 from where data begins
    data, from the next multiple of general.alignment on
All little-endian. Files come from strangers: what a header claims to hold lies in the file, and within the bounds here.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

from ...options.config import ConfigError

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # of which the second adds big-endian files, which are refused
LONGEST_HEADER = 200_000_000  # bytes; a vocabulary of 256k words with its merges takes some 12 MB
MOST_FIELDS = 1 << 14
MOST_TENSORS = 1 << 17
MOST_VALUES = 1 << 23  # of an array
LONGEST_NAME = 512  # bytes of a key or of a tensor's name
MOST_DIMENSIONS = 4
LARGEST_SIZE = 1 << 40  # of a dimension
ALIGNMENT = "general.alignment"
ALIGNMENTS = tuple(1 << power for power in range(3, 17))
TEXT, ARRAY, BOOL, FLOAT32 = 8, 9, 7, 6
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class BlockType(NamedTuple):
    """How a tensor's numbers are stored: each row in blocks of so many numbers."""

    name: str
    numbers: int
    size: int  # bytes of a block


TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74),
    18: BlockType("IQ3_XXS", 256, 98),
    19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18),
    21: BlockType("IQ3_S", 256, 110),
    22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136),
    29: BlockType("IQ1_M", 256, 56),
    30: BlockType("BF16", 1, 2),
    34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66),
    39: BlockType("MXFP4", 32, 17),
    40: BlockType("NVFP4", 64, 36),
    41: BlockType("Q1_0", 128, 18),
}
BY_NAME = {kind.name: kind for kind in TYPES.values()}
OTHER_TYPES = {  # that have a name, and are not decoded
    **{9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
}


class GgufTensor(NamedTuple):
    """A tensor of a file."""

    type: BlockType
    shape: tuple[int, ...]  # columns last
    offset: int  # from the beginning of the file
    size: int  # bytes


class GgufHeader(NamedTuple):
    """What a file says of itself."""

    file: Path
    fields: dict[str, Any]
    tensors: dict[str, GgufTensor]


def is_gguf(path: Path) -> bool:
    """Does it begin as such a file?"""
    try:
        if not path.is_file():  # to open a pipe would wait for whoever writes
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> GgufHeader:
    """Everything but the tensors' numbers. ConfigError says what is wrong with the file."""
    header = read_beginning(path, None)
    assert header is not None
    return header


def read_beginning(path: Path, there: int | None) -> GgufHeader | None:
    """The same of a file of which only so many bytes are there (None: all); None if these are too few."""
    try:
        if not path.is_file():  # to open a pipe would wait for whoever writes
            raise ConfigError(f"model: {path} is no file")
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise _Wrong("it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                fields, tensors = _Reader(data, there).header()
    except OSError as error:
        raise ConfigError(f"model: {path} cannot be read: {error.strerror or error}") from None
    except _Wrong as error:
        if isinstance(error, _CutOff) and there is not None and there < min(path.stat().st_size, LONGEST_HEADER):
            return None
        raise ConfigError(f"model: {path} is broken, cut off or not supported: {error}") from None
    return GgufHeader(path, fields, tensors)


class _Wrong(Exception):
    """What is wrong, in words."""


class _CutOff(_Wrong):
    """It goes on where nothing is."""


class _Reader:
    """Reads on from one value to the next; `what` names the one that it is at."""

    def __init__(self, data: mmap.mmap, there: int | None = None) -> None:
        self.data = data
        self.end = min(len(data), LONGEST_HEADER, len(data) if there is None else there)
        self.at = 0
        self.what = "the header"

    def header(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        if self.bytes(4) != MAGIC:
            raise _Wrong("it does not begin with GGUF")
        version = self.number("I")
        if version not in VERSIONS:
            big = int.from_bytes(version.to_bytes(4, "big"), "little") in VERSIONS
            raise _Wrong("it is big-endian" if big else f"version {version} of the format; these are read: 2, 3")
        tensors, fields = (
            self.count("the number of tensors", MOST_TENSORS),
            self.count("the number of fields", MOST_FIELDS),
        )
        known: dict[str, Any] = {}
        for number in range(fields):
            self.what = f"field {number}"
            key = self.name("the key")
            self.what = _shown(key)
            if key in known:
                raise _Wrong(f"{self.what} stands there twice")
            known[key] = self.value(self.number("I"))
        return known, self.tensors(tensors, known)

    def tensors(self, count: int, fields: dict[str, Any]) -> dict[str, GgufTensor]:
        """Their places follow each other from the next multiple of the alignment on."""
        step = fields.get(ALIGNMENT, 32)
        if step not in ALIGNMENTS or isinstance(step, bool):
            raise _Wrong(f"{ALIGNMENT} is {_shown(repr(step))}; a power of two from 8 to {ALIGNMENTS[-1]} is needed")
        found: dict[str, tuple[BlockType, tuple[int, ...], int, int]] = {}
        for number in range(count):
            self.what = f"tensor {number}"
            name = self.name("the name")
            self.what = f"tensor {_shown(name)}"
            if name in found:
                raise _Wrong(f"{self.what} stands there twice")
            found[name] = self.tensor(step)
        begin = -(-self.at // step) * step
        for name, (_, _, offset, size) in found.items():
            if begin + offset + size > len(self.data):
                raise _Wrong(
                    f"tensor {_shown(name)} ends at byte {begin + offset + size:,}, and the file at {len(self.data):,}"
                )
        return {name: GgufTensor(kind, shape, begin + at, size) for name, (kind, shape, at, size) in found.items()}

    def tensor(self, step: int) -> tuple[BlockType, tuple[int, ...], int, int]:
        """Type, shape, offset and size of one whose name was read."""
        dimensions = self.number("I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise _Wrong(f"{self.what} has {dimensions} dimensions; 1 to {MOST_DIMENSIONS} are allowed")
        shape = tuple(self.count(f"{self.what}: a dimension", LARGEST_SIZE) for _ in range(dimensions))[::-1]
        number = self.number("I")
        kind = TYPES.get(number)
        if kind is None:
            name = OTHER_TYPES.get(number, f"of number {number}")
            raise _Wrong(f"{self.what} has the type {name}; these are supported: {', '.join(BY_NAME)}")
        if shape[-1] % kind.numbers:
            raise _Wrong(f"{self.what} has rows of {shape[-1]} numbers, which are no blocks of {kind.numbers}")
        offset = self.number("Q")
        if offset % step:
            raise _Wrong(f"{self.what} begins at {offset:,}, which is no multiple of the alignment, {step}")
        return kind, shape, offset, math.prod(shape) // kind.numbers * kind.size

    def value(self, kind: int) -> Any:
        if kind in NUMBERS:
            return _plain(kind, self.number(NUMBERS[kind]))
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            raise _Wrong(f"{self.what} has a value of type {kind}, which there is not")
        kind, count = self.number("I"), self.count(f"{self.what}: the number of its values", MOST_VALUES)
        if kind == TEXT:
            return self.texts(count)
        if kind == ARRAY:
            raise _Wrong(f"{self.what} is an array of arrays, which is not supported")
        if kind not in NUMBERS:
            raise _Wrong(f"{self.what} has values of type {kind}, which there is not")
        form = struct.Struct(f"<{count}{NUMBERS[kind]}")
        return list(form.unpack(self.bytes(form.size)))

    def texts(self, count: int) -> list[str]:
        """Hundreds of thousands, maybe: as few steps as can be for each."""
        if 8 * count > self.end - self.at:
            raise self.cut_off()
        data, length, at, end = self.data, struct.Struct("<Q").unpack_from, self.at, self.end
        found: list[str] = []
        try:
            for _ in range(count):
                size = length(data, at)[0]
                first, at = at + 8, at + 8 + size
                if at > end:
                    raise self.cut_off()
                found.append(str(data[first:at], "utf-8"))
        except (UnicodeDecodeError, struct.error) as error:
            if isinstance(error, struct.error):
                raise self.cut_off() from None
            raise _Wrong(f"{self.what}[{len(found)}] is no text in UTF-8") from None
        self.at = at
        return found

    def text(self) -> str:
        try:
            return str(self.bytes(self.number("Q")), "utf-8")
        except UnicodeDecodeError:
            raise _Wrong(f"{self.what} is no text in UTF-8") from None

    def name(self, what: str) -> str:
        """A key, or a tensor's name."""
        length = self.number("Q")
        if length > LONGEST_NAME:
            raise _Wrong(f"{what} of {self.what} has {length:,} bytes; {LONGEST_NAME} are allowed")
        try:
            return str(self.bytes(length), "utf-8")
        except UnicodeDecodeError:
            raise _Wrong(f"{what} of {self.what} is no text in UTF-8") from None

    def count(self, what: str, most: int) -> int:
        number: int = self.number("Q")
        if number > most:
            raise _Wrong(f"{what} is {number:,}; at most {most:,} are read")
        return number

    def number(self, form: str) -> Any:
        form = f"<{form}"
        return struct.unpack(form, self.bytes(struct.calcsize(form)))[0]

    def bytes(self, count: int) -> bytes:
        first, self.at = self.at, self.at + count
        if self.at > self.end:
            raise self.cut_off()
        return self.data[first : self.at]

    def cut_off(self) -> _CutOff:
        if self.end < len(self.data):
            return _CutOff(f"its header has more than {self.end:,} bytes, at {self.what}")
        return _CutOff(f"it ends inside {self.what}")


def _plain(kind: int, value: Any) -> Any:
    """float32 in the fewest decimals that are the same float32: 1e-05, and not 9.999999747378752e-06."""
    if kind != FLOAT32 or not math.isfinite(value):
        return value
    stored = struct.pack("<f", value)
    for digits in range(6, 9):
        short = float(f"{value:.{digits}g}")
        if abs(short) < 3.4e38 and struct.pack("<f", short) == stored:
            return short
    return value


def _shown(name: str) -> str:
    name = name if name.isprintable() else repr(name)
    return name if len(name) <= 80 else f"{name[:80]}…"
