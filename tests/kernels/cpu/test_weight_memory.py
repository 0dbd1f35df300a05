"""Memory of weights: tensors of their own in large pages, wherever the system has these."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from actorserve.kernels.cpu.native import weight_memory
from actorserve.kernels.cpu.native.weight_memory import BLOCK, LINE, PAGE, WeightMemory


def large_bytes() -> int:
    """Of this process's memory, in large pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages"))


@pytest.mark.parametrize("advice", [weight_memory.ADVICE, None, 12345])
def test_weights_are_zeros_that_share_nothing(advice: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are no large pages, and where the kernel knows none."""
    monkeypatch.setattr(weight_memory, "ADVICE", advice)
    memory = WeightMemory()
    shapes = [(1025, 2051), (3, 5), (1024, 1024), (PAGE + 1,), (BLOCK // 1024 + 3, 1024), (777, 3001)]
    made = [memory.zeros(shape, torch.int8) for shape in shapes] + [memory.zeros((600, 1000), torch.float32)]
    for tensor, shape in zip(made, [*shapes, (600, 1000)], strict=True):
        assert tensor.shape == shape and tensor.is_contiguous() and not tensor.any()
        assert tensor.data_ptr() % LINE == 0
    for number, tensor in enumerate(made):
        tensor.fill_(number + 1)
    assert all((tensor == number + 1).all() for number, tensor in enumerate(made))


def test_a_copy_outlives_its_source_and_its_memory() -> None:
    memory, weight = WeightMemory(), torch.randn(2000, 1000).bfloat16()
    copy = memory.copied(weight)
    expected = weight.clone()
    weight.zero_()
    del memory
    assert copy.dtype == torch.bfloat16 and torch.equal(copy, expected)


def test_whole_pages_are_large_where_the_system_gives_them() -> None:
    switch = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not switch.exists() or "[never]" in switch.read_text():
        pytest.skip("this system has no large pages")
    before = large_bytes()
    weight = WeightMemory().zeros((16 * PAGE,), torch.int8)
    assert large_bytes() - before < PAGE, "nothing is memory before it is written"
    weight.fill_(1)
    if large_bytes() - before < PAGE:
        pytest.skip("this system has none left")
    assert large_bytes() - before <= 17 * PAGE
