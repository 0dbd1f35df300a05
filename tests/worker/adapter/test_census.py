"""Tiny models of many kinds, served by all actors in one process: their answers are generate()'s, token for token."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.models.census import POPULAR, census, examine, kinds

LEAST = 140  # kinds that are equal
SHORT = 7  # tokens of an answer


@pytest.mark.parametrize("name", POPULAR)
def test_popular_kinds(name: str, tmp_path: Path) -> None:
    row = examine(name, tmp_path / name, answer=SHORT)
    assert row.result == "equal", row
    assert row.cached or row.way == "rows", "the second round found nothing by its prefix"  # snapshots may find no room


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_kinds(tmp_path: Path) -> None:
    rows = list(census(kinds(), tmp_path, jobs=2))
    assert not [row for row in rows if row.result == "differs"]
    assert sum(row.result == "equal" for row in rows) >= LEAST, [row for row in rows if row.result != "equal"]
