"""Logprobs of workers of several engines, which write to slots in turn."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from actorserve.actors.protocol.request import Sampling
from actorserve.actors.worker.logprobs import LogprobsWriter
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import make_ref

ASKED = Sampling(0, logprobs=1, logprob_token_ids=[4, 2])
AT = 3  # a position


@pytest.fixture
def engines() -> list[LogprobsWriter]:
    """Those of two."""
    fd = Logprobs.create(2, 8)
    areas = [Logprobs(fd, 2, 8) for _ in range(2)]
    os.close(fd)
    return [LogprobsWriter(area, 2) for area in areas]


def write(writer: LogprobsWriter, row: int, token: int, seed: int) -> None:
    rows, logits = np.array([row]), torch.randn(1, 16, generator=torch.Generator().manual_seed(seed))
    raw = writer.raw(logits, rows)
    assert raw is not None
    writer.write(raw, rows, np.array([token]), np.array([AT]))


def test_a_step_that_comes_late_leaves_the_slots_next_use_alone(engines: list[LogprobsWriter]) -> None:
    first, second = engines
    area, other = first._area, second._area
    assert area is not None and other is not None
    old, new, beside = make_ref(1, 0), make_ref(2, 0), make_ref(1, 1)
    first.place(0, old, ASKED, 2)
    first.place(1, beside, ASKED, 2)
    write(first, 0, 5, 0)
    area.is_current = other.is_current = {new, beside}.__contains__
    second.place(0, new, ASKED, 2)
    write(second, 0, 6, 1)
    told = other.read(0, AT, 1), other.read_listed(0, AT, 2)
    write(first, 0, 7, 2)
    first.place(0, old, Sampling(0), 2)  # so late is a plan, too
    assert (other.read(0, AT, 1), other.read_listed(0, AT, 2)) == told
    write(first, 1, 7, 2)
    assert other.read(1, AT, 1)[0][1] < 0 and any(other.read_listed(1, AT, 2)), "rows beside it are told"


def test_who_wants_to_be_told_is_known_to_those_who_do_not_tell(engines: list[LogprobsWriter]) -> None:
    """Members of a group make logits together."""
    without, rows = LogprobsWriter(None, 2), np.array([0, 1])
    for writer in (engines[0], without):
        writer.place(0, make_ref(1, 0), Sampling(0), 2)
        writer.place(1, make_ref(1, 1), ASKED, 2)
        assert writer.wanted(rows).tolist() == [1]
    assert engines[0].among(rows).tolist() == [1] and not without.among(rows).size
    without.place(1, make_ref(2, 1), Sampling(0), 2)
    assert not without.wanted(rows).size
