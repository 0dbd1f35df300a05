"""Kernels that are given no rows: there is nothing to do, and nobody waits for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.compiler import need_compiler

TRIES = {
    "product": "bfloat16_linear(library, torch.ones(64, 64, dtype=torch.bfloat16), None)(torch.empty(0, 64))",
    "norm": "RowOperations(library).norm(torch.empty(0, 64), torch.ones(64), 1e-6)",
    "silu": "RowOperations(library).silu_mul(torch.empty(0, 128))",
}
WAIT_S = 100
TRIED = """
import json, os, signal, sys
import torch
from actorserve.actors.model.memory.machine import cpu_flags
from actorserve.kernels.cpu.native.layers import RowOperations
from actorserve.kernels.cpu.native.library import load
from actorserve.kernels.cpu.native.linear import bfloat16_linear

def status(code):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(int(sys.argv[2]))
    library = load(cpu_flags())
    library.set_threads(2)
    os._exit(eval(code, globals(), {"library": library}).shape != (0, 64))

print(json.dumps({name: status(code) for name, code in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture(scope="module")
def statuses() -> dict[str, int]:
    """Of processes that try one each, which a division by zero would end, and a wait would keep."""
    need_compiler()
    command = [sys.executable, "-c", TRIED, json.dumps(TRIES), str(WAIT_S)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=2 * WAIT_S).stdout
    found: dict[str, int] = json.loads(said)
    return found


@pytest.mark.parametrize("name", TRIES)
def test_no_rows_are_none(name: str, statuses: dict[str, int]) -> None:
    assert statuses[name] == 0
