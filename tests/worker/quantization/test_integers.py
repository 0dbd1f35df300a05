"""Whole numbers of a few bits: what unpacking them takes of memory, which may be a GPU's beside the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from actorserve.actors.model.formats.stored import AwqWeight, GptqWeight, PackedWeight, WeightFormat
from actorserve.actors.worker.formats import integers
from actorserve.actors.worker.formats.integers import Affine, awq_parts, gptq_parts, packed_parts
from tests.support.gpu.dispatch_mode import DispatchMode

ROWS, COLUMNS, GROUP = 128, 192, 32


class LargestResult(DispatchMode):
    """Sees how many bytes any operation's result has."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, operation: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        result = operation(*given, **(named or {}))
        if isinstance(result, torch.Tensor):
            self.most = max(self.most, result.numel() * result.element_size())
        return result


def words(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) + shape[0])
    return torch.randint(-(1 << 31), 1 << 31, shape, generator=generator).int()


def case(name: str, bits: int) -> tuple[Any, WeightFormat, dict[str, torch.Tensor]]:
    groups = COLUMNS // GROUP
    if name == "awq":
        stored = {"qweight": words(COLUMNS, ROWS // 8), "qzeros": words(groups, ROWS // 8)}
        return awq_parts, AwqWeight(group=GROUP), stored | {"scales": torch.ones(groups, ROWS)}
    if name == "gptq":
        stored = {"qweight": words(COLUMNS * bits // 32, ROWS), "qzeros": words(groups, ROWS * bits // 32)}
        return (
            gptq_parts,
            GptqWeight(bits=bits, group=GROUP, zero_less=1, reordered=False),
            stored | {"scales": torch.ones(groups, ROWS)},
        )
    stored = {"weight_packed": words(ROWS, COLUMNS * bits // 32), "weight_scale": torch.ones(ROWS, groups)}
    return packed_parts, PackedWeight(bits=bits, group=GROUP, symmetric=True), stored


@pytest.mark.parametrize(("name", "bits"), [("awq", 4), ("gptq", 3), ("gptq", 4), ("gptq", 8), ("packed", 4)])
def test_a_number_takes_a_byte(name: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most, but for some rows at a time; how many these are changes nothing."""
    parts, form, stored = case(name, bits)
    wanted: Affine = parts(form, stored, ROWS, COLUMNS)
    monkeypatch.setattr(integers, "AT_ONCE", 2 * COLUMNS)
    with LargestResult() as seen:
        found: Affine = parts(form, stored, ROWS, COLUMNS)
    assert found.numbers.dtype == torch.uint8 and found.numbers.shape == (ROWS, COLUMNS)
    assert torch.equal(found.numbers, wanted.numbers) and torch.equal(found.zeros, wanted.zeros)
    assert found.numbers.max() == (1 << bits) - 1 and seen.most == ROWS * COLUMNS
