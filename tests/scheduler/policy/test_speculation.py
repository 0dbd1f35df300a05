"""Room for drafts: answers stay what they were, bounds hold, and what does not pay gets none."""

from __future__ import annotations

import numpy as np
import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.scheduler.policy.draft_trials import MOST_SETTLING, DraftTrials
from actorserve.actors.scheduler.policy.speculation import EXACT, Speculation
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


def test_tokens_without_a_choice_are_no_drafts() -> None:
    policy = Speculation(4)
    policy.count(np.array([4, 1, 3, 1]), np.array([0, 0, 2, 3]))
    assert (policy.forced_tokens, policy.drafts, policy.draft_tokens, policy.accepted_tokens) == (3, 2, 5, 2)


def test_a_server_that_drafts_by_itself_does_so_for_one_row() -> None:
    policy = Speculation(0, alone=True)
    assert not policy.num_draft_tokens(1), "nobody has said that there are any"
    policy.most = 4
    assert policy.num_draft_tokens(1) == 4 and not policy.num_draft_tokens(2)
    for _ in range(100):
        policy.observe_without(2, False, 0.01)
    assert policy.num_draft_tokens(1) == 4, "what others take says nothing of it"


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
        preemptions.append(bench.scheduler.planner.memory.preemptions)
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


class Clock:
    """Steps on a simulated machine, for a policy; what proposers take is no matter of the tokens in a step."""

    def __init__(self, accepted: float, base: float, token: float, observing: float, proposing: float) -> None:
        """Seconds: of a step, a token in it, what is observed in steps with drafts on, and a draft that is made."""
        self.policy = Speculation(3)
        self.accepted = accepted
        self.base, self.token, self.observing, self.proposing = base, token, observing, proposing
        self.random = np.random.default_rng(1)
        self.rooms: list[int] = []

    def run(self, steps: int, rows: int) -> float:
        """Tokens a second of so many steps, on a machine that is not equally fast all the time."""
        tokens, seconds = 0, 0.0
        for _ in range(steps):
            room = self.policy.num_draft_tokens(rows)
            right = (self.random.random((rows, room)) < self.accepted).cumprod(1).sum(1) if room else np.zeros(rows)
            drawn, drafted = 1 + right.astype(np.int64), np.full(rows, room)
            took = self.base + self.token * (rows + rows * room)
            took += (self.observing + self.proposing * rows * room) * (room > 0)
            took *= self.random.uniform(0.9, 1.1) * (5 if self.random.random() < 0.03 else 1)
            self.policy.observe(rows, room > 0, drawn, drafted, took)
            self.rooms.append(room)
            tokens, seconds = tokens + int(drawn.sum()), seconds + took
        return tokens / seconds

    def without(self, rows: int) -> float:
        """Tokens a second without drafts, by the mean of how fast it is."""
        return rows / ((self.base + self.token * rows) * 1.12)


def test_what_does_not_pay_is_off() -> None:
    """A draft takes less than what it saves if it is accepted, and that is not enough."""
    clock = Clock(0.45, base=0.004, token=0.0001, observing=0.001, proposing=0.0002)
    clock.run(1000, 8)
    assert clock.policy.cost.share(8) < 0.8
    assert clock.run(4000, 8) > 0.96 * clock.without(8)
    rooms = clock.rooms[-4000:]
    assert 0 < np.count_nonzero(rooms) < 0.05 * len(rooms), "now and then it is tried"


def test_drafts_that_pay_stay_on() -> None:
    clock = Clock(0.7, base=0.02, token=0.0005, observing=0.001, proposing=0.001)
    clock.run(1000, 1)
    rooms = clock.rooms
    assert clock.run(4000, 1) > 1.5 * clock.without(1)
    assert 0 < rooms[-4000:].count(0) < 0.05 * 4000


def test_each_number_of_rows_is_tried() -> None:
    """One client gains by what many lose by; and what was found beside one is where the next begins."""
    clock = Clock(0.7, base=0.02, token=0.004, observing=0.0, proposing=0.002)
    for _ in range(2):
        for rows in (1, 16):
            clock.run(1000, rows)
    for rows, on in ((1, True), (16, False), (17, False), (EXACT * 4, False)):
        assert (clock.policy.num_draft_tokens(rows) > 0) == on, rows


@pytest.mark.parametrize("accepted", [(0.05, 0.9), (0.9, 0.05)])
def test_what_was_found_is_found_anew(accepted: tuple[float, float]) -> None:
    """Texts change, and with them what drafts are worth."""
    clock = Clock(0.0, base=0.004, token=0.001, observing=0.002, proposing=0.0004)
    for clock.accepted in accepted:
        clock.run(8000, 4)
        assert (np.count_nonzero(clock.rooms[-1000:]) > 800) == (clock.accepted > 0.5)


def test_what_comes_first_in_a_trial_does_not_count() -> None:
    """A draft model has to catch up before it drafts."""
    trials = DraftTrials(usual=False)
    while not trials.on():
        trials.observe(False, 1, 1.0, False)
    for _ in range(MOST_SETTLING - 1):
        trials.observe(True, 1, 50.0, False)
    while trials.on() and not trials.trials:
        trials.observe(True, 3, 1.5, True)
    assert trials.usual and trials.trials == 1


def test_a_trial_without_a_draft_ends() -> None:
    """Nothing is found, or nobody may have drafts: on is as good as off, and sees at once when that changes."""
    trials = DraftTrials()
    for _ in range(10_000):
        trials.observe(trials.on(), 1, 1.0, False)
    assert trials.usual and 3 < trials.trials < 40


def test_pieces_of_prompts_are_no_trial() -> None:
    """A row that computes one token of its prompt draws none; as many of them as there are say nothing of drafts."""
    policy, none = Speculation(3), np.zeros(0, np.int64)
    for _ in range(200):
        policy.observe(2, True, none, none, 0.001)
    assert policy.num_draft_tokens(2) == 3
