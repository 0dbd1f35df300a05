"""Steps on the wire between scheduler and worker, both ends of it: `make` packs arrays, the properties read them.

Numbers cross as int32 in `packed_…`. Each property unpacks anew: who needs an array twice keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from .request import Sampling
from .wire import ITEM_BYTES, Message, pack, unpack, unpack_int64

if TYPE_CHECKING:
    import numpy as np

    from .wire import Int32s, Int64s, Numbers

    NewBlocks = np.ndarray[tuple[int, int], np.dtype[np.int32]]


class NewRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A sequence takes a row of the worker's batch (whatever was in the row is forgotten).

    The worker reads tokens [num_computed_tokens, num_known_tokens) from the table's token log of the ref's slot, and
    what the renderer made of the request; those behind them it samples itself.
    """

    row: int
    ref: int
    num_prompt_tokens: int
    num_known_tokens: int  # prompt + generated tokens that are in the table now
    num_computed_tokens: int  # tokens whose KV is in `blocks` already (prefix cache)
    packed_blocks: bytes
    sampling: Sampling

    @classmethod
    def make(
        cls,
        row: int,
        ref: int,
        num_prompt_tokens: int,
        num_known_tokens: int,
        num_computed_tokens: int,
        blocks: Numbers,
        sampling: Sampling,
    ) -> NewRow:
        """`blocks` [n]: see the property."""
        return cls(row, ref, num_prompt_tokens, num_known_tokens, num_computed_tokens, pack(blocks), sampling)

    @property
    def blocks(self) -> Int32s:
        """int32 [n]: the block table's first entries."""
        return unpack(self.packed_blocks)


class Step(Message, frozen=True, tag=20):
    """Scheduler → worker: one forward pass, as the difference to the last one.

    rows[i] computes its next counts[i] tokens: positions [computed, computed + count), after which computed += count.
    A row samples if that makes computed == known; its token is then known (known += 1) and is the input of its next
    position. Tokens sampled by a row are returned in StepDone in the order of `rows`.
    A row whose count goes beyond known has room for that many drafts (see scheduler/policy/speculation.py): it moves on
    by as many tokens as it draws, at most by its count.
    """

    epoch: int  # the scheduler's view of this worker; a new epoch starts with no rows
    step: int
    new_rows: list[NewRow]
    packed_rows: bytes
    packed_counts: bytes
    packed_new_blocks: bytes
    min_accepted: float = 0.0  # the share of drafts that has to be accepted, or they cost more than they save

    @classmethod
    def make(
        cls,
        epoch: int,
        step: int,
        new_rows: list[NewRow],
        rows: Numbers,
        counts: Numbers,
        new_blocks: Sequence[tuple[int, int, int]] = (),
        min_accepted: float = 0.0,
    ) -> Step:
        """`rows`, `counts` [n] and `new_blocks` [m, 3]: see the properties."""
        blocks = pack([*chain.from_iterable(new_blocks)]) if new_blocks else b""
        return cls(epoch, step, new_rows, pack(rows), pack(counts), blocks, min_accepted)

    @property
    def rows(self) -> Int64s:
        """int64 [n]: rows of the batch that compute something."""
        return unpack_int64(self.packed_rows)

    @property
    def counts(self) -> Int64s:
        """int64 [n]: how many tokens each of `rows` computes, with room for its drafts."""
        return unpack_int64(self.packed_counts)

    @property
    def new_blocks(self) -> NewBlocks:
        """int32 [m, 3]: (row, index in the block table, block) of blocks added to rows that are not new."""
        return unpack(self.packed_new_blocks).reshape(-1, 3)

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.packed_rows) // ITEM_BYTES

    @property
    def num_tokens(self) -> int:
        """The sum of `counts`."""
        return int(unpack(self.packed_counts).sum())

    def repeats(self, other: Step) -> bool:
        """Whether it computes as many tokens of the same rows as another one, and no row is new."""
        mine = self.packed_rows, self.packed_counts
        return not self.new_rows and mine == (other.packed_rows, other.packed_counts)


class StepDone(Message, frozen=True, tag=14):
    """Worker → scheduler: the sampled tokens of each row that sampled, in the order of the step's rows.

    Without drafts that is one token a row. The tokens of rows in `failed_rows` are none: their grammars allowed nothing
    that is known.
    """

    epoch: int
    step: int
    packed_tokens: bytes
    seconds: float  # what the step took in the worker
    packed_drawn: bytes = b""  # nothing where no row had a draft
    packed_drafted: bytes = b""  # likewise
    packed_failed: bytes = b""

    @classmethod
    def make(
        cls,
        step: Step,
        tokens: Numbers,
        seconds: float,
        *,
        failed_rows: Numbers = (),
        num_drawn: Numbers = (),
        num_drafted: Numbers = (),
    ) -> StepDone:
        """The answer to `step`; for the arrays see the properties."""
        failed = pack(failed_rows) if len(failed_rows) else b""
        if not len(num_drawn):
            return cls(step.epoch, step.step, pack(tokens), seconds, packed_failed=failed)
        return cls(step.epoch, step.step, pack(tokens), seconds, pack(num_drawn), pack(num_drafted), failed)

    @property
    def tokens(self) -> Int32s:
        """int32 [k]: the tokens of all sampling rows, one row's behind another's."""
        return unpack(self.packed_tokens)

    @property
    def had_drafts(self) -> bool:
        """Whether a row had any: then `num_drawn` and `num_drafted` have a number for each row that sampled."""
        return bool(self.packed_drawn)

    @property
    def num_drawn(self) -> Int64s:
        """int64 [rows that sampled], or nothing: how many of `tokens` each drew."""
        return unpack_int64(self.packed_drawn)

    @property
    def num_drafted(self) -> Int64s:
        """int64 [rows that sampled], or nothing: how many drafts each had."""
        return unpack_int64(self.packed_drafted)

    @property
    def failed_rows(self) -> Int32s:
        """int32 [f]: rows of the batch whose grammar failed in this step."""
        return unpack(self.packed_failed)
