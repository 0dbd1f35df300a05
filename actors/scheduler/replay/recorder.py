"""The scheduler with `--record FILE`: it does what SchedulerActor does and keeps what determined that.

A scheduler's plans follow from its options, what it finds at its start (the request table, the KV map, what a
predecessor worked on), its messages in their order, what the table says of the sequences that these name, and the
number of turns: each asks for a plan. All that is in the file. What others write to the table meanwhile is noted as it
is read (RecordedTable), so that the file has what this scheduler read, and not what stood there a moment later.

What is not determined otherwise, and why it does not matter or is kept:
- Clocks: stamps and histograms alone follow them, and those decide nothing. Times of steps, by which room for drafts
  and the pace of prompts go, are the worker's and come in StepDone.
- Orders: dicts and heaps are in the order of insertion and of (priority, arrival); no set is ever walked through.
- Whether the workers live, which ends may wait for, is kept where it lets some be told (`ends`).
- Turns without a message ask for plans as well, and are counted (`idle`), unless the clock says that it is too early
  for a plan: whether it did is kept (`held`).
- The name of whom a message is from follows from its kind and its slot; it decides nothing.

The hot way is a few list entries a turn. Records are encoded after the turn's plans are in the lanes, and written in
pieces of 64 KiB, or after a second. What was not yet written is lost with the process, unless an exception ends it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from hashlib import blake2b

import msgspec

import actorserve
from actorserve.shm.segment import Segment
from actorserve.shm.table.table import RequestTable, slot_of

from ...options.config import ConfigError
from ...protocol.messages import Message, ToScheduler
from ...protocol.step import Step
from ...runtime.process import Context, run
from ...telemetry.discovery import without_secrets
from ..actor import SchedulerActor
from .file import (
    Flags,
    Found,
    RecordedFlag,
    RecordedLife,
    RecordedPlan,
    RecordedSequence,
    RecordedSlot,
    RecordedTurn,
    RecordFile,
)

DIGEST_BYTES = 8
FIRST = 1  # incarnation of a scheduler without predecessor


class RecordedTable(RequestTable):
    """The request table as one scheduler reads it: notes what others have written there when that is looked at."""

    def __init__(self, segment: Segment, offset: int) -> None:
        super().__init__(segment, offset)
        self.message = 0  # number in its turn of the one that is handled
        self.facts: Found = []
        self.flags: Flags = []
        self.has_started = False  # until then it is also noted what predecessors have left:
        self.uses: list[int] = []
        self.arrivals: dict[int, int] = {}
        self.finishes: dict[int, int] = {}  # as they were before this life has ended anything
        self._noted: dict[int, int] = {}  # the ref of each slot that is known

    def prompt_length(self, ref: int) -> int | None:
        length = super().prompt_length(ref)
        if length is not None and self._noted.get(slot_of(ref)) != ref and not self.finish(ref):
            self._noted[slot_of(ref)] = ref
            self.facts.append((self.message, self._fact(ref, length)))
        return length

    def _fact(self, ref: int, length: int) -> RecordedSequence:
        tokens = bytes(self.token_ids(ref, 0, length + self.generated(ref)))
        arrival = super().arrival_ns(ref)
        return RecordedSequence(ref, arrival, self.params(ref), tokens, length, self.limit(ref), self.hashes(ref))

    def is_cancelled(self, ref: int) -> bool:
        cancelled = super().is_cancelled(ref)
        if cancelled:
            self.flags.append((self.message, RecordedFlag(ref)))
        return cancelled

    def stop(self, ref: int) -> int:
        stop = super().stop(ref)
        if stop:
            self.flags.append((self.message, RecordedFlag(ref, stop)))
        return stop

    def current_refs(self, first_slot: int, count: int) -> list[int]:
        refs = super().current_refs(first_slot, count)
        if not self.has_started:
            self.uses = refs
        return refs

    def arrival_ns(self, ref: int) -> int:
        arrival = super().arrival_ns(ref)
        return arrival if self.has_started else self.arrivals.setdefault(ref, arrival)

    def finish(self, ref: int) -> int:
        finish = super().finish(ref)
        if not self.has_started:
            self.finishes.setdefault(ref, finish)
        return finish

    def take(self) -> tuple[Found, Flags]:
        """What was noted since the last time."""
        found = self.facts, self.flags
        self.facts, self.flags, self.message = [], [], 0
        return found


class RecordedActor(SchedulerActor):
    """A SchedulerActor that writes a file."""

    def __init__(self, context: Context, file: RecordFile) -> None:
        self._file = file
        self._messages: list[ToScheduler] = []
        self._steps: list[Step] = []
        self._turns: list[tuple[int, int, list[ToScheduler], list[Step], tuple[Found, Flags], str, bool, bool]] = []
        self._idle = 0
        self._held = self._ends = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._recorded_table = RecordedTable(context.segment, context.system.table_offset)
        context.table = self._recorded_table
        before = _life_at_start(context)
        try:
            super().__init__(context)
        except Exception as error:
            self._begin(before, repr(error))
            raise
        self._begin(before)

    def _begin(self, before: RecordedLife, died: str = "") -> None:
        recorded_table = self._recorded_table
        uses = [
            RecordedSlot(ref, recorded_table.arrivals.get(ref, 0), recorded_table.finishes.get(ref, 0))
            for ref in recorded_table.uses
        ]
        recorded_table.has_started = True
        facts, flags = recorded_table.take()
        self._file.add(msgspec.structs.replace(before, uses=uses, facts=facts, flags=flags, died=died))
        self._file.write()

    def handle(self, message: ToScheduler) -> None:
        """Keep it before anything can go wrong with it."""
        self._recorded_table.message = len(self._messages)
        self._messages.append(message)
        try:
            super().handle(message)
        except BaseException as error:
            self._die(error)
            raise

    def _post_to_workers(self, message: Message) -> None:
        if isinstance(message, Step):
            self._steps.append(message)
        super()._post_to_workers(message)

    def _holds(self) -> bool:
        self._held = super()._holds()
        return self._held

    def _has_untold_ends(self) -> bool:
        self._ends = super()._has_untold_ends()
        return self._ends

    def do_work(self) -> int:
        """Keep the turn, if it was one."""
        at = time.monotonic_ns()
        try:
            done = super().do_work()
        except BaseException as error:
            self._die(error)
            raise
        if self._messages or self._steps or self._ends:
            self._end_turn(at)
        elif not self._held:
            self._idle += 1
        return done

    def _end_turn(self, at: int, died: str = "") -> None:
        read, held, ends = self._recorded_table.take(), self._held, self._ends
        self._turns.append((at, self._idle, self._messages, self._steps, read, died, held, ends))
        self._messages, self._steps, self._idle = [], [], 0

    def published(self) -> None:
        """The plans are on their way: now there is time to write."""
        super().published()
        self._write_turns()
        self._file.write_old()

    def _write_turns(self) -> None:
        for at, idle, messages, steps, (facts, flags), died, held, ends in self._turns:
            plans = [plan_of(self._encode, step) for step in steps]
            self._file.add(RecordedTurn(at, idle, messages, plans, facts, flags, died, held, ends))
        self._turns.clear()

    def _die(self, error: BaseException) -> None:
        """A fault of the scheduler's is in the file with what led to it; what has come from outside is not."""
        if isinstance(error, Exception):
            self._end_turn(time.monotonic_ns(), repr(error))
        self._write_turns()
        self._file.write()

    def close(self) -> None:
        """The end of this life."""
        self._write_turns()
        self._file.close()


def plan_of(encode: Callable[[Step], bytes], step: Step) -> RecordedPlan:
    """The step as it is kept; `encode` is msgpack's."""
    digest = blake2b(encode(step), digest_size=DIGEST_BYTES).digest()
    return RecordedPlan(step.step, digest, step.packed_rows, step.packed_counts)


def _life_at_start(context: Context) -> RecordedLife:
    """All that a scheduler finds besides the request table."""
    system, incarnation = context.system, context.incarnation
    start = system.kv_map_offsets[0]
    kv_map = bytes(context.segment.map[start : start + system.kv_map_bytes]) if incarnation > FIRST else b""
    return RecordedLife(
        at_ns=time.monotonic_ns(),
        wall_ns=time.time_ns(),
        version=actorserve.__version__,
        config=without_secrets(context.config),
        model=context.model,
        incarnation=incarnation,
        in_flight=context.status.in_flight,
        ended=context.board.ended(context.spec.position),
        kv_map=zlib.compress(kv_map, 1) if kv_map else b"",
        uses=[],
    )


def run_recorded(context: Context) -> None:
    """Run the scheduler until it is told to stop. A file that cannot be written is refused only at the start."""
    config = context.config
    assert config.record is not None
    first = context.incarnation == FIRST
    try:
        file = RecordFile(config.record, config.record_max_bytes, context.log, first)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if first:
            raise ConfigError(f"--record: {config.record} cannot be written: {reason}") from None
        context.log.error("--record: %s is not written any more: %s", config.record, reason)
        run(SchedulerActor(context), context)
        return
    actor = RecordedActor(context, file)
    run(actor, context)
    actor.close()
