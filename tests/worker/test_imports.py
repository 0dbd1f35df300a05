"""What is imported before workers are forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.selection import slow

BESIDE = "encoder_decoder.load pooling.load pooling.dual_encoder vision.start adapter.load"  # as protocol/served.py has
EARLY = """
import sys
from actorserve.actors.worker.imports import import_early
from actorserve.actors.worker.torch_import import import_torch

import_torch()
import torch

def asked(*given, **named):
    raise AssertionError("a GPU is asked for")

for name in ("is_available", "device_count", "init", "_lazy_init"):
    setattr(torch.cuda, name, asked)
import_early(*sys.argv[1:])
"""


@pytest.mark.parametrize("beside", ["", *slow(BESIDE)])
def test_who_forks_workers_asks_for_no_gpu(beside: str) -> None:
    """Copies of a process that has asked for one, be it for their number, have none: CUDA cannot be forked."""
    command = [sys.executable, "-c", EARLY, *beside.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
