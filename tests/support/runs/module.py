"""Runs a module of the tests as `python -m` would, in a copy that has imported torch (warm.py: run_module)."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from actorserve.actors.worker.torch_import import import_rest

if __name__ == "__main__":
    assert "triton" not in sys.modules, "it has read its environment, which is to be this program's"
    import_rest()
    sys.path[0] = str(Path(__file__).parents[3])
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
