"""`actorserve launch`: from options to a running server and its exit status."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence

import msgspec
from setproctitle import setproctitle

from actorserve.shm.segment import SegmentError

from ..model.checks import NO_TEMPLATE, find_model
from ..model.tokenizers.tokenizer import find_templates
from ..options.config import Config, ConfigError
from ..protocol.kinds import KINDS
from ..protocol.topology import System
from ..runtime.process import UNUSED
from ..telemetry.discovery import socket_name
from ..telemetry.startup import StartPhase
from .connections.admission import BEYOND, Admission
from .connections.descriptors import most_connections
from .control.socket import Control
from .listeners import ListenError, check_free, host_and_port, listen
from .nodes.headless import launch_headless
from .output import Output, make_output
from .processes.spawn import ACTOR_COMMAND
from .processes.templates import fork_first
from .shared_memory import Memory
from .supervisor import Supervisor
from .systemd.activation import take_sockets
from .systemd.notify import MICROSECONDS, Manager, find_manager

log = logging.getLogger("launch")
FAILED = 1
REFUSED = 2  # an option that cannot be
DESCRIPTORS = 1 << 16  # open files that each process may have: connections and lanes
LOAD_S = max(kind.start_s for kind in KINDS.values())  # the slowest one's may be a download
FINISH_S = 1.0  # what a reader of the output gets to take its last lines


def launch(config: Config, command: Sequence[str] = ACTOR_COMMAND) -> int:
    """Serve until told to stop; 0 after a clean stop."""
    began, imported = _process_began(), time.monotonic_ns()
    _become_supervisor()
    output = make_output(sys.stdout.fileno(), config)
    if config.headless:
        try:
            return launch_headless(config, output)
        finally:
            output.finish(FINISH_S)
    manager = find_manager(os.environ)
    if manager.listens:  # READY says that a request was answered
        config = msgspec.structs.replace(config, warm_up=True)
    try:
        passed = take_sockets(os.environ)
        listeners = passed or listen(config.host, config.port)
        if config.grpc_port is not None:
            check_free(config.host, config.grpc_port)
        memory = _load(config, manager, began, imported)
        connections = most_connections(memory.system, BEYOND)
    except ConfigError as error:
        return _refuse(output, str(error), REFUSED)
    except ListenError as error:
        return _refuse(output, str(error), FAILED)
    except SegmentError as error:
        lower = "--max-num-queued-reqs, --max-num-seqs or --max-model-len"
        return _refuse(output, f"{error}; a smaller {lower} needs less", FAILED)
    port = listeners[0].getsockname()[1]
    address = host_and_port(config.host, port)
    memory.describe(f"{config.scheme}://{address}", port)
    memory.control = socket_name(os.getuid(), port, os.getpid())
    control = Control(memory.control)
    how = " (a socket of the service manager)" if passed else ""
    model = memory.system.model
    output.say(f"listening on {address}{how}, serving {config.served_names()[0]} from {model.folder}")
    writes = model.pooling is None and not (model.encoder is not None and model.encoder.speech is not None)
    if writes and not find_templates(config, model) and not config.skip_tokenizer_init:
        output.say(NO_TEMPLATE, "warning")

    if connections < config.max_connections:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        few = f"{connections} of --max-connections {config.max_connections} connections"
        output.say(f"the limit of open files, {limit}, allows {few}", "warning")

    def welcome() -> str:
        facts = f"model {config.served_names()[0]}, {memory.kv_tokens()} tokens of KV memory"
        return f"ready at {config.scheme}://{address} ({facts}, in {memory.how_long()})"

    try:
        parts = (memory.system, memory, listeners, output, control, manager)
        admission = Admission(connections, config.max_connections_per_client)
        born = fork_first(memory) if command == ACTOR_COMMAND else None
        supervisor = Supervisor(*parts, admission=admission, welcome=welcome, command=command, born=born)
        return asyncio.run(supervisor.run())
    finally:
        memory.close()
        output.finish(FINISH_S)


def _process_began() -> int:
    """CLOCK_MONOTONIC ns, by the CPU time since: what a script waited for before it became this process is left out."""
    return time.monotonic_ns() - time.process_time_ns()


def _load(config: Config, manager: Manager, began: int, imported: int) -> Memory:
    """Find the model, which may take a download, and make room for its requests."""
    if config.model and not os.path.isdir(config.model):
        try:
            manager.tell(STATUS="loading", EXTEND_TIMEOUT_USEC=int(LOAD_S * MICROSECONDS))
        except OSError as error:
            log.warning("the service manager cannot be told: %s", error.strerror)
    system = System(config, find_model(config))
    found = time.monotonic_ns()
    memory = Memory(system, began)
    for phase, end in (
        (StartPhase.IMPORTS, imported),
        (StartPhase.MODEL, found),
        (StartPhase.MEMORY, time.monotonic_ns()),
    ):
        memory.phase_ends(phase, end)
    return memory


def _become_supervisor() -> None:
    """Name, signals and limits of this process. The soft limit of open files, often 1,024, is inherited by actors."""
    setproctitle("actorserve: supervisor")
    for number in (signal.SIGINT, signal.SIGTERM):  # until there is something to clean up, they just end this process
        signal.signal(number, signal.SIG_DFL)
    for number in UNUSED:  # a handler, since what is ignored is so in all processes that are started
        signal.signal(number, lambda *_: None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _refuse(output: Output, reason: str, status: int) -> int:
    """Why there is no server; as text to who has started it, and not among what a server says."""
    if output.as_json:
        output.say(reason, "critical")
        output.finish(FINISH_S)
    else:
        print(f"actorserve: error: {reason}", file=sys.stderr)
    return status
