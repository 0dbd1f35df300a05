"""Which KV blocks the rows of the batch have, and whether these follow one another, so that they are read as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..batch import BlockTables


class RowBlocks:
    """Of each row its blocks, in the order of its tokens; of several tables one after the other."""

    def __init__(self, rows: int, entries: int, strides: Sequence[int] | None) -> None:
        """`entries` of each table; `strides`: what the numbers of each one's blocks are multiplied with, None where
        memory has one table alone."""
        tables = None if strides is None else len(strides)
        self._entries, self._strides = entries, strides or (1,)
        self._blocks = np.zeros((rows, (tables or 1) * entries), np.int64)
        # a row's blocks do not follow one another, by tables where there are several; these have a first block
        self._scattered = np.zeros(rows if tables is None else (rows, tables), np.bool_)
        self._begun = np.zeros((rows, tables or 1), np.bool_)
        self.tables = BlockTables(self._blocks, self._scattered)

    @property
    def first(self) -> BlockTables:
        """The first table alone."""
        return self.tables.part(0) if self._scattered.ndim > 1 else self.tables

    def place(self, row: int, blocks: np.ndarray) -> None:
        """A sequence takes a row."""
        blocks = blocks.astype(np.int64) * self._strides[0]
        self._blocks[row, : blocks.size] = blocks
        self._scattered[row], self._begun[row] = False, False
        self._scattered[(row, 0) if self._scattered.ndim > 1 else row] = (np.diff(blocks) != 1).any()

    def add(self, new_blocks: np.ndarray) -> bool:
        """Blocks that rows get: [row, index, block] each. Whether one of them does not follow its row's last one."""
        scattered = False
        for row, index, number in new_blocks.tolist():
            block = number * self._strides[index // self._entries]
            self._blocks[row, index] = block
            scattered |= self._scatters(row, index, block)
        return scattered

    def _scatters(self, row: int, index: int, block: int) -> bool:
        """Whether this block of a row does not follow the one before it; the first one of a table has none."""
        table = index // self._entries
        if table and not self._begun[row, table]:
            self._begun[row, table] = True
            return False
        if block == self._blocks[row, index - 1] + 1:
            return False
        self._scattered[(row, table) if self._scattered.ndim > 1 else row] = True
        return True
