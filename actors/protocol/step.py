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


MOST_NEW_BYTES = 1 << 17  # a step that tells of so much in its new rows tells of no more of them
MOST_NEW_BLOCKS = 1 << 13  # likewise of blocks that are added to rows
BLOCK_BYTES, ROW_BYTES = 3 * ITEM_BYTES, 7 * ITEM_BYTES  # of such a block, and of what each row of a step may have
HEADS = 1 << 10  # bytes of a step, or of a new row, beside all that is counted
MOST_JUMPS = 16  # tokens of a row in a step, beside the next one, that its grammar leaves no choice of
MOST_DRAWN = 64  # more than a row draws in a step, whoever makes its drafts
LOOKS = 1000  # of which a share is told
JOINED_S = 0.004  # steps that are shorter, of the same rows, are told of two at a time (worker/joined_steps.py)


_encode = msgspec.msgpack.Encoder().encode


def longest_step(max_num_seqs: int, sequence_blocks: int, params_bytes: int) -> int:
    """Bytes that no step exceeds. Beside all that is bounded there may be the row with which MOST_NEW_BYTES was
    reached, one that is tried alone behind it, and what a row gets that has nothing yet in its tables of windows, which
    together are no longer than the one of the longest sequence (model/memory/kv_memory.py).
    """
    row = HEADS + params_bytes + sequence_blocks * (ITEM_BYTES + BLOCK_BYTES)
    grown = (MOST_NEW_BLOCKS + 2 * sequence_blocks) * BLOCK_BYTES
    return HEADS + MOST_NEW_BYTES + 2 * row + grown + max_num_seqs * ROW_BYTES


def longest_answer(max_num_seqs: int) -> int:
    """Bytes that no StepDone exceeds: all rows may draw, and fail."""
    return HEADS + max_num_seqs * (MOST_DRAWN + 3) * ITEM_BYTES


class KVLayout(msgspec.Struct, array_like=True, frozen=True):
    """How a worker keeps what it has computed, as far as it makes a difference to plans. As it is here, none.

    States of a sequence as a whole cannot be shared by block: who begins with a cached prefix needs a snapshot of them
    at its end. Layers that see a window have `window_tables` block tables more: table t's entries have the indices from
    t times the blocks of the longest sequence on, and those that lie more than `window` tokens back are read no more.
    """

    states: bool = False
    snapshots: int = 0  # for which there is room
    window: int = 0
    window_tables: int = 0
    by_token: bool = False  # from states a row goes on by one token only, each a whole pass

    @property
    def plain(self) -> bool:
        """Whether a row can be gone on with at any token, knowing its blocks alone."""
        return not self.states and not self.window_tables


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
    snapshot: int = -1  # its states are those of this one; -1: it has none yet
    adapter: int = 0  # the id of its adapter (shm/adapters/registry.py); 0: it has none

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
        snapshot: int = -1,
        adapter: int = 0,
    ) -> NewRow:
        """`blocks` [n]: see the property."""
        numbers = row, ref, num_prompt_tokens, num_known_tokens, num_computed_tokens
        return cls(*numbers, pack(blocks), sampling, snapshot, adapter)

    @property
    def blocks(self) -> Int32s:
        """int32 [n]: the block table's first entries."""
        return unpack(self.packed_blocks)

    @property
    def size(self) -> int:
        """Bytes of it in a step."""
        return len(_encode(self))


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
    packed_saves: bytes = b""
    packed_looks: bytes = b""

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
        saves: Sequence[tuple[int, int]] = (),
        looks: Sequence[tuple[int, int, int]] = (),
    ) -> Step:
        """`rows`, `counts` [n], `new_blocks` [m, 3], `saves` [s, 2] and `looks` [l, 3]: see the properties."""
        blocks = pack([*chain.from_iterable(new_blocks)]) if new_blocks else b""
        saved = pack([*chain.from_iterable(saves)]) if saves else b""
        looked = pack([*chain.from_iterable(looks)]) if looks else b""
        return cls(epoch, step, new_rows, pack(rows), pack(counts), blocks, min_accepted, saved, looked)

    def again(self, step: int, min_accepted: float) -> Step:
        """The next one, of the same rows; of one that brings nothing new."""
        return Step(self.epoch, step, [], self.packed_rows, self.packed_counts, b"", min_accepted)

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
        """int32 [m, 3]: (row, index in the block table, block) of blocks added to rows, behind what NewRow says."""
        return unpack(self.packed_new_blocks).reshape(-1, 3)

    @property
    def looks(self) -> NewBlocks:
        """int32 [l, 3]: (row, position, share in LOOKS): so much, all told, is to be computed by this step of the
        embeddings of the picture that begins there in the row's prompt. Who computes a token of it computes the rest.
        """
        return unpack(self.packed_looks).reshape(-1, 3)

    @property
    def saves(self) -> NewBlocks:
        """int32 [s, 2]: (row, snapshot): where copies of rows' states are put when the step has been computed."""
        return unpack(self.packed_saves).reshape(-1, 2)

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


PLUGIN_FAILED = 1 << 16  # rows are fewer


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
    packed_failed: bytes = b""  # rows; of those of unseen_rows the complement, of plugin_rows PLUGIN_FAILED more

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
        """The answer to `step`; for the arrays see the properties. `failed_rows` has all, as they are packed."""
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
        failed = unpack(self.packed_failed)
        return failed[(failed >= 0) & (failed < PLUGIN_FAILED)]

    @property
    def plugin_rows(self) -> Int32s:
        """int32 [p]: rows of which a logits processor failed."""
        failed = unpack(self.packed_failed)
        return failed[failed >= PLUGIN_FAILED] - PLUGIN_FAILED

    @property
    def unseen_rows(self) -> Int32s:
        """int32 [u]: rows of which a picture makes no embeddings."""
        failed = unpack(self.packed_failed)
        return ~failed[failed < 0]
