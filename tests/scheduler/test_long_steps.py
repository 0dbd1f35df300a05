"""A step is one message, whatever it tells of: the longest rows cross the lane of a scheduler and its worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.block_hash import extend_hashes
from actorserve.actors.protocol.messages import Admit, WorkerReady
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.step import (
    MOST_NEW_BLOCKS,
    MOST_NEW_BYTES,
    KVLayout,
    NewRow,
    Step,
    StepDone,
    longest_answer,
    longest_step,
)
from actorserve.actors.protocol.topology import PARAMS_BYTES, System
from actorserve.actors.protocol.wire import pack
from actorserve.actors.runtime.process import Context
from actorserve.actors.scheduler.actor import SchedulerActor
from actorserve.actors.scheduler.memory import allocation
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.shm.rings.mailbox import LIST_BYTES

from .engine_model import Bench, expected_answer, prompt_of

ROWS, LENGTH, BLOCK = 64, 1 << 15, 8
LONGEST = Sampling(
    1,
    allowed_token_ids=list(range(1 << 16, (1 << 16) + 4096)),
    logit_bias=[(token, 1.5) for token in range(1 << 16, (1 << 16) + 800)],
)


class Lane:
    """Lives of a scheduler on real rings, and the worker's end of its lane."""

    def __init__(self) -> None:
        given: dict[str, object] = {"max_num_seqs": ROWS, "block_size": BLOCK, "max_num_queued_reqs": ROWS}
        config = make_config(given)
        self.memory = Memory(System(config, msgspec.structs.replace(resolve_model(config), max_model_len=LENGTH)))
        self.worker = Context(self.memory.boot(self.memory.system.by_name["worker"]))
        self.begin()

    def begin(self) -> None:
        """A scheduler, in the same worker."""
        self.context = Context(self.memory.boot(self.memory.system.by_name["scheduler"]))
        self.actor = SchedulerActor(self.context)
        self.turn(WorkerReady(incarnation=5, num_blocks=4 * LENGTH // BLOCK))

    def die(self) -> None:
        self.context.close()
        self._received()
        self.memory.raise_incarnation(self.memory.system.by_name["scheduler"])

    def open(self, prompt: list[int], sampling: Sampling) -> list[int]:
        """Slots as frontend and renderer leave them."""
        table, tokens = self.context.table, pack(prompt)
        params = msgspec.msgpack.encode(Generation(sampling, ignore_eos=True))
        refs = [table.open_slot(slot, params, slot + 1) for slot in range(ROWS)]
        for ref in refs:
            table.write_prompt(ref, tokens, extend_hashes(b"", tokens, BLOCK, 0, []), 100)
        return refs

    def turn(self, *messages: Any) -> None:
        for message in messages:
            self.actor.handle(message)
        self.actor.do_work()
        assert self.context.flush()
        self.actor.published()

    def told(self, count: int) -> list[int]:
        """The refs of so many new rows, in the steps that come."""
        refs: list[int] = []
        while len(refs) < count:
            refs += self.compute()
        return refs

    def compute(self) -> list[int]:
        """The worker draws a token for each row of its steps that has one; refs of their new rows."""
        steps = [message for message in self._received() if isinstance(message, Step)]
        assert steps, "there is no step"
        assert all(sum(new.size for new in step.new_rows[:-1]) < MOST_NEW_BYTES for step in steps)
        drawn = zip(steps, self.actor.scheduler.in_flight, strict=True)
        self.turn(*[StepDone.make(step, [7] * int(one.samples.sum()), 0.0) for step, one in drawn])
        return [new.ref for step in steps for new in step.new_rows]

    def _received(self) -> list[Any]:
        messages: list[Any] = []
        while self.worker.inbox.drain(messages.append):  # of one lane a bounded amount at a time
            self.worker.inbox.commit()
        return messages

    def close(self) -> None:
        for context in (self.context, self.worker):
            context.close()
        self.memory.close()


@pytest.fixture
def lane() -> Iterator[Lane]:
    made = Lane()
    yield made
    made.close()


def test_the_longest_rows_begin_and_are_taken_over(lane: Lane) -> None:
    """64 of them are told of in more steps than one: all that begin at once, and all that a successor finds."""
    refs = lane.open([65], LONGEST)
    assert 0.95 * PARAMS_BYTES < len(lane.context.table.params(refs[0]))
    lane.turn(Admit(refs))
    assert sorted(lane.told(ROWS)) == sorted(refs)
    lane.die()
    lane.begin()
    assert sorted(lane.told(ROWS)) == sorted(refs) and not any(map(lane.context.table.finish, refs))


def test_block_tables_are_counted(lane: Lane) -> None:
    """64 rows that begin at once, each behind a long prefix that is cached."""
    refs = lane.open(prompt_of(LENGTH - 200), Sampling(1))
    lane.turn(Admit(refs[:1]))
    while not lane.context.table.generated(refs[0]):
        lane.compute()
    lane.turn(Admit(refs[1:]))
    assert sorted(lane.told(ROWS - 1)) == sorted(refs[1:])
    assert min(map(lane.context.table.cached, refs[1:])) > LENGTH - 300


@pytest.mark.parametrize("blocks", [1, 1 << 20])
def test_a_lane_takes_the_longest_step(blocks: int) -> None:
    """Also where one row alone is longer than what a step tells of: the longest sequences, the smallest blocks."""
    config = make_config({"block_size": BLOCK, "max_model_len": 256})
    system = System(config, msgspec.structs.replace(resolve_model(config), max_model_len=blocks * BLOCK))
    (lane,) = (lane for lane in system.lanes if (lane.source, lane.target) == ("scheduler", "worker"))
    row = NewRow.make(63, 1 << 63, 1 << 31, 1 << 31, 1 << 31, range(blocks), LONGEST, 1 << 20, 1 << 40)
    added = [(63, 1, 1)] * (MOST_NEW_BLOCKS + blocks)
    rows = range(config.max_num_seqs)
    told = Step.make(
        1 << 63, 1 << 63, [row, row], rows, rows, added, 0.5, [(63, 1)] * len(rows), [(63, 1, 1)] * len(rows)
    )
    answer = StepDone.make(
        told, range(33 * len(rows)), 0.1, failed_rows=rows, num_drawn=[33] * len(rows), num_drafted=[33] * len(rows)
    )
    assert len(msgspec.msgpack.encode(answer)) <= longest_answer(len(rows))
    longest = longest_step(config.max_num_seqs, blocks, PARAMS_BYTES)
    assert len(msgspec.msgpack.encode(told)) + MOST_NEW_BYTES <= longest < lane.capacity // 2 - LIST_BYTES


@pytest.mark.parametrize(("tables", "told"), [(0, 4), (2, 4), (0, 1), (2, 1)])
def test_blocks_that_rows_get_are_told_of_over_several_steps(
    tables: int, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all rows need some at once; also fewer than one row needs."""
    monkeypatch.setattr(allocation, "MOST_NEW_BLOCKS", told)
    layout = KVLayout(window=16, window_tables=2) if tables else KVLayout()
    bench = Bench(layout=layout, num_blocks=200, drafts=8, max_num_batched_tokens=200)
    bench.scheduler.speculation.num_draft_tokens = lambda rows: 2  # type: ignore[method-assign]
    prompts = [prompt_of(20, seed) for seed in range(8)]
    refs = [bench.submit(prompt, 60, ignore_eos=True) for prompt in prompts]
    most = 0
    while bench.scheduler.sequences:
        while bench.plan():
            step = bench.planned[-1]
            most = max(most, 0 if step.new_rows else len(step.new_blocks))
        bench.work()
    assert 1 <= most <= told + 3 * tables, "each prompt has three blocks"
    assert [bench.answer(ref) for ref in refs] == [expected_answer(prompt, 60, ignore_eos=True) for prompt in prompts]
