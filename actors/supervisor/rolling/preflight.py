"""What new code must do before any actor is replaced by it: be importable, and lay out shared memory as the server has.

The template, which is of the new code itself, runs this in a child process.
"""

from __future__ import annotations

import importlib
import sys

import msgspec

from ...protocol.fingerprint import fingerprint
from ...protocol.topology import System
from ...runtime.process import Boot

FAILED = 1
OF_THE_WORKER = (
    "actor",
    "models.weights",
    "memory",
    "cpu.executor",
    "cpu.runner",
    "speculative.actor",
)  # what it imports once it runs
OF_THE_GPU = ("gpu.start", "gpu.runner", "gpu.actor")


def check(expected: str) -> int:
    """The exit status; what is wrong is said on standard error. Standard input holds a Boot of who is replaced."""
    with open(0, "rb", closefd=False) as told:
        boot = msgspec.msgpack.decode(told.read(), type=Boot)
    system = System(boot.config, boot.model)
    if fingerprint(system) != expected:
        print("this code shares memory otherwise than the server that runs: stop that, and start anew", file=sys.stderr)
        return FAILED
    spec = system.by_name[boot.name]
    importlib.import_module(spec.module)
    if spec.kind == "worker" and boot.config.worker == "model":
        _import_worker(boot)
    return 0


def _import_worker(boot: Boot) -> None:
    folder = "actorserve.actors.worker"
    for name in OF_THE_WORKER:
        importlib.import_module(f"{folder}.{name}")
    if importlib.import_module(f"{folder}.actor").uses_gpu(boot.config):
        for name in OF_THE_GPU:
            importlib.import_module(f"{folder}.{name}")
