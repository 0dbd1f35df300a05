"""Steps as CUDA graphs: one for each of a few sizes, all in one pool of memory, largest first.

A graph is replayed over the buffers that it was captured with, whatever they hold by then. A step that is smaller than
its graph is filled up with rows that are none, and tokens of nobody.

    decoding alone     by rows
    prompts and rows   by tokens, rows that decode and rows with several tokens (StepSize)
    the same twice     once more for steps in which rows have adapters, where there are such (lora/steps.py)
    what is drawn      by rows that draw, once as it is and once for rows that ask for something (sampler.py)
Where there is no graph (for steps beyond the largest, or with --enforce-eager) the same runs kernel by kernel, on the
same buffers.
"""

from __future__ import annotations

import gc
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from tqdm import tqdm

# A step of 9 rows takes as long as one of 16, where weights are what is read; of large ones graphs lie further apart,
# since each takes memory, and above the largest a step takes so long that Python is not what it waits for.
USUAL = (1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 513, 32))
TOKENS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
# Rows that are none are programs that leave at once, a few µs a layer for all of 256, and several times as many where
# keys of chunks are divided: so there are classes of few and of many.
FEW_DECODING, FEW_CHUNKS, MOST_CHUNKS = 32, 8, 64
MEASURED = 4  # graphs of which a mean is taken

Size = TypeVar("Size")


class StepSize(NamedTuple):
    """How large a step is that computes prompts, or a graph for such steps."""

    tokens: int
    decoding: int  # rows of one token, which come first
    chunks: int  # other rows

    @property
    def rows(self) -> int:
        return self.decoding + self.chunks

    def holds(self, step: StepSize) -> bool:
        return all(most >= own for most, own in zip(self, step, strict=True))


def capture_sizes(wanted: Sequence[int], most: int) -> list[int]:
    """The batch sizes for which there shall be graphs, ascending; without any wanted, the usual ones."""
    if wanted:
        return sorted({size for size in wanted if 0 < size <= most} or {most})
    return sorted({size for size in (*USUAL, most) if size <= min(most, USUAL[-1])})


def mixed_sizes(rows: int, tokens: int, drafts: bool = False) -> list[StepSize]:
    """The sizes of graphs for steps with prompts, ascending, where a step has so many rows and tokens at most, and all
    rows may have `drafts`, and so several tokens."""
    largest = min(tokens, TOKENS[-1])
    few, many = min(FEW_CHUNKS, rows), min(MOST_CHUNKS, rows)
    classes = [(min(FEW_DECODING, rows), few), (rows, few), (rows, many), *([(rows, rows)] if drafts else [])]
    counts = {count for count in TOKENS if count < largest} | {largest}
    return sorted({StepSize(count, min(one, count), min(other, count)) for count in counts for one, other in classes})


@contextmanager
def no_collection() -> Iterator[None]:
    """Meanwhile Python's collector frees nothing: a graph or a kernel that goes while another is captured breaks it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class CaptureError(RuntimeError):
    """A step that failed when its graph was made; its cause says why."""

    @property
    def of_capture(self) -> bool:
        """Whether it fails because it is captured: the end of another worker, or an error of the GPU, comes up then,
        too."""
        return "captur" in str(self.__cause__)


class Graphs(Generic[Size]):
    """Runs one kind of step: by the graph of its size, where there is one, or as it is."""

    def __init__(self, sizes: Sequence[Size], run: Callable[[Size], object], device: torch.device) -> None:
        """`run` does the step of a size, on buffers that stay; `sizes`, ascending: for which there shall be graphs."""
        self.sizes = list(sizes)
        self._run = run
        self._device = device
        self._graphs: dict[Size, torch.cuda.CUDAGraph] = {}

    def under(self, context: Callable[[Size], AbstractContextManager[None]]) -> Graphs[Size]:
        """Those of the same steps within a context."""

        def run(size: Size) -> None:
            with context(size):
                self._run(size)

        return Graphs(self.sizes, run, self._device)

    def capture(self, pool: Any, name: str) -> int:
        """Make the graphs in a pool of memory, over buffers of rows that are none; how many there are.

        Once: what cuBLAS works in is the capturing stream's, torch frees it when any graph of that stream goes
        (pytorch#193402), and the others go on writing there. So none is to go that others outlive.
        """
        if self._graphs:
            raise RuntimeError(f"CUDA graphs, {name}: they are captured, and none may go while others are used")
        bar = tqdm(
            reversed(self.sizes),
            f"capturing CUDA graphs, {name}",
            len(self.sizes),
            file=sys.stderr,
            ascii=True,
            ncols=80,
        )
        for size in bar:
            self._graphs[size] = self._named(size, pool, name)
        torch.cuda.synchronize(self._device)
        return len(self._graphs)

    def own_bytes(self, pool: Any, name: str, free: Callable[[], int]) -> int:
        """What the graphs will take, beside the memory in which they compute: as many times what one takes, which is a
        mean, since a driver takes memory in pieces that have room for several. Of two means the less: others may take
        memory of the device meanwhile, as a browser does.
        """
        if not self.sizes:
            return 0
        kept = [self._named(self.sizes[0], pool, name)]  # the first of all also sets things up
        left = [free()]
        for _ in range(2):
            kept += [self._named(self.sizes[0], pool, name) for _ in range(MEASURED)]
            left.append(free())
        return max(0, min(left[0] - left[1], left[1] - left[2])) * len(self.sizes) // MEASURED

    def _named(self, size: Size, pool: Any, name: str) -> torch.cuda.CUDAGraph:
        """A graph; CaptureError says of which kind and size it cannot be had."""
        try:
            return self._captured(size, pool)
        except RuntimeError as error:
            raise CaptureError(f"CUDA graphs, {name} of {size}: {error}") from error

    def _captured(self, size: Size, pool: Any) -> torch.cuda.CUDAGraph:
        """It is run before, since what compiles or sets itself up cannot be captured."""
        self._run(size)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # What other threads do is not ours.
        with no_collection(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._run(size)
        graph.replay()  # the first time uploads it, which no request shall wait for
        torch.cuda.synchronize(self._device)
        return graph

    def step(self, size: Size) -> None:
        """One step, started and not waited for."""
        graph = self._graphs.get(size)
        if graph is None:
            self._run(size)
        else:
            graph.replay()


def size_for(sizes: Sequence[int], rows: int) -> int | None:
    """The smallest of these sizes that has room for so many rows; None if none has."""
    at = bisect_left(sizes, rows)
    return sizes[at] if at < len(sizes) else None


def smallest(sizes: Sequence[StepSize], step: StepSize) -> StepSize | None:
    """The smallest of these sizes that holds a step; None if none does."""
    return next((size for size in sizes if size.holds(step)), None)
