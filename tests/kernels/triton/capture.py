"""What a CUDA graph would capture of a wrapper: its launches, by which it can be seen without a GPU, too.

A graph keeps grids, compile-time constants, scalars and addresses, and reads memory anew each time. `captured` records
the same of the kernels of some modules; `replay` launches them again. (On a GPU `replayable` makes a true graph.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import triton


class Launch(NamedTuple):
    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def replay(self) -> None:
        self.kernel[self.grid](*self.arguments, **self.options)

    @property
    def fixed(self) -> tuple[Any, ...]:
        """All of it but memory."""
        scalars = tuple(value for value in self.arguments if not isinstance(value, torch.Tensor))
        return self.grid, scalars, tuple(self.options.items())


class Recorder:
    """Stands where a kernel stood, and launches nothing."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(type(size) is int and size > 0 for size in grid)
        return lambda *arguments, **options: self.launches.append(Launch(self.kernel, grid, arguments, options))


@contextlib.contextmanager
def captured(*modules: ModuleType) -> Iterator[list[Launch]]:
    """The launches of the modules' kernels, recorded instead of done."""
    launches: list[Launch] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name, value in list(vars(module).items()):
                if isinstance(value, triton.KernelInterface):
                    patch.setattr(module, name, Recorder(value, launches))
        yield launches


def replayable(run: Callable[[], object], *modules: ModuleType) -> Callable[[], None]:
    """`run`, captured; what is given back does it again, with what memory holds then."""
    if torch.cuda.is_available():
        run()  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay
    with captured(*modules) as launches:
        run()
    assert launches

    def replay() -> None:
        for launch in launches:
            launch.replay()

    return replay
