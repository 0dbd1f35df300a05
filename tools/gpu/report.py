"""What a part of gpu_check says: one JSON line a finding, on standard output, for the table."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tools" / "package"), str(ROOT)]
TINY = os.environ.get("GPU_CHECK_TINY") == "1"  # toy sizes, to try the check itself where there is no GPU
# What parts leave for others; of a part that is run alone it goes with it.
OWN = None if os.environ.get("GPU_CHECK_FOLDER") else tempfile.TemporaryDirectory(prefix="gpu-check-")
FOLDER = Path(os.environ["GPU_CHECK_FOLDER"] if OWN is None else OWN.name)
# A variable, "2/5": of what is timed only every fifth, from the third on, is compiled.
COMPILED = "GPU_CHECK_COMPILED"
if TINY:
    os.environ.setdefault("TRITON_INTERPRET", "1")


def say(what: str, value: float | str, unit: str = "", goal: str = "", ok: bool | None = None) -> None:
    """A finding: what was measured, in which unit, what it should be, and whether it is (None: nothing is asked)."""
    if COMPILED in os.environ:
        return
    finding = {"what": what, "value": value if isinstance(value, str) else float(f"{value:.4g}"), "unit": unit}
    print(json.dumps({**finding, "goal": goal, "ok": ok}), flush=True)


def at_least(what: str, value: float, unit: str, goal: float | None) -> None:
    """Without a goal it is only said; of toys none is asked."""
    say(what, value, unit, *(() if goal is None or TINY else (f"at least {goal:g}", value >= goal)))


def at_most(what: str, value: float, unit: str, goal: float | None) -> None:
    say(what, value, unit, *(() if goal is None or TINY else (f"at most {goal:g}", value <= goal)))


@contextlib.contextmanager
def surviving(what: str) -> Iterator[str]:
    """What fails within is a finding, and what follows is measured still."""
    try:
        yield what
    except Exception as error:
        traceback.print_exc()
        say(what, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", "", "no error", False)
