"""A linear layer's weight in few bits, as the product with it (stored_linear.py) reads it.

    w = (number - zero) · scale - minimum        of each `group` numbers of a row that lie in turn, [outputs, groups]
    bits4   numbers 0 to 15
    bits8   numbers 0 to 255 (those with a sign have 128 added to them, and 128 as their zero)
    e2m1    floats of 4 bits, without a zero
    e4m3    floats of 8 bits, without a zero
Zeros are one number for all, or one of 8 bits for each group; minima are there or not. Scales and minima may be whole
numbers of 8 bits, of which `above` has a float16 for several groups together. Rows are filled up to a multiple of 128
numbers, and of 4 bits lie as those of experts do: both halves of bytes hold numbers that lie side by side.
Knows tensors only; no kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..moe.weights import FLOATS, LEVELS, packed, padded

FOUR_BITS = ("bits4", "e2m1")
FORMS = (*FOUR_BITS, "bits8", "e4m3")
SMALL = (torch.uint8, torch.int8)  # of scales and minima, where floats stand above them
LEAST_GROUP = 16  # numbers, of which tensor cores take as many at once


class StoredWeight(NamedTuple):
    """Of one product."""

    form: str
    numbers: Tensor  # uint8 [outputs, bytes]
    inputs: int
    scales: Tensor  # floats [outputs, groups], or with `above` whole numbers of 8 bits
    group: int  # numbers that share a scale; all of a row's where there is one scale
    zeros: Tensor | None = None  # uint8 [outputs, groups]
    zero: int = 0  # without those
    factors: Tensor | None = None  # float32 [outputs]: of all scales of a row
    minima: Tensor | None = None  # as the scales
    above: Tensor | None = None  # float16 [outputs, groups / together, 1 or 2]: of scales, and of minima
    together: int = 0  # groups that share one of these

    @property
    def outputs(self) -> int:
        return len(self.numbers)

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self if isinstance(part, Tensor))

    def to(self, device: torch.device | str) -> StoredWeight:
        return self.each(lambda part: part.to(device))

    def each(self, change: Callable[[Tensor], Tensor]) -> StoredWeight:
        """With changed tensors."""
        made: dict[str, Any] = {name: change(part) for name, part in self._asdict().items() if isinstance(part, Tensor)}
        return self._replace(**made)

    def check(self) -> None:
        """ValueError if it is none of those."""
        numbers, width = self.numbers, padded(self.inputs) // (2 if self.form in FOUR_BITS else 1)
        if self.form not in FORMS or numbers.dtype != torch.uint8 or numbers.shape[1:] != (width,):
            raise ValueError(f"numbers {numbers.dtype}{list(numbers.shape)} are no {self.form} of {self.inputs} inputs")
        groups = -(-self.inputs // self.group)
        if groups > 1 and self.group % LEAST_GROUP:
            raise ValueError(f"groups of {self.group} numbers; multiples of {LEAST_GROUP} can be multiplied")
        wanted = (len(numbers), groups)
        steps = FLOATS if self.above is None else SMALL
        own = {"scales": (self.scales, steps), "zeros": (self.zeros, (torch.uint8,)), "minima": (self.minima, steps)}
        for name, (part, kinds) in own.items():
            if part is not None and (part.shape != wanted or part.dtype not in kinds):
                raise ValueError(f"{name} {part.dtype}{list(part.shape)} do not fit {self.form} {list(wanted)}")
        if self.above is not None:
            sizes = (len(numbers), -(-groups // max(1, self.together)), 1 if self.minima is None else 2)
            if self.above.shape != sizes or self.above.dtype != torch.float16 or groups == 1:
                raise ValueError(f"above {self.above.dtype}{list(self.above.shape)} does not fit float16 {list(sizes)}")
        if self.factors is not None and (self.factors.shape != wanted[:1] or self.factors.dtype != torch.float32):
            raise ValueError(f"factors {self.factors.dtype}{list(self.factors.shape)} do not fit {wanted[0]} outputs")
        if not all(part.is_contiguous() for part in self if isinstance(part, Tensor)):
            raise ValueError("numbers, scales and zeros must lie side by side")


def stored_weight(
    form: str,
    numbers: Tensor,
    scales: Tensor,
    group: int,
    zeros: Tensor | None = None,
    zero: int = 0,
    factors: Tensor | None = None,
    minima: Tensor | None = None,
    above: Tensor | None = None,
    together: int = 0,
) -> StoredWeight:
    """Of numbers [outputs, inputs]: whole ones from 0 on, or the bits of floats."""
    inputs = numbers.shape[1]
    whole = numbers.to(torch.uint8)
    filled = packed(whole) if form in FOUR_BITS else F.pad(whole, (0, padded(inputs) - inputs))
    own = StoredWeight(form, filled, inputs, scales, group, zeros, zero, factors, minima, above, together)
    made = own.each(Tensor.contiguous)
    made.check()
    return made


def decoded(weight: StoredWeight) -> Tensor:
    """float32 [outputs, inputs]: what the numbers mean, by torch alone."""
    numbers = unpacked(weight)
    if weight.form == "e4m3":
        values = numbers.view(torch.float8_e4m3fn).float()
    elif weight.form == "e2m1":
        levels = torch.tensor([*LEVELS, *(-level for level in LEVELS)], device=numbers.device)
        values = levels[numbers.long()]
    else:
        zeros = weight.zero if weight.zeros is None else _spread(weight.zeros, weight).float()
        values = numbers.float() - zeros
    scales, minima = (_whole(part, number, weight) for number, part in enumerate((weight.scales, weight.minima)))
    assert scales is not None
    values = values * _spread(scales, weight)
    if minima is not None:
        values = values - _spread(minima, weight)
    return values if weight.factors is None else values * weight.factors[:, None]


def _whole(part: Tensor | None, number: int, weight: StoredWeight) -> Tensor | None:
    """Scales or minima, float32 [outputs, groups]."""
    if part is None or weight.above is None:
        return part if part is None else part.float()
    above = weight.above[..., number].float().repeat_interleave(weight.together, 1)
    return part.float() * above[:, : part.shape[1]]


def unpacked(weight: StoredWeight) -> Tensor:
    """Its numbers [outputs, inputs] as uint8."""
    bits = weight.numbers
    if weight.form in FOUR_BITS:
        bits = torch.stack([bits & 15, bits >> 4], 1).unflatten(2, (-1, 64)).transpose(1, 2).flatten(1)
    return bits[:, : weight.inputs].contiguous()


def _spread(values: Tensor, weight: StoredWeight) -> Tensor:
    return values.repeat_interleave(weight.group, 1)[:, : weight.inputs] if values.shape[1] > 1 else values
