"""Slots of adapters on the device: which are free, which adapter has which, and how numbers come there.

Numbers are copied by a thread of its own, on a stream of its own, into a slot that no row of a step has, so that no
step waits. A slot that was given up is written to behind the steps that were started before.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor

from actorserve.kernels.triton.linear.lora import ABOUT, GAINED, LoraSlots

from .sites import GpuLoraSites, SlotProduct

Products = Mapping[int, SlotProduct]  # of one adapter, by the numbers of sites


class AdapterSlots:
    """Of one model. `write` is the thread's; all else belongs to the actor's own."""

    def __init__(self, sites: GpuLoraSites) -> None:
        self.sites = sites
        self.slot_of: dict[int, int] = {}  # by the adapter's id
        self._free = list(range(sites.count))[::-1]
        cuda = self._cuda = sites.device.type == "cuda"
        self._stream = torch.cuda.Stream(sites.device) if cuda else None
        self._given_up: dict[int, torch.cuda.Event] = {}  # by slot: what was started before
        self._staging: dict[torch.dtype, Tensor] = {}  # pinned, as large as the largest of a product's
        for one in sites.linears:
            for part in one.slots[:4]:
                size = max(part[0].numel(), len(self._staging.get(part.dtype, ())))
                self._staging[part.dtype] = torch.empty(size, dtype=part.dtype)
        if cuda:
            self._staging = {dtype: part.pin_memory() for dtype, part in self._staging.items()}

    def take(self, adapter: int) -> int | None:
        """A slot for an adapter, if one is free."""
        if self._free:
            self.slot_of[adapter] = self._free.pop()
        return self.slot_of.get(adapter)

    def give_up(self, adapter: int) -> None:
        """No row has it any more, in steps that will be started."""
        slot = self.slot_of.pop(adapter, None)
        if slot is None:
            return
        if self._cuda:
            event = self._given_up[slot] = torch.cuda.Event()
            event.record()
        self._free.append(slot)

    def write(self, slot: int, products: Products) -> None:
        """An adapter's numbers, which are there when this returns."""
        device = torch.cuda.device(self.sites.device) if self._cuda else nullcontext()
        with device, torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            if self._stream is not None and slot in self._given_up:
                self._stream.wait_event(self._given_up[slot])
            for one in self.sites.linears:
                self._write(one.slots, slot, products.get(one.number))

    def _write(self, slots: LoraSlots, slot: int, product: SlotProduct | None) -> None:
        about = torch.zeros(ABOUT, dtype=torch.int32)
        if product is not None:
            for part, b in enumerate(product.parts):
                about[part] = b.shape[1]
            about[GAINED] = product.gain is not None
            self._send(slots.a[slot], _padded_a(product, slots))
            self._send(slots.b[slot], _padded_b(product, slots))
            if product.gain is not None:
                self._send(slots.gain[slot], product.gain)
        self._send(slots.about[slot], about)

    def _send(self, target: Tensor, values: Tensor) -> None:
        """Through pinned memory, which is used again once they are there."""
        staged = self._staging[target.dtype][: target.numel()].view(target.shape).copy_(values)
        target.copy_(staged, non_blocking=True)
        if self._stream is not None:
            event = torch.cuda.Event(blocking=True)
            event.record()
            event.synchronize()


def _padded_a(product: SlotProduct, slots: LoraSlots) -> Tensor:
    """With zeros up to the room that each part has."""
    made, begin = torch.zeros(slots.a.shape[1:]), 0
    for part, b in enumerate(product.parts):
        rank = b.shape[1]
        made[part * slots.ranks : part * slots.ranks + rank] = product.a[begin : begin + rank]
        begin += rank
    return made


def _padded_b(product: SlotProduct, slots: LoraSlots) -> Tensor:
    made, begin = torch.zeros(slots.b.shape[1:]), 0
    for b in product.parts:
        made[begin : begin + len(b), : b.shape[1]] = b
        begin += len(b)
    return made
