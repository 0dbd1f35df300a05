"""The scheduler actor over several lives: what it makes of a worker's KV memory, and what it says of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.messages import Admit, Advance, Cancel, Finish, StepFailed, WorkerReady
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.step import Step, StepDone
from actorserve.actors.protocol.topics.administration import (
    CallWorkers,
    MethodCalled,
    PrefixCacheReset,
    ResetPrefixCache,
    Sleep,
    WakeUp,
    WorkersCalled,
)
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime import process
from actorserve.actors.runtime.in_flight import MOST_TRIES
from actorserve.actors.runtime.process import Context
from actorserve.actors.scheduler.actor import SchedulerActor
from actorserve.actors.scheduler.scheduler import Scheduler
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.telemetry.gauges import SchedulerGauge
from actorserve.actors.worker.methods import LONGEST
from actorserve.shm.weights import WeightsRecord

PROMPT = list(range(3, 43))
READY = WorkerReady(incarnation=5, num_blocks=32)


class Life:
    """One scheduler process; `steps` is what it sends to the worker, `advanced` what it tells detokenizers of."""

    def __init__(self, memory: Memory) -> None:
        self.context = Context(memory.boot(memory.system.by_name["scheduler"]))
        self.steps: list[Step] = []
        self.advanced: list[int] = []
        self.counted: list[tuple[int, int]] = []  # with each of these, ends and tokens that the board has
        self.answered: list[tuple[str, int]] = []
        self.called: list[WorkersCalled] = []
        self.actor = SchedulerActor(self.context)
        self.context.post = self._post  # type: ignore[method-assign]

    def _post(self, target: str, message: Any) -> None:
        if isinstance(message, Step):
            self.steps.append(message)
        elif isinstance(message, Advance):
            self.advanced += message.refs
            gauge, position = self.context.board.gauge, self.context.spec.position
            self.counted.append((gauge(position, SchedulerGauge.FINISHED), gauge(position, SchedulerGauge.GENERATED)))
        elif isinstance(message, WorkersCalled):
            self.called.append(message)
        elif isinstance(message, PrefixCacheReset):
            self.answered.append((target, message.call))

    def turn(self, *messages: Any) -> None:
        for message in messages:
            self.actor.handle(message)
        self.actor.do_work()
        self.actor.scheduler.check_integrity()


class Lives:
    """The lives of one scheduler, in whose middle a request is computed up to its first token."""

    def __init__(self, **options: Any) -> None:
        config = make_config({"max_num_seqs": 4, "max_model_len": 256, **options})
        self.memory = Memory(System(config, resolve_model(config)))
        self.now = Life(self.memory)
        self.ref = self.new(0)
        self.now.turn(READY, Admit([self.ref]))
        first = self.now.steps[0]
        self.now.turn(StepDone.make(first, [7], 0.0))

    def new(self, slot: int) -> int:
        """A request that is rendered."""
        table = self.now.context.table
        ref = table.open_slot(slot, msgspec.msgpack.encode(Generation(Sampling(seed=1), ignore_eos=True)), 1)
        table.write_prompt(ref, PROMPT, b"", 20)
        return ref

    def next(self) -> Life:
        """The scheduler is killed."""
        self.now.context.close()
        self.memory.raise_incarnation(self.memory.system.by_name["scheduler"])
        self.now = Life(self.memory)
        return self.now


@pytest.fixture
def lives(caplog: pytest.LogCaptureFixture) -> Iterator[Lives]:
    caplog.set_level("INFO")
    made = Lives()
    yield made
    made.now.context.close()
    made.memory.close()


def start_of(life: Life) -> int:
    """Where the first row of a life begins to compute."""
    (row,) = life.steps[0].new_rows
    return row.num_computed_tokens


def test_the_next_life_goes_on_in_the_same_worker(lives: Lives, caplog: pytest.LogCaptureFixture) -> None:
    assert start_of(lives.now) == 0
    board, position = lives.now.context.board, lives.now.context.spec.position
    planned = board.gauge(position, SchedulerGauge.PLANNED)
    assert planned == len(PROMPT) + len(lives.now.steps) - 1
    old = lives.now.steps[-1]
    life = lives.next()
    life.turn(READY)
    assert start_of(life) == len(PROMPT) and life.steps[0].epoch != old.epoch
    assert "1 requests go on, 40 of their 41 tokens of KV and 1 cached blocks are taken over" in caplog.text
    assert board.gauge(position, SchedulerGauge.PLANNED) - planned == len(life.steps) == 2, "one token in each step"
    life.turn(StepDone.make(old, [9], 0.0), READY)
    assert life.context.table.generated(lives.ref) == 1 and len(life.steps) == 2


def test_an_end_is_counted_before_anybody_is_told_of_it(lives: Lives) -> None:
    """With all of its tokens: a client that has its answer may ask for the counts at once."""
    life, end = lives.now, 20
    while life.context.table.finish(lives.ref) == 0:
        life.turn(StepDone.make(life.steps[life.context.table.generated(lives.ref)], [7], 0.0))
    assert life.counted[-1] == (1, end) and life.counted[-2][0] == 0


def test_it_begins_anew_with_another_worker(lives: Lives, caplog: pytest.LogCaptureFixture) -> None:
    life = lives.next()
    life.turn(WorkerReady(6, 32))
    assert start_of(life) == 0
    assert "1 requests go on, and all of their 41 tokens are computed again" in caplog.text
    again = lives.next()
    again.turn(WorkerReady(6, 32))
    assert "0 of their 41 tokens of KV" in caplog.text, "the step of the life before has not come back"


@pytest.mark.parametrize(("since", "computed"), [(5, len(PROMPT)), (4, len(PROMPT)), (6, 0), (0, 0)])
@pytest.mark.parametrize("dies", [False, True])
def test_a_worker_with_the_memory_of_the_one_before_goes_on_in_it(
    lives: Lives, since: int, computed: int, dies: bool
) -> None:
    """Also where the scheduler dies with it; not if the memory is not that of the life that the map is about."""
    life = lives.next() if dies else lives.now
    life.steps.clear()
    life.turn(WorkerReady(6, 32, kept_since=since))
    assert start_of(life) == computed
    life.turn(StepDone.make(life.steps[0], [8], 0.0))
    assert life.context.table.generated(lives.ref) == 2


def test_worker_and_detokenizer_are_told_before_all_else_is_done(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    life, actors = lives.now, lives.memory.system.by_name
    monkeypatch.delattr(life.context, "post")
    worker, detokenizer = (Context(lives.memory.boot(actors[name])) for name in ("worker", "detokenizer-0"))
    seen: list[tuple[list[Any], list[Any]]] = []

    def look() -> int:
        seen.append((received(worker), received(detokenizer)))
        return 0

    received(worker)  # the greeting
    monkeypatch.setattr(life.actor, "_turn_administration", look)
    try:
        life.turn(StepDone.make(life.steps[1], [8], 0.0))
        (steps, advances) = seen.pop()
        assert [type(step) for step in steps] == [Step] and advances == [Advance([lives.ref])]
        life.context.table.cancel(lives.ref)
        life.turn(Cancel([lives.ref]), StepDone.make(steps[0], [9], 0.0), StepDone.make(steps[0], [9], 0.0))
        assert not life.actor.scheduler.in_flight and seen.pop() == ([], [Advance([lives.ref])])
        other = life.context.table.open_slot(1, life.context.table.params(lives.ref), 1)
        life.context.table.write_prompt(other, PROMPT, b"", 1)
        life.turn(Admit([other]))
        steps, advances = seen.pop()
        assert [row.ref for step in steps for row in step.new_rows] == [other] and advances == []
        assert received(detokenizer) == [Advance([other])], "there is no text yet: it makes ready to read some"
        given = life.context.table.open_slot(2, life.context.table.params(lives.ref), 1)
        life.context.table.write_prompt(given, PROMPT, b"", 20, given=[7, 8])
        life.turn(Admit([given]), StepDone.make(steps[0], [9], 0.0))
        steps, advances = seen.pop()
        assert [row.ref for step in steps for row in step.new_rows] == [given] and advances == []
        assert received(detokenizer) == [Advance([other])], "what another server gave out is told with what follows"
    finally:
        worker.close()
        detokenizer.close()


def test_many_that_moved_are_told_of_in_several_messages(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_REFS", 2)
    told: list[Any] = []
    monkeypatch.setattr(lives.now.context, "post", lambda target, message: told.append(message))
    lives.now.actor.scheduler.lifecycle.take_moved()
    lives.now.actor.scheduler.lifecycle.have_moved(range(5))
    lives.now.actor._post_moved()
    lives.now.context.post_to_owners(Admit, [7, 8, 9])
    assert told == [Advance([0, 1]), Advance([2, 3]), Advance([4]), Admit([7, 8]), Admit([9])]


def received(context: Context) -> list[Any]:
    """What has come for another actor."""
    messages: list[Any] = []
    context.inbox.drain(messages.append)
    context.inbox.commit()
    return messages


def test_an_end_that_was_not_told_is_told_by_the_next_life(lives: Lives) -> None:
    """Else a client waits for it for ever."""
    old = lives.now
    old.context.table.cancel(lives.ref)
    old.actor.handle(Cancel([lives.ref]))
    assert old.context.table.finish(lives.ref), "it has ended, and the scheduler dies before it can say so"
    for _ in range(2):
        life = lives.next()
        life.turn()
        assert life.advanced == [lives.ref], "what was posted may not have been published"
    life.actor.published()
    silent = lives.next()
    silent.turn(READY)
    assert silent.advanced == [] and silent.steps == []


@pytest.mark.parametrize("met", [True, False], ids=["with its worker", "before it met its worker"])
def test_the_prefix_cache_is_reset(met: bool, lives: Lives, caplog: pytest.LogCaptureFixture) -> None:
    life = lives.now if met else lives.next()
    board, position = life.context.board, life.context.spec.position
    life.turn(ResetPrefixCache(3), ResetPrefixCache(4))
    assert life.answered == [("frontend-0", 3), ("frontend-0", 4)], "to whom the upper half of the number says"
    assert (
        "the prefix cache was reset: 1 blocks dropped, 1 requests go on" in caplog.text
        and "0 blocks dropped" in caplog.text
    )
    assert board.gauge(position, SchedulerGauge.PREFIX_RESETS) == 2
    successor = lives.next()
    successor.turn(READY)
    assert start_of(successor) == len(PROMPT) and successor.actor.scheduler.kv.cached() == {}
    assert board.gauge(position, SchedulerGauge.PREFIX_RESETS) == 2


def test_a_reset_that_computes_running_requests_again(lives: Lives, caplog: pytest.LogCaptureFixture) -> None:
    lives.now.turn(ResetPrefixCache(1, reset_running_requests=True))
    assert "1 requests are computed again" in caplog.text and not len(lives.now.actor.scheduler.batch)
    life = lives.next()
    life.turn(READY)
    assert start_of(life) == 0


def test_a_failed_step_that_nobody_heard_of(lives: Lives) -> None:
    step = lives.now.steps[-1]
    life = lives.next()
    life.turn(StepFailed(step.epoch, step.step, "no memory"), READY)
    assert start_of(life) == 0


def test_a_late_failure_of_an_earlier_life_is_nothing(lives: Lives) -> None:
    step = lives.now.steps[-1]
    lives.next().turn(READY, StepFailed(step.epoch, step.step, "no memory"))
    life = lives.next()
    life.turn(READY)
    assert start_of(life) == len(PROMPT)


def test_a_failed_step_is_not_taken_over(lives: Lives) -> None:
    step = lives.now.steps[-1]
    lives.now.turn(StepFailed(step.epoch, step.step, "no memory"))
    life = lives.next()
    life.turn(READY)
    assert start_of(life) == 0


def test_a_map_that_cannot_be_is_named_in_the_log(lives: Lives, caplog: pytest.LogCaptureFixture) -> None:
    life = lives.next()
    life.actor.scheduler.kv.grow(lives.ref, 1, 1 << 20)
    life.turn(READY)
    assert start_of(life) == 0
    assert "the KV map is not to be trusted: the table of slot 0 names" in caplog.text
    assert "all of their 41 tokens are computed again" in caplog.text


def test_the_worker_is_replaced_in_the_middle_of_a_life(lives: Lives, caplog: pytest.LogCaptureFixture) -> None:
    lives.now.steps.clear()
    lives.now.turn(WorkerReady(6, 32))
    assert start_of(lives.now) == 0 and "the worker was replaced: 1 requests" in caplog.text


def test_a_request_that_kills_schedulers_is_given_up(monkeypatch: pytest.MonkeyPatch, lives: Lives) -> None:
    table = lives.now.context.table
    deadly = table.open_slot(1, msgspec.msgpack.encode(Generation(Sampling(seed=1), request_id="it")), 2)
    table.write_prompt(deadly, PROMPT, b"", 20)
    admit = Scheduler.admit
    deaths = []

    def dies(scheduler: Scheduler, ref: int) -> None:
        if ref == deadly:
            deaths.append(ref)
            raise MemoryError("as if it were killed")
        admit(scheduler, ref)

    monkeypatch.setattr(Scheduler, "admit", dies)
    with pytest.raises(MemoryError):
        lives.now.turn(Admit([deadly]))
    for _ in range(MOST_TRIES - 1):
        assert not table.finish(deadly)
        with pytest.raises(MemoryError):
            lives.next()
        lives.now.context.close()
    lives.next().turn(READY)
    assert len(deaths) == MOST_TRIES and table.finish(deadly) == Finish.ERROR and deadly in lives.now.advanced
    assert not table.finish(lives.ref) and lives.ref in lives.now.actor.scheduler.sequences
    assert lives.now.context.board.given_up(lives.now.context.spec.position) == 1


def test_weights_that_are_said_again_leave_those_before(lives: Lives) -> None:
    """Else a folder that cannot be loaded would be taken back for itself, for ever."""
    record = WeightsRecord(lives.memory.files["weights"], 0)
    asked = Sleep(7, 1, "keep", False, 60, "/models/new")
    lives.now.turn(asked)
    lives.next().turn(asked)
    assert record.read() == (1, "/models/new") and record.before() == ""


def test_what_sleeps_has_nothing_cached(lives: Lives) -> None:
    """Nor has it for those who are told of blocks."""
    assert lives.now.actor.scheduler.kv.cached()
    lives.now.turn(Sleep(7, 1, "keep"))
    assert not lives.now.actor.scheduler.kv.cached()
    life = lives.next()
    life.turn(WakeUp(8, 3), READY)
    assert start_of(life) == 0


def test_answers_of_many_workers_that_are_too_long_together_are_no_message() -> None:
    """Each may be long; what is longer than its lane would end the scheduler."""
    config = make_config({"max_num_seqs": 4, "max_model_len": 256, "pipeline_parallel_size": 10, "device": "cpu"})
    memory = Memory(System(config, resolve_model(config)))
    life = Life(memory)
    for call, length in ((1, 100), (2, LONGEST)):
        life.turn(CallWorkers(call, "what", b"{}"))
        life.turn(*(MethodCalled(call, rank, b"1" * length) for rank in range(10)))
    short, long = life.called
    assert len(short.results) == 10 and not short.problem
    assert not long.results and long.problem.startswith("method: the answers of 10 workers have")
    life.context.close()
    memory.close()
