"""A check is left out for what has passed it, and for nothing else."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from actorserve.kernels import checked


class Pair(NamedTuple):
    one: Tensor
    other: Tensor | None


def test_what_has_passed_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "MOST", 9)
    seen = []

    @checked.once_for_each_form
    def check(matrix: Tensor, pair: Pair, named: dict[str, Tensor], number: int) -> None:
        seen.append(number)
        if matrix.shape[0] > 8:
            raise ValueError("too large")

    def given(rows: int = 2, **others: object) -> tuple[object, ...]:
        x = torch.zeros(rows, 6)
        return tuple({"matrix": x, "pair": Pair(x, None), "named": {"x": x}, "number": 1, **others}.values())

    check(*given())
    check(*given())
    assert len(seen) == 1, "other memory of the same form"
    for other in (
        given(3),
        given(matrix=torch.zeros(6, 2).t()),
        given(matrix=torch.zeros(2, 6, dtype=torch.float16)),
        given(matrix=torch.zeros(2, 6, device="meta")),
        given(pair=Pair(torch.zeros(2, 6), torch.zeros(1))),
        given(named={"y": torch.zeros(2, 6)}),
        given(number=2),
    ):
        before = len(seen)
        check(*other)
        check(*other)
        assert len(seen) == before + 1
    for _ in range(2):
        with pytest.raises(ValueError, match="too large"):
            check(*given(9))
    assert len(seen) == 10, "what was refused is refused again"
    for rows in (4, 5, 6):
        check(*given(rows))
    check(*given())
    assert len(seen) == 14, "no more are remembered than there is room for"
