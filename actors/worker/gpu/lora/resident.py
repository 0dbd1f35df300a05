"""The adapters that a worker of a GPU has: each in a slot of the device (slots.py), read and copied there by a thread.

There are as many slots as adapters may stay in memory (--max-cpu-loras). One that is to be read while none is free
waits until another is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ....model.layers import LinearSpec
from ....model.lora.adapter import AdaptedLinear
from ...lora.build import REFUSED, AdapterMaker
from ...lora.native import NativeLayout
from ...lora.resident import AdapterNews, AdapterReader
from .sites import SlotProduct
from .slots import AdapterSlots

REASONS = REFUSED | {
    r"lm_head$": "what makes logits is not adapted on a GPU (--device cpu)",
    r"experts(\.|$)": "experts are not adapted on a GPU (--device cpu)",
    r"kv_b_proj$": "what makes keys and values of latents is not adapted on a GPU (--device cpu)",
}


class GpuLayout(NativeLayout):
    """How a model's linear layers lie on a GPU: rows are as the checkpoint has them."""

    adapts_experts = False

    def apart(self, module: str, linear: AdaptedLinear) -> dict[str, AdaptedLinear]:
        return {module: linear}

    def arranged(self, linear: LinearSpec, rows: Tensor) -> Tensor:
        return rows


class SlotAdapters(AdapterReader[SlotProduct, int]):
    """What is kept of an adapter is the number of its slot."""

    def __init__(
        self, slots: AdapterSlots, maker: AdapterMaker[SlotProduct], max_rank: int, wake: Callable[[], None]
    ) -> None:
        self._slots = slots
        self._waiting: dict[int, tuple[str, int]] = {}  # path and stamp of those that have no slot yet
        super().__init__(maker, max_rank, wake)

    def keep(self, made: dict[int, SlotProduct], slot: int) -> int:
        self._slots.write(slot, made)
        return slot

    def begin(self, adapter: int, path: str, stamp: int, slot: int = 0) -> None:
        """Once it has a slot."""
        found = self._slots.take(adapter)
        if found is None:
            self._waiting[adapter] = path, stamp
        else:
            super().begin(adapter, path, stamp, found)

    def drop(self, adapter: int) -> None:
        self._waiting.pop(adapter, None)
        super().drop(adapter)
        self._give_up(adapter)

    def take_read(self) -> list[AdapterNews]:
        """What could not be read leaves its slot."""
        told = super().take_read()
        for news in told:
            if news.problem:
                self._give_up(news.adapter)
        return told

    def _give_up(self, adapter: int) -> None:
        self._slots.give_up(adapter)
        if self._waiting:
            following, (path, stamp) = next(iter(self._waiting.items()))
            del self._waiting[following]
            self.begin(following, path, stamp)
