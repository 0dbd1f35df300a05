"""Room for drafts: answers stay what they were, bounds hold, and what does not pay gets none."""

from __future__ import annotations

import numpy as np
import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.scheduler.policy.speculation import HOPELESS, PROBE, Speculation
from actorserve.actors.scheduler.policy.step_cost import StepCost
from actorserve.actors.telemetry.gauges import SchedulerGauge

from ..engine_model import BLOCK, MAX_TOKENS, Bench, expected_answer, finish_all, prompt_of, running_bench


def test_answers_are_what_they_were_in_fewer_steps() -> None:
    steps = []
    for drafts in (0, 5):
        bench = Bench(drafts=drafts)
        refs = {bench.submit(p := prompt_of(20, s), 60, ignore_eos=True): p for s in range(4)}
        bench.run()
        for ref, prompt in refs.items():
            assert bench.answer(ref) == expected_answer(prompt, 60, ignore_eos=True)
        assert bench.scheduler.pool.free == bench.num_blocks
        steps.append(bench.scheduler.step)
    assert steps[1] < 0.7 * steps[0]


def test_counts() -> None:
    bench = Bench(drafts=4)
    bench.submit(prompt_of(20), 100, ignore_eos=True)
    bench.run()
    policy, worker = bench.scheduler.speculation, bench.worker
    assert policy.accepted_tokens == worker.accepted == policy.accepted_at.sum() > 0
    assert policy.draft_tokens == worker.accepted + worker.rejected > policy.drafts > 0
    assert (np.diff(policy.accepted_at) <= 0).all() and not policy.accepted_at[4:].any()
    assert bench.scheduler.results.generated == 100
    assert len(policy.counts()) == SchedulerGauge.PREFIX_RESETS - SchedulerGauge.DRAFTS


def test_two_steps_are_planned_ahead_of_drafts() -> None:
    bench = Bench(drafts=4)
    bench.submit(prompt_of(4), 12, ignore_eos=True)
    while bench.scheduler.sequences:
        while bench.plan():
            pass
        left = (
            bench.scheduler.batch.max_num_tokens
            - bench.scheduler.batch.num_prompt_tokens
            - bench.scheduler.batch.num_generated_tokens
        )
        assert len(bench.planned) == 2 or left.max() <= 4
        bench.work()


def test_nothing_follows_an_end_in_the_middle_of_drafts() -> None:
    ends = 0
    for seed in range(60):
        bench = Bench(drafts=8)
        prompt = prompt_of(9, seed)
        stop = expected_answer(prompt, 20, ignore_eos=True)[seed % 20]
        ref = bench.submit(prompt, 60, stop_token_ids=[stop])
        bench.run()
        answer = expected_answer(prompt, 60, (stop,))
        assert bench.answer(ref) == answer
        ends += bench.table.finish(ref) == Finish.STOP
        again = bench.submit([*prompt, *answer, 1], 2, ignore_eos=True)
        bench.run()  # what is cached is checked by the worker
        assert bench.table.cached(again) <= len(prompt) + len(answer)
    assert ends > 50


def test_room_preempts_nobody() -> None:
    """All blocks are needed for the sequences themselves: with drafts they are preempted no more often."""
    preemptions = []
    for drafts in (0, 6):
        bench = Bench(num_blocks=MAX_TOKENS // BLOCK, drafts=drafts, max_num_batched_tokens=64)
        refs = {bench.submit(prompt_of(40, s), 80, ignore_eos=True): s for s in range(8)}
        bench.run()
        for ref, seed in refs.items():
            assert bench.answer(ref) == expected_answer(prompt_of(40, seed), 80, ignore_eos=True)
        preemptions.append(bench.scheduler.planner.preemptions)
    assert 0 < preemptions[1] <= preemptions[0] + 2


def test_prompts_go_before_drafts() -> None:
    bench = Bench(drafts=8, max_num_batched_tokens=16)
    bench.submit(prompt_of(4), 100, ignore_eos=True)
    for _ in range(3):
        bench.plan()
        bench.work()
    bench.submit(prompt_of(60, 2), 2, ignore_eos=True)
    for _ in range(4):
        bench.plan()
        assert bench.scheduler.in_flight[-1].counts.tolist() == [1, 15]
        bench.work()
    bench.run()


@pytest.mark.parametrize("turns", [3, 8, 12])
def test_a_successor_goes_on(turns: int) -> None:
    """Rejected drafts of two steps in flight stand behind what the map calls computed."""
    bench, prompts = running_bench(turns=turns, drafts=5)
    known = sum(sequence.num_tokens for sequence in bench.scheduler.sequences.values())
    found = bench.new_scheduler()
    assert found is not None and found.tokens >= known - sum(len(p) for p in prompts.values()) // (turns - 2)
    finish_all(bench, prompts)
    assert bench.worker.rejected


def test_rows_that_want_other_words_have_no_room() -> None:
    from actorserve.actors.protocol.request import Sampling

    assert not Sampling(1, frequency_penalty=1.0).is_plain()
    bench = Bench(drafts=5)
    bench.submit(prompt_of(4), 30, ignore_eos=True)
    bench.plan()
    bench.scheduler.batch.may_be_drafted[:] = False
    bench.run()
    assert bench.worker.accepted + bench.worker.rejected == 0


def test_the_cost_of_a_token_is_found() -> None:
    cost = StepCost()
    random = np.random.default_rng(1)
    assert cost.share(8) == 0
    for _ in range(300):
        tokens = int(random.integers(8, 40))
        cost.observe(tokens, (0.002 + 0.0001 * tokens) * random.uniform(0.9, 1.1))
    whole = cost.whole
    assert whole.token == pytest.approx(0.0001, rel=0.3) and whole.base == pytest.approx(0.002, rel=0.3)
    assert cost.share(1) < 0.1 < cost.share(8) < cost.share(1000) > 0.9
    cost.observe(8, 1000.0)
    assert whole.base == pytest.approx(0.002, rel=0.3), "a pause of the machine is no measurement"


def test_of_a_model_with_experts_the_first_tokens_cost_most() -> None:
    """Each token hits 8 of 64 experts, others than those before it until all are hit."""

    def seconds(tokens: int) -> float:
        return 0.001 + 0.0002 * tokens + 0.001 * 64 * (1 - (1 - 8 / 64) ** tokens)

    cost = StepCost()
    random = np.random.default_rng(1)
    for _ in range(2000):
        tokens = int(2 ** random.uniform(0, 7))
        cost.observe(tokens, seconds(tokens) * random.uniform(0.95, 1.05))
    for tokens in (1, 2, 4, 8, 16, 32, 64, 100):
        assert cost.seconds(tokens) == pytest.approx(seconds(tokens), rel=0.25), tokens
    assert cost.share(2) > 0.5 > cost.share(32), "drafts of few rows hit experts of their own, those of many do not"


def test_a_step_of_another_size_is_no_pause_of_the_machine() -> None:
    cost = StepCost()
    for tokens in (1,) * 50 + (64,) * 50:
        cost.observe(tokens, 0.001 * tokens)
    assert cost.seconds(64) == pytest.approx(0.064, rel=0.1)


def test_no_room_where_drafts_cannot_pay() -> None:
    policy = Speculation(5)
    assert policy.num_draft_tokens(8) == 5
    for tokens in (8, 16, 48) * 20:
        policy.cost.observe(tokens, 0.0001 + 0.001 * tokens)
    assert policy.cost.share(64) > HOPELESS
    rooms = [policy.num_draft_tokens(64) for _ in range(2 * PROBE)]
    assert rooms.count(5) == 2, "now and then it is tried"
    for tokens in (8, 16, 48) * 60:
        policy.cost.observe(tokens, 0.01 + 0.0001 * tokens)
    rooms = [policy.num_draft_tokens(8) for _ in range(2 * PROBE)]
    assert rooms.count(0) == 2, "now and then it is not, so that the cost is known"
