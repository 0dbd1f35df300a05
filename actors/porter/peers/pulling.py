"""Pulling KV blocks from another server (protocol/sockets/kv_wire.py): one thread and one connection for each.

Where it is not reached, does not answer in time, ends, or gives something else, what was not there yet is a miss, and
is computed; it is asked again after a while. Nothing of a block is used whose checksum is wrong.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from ...options.objects.remote import read_address
from ...protocol.sockets import kv_wire as wire
from ...telemetry.gauges import PorterGauge
from ..carrier import Kind, Reading
from ..files import checksum
from .nixl import Agent, NixlError, Staging

CONNECT_S = 1.0
STEP_S = 1.5  # for one answer, all of it
MOST_WAITING = 16  # readings
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
MOST_NAMED = 64  # servers that requests have named
FAILURES = (OSError, EOFError, wire.Unproven, NixlError)


class Counts:
    """Of all peers; written by threads, read by the actor."""

    def __init__(self) -> None:
        self.errors = 0


class Peer:
    """Another server."""

    hits = PorterGauge.HITS_PEERS

    def __init__(
        self,
        address: str,
        proofs: wire.Proofs,
        agent: Agent | None,
        counts: Counts,
        wake: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        """`agent` of NIXL."""
        self.address = address
        self._proofs, self._agent, self._counts, self._wake, self._log = proofs, agent, counts, wake, log
        self._reads: queue.Queue[Reading | None] = queue.Queue()
        self._line: wire.Line | None = None
        self._staging: Staging | None = None
        self._again, self._pause_s = 0.0, FIRST_PAUSE_S
        self._said = ""
        threading.Thread(target=self._read_on, daemon=True).start()

    @property
    def answers(self) -> bool:
        return self._reads.qsize() < MOST_WAITING and time.monotonic() >= self._again

    @property
    def rests(self) -> bool:
        """Nobody waits for it."""
        return self._reads.empty()

    def read(self, kind: Kind, keys: list[bytes]) -> Reading:
        """Begin; the actor is woken as blocks come."""
        reading = Reading(kind, keys, [])
        self._reads.put(reading)
        return reading

    def end(self) -> None:
        """It is asked no more."""
        self._reads.put(None)

    # --- its thread's --------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        while True:
            try:
                reading = self._reads.get(timeout=wire.IDLE_S / 2)
            except queue.Empty:
                self._hang_up()
                continue
            if reading is None:
                self._hang_up()
                return
            try:
                self._read(reading)
                self._pause_s, self._said = FIRST_PAUSE_S, ""
            except FAILURES as error:
                self._failed(error)
            finally:
                reading.done = True
                self._wake()

    def _read(self, reading: Reading) -> None:
        """A connection that has ended since the last time is made anew, once."""
        was_there = self._line is not None
        try:
            self._read_chain(reading)
        except FAILURES:
            self._hang_up()
            if not was_there or reading.blocks:
                raise
            self._read_chain(reading)

    def _failed(self, error: Exception) -> None:
        self._hang_up()
        self._counts.errors += 1
        self._again = time.monotonic() + self._pause_s
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
        said = str(error) or type(error).__name__
        if said != self._said:
            self._said = said
            self._log.warning("%s gives no KV blocks, which are computed: %s", self.address, said)

    def _hang_up(self) -> None:
        if self._staging is not None:
            self._staging.close()
        if self._line is not None:
            self._line.close()
        self._line = self._staging = None

    def _read_chain(self, reading: Reading) -> None:
        kind, keys = reading.kind, reading.keys
        most, at = max(1, wire.WINDOW_BYTES // kind.size), 0
        while at < len(keys) and reading.wanted:
            if self._line is None:
                self._line = self._connect()
            part = keys[at : at + most]
            came = self._ask(self._line.within(STEP_S), kind, part, reading)
            if came < len(part):
                return
            at += came

    def _connect(self) -> wire.Line:
        own = socket.create_connection(read_address(self.address, "--kv-offload: peer"), CONNECT_S)
        line = wire.Line(own)
        try:
            wire.prepare(own)
            if self._proofs.pulling is not None:
                line.connection = self._proofs.pulling.wrap_socket(own)
            self._meet(line.within(CONNECT_S))
        except BaseException:
            line.close()
            raise
        return line

    def _meet(self, line: wire.Line) -> None:
        challenge = line.receive(wire.Challenge, wire.MOST_GREETING)
        nonce, secret = os.urandom(wire.NONCE_BYTES), self._proofs.secret
        proof = wire.proof_of(secret, challenge.nonce, wire.PULLER) if secret else b""
        about = b"" if self._agent is None else self._agent.about
        line.send(wire.Greeting(proof, nonce, wire.VERSION, about))
        welcome = line.receive(wire.Welcome)
        if welcome.refused:
            raise wire.Unproven(welcome.refused)
        if secret and not wire.is_proven(welcome.proof, secret, nonce, wire.GIVER):
            raise wire.Unproven("it does not know the secret of --engine-secret-file")
        if self._agent is not None and welcome.agent:
            self._staging = self._agent.staging(welcome.agent)

    def _ask(self, line: wire.Line, kind: Kind, keys: list[bytes], reading: Reading) -> int:
        """How many of them came."""
        line.send(wire.Want(kind.fingerprint, kind.size, b"".join(keys)))
        have = line.receive(wire.Have)
        if len(have.sums) > len(keys) or (have.places and len(have.places) != len(have.sums)):
            raise wire.Unproven("it gives what nobody wants")
        if have.places and self._staging is None:
            raise wire.Unproven("it says where blocks lie to one that has no agent")
        if have.places and self._staging is not None:
            blocks = iter(self._staging.read(have.places, kind.size, line.deadline))
        else:
            blocks = (line.read(kind.size) for _ in have.sums)
        for key, its_sum, data in zip(keys, have.sums, blocks, strict=False):
            if checksum(kind.fingerprint, key, data) != its_sum:
                raise wire.Unproven("a block is not what its checksum says")
            reading.blocks.append(data)
            self._wake()
        if have.sums:
            line.send(wire.Done())
        return len(have.sums)


class Peers:
    """Those that are always asked, and those that requests name."""

    def __init__(self, always: tuple[str, ...], make: Callable[[str], Peer], counts: Counts) -> None:
        self._make, self.counts = make, counts
        self.always = [make(address) for address in always]
        self._named: OrderedDict[str, Peer] = OrderedDict()

    def named(self, address: str) -> list[Peer]:
        """The one of this address, first, then those that are always asked."""
        peer = next((peer for peer in self.always if peer.address == address), None)
        if address and peer is None:
            peer = self._named.get(address) or self._meet(address)
        return self.always if peer is None else [peer, *(one for one in self.always if one is not peer)]

    def _meet(self, address: str) -> Peer | None:
        """Who has rested longest goes for it."""
        if len(self._named) >= MOST_NAMED:
            resting = next((name for name, peer in self._named.items() if peer.rests), None)
            if resting is None:
                return None
            self._named.pop(resting).end()
        self._named[address] = self._make(address)
        return self._named[address]
