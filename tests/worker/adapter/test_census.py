"""Tiny models of many kinds, served by all actors in one process: their answers are generate()'s, token for token."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.models.census import POPULAR, census, examine, kinds

LEAST = 140  # kinds that are equal
SHORT = 7  # tokens of an answer
# One for each way to keep and to see tokens: soft caps over windows, layers that read the keys of others, learned
# positions, sinks, experts, latents, attention of transformers' own, with keys of an indexer or not, states alone, and
# beside keys in a layer or not, and states that transformers keeps elsewhere than in its cache, in three ways.
DIFFERENT = (
    *("gemma2", "gemma4_text", "gpt2", "gpt_oss", "qwen3_moe", "deepseek_v3"),
    *("bloom", "hy_v4", "mamba2", "lfm2", "falcon_h1"),
    *("minimax", "recurrent_gemma", "rwkv"),
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DIFFERENT else pytest.mark.slow) for name in POPULAR]
)
def test_popular_kinds(name: str, tmp_path: Path) -> None:
    row = examine(name, tmp_path / name, answer=SHORT)
    assert row.result == "equal", row
    stateful = row.way == "rows" or name in ("qwen4_exp", "rwkv")  # whose snapshots may find no room
    assert row.cached or stateful, "the second round found nothing by its prefix"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_kinds(tmp_path: Path) -> None:
    rows = list(census(kinds(), tmp_path, jobs=2))
    assert not [row for row in rows if row.result == "differs"]
    assert sum(row.result == "equal" for row in rows) >= LEAST, [row for row in rows if row.result != "equal"]
