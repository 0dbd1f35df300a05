"""Tiny models with an encoder and a decoder, served by all actors in one process: their answers are generate()'s."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.models.encoder_decoders import KINDS, census, examine, kinds

LEAST = 20  # kinds that are equal
LONG = 32  # tokens of an answer: so many that memory runs out, whenever each began


@pytest.mark.parametrize("name", [*KINDS[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in KINDS[2:])])
def test_popular_kinds(name: str, tmp_path: Path) -> None:
    row = examine(name, tmp_path / name, answer=LONG)
    assert row.result == "equal", row
    assert row.preempted, "none was computed again"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_kinds(tmp_path: Path) -> None:
    rows = list(census(kinds(), tmp_path))
    assert not [row for row in rows if row.result == "differs"]
    assert sum(row.result == "equal" for row in rows) >= LEAST, [row for row in rows if row.result != "equal"]
