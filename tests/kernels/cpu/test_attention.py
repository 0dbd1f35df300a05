"""Paged attention against the formula, over blocks in any order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from actorserve.kernels.cpu import attention as cpu_attention
from actorserve.kernels.cpu import decode as cpu_decode
from actorserve.kernels.cpu.aligned import AlignedAttention
from actorserve.kernels.cpu.attention import PagedKV, Span, StepAttention

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
LENGTHS = [(1, 1328), (5, 18), (129, 463), (1, 1), (1, 64), (300, 300), (2, 65), (128, 256)]  # (queries, context)


@pytest.fixture(autouse=True, params=["numpy", "torch"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose products decode."""
    if request.param == "torch":
        monkeypatch.setattr(cpu_attention, "pays", lambda pool: False)
    elif not cpu_decode.prepare_numpy():
        pytest.skip("this numpy has no OpenBLAS of its own")
    monkeypatch.setattr(cpu_decode, "MOST_THREADS", 1 << 10)


@dataclass(frozen=True)
class Case:
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 32
    window: int | None = None
    block_size: int = 32
    dtype: torch.dtype = torch.float32
    aligned: bool = False
    order: str = "mixed"  # how blocks follow one another: in one run, scattered, or either


def reference(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None) -> torch.Tensor:
    """[queries, heads, head_dim] over [context, kv_heads, head_dim], the last query at the last key; in float64."""
    q, keys, values = q.double(), keys.double(), values.double()
    group = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * q.shape[2] ** -0.5
    distance = torch.arange(len(keys) - len(q), len(keys))[:, None] - torch.arange(len(keys))[None]
    seen = (distance >= 0) & (distance < (window or len(keys)))
    shares = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    return torch.einsum("hqk,khd->qhd", shares, values)


def check(case: Case, lengths: list[tuple[int, int]] = LENGTHS, layers: int = 2) -> None:
    """A mixed batch; everything that is not a written slot is NaN, which must not be read."""
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    needed = [-(-context // case.block_size) for _, context in lengths]
    blocks = 2 * sum(needed)
    shape = (layers, 2, case.kv_heads, blocks * case.block_size, case.head_dim)
    kv = PagedKV(torch.full(shape, float("nan"), dtype=case.dtype), case.block_size, case.aligned)
    tables, kinds = [], []
    scattered = random.permutation(np.arange(sum(needed), blocks))
    for index, count in enumerate(needed):
        one_run = case.order == "run" or (case.order == "mixed" and index % 2 == 0)
        kinds.append(one_run)
        first = sum(needed[:index])
        tables.append(np.arange(first, first + count) if one_run else scattered[first : first + count])
    total = sum(queries for queries, _ in lengths)
    q = torch.randn(layers, total, case.kv_heads * case.group, case.head_dim).to(case.dtype)
    memories = []
    for table, (_, context) in zip(tables, lengths, strict=True):
        memory = torch.randn(layers, context, 2, case.kv_heads, case.head_dim).to(case.dtype)
        positions = np.arange(context)
        slots = torch.from_numpy(table[positions // case.block_size] * case.block_size + positions % case.block_size)
        for layer in range(layers):
            kv.write(layer, slots, memory[layer])
        memories.append(memory)
    firsts = np.cumsum([0, *(queries for queries, _ in lengths)])
    spans = [
        Span(int(first), queries, context - queries, table, kind)
        for first, (queries, context), table, kind in zip(firsts, lengths, tables, kinds, strict=False)
    ]
    windows = [None if layer % 2 else case.window for layer in range(layers)]
    make = AlignedAttention if case.aligned else StepAttention
    attention = make(kv, spans, windows, case.kv_heads * case.group, case.head_dim**-0.5)
    for layer in range(layers):
        out = attention(layer, q[layer])
        for span, memory in zip(spans, memories, strict=True):
            rows = slice(span.first, span.first + span.size)
            wanted = reference(q[layer, rows], memory[layer, :, 0], memory[layer, :, 1], windows[layer])
            torch.testing.assert_close(out[rows].double(), wanted, rtol=0, atol=TOLERANCE[case.dtype])


@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("order", ["run", "scattered", "mixed"])
@pytest.mark.parametrize("aligned", [False, True])
def test_blocks_and_windows(window: int | None, block_size: int, order: str, aligned: bool) -> None:
    check(Case(window=window, block_size=block_size, order=order, aligned=aligned))


@pytest.mark.parametrize("head_dim", [32, 64, 80, 128])
@pytest.mark.parametrize("window", [None, 64, 7])
@pytest.mark.parametrize("aligned", [False, True])
def test_head_sizes(head_dim: int, window: int | None, aligned: bool) -> None:
    check(Case(head_dim=head_dim, window=window, aligned=aligned))


@pytest.mark.parametrize("group", range(1, 8))
@pytest.mark.parametrize("aligned", [False, True])
def test_groups(group: int, aligned: bool) -> None:
    check(Case(group=group, kv_heads=3, window=100, aligned=aligned))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 64])
def test_types_of_16_bits(dtype: torch.dtype, window: int | None) -> None:
    check(Case(dtype=dtype, window=window, head_dim=64))


def test_strided_queries() -> None:
    """The model hands over a part of a wider matrix."""
    kv = PagedKV(torch.randn(1, 2, 2, 64, 32), 32)
    wide = torch.randn(3, 8, 32)
    spans = [Span(0, 1, 40, np.array([0, 1]), True), Span(1, 2, 38, np.array([1, 0]), False)]
    attention = StepAttention(kv, spans, [None], 4, 1.0)
    torch.testing.assert_close(attention(0, wide[:, :4]), attention(0, wide[:, :4].contiguous()))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_only_the_given_slots_are_written(dtype: torch.dtype) -> None:
    kv = PagedKV(torch.zeros(2, 2, 2, 64, 8, dtype=dtype), 16)
    keys_values = torch.randn(3, 6, 2, 8).to(dtype)[:, 2:4]  # the model hands over a part of a wider matrix
    kv.write(1, torch.tensor([63, 0, 17]), keys_values)
    assert torch.equal(kv.pool[1, :, :, [63, 0, 17]], keys_values.permute(1, 2, 0, 3))
    written = kv.pool.abs().sum((0, 1, 2, 4)) > 0
    assert written.nonzero()[:, 0].tolist() == [0, 17, 63] and not kv.pool[0].any()
