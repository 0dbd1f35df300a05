"""The prefix cache is reset: nothing of before is found any more, and whoever runs is not disturbed."""

from __future__ import annotations

import random

import pytest

from actorserve.actors.protocol.step import Step, StepDone
from actorserve.actors.scheduler.recovery.takeover import Contradiction
from actorserve.shm.table.stamps import Stamps
from actorserve.shm.table.table import RequestTable
from tests.support.selection import slow

from .engine_model import BLOCK, Bench, Row, ScriptedWorker, expected_answer, finish_all, prompt_of, running_bench

PROMPT = prompt_of(5 * BLOCK + 1)


def cached(bench: Bench, prompt: list[int]) -> int:
    """Tokens of a prompt that a new request finds."""
    ref = bench.submit(prompt, 3, ignore_eos=True)
    bench.run()
    bench.check_end(ref, expected_answer(prompt, 3, ignore_eos=True))
    return bench.table.cached(ref)


def test_what_nobody_holds_is_not_found() -> None:
    bench = Bench()
    assert [cached(bench, PROMPT), cached(bench, PROMPT)] == [0, 5 * BLOCK]
    assert bench.scheduler.reset_prefix_cache() == 5
    bench.scheduler.check_integrity()
    assert bench.kv.cached() == {} and bench.scheduler.pool.free == bench.num_blocks
    assert bench.scheduler.reset_prefix_cache() == 0, "again, it changes nothing"
    assert [cached(bench, PROMPT), cached(bench, PROMPT)] == [0, 5 * BLOCK], "what is computed since is found"


@pytest.mark.parametrize("takeovers", [0, 1, 2])
@pytest.mark.parametrize("turns", [1, 5, 12, 30])
def test_who_runs_goes_on_and_is_not_found_by_others(turns: int, takeovers: int) -> None:
    """Neither what it had computed, nor what it computes behind that; not even by a successor of the scheduler."""
    bench, prompts = running_bench(turns=turns, num_blocks=256)
    bench.scheduler.reset_prefix_cache()
    bench.scheduler.check_integrity()
    for _ in range(takeovers):
        found = bench.new_scheduler()
        assert found is not None and found.cached == {} and len(found.holdings) == len(bench.scheduler.batch)
        bench.scheduler.check_integrity()
    others = {bench.submit(p, 30, ignore_eos=True): p for p in prompts.values()}
    finish_all(bench, prompts | others)
    assert [bench.table.cached(ref) for ref in others] == [0] * len(others)
    undisturbed = 2 * sum(len(prompt) + 29 for prompt in prompts.values())
    assert bench.worker.computed_tokens >= undisturbed, "the others computed all of it themselves"


def test_a_preempted_one_is_found_again_by_what_it_computes_since() -> None:
    bench, prompts = running_bench(count=1, num_blocks=64)
    bench.scheduler.reset_prefix_cache()
    (sequence,) = bench.scheduler.batch.running()
    bench.scheduler.planner.memory.preempt(sequence)
    bench.scheduler.check_integrity()
    finish_all(bench, prompts)
    (prompt,) = prompts.values()
    assert cached(bench, prompt) == (len(prompt) - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("met", [True, False], ids=["with its worker", "before it met its worker"])
def test_whoever_runs_can_be_computed_again(met: bool) -> None:
    bench, prompts = running_bench(num_blocks=64)
    computed = bench.worker.computed_tokens
    if not met:
        bench.birth()
    bench.scheduler.reset_prefix_cache(recompute_running=True)
    assert not len(bench.scheduler.batch) and bench.kv.cached() == {}
    if not met:
        assert bench.meet_worker() is None, "there is nothing to go on with"
    bench.scheduler.check_integrity()
    stamps = Stamps(bench.table)
    assert {stamps.preemptions(ref) for ref in prompts} == {int(met)}, "it is told of where logs tell what was survived"
    finish_all(bench, prompts)
    assert bench.worker.computed_tokens >= computed + sum(map(len, prompts.values()))


def test_a_reset_before_the_worker_is_met_changes_what_is_taken_over() -> None:
    bench, prompts = running_bench(num_blocks=64)
    assert bench.kv.cached()
    bench.birth()
    assert bench.scheduler.reset_prefix_cache() > 0
    found = bench.meet_worker()
    assert found is not None and found.cached == {} and len(found.holdings) == len(prompts)
    bench.scheduler.check_integrity()
    again = bench.submit(next(iter(prompts.values())), 30, ignore_eos=True)
    finish_all(bench, prompts)
    assert bench.table.cached(again) == 0


class DatedWorker(ScriptedWorker):
    """Knows after which reset each KV entry was computed, and which are too old for which request."""

    def __init__(self, table: RequestTable, num_blocks: int) -> None:
        super().__init__(table, num_blocks)
        self.resets = 0
        self.dates = [0] * (num_blocks * BLOCK)
        self.oldest: dict[int, int] = {}  # by ref
        self.found = 0

    def run(self, step: Step, alive: set[int]) -> StepDone:
        done = super().run(step, alive)
        for new in step.new_rows:
            row = self.rows[new.row]
            places = [row.blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(new.num_computed_tokens)]
            self.found += len(places)
            assert all(self.dates[place] >= self.oldest.get(new.ref, 0) for place in places), "it was dropped"
        return done

    def _compute(self, row: Row, check: bool) -> None:
        super()._compute(row, check)
        at = row.computed - 1
        self.dates[row.blocks[at // BLOCK] * BLOCK + at % BLOCK] = self.resets


def succeed(bench: Bench) -> None:
    """A new scheduler, as its actor has it."""
    bench.birth()
    try:
        bench.meet_worker()
    except Contradiction:  # several have died before a step came back
        bench.new_epoch()


@pytest.mark.parametrize("seed", [*range(4), *slow(*range(4, 12))])
def test_random_resets_deaths_and_preemptions(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(num_blocks=40, drafts=seed % 3)
    bench.worker = worker = DatedWorker(bench.table, bench.num_blocks)
    prompts: dict[int, list[int]] = {}
    for _ in range(250):
        act = rng.random()
        if act < 0.15 and bench.free_slots:
            prompt = prompt_of(rng.choice([9, 17, 30, 45]), rng.randrange(2))
            ref = bench.submit(prompt, 20, ignore_eos=True)
            prompts[ref], worker.oldest[ref] = prompt, worker.resets
        elif act < 0.20:
            bench.scheduler.reset_prefix_cache(recompute_running=rng.random() < 0.3)
            worker.resets += 1
        elif act < 0.24:
            succeed(bench)
        elif act < 0.6:
            bench.plan()
        else:
            bench.work()
        bench.scheduler.check_integrity()
    bench.run()
    assert worker.found and worker.resets
    for ref, prompt in prompts.items():
        assert bench.answer(ref) == expected_answer(prompt, 20, ignore_eos=True)
    assert bench.scheduler.pool.free == bench.num_blocks
