"""Servers that connect: who knows the secret and has the same facts is met; all others are refused, and told why."""

from __future__ import annotations

import os

from ..engines.channel import Channel
from ..engines.encryption import steward_context
from ..model.checks.device import draws_on_gpu
from ..options.objects.remote import read_engine_secret
from ..protocol.sockets import engine_wire as wire
from ..protocol.sockets.engine_facts import facts_of, refusal_of, unheeded_of
from ..runtime.process import Context

MOST_STRANGERS = 64  # connections that have not shown yet who they are


class Handshakes:
    """Those that are under way."""

    def __init__(self, context: Context) -> None:
        self._log = context.log
        self._secret = read_engine_secret(context.config)
        self.tls, self._certificate = steward_context(context.config)
        self._facts = facts_of(context.config, context.model)
        self._unheeded = unheeded_of(context.config, draws_on_gpu(context.config, context.model))
        self._strangers: dict[Channel, bytes] = {}  # with the nonce that each was given

    def begin(self, channel: Channel) -> None:
        """A connection is there."""
        if len(self._strangers) >= MOST_STRANGERS:
            channel.close("there are too many that have not shown who they are")
            return
        nonce = self._strangers[channel] = os.urandom(wire.NONCE_BYTES)
        channel.send(wire.Challenge(nonce))

    def end(self, channel: Channel) -> None:
        """It is gone."""
        self._strangers.pop(channel, None)

    def meet(self, channel: Channel, record: object) -> wire.Greeting | None:
        """Who speaks, and with what in common; None: it is refused."""
        nonce = self._strangers.pop(channel, b"")
        if not isinstance(record, wire.Greeting):
            channel.close("it did not begin with a greeting")
            return None
        if self._secret and not wire.is_proven(record.proof, self._secret, nonce + self._certificate, wire.LINK):
            self.refuse(channel, "the secret of --engine-secret-file is another one")
        elif refusal := refusal_of(record.facts, self._facts):
            self.refuse(channel, refusal, refusal_of(self._facts, record.facts))
        else:
            return record
        return None

    def refuse(self, channel: Channel, why: str, own: str = "") -> None:
        """`own`: the same as it is seen from here."""
        self._log.error("a server at %s is refused: %s", channel.peer, own or why)
        channel.close(why, last=wire.Welcome(refused=why))

    def welcome(self, greeting: wire.Greeting, slots: int) -> wire.Welcome:
        """That this steward knows the secret, too, and what it has."""
        proof = wire.proof_of(self._secret, greeting.nonce + self._certificate, wire.STEWARD) if self._secret else b""
        return wire.Welcome(proof, slots, unheeded=self._unheeded)

    def look(self, now: float) -> None:
        """Whose time is over."""
        for channel in [one for one in self._strangers if now - one.began > wire.PROVE_S]:
            channel.close("it has not shown who it is")
