"""Aligned attention: the same bits for a token in every step. Its numbers are tested in test_attention.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.memory.kv import KVSpec, LayerAttention
from actorserve.kernels.cpu.aligned import AlignedAttention
from actorserve.kernels.cpu.paged_kv import PagedKV, Span
from tests.support.selection import pairwise

HEAD_DIM = 32
LENGTH = 200  # of each sequence


class Sequences:
    """Three of them in KV memory, each in other blocks, with the queries of all positions; the rest is NaN."""

    def __init__(self, kv_heads: int, group: int, block: int, **rule: Any) -> None:
        torch.manual_seed(group)
        self.heads = kv_heads * group
        count = -(-LENGTH // block)
        order = np.random.default_rng(block).permutation(4 * count)
        self.tables = [np.arange(3 * count, 4 * count), *(order[order < 3 * count].reshape(-1, count)[:2])]
        pool = torch.full((1, 2, kv_heads, 4 * count * block, HEAD_DIM), float("nan"))
        fields = {"heads": self.heads, "kv_heads": kv_heads, "key_dim": HEAD_DIM, "value_dim": HEAD_DIM}
        layer = LayerAttention(**{**fields, "scale": HEAD_DIM**-0.5, **rule})
        self.kv = PagedKV(KVSpec(layers=(layer,)), [pool], block, aligned=True)
        self.sinks = torch.randn(self.heads) if layer.sinks else None
        self.queries = torch.randn(3, LENGTH, self.heads, HEAD_DIM)
        positions = np.arange(LENGTH)
        for table in self.tables:
            slots = torch.from_numpy(table[positions // block] * block + positions % block)
            self.kv.write_joined(0, slots, torch.randn(LENGTH, 2, kv_heads, HEAD_DIM))

    def compute(self, parts: list[tuple[int, int, int]]) -> list[torch.Tensor]:
        """Each part is (sequence, first position, tokens) of one step."""
        spans, first = [], 0
        for number, position, size in parts:
            spans.append(Span(first, size, position, self.tables[number], number == 0))
            first += size
        queries = torch.cat([self.queries[number, position : position + size] for number, position, size in parts])
        attention = AlignedAttention(self.kv, spans, self.kv.spec.layers)
        return list(attention(0, queries, self.sinks).split([size for _, _, size in parts]))


@pytest.mark.parametrize(
    ("window", "shape"), pairwise([None, 7, 64, 100], [(2, 2, 32), (1, 1, 8), (2, 3, 16), (1, 12, 64)]), ids=str
)
def test_a_token_has_the_same_bits_in_every_step(shape: tuple[int, int, int], window: int | None) -> None:
    check(Sequences(*shape, window=window))


@pytest.mark.parametrize(
    "rule",
    [
        {"chunk": 48},
        {"chunk": 21},
        {"soft_cap": 1.0, "scale": 1.0, "window": 50},
        {"slopes": (0.5, 0.25, 0.125, 0.0625), "window": 70},
        {"sinks": True},
        {"sinks": True, "soft_cap": 2.0, "slopes": (0.5, 0.25, 0.125, 0.0625), "chunk": 90, "window": 64},
    ],
)
def test_the_same_with_all_that_layers_may_ask_for(rule: dict[str, Any]) -> None:
    check(Sequences(2, 2, 32, **rule))


def check(some: Sequences) -> None:
    random = np.random.default_rng(0)
    whole = [some.compute([(number, 0, LENGTH)])[0] for number in range(3)]
    assert all(torch.isfinite(one).all() for one in whole)
    for position in [0, 1, 6, 7, 8, 63, 64, 65, 127, 128, *random.integers(0, LENGTH, 10)]:
        (alone,) = some.compute([(1, position, 1)])
        assert torch.equal(alone[0], whole[1][position])
    for _ in range(20):
        parts = []
        for number in random.permutation(3):
            position = int(random.integers(0, LENGTH))
            parts.append((int(number), position, int(random.integers(1, LENGTH - position + 1))))
        for (number, position, size), found in zip(parts, some.compute(parts), strict=True):
            assert torch.equal(found, whole[number][position : position + size])
