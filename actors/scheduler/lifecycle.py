"""A sequence's way from its admission to its end: who is admitted, in which order they wait, who has ended and why.

Owns the admitted sequences, the waiting queue, and what is to be said of them to detokenizers; writes the finish words
of the request table. Knows neither rows nor blocks: what a sequence holds at its end is let go by whoever gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from actorserve.shm.table.table import RequestTable

from ..protocol.messages import Finish
from ..protocol.request import Generation, Rendition
from .limits import Limits
from .memory.deferred_ends import DeferredEnds
from .metrics.request_stats import RequestStats
from .policy.pictures import Items, read_pictures
from .sequence import Sequence
from .waiting import WaitingQueue

MOVED = 1 << 40  # a sequence of another engine comes before those that have waited here


class Lifecycle:
    """`sequences`: admitted and not finished, by ref. `moved`: those whose log or finish word has moved, `ended` those
    that have ended, each until it is taken.
    """

    def __init__(
        self,
        table: RequestTable,
        limits: Limits,
        end_tokens: list[int],
        stats: RequestStats,
        let_go: Callable[[Sequence], None],
        items: Items | None = None,
    ) -> None:
        """`let_go` frees what a running sequence holds; its finish word is stored before, or waits for a step. `items`:
        slots' pictures.
        """
        self._vision, self._items = limits.vision, items
        self.knows_adapter: Callable[[int], bool] = lambda adapter: True  # it is loaded
        self.embeds: Callable[[int], tuple[int, bytes] | None] = lambda ref: None  # of a prompt's first positions
        self.end_tokens = end_tokens
        self.sequences: dict[int, Sequence] = {}
        self.waiting = WaitingQueue(limits.by_priority)
        self.moved: dict[int, None] = {}
        self.ended: list[int] = []
        self.recovers = False  # what is admitted now was a predecessor's
        self.deferred = DeferredEnds()
        self.read_until: Callable[[Sequence], int | None] = lambda _: None  # the last step that may read its slot
        self.inherits = False  # a group of workers may have steps of a predecessor
        self.arrivals = self.prompted = self.rejected = self.finished = 0
        self._table, self._stats, self._let_go = table, stats, let_go
        self._whole = limits.whole_prompts
        self._most = limits.max_num_seqs + limits.max_queued
        self._most_tokens, self._rows = limits.max_queued_tokens, limits.max_num_seqs
        self._decoder = msgspec.msgpack.Decoder(Generation)
        self._renditions = msgspec.msgpack.Decoder(Rendition)

    # --- the beginning -------------------------------------------------------------------------------------------

    def admit(self, ref: int) -> None:
        """Take up a sequence whose prompt is in the table, where its log stands. Known and finished ones are left."""
        table = self._table
        prompt_tokens = table.prompt_length(ref)
        if ref in self.sequences or prompt_tokens is None or table.finish(ref) or ref in self.deferred:
            return
        if table.is_cancelled(ref):
            self._end_found(ref, Finish.ABORT)
        elif table.stop(ref):
            self._end_found(ref, Finish.STOP_STRING)
        elif self._is_full(prompt_tokens) and not (table.generated(ref) or table.moves(ref)[0]):
            self.rejected += 1
            self._end_with(ref, Finish.REJECTED)
        else:
            self._enqueue(ref, prompt_tokens)

    def _is_full(self, prompt_tokens: int) -> bool:
        """Is there no room to wait for one more? A prompt that would wait alone is taken, however long it is."""
        if len(self.sequences) >= self._most:
            return True
        if self._most_tokens is None or not self.waiting or len(self.sequences) < self._rows:
            return False
        return self.waiting.num_prompt_tokens + prompt_tokens > self._most_tokens

    def refuse(self, ref: int) -> None:
        """This one cannot be taken up: schedulers have died of it."""
        if ref not in self.sequences and not self._table.finish(ref) and ref not in self.deferred:
            self._end_with(ref, Finish.ERROR)

    def _enqueue(self, ref: int, prompt_tokens: int) -> None:
        params = self._decoder.decode(self._table.params(ref))
        if load := self._table.load(ref):
            params = msgspec.structs.replace(params, adapter=load)
        if not self.knows_adapter(params.adapter):
            self._end_with(ref, Finish.ADAPTER)
            return
        self.arrivals += 1
        arrival = self.arrivals - MOVED if self._table.moves(ref)[0] else self.arrivals
        sequence = Sequence(ref, arrival, params, self.end_tokens, self._whole)
        sequence.num_prompt_tokens = prompt_tokens
        sequence.max_tokens = self._table.limit(ref)
        sequence.num_generated_tokens = self._table.generated(ref)
        sequence.has_run = sequence.num_generated_tokens > 0
        if self._vision is not None and self._items is not None:
            sequence.pictures = read_pictures(self._table, ref, self._items, self._vision)
        if rendition := self._table.rendition(ref):
            sequence.constrained = bool(self._renditions.decode(rendition).grammar)
        if (given := self.embeds(ref)) is not None:
            sequence.pictures = sequence.pictures._replace(given=given)
        sequence.is_read = self.recovers
        self.sequences[ref] = sequence
        if self._stats.admitted(ref, self.recovers):
            self.prompted += prompt_tokens
        self.waiting.add(sequence)
        if sequence.num_generated_tokens:
            last = self._table.token_ids(ref, sequence.num_tokens - 1, sequence.num_tokens)[0]
            self.finish_if_done(sequence, last)

    # --- the end -------------------------------------------------------------------------------------------------

    def end(self, ref: int, code: Finish) -> None:
        """Finish a sequence from outside: its frontend cancelled it, or the detokenizer found a stop string."""
        sequence = self.sequences.get(ref)
        if sequence is not None:
            self._finish(sequence, code)

    def finish_if_done(self, sequence: Sequence, token: int) -> None:
        """End the sequence if `token`, the last of its log, is an end or the length limit is reached."""
        if sequence.pools or token in sequence.ends:
            self._finish(sequence, Finish.STOP)
        elif sequence.num_generated_tokens >= sequence.max_tokens:
            self._finish(sequence, Finish.LENGTH)

    def _finish(self, sequence: Sequence, code: Finish) -> None:
        """Free row and blocks at once: steps in flight run before any step that is given the blocks anew."""
        step = self.read_until(sequence)
        if step is None or not self._says_end(sequence.ref):
            self._end_with(sequence.ref, code)
        else:
            self.deferred.add(step, sequence.ref, partial(self._end_with, sequence.ref, code))
        self._remove(sequence)
        self.finished += 1
        self._stats.ended(sequence)

    def _says_end(self, ref: int) -> bool:
        """Whether a successor, who knows of no end that waits, finds in the slot that it is to end."""
        return self._table.is_cancelled(ref) or self._table.stop(ref) > 0

    def drop(self, sequence: Sequence, give: Callable[[], None]) -> None:
        """It goes on elsewhere: what it holds here is free, and once no step may read its slot any more it is given."""
        step = self.read_until(sequence)
        self._remove(sequence)
        if step is None:
            give()
        else:
            self.deferred.add(step, sequence.ref, give)

    def _remove(self, sequence: Sequence) -> None:
        if sequence.ref in self.waiting:
            self.waiting.remove(sequence.ref)
        self._let_go(sequence)
        del self.sequences[sequence.ref]

    def _end_found(self, ref: int, code: Finish) -> None:
        """It was to end when it was admitted. Of a predecessor's a step may be under way."""
        if self.recovers and self.inherits:
            self.deferred.add(0, ref, partial(self._end_with, ref, code))
        else:
            self._end_with(ref, code)

    def end_deferred(self, step: int | None = None) -> None:
        """This step has come back; None: no step is under way any more."""
        self.inherits = self.inherits and step is not None
        self.deferred.tell(step)

    def _end_with(self, ref: int, code: Finish) -> None:
        self._table.set_finish(ref, code)
        self._stats.ends[code] += 1
        self.has_ended(ref)

    # --- what is to be said --------------------------------------------------------------------------------------

    def has_ended(self, ref: int) -> None:
        """Its finish word is stored; a predecessor's, too, who could not say so."""
        self.moved[ref] = None
        self.ended.append(ref)

    def have_moved(self, refs: Iterable[int]) -> None:
        """Their logs are longer now."""
        self.moved.update(dict.fromkeys(refs))

    def take_moved(self) -> list[int]:
        """All of whom there is something to say."""
        moved = list(self.moved)
        self.moved.clear()
        return moved

    def take_ended(self) -> list[int]:
        """Those who have ended since the last time."""
        ended, self.ended = self.ended, []
        return ended
