"""The tables of watermarks, which take milliseconds to make: once for a key, as long as a row has it."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.sampling.fields import WatermarkingConfig
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


def test_selfhash_makes_no_permutation_of_the_vocabulary(made: list[int]) -> None:
    row = selfhash(7)
    for step in range(STEPS):
        biased(row, step)
    assert made == [TABLE_SIZE]


@pytest.mark.parametrize(
    ("words", "ratio", "width"), [(47, 0.25, 1), (2000, 0.3, 2), (2000, 0.97, 3), (40_000, 0.5, 4)]
)
def test_selfhash_is_that_of_transformers(words: int, ratio: float, width: int) -> None:
    """Also where many words are as likely as the fortieth, and where few may be drawn."""
    from transformers import WatermarkLogitsProcessor

    key = (1 << 62) + 12345
    config = WatermarkingConfig(ratio, 2.5, key, "selfhash", width)
    theirs = WatermarkLogitsProcessor(words, "cpu", ratio, 2.5, key, "selfhash", width)
    noise = torch.Generator().manual_seed(words)
    row = Watermark(config, Sampling(1), [5, 6, 7, 8], words)
    for step, make in enumerate((torch.randn, torch.zeros, torch.ones, torch.randn)):
        logits = make(words, generator=noise) if make is torch.randn else make(words)
        if step:
            logits = (logits * 2).round()  # with many ties
        if step == 3:
            logits[torch.randperm(words, generator=noise)[7:]] = -torch.inf
        answer = list(range(step))
        wanted = theirs(torch.tensor([[5, 6, 7, 8, *answer]]), logits[None].clone())[0]
        row.apply(logits, answer)
        assert torch.equal(logits, wanted), step
