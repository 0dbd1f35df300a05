"""In how many parts the keys of rows are divided among programs, and the memory in which these leave their results.

It follows from numbers of rows and tokens alone, so that a graph holds it. Layers of a step share the memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from actorserve.kernels.triton import paged_prefill
from actorserve.kernels.triton.paged_decode import Scratch, split_count

from ....model.architecture import Architecture
from ..graphs import size_for

PROCESSORS = 16  # multiprocessors that there are taken to be where there is no GPU
FEW_ROWS = 2  # that a step with prompts is taken to have when their keys are divided


def processors_of(device: torch.device) -> int:
    """Its multiprocessors."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else PROCESSORS


class SplitScratch:
    """For one model."""

    def __init__(self, shape: Architecture, longest: int, counts: Iterable[int], device: torch.device) -> None:
        """`counts`: of rows that decode, for which there are graphs, and the most that there may be."""
        processors = processors_of(device)
        self._shape, self._longest, self._device, self.processors = shape, longest, device, processors
        self._splits = {count: split_count(count, shape.kv_heads, longest, processors) for count in sorted(counts)}
        most = max(size * splits for size, splits in self._splits.items())
        self._partial = torch.empty(most * shape.heads * shape.head_dim, device=device)
        self._sums = torch.empty(most * shape.heads, device=device)

    def of(self, rows: int) -> Scratch:
        """For so many rows that decode."""
        shape = self._shape
        counts = [*self._splits]
        splits = self._splits[size_for(counts, rows) or counts[-1]]
        count = rows * shape.heads * splits
        partial = self._partial[: count * shape.head_dim].view(rows, shape.heads, splits, shape.head_dim)
        return Scratch(partial, self._sums[:count].view(rows, shape.heads, splits))

    def of_chunks(self, tokens: int, keys: Tensor) -> Scratch | None:
        """For chunks of so many tokens, if their keys, such as lie in `keys`, are to be divided."""
        heads, head_dim = self._shape.heads, self._shape.head_dim
        splits = paged_prefill.split_count(tokens, FEW_ROWS, heads, keys, self._longest, self.processors)
        return Scratch.of(tokens, heads, head_dim, splits, self._device) if splits > 1 else None
