"""Drafts change no text, whatever the memory is: tables of windows, keys and values of 8 bits, bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actorserve.actors.protocol.step import NewRow

from ..driver import Driver, Sequence, config_for, make_runner
from .start.test_whole_start import (  # before kernels are imported
    DFLASH,
    EAGLE3,
    KINDS,
    MEDUSA,
    NGRAM,
    ROWS,
    TOKENS,
    StartedDriver,
    config_of,
    in_place_of_a_gpu,
    recorded,
    sequences,
    started,
)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a CPU stands in the device's place")

Folders = Callable[..., Path]
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "windows": ("gemma3, windows", {}),
    "8 bits": ("qwen3", {"kv_cache_dtype": "fp8"}),
    "bfloat16": ("qwen3", {"dtype": "bfloat16", "deterministic": True}),
    "windows, bfloat16, 8 bits": (
        "gemma3, windows",
        {"dtype": "bfloat16", "deterministic": True, "kv_cache_dtype": "fp8"},
    ),
}
METHODS: dict[str, dict[str, Any]] = {
    "n-grams": {"speculative_config": NGRAM},
    "a model": {"draft": "qwen3"},
    **{name: {"draft": name} for name in (EAGLE3, MEDUSA, DFLASH)},
}
QUICK = ((EAGLE3, "windows"),)


class TablesDriver(StartedDriver):
    """Each sequence has blocks of its own in every table."""

    def __init__(self, runner: Any, **options: Any) -> None:
        super().__init__(runner, **options)
        self.others: dict[int, list[int]] = {}  # by row

    def _place(self, sequence: Sequence, slot: int, count: int, new: list[NewRow]) -> None:
        first = len(sequence.blocks)
        super()._place(sequence, slot, count, new)
        tables = self.runner.sizes.tables  # type: ignore[attr-defined]
        width = self.runner.rows.state.table.shape[1] // tables  # type: ignore[attr-defined]
        own = self.others.setdefault(sequence.row, [])
        for place in range(first, len(sequence.blocks)):
            for table in range(1, tables):
                own.append(self.free.pop())
                self.grown.append((sequence.row, table * width + place, own[-1]))

    def _leave(self, sequence: Sequence) -> None:
        self.free += self.others.pop(sequence.row)
        super()._leave(sequence)


def driven(checkpoints: Folders, kind: str, seed: int, **options: Any) -> tuple[list[list[int]], int]:
    """(tokens of a worker that was started with these options, how many drafts there were)."""
    _, actor = started(config_of(lambda name, **own: checkpoints(name.partition(",")[0], **own), kind, **options))
    drafts = actor.gpu.sizes.drafts
    driver = TablesDriver(actor.gpu, preempt=0.03, seed=seed, budget=TOKENS, drafts=drafts)
    return driver.run(sequences()[:ROWS]), driver.drafted


def wanted_of(checkpoints: Folders, kind: str, **options: Any) -> list[list[int]]:
    """Tokens without drafts: in float32 a CPU draws the same, in a moment."""
    if not options.keys() <= {"enforce_eager"}:
        tokens, none = driven(checkpoints, kind, 5, **options)
        assert none == 0
        return tokens
    plain = config_for(checkpoints(kind.partition(",")[0], **KINDS[kind]), block_size=16)
    return Driver(make_runner(plain, rows=ROWS), seed=5).run(sequences()[:ROWS])


@pytest.mark.parametrize(
    ("method", "way"),
    [
        (method, way) if (method, way) in QUICK else pytest.param(method, way, marks=pytest.mark.slow)
        for method in METHODS
        for way in WAYS
        if (method, way) != ("a model", "windows")  # with a draft model there are no tables of windows
    ],
)
def test_drafts_change_no_text(method: str, way: str, checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    in_place_of_a_gpu(monkeypatch, recorded)
    kind, options = WAYS[way]
    options = options | {"enforce_eager": (method, way) in QUICK}
    found, drafted = driven(checkpoints, kind, 6, **options, **METHODS[method])
    assert found == wanted_of(checkpoints, kind, **options) and drafted > 0
