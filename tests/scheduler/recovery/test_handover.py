"""Sequences change their engine: two schedulers over one request table, of which each may die at any store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from actorserve.actors.engines.loads import EngineLoads
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.messages import Admit, Cancel, Finish, Hello, Stopped, WorkerReady
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.step import Step, StepDone
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.in_flight import Ended
from actorserve.actors.runtime.process import Context
from actorserve.actors.scheduler.actor import SchedulerActor
from actorserve.actors.scheduler.recovery import handover, patience
from actorserve.actors.scheduler.recovery.suspects import DEATHS_BEFORE_TRIAL
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.telemetry.gauges import SchedulerGauge
from actorserve.actors.telemetry.startup import StartPhase
from actorserve.shm.board.board import ActorState, BoardWriter, Parked
from actorserve.shm.board.startup import PhaseWriter

PROMPT = list(range(3, 43))
TOKEN = 7


class Died(BaseException):
    """A kill -9 at this line."""


class Engine:
    """One scheduler process, and its worker, which this test plays."""

    def __init__(self, servers: Servers, number: int) -> None:
        self.servers, self.number = servers, number
        self.name = f"scheduler@{number}"
        self.steps: list[Step] = []
        self.greeted = 0  # how often its worker was asked whether it is there
        self.worker = servers.system.workers_of(number)[0]
        self.start(first=True)
        self.begin_worker()

    def start(self, first: bool = False) -> None:
        """A life of the scheduler, after the one before; what its constructor posts is posted as all the rest."""
        memory = self.servers.memory
        if not first:
            self.context.close()
        memory.raise_incarnation(memory.system.by_name[self.name])
        self.context: Context = Context(memory.boot(memory.system.by_name[self.name]))
        self.context.post = self._post  # type: ignore[method-assign]
        self.steps.clear()
        self.actor = SchedulerActor(self.context)
        self.context.set_state(ActorState.READY)

    def begin_worker(self) -> None:
        self.life = BoardWriter(self.servers.memory.board, self.worker.position)
        self.life.set_state(ActorState.READY)

    def meet(self, start_s: float = 0.0) -> None:
        """The worker says that it is there; after how long, if its memory is kept."""
        board = self.servers.memory.board
        incarnation = board.incarnation(self.worker.position)
        if start_s:
            began = board.snapshot(self.worker.position).started_ns
            phases = PhaseWriter(self.context.segment, self.servers.system.phase_offsets[self.worker.name], began)
            phases.end(StartPhase.BIRTH, began + 10**10)
            phases.end(StartPhase.WEIGHTS, began + 10**10 + int(start_s * 1e9))
        self.turn(WorkerReady(incarnation, self.servers.blocks, kept_since=int(start_s > 0)))

    def kill_worker(self, how: Ended = Ended.DIED) -> None:
        self.servers.memory.raise_incarnation(self.worker, how)
        self.steps.clear()

    def park(self, why: Parked = Parked.SCALE) -> None:
        """As the supervisor does it before it ends the worker; NO: it is wanted again."""
        self.servers.memory.park(self.worker, why)

    def _post(self, target: str, message: Any) -> None:
        if isinstance(message, Step):
            self.steps.append(message)
        elif isinstance(message, Hello):
            self.greeted += 1
        elif target in self.servers.lanes:
            self.servers.lanes[target].append(message)

    def turn(self, *messages: Any) -> None:
        for message in messages:
            self.actor.handle(message)
        self.actor.do_work()
        self.actor.scheduler.check_integrity()

    def compute(self, count: int = 4) -> None:
        """The worker does so many steps of what it is given."""
        for _ in range(count):
            self.turn(self.answer(self.steps.pop(0)))

    def answer(self, step: Step) -> StepDone:
        planned = next(one for one in self.actor.scheduler.in_flight)
        return StepDone.make(step, [TOKEN] * len(planned.samples), 0.01)

    @property
    def refs(self) -> set[int]:
        return set(self.actor.scheduler.sequences)


class Servers:
    """Two engines; what their schedulers post to each other waits in `lanes` until `deliver`."""

    def __init__(self, blocks: int = 64, rows: int = 4, queued: int = 8) -> None:
        given = {"max_num_seqs": rows, "max_model_len": 256, "data_parallel_size": 2, "max_num_queued_reqs": queued}
        config = make_config({**given, "debug": True})
        self.blocks = blocks
        self.system = System(config, resolve_model(config))
        self.memory = Memory(self.system)
        self.lanes: dict[str, list[Any]] = {name: [] for name in self.system.schedulers}
        self.engines = [Engine(self, number) for number in self.system.engines]
        for engine in self.engines:
            engine.meet()
        self.table = self.engines[0].context.table
        self._next = 0

    def submit(self, engine: int, limit: int = 30, pinned: bool = False) -> int:
        """A prompt that the renderer has given to this engine."""
        params = msgspec.msgpack.encode(Generation(Sampling(seed=1), ignore_eos=True))
        ref = self.table.open_slot(self._next, params, self._next + 1)
        self._next += 1
        self.table.write_prompt(ref, PROMPT, b"", limit, engine=engine, pinned=pinned)
        self.engines[engine].turn(Admit([ref]))
        return ref

    def deliver(self) -> int:
        """All that was posted from one scheduler to the other."""
        count = 0
        for engine in self.engines:
            messages, self.lanes[engine.name] = self.lanes[engine.name], []
            engine.turn(*messages)
            count += len(messages)
        return count

    def check(self, *refs: int) -> None:
        """Each of these is in exactly one scheduler, that of the engine which its word names."""
        for ref in refs:
            owners = [engine.number for engine in self.engines if ref in engine.refs]
            assert owners == [self.table.engine(ref)]

    def close(self) -> None:
        for engine in self.engines:
            engine.context.close()
        self.memory.close()


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


def test_who_has_lost_its_worker_gives_all_away_and_logs_go_on(servers: Servers) -> None:
    first, second = servers.engines
    refs = [servers.submit(0) for _ in range(3)]
    first.compute()
    before = [servers.table.generated(ref) for ref in refs]
    assert min(before) > 0
    first.kill_worker()
    first.turn()
    assert not first.refs and [servers.table.engine(ref) for ref in refs] == [1, 1, 1]
    servers.deliver()
    servers.check(*refs)
    second.compute()
    assert all(servers.table.generated(ref) > count for ref, count in zip(refs, before, strict=True))
    first.begin_worker()
    first.meet()
    assert not first.refs and not first.steps
    assert first.actor.scheduler.stats.survived_worker == 3 and not second.actor.scheduler.stats.survived_scheduler


def test_what_the_dead_worker_has_said_counts_no_more(servers: Servers) -> None:
    first = servers.engines[0]
    ref = servers.submit(0)
    late = first.answer(first.steps[0])
    first.kill_worker()
    first.turn()
    first.turn(late)
    assert not servers.table.generated(ref) and not first.refs


def test_without_another_engine_they_wait_for_the_first_that_is_up(servers: Servers) -> None:
    first, second = servers.engines
    ref = servers.submit(0)
    for engine in (second, first):
        engine.kill_worker()
        engine.turn()
    assert first.refs == {ref} and not first.steps
    second.begin_worker()
    second.meet()
    first.turn()
    servers.deliver()
    servers.check(ref)
    assert second.refs == {ref} and second.steps


@pytest.mark.parametrize("stored", [False, True])
def test_a_death_before_and_behind_the_engine_word(servers: Servers, stored: bool) -> None:
    """Before it the successor owns the slot still, behind it the successor says what was not said."""
    first, second = servers.engines
    refs = [servers.submit(0) for _ in range(2)]
    first.compute()
    first.kill_worker()
    move = first.context.table.move

    def dies(ref: int, engine: int, deaths: int = 0) -> None:
        if stored:
            move(ref, engine, deaths)
        raise Died

    first.context.table.move = dies  # type: ignore[method-assign]
    with pytest.raises(Died):
        first.turn()
    assert not servers.lanes["scheduler@1"]
    first.start()
    assert refs[0] not in first.refs if stored else refs[0] in first.refs
    first.turn()
    servers.deliver()
    servers.check(*refs)
    assert second.refs == set(refs)
    servers.lanes["scheduler@1"].append(Admit(refs))  # it may come twice
    servers.deliver()
    servers.check(*refs)


def test_a_receiver_that_dies_before_it_has_heard_finds_the_word(servers: Servers) -> None:
    first, second = servers.engines
    ref = servers.submit(0)
    first.kill_worker()
    first.turn()
    second.start()
    assert second.refs == {ref}
    servers.deliver()
    servers.check(ref)


@pytest.mark.parametrize(("make", "finish"), [(Cancel, Finish.ABORT), (Stopped, Finish.STOP_STRING)])
@pytest.mark.parametrize("late", [False, True])
def test_what_comes_to_the_wrong_engine_goes_on_to_the_owner(
    servers: Servers, make: Any, finish: Finish, late: bool
) -> None:
    """Before its Admit, or behind it."""
    first = servers.engines[0]
    ref = servers.submit(0)
    first.kill_worker()
    first.turn()
    if late:
        servers.deliver()
    if make is Cancel:
        servers.table.cancel(ref)
    else:
        servers.table.set_stop(ref, 1)
    first.turn(make([ref]))
    if not late:
        servers.lanes["scheduler@1"].reverse()
    servers.deliver()
    assert servers.table.finish(ref) == finish and not any(engine.refs for engine in servers.engines)
    first.turn(make([ref]))
    assert not servers.deliver(), "of one that has ended nobody is told"


def test_a_full_engine_rejects_none_that_another_has_taken() -> None:
    servers = Servers(blocks=16, rows=1, queued=0)
    try:
        first, second = servers.engines
        refs = [servers.submit(0), servers.submit(1)]
        first.kill_worker()
        first.turn()
        servers.deliver()
        servers.check(*refs)
        assert not any(servers.table.finish(ref) for ref in refs) and second.refs == set(refs)
        assert servers.table.finish(servers.submit(1)) == Finish.REJECTED
    finally:
        servers.close()


def test_a_suspicion_goes_along(servers: Servers) -> None:
    """The third worker that dies on a sequence convicts it, whosever that was; its neighbour goes on."""
    deadly, neighbour = servers.submit(0), servers.submit(1)
    for deaths in range(1, DEATHS_BEFORE_TRIAL + 2):
        engine = next(one for one in servers.engines if deadly in one.refs)
        engine.compute(2)  # it is part of the oldest step
        engine.kill_worker()
        engine.turn()
        servers.deliver()
        if deaths <= DEATHS_BEFORE_TRIAL:
            owner = next(one for one in servers.engines if deadly in one.refs)
            assert owner is not engine and owner.actor.scheduler.suspects.deaths(deadly) == deaths
        engine.begin_worker()
        engine.meet()
    assert servers.table.finish(deadly) == Finish.ERROR
    assert not servers.table.finish(neighbour)


@pytest.mark.parametrize("how", [Ended.REPLACED, Ended.OUTSIDE])
def test_a_worker_that_was_replaced_or_killed_by_somebody_blames_nobody(servers: Servers, how: Ended) -> None:
    first, second = servers.engines
    ref = servers.submit(0)
    first.kill_worker(how)
    first.turn()
    servers.deliver()
    assert second.refs == {ref} and not second.actor.scheduler.suspects


def test_loads_are_those_of_the_board(servers: Servers) -> None:
    first = servers.engines[0]
    servers.submit(0)
    loads = EngineLoads(servers.memory.board, servers.system)
    assert [loads.is_up(engine) for engine in loads.engines] == [True, True]
    assert sum(loads.load(0)[:2]) == 1 and not any(loads.load(1)) and loads.load(0).prompted == len(PROMPT)
    first.kill_worker()
    assert not loads.is_up(0)
    first.turn()
    position = servers.system.by_name["scheduler@0"].position
    assert not servers.memory.board.gauge(position, SchedulerGauge.BLOCKS_TOTAL)


def test_who_waits_goes_where_rows_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """When all rows are taken; no more than there are, and nobody who is wanted here."""
    monkeypatch.setattr(handover, "SHARE_S", 0.0)
    servers = Servers(blocks=32, rows=2)
    try:
        first, second = servers.engines
        running = [servers.submit(0) for _ in range(2)]
        first.compute(2)
        assert first.actor.scheduler.batch.full and not servers.deliver()
        wanted = servers.submit(0, pinned=True)
        waiting = [servers.submit(0) for _ in range(3)]
        first.turn()
        servers.deliver()
        servers.check(*running, *waiting, wanted)
        assert second.refs == set(waiting[:2]) and first.refs == {*running, waiting[2], wanted}
        first.turn()
        assert not servers.deliver(), "there is no room any more"
        first.compute(8)
        assert all(servers.table.generated(ref) for ref in running)
    finally:
        servers.close()


def test_a_suspect_that_is_taken_over_is_tried_where_it_stands(servers: Servers) -> None:
    """Its successor tells the worker in which row it is, before any step of that row."""
    first = servers.engines[0]
    deadly, other = servers.submit(0), servers.submit(0)
    first.compute()
    servers.table.move(deadly, 0, deaths=DEATHS_BEFORE_TRIAL)
    first.start()
    first.meet()
    told: set[int] = set()
    alone = []
    for _ in range(24):
        step = first.steps[0]
        told |= {new.row for new in step.new_rows}
        assert set(step.rows.tolist()) <= told
        alone.append(len(step.rows) == 1)
        first.compute(1)
    assert alone[0] and not all(alone)
    assert servers.table.moves(deadly) == (1, 0), "it is cleared, for others, too"
    assert {servers.table.generated(ref) > 4 for ref in (deadly, other)} == {True}


def test_an_engine_that_is_to_be_parked_gives_all_away_while_its_worker_lives(servers: Servers) -> None:
    first, second = servers.engines
    refs = [servers.submit(0) for _ in range(3)]
    first.compute()
    late = first.answer(first.steps[0])
    before = {ref: servers.table.generated(ref) for ref in refs}
    first.actor.scheduler.kv.cache(servers.blocks - 1, bytes(16))
    first.park()
    first.turn()
    assert not first.refs and not first.actor.scheduler.pool.count
    assert not first.actor.scheduler.kv.cached(), "its memory is about to be given back"
    first.turn(late)
    servers.deliver()
    servers.check(*refs)
    second.compute()
    assert all(servers.table.generated(ref) > before[ref] for ref in refs)
    first.kill_worker(Ended.DIED)  # whatever is said of its end, nobody is to blame
    first.turn()
    assert not first.actor.scheduler.suspects and not first.actor.scheduler.stats.survived_worker
    late_one = servers.submit(0)  # of a renderer that has looked before
    assert not first.refs and servers.deliver()
    servers.check(late_one)
    first.park(Parked.NO)
    first.begin_worker()
    first.meet()
    servers.check(*refs, servers.submit(0))


def test_nobody_is_let_go_of_for_whom_no_other_engine_is_there(servers: Servers) -> None:
    """It goes on computing until there is one."""
    first, second = servers.engines
    ref = servers.submit(0)
    second.kill_worker()
    first.park()
    first.compute()
    assert first.refs == {ref} and servers.table.generated(ref) > 1
    second.begin_worker()
    second.meet()
    first.turn()
    servers.deliver()
    servers.check(ref)
    assert second.refs == {ref}


@pytest.mark.parametrize("dies", [False, True])
def test_a_worker_that_was_let_go_of_and_is_wanted_again_is_met_again(servers: Servers, dies: bool) -> None:
    """By this scheduler, or its successor."""
    first = servers.engines[0]
    servers.submit(0)
    first.park()
    first.turn()
    servers.deliver()
    greeted = first.greeted
    if dies:
        first.start()
        assert first.greeted == greeted, "nobody is there who would hear it"
        first.turn()
    first.park(Parked.NO)
    first.turn()
    first.turn()
    assert first.greeted == greeted + 1
    first.meet()
    ref = servers.submit(0)
    first.compute()
    assert servers.table.generated(ref) and first.refs == {ref}


def test_a_scheduler_that_dies_as_its_engine_is_parked_has_a_successor_that_gives_away(servers: Servers) -> None:
    first, second = servers.engines
    ref = servers.submit(0)
    first.compute()
    first.park()
    first.start()
    assert first.refs == {ref}
    first.turn()
    servers.deliver()
    servers.check(ref)
    assert second.refs == {ref}


@pytest.mark.parametrize("whole", [False, True])
def test_workers_that_sleep_everywhere_blame_nobody(servers: Servers, whole: bool) -> None:
    """What runs waits for the first that is wanted again."""
    first, second = servers.engines
    ref = servers.submit(0)
    first.compute()
    asleep = (first, second)[: 1 + whole]
    for engine in asleep:
        engine.park(Parked.SLEEP)
    for engine in asleep:
        engine.kill_worker(Ended.REPLACED)
        engine.turn()
    servers.deliver()
    assert not first.actor.scheduler.suspects and (first.refs == {ref}) == whole
    if whole:
        first.park(Parked.NO)
        first.begin_worker()
        first.meet()
        before = servers.table.generated(ref)
        first.compute()
        assert servers.table.generated(ref) > before


def lose(servers: Servers, start_s: float = 0.2, token_s: float = 0.05) -> list[int]:
    """Two sequences of the first engine, whose worker has died; a prompt's token takes so long to compute."""
    first = servers.engines[0]
    first.kill_worker(Ended.OUTSIDE)
    first.begin_worker()
    first.meet(start_s)
    refs = [servers.submit(0) for _ in range(2)]
    first.compute()
    first.actor.scheduler.chunk_size.prompt_token_s = token_s
    first.kill_worker(Ended.OUTSIDE)
    first.turn()
    return refs


def test_a_worker_that_is_soon_there_again_is_waited_for(servers: Servers) -> None:
    """With what it had computed nothing is computed again."""
    first = servers.engines[0]
    refs = lose(servers)
    before = [servers.table.generated(ref) for ref in refs]
    assert first.refs == set(refs) and 0 < first.actor.wait_s <= patience.LATE * 0.3 and not servers.deliver()
    first.begin_worker()
    first.meet(0.2)
    assert all(new.num_computed_tokens >= len(PROMPT) for new in first.steps[0].new_rows)
    first.compute(2)
    assert all(servers.table.generated(ref) > count for ref, count in zip(refs, before, strict=True))
    assert first.actor.scheduler.stats.survived_worker == 2 and patience_over(first) <= time.monotonic() + 1


def test_one_that_is_late_is_waited_for_no_longer(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = servers.engines
    refs = lose(servers)
    assert first.refs == set(refs)
    now = patience_over(first)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first.turn()
    servers.deliver()
    servers.check(*refs)
    assert second.refs == set(refs)


def patience_over(engine: Engine) -> float:
    """When it will be."""
    assert engine.actor.handover is not None
    return time.monotonic() + engine.actor.handover.waits_s + 1


@pytest.mark.parametrize(
    ("start_s", "token_s"), [(0.2, 0.0001), (5.0, 1.0), (0.0, 1.0)], ids=["little to do", "a long start", "no memory"]
)
def test_a_worker_that_is_not_worth_it_is_not_waited_for(servers: Servers, start_s: float, token_s: float) -> None:
    refs = lose(servers, start_s, token_s)
    assert not servers.engines[0].refs
    servers.deliver()
    servers.check(*refs)


def test_who_is_parked_waits_for_nobody(servers: Servers) -> None:
    first, second = servers.engines
    refs = lose(servers)
    first.park(Parked.SLEEP)
    first.turn()
    servers.deliver()
    assert second.refs == set(refs)


def test_who_leaves_gives_no_more_than_others_compute_in_a_moment(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are computed here meanwhile, and go when nobody waits there."""
    first, second = servers.engines
    refs = [servers.submit(0) for _ in range(3)]
    first.compute()
    first.actor.scheduler.chunk_size.prompt_token_s = 1.0
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first.park()
    for left in (2, 1, 0):
        late = first.answer(first.steps[0])
        first.turn()
        assert len(first.refs) == left and bool(first.actor.scheduler.pool.count) == (left > 0)
        before = {ref: servers.table.generated(ref) for ref in first.refs}
        first.turn(late)
        assert all(servers.table.generated(ref) == count + 1 for ref, count in before.items())
        first.steps = first.steps[1:]
        second.actor.handle(servers.lanes["scheduler@1"].pop())
        second.actor.gauges.write()
        now += handover.PARTS_S
        waits = len(second.actor.scheduler.waiting)
        first.turn()
        assert waits == 1 and len(first.refs) == left, "it is not computed there yet"
        second.turn()
        second.compute(1)
        second.actor.gauges.write()
        now += handover.PARTS_S
    servers.check(*refs)
    assert second.refs == set(refs)


def test_who_leaves_and_finds_no_room_goes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(blocks=16, rows=1)
    try:
        first, second = servers.engines
        mine, _ = servers.submit(0), servers.submit(1)
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now)
        first.park()
        first.turn()
        assert first.refs == {mine} and 0 < first.actor.wait_s <= handover.PARTS_S
        now += handover.STUCK_S + 1
        first.turn()
        servers.deliver()
        servers.check(mine)
        assert mine in second.refs
    finally:
        servers.close()


def test_who_was_to_leave_and_stays_begins_anew(servers: Servers) -> None:
    """A step that is under way has those who were given: if they come back it is not theirs."""
    first = servers.engines[0]
    refs = [servers.submit(0) for _ in range(2)]
    first.compute()
    first.actor.scheduler.chunk_size.prompt_token_s = 1.0
    late = first.answer(first.steps[0])
    first.park()
    first.turn()
    assert len(first.refs) == 1
    first.park(Parked.NO)
    greeted = first.greeted
    first.turn()
    assert first.greeted == greeted + 1
    first.steps.clear()
    first.turn(late)
    first.meet()
    (left,) = first.refs
    before = servers.table.generated(left)
    first.compute()
    assert servers.table.generated(left) > before and left in refs
