"""Giving KV blocks to other servers: they ask for them by name, and are sent them out of the arena
(protocol/sockets/kv_wire.py says how they ask, and what a lease is).

A thread accepts, and one for each connection answers. Which slots of the arena have what is wanted only the actor
knows, so a thread asks it (`Loan`, by a queue), and waits a bounded time; the actor holds the slots for it
(host.py), and lets go of them when the thread says, by the same queue, that it is over: which it does however it ends.
    the other server dies, or the way to it   the connection ends, or LEASE_S are over: the thread ends the loan
    this porter dies                          who reads has a miss. Holds were in its memory; the successor's arena has
                                              none, and its listening socket is the supervisor's, where who comes waits
Nothing is written but the holds, and those by the actor alone.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ...protocol.block_hash import HASH_BYTES
from ...protocol.sockets import kv_wire as wire
from ..carrier import Kind
from ..files import checksum
from ..host import HostTier
from .nixl import Agent

MOST_CONNECTIONS = 64
ASKED_S = 1.0  # for the actor's answer
AGAIN_S = 0.5  # behind an error of accept
MOST_TOLD = 200  # refusals that are told, and characters of each that are compared


@dataclass(eq=False)
class Loan:
    """Blocks that are wanted, and then those that are held."""

    kind: Kind
    keys: list[bytes]
    slots: list[int] = field(default_factory=list)
    answered: threading.Event = field(default_factory=threading.Event)
    is_over: bool = False
    read: int = 0  # by the other side


Find = Callable[[Kind, list[bytes]], list[int]]


class Serving:
    """Of one porter."""

    def __init__(
        self,
        listener: int,
        proofs: wire.Proofs,
        agent: Agent | None,
        host: HostTier,
        wake: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        """`listener`: the descriptor of the supervisor's socket; `agent` of NIXL."""
        self.given = 0
        self._proofs, self._agent, self._host, self._wake, self._log = proofs, agent, host, wake, log
        self._loans: queue.SimpleQueue[Loan] = queue.SimpleQueue()
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        self._told = set[str]()  # refusals
        self._listener = socket.socket(fileno=os.dup(listener))
        self._listener.settimeout(None)

    def start(self) -> None:
        threading.Thread(target=self._accept_on, daemon=True).start()

    # --- the actor's ---------------------------------------------------------------------------------------------

    def turn(self, find: Find) -> int:
        """Answer threads that ask, and let go of what they need no more. `find`: the slots of the first blocks."""
        done = 0
        while not self._loans.empty():
            loan = self._loans.get()
            if loan.is_over:
                self._host.release(loan.slots)
                self.given += loan.read
            else:
                loan.slots = find(loan.kind, loan.keys)
                self._host.hold(loan.slots)
                loan.answered.set()
            done += 1
        return done

    # --- threads' ------------------------------------------------------------------------------------------------

    def _accept_on(self) -> None:
        while True:
            self._room.acquire()
            try:
                connection, address = self._listener.accept()
                args = connection, str(address[0])
                threading.Thread(target=self._serve, args=args, daemon=True).start()
            except OSError as error:  # there are too many open files, or the client is gone again
                self._room.release()
                self._log.debug("nobody can be given KV blocks now: %s", error)
                time.sleep(AGAIN_S)  # not a signal: whose files they are tells nobody

    def _serve(self, connection: socket.socket, peer: str) -> None:
        line = wire.Line(connection)
        try:
            agent = self._meet(line)
            while True:
                want = line.within(wire.IDLE_S).receive(wire.Want)
                self._give(line.within(wire.LEASE_S), want, agent)
        except wire.Unproven as error:
            why = str(error)[:MOST_TOLD]
            if why not in self._told and len(self._told) < MOST_TOLD:  # once for each reason
                self._told.add(why)
                self._log.warning("%s is given no KV blocks: %s", peer, error)
        except (OSError, EOFError) as error:
            self._log.debug("%s wants no more KV blocks: %s", peer, error)
        finally:
            line.close()
            self._room.release()

    def _meet(self, line: wire.Line) -> bool:
        """Who is this? True if NIXL carries the blocks."""
        wire.prepare(line.connection)
        if self._proofs.serving is not None:
            line.connection.settimeout(wire.PROVE_S)
            line.connection = self._proofs.serving.wrap_socket(line.connection, server_side=True)
        nonce, secret = os.urandom(wire.NONCE_BYTES), self._proofs.secret
        line.within(wire.PROVE_S).send(wire.Challenge(nonce))
        greeting = line.receive(wire.Greeting, wire.MOST_GREETING)
        refused = ""
        if secret and not wire.is_proven(greeting.proof, secret, nonce, wire.PULLER):
            refused = "it does not know the secret of --engine-secret-file"
        elif greeting.version != wire.VERSION:
            refused = f"it speaks version {greeting.version} of this, not {wire.VERSION}"
        if refused:
            line.send(wire.Welcome(refused=refused))
            raise wire.Unproven(refused)
        agent = self._agent if greeting.agent else None
        proof = wire.proof_of(secret, greeting.nonce, wire.GIVER) if secret else b""
        line.send(wire.Welcome(proof, "", b"" if agent is None else agent.about))
        return agent is not None

    def _give(self, line: wire.Line, want: wire.Want, agent: bool) -> None:
        keys = [want.keys[start : start + HASH_BYTES] for start in range(0, len(want.keys), HASH_BYTES)]
        loan = Loan(Kind(want.fingerprint, want.size), keys)
        self._loans.put(loan)
        self._wake()
        try:
            slots = loan.slots if loan.answered.wait(ASKED_S) else []
            data = self._host.arena.data
            sums = [checksum(want.fingerprint, key, data(slot)) for key, slot in zip(keys, slots, strict=False)]
            places = [self._agent.place(data(slot)) for slot in slots] if agent and self._agent is not None else []
            line.send(wire.Have(sums, places))
            for slot in () if places else slots:
                line.send_bytes(data(slot))
            if slots:
                line.receive(wire.Done)
            loan.read = len(slots)
        finally:
            loan.is_over = True
            self._loans.put(loan)
            self._wake()
