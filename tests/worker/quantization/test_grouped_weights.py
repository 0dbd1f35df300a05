"""Weights in groups of GGUF files: the same whether they are put in order as a whole or some rows at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actorserve.actors.model.gguf.header import BY_NAME
from actorserve.actors.model.memory.machine import cpu_flags
from actorserve.actors.worker.formats import grouped
from actorserve.actors.worker.models.tensors import is_finite
from actorserve.kernels.cpu.native import library as native
from actorserve.kernels.cpu.native import linear
from tests.support.compiler import need_compiler
from tests.support.models.gguf.files import PACKERS

OUTPUTS, INPUTS = 72, 512  # of the last block of outputs only some are there


@pytest.mark.parametrize("kind", PACKERS)
def test_some_rows_at_a_time_are_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need_compiler()
    library, form = native.load(cpu_flags()), BY_NAME[kind]
    weight = np.random.default_rng(3).standard_normal((OUTPUTS, INPUTS)).astype(np.float32)
    data = torch.frombuffer(bytearray(PACKERS[kind](weight)), dtype=torch.uint8)
    blocks = data.view(OUTPUTS, INPUTS // form.numbers, form.size)
    found = []
    for least in (False, True):
        if least:
            monkeypatch.setattr(grouped, "AT_ONCE", 3 * form.size)
            monkeypatch.setattr(linear, "AT_ONCE", 1)
        parts = grouped._of_gguf(kind, blocks, lambda rows: rows)
        assert parts is not None
        found.append((parts, linear.grouped_linear(library, parts, None)))
    (whole, product), (some, other) = found
    assert torch.equal(whole.numbers, some.numbers)
    assert all(torch.equal(one, two) for one, two in zip(whole.scales, some.scales, strict=True))
    assert product.weight is not None and other.weight is not None and torch.equal(product.weight, other.weight)
    assert product.weight.any() and len(product.weight) == 80


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_that_is_no_number_is_found_wherever_it_is(dtype: torch.dtype, bad: float) -> None:
    numbers = torch.randn(7, 33).to(dtype)
    assert is_finite(numbers) and is_finite(numbers[:0])
    for place in (0, 100, -1):
        other = numbers.clone()
        other.view(-1)[place] = bad
        assert not is_finite(other)
