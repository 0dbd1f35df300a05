"""Many numbers are written in turns: others have theirs, in many short vectors as in a long one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import numpy as np
import pytest

from actorserve.http.pooling import packed, written
from actorserve.http.pooling.packed import Packed
from tests.http.output.turns import OthersTurns

Work = Callable[[list[bytes]], Awaitable[list[bytes]]]


async def packs(vectors: list[bytes]) -> list[bytes]:
    return await Packed("fp8_e4m3").pack(vectors)


async def writes(by_token: bool, vectors: list[bytes]) -> list[bytes]:
    rows = 4 if by_token else 1
    matrices = [(rows, len(one) // 4 // rows, one) for one in vectors]
    return [bytes(one) for one in await written.written(matrices, by_token)]


@pytest.mark.parametrize("pieces", [[4.0], [0.25] * 16])
@pytest.mark.parametrize(
    ("work", "piece"),
    [(packs, packed.PIECE), (partial(writes, False), written.PIECE), (partial(writes, True), written.PIECE)],
)
async def test_others_have_a_turn_meanwhile(work: Work, piece: int, pieces: list[float]) -> None:
    with OthersTurns() as others:
        made = await work([bytes(int(piece * size)) for size in pieces])
    assert others.count == 4 and len(made) == len(pieces)


@pytest.mark.parametrize("by_token", [False, True])
async def test_numbers_are_as_if_written_at_once(by_token: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "PIECE", 12)
    given = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    given[0, 1] = float("nan")
    wanted = given.tolist() if by_token else given.reshape(-1).tolist()
    (made,) = await written.written([(5, 4, given.tobytes())], by_token)
    assert bytes(made) == msgspec.json.encode(wanted)
