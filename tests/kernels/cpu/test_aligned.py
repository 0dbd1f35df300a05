"""Aligned attention: the same bits for a token in every step. Its numbers are tested in test_attention.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actorserve.kernels.cpu.aligned import AlignedAttention
from actorserve.kernels.cpu.attention import PagedKV, Span

HEAD_DIM = 32
LENGTH = 200  # of each sequence


class Sequences:
    """Three of them in KV memory, each in other blocks, with the queries of all positions; the rest is NaN."""

    def __init__(self, kv_heads: int, group: int, block: int) -> None:
        torch.manual_seed(group)
        self.heads = kv_heads * group
        count = -(-LENGTH // block)
        order = np.random.default_rng(block).permutation(4 * count)
        self.tables = [np.arange(3 * count, 4 * count), *(order[order < 3 * count].reshape(-1, count)[:2])]
        pool = torch.full((1, 2, kv_heads, 4 * count * block, HEAD_DIM), float("nan"))
        self.kv = PagedKV(pool, block, aligned=True)
        self.queries = torch.randn(3, LENGTH, self.heads, HEAD_DIM)
        positions = np.arange(LENGTH)
        for table in self.tables:
            slots = torch.from_numpy(table[positions // block] * block + positions % block)
            self.kv.write(0, slots, torch.randn(LENGTH, 2, kv_heads, HEAD_DIM))

    def compute(self, parts: list[tuple[int, int, int]], window: int | None) -> list[torch.Tensor]:
        """Each part is (sequence, first position, tokens) of one step."""
        spans, first = [], 0
        for number, position, size in parts:
            spans.append(Span(first, size, position, self.tables[number], number == 0))
            first += size
        queries = torch.cat([self.queries[number, position : position + size] for number, position, size in parts])
        attention = AlignedAttention(self.kv, spans, [window], self.heads, HEAD_DIM**-0.5)
        return list(attention(0, queries).split([size for _, _, size in parts]))


@pytest.mark.parametrize("window", [None, 7, 64, 100])
@pytest.mark.parametrize(("kv_heads", "group", "block"), [(2, 2, 32), (1, 1, 8), (2, 3, 16), (1, 12, 64)])
def test_a_token_has_the_same_bits_in_every_step(kv_heads: int, group: int, block: int, window: int | None) -> None:
    random = np.random.default_rng(0)
    some = Sequences(kv_heads, group, block)
    whole = [some.compute([(number, 0, LENGTH)], window)[0] for number in range(3)]
    assert all(torch.isfinite(one).all() for one in whole)
    for position in [0, 1, 6, 7, 8, 63, 64, 65, 127, 128, *random.integers(0, LENGTH, 10)]:
        (alone,) = some.compute([(1, position, 1)], window)
        assert torch.equal(alone[0], whole[1][position])
    for _ in range(20):
        parts = []
        for number in random.permutation(3):
            position = int(random.integers(0, LENGTH))
            parts.append((int(number), position, int(random.integers(1, LENGTH - position + 1))))
        for (number, position, size), found in zip(parts, some.compute(parts, window), strict=True):
            assert torch.equal(found, whole[number][position : position + size])
