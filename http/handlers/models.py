"""Which of the server's models a request is for, and so whose handlers answer it.

With one model there is nothing to find. With several the body is read first, and left on the request for the handler.
Who names no model asks the first that does what the path is for; so does who names one that there is not, which is
answered there with 404.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from operator import attrgetter

import msgspec
from aiohttp import web

from ..generation.fields.decoding import decode_query, not_loaded
from ..generation.fields.depth import check_depth
from ..generation.trail import GoOnRequest, longest_wrapper
from ..llamacpp.schemas import AutoloadQuery
from ..middleware.context import ACCOUNT, BODY, GRANT
from ..openai.schemas import InvocationRequest
from ..realtime.client_secrets import ClientSecretRequest
from ..realtime.session import TRANSCRIPTION
from ..route import Route
from ..settings import Settings
from ..speech.prepare import sound_limit
from ..transport.body import BodyBudget, read_body
from ..transport.form import read_form, read_form_body
from .answering import check_served
from .api import Api
from .operators.operations import ServerEngine
from .responses.api import ResponsesApi

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LATEST = ":latest"  # Ollama's clients put it behind any name


class _Named(msgspec.Struct):
    """What tells of a body for whom it is."""

    model: str | None = None
    name: str | None = None  # the same, of Ollama's older clients


class ModelApis:
    """The handlers of all models."""

    def __init__(self, engine: ServerEngine, settings: Settings) -> None:
        self.first = Api(engine, settings)
        others = settings.all_models[1:]
        self._all = [self.first, *(Api(engine.of_model(one.model), one, self.first.responses) for one in others)]
        self._settings, self._administration = settings, engine.administration
        self._longest = max(api.longest for api in self._all)
        self._longest_form = max(one.longest_form for one in settings.all_models)
        self._sound = max(map(sound_limit, settings.all_models))
        self._unfinished = BodyBudget(max(self._longest, self._longest_form))
        self.first.responses.go_on(lambda left: self._responses(left.raw))
        self.first.response_sockets.among(self._responses, self._longest)

    def _responses(self, raw: bytes) -> ResponsesApi:
        """Those of the model that a body asks."""
        return self._all[index_of(self._settings, raw)].responses

    def drain(self) -> None:
        """WebSockets begin nothing more."""
        for api in self._all:
            api.realtime.drain()
        self.first.response_sockets.drain()

    def handler(self, route: Route) -> Handler:
        """What answers this route."""
        handlers: list[Handler] = [attrgetter(route.handler)(api) for api in self._all]
        alone = len(handlers) == 1 and not (self._settings.catalog.unserved or self._settings.models_max)
        if alone or not _names_model(route):
            return handlers[0]

        longest = longest_wrapper(self._longest) if route.request is GoOnRequest else self._longest

        async def answer(request: web.Request) -> web.StreamResponse:
            if route.method == "get":
                granted = request[GRANT].model if GRANT in request else None
                return await handlers[index_of_query(self._settings, request.query, route, granted)](request)
            if BODY not in request and route.hears:
                request[BODY] = await read_form_body(request, self._longest_form, self._unfinished, self._sound)
            elif BODY not in request:
                request[BODY] = check_depth(await read_body(request, longest, self._unfinished))
            number = await self._find(request, route)
            if route.generates or route.pools or route.hears:
                await self._load(request, number)
            return await handlers[number](request)

        return answer

    async def _load(self, request: web.Request, number: int) -> None:
        """What the query says of one that is not loaded, whatever --models-autoload does."""
        autoload = decode_query(AutoloadQuery, request.query).autoload
        if autoload is None or self._administration.model_state(number) != "unloaded":
            return
        own = self._settings.all_models[number]
        if not autoload:
            raise not_loaded(own.served[0])
        account = request.get(ACCOUNT)
        if own.clients_load and (account is None or any(map(account.may_ask_for, own.served))):
            await self._administration.load_model(number)

    async def _find(self, request: web.Request, route: Route) -> int:
        """The number of the model that is asked."""
        raw = request[BODY]
        if route.hears:
            fields = await read_form(request, raw)
            name = fields.get("model", [b""])[-1].decode(errors="replace")
            raw = msgspec.json.encode(_Named(name))
        return index_of(self._settings, raw, route)


def index_of(settings: Settings, raw: bytes, route: Route | None = None) -> int:
    """Which of the models a body is for; without a route it asks for a text."""
    try:
        if route is not None and route.request is GoOnRequest:
            raw = msgspec.json.decode(raw, type=GoOnRequest).body.encode(errors="surrogateescape")
        if route is not None and route.request is ClientSecretRequest:
            raw = msgspec.json.encode(msgspec.json.decode(raw, type=ClientSecretRequest).session or _Named())
        found = msgspec.json.decode(raw, type=_Named)
    except (msgspec.DecodeError, UnicodeDecodeError):  # whoever decodes it whole says what is wrong
        return 0
    has_name = route is not None and "name" in _fields(route.request)
    return named(settings, found.model or (found.name if has_name else None), route)


def named(settings: Settings, name: str | None, route: Route | None = None) -> int:
    """Which of the models has this name, as clients write it; 404 for one that cannot be served."""
    if name and name not in settings.all_served:
        name = name.removesuffix(LATEST)
        check_served(name, settings)
    return settings.asked(name, lambda one: one.generates if route is None else route.is_for(one)).model


def index_of_query(settings: Settings, query: Mapping[str, str], route: Route, granted: str | None = None) -> int:
    """Of a WebSocket that names no model its client secret does (`granted`), or its intent says what the model has to
    do.
    """
    name = query.get("model") or granted
    if route.upgrades and not name and query.get("intent") == TRANSCRIPTION:
        return settings.asked(None, lambda one: one.hears).model
    return named(settings, name, route)


def _names_model(route: Route) -> bool:
    """Has its body, or its query, a model?"""
    if route.method == "get":
        return "model" in _fields(route.query)
    return route.method == "post" and (
        "model" in _fields(route.request) or route.request in (GoOnRequest, InvocationRequest, ClientSecretRequest)
    )


def _fields(kind: type | None) -> set[str]:
    return set() if kind is None else {field.name for field in msgspec.structs.fields(kind)}
