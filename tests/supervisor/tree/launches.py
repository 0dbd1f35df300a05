"""What servers with played actors are started with (fake_launch.py, conftest.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.server import Server

COMMAND = (sys.executable, str(Path(__file__).resolve().with_name("fake_launch.py")))
NAMES = {"worker", "scheduler", "detokenizer-0", "renderer-0", "frontend-0"}
Launch = Callable[..., Server]
