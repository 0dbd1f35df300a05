"""What a run counts as its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

COSTS = Path(__file__).parents[1] / "support" / "runs" / "costs.py"
BURN = "import time\nwhile time.process_time() < 0.4: pass"
TOLD = f"""
import os, runpy
spent = runpy.run_path({str(COSTS)!r})["spent"]
print(spent(), sum(os.times()[:4]))
"""


def test_what_was_installed_before_is_not_the_tests() -> None:
    """As tools/test does it: a shell whose children have ended becomes the process of the tests."""
    script = '"$0" -c "$1"; exec "$0" -c "$2"'
    spent, with_children = told("bash", "-c", script, sys.executable, BURN, TOLD)
    assert 0 < spent <= with_children - 0.3
    assert told(sys.executable, "-c", BURN + TOLD)[0] >= 0.3, "what it does itself counts"


def told(*command: str) -> list[float]:
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [float(word) for word in said.split()]
