"""The KV memory of rows that have read, as one pass of a decoder needs it: on a CPU; eager/kv.py has that of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from actorserve.kernels.cpu.attention import StepAttention, contexts
from actorserve.kernels.cpu.paged_kv import Layers, PagedKV, Span


class AnyRowsKV(Protocol):
    """RowsKV, or that of a GPU (eager/kv.py)."""

    @property
    def block_size(self) -> int: ...

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None: ...

    def attention(self, spans: Sequence[Span], layers: Layers, crosses: bool = False) -> Any: ...

    def blocks_of(self, span: Span) -> Any: ...

    def contexts(self, span: Span, blocks: Any, layers: Layers, layer: int) -> tuple[Tensor, Tensor]: ...


class RowsKV(NamedTuple):
    """One KV memory, seen twice: what a step of attention lays aside lasts until the next one of the same view."""

    own: PagedKV  # which is written
    cross: PagedKV

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.own.block_size

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [tokens, kv_heads, width]."""
        self.own.write(layer, slots, keys, values)

    def attention(self, spans: Sequence[Span], layers: Layers, crosses: bool = False) -> StepAttention:
        """Of a step; that of the encoder's part `crosses`."""
        return StepAttention(self.cross if crosses else self.own, spans, layers)

    def blocks_of(self, span: Span) -> None:
        """A span's are known where it is read."""

    def contexts(self, span: Span, blocks: None, layers: Layers, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, positions, width] of a span, its own included."""
        ((keys, values),) = contexts(self.own, [span], layers, layer)
        return keys, values
