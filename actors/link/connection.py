"""The way to one engine elsewhere: connect, show who this is and see who that is, and begin again when it is gone."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import socket
from collections.abc import Callable

from actorserve.shm.engine_places import PARKED, EnginePlaces

from ..engines.channel import Channel
from ..engines.encryption import digest_of, link_context
from ..options.objects.remote import RAY, read_address, read_engine_secret
from ..protocol.sockets import engine_wire as wire
from ..protocol.sockets.engine_facts import facts_of
from ..protocol.sockets.node_wire import prepare
from ..runtime.process import Context

FIRST_S, AGAIN_S, REFUSED_S = 0.05, 1.0, 3.0  # before another try: at first, after some, after a refusal
CONNECT_S = 1.0


class EngineConnection:
    """`channel` once both sides know each other. `heard`, `met` and `lost` are the link's."""

    def __init__(
        self,
        context: Context,
        heard: Callable[[object], None],
        met: Callable[[wire.Welcome], None],
        lost: Callable[[str], None],
        turn: Callable[[], None],
    ) -> None:
        """`met` with what the engine says of itself, `lost` with the reason, also where a try to connect fails."""
        config = context.config
        self._log: logging.Logger = context.log
        self._heard_record, self._met, self._lost_it, self._turn = heard, met, lost, turn
        self.engine = context.spec.engine
        self.name = config.remote_engines[self.engine - config.local_engines]
        self._number = self.engine - config.local_engines
        placed = self.name.startswith(RAY)
        self._places = EnginePlaces(context.files["places"], len(config.remote_engines)) if placed else None
        self._secret, self._tls = read_engine_secret(config), link_context(config)
        self._facts = facts_of(config, context.model)
        self._server = context.supervisor[1]  # the control socket's name, in which there is a random part
        self.channel: Channel | None = None
        self._nonce = b""
        self._over = asyncio.Event()  # of this connection
        self._said = ""  # why it is not there
        self._is_refusal = False  # it has said so itself

    async def run(self) -> None:
        """For ever."""
        pause_s = FIRST_S
        while True:
            try:
                await self._connect()
                if await self._greeted():
                    pause_s = FIRST_S
                    await self._over.wait()
                else:
                    pause_s = REFUSED_S
            except (OSError, TimeoutError) as error:
                self._not_reached(str(error) or "it does not answer")
            await asyncio.sleep(pause_s)
            pause_s = min(AGAIN_S, 2 * pause_s)

    def _not_reached(self, why: str) -> None:
        """Said once, until there is another reason or it was there."""
        if why != self._said:
            self._said = why
            self._log.warning("engine %d at %s cannot be reached: %s", self.engine, self.name, why)
        self._lost_it(why)
        self._turn()

    @property
    def is_parked(self) -> bool:
        """Does nobody want it now?"""
        return self._places is not None and self._places.read(self._number) == PARKED

    def _address(self) -> tuple[str, int]:
        """Where it is now. ConnectionError if nobody knows."""
        if self._places is None:
            return read_address(self.name, "--engines")
        place = self._places.read(self._number)
        if place == PARKED:
            raise ConnectionError("it is not wanted now")
        if place:
            return read_address(place, "--engines")
        raise ConnectionError("Ray has not placed it yet, or it does not compute yet")

    async def _connect(self) -> None:
        self._over.clear()
        loop = asyncio.get_running_loop()
        own = await self._open()
        channel = Channel(wire.ToLink, self._heard, self._lost, self._turn)
        self._greeting, self._is_refusal = loop.create_future(), False
        async with asyncio.timeout(wire.PROVE_S):
            await loop.create_connection(lambda: channel, sock=prepare(own), ssl=self._tls, server_hostname="")
        self._channel = channel

    async def _open(self) -> socket.socket:
        """To the first place that answers: of a name that has several, of IPv4 and IPv6, it may listen at one alone."""
        loop, host_and_port = asyncio.get_running_loop(), self._address()
        try:
            async with asyncio.timeout(CONNECT_S):
                places = await loop.getaddrinfo(*host_and_port, type=socket.SOCK_STREAM)
        except UnicodeError:
            raise ConnectionError(f"{host_and_port[0]} is no name of a machine") from None
        troubles: list[OSError] = []
        for family, kind, protocol, _, place in places:
            own = socket.socket(family, kind, protocol)
            own.setblocking(False)
            try:
                async with asyncio.timeout(CONNECT_S):
                    await loop.sock_connect(own, place)
                return own
            except OSError as error:
                own.close()
                troubles.append(error)
            except BaseException:
                own.close()
                raise
        raise troubles[0]

    async def _greeted(self) -> bool:
        """Is this an engine that goes with this server?"""
        try:
            async with asyncio.timeout(wire.PROVE_S):
                refused: str = await self._greeting
        except TimeoutError:
            self._channel.close("it does not greet")
            raise
        if refused and not self._is_refusal:
            raise ConnectionError(refused)
        if refused and refused != self._said:
            self._log.error("the engine at %s cannot be used: %s", self.name, refused)
            self._lost_it(refused)
            self._turn()
        self._said = refused
        return not refused

    def _heard(self, channel: Channel, record: object) -> None:
        match record:
            case _ if channel.is_trusted:
                self._heard_record(record)
            case wire.Challenge():
                self._nonce = os.urandom(wire.NONCE_BYTES)
                proof = self._proof(channel, record.nonce, wire.LINK) if self._secret else b""
                channel.send(wire.Greeting(proof, self._nonce, self._server, self.engine, self._facts))
            case wire.Welcome():
                self._welcomed(channel, record)
            case _:
                channel.close("it does not begin as an engine does")

    def _welcomed(self, channel: Channel, welcome: wire.Welcome) -> None:
        refused = welcome.refused
        if not refused and self._secret and not self._is_proven(channel, welcome):
            refused = "it does not know the secret of --engine-secret-file"
        self._is_refusal = bool(refused)
        if refused:
            channel.close(refused)
        else:
            channel.trust()
            self.channel = channel
            self._met(welcome)
        if not self._greeting.done():
            self._greeting.set_result(refused)

    def _is_proven(self, channel: Channel, welcome: wire.Welcome) -> bool:
        return hmac.compare_digest(welcome.proof, self._proof(channel, self._nonce, wire.STEWARD))

    def _proof(self, channel: Channel, nonce: bytes, side: bytes) -> bytes:
        """Over what that side shows of itself: nobody between the two has the same."""
        return wire.proof_of(self._secret, nonce + digest_of(channel.certificate), side)

    def _lost(self, channel: Channel, why: str) -> None:
        if channel is self.channel:
            self.channel = None
            self._lost_it(why)
        if not self._greeting.done():
            self._greeting.set_result(why)
        self._over.set()
