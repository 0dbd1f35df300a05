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


def test_each_key_has_one_table_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    randperm: Any = torch.randperm

    def counted(size: int, **options: Any) -> Any:
        made.append(size)
        return randperm(size, **options)

    monkeypatch.setattr(torch, "randperm", counted)
    configs = [WatermarkingConfig(seeding_scheme="selfhash", hashing_key=7 + key) for key in [*range(ROWS), 0]]
    rows = [Watermark(config, Sampling(1), [1, 2, 3], WORDS) for config in configs]
    for step in range(STEPS):
        for row in rows:
            row.apply(torch.zeros(WORDS), list(range(step)))
    assert made.count(TABLE_SIZE) == ROWS == len(watermark._tables)
    rows.clear()
    del row
    gc.collect()
    assert not watermark._tables, "nobody has them any more"
    Watermark(WatermarkingConfig(), Sampling(1), [1], WORDS)
    assert made.count(TABLE_SIZE) == ROWS, "lefthash needs none"
