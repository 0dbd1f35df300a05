"""`actorserve launch` with fake actors: everything but the actors' own modules is real.

With FAKE_MISTAKE set, the supervisor itself fails when the first actor dies; with REAL_ACTORS set, actors are real;
FAKE_STOP_S is the time that actors get to end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from actorserve.actors.cli import make_parser
from actorserve.actors.options.command_line import read_config
from actorserve.actors.supervisor import shutdown
from actorserve.actors.supervisor.launch import launch
from actorserve.actors.supervisor.processes.spawn import ACTOR_COMMAND
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.supervisor.timeouts import STOP_S

FAKE = Path(__file__).with_name("fake_actor.py")


def mistake(self: Memory) -> None:
    raise RuntimeError("a mistake")


if __name__ == "__main__":
    if "FAKE_MISTAKE" in os.environ:
        Memory.wake_all = mistake  # type: ignore[method-assign]
    vars(shutdown)["STOP_S"] = float(os.environ.get("FAKE_STOP_S", STOP_S))
    options = make_parser("launch").parse_args(["launch", *sys.argv[1:]])
    command = ACTOR_COMMAND if "REAL_ACTORS" in os.environ else (sys.executable, str(FAKE))
    sys.exit(launch(read_config(options), command=command))
