"""The real scheduler once more, on what a recording has: same start, same messages, same turns, and the same plans?

Each section of the file is the life of one scheduler. It gets a private segment with a table, a KV map and a board as
that life found them; before a message is handled the table is brought to what was read then. Steps go nowhere, and the
worker's answers come from the file. Nothing here decides anything: what differs differs in the scheduler.
"""

from __future__ import annotations

import logging
import os
import pdb
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from actorserve.shm.board.board import Board, BoardWriter
from actorserve.shm.segment import Segment
from actorserve.shm.table.layout import CANCEL, FINISH, GENERATION, STOP
from actorserve.shm.table.table import RequestTable, generation_of, slot_of
from actorserve.shm.weights import WeightsRecord

from ...protocol.kinds import SUPERVISOR
from ...protocol.messages import Advance, Message
from ...protocol.step import Step, StepDone
from ...protocol.topology import System
from ...runtime.process import Boot, Context
from ...telemetry.gauges import SCHEDULER_KEPT
from ..actor import SchedulerActor
from .file import Flags, Found, Record, RecordedLife, RecordedPlan, RecordedSequence, RecordedTurn
from .recorder import plan_of
from .summary import ReplayStatistics

NAME = "scheduler"


class Difference(Exception):
    """A plan is not the recorded one; the message says which and how."""


def describe_plan(plan: RecordedPlan | None) -> str:
    """Rows with their counts, as people read them."""
    if plan is None:
        return "none"
    rows, counts = plan.rows.tolist(), plan.counts.tolist()
    pairs = ", ".join(f"{row}: {count}" for row, count in zip(rows, counts, strict=True))
    return f"step {plan.step}, {sum(counts)} tokens, rows {{{pairs}}}"


def private_segment(size: int) -> Segment:
    """Zeroed memory that takes room only where it is written."""
    fd = os.memfd_create("actorserve-replay", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return Segment.attach(fd)


class PrivateMemory:
    """What a scheduler finds at its start."""

    def __init__(self, head: RecordedLife) -> None:
        system = System(head.config, head.model)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._weights = WeightsRecord.create(1)  # those of the model that was served at first
        self._segment = segment = private_segment(system.size)
        self._fill(segment, system, head)
        boot = Boot(
            name=NAME,
            incarnation=head.incarnation,
            supervisor_pid=os.getpid(),
            config=head.config,
            model=head.model,
            segment_fd=segment.fd,
            files={"weights": self._weights},
            eventfds=dict.fromkeys([*system.by_name, SUPERVISOR], self._wake),
        )
        self.context = Context(boot)
        self.context.log = logging.getLogger(f"{__name__}.{NAME}")
        self.table = self.context.table
        for use in head.uses:
            self._open(use.ref, b"", use.arrival_ns)
            self._set(use.ref, FINISH, use.finish)

    def _fill(self, segment: Segment, system: System, head: RecordedLife) -> None:
        position = system.by_name[NAME].position
        board = Board(segment, system.board_offset, system.board_blocks)
        board.set_incarnation(position, head.incarnation)
        board.set_ended(position, head.ended)
        BoardWriter(board, position, head.incarnation, SCHEDULER_KEPT).set_in_flight(*head.in_flight)
        RequestTable.create(segment, system.table_offset, *system.table_sizes)
        if head.kv_map:
            kv_map = zlib.decompress(head.kv_map)
            segment.map[system.kv_map_offsets[0] : system.kv_map_offsets[0] + len(kv_map)] = kv_map

    def restore(self, facts: Found, flags: Flags, message: int) -> None:
        """Bring the table to what was read while this message was handled."""
        for number, fact in facts:
            if number == message:
                self._write(fact)
        for number, flag in flags:
            if number == message:
                self._set(flag.ref, STOP if flag.stop else CANCEL, flag.stop or 1)

    def _write(self, fact: RecordedSequence) -> None:
        self._open(fact.ref, fact.params, fact.arrival_ns)
        self.table.write_prompt(fact.ref, fact.packed_prompt, fact.hashes, fact.limit)
        if len(fact.generated):
            self.table.append(fact.ref, fact.generated.tolist())

    def _open(self, ref: int, params: bytes, arrival_ns: int) -> None:
        words = self.table.segment.words
        words[self.table.control_word(slot_of(ref)) + GENERATION] = generation_of(ref) - 1
        opened = self.table.open_slot(slot_of(ref), params, arrival_ns)
        assert opened == ref

    def _set(self, ref: int, word: int, value: int) -> None:
        words = self.table.segment.words
        words[self.table.control_word(slot_of(ref)) + word] = generation_of(ref) << 32 | value

    def close(self) -> None:
        self.context.close()
        self._segment.close()
        os.close(self._wake)
        os.close(self._weights)


class ReplayedActor(SchedulerActor):
    """Its posts stay here."""

    def __init__(self, context: Context, statistics: ReplayStatistics) -> None:
        self.steps: list[Step] = []
        self.most: int | None = None  # plans of this turn, after which it did not ask for another one
        self.ends = False  # in this turn those are told that wait for steps
        self.statistics = statistics
        context.post = self._keep  # type: ignore[method-assign]
        super().__init__(context)

    def _keep(self, target: str, message: Message) -> None:
        if isinstance(message, Advance):
            for ref in message.refs:
                self.statistics.advanced(ref, self.context.table)

    def _holds(self) -> bool:
        return len(self.steps) == self.most

    def _has_untold_ends(self) -> bool:
        return self.ends

    def _post_to_workers(self, message: Message) -> None:
        if isinstance(message, Step):
            self.steps.append(message)


@dataclass
class ReplayOptions:
    """What the replay shall do beside replaying. Plans are counted over the whole file, from 1."""

    until: int | None = None
    stop_at: int | None = None  # begin a debugger before this plan
    on_plan: Callable[[int, RecordedPlan], None] | None = None


class Replay:
    """All sections of a file. `plans` counts those that were equal."""

    def __init__(self, options: ReplayOptions | None = None) -> None:
        self.options = options or ReplayOptions()
        self.statistics = ReplayStatistics()
        self.sections = self.turns = self.plans = 0
        self.deaths: list[str] = []  # of schedulers by exceptions, which came again
        self.head: RecordedLife | None = None  # of the last section
        self.blocks = 0  # of the last worker
        self._encode = msgspec.msgpack.Encoder().encode
        self._memory: PrivateMemory | None = None
        self._actor: ReplayedActor | None = None

    def run(self, records: Iterable[Record]) -> None:
        """Difference at the first plan that is another one."""
        try:
            for record in records:
                if self.options.until is not None and self.plans >= self.options.until:
                    break
                if isinstance(record, RecordedLife):
                    self._end_section()
                    self._begin(record)
                else:
                    self._turn(record)
            self._end_section()
        finally:
            self._close()

    def _begin(self, head: RecordedLife) -> None:
        self.sections += 1
        self.head = head
        self._memory = PrivateMemory(head)
        self.statistics.begin(head.at_ns)
        self._memory.restore(head.facts, head.flags, 0)
        for _, fact in head.facts:
            self.statistics.admitted(fact)
        try:
            self._actor = ReplayedActor(self._memory.context, self.statistics)
        except Exception as error:
            self._check_death(head.died, error)
        else:
            self._check_death(head.died)

    def _turn(self, turn: RecordedTurn) -> None:
        actor, memory = self._actor, self._memory
        if actor is None or memory is None:
            raise ValueError("a turn stands before the start of its scheduler")
        self.turns += 1
        self.statistics.now = turn.at_ns
        if (stop_at := self.options.stop_at) is not None and self.plans < stop_at <= self.plans + len(turn.plans):
            pdb.set_trace()  # `actor` and `turn` are at hand
        actor.steps.clear()
        try:
            self._act(actor, memory, turn)
        except Exception as error:
            self._check_plans(actor, turn)
            self._check_death(turn.died, error)
            self._actor = None
        else:
            self._check_plans(actor, turn)
            self._check_death(turn.died)
        self.statistics.preempted(actor.scheduler)
        self.blocks = actor.scheduler.pool.count or self.blocks

    def _act(self, actor: ReplayedActor, memory: PrivateMemory, turn: RecordedTurn) -> None:
        actor.most, actor.ends = None, False
        for _ in range(turn.idle):
            actor.do_work()
            actor.published()
        for number, message in enumerate(turn.messages):
            memory.restore(turn.facts, turn.flags, number)
            for at, fact in turn.facts:
                if at == number:
                    self.statistics.admitted(fact)
            if isinstance(message, StepDone):
                self.statistics.came_back(message, actor.scheduler)
            actor.handle(message)
        actor.most, actor.ends = len(turn.plans) if turn.held else None, turn.ends
        actor.do_work()
        actor.published()

    def _check_plans(self, actor: ReplayedActor, turn: RecordedTurn) -> None:
        for number in range(max(len(actor.steps), len(turn.plans))):
            step = actor.steps[number] if number < len(actor.steps) else None
            recorded = turn.plans[number] if number < len(turn.plans) else None
            made = None if step is None else plan_of(self._encode, step)
            if step is None or made is None or made != recorded:
                raise Difference(self._difference(made, recorded, step))
            self.plans += 1
            self.statistics.planned(step, actor.scheduler)
            if self.options.on_plan is not None:
                self.options.on_plan(self.plans, made)

    def _difference(self, made: RecordedPlan | None, recorded: RecordedPlan | None, step: Step | None) -> str:
        where = f"plan {self.plans + 1} (section {self.sections}, turn {self.turns})"
        lines = [f"{where} is not the recorded one", f"  recorded: {describe_plan(recorded)}"]
        lines.append(f"  now:      {describe_plan(made)}")
        if step and made and recorded and msgspec.structs.replace(made, digest=recorded.digest) == recorded:
            lines.append(f"  the same rows and counts, but not the same blocks or new rows: {step.new_rows}")
        return "\n".join(lines)

    def _check_death(self, recorded: str, error: Exception | None = None) -> None:
        now = "" if error is None else repr(error)
        if now == recorded:
            if now:
                self.deaths.append(now)
            return
        where = f"turn {self.turns} of section {self.sections}"
        raise Difference(f"{where}: recorded: {recorded or 'no error'}; now: {now or 'no error'}") from error

    def _end_section(self) -> None:
        if self._memory is not None:
            self.statistics.end(self._memory.table)
        self._close()

    def _close(self) -> None:
        if self._memory is not None:
            self._memory.close()
        self._memory = self._actor = None
