"""torch without what no model of this server's own layers needs: a quarter of its import, and 18 MB.

Most of that is `torch._meta_registrations`, which torch imports only for what it registers: Python's formulas of
results' shapes on the device `meta`, where nothing is computed, and with it what torch.Generator needs in Python.
Whoever makes tensors there, or runs code that may do so, as transformers does, calls `import_rest` first, and whoever
wants random numbers `generator`; parts of torch that use the module import it themselves. The rest are lines of source:
torch asks twice where it is called from, for which the module of every file is looked up, and takes the file and the
number alone.

Other modules that torch imports only to have them are imported once somebody asks for them (LATER): that is a tenth of
its import. And one call is made by one thread, before there are others: `settle_processor`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LEFT_OUT = "torch._meta_registrations"
LATER = (
    "torch.ao",
    "torch.distributions",
    "torch.masked",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.profiler",
    "torch.quantization",
)


class _Later(ModuleType):
    """Stands for a module that is imported when an attribute of it is asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # somebody looks through all modules for that of a file
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def import_torch() -> None:
    """Import torch, if nobody has: idle threads of it sleep."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # both are read when torch is loaded
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    if "torch" not in sys.modules:
        _import_most()
    settle_processor()


def settle_processor() -> None:
    """Let MKL find out which processor this is, for all processes that are forked from here on, too.

    The first call of any of its functions of vectors (mkl_vml_serv_cpu_detect of MKL 2024.2, in torch 2.13) stores the
    processor's number in one table, and then that in another, without a lock. A thread that begins in between takes
    code that is less exact: seen twice when two threads began 10,119 times. Where a worker has two, its first call is
    the cosines of all positions, by both: half of them were wrong by up to 0.0002, for all that this life computed.
    """
    import torch

    torch.zeros(1).cos()


def _import_most() -> None:
    later = [_Later(name) for name in LATER]
    sys.modules.update((module.__name__, module) for module in later)
    nothing = sys.modules[LEFT_OUT] = ModuleType(LEFT_OUT)
    try:
        with _without_source_lines():
            whole = importlib.import_module("torch")
    finally:
        for module in (nothing, *later):
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]
    name = LEFT_OUT.rpartition(".")[2]
    if getattr(whole, name, None) is nothing:
        delattr(whole, name)
    for module in later:
        if module.__name__ not in sys.modules:  # else torch itself has asked for it
            parent, _, name = module.__name__.rpartition(".")
            setattr(sys.modules[parent], name, module)


@contextlib.contextmanager
def _without_source_lines() -> Iterator[None]:
    """Frames are described by file and line number."""
    whole = inspect.getframeinfo
    inspect.getframeinfo = partial(whole, context=0)
    try:
        yield
    finally:
        inspect.getframeinfo = whole


def import_rest() -> None:
    """What was left out."""
    importlib.import_module(LEFT_OUT)


def generator(seed: int, device: str | torch.device = "cpu") -> torch.Generator:
    """Random numbers of this seed."""
    import_rest()
    import torch

    return torch.Generator(device).manual_seed(seed)
