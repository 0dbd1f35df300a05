"""A step's inputs in plain Python."""

from __future__ import annotations

from actorserve.kernels.triton.step_inputs import RowState


def reference_inputs(
    rows: list[int], counts: list[int], firsts: list[int], state: RowState, block_size: int, given: list[int]
) -> tuple[list[int], list[int], list[int], list[int], list[list[int]]]:
    """ids, positions, slots, lengths, and the entries that each row's length needs, in plain Python."""
    ids: list[int] = []
    positions, slots, lengths, blocks = list[int](), list[int](), list[int](), list[list[int]]()
    for row, count, first in zip(rows, counts, firsts, strict=True):
        entries = state.table[row].tolist()
        for position in range(first, first + count) if row >= 0 else [0] * count:
            named = given[len(ids)]
            ids.append(0 if row < 0 else int(state.last[row]) if named < 0 else named)
            positions.append(position)
            slots.append(-1 if row < 0 else entries[position // block_size] * block_size + position % block_size)
        lengths.append(first + count if row >= 0 else 0)
        blocks.append(entries[: -(-lengths[-1] // block_size)])
    return ids, positions, slots, lengths, blocks
