"""The token log as the worker of one of several models reads it (--also).

A worker may read a slot late: its request was cancelled, and the slot is another's by then. Its row is nobody's any
more, but the ids that stand there may be another model's, and have no word in this one's vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from actorserve.shm.segment import Segment
from actorserve.shm.table.arrays import TableArrays
from actorserve.shm.table.table import RequestTable

from ...runtime.process import Context


class OwnTokens(np.ndarray):
    """Token ids, of which none that is read is beyond the vocabulary."""

    words = 0

    def __array_finalize__(self, made_of: Any) -> None:
        self.words = getattr(made_of, "words", 0)

    def __getitem__(self, index: Any) -> Any:
        return np.minimum(self.view(np.ndarray)[index], self.words - 1)


class OwnTable(RequestTable):
    """The request table, for a model of so many words."""

    def __init__(self, segment: Segment, offset: int, words: int) -> None:
        super().__init__(segment, offset)
        self._num_words = words

    def as_numpy(self) -> TableArrays:
        arrays = super().as_numpy()
        own = arrays.tokens.view(OwnTokens)
        own.words, arrays.tokens = self._num_words, own
        return arrays


def read_own_tokens(context: Context) -> None:
    """From now on this actor's table is read so, where there are other models."""
    if len(context.system.models) > 1:
        context.table = OwnTable(context.segment, context.system.table_offset, context.model.vocab_size)
