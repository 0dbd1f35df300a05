"""`actorserve launch`: from options to a running server and its exit status."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from setproctitle import setproctitle

from actorserve.shm.segment import SegmentError

from ..model.checks.model import NO_TEMPLATE, find_models
from ..model.tokenizers.tokenizer import find_templates
from ..options.config import Config, ConfigError
from ..options.kv_offload import OPTION, read_tiers
from ..options.objects.remote import read_address
from ..protocol.file_sizes import KV_LISTENER
from ..protocol.kinds import KINDS
from ..protocol.topology import System
from ..runtime.descriptors import raise_limit
from ..runtime.signals import UNUSED
from ..telemetry.discovery import socket_name
from ..telemetry.startup import StartPhase
from .connections.admission import BEYOND, Admission
from .connections.descriptors import most_connections
from .connections.http2.door import Http2Port
from .connections.relay import Relay
from .connections.unix_socket import DEFAULT_MODE, UnixSocket
from .control.socket import Control
from .listeners import ListenError, check_free, host_and_port, hosts_of, listen
from .nodes.headless import launch_headless
from .output import Output, make_output
from .processes.first_template import fork_first
from .processes.spawn import ACTOR_COMMAND
from .shared_memory import NEEDS_LESS, Memory
from .supervisor import Supervisor
from .systemd.activation import take_sockets
from .systemd.notify import MICROSECONDS, Manager, find_manager

FAILED = 1
SIGNALLED = 128
INIT = 1  # the first process of a container: the kernel keeps signals from it that have no handler
LOAD_S = max(kind.start_s for kind in KINDS.values())  # the slowest one's may be a download
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # of addresses that stand for all
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
    if config.key_file is not None:  # that is read again at SIGHUP, which ends nobody before there is a loop to hear it
        signal.signal(signal.SIGHUP, lambda *_: None)
    manager = find_manager(os.environ)
    if manager.listens:  # READY says that a request was answered
        config = msgspec.structs.replace(config, warm_up=True)
    try:
        opened = _open(config, manager, output, (began, imported))
    except ConfigError as error:
        return _refuse(output, str(error), error.status)
    except ListenError as error:
        return _refuse(output, str(error), FAILED)
    except SegmentError as error:
        return _refuse(output, f"{error}; {NEEDS_LESS}", FAILED)
    return _serve(opened, manager, output, command)


class Opened(NamedTuple):
    """What there is before any actor is started."""

    listeners: list[socket.socket]
    were_passed: bool  # by the service manager
    memory: Memory
    connections: int  # that there may be
    doors: list[Relay]


def _open(config: Config, manager: Manager, output: Output, times: tuple[int, int]) -> Opened:
    """Bind what is listened on, look at the models, and make room. `times`: began, imported."""
    passed = take_sockets(os.environ)
    listeners = passed or listen(*_address_of(config))
    if config.grpc_port is not None:
        check_free(config.host, config.grpc_port)
    memory = _load(config, manager, *times)
    _listen_for_kv(config, memory, output)
    connections = most_connections(memory.system, BEYOND)
    return Opened(listeners, bool(passed), memory, connections, _open_doors(config))


def _serve(opened: Opened, manager: Manager, output: Output, command: Sequence[str]) -> int:
    listeners, were_passed, memory, connections, doors = opened
    config = memory.system.config
    port = listeners[0].getsockname()[1]
    places = [host_and_port(host, port) for host in hosts_of(_address_of(config)[0])]
    address, url = " and ".join(places), f"{config.scheme}://{places[0]}"
    if config.steward is not None:
        memory.files["steward"], listeners, url = _first(listeners).detach(), [], f"engine://{address}"
    memory.describe(url, port)
    memory.control = socket_name(os.getuid(), port, os.getpid())
    control = Control(memory.control)
    how = " (a socket of the service manager)" if were_passed else ""
    also = "".join(f" and {door.place}" for door in doors)
    _introduce(output, f"listening on {address}{also}{how}", memory.system, connections)

    def welcome() -> str:
        return f"ready at {url} ({memory.facts()}, in {memory.how_long()})"

    try:
        parts = (memory.system, memory, listeners, output, control, manager)
        admission = Admission(connections, config.max_connections_per_client)
        born = fork_first(memory) if command == ACTOR_COMMAND else None
        supervisor = Supervisor(*parts, admission=admission, welcome=welcome, command=command, born=born)
        return asyncio.run(_run(supervisor, doors, listeners))
    finally:
        for door in doors:
            door.close()
        memory.close()
        output.finish(FINISH_S)


def _open_doors(config: Config) -> list[Relay]:
    """Where clients come to beside the port; ListenError if that cannot be."""
    doors: list[Relay] = []
    if config.uds is not None:
        doors.append(UnixSocket(config.uds, int(config.uds_mode, 8) if config.uds_mode else DEFAULT_MODE))
    if config.http2_port is not None:
        try:
            doors.append(Http2Port(config, config.http2_port))
        except ListenError:
            for door in doors:
                door.close()
            raise
    return doors


async def _run(supervisor: Supervisor, doors: list[Relay], listeners: list[socket.socket]) -> int:
    """The server, and what brings clients of other doors to it."""
    if not doors or not listeners:
        return await supervisor.run()
    host, port = listeners[0].getsockname()[:2]
    address = LOOPBACK.get(host, host), port
    relaying = [asyncio.create_task(door.keep(address, supervisor)) for door in doors]
    try:
        return await supervisor.run()
    finally:
        for task in relaying:
            task.cancel()


def _introduce(output: Output, place: str, system: System, connections: int) -> None:
    """Say what is served where, and what an operator should know of it."""
    config = system.config
    served = ", ".join(f"{one.name} from {one.info.folder}" for one in system.models)
    output.say(f"{place}, serving {served}")
    for one in system.models if config.steward is None else ():
        if one.writes and not find_templates(one.config, one.info) and not one.config.skip_tokenizer_init:
            output.say(f"{one.name}: {NO_TEMPLATE}" if one.index else NO_TEMPLATE, "warning")
    for name, why in config.unserved.items():
        output.say(f"{name} is not served: {why}", "warning")
    if connections < config.max_connections:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        few = f"{connections} of --max-connections {config.max_connections} connections"
        output.say(f"the limit of open files, {limit}, allows {few}", "warning")


def _listen_for_kv(config: Config, memory: Memory, output: Output) -> None:
    """Where other servers fetch KV blocks: the porter's, whose lives all have this one socket."""
    tiers = read_tiers(config)
    if tiers is None or not tiers.listen:
        return
    host, port = read_address(tiers.listen, f"{OPTION}: tcp", 0)
    listener = _first(listen(host, port))
    address = host_and_port(*listener.getsockname()[:2])
    memory.files[KV_LISTENER] = listener.detach()
    output.say(f"KV blocks are given to other servers at {address}")


def _first(listeners: Sequence[socket.socket]) -> socket.socket:
    """Of a name with several addresses, where an actor accepts by itself, from one socket; the others are closed."""
    first, *others = listeners
    for other in others:
        other.close()
    return first


def _address_of(config: Config) -> tuple[str, int]:
    """Where clients come to, or of an engine for others its servers."""
    return (config.host, config.port) if config.steward is None else read_address(config.steward, "--steward", 0)


def _process_began() -> int:
    """CLOCK_MONOTONIC ns, by the CPU time since: what a script waited for before it became this process is left out."""
    return time.monotonic_ns() - time.process_time_ns()


def _load(config: Config, manager: Manager, began: int, imported: int) -> Memory:
    """Find the model, which may take a download, as may a further one, and make room for its requests."""
    with contextlib.suppress(OSError):  # what cannot be told is said once the service speaks (systemd/service.py)
        manager.tell(STATUS="loading", EXTEND_TIMEOUT_USEC=int(LOAD_S * MICROSECONDS))
    config, (model, *also) = find_models(config)
    if (config.remote_engines or config.steward) and (model.encoder or model.media):
        option = "--steward" if config.steward else "--engines"
        raise ConfigError(f"{option}: models that listen or see are computed on the server's machine only")
    system = System(config, model, also)
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
    ends = _end if os.getpid() == INIT else signal.SIG_DFL
    for number in (signal.SIGINT, signal.SIGTERM):  # until there is something to clean up, they just end this process
        signal.signal(number, ends)
    for number in UNUSED:  # a handler, since what is ignored is so in all processes that are started
        signal.signal(number, lambda *_: None)
    raise_limit()


def _end(number: int, frame: object) -> None:
    """At once, with the status that a shell would have: threads that download would be waited for."""
    os._exit(SIGNALLED + number)


def _refuse(output: Output, reason: str, status: int) -> int:
    """Why there is no server; as text to who has started it, and not among what a server says."""
    if output.as_json:
        output.say(reason, "critical")
        output.finish(FINISH_S)
    else:
        print(f"actorserve: error: {reason}", file=sys.stderr)
    return status
