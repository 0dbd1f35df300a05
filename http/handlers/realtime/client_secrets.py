"""POST /v1/realtime/client_secrets, and its older form: a key for a page, which opens one session after the other."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from actorserve.actors.accounts.account import digest_of

from ...accounts import check_model_of
from ...generation.fields.decoding import check_model
from ...generation.fields.unsupported import read
from ...middleware.context import ACCOUNT
from ...middleware.edge import sent_key
from ...realtime.client_secrets import BetaSessionRequest, ClientSecretRequest, ExpiresAfter, write_secret
from ...realtime.fields import Object, SessionFields, fields_of, without_beta
from ...realtime.session import Session, new_session
from ...transport.json_response import json_response
from ..generate import Generator
from .api import kind_of
from .generation import Generations

BESIDE = ("client_secret",)  # of the older body, and no field of a session


class ClientSecretsApi:
    """The handlers, by the names that paths/speech.py has for them."""

    def __init__(self, generator: Generator, read_body: Callable[[web.Request], Awaitable[bytes]]) -> None:
        self._generator, self._settings = generator, generator.settings
        self._read_body = read_body

    async def create(self, request: web.Request) -> web.Response:
        """POST /v1/realtime/client_secrets."""
        body = read(ClientSecretRequest, await self._read_body(request))
        value, until, session = await self._made(request, body.session or SessionFields(), body.expires_after)
        return json_response({"value": value, "expires_at": until, "session": session.told()})

    async def create_session(self, request: web.Request) -> web.Response:
        """POST /v1/realtime/sessions."""
        raw = await self._read_body(request)
        body = read(BetaSessionRequest, raw)
        given = {name: one for name, one in msgspec.json.decode(raw, type=Object).items() if name not in BESIDE}
        expires = None if body.client_secret is None else body.client_secret.expires_after
        fields = fields_of(SessionFields, without_beta(given), "session")
        value, until, session = await self._made(request, fields, expires)
        return json_response({**session.told(), "client_secret": {"value": value, "expires_at": until}})

    async def _made(
        self, request: web.Request, fields: SessionFields, expires: ExpiresAfter | None
    ) -> tuple[str, int, Session]:
        """(the secret, until when it holds, a session as it will begin). 400 names what could not be of it."""
        account = request.get(ACCOUNT)
        await self._generator.want_adapter(request, fields.model)
        model = check_model(fields.model, *self._settings.names)
        check_model_of(account, model)
        now = int(time.time())
        session = new_session(kind_of(self._settings), model, now, False)
        session.update(fields)
        Generations(request, self._generator).check(session)
        until = now + (ExpiresAfter() if expires is None else expires).seconds
        digest = digest_of(sent_key(request) if self._settings.wants_keys else b"")
        return write_secret(until, "" if account is None else account.name, model, fields, digest), until, session
