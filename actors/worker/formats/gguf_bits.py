"""Weights of GGUF files in the bits that products on a GPU read: the same numbers, some in more bits than in the file.

    Q4_0 Q4_1 Q2_K Q3_K Q4_K         4 bits                Q5_0 Q5_1 Q8_0 Q5_K Q6_K IQ4_NL IQ4_XS       8 bits
    MXFP4                            floats of 4 bits
with their scales and minima beside them. Other types are decoded to floats. Knows no device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from actorserve.kernels.triton.linear.stored_weights import StoredWeight

from ...model.architecture import Architecture
from ...model.layers import LinearSpec
from ..models import gguf_blocks as blocks_of
from ..models.gguf_tensors import FLOATS, gguf_blocks
from ..models.sharding import Place, cutter
from .integers import scale_numbers
from .parts import Parts, can_divide, cut, short, together

SMALL, SUPER = 32, 256  # numbers of a block, and of one of the K types
SIGN = 128  # what numbers with a sign have more than they are


class GgufBits:
    """Reads linears of a file, of a member of a group its part."""

    def __init__(self, folder: Path, shape: Architecture, place: Place, expert_parallel: bool) -> None:
        """`shape` is the whole model's."""
        blocks = gguf_blocks(folder, shape)
        assert blocks is not None, "it is a folder of a GGUF file"
        self._blocks, self._place = blocks, place
        self._cut = cutter(shape, place, expert_parallel)

    def of(self, linears: Sequence[LinearSpec], weight: Callable[[], Tensor]) -> list[StoredWeight]:
        """The linears, as few as can be; none where one is to be decoded."""
        return together(self._part(linear) for linear in linears)

    def is_quantised(self, linear: LinearSpec) -> bool:
        """Whether the file has no floats of it."""
        found = self._blocks(f"{linear.name}.weight")
        return found is None or found[0] not in FLOATS

    def _part(self, linear: LinearSpec) -> Parts | None:
        found = self._blocks(f"{linear.name}.weight")
        if found is None or found[0] not in READERS or not can_divide(linear, self._place):
            return None
        kind, blocks, arrange = found
        own = READERS[kind](blocks.reshape(-1, blocks.shape[-1]))
        rows = len(blocks)

        def of_rows(part: Tensor | None) -> Tensor | None:
            return None if part is None else arrange(part.reshape(rows, -1))

        above = None if own.above is None else arrange(own.above.reshape(rows, -1, own.above.shape[-1]))
        numbers, scales, minima = of_rows(own.numbers), of_rows(own.scales), of_rows(own.minima)
        assert numbers is not None and scales is not None
        return cut(own._replace(numbers=numbers, scales=scales, minima=minima, above=above), linear, self._cut)


def _q4_0(blocks: Tensor) -> Parts:
    numbers, d = blocks_of.q4_0_parts(blocks)
    return Parts("bits4", numbers, d, SMALL, zero=8)


def _q4_1(blocks: Tensor) -> Parts:
    d, m = blocks_of.halves(blocks, 0, 2).unbind(1)
    return Parts("bits4", blocks_of.q4_1_numbers(blocks), d, SMALL, minima=-m)


def _q5_0(blocks: Tensor) -> Parts:
    return Parts("bits8", blocks_of.q5_numbers(blocks, 2), blocks_of.halves(blocks, 0, 1), SMALL, zero=16)


def _q5_1(blocks: Tensor) -> Parts:
    d, m = blocks_of.halves(blocks, 0, 2).unbind(1)
    return Parts("bits8", blocks_of.q5_numbers(blocks, 4), d, SMALL, minima=-m)


def _q8_0(blocks: Tensor) -> Parts:
    numbers, d = blocks_of.q8_0_parts(blocks)
    return Parts("bits8", numbers.view(torch.uint8) ^ SIGN, d, SMALL, zero=SIGN)


def _with_minima(form: str, group: int, parts: Callable[[Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]) -> Reader:
    def read(blocks: Tensor) -> Parts:
        numbers, s, t, above = parts(blocks)
        return Parts(form, numbers, s, group, minima=t, above=above, together=SUPER // group)

    return read


def _q3_k(blocks: Tensor) -> Parts:
    numbers, s, d = blocks_of.q3_k_parts(blocks)
    return Parts("bits4", numbers, s, 16, zero=4, above=d, together=SUPER // 16)


def _q6_k(blocks: Tensor) -> Parts:
    numbers, d, s = blocks_of.q6_k_parts(blocks)
    return Parts("bits8", numbers, s, 16, zero=32, above=d.half()[:, None], together=SUPER // 16)


def _iq4_nl(blocks: Tensor) -> Parts:
    values = blocks_of.iq4_values(blocks[:, 2:])
    return Parts("bits8", (values + SIGN).to(torch.uint8), blocks_of.halves(blocks, 0, 1), SMALL, zero=SIGN)


def _iq4_xs(blocks: Tensor) -> Parts:
    values, s, d = blocks_of.iq4_xs_parts(blocks)
    return Parts("bits8", (values + SIGN).to(torch.uint8), s, SMALL, zero=SIGN, above=d, together=SUPER // SMALL)


def _mxfp4(blocks: Tensor) -> Parts:
    """The table of its numbers is that of floats of 4 bits, in their order."""
    return Parts("e2m1", blocks_of.nibbles(blocks[:, 1:]), short(scale_numbers(blocks[:, 0])), SMALL)


Reader = Callable[[Tensor], Parts]  # of blocks [blocks, bytes]; what it gives has rows of a block each
READERS: dict[str, Reader] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _with_minima("bits4", 16, blocks_of.q2_k_parts),
    "Q3_K": _q3_k,
    "Q4_K": _with_minima("bits4", SMALL, blocks_of.q4_k_parts),
    "Q5_K": _with_minima("bits8", SMALL, blocks_of.q5_k_parts),
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
