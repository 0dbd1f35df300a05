"""A driver that stands in for a GPU, so that Triton's just-in-time compiler runs where there is none: kernels are
looked up and launched as ever, and do nothing. What is compiled can be counted, and the host's work be measured.

For processes of their own: what is put in place stays.
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from .dispatch_mode import DispatchMode

EMPTY = torch.empty
NONSENSE = 0x55  # in each byte of memory that nobody has written to


class Unwritten(DispatchMode):
    """Meanwhile memory that is new holds nonsense, as a device's may."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if "empty" in func.name() and made.numel():
            made.view(-1).view(torch.uint8).fill_(NONSENSE)
        return made


class NoDevice:
    """What the just-in-time compiler asks of a driver, of a GPU of compute capability 9.0; kernels are loaded nowhere,
    and their launches do nothing."""

    utils = SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 227 << 10},
        load_binary=lambda *given: (object(), 0, 0, 0, 1024),  # module, function, registers, spilled ones, threads
    )

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *given: None

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_nothing(launched: Callable[..., None] = lambda *arguments: None) -> list[str]:
    """From now on kernels do nothing but call `launched`. Their names, as they are compiled."""
    import triton

    folder = tempfile.TemporaryDirectory(prefix="actorserve-kernels-")
    atexit.register(folder.cleanup)
    triton.knobs.cache.dir = folder.name
    triton.runtime.cache.triton_key = lambda: "Triton"  # it would read all of its own code, for a folder of one process
    nothing = SimpleNamespace(function=0, packed_metadata=(), run=launched, launch_metadata=lambda *a: None)
    names: list[str] = []

    def compiled(source: Any, *arguments: Any, **options: Any) -> Any:
        names.append(source.fn.fn.__name__)
        return nothing

    triton.compiler.compile = compiled
    triton.runtime.driver.set_active(NoDevice())
    torch.empty = torch.zeros  # type: ignore[assignment]  # what kernels would have written is looked up in tables
    return names
