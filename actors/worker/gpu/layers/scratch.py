"""In how many parts the keys of rows are divided among programs, and the memory in which these leave their results.

It follows from numbers of rows and tokens alone, so that a graph holds it. Layers of a step share the memory.
Many rows are divided for few programs or none, since together they fill the device; but where one of them is far longer
than the others all wait for its programs. So there is a second way: long rows are divided, the others stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.triton.attention import paged_prefill
from actorserve.kernels.triton.attention.decode_launch import kind_of, places_of
from actorserve.kernels.triton.attention.paged_decode import split_count
from actorserve.kernels.triton.attention.tiles import Scratch

from ....model.architecture import Architecture
from ....model.memory.kv import LayerAttention
from ..graphs import FEW_CHUNKS, size_for

PROCESSORS = 16  # multiprocessors that there are taken to be where there is no GPU
LONG = 8192  # positions that a program may have to go through beside many others
MOST_PARTS, MOST_BYTES = 16, 32 << 20  # of a long row, and of what those of all rows leave
FEW_ROWS = 2  # that a step with room for FEW_CHUNKS is taken to have when their keys are divided; others have more


def processors_of(device: torch.device) -> int:
    """Its multiprocessors."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else PROCESSORS


def attention_of(shape: Architecture) -> LayerAttention:
    """That of the layer whose keys are divided into most parts: it sees everything, if one does, by the fewest
    programs. In most models layers are alike but for their windows."""
    layers = [layer for layer in shape.kv.layers if layer is not None]
    assert layers, "some layer attends"
    return min(layers, key=lambda layer: (layer.window is not None, _places(layer)))


def widest_of(shape: Architecture) -> tuple[int, int]:
    """(heads of queries, numbers of each) for whose results the results of any layer have room."""
    layers = [layer for layer in shape.kv.layers if layer is not None]
    heads = max(layer.heads for layer in layers)
    return heads, max(-(-layer.heads * layer.value_dim // heads) for layer in layers)


def decode_splits(layer: LayerAttention, rows: int, longest: int, processors: int) -> int:
    """In how many parts the keys of so many rows are divided, of up to `longest` positions each."""
    padded = 1 << (layer.key_dim - 1).bit_length()
    kind = kind_of(torch.bfloat16, padded, scaled=False, latents=layer.values_in_keys)
    return split_count(rows, _places(layer), longest, processors, kind)


def _places(layer: LayerAttention) -> int:
    return places_of(layer.heads, layer.kv_heads, layer.values_in_keys)


class SplitScratch:
    """For one model."""

    def __init__(self, shape: Architecture, longest: int, counts: Iterable[int], device: torch.device) -> None:
        """`longest`: positions that there may be; where the model chooses what is seen of them, attention is over that
        alone. `counts`: of rows that decode, for which there are graphs, and the most that there may be."""
        longest = shape.chosen_within(longest) or longest
        processors, layer = processors_of(device), attention_of(shape)
        self._longest, self._device, self.processors = longest, device, processors
        self.layer = shape.kv.layers.index(layer)  # by whose keys chunks are divided
        self._heads, self._width = widest_of(shape)
        self._seen = max(longest if own is None or own.window is None else own.window for own in shape.kv.layers)
        self._splits = {count: decode_splits(layer, count, longest, processors) for count in sorted(counts)}
        self._uneven, self._plain = {count: self._parts(count) for count in self._splits}, self._splits
        both = self._plain | {count: max(self._plain[count], parts) for count, parts in self._uneven.items()}
        most = max(size * splits for size, splits in both.items())
        self._least: int | None = None
        self._partial = torch.empty(most * self._heads * self._width, device=device)
        self._sums = torch.empty(most * self._heads, device=device)

    def _parts(self, rows: int) -> int:
        """In how many parts long ones among so many rows are divided at most."""
        of_row = self._heads * self._width * 4
        return min(MOST_PARTS, -(-self._seen // LONG), max(1, MOST_BYTES // (of_row * rows)))

    def divides(self, rows: int) -> bool:
        """Whether long ones among so many rows gain by the second way."""
        return self._uneven[rows] >= 4 * self._plain[rows]

    def is_uneven(self, rows: int, lengths: np.ndarray) -> bool:
        """Whether one of these, in a step for so many rows, is so much longer than the others that these would wait for
        it, and its programs shorter by the second way."""
        seen = np.minimum(lengths, self._longest)
        return bool(seen.max() > max(LONG * self._plain[rows], 2 * seen.mean()))

    @contextmanager
    def uneven(self) -> Iterator[None]:
        """Meanwhile long rows alone are divided."""
        self._splits, self._least = self._uneven, LONG
        try:
            yield
        finally:
            self._splits, self._least = self._plain, None

    def of(self, rows: int) -> Scratch:
        """For so many rows that decode."""
        heads, width = self._heads, self._width
        counts = [*self._splits]
        splits = self._splits[size_for(counts, rows) or counts[-1]]
        count = rows * heads * splits
        partial = self._partial[: count * width].view(rows, heads, splits, width)
        return Scratch(partial, self._sums[:count].view(rows, heads, splits), self._least)

    def of_chunks(self, tokens: int, chunks: int, keys: Tensor) -> Scratch | None:
        """For so many chunks of so many tokens, if their keys, such as lie in `keys`, are to be divided."""
        heads, rows = self._heads, FEW_ROWS if chunks <= FEW_CHUNKS else FEW_CHUNKS + 1
        splits = paged_prefill.split_count(tokens, rows, heads, keys, self._longest, self.processors, chunks)
        return Scratch.of(tokens, heads, self._width, splits, self._device) if splits > 1 else None
