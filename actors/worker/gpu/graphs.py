"""Decode steps as CUDA graphs: one for each of a few batch sizes, all in one pool of memory, largest first.

A graph is replayed over the buffers that it was captured with, whatever they hold by then. A step with fewer rows than
its graph fills the others up with rows of -1.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tqdm import tqdm

# A step of 9 rows takes as long as one of 16, where weights are what is read; of large ones graphs lie further apart,
# since each takes memory, and above the largest a step takes so long that Python is not what it waits for.
USUAL = (1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 513, 32))


def capture_sizes(wanted: Sequence[int], most: int) -> list[int]:
    """The batch sizes for which there shall be graphs, ascending; without any wanted, the usual ones."""
    if wanted:
        return sorted({size for size in wanted if 0 < size <= most} or {most})
    return sorted({size for size in (*USUAL, most) if size <= min(most, USUAL[-1])})


class DecodeGraphs:
    """Runs the decode step of a batch size: by its graph, where there is one, or as it is."""

    def __init__(self, sizes: Sequence[int], run: Callable[[int], None], device: torch.device) -> None:
        """`run` does the step of so many rows, on buffers that stay."""
        self.sizes = list(sizes)
        self._run = run
        self._device = device
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def size_for(self, rows: int) -> int | None:
        """The smallest size that has room for so many rows; None if none has."""
        at = bisect_left(self.sizes, rows)
        return self.sizes[at] if at < len(self.sizes) else None

    def capture(self, pool: Any) -> None:
        """Make the graphs in a pool of memory, over buffers of rows that are none. Each step is run before, since what
        compiles or sets itself up cannot be captured."""
        bar = tqdm(
            reversed(self.sizes), "capturing CUDA graphs", len(self.sizes), file=sys.stderr, ascii=True, ncols=80
        )
        for size in bar:
            bar.set_postfix(batch=size)
            self._run(size)
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads are not ours
                self._run(size)
            graph.replay()  # the first time uploads it, which no request shall wait for
            self._graphs[size] = graph
        torch.cuda.synchronize(self._device)

    def step(self, size: int) -> None:
        """One step, started and not waited for."""
        graph = self._graphs.get(size)
        if graph is None:
            self._run(size)
        else:
            graph.replay()
