"""torch without what no model of this server's own layers needs: a quarter of its import, and 18 MB.

That is `torch._meta_registrations`, which torch imports only for what it registers: Python's formulas of results'
shapes on the device `meta`, where nothing is computed, and with it what torch.Generator needs in Python. Whoever makes
tensors there, or runs code that may do so, as transformers does, calls `import_rest` first, and whoever wants random
numbers `generator`; parts of torch that use the module import it themselves.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LEFT_OUT = "torch._meta_registrations"


def import_torch() -> None:
    """Import torch, if nobody has: idle threads of it sleep."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # both are read when torch is loaded
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    if "torch" in sys.modules:
        return
    nothing = sys.modules[LEFT_OUT] = ModuleType(LEFT_OUT)
    try:
        whole = importlib.import_module("torch")
    finally:
        if sys.modules.get(LEFT_OUT) is nothing:
            del sys.modules[LEFT_OUT]
    name = LEFT_OUT.rpartition(".")[2]
    if getattr(whole, name, None) is nothing:
        delattr(whole, name)


def import_rest() -> None:
    """What was left out."""
    importlib.import_module(LEFT_OUT)


def generator(seed: int, device: str | torch.device = "cpu") -> torch.Generator:
    """Random numbers of this seed."""
    import_rest()
    import torch

    return torch.Generator(device).manual_seed(seed)
