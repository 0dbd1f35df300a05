"""Prompts that cannot be computed in parts, of models with an encoder: beside rows that decode, and when one dies."""

from __future__ import annotations

import pytest

from .engine_model import Bench, expected_answer, finish_all, prompt_of, running_bench


def test_one_that_is_longer_than_the_budget_is_the_only_one_of_its_step() -> None:
    """It does not wait until nobody decodes."""
    bench = Bench(max_num_batched_tokens=16, whole_prompts=True)
    first = bench.submit(prompt_of(5), 60, ignore_eos=True)
    assert bench.plan() and bench.work()
    later = [bench.submit(prompt_of(100, seed), 20, ignore_eos=True) for seed in (1, 2)]
    sizes = []
    for _ in range(3):
        assert bench.plan()
        sizes.append(bench.planned[-1].counts.tolist())
        bench.work()
    assert sizes == [[1, 100], [1, 1, 100], [1, 1, 1]]
    bench.run()
    assert bench.answer(first) == expected_answer(prompt_of(5), 60, ignore_eos=True)
    for ref, seed in zip(later, (1, 2), strict=True):
        assert bench.answer(ref) == expected_answer(prompt_of(100, seed), 20, ignore_eos=True)


def test_several_that_fit_share_a_step() -> None:
    bench = Bench(max_num_batched_tokens=32, whole_prompts=True)
    for seed in range(3):
        bench.submit(prompt_of(14, seed), 5, ignore_eos=True)
    assert bench.plan() and bench.planned[-1].counts.tolist() == [14, 14]
    bench.run()


def test_no_prefix_is_found() -> None:
    """All sounds have the same ids."""
    bench = Bench(max_num_batched_tokens=64, whole_prompts=True)
    for _ in range(2):
        bench.submit(prompt_of(40), 5, ignore_eos=True)
        bench.run()
    assert bench.worker.largest_step == 40 and bench.scheduler.planner.prefix.hits == 0


def test_preempted_ones_are_computed_whole_again() -> None:
    bench = Bench(num_blocks=16, max_num_batched_tokens=16, whole_prompts=True)
    prompts = {bench.submit(prompt_of(40, seed), 30, ignore_eos=True): prompt_of(40, seed) for seed in range(4)}
    bench.run()
    assert bench.scheduler.planner.memory.preemptions
    for ref, prompt in prompts.items():
        assert bench.answer(ref) == expected_answer(prompt, 30, ignore_eos=True)


@pytest.mark.parametrize("turns", [1, 3, 12])
def test_a_successor_takes_over_what_was_computed_whole(turns: int) -> None:
    bench, prompts = running_bench(turns=turns, whole_prompts=True)
    found = bench.new_scheduler()
    assert found is not None
    for holding in found.holdings:
        assert holding.computed == 0 or holding.computed >= holding.sequence.num_prompt_tokens
    assert turns < 12 or found.tokens > 0
    finish_all(bench, prompts)
