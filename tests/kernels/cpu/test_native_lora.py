"""What adapters add, by lora.c: the formula's, and a row's bits whatever stands beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from actorserve.kernels.cpu.native.library import Library
from actorserve.kernels.cpu.native.lora import LoraAdded, LoraFactors, LoraRows

from .test_native import NAMES, libraries

__all__ = ["libraries"]
PARTS = (40, 5, 19)  # outputs of the layers of one product
RANKS = ((8, 8, 8), (3, 0, 17), (0, 1, 0))  # of adapters
INPUTS = 70

Factors = tuple[Tensor, Sequence[Tensor]]


def random_factors(ranks: Sequence[int], generator: torch.Generator) -> Factors:
    parts = [torch.randn(outputs, rank, generator=generator) for outputs, rank in zip(PARTS, ranks, strict=True)]
    return torch.randn(sum(ranks), INPUTS, generator=generator), parts


def formula(x: Tensor, factors: Factors) -> Tensor:
    a, parts = factors
    inner = (x.double() @ a.double().T).split([part.shape[1] for part in parts], 1)
    return torch.cat([own @ part.double().T for own, part in zip(inner, parts, strict=True)], 1)


@pytest.mark.parametrize("variant", NAMES)
def test_rows_have_what_their_adapter_adds(libraries: dict[str, Library], variant: str) -> None:
    library, generator = libraries[variant], torch.Generator().manual_seed(7)
    given = [random_factors(ranks, generator) for ranks in RANKS]
    made = [LoraFactors(a, parts, torch.clone) for a, parts in given]
    x, before = (torch.randn(170, size, generator=generator) for size in (INPUTS, sum(PARTS)))
    own = np.random.default_rng(7).integers(0, len(RANKS) + 1, 170)  # 0: none
    own[60:140] = 1
    groups = [np.flatnonzero(own == number) for number in range(1, len(RANKS) + 1)]
    found = before.clone()
    library.set_threads(3)
    LoraAdded(library, LoraRows(groups, 170), [made]).add(found, x)
    for number, rows in enumerate(groups):
        assert (found[rows] - before[rows] - formula(x[rows], given[number])).abs().max() < 1e-3
    assert torch.equal(found[own == 0], before[own == 0])
    library.set_threads(1)
    for row in (0, 7, 60, 101, 169):
        if own[row]:
            alone = before[row : row + 1].clone()
            LoraAdded(library, LoraRows([np.array([0])], 1), [[made[own[row] - 1]]]).add(alone, x[row : row + 1])
            assert torch.equal(alone[0], found[row])


def test_an_adapter_may_have_nothing_for_a_product(libraries: dict[str, Library]) -> None:
    library, generator = libraries[NAMES[0]], torch.Generator().manual_seed(8)
    factors = random_factors(RANKS[0], generator)
    made, x = LoraFactors(*factors, torch.clone), torch.randn(4, INPUTS, generator=generator)
    rows = LoraRows([np.array([1, 3]), np.array([0, 2])], 4)
    found = torch.zeros(4, sum(PARTS))
    LoraAdded(library, rows, [[None, made]]).add(found, x)
    assert not found[[1, 3]].any() and (found[[0, 2]] - formula(x[[0, 2]], factors)).abs().max() < 1e-3
