"""A worker of another machine, as node 0 has it: an actor in its place, that sends on what the scheduler plans.

It reads the plan ring as any worker does, and is one of the group: if the connection ends, it dies, and all of the
group are started again; if another of the group dies, it is killed, the connection ends, and the other machine ends its
worker, and starts the next one when the next proxy is there. So nothing else need be told of deaths.

While the engine sleeps it is parked as any worker: nobody is let in, so that there is no worker on the other machine.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading

import numpy as np

from actorserve.shm.rings.mailbox import wake
from actorserve.shm.table.table import slot_of

from ....options.config import ConfigError
from ....protocol.messages import ToWorker
from ....protocol.sockets.node_wire import (
    DONE,
    NONCE_BYTES,
    PROXY,
    READY,
    WORKER,
    Greeting,
    Planned,
    Unproven,
    Welcome,
    differences,
    facts_of,
    is_proven,
    prepare,
    proof_of,
    proxy_port,
    read_bytes,
    read_secret,
    receive,
    send,
)
from ....protocol.step import NewRow, Step
from ....protocol.topics.administration import CallMethod, MethodCalled
from ....runtime.process import RENEW, Actor, Context, run
from ...parked import ParkedWorker, sleep_word

LOOK_S = 0.5  # between two looks whether it is to end, while nobody is there
PROVE_S = 10.0  # what the other side gets for its part of the handshake
NOT_CALLED = "method: workers on other machines (--nnodes) are told of steps alone, so that none is called"


class ProxyActor(Actor):
    """Sends steps, and watches the connection."""

    def __init__(self, context: Context, connection: socket.socket) -> None:
        self._context, self._connection = context, connection
        self._tokens = context.table.as_numpy().tokens
        self._lost = ""
        connection.settimeout(context.config.step_timeout)
        threading.Thread(target=self._listen, daemon=True).start()

    def handle(self, message: ToWorker) -> None:
        if isinstance(message, Step):
            send(self._connection, Planned(message, list(map(self._tokens_of, message.new_rows))))
        elif isinstance(message, CallMethod):
            spec = self._context.spec
            scheduler = self._context.system.scheduler_of(spec.engine)
            self._context.post(scheduler, MethodCalled(message.call, spec.index, problem=NOT_CALLED))

    def _tokens_of(self, new: NewRow) -> bytes:
        """What the worker reads of a row's log."""
        own = self._tokens[slot_of(new.ref), new.num_computed_tokens : new.num_known_tokens]
        return np.ascontiguousarray(own, np.int32).tobytes()

    def do_work(self) -> int:
        if self._lost:
            raise ConnectionError(f"its worker's machine is gone: {self._lost}")
        return 0

    def _listen(self) -> None:
        """What comes back is a sign of life for each step."""
        own = self._connection.dup()
        own.settimeout(None)
        try:
            while (said := own.recv(256)) and not said.strip(DONE):
                pass
            self._lost = f"it says {said!r:.40}" if said else "the connection has ended"
        except OSError as error:
            self._lost = str(error)
        wake(self._context.eventfds[self._context.name])


def main(context: Context) -> None:
    """Wait for the worker's machine, then send on until told to stop."""
    if sleep_word(context).state.is_parked:
        run(ParkedWorker(context), context)
        return
    connection = _accept(context)
    if connection is None:
        return
    while not context.stopping:  # until it has loaded its part
        _look_at_sleep(context)
        try:
            connection.settimeout(LOOK_S)
            if read_bytes(connection, 1) != READY:
                raise ConnectionError("the worker's machine says something else than that it is ready")
            break
        except TimeoutError:
            continue
        except EOFError:
            raise ConnectionError("the worker's machine has ended its worker") from None
    run(ProxyActor(context, connection), context)


def _look_at_sleep(context: Context) -> None:
    """Nobody else of the group may be there to end, and let all of it be parked."""
    if sleep_word(context).state.is_parked:
        sys.exit(RENEW)


def _accept(context: Context) -> socket.socket | None:
    """The connection of one that knows the secret and has the same model and options; None if told to stop."""
    config, log = context.config, context.log
    secret, own = read_secret(config), facts_of(config, context.model, context.system.table_sizes)
    port = proxy_port(config, context.spec.index)
    assert config.master_addr is not None
    with _listen_at(config.master_addr, port) as listener:
        listener.settimeout(LOOK_S)
        log.info("waiting for node %d at %s:%d", config.node_of(context.spec.index), config.master_addr, port)
        while not context.stopping:
            _look_at_sleep(context)
            try:
                connection, (host, *_) = listener.accept()
            except TimeoutError:
                continue
            try:
                connection.settimeout(PROVE_S)
                problem = _prove(prepare(connection), secret, own, context.incarnation)
            except (OSError, EOFError, Unproven) as error:
                problem = str(error)
            if not problem:
                log.info("node %d is there (%s)", config.node_of(context.spec.index), host)
                return connection
            log.error("%s was refused: %s", host, problem)
            connection.close()
    return None


def _listen_at(address: str, port: int) -> socket.socket:
    try:
        return socket.create_server((address, port))
    except OSError as error:
        option = "--master-port" if error.errno == errno.EADDRINUSE else "--master-addr"
        raise ConfigError(f"{option}: {address}:{port} cannot be listened at: {error.strerror}") from None


def _prove(connection: socket.socket, secret: bytes, own: dict[str, str], life: int) -> str:
    """The handshake; why it is refused, if it is."""
    nonce = os.urandom(NONCE_BYTES)
    connection.sendall(nonce)
    greeting = receive(connection, Greeting)
    if not is_proven(greeting.proof, secret, nonce, WORKER):
        send(connection, Welcome(refused="the secret of --node-secret-file is another one"))
        return "it does not know the secret of --node-secret-file"
    if problem := differences(own, greeting.facts):
        send(connection, Welcome(refused=f"node 0 differs: {differences(greeting.facts, own)}"))
        return f"it differs: {problem}"
    send(connection, Welcome(proof_of(secret, greeting.nonce, PROXY), life))
    return ""
