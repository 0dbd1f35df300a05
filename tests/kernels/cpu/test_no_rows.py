"""Kernels that are given no rows: there is nothing to do, and nobody waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.compiler import need_compiler

LOADED = """
import torch
from actorserve.actors.model.memory.machine import cpu_flags
from actorserve.kernels.cpu.native.layers import RowOperations
from actorserve.kernels.cpu.native.library import load
from actorserve.kernels.cpu.native.linear import bfloat16_linear
library = load(cpu_flags())
library.set_threads(2)
"""
TRIES = {
    "product": "bfloat16_linear(library, torch.ones(64, 64, dtype=torch.bfloat16), None)(torch.empty(0, 64))",
    "norm": "RowOperations(library).norm(torch.empty(0, 64), torch.ones(64), 1e-6)",
    "silu": "RowOperations(library).silu_mul(torch.empty(0, 128))",
}


@pytest.mark.parametrize("name", TRIES)
def test_no_rows_are_none(name: str) -> None:
    """In a process of its own, which a division by zero would end, and a wait would keep."""
    need_compiler()
    code = f"{LOADED}assert {TRIES[name]}.shape == (0, 64)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
