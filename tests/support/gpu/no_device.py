"""A driver that stands in for a GPU, so that Triton's just-in-time compiler runs where there is none: kernels are
looked up and launched as ever, and do nothing. What is compiled can be counted, and the host's work be measured.

For processes of their own: what is put in place stays.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch


class NoDevice:
    """What the just-in-time compiler asks of a driver, of a GPU of compute capability 9.0."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_nothing(launched: Callable[..., None] = lambda *arguments: None) -> list[str]:
    """From now on kernels do nothing but call `launched`. Their names, as they are compiled."""
    import triton
    from triton.runtime.jit import JITFunction

    nothing = SimpleNamespace(function=0, packed_metadata=(), run=launched, launch_metadata=lambda *a: None)
    triton.compiler.compile = lambda *arguments, **options: nothing
    triton.runtime.driver.set_active(NoDevice())
    names: list[str] = []
    compiled = JITFunction._do_compile

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        names.append(self.fn.__name__)
        return compiled(self, *arguments, **options)

    JITFunction._do_compile = count
    torch.empty = torch.zeros  # type: ignore[assignment]  # what kernels would have written is looked up in tables
    return names
