"""Graphs of steps without a GPU: what a function does is recorded once, launch by launch, and done again by `replay`.

As in a CUDA graph, nothing of the host runs then: grids, scalars and addresses are those of the recording, and memory
is read as it is by then. What made new memory while it was recorded writes to the same memory again.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from .dispatch_mode import DispatchMode


class RecordedGraph:
    """What one call has done."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], object]] = []
        self.kernels: list[str] = []  # names of Triton's, as they were launched

    def replay(self) -> None:
        for step in self.steps:
            step()


class _Operations(DispatchMode):
    """Records torch's operations, and lets them be done."""

    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        assert isinstance(made, Tensor | tuple | list), f"{func} looks at a number: a graph cannot"
        name = func.name()
        if not name.startswith(("aten::empty", "aten::new_empty")):
            self.graph.steps.append(again(func, args, kwargs, made))
        return made


def again(func: Any, args: Any, kwargs: Any, made: Any) -> Callable[[], object]:
    """What does the same once more, with its results in the same memory."""
    given = {value.untyped_storage().data_ptr() for value in [*args, *kwargs.values()] if isinstance(value, Tensor)}
    results = _tensors(made)
    if all(one.untyped_storage().data_ptr() in given for one in results):  # in place, or views, which are there
        return lambda: func(*args, **kwargs)

    def run() -> None:
        for one, new in zip(results, _tensors(func(*args, **kwargs)), strict=True):
            one.copy_(new)

    return run


def _tensors(made: Any) -> list[Tensor]:
    return [made] if isinstance(made, Tensor) else [one for one in made if isinstance(one, Tensor)]


class _Kernel:
    """Stands where a kernel stood: a launch is recorded, and not done."""

    def __init__(self, kernel: Any, graph: RecordedGraph) -> None:
        self.kernel, self.graph = kernel, graph

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            self.graph.kernels.append(self.kernel.fn.__name__)
            self.graph.steps.append(lambda: self.kernel[grid](*arguments, **options))

        return launch


@contextlib.contextmanager
def recording() -> Iterator[RecordedGraph]:
    """Of all kernels of this project that are imported by now, and all that torch does."""
    import_module("actorserve.kernels.triton.linear.fixed_linear")  # which else its first call would import, unrecorded
    graph = RecordedGraph()
    with pytest.MonkeyPatch.context() as patch:
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("actorserve.kernels.triton."):
                for name, value in list(vars(module).items()):
                    if isinstance(value, triton.KernelInterface):
                        patch.setattr(module, name, _Kernel(value, graph))
        with _Operations(graph):
            yield graph


def record(graphs: Any) -> None:
    """What `capture` does on a GPU, for the Graphs of one kind of step."""
    for size in graphs.sizes:
        with torch.inference_mode(), recording() as graph:
            graphs._run(size)
        graphs._graphs[size] = graph


def capture_steps(runner: Any) -> None:
    """All steps are by graphs from now on: on a GPU by such, elsewhere by what is recorded."""
    if runner.device.type == "cuda":
        gc.collect()  # graphs of an earlier test's runner, which is a cycle, are not to go while these are used
        runner.capture()
        return
    for graphs in runner._graphs().values():
        record(graphs)
