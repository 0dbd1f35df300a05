"""The scheduler dies before any one store, or in the middle of a vector of them: what its successor takes is right.

The worker checks each prefix that a step reads, so that KV which is not what the map says is noticed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.step import MOST_NEW_BYTES, StepDone
from actorserve.actors.scheduler import batch, lifecycle, planned_step, planner, results, scheduler, waiting
from actorserve.actors.scheduler.memory import allocation, blocks
from actorserve.actors.scheduler.memory import prefix_cache as prefix
from actorserve.actors.scheduler.recovery import adopted_rows, takeover
from actorserve.shm.kv_map import map as kv_map
from actorserve.shm.table import arrays as table_arrays
from actorserve.shm.table import table
from tests.shm.aborting import Abort, aborted, every_state
from tests.support.selection import slow

from ..engine_model import BLOCK, MAX_TOKENS, Bench, expected_answer, prompt_of

STORES: tuple[ModuleType, ...] = (kv_map, table, table_arrays)  # every store to shared memory is in them
PLANS = (adopted_rows, allocation, batch, blocks, lifecycle, planner, prefix, results, scheduler, takeover, waiting)
MODULES = (*STORES, *PLANS)
LIMIT = 20


class Scene:
    """Some sequences with a common prefix and few blocks, after some turns; what comes next is to be aborted."""

    def __init__(self, turns: int, count: int) -> None:
        self.bench = Bench(slots=8, num_blocks=MAX_TOKENS // BLOCK, max_num_batched_tokens=24)
        shared = prompt_of(2 * BLOCK)
        lengths = [(BLOCK * n + 3) % 60 for n in range(count)]
        prompts = [[*shared, *prompt_of(length, n)] for n, length in enumerate(lengths)]
        self.expected = {
            self.bench.submit(prompt, LIMIT, ignore_eos=True): expected_answer(prompt, LIMIT, ignore_eos=True)
            for prompt in prompts
        }
        for _ in range(turns):
            self.bench.plan()
            self.bench.work()

    def survives(self) -> object:
        """All that a successor and the worker can know of a scheduler that has died."""
        return bytes(self.bench.segment.map), len(self.bench.planned)

    def done(self) -> StepDone:
        """The results of a step that is planned now."""
        assert self.bench.plan()
        return self.bench.compute()

    def succeed(self) -> None:
        """A successor takes over, and all end as they should."""
        bench = self.bench
        assert bench.new_scheduler() is not None
        bench.scheduler.check_integrity()
        bench.run()
        for ref, answer in self.expected.items():
            bench.check_end(ref, answer)
        assert bench.scheduler.pool.free == bench.num_blocks and bench.kv.holders() == []


def planning(scene: Scene) -> Callable[[], object]:
    return scene.bench.plan


def applying(scene: Scene) -> Callable[[], object]:
    done = scene.done()
    return lambda: scene.bench.scheduler.apply(done)


def preempting(scene: Scene) -> Callable[[], object]:
    victim = max(scene.bench.scheduler.batch.running(), key=lambda s: len(s.blocks))
    return lambda: scene.bench.scheduler.planner.memory.preempt(victim)


def ending(scene: Scene) -> Callable[[], object]:
    victim = max(scene.bench.scheduler.batch.running(), key=lambda s: len(s.blocks))
    scene.bench.table.cancel(victim.ref)
    return lambda: scene.bench.scheduler.end(victim.ref, Finish.ABORT)


def resetting(scene: Scene) -> Callable[[], object]:
    return scene.bench.scheduler.reset_prefix_cache


def recomputing(scene: Scene) -> Callable[[], object]:
    return lambda: scene.bench.scheduler.reset_prefix_cache(recompute_running=True)


def taking_over(scene: Scene) -> Callable[[], object]:
    scene.bench.birth()
    return scene.bench.meet_worker


ACTS = {  # what is aborted, after how many turns, of how many sequences
    "first plan": (planning, 0, 2),
    "plan that grows": (planning, 6, 4),
    "plan that preempts": (planning, 15, 8),
    "plan that evicts": (planning, 16, 8),
    "first chunk": (applying, 0, 4),
    "tokens and full blocks": (applying, 9, 4),
    "an end": (applying, 19, 4),
    "preemption": (preempting, 14, 4),
    "cancel": (ending, 14, 4),
    "takeover": (taking_over, 14, 3),
    "reset of the prefix cache": (resetting, 14, 4),
    "reset that computes again": (recomputing, 14, 4),
}


def test_the_turns_are_what_their_names_say() -> None:
    def after(name: str) -> scheduler.Scheduler:
        act, turns, count = ACTS[name]
        act(scene := Scene(turns, count))()
        return scene.bench.scheduler

    assert after("plan that grows").in_flight[-1].new_blocks
    assert after("plan that preempts").planner.memory.preemptions == 1
    evicting = Scene(*ACTS["plan that evicts"][1:])
    cached = evicting.bench.kv.cached()
    evicting.bench.plan()
    assert cached.keys() - evicting.bench.kv.cached().keys()
    full = Scene(*ACTS["tokens and full blocks"][1:])
    cached = full.bench.kv.cached()
    full.bench.scheduler.apply(full.done())
    assert full.bench.kv.cached().keys() - cached.keys()
    assert after("an end").lifecycle.finished == 1


@pytest.mark.parametrize("name", ACTS)
def test_death_before_any_store(name: str) -> None:
    act, turns, count = ACTS[name]
    for scene, _ in every_state(lambda: Scene(turns, count), act, STORES, Scene.survives, 1):
        scene.succeed()


@pytest.mark.parametrize("act", [resetting, recomputing])
def test_a_reset_that_was_not_answered_is_done_again(act: Callable[[Scene], Callable[[], object]]) -> None:
    """The message comes to the successor, before or after the worker; then nothing of before is found."""
    for number, (scene, _) in enumerate(every_state(lambda: Scene(14, 4), act, STORES, Scene.survives, 1)):
        bench = scene.bench
        bench.birth()
        before_the_worker = bool(number % 2)
        if before_the_worker:
            act(scene)()
        bench.meet_worker()
        if not before_the_worker:
            act(scene)()
        bench.scheduler.check_integrity()
        assert bench.kv.cached() == {}
        again = bench.submit(prompt_of(2 * BLOCK + 1), 3)
        bench.run()
        if act is resetting:  # else those that are computed again are found by it
            assert bench.table.cached(again) == 0
        for ref, answer in scene.expected.items():
            bench.check_end(ref, answer)


def test_death_while_a_new_epoch_begins() -> None:
    """A map of the old worker is never taken for one of the new worker."""
    outcomes = set()
    for scene, _ in every_state(lambda: Scene(10, 4), new_worker, STORES, Scene.survives, 1):
        found = scene.bench.new_scheduler()
        outcomes.add(found is None)
        assert found is None or not (found.holdings or found.cached)
        scene.bench.run()
        for ref, answer in scene.expected.items():
            scene.bench.check_end(ref, answer)
    assert outcomes == {True, False}


def new_worker(scene: Scene) -> Callable[[], object]:
    scene.bench.lose_worker()
    return scene.bench.new_epoch


class Chaos:
    """Requests come, are cancelled and share prefixes; the scheduler dies anywhere, its successors too."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.bench = Bench(
            num_blocks=MAX_TOKENS // BLOCK + rng.choice([0, 3, 40]),
            max_num_seqs=rng.choice([2, 5, 8]),
            max_num_batched_tokens=rng.choice([5, 32, 200]),
            prefix_caching=rng.random() < 0.8,
            by_priority=rng.random() < 0.5,
            drafts=rng.choice([0, 1, 3, 8]),
        )
        self.shared = prompt_of(100, seed)
        self.expected: dict[int, list[int]] = {}
        self.sent = 0  # steps in the lane that are published
        self.deaths = 0

    def turn(self) -> None:
        rng, bench = self.rng, self.bench
        action = rng.random()
        if action < 0.2 and bench.free_slots:
            prompt = self.shared[: rng.randrange(90)] + prompt_of(rng.randrange(1, 30), rng.randrange(10**6))
            limit, stop, eos = rng.randrange(1, 50), rng.randrange(50), rng.random() < 0.5
            ref = bench.open(prompt, limit, stop_token_ids=[stop], ignore_eos=eos, priority=rng.randrange(3))
            self.expected[ref] = expected_answer(prompt, limit, (stop,), eos)
            self.perhaps_die(lambda: bench.scheduler.admit(ref))
        elif action < 0.25 and bench.scheduler.sequences:
            ref = rng.choice(list(bench.scheduler.sequences))
            bench.table.cancel(ref)
            self.perhaps_die(lambda: bench.scheduler.end(ref, Finish.ABORT))
        elif action < 0.26:
            bench.new_worker()
        elif action < 0.6:
            self.perhaps_die(bench.plan, preempts=True)
        elif bench.planned:
            self.sent = 0
            done = bench.compute()
            self.perhaps_die(lambda: bench.scheduler.apply(done))
        bench.scheduler.check_integrity()
        for ref in [ref for ref in self.expected if bench.table.finish(ref)]:
            bench.check_end(ref, self.expected.pop(ref))

    def perhaps_die(self, operation: Callable[[], object], preempts: bool = False) -> None:
        """Run the operation, or some of it: then there is a successor, which goes on with all that was confirmed."""
        rng, bench = self.rng, self.bench
        if rng.random() < 0.85:
            operation()
            return
        self.deaths += 1
        old = bench.scheduler
        confirmed = {s.ref: int(old.batch.num_confirmed_tokens[s.row]) for s in old.batch.running()}
        torn = Torn(rng, old) if rng.random() < 0.3 else None
        at = int(2 ** rng.uniform(0, 13))
        if torn is not None:
            torn.run(operation)
        else:
            aborted(operation, at, MODULES)
        self.lose_unsent()
        for _ in range(rng.randrange(3)):
            if bench.planned:
                bench.worker.run(bench.planned.pop(0), set())
        kept = set(bench.kv.holders())
        while rng.random() < 0.2 and aborted(bench.new_scheduler, int(2 ** rng.uniform(0, 13)), MODULES):
            pass  # the successor dies while it takes over
        found = bench.new_scheduler()
        assert found is not None
        goes_on = {holding.sequence.ref: holding.computed for holding in found.holdings}
        for ref, count in confirmed.items():
            if ref in bench.scheduler.sequences and (ref in kept or not preempts):
                assert goes_on[ref] >= count, "what was computed is lost"

    def lose_unsent(self) -> None:
        """Of the steps that nobody has seen yet the last ones may not have been published."""
        steps = self.bench.planned
        while steps and steps[-1].epoch == self.bench.scheduler.epoch and self.rng.random() < 0.3:
            steps.pop()

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()
        self.bench.run()
        for ref, answer in self.expected.items():
            self.bench.check_end(ref, answer)
        assert self.bench.scheduler.pool.free == self.bench.num_blocks and self.bench.kv.holders() == []


class Torn:
    """The scheduler dies in the middle of a vector of stores: some rows have them."""

    def __init__(self, rng: random.Random, dying: scheduler.Scheduler) -> None:
        self.rng, self.dying = rng, dying
        self.where = rng.choice(["confirm", "append_tokens"])

    def run(self, operation: Callable[[], object]) -> None:
        owner: Any = self.dying.kv if self.where == "confirm" else self.dying.results.arrays
        whole = getattr(owner, self.where)

        def part(*vectors: np.ndarray[Any, Any]) -> None:
            count = self.rng.randrange(len(vectors[0]) + 1)
            whole(*(vector[:count] for vector in vectors))
            raise Abort

        setattr(owner, self.where, part)
        try:
            operation()
        except Abort:
            pass
        finally:
            delattr(owner, self.where)


@pytest.mark.parametrize("seed", [*range(6), *slow(*range(6, 20))])
def test_deaths_anywhere(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "MAX_TAKEOVERS", 1000)  # they die faster than any do in life
    most = [1, 300, MOST_NEW_BYTES][seed % 3]
    monkeypatch.setattr(planned_step, "MOST_NEW_BYTES", most)
    chaos = Chaos(seed)
    chaos.run(150)
    assert chaos.deaths > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_deaths_anywhere_long(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "MAX_TAKEOVERS", 1000)
    Chaos(seed).run(300)
