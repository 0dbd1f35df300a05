"""Models of which a sequence keeps more than blocks of all layers: states with snapshots, and tables of windows."""

from __future__ import annotations

import pytest

from actorserve.actors.protocol.step import KVLayout
from actorserve.actors.scheduler.memory import snapshots
from actorserve.actors.scheduler.memory.windows import key_of
from actorserve.actors.scheduler.recovery.takeover import Contradiction

from .engine_model import BLOCK, Bench, expected_answer, prompt_of

STATES = KVLayout(states=True, snapshots=8)


def answer(bench: Bench, prompt: list[int], count: int = 4) -> int:
    """Run it to its end; returns how many tokens of it were cached."""
    ref = bench.submit(prompt, count, ignore_eos=True)
    bench.run()
    assert bench.answer(ref) == expected_answer(prompt, count, ignore_eos=True)
    cached = bench.table.cached(ref)
    bench.check_end(ref, expected_answer(prompt, count, ignore_eos=True))
    return cached


# --- snapshots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "found"), [(61, 56), (64, 56), (65, 64), (8, 0), (9, 8)])
def test_a_prompt_is_found_up_to_its_last_whole_block(length: int, found: int) -> None:
    """Of which one token at least is left to compute."""
    bench = Bench(layout=STATES)
    assert answer(bench, prompt_of(length)) == 0
    assert answer(bench, prompt_of(length)) == found
    assert bench.worker.restored == (found > 0)


def test_what_two_prompts_share_is_found_at_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "INTERVAL", 2 * BLOCK)
    bench = Bench(layout=STATES)
    shared = prompt_of(60)
    assert answer(bench, shared + prompt_of(20, 1)) == 0
    assert answer(bench, shared + prompt_of(20, 2)) == 48


def test_a_conversation_goes_on_behind_what_was_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that decode stop at the interval by themselves."""
    monkeypatch.setattr(snapshots, "INTERVAL", 2 * BLOCK)
    bench = Bench(layout=STATES)
    prompt = prompt_of(10)
    assert answer(bench, prompt, 60) == 0
    turn = prompt + expected_answer(prompt, 60, ignore_eos=True) + prompt_of(5, 1)
    assert answer(bench, turn) == 64


def test_the_least_recently_used_gives_way() -> None:
    bench = Bench(layout=KVLayout(states=True, snapshots=2), num_blocks=128)
    first, second, third = (prompt_of(30, seed) for seed in range(3))
    assert [answer(bench, prompt) for prompt in (first, second, first, third)] == [0, 0, 24, 0]
    assert answer(bench, first) == 24
    assert answer(bench, second) == 0, "third has its place, for first was used later"


def test_without_room_for_snapshots_nothing_is_found() -> None:
    bench = Bench(layout=KVLayout(states=True))
    assert answer(bench, prompt_of(61)) == answer(bench, prompt_of(61)) == 0
    assert bench.worker.saved == 0


def test_steps_of_what_goes_on_by_token_are_short_behind_the_first_chunk() -> None:
    """Each token is a pass, and a worker that computes them for minutes would be taken for one that hangs."""
    bench = Bench(layout=KVLayout(states=True, by_token=True), max_num_batched_tokens=100)
    ref = bench.submit(prompt := prompt_of(230), 2, ignore_eos=True)
    counts = []
    while bench.plan():
        counts.append(sum(bench.planned[0].counts.tolist()))
        bench.work()
    assert counts == [100, *[snapshots.MOST_BY_TOKEN] * 4, 2, 1]
    assert bench.answer(ref) == expected_answer(prompt, 2, ignore_eos=True)


def test_without_a_prefix_cache_none_is_made() -> None:
    bench = Bench(layout=STATES, prefix_caching=False)
    assert answer(bench, prompt_of(61)) == answer(bench, prompt_of(61)) == 0
    assert bench.worker.saved == 0


@pytest.mark.parametrize("running", [False, True])
def test_a_reset_forgets_them(running: bool) -> None:
    """Those that are found, and those that a step in flight makes."""
    bench = Bench(layout=STATES)
    assert answer(bench, prompt_of(61)) == 0
    ref = bench.submit(prompt_of(61, 1), 4, ignore_eos=True)
    while not bench.planned or not bench.planned[-1].packed_saves:
        assert bench.plan() or bench.work()
    bench.scheduler.reset_prefix_cache(running)
    assert bench.kv.snapshots.cached() == {}
    if not running:
        bench.run()
        assert bench.kv.snapshots.cached() == {}, "it began before the reset"
    bench.run()
    assert bench.answer(ref) == expected_answer(prompt_of(61, 1), 4, ignore_eos=True)
    assert answer(bench, prompt_of(61)) == 0


def test_what_cannot_be_found_saves_nothing() -> None:
    """Of a prompt whose logprobs are asked for each token has to be computed."""
    bench = Bench(layout=STATES, max_num_batched_tokens=BLOCK)  # so that steps end at ends of blocks by themselves
    ref = bench.submit(prompt_of(61), 4, ignore_eos=True)
    bench.scheduler.sequences[ref].cacheable = False
    bench.run()
    assert bench.worker.saved == 0


def test_what_a_prompt_had_before_a_death_is_not_told_as_cached() -> None:
    bench = Bench(layout=KVLayout(window=16, window_tables=2), max_num_batched_tokens=16)
    ref = bench.submit(prompt_of(100), 4, ignore_eos=True)
    for _ in range(3):
        bench.plan()
        bench.work()
    assert bench.new_scheduler() is not None
    before = bench.worker.computed_tokens
    bench.run()
    assert bench.answer(ref) == expected_answer(prompt_of(100), 4, ignore_eos=True)
    assert bench.worker.computed_tokens - before < 60 and bench.table.cached(ref) == 0


def test_a_successor_finds_them_and_begins_behind_them() -> None:
    bench = Bench(layout=STATES)
    ref = bench.submit(prompt_of(61), 30, ignore_eos=True)
    while bench.table.generated(ref) < 5:
        assert bench.plan() or bench.work()
    bench.plan()
    found = bench.new_scheduler()
    assert found is not None and not found.holdings and len(found.saved) == 1
    bench.scheduler.check_integrity()
    before = bench.worker.computed_tokens
    bench.run()
    assert bench.answer(ref) == expected_answer(prompt_of(61), 30, ignore_eos=True)
    assert bench.worker.computed_tokens - before < 45, "of 91, 56 are not computed again"
    assert bench.table.cached(ref) == 0, "what was taken over was not found in the prefix cache"


@pytest.mark.parametrize("twice", [False, True])
def test_a_map_of_snapshots_that_cannot_be_is_not_believed(twice: bool) -> None:
    bench = Bench(layout=KVLayout(states=True, snapshots=3))
    answer(bench, prompt_of(61))
    if twice:
        bench.kv.snapshots.cache(2, next(iter(bench.kv.snapshots.cached().values())))
    else:
        bench.layout = KVLayout(states=True, snapshots=0)
    bench.birth()
    with pytest.raises(Contradiction, match="two snapshots are of the same" if twice else "snapshot 0 of 0"):
        bench.meet_worker()


# --- windows ---------------------------------------------------------------------------------------------------------


def test_blocks_behind_the_window_are_let_go() -> None:
    """A sequence of 25 blocks fits with those that its windows see, and with no more."""
    layout = KVLayout(window=16, window_tables=3)
    bench = Bench(layout=layout, num_blocks=32 + 3 * 8)
    assert answer(bench, prompt_of(200), 50) == 0


def test_what_a_window_sees_of_a_prefix_is_enough() -> None:
    bench = Bench(layout=KVLayout(window=16, window_tables=2), num_blocks=96)
    assert answer(bench, prompt_of(100)) == 0
    assert answer(bench, prompt_of(100)) == 96
    assert answer(bench, prompt_of(100)[:80] + prompt_of(20, 1)) == 80


def test_a_prefix_is_found_as_far_as_windows_go() -> None:
    """What they saw of a block in the middle is gone: what is before it is of use, what is behind it not."""
    layout = KVLayout(window=16, window_tables=2)
    bench = Bench(layout=layout, num_blocks=96)
    assert answer(bench, prompt_of(100)) == 0
    pool, kv = bench.scheduler.pool, bench.kv
    keys = {key: block for block, key in kv.cached().items()}
    hashes = bench.scheduler.prefix
    sequence = bench.submit(prompt_of(100), 4, ignore_eos=True)
    found = bench.scheduler.sequences[sequence]
    hashes._hash_up_to(found, 12)
    lost = keys[key_of(found.hashes[10], 1)]
    pool._idle.move_to_end(lost, last=False)
    pool._evict()
    bench.run()
    assert bench.answer(sequence) == expected_answer(prompt_of(100), 4, ignore_eos=True)
    assert bench.table.cached(sequence) == 80


def test_prompts_that_hold_each_others_windows_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of them gives up its blocks when none can go on. Steps that end at snapshots leave room for several."""
    monkeypatch.setattr(snapshots, "INTERVAL", BLOCK)
    layout = KVLayout(states=True, snapshots=2, window=100, window_tables=3)
    bench = Bench(layout=layout, num_blocks=80, max_num_batched_tokens=16)
    prompts = {bench.submit(prompt_of(200, seed), 5, ignore_eos=True): prompt_of(200, seed) for seed in range(2)}
    starved = 0
    plan = bench.scheduler.planner._plan_once

    def watch() -> object:
        nonlocal starved
        step = plan()
        starved += step is None and bench.scheduler.planner.chunks.starved
        return step

    bench.scheduler.planner._plan_once = watch  # type: ignore[method-assign, assignment]
    bench.run()
    assert starved and bench.scheduler.planner.memory.preemptions
    for ref, prompt in prompts.items():
        assert bench.answer(ref) == expected_answer(prompt, 5, ignore_eos=True)


@pytest.mark.parametrize("seed", range(6))
def test_rejected_drafts_find_what_they_saw(seed: int) -> None:
    """A row may go back by as many tokens, and sees again what lies as far behind."""
    bench = Bench(layout=KVLayout(window=2, window_tables=2), num_blocks=100, drafts=8, max_num_batched_tokens=64)
    bench.worker.random.seed(seed)
    prompts = {bench.submit(prompt_of(9 + 5 * n, n), 100, ignore_eos=True): prompt_of(9 + 5 * n, n) for n in range(8)}
    bench.scheduler.speculation.num_draft_tokens = lambda rows: 8  # type: ignore[method-assign]
    bench.run()
    assert bench.worker.rejected > 20
    for ref, prompt in prompts.items():
        assert bench.answer(ref) == expected_answer(prompt, 100, ignore_eos=True)
