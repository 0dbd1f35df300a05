"""Steps on the wire: arrays come out as they went in, whatever they were made of; the classes alone need no numpy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from actorserve.actors.protocol.messages import ToScheduler, ToWorker
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.step import NewRow, Step, StepDone

KINDS: list[Callable[[list[int]], Any]] = [list, tuple, np.array, lambda numbers: np.array(numbers, np.int32)]


def crossed(message: Any, kind: Any) -> Any:
    """What is read at the other end."""
    return msgspec.msgpack.Decoder(kind).decode(msgspec.msgpack.Encoder().encode(message))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_crosses(kind: Callable[[list[int]], Any]) -> None:
    new = NewRow.make(3, 1 << 32 | 5, 7, 9, 4, kind([8, 2, 1]), Sampling(1))
    sent = Step.make(2, 4, [new], kind([3, 0]), kind([5, 1]), [(0, 1, 6), (0, 2, 90_000)], 0.25)
    step = crossed(sent, ToWorker)
    assert step == sent and (step.epoch, step.step, step.min_accepted) == (2, 4, 0.25)
    assert step.rows.tolist() == [3, 0] and step.counts.tolist() == [5, 1]
    assert step.rows.dtype == step.counts.dtype == np.int64, "they index arrays"
    assert step.new_blocks.tolist() == [[0, 1, 6], [0, 2, 90_000]]
    assert step.new_rows[0].blocks.tolist() == [8, 2, 1] and step.new_rows[0].ref == 1 << 32 | 5
    assert (step.num_rows, step.num_tokens) == (2, 6)


def test_a_step_without_new_blocks_has_none() -> None:
    step = crossed(Step.make(1, 1, [], [0], [1]), ToWorker)
    assert step.new_blocks.shape == (0, 3) and not step.packed_new_blocks


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_crosses(kind: Callable[[list[int]], Any]) -> None:
    step = Step.make(2, 4, [], [0, 1, 2], [4, 1, 1])
    given = {"failed_rows": kind([2]), "num_drawn": kind([2, 1, 1]), "num_drafted": kind([3, 0, 0])}
    done = crossed(StepDone.make(step, kind([11, 12, 13, 14]), 0.5, **given), ToScheduler)
    assert (done.epoch, done.step, done.seconds, done.had_drafts) == (2, 4, 0.5, True)
    assert done.tokens.tolist() == [11, 12, 13, 14] and done.tokens.dtype == np.int32
    assert done.failed_rows.tolist() == [2]
    assert done.num_drawn.tolist() == [2, 1, 1] and done.num_drafted.tolist() == [3, 0, 0]
    done.num_drawn[0] = 1  # a copy: whoever cuts tokens off counts in it


def test_an_answer_without_drafts() -> None:
    done = crossed(StepDone.make(Step.make(1, 9, [], [0], [1]), [5], 0.0), ToScheduler)
    assert not done.had_drafts and not len(done.num_drawn) and not len(done.failed_rows)


@pytest.mark.parametrize(
    ("step", "repeats"),
    [
        (Step.make(1, 2, [], [0, 1], [1, 1]), True),
        (Step.make(1, 2, [], [0, 1], [1, 1], [(0, 3, 5)]), True),
        (Step.make(1, 2, [], [1, 0], [1, 1]), False),
        (Step.make(1, 2, [], [0, 1], [1, 2]), False),
        (Step.make(1, 2, [NewRow.make(0, 0, 1, 1, 0, [2], Sampling(1))], [0, 1], [1, 1]), False),
    ],
)
def test_a_step_that_repeats_another(step: Step, repeats: bool) -> None:
    assert step.repeats(Step.make(1, 1, [], [0, 1], [1, 1])) is repeats


def test_who_only_knows_the_classes_needs_no_numpy() -> None:
    code = "import sys, actorserve.actors.protocol.messages; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
