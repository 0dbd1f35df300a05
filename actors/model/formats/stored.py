"""How the weight of a linear layer lies in a checkpoint where it is no tensor of floats: names, shapes and types.

What numbers these tensors make is worker/formats' to say, one function a format; which layers have which format, says
config.json (configs.py). Knows no torch and no files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec

FLOATS = {"F32": 4, "F16": 2, "BF16": 2}  # the types that are supported, and bytes of a number
BYTES = FLOATS | {"I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I32": 4, "U32": 4, "I64": 8}
POWERS = ("U8", "F8_E8M0")  # scales that are powers of 2: their exponents
SCALES = tuple(FLOATS)
BNB_STORAGE = {"uint8": "U8", "float16": "F16", "bfloat16": "BF16", "float32": "F32"}  # by bitsandbytes' names
WHOLE = 0  # of a block: as long as the weight itself
EXPERT_GROUP = 32  # columns that share a scale in gpt-oss' format
WORD = 32  # bits of the numbers into which smaller ones are packed
STEP = 16  # numbers that a GPU multiplies at once
ALL = slice(None)

Shape = tuple[int, ...]


class StoredSpec(NamedTuple):
    """A tensor of the checkpoint, as it lies there."""

    shape: Shape | None  # None: that follows from another tensor, and is looked at when it is read
    types: tuple[str, ...] = SCALES  # in safetensors' words
    optional: bool = False
    also: tuple[Shape, ...] = ()  # other shapes that mean the same
    zero: bool = False  # a bias of which the model has no use: it must be all 0


Others = tuple[tuple[str, StoredSpec], ...]  # tensors beside a weight, of which it has no need


Cuts = dict[str, tuple[slice | None, slice | None]]  # by what comes after the layer's name: rows and columns


class WeightFormat(msgspec.Struct, frozen=True):
    """One way to store the weight [rows, columns] of one linear layer."""

    def tensors(self, rows: int, columns: int) -> dict[str, StoredSpec]:
        """What there is in place of `weight`, by what comes after the layer's name."""
        raise NotImplementedError

    def bytes(self, rows: int, columns: int) -> int:
        """About what these take."""
        own = (spec for spec in self.tensors(rows, columns).values() if spec.shape and not spec.optional)
        return sum(math.prod(spec.shape or ()) * BYTES[spec.types[0]] for spec in own)

    def cuts(self, rows: slice, columns: slice, size: tuple[int, int]) -> Cuts:
        """Of a part of the weight, all of which has this size, what of each tensor makes it: None in the place of rows
        or columns where they are cut within what lies together. Tensors that are not named are needed as they are."""
        return {}

    @property
    def row_scales(self) -> str | None:
        """Where the weight is whole numbers of 8 bits and a scale a row: what has these, after the layer's name."""
        return None

    @property
    def stays(self) -> bool:
        """Whether a GPU multiplies with its bits as they are (worker/formats/as_stored.py), not with floats of them."""
        return False


class ScaledWeight(WeightFormat, frozen=True, kw_only=True):
    """Numbers of 8 bits, a scale (and a zero point) for each block: w = (number - zero) · scale / divisor."""

    type: str
    block: tuple[int, int]  # rows and columns that share a scale
    weight: str = "weight"
    scale: str = "weight_scale"
    other_name: str | None = None  # of the scale, by another tool
    scale_types: tuple[str, ...] = (*SCALES, "F8_E8M0")
    divisor: float = 1.0
    zero: str | None = None
    without_zero: bool = False  # it may be missing
    others: Others = ()

    def tensors(self, rows: int, columns: int) -> dict[str, StoredSpec]:
        grid = blocks(rows, self.block[0]), blocks(columns, self.block[1])
        also: tuple[Shape, ...] = ((rows,),) if grid == (rows, 1) else ()
        also += ((), (1,)) if grid == (1, 1) else ()
        also += ((grid[0], 1, grid[1], 1),)
        scale = StoredSpec(grid, self.scale_types, optional=self.other_name is not None, also=also)
        found = {self.weight: StoredSpec((rows, columns), (self.type,)), self.scale: scale}
        if self.other_name:
            found[self.other_name] = scale
        if self.zero:
            found[self.zero] = StoredSpec(grid, ("I8", *SCALES), optional=self.without_zero, also=also)
        return found | dict(self.others)

    def cuts(self, rows: slice, columns: slice, size: tuple[int, int]) -> Cuts:
        whole = _groups(columns, size[1], self.block[1]) is not None
        return {self.weight: (rows, columns if whole else None)}  # scales are few, and a block of rows may be cut

    @property
    def row_scales(self) -> str | None:
        return self.scale if self.type == "I8" and self.block == (1, WHOLE) and self.zero is None else None

    @property
    def stays(self) -> bool:
        return self.type in ("I8", "F8_E4M3") and self.zero is None and _in_steps(self.block[1])


class PackedWeight(WeightFormat, frozen=True, kw_only=True):
    """compressed-tensors' pack-quantized: rows of small numbers in words, the first in the lowest bits."""

    bits: int
    group: int  # columns that share a scale
    symmetric: bool
    reordered: bool = False  # columns have their group's number beside them

    def tensors(self, rows: int, columns: int) -> dict[str, StoredSpec]:
        groups = blocks(columns, self.group)
        also: tuple[Shape, ...] = ((rows,),) if groups == 1 else ()
        found = {
            "weight_packed": StoredSpec((rows, blocks(columns * self.bits, WORD)), ("I32",)),
            "weight_scale": StoredSpec((rows, groups), also=also),
            "weight_shape": StoredSpec((2,), ("I64", "I32"), optional=True),
        }
        if not self.symmetric:
            found["weight_zero_point"] = StoredSpec((blocks(rows * self.bits, WORD), groups), ("I32",))
        if self.reordered:
            found["weight_g_idx"] = StoredSpec((columns,), ("I32",))
        return found

    def cuts(self, rows: slice, columns: slice, size: tuple[int, int]) -> Cuts:
        groups = _groups(columns, size[1], self.group)
        found: Cuts = {"weight_packed": (rows, _words(columns, size[1], self.bits)), "weight_scale": (rows, groups)}
        return found if self.symmetric else found | {"weight_zero_point": (_words(rows, size[0], self.bits), groups)}

    @property
    def stays(self) -> bool:
        return not self.reordered and _in_steps(self.group)


class GptqWeight(WeightFormat, frozen=True, kw_only=True):
    """Columns of small numbers in words: [columns in words, rows]."""

    bits: int
    group: int
    zero_less: int  # zero points are stored less than they are by so much: 1 in v1, 0 in v2
    reordered: bool

    def tensors(self, rows: int, columns: int) -> dict[str, StoredSpec]:
        groups = blocks(columns, self.group)
        return {
            "qweight": StoredSpec((blocks(columns * self.bits, WORD), rows), ("I32",)),
            "qzeros": StoredSpec((groups, blocks(rows * self.bits, WORD)), ("I32",)),
            "scales": StoredSpec((groups, rows)),
            "g_idx": StoredSpec((columns,), ("I32", "I64"), optional=not self.reordered),
            "bias": StoredSpec((rows,), optional=True, zero=True),  # of old tools: also where the model has none
        }

    def cuts(self, rows: slice, columns: slice, size: tuple[int, int]) -> Cuts:
        groups = _groups(columns, size[1], self.group)
        zeros = groups, _words(rows, size[0], self.bits)
        return {"qweight": (_words(columns, size[1], self.bits), rows), "qzeros": zeros, "scales": (groups, rows)}

    @property
    def stays(self) -> bool:
        return not self.reordered and _in_steps(self.group)


class AwqWeight(WeightFormat, frozen=True, kw_only=True):
    """AWQ's gemm order: rows of numbers of 4 bits in words, shuffled within a word: [columns, rows in words]."""

    group: int

    def tensors(self, rows: int, columns: int) -> dict[str, StoredSpec]:
        groups = blocks(columns, self.group)
        return {
            "qweight": StoredSpec((columns, blocks(rows, 8)), ("I32",)),
            "qzeros": StoredSpec((groups, blocks(rows, 8)), ("I32",)),
            "scales": StoredSpec((groups, rows)),
        }

    def cuts(self, rows: slice, columns: slice, size: tuple[int, int]) -> Cuts:
        groups, words = _groups(columns, size[1], self.group), _units(rows, size[0], 8)
        return {"qweight": (columns, words), "qzeros": (groups, words), "scales": (groups, rows)}

    @property
    def stays(self) -> bool:
        return _in_steps(self.group)


class AffineWeight(WeightFormat, frozen=True, kw_only=True):
    """MLX': rows of small numbers in words, the first in the lowest bits; a scale and what is added, by groups."""

    bits: int
    group: int
    added: str = "biases"  # what has what is added

    def tensors(self, rows: int, columns: int) -> dict[str, StoredSpec]:
        groups = rows, blocks(columns, self.group)
        words = StoredSpec((rows, blocks(columns * self.bits, WORD)), ("U32",))
        return {"weight": words, "scales": StoredSpec(groups), self.added: StoredSpec(groups)}


class Float4Weight(WeightFormat, frozen=True, kw_only=True):
    """Floats of 4 bits, two in a byte, and a scale of 8 bits for each group: NVFP4 and MXFP4; or MLX', whose bytes lie
    in words, and floats of 8 bits as whole numbers.
    """

    group: int
    weight: str
    scale_type: str  # U8: a power of 2
    scale: str = "weight_scale"
    whole: str | None = None  # a scale of all groups' scales
    divides: bool = False  # it does, in place of multiplying
    words: bool = False
    others: Others = ()

    def tensors(self, rows: int, columns: int) -> dict[str, StoredSpec]:
        types = POWERS if self.scale_type == "U8" else ("U8",) if self.words else (self.scale_type,)
        bytes_of = StoredSpec((rows, blocks(columns, 2)), ("U8", "I8"))
        found = {
            self.weight: StoredSpec((rows, blocks(4 * columns, WORD)), ("U32",)) if self.words else bytes_of,
            self.scale: StoredSpec((rows, blocks(columns, self.group)), types),
        }
        if self.whole:
            found[self.whole] = StoredSpec((1,), also=((),))
        return found | dict(self.others)

    def cuts(self, rows: slice, columns: slice, size: tuple[int, int]) -> Cuts:
        scales = rows, _groups(columns, size[1], self.group)
        return {self.weight: (rows, _units(columns, size[1], 2)), self.scale: scales}

    @property
    def stays(self) -> bool:
        return _in_steps(self.group) and not self.words


class ExpertFloat4Weight(WeightFormat, frozen=True, kw_only=True):
    """gpt-oss' MXFP4: floats of 4 bits, 16 bytes for each 32 columns, whose scale is a power of 2."""

    def tensors(self, rows: int, columns: int) -> dict[str, StoredSpec]:
        groups = blocks(columns, EXPERT_GROUP)
        return {
            "blocks": StoredSpec((rows, groups, EXPERT_GROUP // 2), ("U8",)),
            "scales": StoredSpec((rows, groups), POWERS),
        }

    def cuts(self, rows: slice, columns: slice, size: tuple[int, int]) -> Cuts:
        own = rows, _units(columns, size[1], EXPERT_GROUP)
        return {"blocks": own, "scales": own}


class BnbWeight(WeightFormat, frozen=True, kw_only=True):
    """bitsandbytes' 4 bits: numbers of a table of 16, scaled in blocks of the whole weight; scales may be so, too."""

    kind: str  # nf4 or fp4
    nested: bool
    storage: str = "U8"  # the type of numbers whose bytes these are

    def tensors(self, rows: int, columns: int) -> dict[str, StoredSpec]:
        count = rows * columns
        stored = blocks(count, 2 * BYTES[self.storage])
        found = {
            "weight": StoredSpec((stored, 1), (self.storage,), also=((1, stored),)),
            "weight.absmax": StoredSpec(None, ("U8",) if self.nested else ("F32",)),
            "weight.quant_map": StoredSpec((16,), ("F32",)),
            f"weight.quant_state.bitsandbytes__{self.kind}": StoredSpec(None, ("U8",)),
        }
        if self.nested:
            found["weight.nested_absmax"] = StoredSpec(None, ("F32",))
            found["weight.nested_quant_map"] = StoredSpec((256,), ("F32",))
        return found


class StoredWeights(msgspec.Struct, frozen=True, kw_only=True):
    """What `quantization_config` says: which linear layers are stored how."""

    name: str  # as config.json has it
    of: Callable[[str], WeightFormat | None]  # by the name of a layer; None: its weight is floats
    needless: re.Pattern[str] | None = None  # tensors beside those of linears, which are not used here
    embeddings: bool = False  # they may be so, too


def blocks(size: int, block: int) -> int:
    """How many of them, the last one perhaps not full."""
    return 1 if block == WHOLE else -(-size // block)


def _units(some: slice, whole: int, unit: int) -> slice | None:
    """Which of the units of so many numbers have these; None where one would be cut."""
    if some.start % unit or (some.stop % unit and some.stop < whole):
        return None
    return slice(some.start // unit, blocks(some.stop, unit))


def _groups(some: slice, whole: int, group: int) -> slice | None:
    """The same of groups that share a scale, which they do wherever they are cut if there is one alone."""
    return ALL if blocks(whole, group) == 1 else _units(some, whole, group)


def _words(some: slice, whole: int, bits: int) -> slice | None:
    """Which words have these numbers of so many bits."""
    step = math.gcd(WORD, bits)
    units = _units(some, whole, WORD // step)  # which begin with a word
    return None if units is None else slice(units.start * bits // step, blocks(some.stop * bits, WORD))


def _in_steps(group: int) -> bool:
    """Whether those that a GPU multiplies at once have the same scale."""
    return group == WHOLE or group % STEP == 0
