"""The products of a model that adapters may change, on a GPU: each has slots on the device, the same for all of them.

Which tokens of a step have which slot is set while a forward pass runs, or is captured (`giving`). Where none has one,
nothing is set, and a product is what it is without: graphs of such steps have no launch more (steps.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from actorserve.kernels.triton.linear.lora import LoraSlots, TokenBlocks, expand, make_inner, shrink

from ...lora.products import Keep
from ...quantization.base import GpuLinear


class SlotProduct(NamedTuple):
    """What one adapter has for one product, on the host, in float32; as LoraProduct's on a CPU."""

    a: Tensor  # [ranks of all parts, inputs]
    parts: Sequence[Tensor]  # B of each [outputs, rank], with its scale
    gain: Tensor | None  # [outputs], of DoRA


class SideStream:
    """Work beside that of the stream that is current, which may be captured."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Behind what was given so far; `join` is to follow."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """What is given from now on waits for it."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)


class GpuLoraSites:
    """Of one model."""

    def __init__(self, slots: int, rank: int, device: torch.device) -> None:
        """`slots` for adapters of up to `rank`."""
        self.count, self.rank, self.device = slots, rank, device
        self.linears: list[GpuLoraLinear] = []
        self.given: TokenBlocks | None = None  # of the step
        self.side = SideStream(device)

    def wrap(
        self,
        base: GpuLinear,
        modules: Sequence[str],
        sizes: Sequence[int],
        inputs: int,
        dtype: torch.dtype,
        bias: Tensor | None,
    ) -> GpuLoraLinear:
        """The product of these layers, of so many outputs each, side by side, with room for adapters."""
        slots = LoraSlots.make(tuple(sizes), inputs, self.count, self.rank, dtype, self.device)
        made = GpuLoraLinear(self, len(self.linears), base, tuple(modules), slots, bias)
        self.linears.append(made)
        return made

    @property
    def bytes(self) -> int:
        """Of all slots."""
        return sum(part.numel() * part.element_size() for one in self.linears for part in one.slots[:4])

    @contextmanager
    def giving(self, given: TokenBlocks) -> Iterator[None]:
        """Meanwhile these are the tokens that have adapters."""
        self.given = given
        try:
            yield
        finally:
            self.given = None


class GpuLoraLinear:
    """y = x Wᵀ + b, and what the adapters of a step add to their tokens."""

    def __init__(
        self,
        sites: GpuLoraSites,
        number: int,
        base: GpuLinear,
        modules: tuple[str, ...],
        slots: LoraSlots,
        bias: Tensor | None,
    ) -> None:
        self.sites, self.number, self.base, self.modules = sites, number, base, modules
        self.slots, self.bias = slots, bias

    def __call__(self, x: Tensor) -> Tensor:
        """A x is made beside the product itself, which mostly takes longer."""
        given = self.sites.given
        if given is None:
            return self.base(x)
        inner = make_inner(len(x), self.slots, x.device)
        with self.sites.side.begun():
            shrink(x, self.slots, given, inner)
        y = self.base(x)
        self.sites.side.join()
        expand(inner, y, self.bias, self.slots, given)
        return y

    def product(self, a: Tensor, parts: Sequence[Tensor], gain: Tensor | None, keep: Keep) -> SlotProduct:
        """One adapter's for it."""
        return SlotProduct(keep(a), [keep(part) for part in parts], gain)
