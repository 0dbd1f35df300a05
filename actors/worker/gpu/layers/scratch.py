"""In how many parts the keys of rows are divided among programs, and the memory in which these leave their results.

It follows from numbers of rows and tokens alone, so that a graph holds it. Layers of a step share the memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from actorserve.kernels.triton.attention import paged_prefill
from actorserve.kernels.triton.attention.decode_launch import places_of
from actorserve.kernels.triton.attention.paged_decode import split_count
from actorserve.kernels.triton.attention.tiles import Scratch

from ....model.architecture import Architecture
from ....model.memory.kv import LayerAttention
from ..graphs import FEW_CHUNKS, size_for

PROCESSORS = 16  # multiprocessors that there are taken to be where there is no GPU
FEW_ROWS = 2  # that a step with room for FEW_CHUNKS is taken to have when their keys are divided


def processors_of(device: torch.device) -> int:
    """Its multiprocessors."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else PROCESSORS


def attention_of(shape: Architecture) -> LayerAttention:
    """That of any layer, as far as memory for results goes, in which they are alike."""
    layer = shape.kv.layers[0]
    assert layer is not None, "all layers attend"
    return layer


def decode_splits(layer: LayerAttention, rows: int, longest: int, processors: int) -> int:
    """In how many parts the keys of so many rows are divided, of up to `longest` positions each."""
    latents = layer.values_in_keys
    places = places_of(layer.heads, layer.kv_heads, latents)
    return split_count(rows, places, longest, processors, "latents" if latents else "16 bits")


class SplitScratch:
    """For one model."""

    def __init__(self, shape: Architecture, longest: int, counts: Iterable[int], device: torch.device) -> None:
        """`counts`: of rows that decode, for which there are graphs, and the most that there may be."""
        processors, layer = processors_of(device), attention_of(shape)
        self._layer, self._longest, self._device, self.processors = layer, longest, device, processors
        self._splits = {count: decode_splits(layer, count, longest, processors) for count in sorted(counts)}
        most = max(size * splits for size, splits in self._splits.items())
        self._partial = torch.empty(most * layer.heads * layer.value_dim, device=device)
        self._sums = torch.empty(most * layer.heads, device=device)

    def of(self, rows: int) -> Scratch:
        """For so many rows that decode."""
        heads, width = self._layer.heads, self._layer.value_dim
        counts = [*self._splits]
        splits = self._splits[size_for(counts, rows) or counts[-1]]
        count = rows * heads * splits
        partial = self._partial[: count * width].view(rows, heads, splits, width)
        return Scratch(partial, self._sums[:count].view(rows, heads, splits))

    def of_chunks(self, tokens: int, chunks: int, keys: Tensor) -> Scratch | None:
        """For so many chunks of so many tokens, if their keys, such as lie in `keys`, are to be divided."""
        heads, rows = self._layer.heads, FEW_ROWS if chunks <= FEW_CHUNKS else chunks
        splits = paged_prefill.split_count(tokens, rows, heads, keys, self._longest, self.processors)
        return Scratch.of(tokens, heads, self._layer.value_dim, splits, self._device) if splits > 1 else None
