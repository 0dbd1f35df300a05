"""The tables of watermarks, which take milliseconds to make: once for a key, as long as a row has it."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from actorserve.actors.protocol.request import Sampling, WatermarkingConfig
from actorserve.actors.worker.logits import watermark
from actorserve.actors.worker.logits.watermark import TABLE_SIZE, Watermark

WORDS, ROWS, STEPS = 64, 6, 3


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of permutations that were made."""
    made: list[int] = []
    randperm: Any = torch.randperm

    def counted(size: int, **options: Any) -> Any:
        made.append(size)
        return randperm(size, **options)

    monkeypatch.setattr(torch, "randperm", counted)
    return made


def selfhash(key: int) -> Watermark:
    config = WatermarkingConfig(seeding_scheme="selfhash", hashing_key=key)
    return Watermark(config, Sampling(1), [1, 2, 3], WORDS)


def biased(row: Watermark, step: int) -> list[float]:
    logits = torch.zeros(WORDS)
    row.apply(logits, list(range(step)))
    return logits.tolist()


def test_each_key_has_one_table_however_many_rows_there_are(made: list[int]) -> None:
    rows = [selfhash(7 + key) for key in [*range(ROWS), 0]]
    for step in range(STEPS):
        for row in rows:
            biased(row, step)
    assert made.count(TABLE_SIZE) == ROWS == len(watermark._tables)
    rows.clear()
    del row
    gc.collect()
    assert not watermark._tables, "nobody has them any more"
    Watermark(WatermarkingConfig(), Sampling(1), [1], WORDS)
    assert made.count(TABLE_SIZE) == ROWS, "lefthash needs none"


def test_more_keys_than_tables_may_be_kept(made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same words are chosen, by tables that are made anew; one too many is kept once there is room."""
    wanted = [[biased(selfhash(7 + key), step) for step in range(STEPS)] for key in range(ROWS)]
    monkeypatch.setattr(watermark, "MOST_TABLES", 2)
    made.clear()
    rows = [selfhash(7 + key) for key in range(ROWS)]
    for step in range(STEPS):
        assert [biased(row, step) for row in rows] == [told[step] for told in wanted]
        assert len(watermark._tables) == 2
    assert made.count(TABLE_SIZE) == 2 + STEPS * (ROWS - 2)
    del rows[:-1]
    gc.collect()
    made.clear()
    for step in range(STEPS):
        biased(rows[0], step)
    assert made.count(TABLE_SIZE) == 1
