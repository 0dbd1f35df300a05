"""`actorserve launch`: from options to a running server and its exit status."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
import time
from collections.abc import Sequence

from setproctitle import setproctitle

from actorserve.shm.segment import SegmentError

from ..config import Config, ConfigError
from ..model_files import resolve_model
from ..system import System
from .births import ACTOR_COMMAND
from .listen import ListenError, host_and_port, listen
from .memory import Memory
from .output import Output
from .supervisor import SIGNALS, Supervisor

FAILED = 1
REFUSED = 2  # an option that cannot be
DESCRIPTORS = 1 << 16  # open files that each process may have: connections and lanes
FINISH_S = 1.0  # what a reader of the output gets to take its last lines


def launch(config: Config, command: Sequence[str] = ACTOR_COMMAND) -> int:
    """Serve until told to stop; 0 after a clean stop."""
    began = time.monotonic()
    setproctitle("actorserve: supervisor")
    for number in SIGNALS:  # until there is something to clean up, a signal just ends this process
        signal.signal(number, signal.SIG_DFL)
    _allow_descriptors()
    try:
        listeners = listen(config.host, config.port)
        system = System(config, resolve_model(config))
        memory = Memory(system)
    except ConfigError as error:
        return _refuse(str(error), REFUSED)
    except ListenError as error:
        return _refuse(str(error), FAILED)
    except SegmentError as error:
        lower = "--max-num-queued-reqs, --max-num-seqs or --max-model-len"
        return _refuse(f"{error}; a smaller {lower} needs less", FAILED)
    output = Output(sys.stdout.fileno())
    address = host_and_port(config.host, listeners[0].getsockname()[1])
    output.say(f"listening on {address}, serving {config.served_names()[0]} from {system.model.folder}")

    def welcome() -> str:
        facts = f"model {config.served_names()[0]}, {memory.kv_tokens()} tokens of KV memory"
        return f"ready at {config.scheme}://{address} ({facts}, in {time.monotonic() - began:.1f} s)"

    try:
        return asyncio.run(Supervisor(system, memory, listeners, output, welcome=welcome, command=command).run())
    finally:
        memory.close()
        output.finish(FINISH_S)


def _allow_descriptors() -> None:
    """Raise the soft limit, which is often 1,024, as far as the hard one lets us; actors inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _refuse(reason: str, status: int) -> int:
    print(f"actorserve: error: {reason}", file=sys.stderr)
    return status
