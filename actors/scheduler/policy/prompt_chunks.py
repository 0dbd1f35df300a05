"""How much of each prompt a step computes: what is due and fits, up to where a snapshot is wanted, as far as its tables
of windows come, and no picture cut.
"""

from __future__ import annotations

from ..batch import Ints, RunningBatch
from ..limits import Limits
from ..memory.allocation import Allocation
from ..memory.snapshots import Snapshots
from ..sequence import Sequence
from ..waiting import WaitingQueue
from .chunk_size import ChunkSizePolicy
from .pictures import EncoderBudget


class PromptChunks:
    """Of one plan after the other: each begins with `begin`, and is asked row by row."""

    def __init__(
        self,
        limits: Limits,
        batch: RunningBatch,
        waiting: WaitingQueue,
        memory: Allocation,
        snapshots: Snapshots,
        chunk_size: ChunkSizePolicy,
    ) -> None:
        self._batch, self._waiting, self._memory, self._snapshots = batch, waiting, memory, snapshots
        self._budget = budget = limits.max_num_batched_tokens
        self._longest = limits.long_prefill_tokens or budget  # tokens of one prompt in a step
        self._room = budget  # for prompts in this plan, before any was given some
        self.starved = False  # a prompt of this plan found no block for its windows
        self.encoder: EncoderBudget | None = None
        if limits.vision is not None:
            self.encoder = EncoderBudget(limits.max_num_encoder_input_tokens or budget, chunk_size)

    def begin(self, room: int, decoding: int = 0, kept: int = 0) -> None:
        """A plan with `room` tokens for prompts beside so many decoding rows; `kept` from them so that it is short."""
        self.starved, self._room = False, room
        if self.encoder is not None:
            self.encoder.begin(decoding, kept)

    def left(self, left: int) -> int:
        """What pictures leave of so many tokens."""
        return left if self.encoder is None else self.encoder.left(left)

    def fits(self, sequence: Sequence, left: int) -> bool:
        """Whether a waiting one may begin: who cannot be cut, if all of it is computed at once. One that is longer than
        what is left for prompts is the only one of its step.
        """
        return not sequence.whole or left >= min(sequence.num_tokens, self._room)

    def of_rows(self, left: int) -> tuple[list[int], list[int]]:
        """Rows that are in prefill, oldest first, with how much of each fits into what is left."""
        _, rows = self._batch.due()
        rows_by_age = sorted(rows.tolist(), key=lambda row: self._waiting.rank(self._batch.at(row)))
        chosen: list[int] = []
        counts: list[int] = []
        for row in rows_by_age:
            if left <= 0:
                break
            if count := self.of(row, left):
                chosen.append(row)
                counts.append(count)
                left -= count
        return chosen, counts

    def of(self, row: int, left: int) -> int:
        """How many tokens this row computes."""
        batch = self._batch
        sequence, computed = batch.at(row), int(batch.num_computed_tokens[row])
        due, left = int(batch.num_known_tokens[row]) - computed, self.left(left)
        if sequence.whole:
            return due if left >= min(due, self._room) else 0
        count = self._snapshots.cut(sequence, computed, min(left, self._longest, due))
        if sequence.pictures.whole and self.encoder is not None:
            count = self.encoder.reach(sequence.pictures, computed, count, left)
        if count:
            count = self._memory.reach(row, count)
            if sequence.pictures.whole:  # of one that has only a part of its room nothing is computed
                count = max(0, sequence.pictures.before(computed + count) - computed)
            self.starved |= not count
        if self.encoder is None:
            return count
        if sequence.pictures.all:
            progress = sequence.encoded, sequence.looked
            count, (sequence.encoded, sequence.looked) = self.encoder.cut(
                sequence.pictures, progress, computed, count, row
            )
        self.encoder.give(count)
        return count

    def next_picture(self, prompts: Ints) -> int:
        """Tokens with which the oldest of these rows goes on, if no step may cut them: decoding rows leave room."""
        if self.encoder is None or not len(prompts):
            return 0
        oldest = min(map(self._batch.at, prompts.tolist()), key=self._waiting.rank)
        computed = self._batch.num_computed_tokens[oldest.row]
        size = next((end - start for start, end in oldest.pictures.whole if start == computed), 0)
        return size if size <= self._budget else 0
