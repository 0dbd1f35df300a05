"""What stands before the routes: keys, administration, other sites' pages (CORS), and slashes too many in a path.

Knows settings and paths, and no handler.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from yarl import URL

from actorserve.actors.accounts.account import digest_of
from actorserve.actors.accounts.sent_key import is_among, key_in
from actorserve.actors.files.owner import Owner, read_key

from ..errors import UNKNOWN_PATH, ApiError
from ..generation.idempotency_keys import client_of
from ..openapi.dialects import AnthropicError
from ..openapi.error_bodies import OF_ANTHROPICS
from ..paths.operations import USAGE
from ..paths.speech import REALTIME
from ..realtime.client_secrets import PREFIX, read_secret, unknown_secret
from ..routes import ADMIN_PATHS, ERRORS, GUARDED, OPEN_PATHS, ROUTER_PATHS, UNBUILT_PATHS
from ..settings import Settings, printable
from .context import ACCOUNT, CLIENT, GRANT, LIMITS, REPLAYED, REQUEST_ID

ALL = "*"
LOCALHOST = "localhost"  # as llama-server has it: of any port
LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
EXPOSED = ", ".join(
    [
        *("X-Request-Id", "Request-Id", "Idempotent-Replayed", "Retry-After"),
        *(f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
    ]
)
OF_ANTHROPIC = frozenset(path for path, error in ERRORS.items() if error is AnthropicError)
SECRET = "openai-insecure-api-key."  # begins the name of a WebSocket's subprotocol that is a key
PREFLIGHT_S = "600"  # for which browsers need not ask again


class Middlewares:
    """The middlewares, and the headers of every answer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = [key.encode() for key in settings.api_keys]
        self._admin_keys = [key.encode() for key in (settings.admin_api_key,) if key]
        self._admin_paths = ADMIN_PATHS - (ROUTER_PATHS if settings.clients_load else frozenset())

    # --- keys ----------------------------------------------------------------------------------------------------

    @web.middleware
    async def check_key(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """401 unless one of the keys was sent, as a bearer token or in X-Api-Key."""
        request[CLIENT] = ""
        if request.path in self._admin_paths:
            self._check_admin_key(request)
        elif request.path == REALTIME and self._is_client_secret(sent_key(request)):
            self._check_client_secret(request)
        elif self._settings.wants_keys and not _is_open(request):
            self._check_client_key(request)
        return await handler(request)

    def _check_client_key(self, request: web.Request) -> None:
        key = sent_key(request)
        if self._settings.files is not None and (owner := read_key(key, self._settings.files.secret)) is not None:
            self._stand_for(request, owner)
            return
        account = self._settings.accounts.find(key)
        if account is not None:
            request[ACCOUNT] = account
        elif not is_among(key, self._keys) and not (request.path == USAGE and is_among(key, self._admin_keys)):
            raise _unknown()
        request[CLIENT] = client_of(key)

    def _stand_for(self, request: web.Request, owner: Owner) -> None:
        """A line of a batch comes as its owner would, as long as there is his key."""
        account = self._settings.accounts.named(owner.account) if owner.account else None
        if account is not None:
            request[ACCOUNT] = account
        elif owner.account or owner.client not in map(client_of, self._keys):
            raise _unknown()
        request[CLIENT] = owner.client

    def _is_client_secret(self, key: bytes) -> bool:
        """And no key that happens to begin so."""
        own = is_among(key, self._keys) or self._settings.accounts.find(key) is not None
        return key.startswith(PREFIX) and not own

    def _check_client_secret(self, request: web.Request) -> None:
        """Signed by a key that is still one. Until when it holds is asked where a connection begins."""
        signed = read_secret(sent_key(request))
        digests = [digest_of(key) for key in self._keys] if self._settings.wants_keys else [digest_of(b"")]
        if signed.grant.owner:
            account = self._settings.accounts.named(signed.grant.owner)
            digests = [] if account is None else [account.digest]
            if account is not None:
                request[ACCOUNT] = account
        digest = next((one for one in digests if signed.is_signed_by(one)), None)
        if digest is None:
            raise unknown_secret()
        request[CLIENT], request[GRANT] = client_of(digest), signed.grant

    def _check_admin_key(self, request: web.Request) -> None:
        """Without the option nothing is there; with it, its key opens these paths, and no other key does."""
        path = f"{request.method} {request.path}"
        if not self._admin_keys:
            why = "" if request.path in UNBUILT_PATHS else ". It is there with --admin-api-key."
            raise ApiError(404, f"Not Found: {path}{why}", code=UNKNOWN_PATH)
        key = sent_key(request)
        if not is_among(key, self._admin_keys):
            if is_among(key, self._keys) or self._settings.accounts.find(key) is not None:
                raise ApiError(403, "This takes the key of --admin-api-key.", code="invalid_api_key")
            raise _unknown()
        if request.path in UNBUILT_PATHS:
            raise ApiError(501, f"{path} is not built yet.")

    # --- other sites' pages --------------------------------------------------------------------------------------

    @web.middleware
    async def answer_preflight(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """What a browser asks before it sends a page's request: no key comes with it, and nothing else is answered."""
        method = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD)
        origin = request.headers.get(hdrs.ORIGIN)
        if request.method != hdrs.METH_OPTIONS or method is None or origin is None:
            return await handler(request)
        if self._allowed(origin) is None:
            raise ApiError(403, f"Pages of {printable(origin)} are not among the --allowed-origins.")
        asked = printable(request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""))
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: _listed(self._settings.allowed_methods, METHODS),
            hdrs.ACCESS_CONTROL_MAX_AGE: PREFLIGHT_S,
            hdrs.VARY: hdrs.ACCESS_CONTROL_REQUEST_HEADERS,
        }
        if allowed := _listed(self._settings.allowed_headers, asked):  # for browsers * does not mean Authorization
            headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = allowed
        return web.Response(status=204, headers=headers)

    def _allowed(self, origin: str) -> str | None:
        """What to say to a page of this origin; None if it may not read answers."""
        if not allows_origin(self._settings.allowed_origins, origin):
            return None
        return ALL if ALL in self._settings.allowed_origins else origin

    # --- every answer --------------------------------------------------------------------------------------------

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """To errors and streams, too."""
        headers = response.headers
        if REQUEST_ID in request and self._settings.request_id_headers:
            headers["X-Request-Id"] = request[REQUEST_ID]
            if request.path in OF_ANTHROPIC or OF_ANTHROPICS in request.headers:
                headers["Request-Id"] = request[REQUEST_ID]  # as its clients know it
        if LIMITS in request:
            headers.update(request[LIMITS])
        if request.get(REPLAYED):
            headers["Idempotent-Replayed"] = "true"
        if ALL not in self._settings.allowed_origins:  # the answer depends on it, also where none is named
            headers[hdrs.VARY] = ", ".join(filter(None, [headers.get(hdrs.VARY), hdrs.ORIGIN]))
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and (allowed := self._allowed(origin)) is not None:
            headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = allowed
            headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED
            if self._settings.allow_credentials:
                headers[hdrs.ACCESS_CONTROL_ALLOW_CREDENTIALS] = "true"


def _is_open(request: web.Request) -> bool:
    return request.path in OPEN_PATHS and (request.method.lower(), request.path) not in GUARDED


def sent_key(request: web.Request) -> bytes:
    """The API key that was sent."""
    return (key_in(request.headers) or _key_in_protocols(request)).encode(errors="replace")


def _key_in_protocols(request: web.Request) -> str:
    """Of a WebSocket from a browser, which can set no header but this one."""
    offered = request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "")
    names = (name.strip() for name in offered.split(","))
    return next((name.removeprefix(SECRET) for name in names if name.startswith(SECRET)), "")


def allows_origin(allowed: Collection[str], origin: str) -> bool:
    """May pages of this site read answers, where these may?"""
    return ALL in allowed or origin in allowed or (LOCALHOST in allowed and LOCAL.fullmatch(origin) is not None)


def _unknown() -> ApiError:
    return ApiError(401, "Incorrect or missing API key.", code="invalid_api_key")


def _listed(allowed: Sequence[str], everything: str) -> str:
    return everything if ALL in allowed else ", ".join(allowed)


# --- paths -------------------------------------------------------------------------------------------------------


async def redirect(request: web.Request, root: str) -> web.Response | None:
    """To where a path leads without the slashes too many that putting addresses together has left; None: nowhere, too.
    `root` is the path that clients find the server below.

    Served there, it would have to be known under both names by all that ask for a path.
    """
    asked = request.rel_url.raw_path
    plain = re.sub("//+", "/", asked).rstrip("/")
    if plain in ("", asked) or plain in ADMIN_PATHS:  # of which it is not said whether they are there
        return None
    found = await request.app.router.resolve(request.clone(rel_url=plain))
    if found.http_exception is not None:
        return None
    _, mark, query = request.path_qs.partition("?")
    return web.Response(status=307, headers={hdrs.LOCATION: f"{root}{URL(plain)}{mark}{query}"})
