"""The request table as numpy arrays, for actors that move many slots at once. No other module here needs numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..fence import store_fence
from .layout import CONTROL_WORDS, TOKENS

if TYPE_CHECKING:
    from .table import RequestTable


class TableArrays:
    """`tokens` int32 [slots, max_tokens] and `control` uint64 [slots, 32], both views of the shared memory."""

    def __init__(self, table: RequestTable) -> None:
        buffer = table.segment.map
        self.tokens: NDArray[np.int32] = np.ndarray(
            (table.slots, table.max_tokens), np.int32, buffer, 4 * table.token_index(0), (table.stride, 4)
        )
        self.control: NDArray[np.uint64] = np.ndarray(
            (table.slots, CONTROL_WORDS), np.uint64, buffer, table.control_offset
        )
        self._cursors: NDArray[np.int64] = self.control.view(np.int64)[:, TOKENS]

    def append_tokens(
        self,
        slots: NDArray[np.int64],
        positions: NDArray[np.int64],
        tokens: NDArray[Any],
        generations: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> None:
        """One token for each slot: log[slot, position] = token, then its tokens cursor = (generation, count).

        numpy's fancy assignment between aligned arrays of one 8-byte type moves each element with one load and one
        store, so that a cursor is never seen half written (int64 here: generations stay below 2**31).
        """
        self.append_words(slots, positions, tokens, generations << 32 | counts)

    def append_words(
        self,
        slots: NDArray[np.int64],
        positions: NDArray[np.int64],
        tokens: NDArray[Any],
        cursors: NDArray[np.int64],
    ) -> None:
        """The same where the cursors' words are known."""
        self.tokens[slots, positions] = tokens
        store_fence()
        self._cursors[slots] = cursors  # SYNC: table.tokens, pairs with RequestTable.generated
