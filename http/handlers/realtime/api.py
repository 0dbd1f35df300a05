"""GET /v1/realtime: who may have one, of what kind it is, and which there are."""

from __future__ import annotations

import logging
import time

from aiohttp import hdrs, web

from ...accounts import check_model_of
from ...errors import bad_request
from ...generation.fields.decoding import check_model, decode_query
from ...middleware.context import ACCOUNT, GRANT, name_request
from ...pooling.prepare import check_generates
from ...realtime.audio import SHARE, SoundBudget
from ...realtime.client_secrets import expired_secret
from ...realtime.fields import RealtimeQuery
from ...realtime.session import REALTIME, TRANSCRIPTION, Kind, new_session
from ...settings import Settings
from ...transport.body import BodyBudget
from ...transport.resume import record_of
from ...transport.websocket import WebSocketChannel
from ..generate import Generator
from ..sockets import check_upgrade
from .connection import RealtimeConnection

log = logging.getLogger("http")
PROTOCOLS = ("realtime",)  # what browsers ask for beside their key
BETA = "OpenAI-Beta"
BETA_PROTOCOL = "openai-beta.realtime-v1"


class RealtimeApi:
    """Of one frontend."""

    def __init__(self, generator: Generator, unfinished: BodyBudget) -> None:
        """`unfinished`: what messages that have not come whole may take, with all bodies."""
        self._generator, self._settings, self._unfinished = generator, generator.settings, unfinished
        self._sounds = SoundBudget(int(self._settings.max_body_bytes * SHARE))
        self._open: set[RealtimeConnection] = set()
        self._drains = False

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/realtime."""
        query = decode_query(RealtimeQuery, request.query)
        if query.call_id is not None:
            raise bad_request("call_id is not supported: there are no calls here.", "call_id")
        grant = request.get(GRANT)
        if grant is not None and query.model not in (None, grant.model):
            raise bad_request(f"model: this client secret is for {grant.model:.64}.", "model")
        asked = query.model if grant is None else grant.model
        kind, model = self._kind(query), check_model(asked, *self._settings.names)
        check_model_of(request.get(ACCOUNT), model)
        check_upgrade(request, self._settings)
        name_request(request, None)
        channel = WebSocketChannel(request, self._settings.max_body_bytes, PROTOCOLS, self._unfinished)
        record = record_of(request)
        left = record.upgraded.left if record is not None and record.upgraded is not None else None
        if grant is not None and left is None and grant.until < time.time():  # what has begun goes on
            raise expired_secret()
        session = new_session(kind, model, int(time.time()), _is_beta(request))
        connection = RealtimeConnection(request, self._generator, channel, session, self._begun, self._sounds)
        await channel.open()
        self._open.add(connection)
        self._generator.engine.count_realtime(1)
        try:
            if self._drains:
                connection.drain()
            await connection.run(left, b"" if grant is None else grant.session)
        finally:
            channel.release()
            self._open.discard(connection)
            self._generator.engine.count_realtime(-1)
            log.info("%s", connection.summary(), extra={"fields": {"session_id": connection.session.id}})
        return channel.response

    def _begun(self) -> None:
        """Something more is being generated for one of them."""
        self._generator.engine.count_realtime(begun=1)

    def _kind(self, query: RealtimeQuery) -> Kind:
        """What this model is for; 400 for a session of another kind."""
        kind = kind_of(self._settings)
        if kind == TRANSCRIPTION and query.intent == "conversation":
            raise bad_request("intent: this model writes sounds down, and holds no conversation.", "intent")
        if kind == REALTIME and query.intent == TRANSCRIPTION:
            raise bad_request("intent: this model writes no sounds down; a Whisper does.", "intent")
        return kind

    def drain(self) -> None:
        """Nothing is begun any more: each connection is closed when what it is being answered has ended."""
        self._drains = True
        for connection in list(self._open):
            connection.drain()


def kind_of(settings: Settings) -> Kind:
    """Of this model's sessions; 400 where it has none."""
    if settings.hears:
        return TRANSCRIPTION
    check_generates(settings)
    return REALTIME


def _is_beta(request: web.Request) -> bool:
    """Does its client know events by their older names?"""
    offered = request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "")
    return "realtime=v1" in request.headers.get(BETA, "") or BETA_PROTOCOL in offered
