"""Slots of the likeliest tokens, against torch's sorting, however many programs choose; in the interpreter where there
is no GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"  # read when kernels are imported

from actorserve.kernels.triton.attention import indexer
from actorserve.kernels.triton.attention.indexer import ChosenTokens, parts_of, select_slots
from tests.support.gpu.no_device import Unwritten
from tests.support.selection import pairwise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LONGEST, BLOCK, NOWHERE, LANES = 640, 16, -7, 16
INF = float("inf")


def in_order(scores: Tensor) -> Tensor:
    """Integers in the order of float32 scores, as `score_kernel` writes them."""
    bits = scores.view(torch.int32)
    return bits ^ ((bits >> 31) & ((1 << 31) - 1))


def found(scores: Tensor, lengths: Sequence[int], topk: int) -> tuple[Tensor, list[list[int]]]:
    """(the block table, the slots of each query), in memory that held something else."""
    count = len(lengths)
    table = torch.randperm(count * LONGEST // BLOCK, dtype=torch.int32).view(count, -1)
    owners = torch.arange(count, dtype=torch.int32).flip(0)
    positions = torch.tensor(lengths, dtype=torch.int32)
    slots = torch.full((count, topk), NOWHERE, dtype=torch.int32)
    chosen = ChosenTokens(*(part.to(DEVICE) for part in (owners, positions, positions.clamp(max=topk), slots)))
    with Unwritten():
        select_slots(in_order(scores).to(DEVICE), table.to(DEVICE), BLOCK, chosen)
    return table.flip(0), chosen.slots.tolist()


def check(scores: Tensor, lengths: Sequence[int], topk: int) -> None:
    """Of equal scores the first, in the order of positions; and their values are torch.topk's."""
    table, slots = found(scores, lengths, topk)
    for own, blocks, length, seen in zip(scores, table, lengths, slots, strict=True):
        count = min(topk, length)
        best = own[:length].sort(descending=True, stable=True).indices[:topk].sort().values
        assert torch.equal(own[best].sort().values, own[:length].topk(count).values.sort().values)
        wanted = (blocks[best // BLOCK] * BLOCK + best % BLOCK).tolist()
        assert seen == wanted + [NOWHERE] * (topk - count), f"{length} positions"


@pytest.fixture
def divide(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets in how many parts at most, of 40 tiles."""

    def into(parts: int) -> None:
        monkeypatch.setattr(indexer, "LANES", LANES)
        monkeypatch.setattr(indexer, "UNDIVIDED", 0)
        monkeypatch.setattr(indexer, "MOST_CHOOSERS", parts)
        torch.manual_seed(parts)

    return into


PARTS = (40, 7, 2, 1)  # more than are added up together; of several tiles
EDGES = (0, 1, 15, 23, 24, 25, 32, 111, 112, 113, 337, 639, 640)  # of nobody, around topk, tiles and parts
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "any": lambda made: made,
    "of all magnitudes": lambda made: made * 10.0 ** torch.randint(-30, 30, made.shape),
    "few values": lambda made: made.round() + 0.0,
    "all the same": torch.zeros_like,
    "mostly -inf": lambda made: made.where(made > 2.2, -INF),
    "inf": lambda made: made.where(made < 1.0, INF),
    "hardly apart": lambda made: (1000 + made).mul(1e-4).add(1.0),  # in their last bits
    "rising": lambda made: made.sort(1).values,  # the last part alone is seen
    "falling": lambda made: made.sort(1, descending=True).values,
}


@pytest.mark.parametrize(("kind", "parts"), pairwise(KINDS, PARTS))
def test_those_that_sorting_finds(kind: str, parts: int, divide: Callable[[int], None]) -> None:
    divide(parts)
    check(KINDS[kind](torch.randn(len(EDGES), LONGEST)), EDGES, 24)


def test_more_than_a_part_has(divide: Callable[[int], None]) -> None:
    """Where all of several parts is seen, and where several have nothing but scores that are just the cut."""
    divide(40)
    check(torch.randint(0, 2, (4, LONGEST)).float(), (640, 480, 301, 300), 300)


def test_one_program_for_each_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "LANES", LANES)
    torch.manual_seed(0)
    for kind in KINDS:
        check(KINDS[kind](torch.randn(4, LONGEST)), (640, 337, 25, 24), 24)


def test_programs_follow_from_positions_and_queries() -> None:
    """As many as fill a device, in parts of no fewer scores than a program chooses from together."""
    assert [parts_of(count, 16384) for count in (1, 32)] == [1, 1], "one launch"
    assert [parts_of(count, 131072) for count in (1, 8, 32, 256, 384, 1000)] == [64, 48, 12, 1, 1, 1]
    assert [parts_of(1, longest) for longest in (16400, 163840, 1 << 20)] == [9, 80, 128]


def test_in_full_size() -> None:
    """131,072 positions in 64 parts, of which some are 2,048."""
    torch.manual_seed(0)
    longest, lengths, topk = 131072, (131072, 100001, 2049), 2048
    scores = torch.randn(len(lengths), longest).mul(8).round().div(8) + 0.0
    positions = torch.tensor(lengths, dtype=torch.int32)
    table = torch.arange(longest // 32, dtype=torch.int32).repeat(len(lengths), 1)
    slots = torch.full((len(lengths), topk), NOWHERE, dtype=torch.int32)
    owners = torch.arange(len(lengths), dtype=torch.int32)
    chosen = ChosenTokens(*(part.to(DEVICE) for part in (owners, positions, positions.clamp(max=topk), slots)))
    select_slots(in_order(scores).to(DEVICE), table.to(DEVICE), 32, chosen)
    for own, length, seen in zip(scores, lengths, chosen.slots.cpu(), strict=True):
        best = own[:length].sort(descending=True, stable=True).indices[:topk].sort().values
        assert torch.equal(best.int(), seen)
