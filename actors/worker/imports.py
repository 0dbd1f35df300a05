"""What a worker imports only as it runs, for those who import it before: who forks workers, and who tries new code."""

from __future__ import annotations

import contextlib
import importlib

from ..options.config import Config
from .kept_memory.file import code_stamps
from .kept_memory.tier import code_digest
from .start.model import uses_gpu
from .torch_import import import_rest, import_torch


def import_early(*beside: str) -> None:
    """What is imported only as it runs, by whoever forks workers; that asks for no GPU, which cannot be forked.

    `beside`: modules of this package that some of the server's models need (protocol/served.py). Who names them may be
    of older code than this, and one that is gone by now needs no import.
    """
    import_torch()
    on_cpu = ("cpu.executor", "cpu.memory.kv_memory", "cpu.runner", "speculative.actor", "start.cpu")
    for name in ("actor", "models.weights", "memory", *on_cpu):
        importlib.import_module(f".{name}", __package__)
    code_digest()  # of what was imported now
    code_stamps()
    if beside:
        import_rest()
    for name in beside:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(f".{name}", __package__)


def import_late(config: Config) -> None:
    """All of that: who tries new code wants to know whether it can be had."""
    if config.worker != "model":
        return
    import_early()
    import torch

    on_gpu = ("gpu.start", "gpu.runner", "gpu.actor") if torch.cuda.is_available() and uses_gpu(config) else ()
    for name in ("pooling.start", "encoder_decoder.start", *on_gpu):
        importlib.import_module(f".{name}", __package__)
