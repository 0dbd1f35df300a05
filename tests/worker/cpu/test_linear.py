"""Packed products: few rows become what they become among many."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from actorserve.actors.worker.cpu.layers.linear import PackedLinear

pytestmark = pytest.mark.skipif(not PackedLinear.works(torch.float32), reason="this torch has no packed products")


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("biased", [False, True])
def test_few_rows_are_what_they_are_among_many(rows: int, biased: bool) -> None:
    weight, x, residual = torch.randn(384, 256), torch.randn(16, 256), torch.randn(16, 384)
    bias = torch.randn(384) if biased else None
    many = PackedLinear(weight, bias)(x)
    torch.testing.assert_close(many, F.linear(x, weight, bias), atol=1e-4, rtol=1e-5)
    for from_memory in (False, True):
        linear = PackedLinear(weight, bias, from_memory)
        assert linear.fewest == (PackedLinear.FEWEST if from_memory else 1)
        few = linear(x[:rows])
        torch.testing.assert_close(few, many[:rows], atol=1e-5, rtol=1e-6)
        added = residual[:rows].clone()
        linear.add_to(added, x[:rows])
        torch.testing.assert_close(added, residual[:rows] + many[:rows], atol=1e-5, rtol=1e-6)
