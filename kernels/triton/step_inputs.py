"""Triton: a step's inputs out of a few numbers a row, so that the host sends no more than these.

Row i of the step is row `rows[i]` of the batch's state, and has tokens [starts[i], starts[i + 1]) at positions from
firsts[i] on; from where its last token stands, as the state has it, where that is below 0. For each of its tokens
    id        given[token], or the token that was drawn last for the row where that is below 0 or nothing is given
    slot      where its keys and values go: table[row, position // block_size] · block_size + position % block_size
and for the row
    length    the positions that are there after this step
    blocks    its entries of the block table, as far as `length` needs them, side by side with the other rows'
    drawn     in the state: where a token that is drawn for it now will stand
A row may have several block tables, one behind the other, each as wide: there are slots for each, and of all but
the first the entries that lie behind a window are left out.
Rows below 0 only fill up a batch whose size a graph has captured: id 0 at position 0, slot -1, length 0.

The drawn tokens go back into the state (`keep_tokens`), so that the next step can be started before the host has seen
them. Grids follow from shapes alone. Checked in the interpreter; not run on a GPU yet. Knows tensors only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 256  # tokens of one program
DECODING = 32  # the same where every row has one token, the one that was drawn last
KEEP = 256
COPY = tl.constexpr(512)  # entries of the table that are copied at a time


PLACED = 128  # rows, or entries of the table, that a program changes


class RowState(NamedTuple):
    """What the device knows of each row from step to step."""

    last: Tensor  # int64 [rows]: the token that was drawn last
    drawn: Tensor  # int64 [rows]
    table: Tensor  # int32 [rows, blocks of the longest row]; of several tables their entries side by side


class StepInputs(NamedTuple):
    """Of a step of n rows with t tokens in all."""

    ids: Tensor  # int64 [t]
    positions: Tensor  # int64 [t]
    slots: Tensor  # int64 [t]; of several tables [tables, t]
    lengths: Tensor  # int32 [n]
    blocks: Tensor  # int32 [n, as the table]

    @classmethod
    def make(cls, rows: int, tokens: int, width: int, device: torch.device | str, tables: int = 1) -> StepInputs:
        """Uninitialised memory for steps of up to so many rows and tokens; `width` of all tables together."""
        ids, positions = (torch.empty(tokens, dtype=torch.int64, device=device) for _ in range(2))
        shape = (tokens,) if tables == 1 else (tables, tokens)
        slots = torch.empty(shape, dtype=torch.int64, device=device)
        lengths = torch.empty(rows, dtype=torch.int32, device=device)
        return cls(ids, positions, slots, lengths, torch.empty(rows, width, dtype=torch.int32, device=device))

    def fill(self) -> None:
        """Tokens of nobody."""
        for values in self:
            values.zero_()
        self.slots.fill_(-1)

    def part(self, rows: int, tokens: int) -> StepInputs:
        """For a smaller step, the same memory."""
        ids, positions, slots, lengths, blocks = self
        return StepInputs(ids[:tokens], positions[:tokens], slots[..., :tokens], lengths[:rows], blocks[:rows])

    @property
    def tables(self) -> int:
        """How many block tables there are."""
        return 1 if self.slots.dim() == 1 else len(self.slots)

    def of(self, table: int) -> StepInputs:
        """The same for layers that lie in this table."""
        if self.slots.dim() == 1:
            return self
        width = self.blocks.shape[1] // len(self.slots)
        return self._replace(slots=self.slots[table], blocks=self.blocks[:, table * width : (table + 1) * width])


@triton.jit(do_not_specialize_on_alignment=["rows", "starts", "firsts", "given"])  # they are parts of one vector
def inputs_kernel(
    rows, starts, firsts, given, last, drawn, table, table_row, ids, positions, slots, lengths, blocks, blocks_row,
    slots_row, width, window,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, GIVEN: tl.constexpr, TABLES: tl.constexpr,
):  # fmt: skip
    """TILE tokens of one row; the first such program does what there is one of for the row."""
    index = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    row = tl.load(rows + index)
    start, end = tl.load(starts + index), tl.load(starts + index + 1)
    token = start + tile * TILE + tl.arange(0, TILE)
    inside = token < end
    if row < 0:
        tl.store(ids + token, tl.zeros([TILE], tl.int64), mask=inside)
        tl.store(positions + token, tl.zeros([TILE], tl.int64), mask=inside)
        for number in tl.static_range(TABLES):
            tl.store(slots + number * slots_row + token, tl.full([TILE], -1, tl.int64), mask=inside)
        if tile == 0:
            tl.store(lengths + index, 0)
    else:
        first = tl.load(firsts + index)
        if first < 0:  # the host does not know how many drafts counted
            first = tl.load(drawn + row)
        position = first + token - start
        own = table + row * table_row
        tl.store(positions + token, position, mask=inside)
        for number in tl.static_range(TABLES):
            entry = tl.load(own + number * width + position // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
            place = entry * BLOCK_SIZE + position % BLOCK_SIZE
            tl.store(slots + number * slots_row + token, place, mask=inside)
        word = tl.load(last + row) + tl.zeros([TILE], tl.int64)
        if GIVEN:
            named = tl.load(given + token, mask=inside, other=-1)
            word = tl.where(named < 0, word, named)
        tl.store(ids + token, word, mask=inside)
        if tile == 0:
            length = first + end - start
            tl.store(lengths + index, length.to(tl.int32))
            tl.store(drawn + row, length)
            used = (length + BLOCK_SIZE - 1) // BLOCK_SIZE
            target = blocks + index * blocks_row
            for at in range(0, used, COPY):
                entries = at + tl.arange(0, COPY)
                values = tl.load(own + entries, mask=entries < used, other=0)
                tl.store(target + entries, values, mask=entries < used)
            for number in tl.static_range(1, TABLES):
                begin = tl.maximum(first - window, 0) // BLOCK_SIZE
                for at in range(begin, used, COPY):
                    entries = at + tl.arange(0, COPY)
                    values = tl.load(own + number * width + entries, mask=entries < used, other=0)
                    tl.store(target + number * width + entries, values, mask=entries < used)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["rows", "tokens"])
def keep_kernel(rows, tokens, last, count, BLOCK: tl.constexpr):
    """BLOCK rows."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + index, mask=index < count, other=-1)
    token = tl.load(tokens + index, mask=index < count, other=0).to(tl.int64)
    tl.store(last + row, token, mask=row >= 0)


@triton.jit(do_not_specialize=["entries", "count"], do_not_specialize_on_alignment=["packed"])
def change_kernel(packed, entries, count, table, last, drawn, parameters, BLOCK: tl.constexpr):
    """BLOCK entries of the table and BLOCK rows."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    entry = index < entries
    place = tl.load(packed + index, mask=entry, other=0)
    tl.store(table + place, tl.load(packed + entries + index, mask=entry, other=0).to(tl.int32), mask=entry)
    there = index < count
    values = packed + 2 * entries + index
    row = tl.load(values, mask=there, other=0)
    tl.store(last + row, tl.load(values + count, mask=there, other=0), mask=there)
    tl.store(drawn + row, tl.load(values + 2 * count, mask=there, other=0), mask=there)
    for number in tl.static_range(len(parameters)):
        put(parameters[number] + row, values + (3 + number) * count, there)


@triton.jit
def put(target, source, there):
    """An integer as it comes, any other number out of the bits of a float64."""
    value = tl.load(source, mask=there, other=0)
    if target.dtype.element_ty.is_floating():
        value = value.to(tl.float64, bitcast=True)
    tl.store(target, value.to(target.dtype.element_ty), mask=there)


def change_rows(packed: Tensor, entries: int, state: RowState, parameters: Sequence[Tensor]) -> None:
    """Write what is new of rows, all of it by one kernel.

    packed       int64, one after the other: of so many entries of the table, first where they are in it (row · width +
                 block), then the blocks; of the rows first which they are, then `last`, then `drawn`, then each of
    parameters   integers as they are, floats as the bits of float64
    """
    count, rest = divmod(len(packed) - 2 * entries, 3 + len(parameters))
    if packed.dtype != torch.int64 or not packed.is_contiguous() or rest or count < 0:
        raise ValueError(f"{packed.dtype}{list(packed.shape)} are not {entries} entries and whole rows")
    grid = (max(1, triton.cdiv(max(entries, count), PLACED)),)
    change_kernel[grid](
        packed, entries, count, state.table, state.last, state.drawn, tuple(parameters), BLOCK=PLACED, num_warps=4
    )


def make_inputs(
    rows: Tensor,
    starts: Tensor,
    firsts: Tensor,
    state: RowState,
    out: StepInputs,
    block_size: int,
    longest: int,
    given: Tensor | None = None,
    window: int = 0,
) -> None:
    """Fill `out`, and `drawn` of the state.

    rows, firsts   int64 [n]; no row but those below 0 twice
    starts         int64 [n + 1]: 0 … t, not decreasing
    longest        at least the tokens that any of the rows has
    given          int64 [t]
    window         tokens that layers of other tables than the first see, and those that are read with them
    """
    n, tokens = len(rows), len(out.ids)
    _check({"rows": (rows, n), "starts": (starts, n + 1), "firsts": (firsts, n)})
    _check({"given": (given, tokens)} if given is not None else {})
    tables = out.tables
    slots = {"slots": (out.slots if tables == 1 else out.slots[0], tokens)}
    _check({"ids": (out.ids, tokens), "positions": (out.positions, tokens), **slots})
    if out.lengths.shape != rows.shape or out.lengths.dtype != torch.int32:
        raise ValueError(f"lengths {out.lengths.dtype}{list(out.lengths.shape)} do not fit {n} rows")
    for name, values, count in (("blocks", out.blocks, n), ("table", state.table, len(state.last))):
        fits = values.dim() == 2 and values.shape == (count, state.table.shape[1]) and values.stride(1) == 1
        if not fits or values.dtype != torch.int32:
            raise ValueError(f"{name} {values.dtype}{list(values.shape)} do not fit {count} rows")
    tile = DECODING if longest == 1 and given is None else TILE
    if n:
        inputs_kernel[(n, triton.cdiv(longest, tile))](
            rows, starts, firsts, rows if given is None else given, *state, state.table.stride(0),
            *out, out.blocks.stride(0), out.slots.stride(0), state.table.shape[1] // tables, window,
            BLOCK_SIZE=block_size, TILE=tile, GIVEN=given is not None, TABLES=tables, num_warps=1,
        )  # fmt: skip


def keep_tokens(rows: Tensor, tokens: Tensor, last: Tensor) -> None:
    """last[rows[i]] = tokens[i] for the rows that are not below 0. rows int64 [n], tokens int32 or int64 [n]."""
    _check({"rows": (rows, len(tokens)), "last": (last, len(last))})
    if len(rows):
        keep_kernel[(triton.cdiv(len(rows), KEEP),)](rows, tokens, last, len(rows), BLOCK=KEEP, num_warps=1)


def _check(vectors: dict[str, tuple[Tensor, int]]) -> None:
    for name, (values, size) in vectors.items():
        if values.dtype != torch.int64 or values.shape != (size,) or not values.is_contiguous():
            raise ValueError(f"{name} {values.dtype}{list(values.shape)} must be int64 [{size}]")
