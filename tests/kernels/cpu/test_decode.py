"""Decoding with numpy's products: how rows are grouped, and that a row's result does not depend on the others."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from actorserve.actors.model.memory.kv import uniform
from actorserve.kernels.cpu import decode as cpu_decode
from actorserve.kernels.cpu.attention import StepAttention
from actorserve.kernels.cpu.decode import LIBRARIES, TOGETHER, WIDTH, Row, _divide, prepare_numpy
from actorserve.kernels.cpu.paged_kv import PagedKV, Span

BLOCK = 16


@pytest.fixture(autouse=True)
def numpy_products(monkeypatch: pytest.MonkeyPatch) -> None:
    if not prepare_numpy():
        pytest.skip("this numpy has no OpenBLAS of its own")
    monkeypatch.setattr(cpu_decode, "MOST_THREADS", 1 << 10)


def spans_of(sizes: list[int], scattered: bool) -> list[Span]:
    """Rows of one token that see so many, each in blocks of its own."""
    spans, first = [], 0
    for row, size in enumerate(sizes):
        count = -(-size // BLOCK)
        blocks = np.arange(first, first + count)
        spans.append(Span(row, 1, size - 1, blocks[::-1].copy() if scattered else blocks, not scattered))
        first += count
    return spans


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("scattered", [False, True])
def test_a_row_has_the_same_bits_beside_any_others(window: int | None, scattered: bool) -> None:
    torch.manual_seed(0)
    sizes = [1, 2, 15, 16, 17, 31, 63, 64, 65, 100, 200, 511, 512, 513, 1025, 2049]
    spec = uniform([None, window], 4, 2, 32, 0.2)
    kv = PagedKV(spec, [torch.randn(2, 2, 2, BLOCK * sum(-(-size // BLOCK) for size in sizes), 32)], BLOCK)
    queries = torch.randn(len(sizes), 4, 32)
    spans = spans_of(sizes, scattered)
    together = StepAttention(kv, spans, spec.layers)
    assert all(plan.by_numpy is not None for plan in together.plans)
    wanted = [together(layer, queries).clone() for layer in range(2)]
    for row, span in enumerate(spans):
        alone = StepAttention(kv, [span._replace(first=0)], spec.layers)
        for layer in range(2):
            assert torch.equal(alone(layer, queries[row : row + 1])[0], wanted[layer][row]), (sizes[row], layer)


def test_layers_with_different_windows_do_not_share_scores() -> None:
    """Attention is called in the order of layers, so each window's scores must outlive the other's."""
    torch.manual_seed(0)
    spec, pool = uniform([None, 20, None, 20], 4, 2, 32, 0.2), torch.randn(4, 2, 2, 256, 32)
    kv = PagedKV(spec, [pool], BLOCK)
    queries, spans = torch.randn(2, 4, 32), spans_of([100, 90], scattered=False)
    mixed = StepAttention(kv, spans, spec.layers)
    found = [mixed(layer, queries).clone() for layer in range(4)]
    for layer in range(4):
        alike = uniform([20 if layer % 2 else None] * 4, 4, 2, 32, 0.2)
        alone = StepAttention(PagedKV(alike, [pool], BLOCK), spans, alike.layers)
        assert torch.equal(alone(layer, queries), found[layer])


def test_rows_of_similar_length_share_a_softmax() -> None:
    sizes = [1, 64, 65, 100, 128, 129, 300, 4000]
    parts = _divide([Row(row, size, 0) for row, size in enumerate(sizes)], TOGETHER)
    assert [sorted(row.size for row in part) for part, _ in parts] == [[4000], [129, 300], [1, 64, 65, 100, 128]]
    assert [width for _, width in parts] == [4032, 320, 128]
    assert all(width % WIDTH == 0 and width >= max(row.size for row in part) for part, width in parts)


def test_groups_are_not_larger_than_the_cache() -> None:
    parts = _divide([Row(row, 100, 0) for row in range(7)], 3 * 128)
    assert [len(part) for part, _ in parts] == [3, 3, 1]


def test_16_bits_and_many_threads_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = torch.zeros(1, 2, 2, 32, 8)
    assert cpu_decode.pays(pool) and not cpu_decode.pays(pool.half())
    monkeypatch.setattr(cpu_decode, "MOST_THREADS", torch.get_num_threads() - 1)
    assert not cpu_decode.pays(pool)


def test_openblas_takes_one_thread() -> None:
    files = list((Path(np.__file__).parent.parent / "numpy.libs").glob(LIBRARIES))
    libraries = [ctypes.CDLL(str(file)) for file in files]
    counts = [
        getattr(library, name)()
        for library in libraries
        for name in ("scipy_openblas_get_num_threads64_", "scipy_openblas_get_num_threads")
        if hasattr(library, name)
    ]
    assert counts and set(counts) == {1}
