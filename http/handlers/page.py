"""The page at `/` and the list of paths at `/docs`: their files, and the one stream of statistics that it watches.

The files are open to all; they hold nothing. The statistics ask for a key where there are keys, and for a Host that is
this server's: a page of elsewhere whose name was made to lead here (DNS rebinding) sends its own. They are read from
shared memory by the frontend alone, at most once every PERIOD_S for all who watch.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
from functools import cached_property
from urllib.parse import urlsplit

import msgspec
from aiohttp import hdrs, web

from ..dashboard.files import FOLDER, TYPES
from ..errors import ApiError
from ..generation.job import Engine
from ..middleware.edge import ALL, allows_origin
from ..settings import Settings, printable
from ..transport.watch import Watch, WatchLimits

PERIOD_S = 0.5
STALL_S = 30.0  # what a watcher gets to take something
MOST_WATCHERS = 16  # of one frontend
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
EVENTS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    **SAFE,
}


class PageFile:
    """One file, as it is sent."""

    def __init__(self, name: str) -> None:
        self.body = (FOLDER / name).read_bytes()
        self.tag = hashlib.sha256(self.body).hexdigest()[:32]
        self._type = TYPES[name]

    def answer(self, request: web.Request) -> web.Response:
        """The file; 304 if the client has it. It is asked for each time: a new version has the same name."""
        headers = {**SAFE, "Cache-Control": "no-cache", "ETag": f'"{self.tag}"'}
        if any(tag.value in (self.tag, "*") for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=self.body, content_type=self._type, charset="utf-8", headers=headers)


class Page:
    """The handlers. Files are read when somebody asks for them."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._hosts = own_hosts(settings)
        self._origins = frozenset(settings.allowed_origins) - {ALL}
        self._watch = Watch(EVENTS, "pages watch this frontend already. Close one of them.")
        self.end = self._watch.end
        self._event = b""
        self._made = -PERIOD_S

    @cached_property
    def _files(self) -> dict[str, PageFile]:
        return {name: PageFile(name) for name in TYPES}

    async def index(self, request: web.Request) -> web.StreamResponse:
        return self._files["index.html"].answer(request)

    async def docs(self, request: web.Request) -> web.StreamResponse:
        """The list of paths: it asks for /openapi.json, with a key where there are keys."""
        return self._files["docs.html"].answer(request)

    async def file(self, request: web.Request) -> web.StreamResponse:
        return self._files[request.path.rpartition("/")[2]].answer(request)

    # --- statistics ----------------------------------------------------------------------------------------------

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events until the client goes, stops reading, or the server ends."""
        self._check_place(request)
        return await self._watch.stream(request, self._event_of, WatchLimits(PERIOD_S, STALL_S, MOST_WATCHERS))

    def _event_of(self, now: float) -> bytes:
        """The event of this moment, the same for all who watch."""
        if now - self._made >= PERIOD_S / 2:
            self._event = b"data: %s\n\n" % msgspec.json.encode(self._engine.page_figures())
            self._made = now
        return self._event

    # --- who may watch -------------------------------------------------------------------------------------------

    def _check_place(self, request: web.Request) -> None:
        """403 for a page of another site, whether it says so or has its name lead here."""
        host = request.headers.get(hdrs.HOST, "")
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and not self._is_allowed(origin, host):
            raise ApiError(
                403, f"Pages of {printable(origin)} may not watch: they are not among the --allowed-origins."
            )
        if not self._is_own(host):
            name = printable(host)
            raise ApiError(
                403, f"This server does not know that it is called {name}: add --allowed-origins http://{name}."
            )

    def _is_allowed(self, origin: str, host: str) -> bool:
        """This server's own page, or one of a site that the options name."""
        return allows_origin(self._origins, origin) or urlsplit(origin).netloc == host

    def _is_own(self, host: str) -> bool:
        """An address, a name of this machine, or a site that the options name. No browser sends none."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return not host or name in self._hosts or name.endswith(".localhost") or _is_address(name)


def own_hosts(settings: Settings) -> frozenset[str]:
    """The names under which this server may be asked for statistics."""
    machine = socket.gethostname().lower()
    named = (urlsplit(origin).hostname for origin in settings.allowed_origins)
    return frozenset({"localhost", machine, f"{machine}.local", *filter(None, named)})


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
