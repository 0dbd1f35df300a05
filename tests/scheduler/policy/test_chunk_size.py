"""Chunks of prompts that leave running streams their time between tokens."""

from __future__ import annotations

import numpy as np
import pytest

from actorserve.actors.scheduler.policy.chunk_size import FIRST, LEAST, LENIENT_S, ChunkSizePolicy

BASE_S, ROW_S, PROMPT_S = 0.004, 0.0002, 0.0001


def step_s(decoding: int, prompts: int, prompt_s: float = PROMPT_S) -> float:
    return (BASE_S + ROW_S * decoding if decoding else 0.0) + prompt_s * prompts


def experienced(target_s: float | None, budget: int = 4096) -> ChunkSizePolicy:
    pace = ChunkSizePolicy(budget, target_s)
    random = np.random.default_rng(1)
    for decoding in random.integers(1, 64, 200).tolist():
        pace.observe(decoding, 0, step_s(decoding, 0))
    pace.observe(32, 128, step_s(32, 128))
    return pace


@pytest.mark.parametrize("decoding", [1, 32, 60])
@pytest.mark.parametrize("target_s", [0.03, 0.1])
def test_a_step_takes_the_target(target_s: float, decoding: int) -> None:
    pace = experienced(target_s)
    chunk = pace.chunk(decoding)
    assert step_s(decoding, chunk) == pytest.approx(target_s, rel=0.1)


def test_without_a_target_steps_stay_near_those_of_decoding() -> None:
    pace = experienced(None)
    assert step_s(60, pace.chunk(60)) == pytest.approx(max(LENIENT_S, 3 * step_s(60, 0)), rel=0.1)


def test_prompts_get_on_whatever_the_target_is() -> None:
    assert experienced(0.001).chunk(32) == LEAST


def test_nobody_decodes_or_nothing_is_known() -> None:
    assert experienced(0.001).chunk(0) == 4096
    assert ChunkSizePolicy(4096, 0.05).chunk(3) == FIRST
    assert ChunkSizePolicy(20, 0.05).chunk(3) == 20


def test_dearer_tokens_are_heeded_at_once_and_cheaper_ones_slowly() -> None:
    pace = experienced(0.05)
    before = pace.chunk(8)
    pace.observe(8, 100, step_s(8, 100, 3 * PROMPT_S))
    assert pace.chunk(8) == pytest.approx(before / 3, rel=0.1)
    pace.observe(8, 100, step_s(8, 100))
    assert before / 3 < pace.chunk(8) < 0.7 * before
    for _ in range(20):
        pace.observe(8, 100, step_s(8, 100))
    assert pace.chunk(8) == pytest.approx(before, rel=0.1)


def test_tokens_that_seem_to_take_no_time_leave_a_number() -> None:
    """As where steps with them are no longer than decoding alone is thought to be."""
    pace = experienced(0.05)
    for _ in range(3000):
        pace.observe(8, 100, 0.0)
        pace.observe(8, 100, 0.0, 10)
    assert pace.chunk(8) == pace.beside(8, 0) == 4096
    pace.observe(8, 10, 1.0, 10)
    for _ in range(3000):
        pace.observe(8, 100, 0.0, 10)
    assert pace.encoder_tokens(8, 0) > 4096


def test_a_long_prompt_in_simulated_time() -> None:
    """Its tokens get dearer as attention grows; no step beside 32 streams takes twice the target."""
    pace = experienced(0.04)
    done, steps = 0, []
    while done < 16384:
        chunk = min(pace.chunk(32), 16384 - done)
        steps.append(step_s(32, chunk, PROMPT_S * (1 + done / 4096)))
        pace.observe(32, chunk, steps[-1])
        done += chunk
    assert max(steps) < 0.08 and np.mean(steps) > 0.03


def test_what_a_step_costs_in_any_case_is_not_the_prompts() -> None:
    """Prompts alone, of which most is cached: few tokens say little of what one of them costs."""
    pace = experienced(0.05)
    for prompts in (1, 2, 30):
        pace.observe(0, prompts, BASE_S + step_s(0, prompts))
        assert pace.prompt_token_s == pytest.approx(PROMPT_S, rel=0.1)
    pace.observe(0, 1, 2 * BASE_S)
    assert pace.prompt_token_s < 0.4 * BASE_S
    assert pace.expected(8, 100) == pytest.approx(step_s(8, 0) + 100 * pace.prompt_token_s, rel=0.05)


def test_steps_of_one_size_say_what_they_take() -> None:
    pace = ChunkSizePolicy(4096, None)
    for _ in range(10):
        pace.observe(1, 0, 0.1)
    assert pace.expected(1, 0) == pytest.approx(0.1)
    pace.observe(1, 100, 0.1 + 100 * PROMPT_S)
    assert pace.chunk(1) == pytest.approx(0.2 / PROMPT_S, rel=0.01)
