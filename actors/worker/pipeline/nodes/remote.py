"""A worker on another machine than the scheduler: steps come by its connection, with the tokens of new rows, which it
writes to a request table of its own, where its runner reads them. It has only stages that draw nothing.
"""

from __future__ import annotations

import numpy as np

from actorserve.shm.board.board import ActorState
from actorserve.shm.table.table import slot_of

from ....protocol.sockets.node_wire import DONE, READY, Planned, receive
from ...actor import WorkerActor


def run_remote(actor: WorkerActor) -> None:
    """Until the connection ends, which its supervisor and its successor see, too."""
    context = actor.context
    connection = context.channel
    assert connection is not None
    tokens = context.table.as_numpy().tokens
    context.set_state(ActorState.READY)
    connection.sendall(READY)
    context.log.info("ready, for the server at %s", connection.getpeername()[0])
    while not context.stopping:
        try:
            planned = receive(connection, Planned)
        except (EOFError, OSError) as error:
            context.log.info("the server's connection is gone: %s", error)
            return
        write_tokens(tokens, planned)
        actor.handle(planned.step)
        connection.sendall(DONE)


def write_tokens(tokens: np.ndarray, planned: Planned) -> None:
    """Of new rows, to their slots."""
    for new, sent in zip(planned.step.new_rows, planned.tokens, strict=True):
        tokens[slot_of(new.ref), new.num_computed_tokens : new.num_known_tokens] = np.frombuffer(sent, np.int32)
