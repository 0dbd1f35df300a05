"""The router's process: its own paths, its keys, its start and its end. It keeps nothing that matters: another one
beside it, or after it, does the same.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from ..accounts.sent_key import is_among, key_in
from ..options.config import ConfigError
from .errors import RouteError, error_response, reading_body
from .fleet import Fleet
from .metrics import RouterMetrics
from .names import Names
from .prober import Prober
from .proxy import Proxy
from .settings import RouteSettings, replica_tls, serving_tls
from .upstream import Upstream
from .websockets import pass_socket

HEAD_BYTES = 64 << 10
KEEP_ALIVE_S = 75.0  # of a connection without a request, or with half a head: longer than balancers keep theirs
log = logging.getLogger("route")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class DrainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /drain."""

    replica: str | None = None  # its address; None: the router itself
    move: bool = False  # what runs there goes on elsewhere at once
    undo: bool = False  # it is sent requests again


class Router:
    """All of one router."""

    def __init__(self, settings: RouteSettings) -> None:
        self.settings = settings
        self.fleet = Fleet(settings.replicas)
        self.metrics = RouterMetrics(self.fleet)
        self.ends = asyncio.Event()
        self.draining = False
        self.in_flight = 0
        self._is_empty = asyncio.Event()  # of a drain: nothing is in flight
        self._keys = [key.encode() for key in settings.api_keys]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout)
        limits: dict[str, Any] = {"max_line_size": HEAD_BYTES, "max_field_size": HEAD_BYTES, "read_bufsize": 256 << 10}
        to_replicas = replica_tls(settings)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=10.0, ssl=to_replicas)
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(), **limits
        )
        fresh = aiohttp.TCPConnector(limit=0, force_close=True, ssl=to_replicas)
        self._probes = aiohttp.ClientSession(timeout=timeout, connector=fresh, cookie_jar=aiohttp.DummyCookieJar())
        self.tls = serving_tls(settings)
        self._names = Names(self.fleet, settings.names)
        self._prober = Prober(self.fleet, settings, self._probes, self.metrics)
        self._proxy = Proxy(self.fleet, settings, Upstream(settings, self._session), self.metrics)
        self._own: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/livez"): self._health,
            ("GET", "/ready"): self._ready,
            ("GET", "/readyz"): self._ready,
            ("GET", "/metrics"): self._metrics_text,
            ("POST", "/drain"): self._drain,
        }

    def app(self) -> web.Application:
        """All paths lead to one handler."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def run(self, announce: Callable[[str], None]) -> None:
        """Serve until `ends` is set, and then until what runs has ended, or time is up."""
        prober = asyncio.create_task(self._watch())
        runner = web.AppRunner(
            self.app(),
            handler_cancellation=True,
            access_log=None,
            max_line_size=HEAD_BYTES,
            max_field_size=HEAD_BYTES,
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, self.settings.host, self.settings.port, ssl_context=self.tls)
            await site.start()
            host, port = runner.addresses[0][:2]
            scheme = "http" if self.tls is None else "https"
            announce(f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")
            await self._until_told(prober)
            await site.stop()  # whoever connects from now on is for another router
            await self._until_empty()
        finally:
            prober.cancel()
            await asyncio.gather(prober, return_exceptions=True)
            await runner.cleanup()
            await self._session.close()
            await self._probes.close()

    async def _watch(self) -> None:
        """Which replicas there are, and how they are."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._prober.run())
            if self.settings.names:
                group.create_task(self._names.run())

    def read_certificate(self) -> None:
        """Anew, for connections from now on; one that cannot be read leaves the one before."""
        if self.tls is None or self.settings.ssl_certfile is None:
            return
        try:
            serving_tls(self.settings)  # both files, before any of them counts
            self.tls.load_cert_chain(self.settings.ssl_certfile, self.settings.ssl_keyfile)
            log.info("the certificate was read anew")
        except (ConfigError, OSError, ssl.SSLError) as error:
            log.error("--ssl-certfile: %s stays as it was: %s", self.settings.ssl_certfile, error)

    async def _until_told(self, prober: asyncio.Task[None]) -> None:
        end = asyncio.create_task(self.ends.wait())
        await asyncio.wait([prober, end], return_when=asyncio.FIRST_COMPLETED)
        end.cancel()
        if prober.done():
            prober.result()  # a mistake of ours, which ends the router
        self.draining = True
        log.info("the router ends: %d requests are left", self.in_flight)

    async def _until_empty(self) -> None:
        if not self.in_flight:
            return
        try:
            async with asyncio.timeout(self.settings.shutdown_timeout):
                await self._is_empty.wait()
        except TimeoutError:
            log.warning("time is up: %d requests are cut off", self.in_flight)

    def stop(self) -> None:
        """The first time: drain. The second: at once."""
        if self.ends.is_set():
            self._is_empty.set()
        self.ends.set()

    # --- requests ------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        own = self._own.get((request.method, request.path))
        try:
            if own is not None:
                return await own(request)
            self._check_key(request, self._keys)
            return await self._counted(request)
        except RouteError as error:
            self.metrics.requests.labels(str(error.status)).inc()
            return error_response(error)

    async def _counted(self, request: web.Request) -> web.StreamResponse:
        self.in_flight += 1
        try:
            if request.headers.get("Upgrade", "").lower() == "websocket":
                return await pass_socket(request, self.fleet, self._session, self.settings)
            response = await self._proxy.handle(request)
            if self.draining and not response.prepared:
                response.force_close()
            self.metrics.requests.labels(str(response.status)).inc()
            return response
        finally:
            self.in_flight -= 1
            if self.draining and not self.in_flight:
                self._is_empty.set()

    def _check_key(self, request: web.Request, keys: list[bytes]) -> None:
        if not keys:
            return
        if not is_among(key_in(request.headers).encode(errors="replace"), keys):
            raise RouteError(401, "Incorrect or missing API key.")

    # --- the router's own paths ----------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        replicas = {
            one.address: "draining" if one.draining else one.state if one.takes("") or not one.is_up else "shut"
            for one in self.fleet.replicas
        }
        able = sum(one.takes("") for one in self.fleet.replicas)
        status = "draining" if self.draining else "not ready" if not able else "ready"
        if status == "ready" and able < len(self.fleet.replicas):
            status = "degraded"
        good = status in ("ready", "degraded")
        return web.json_response({"status": status, "replicas": replicas}, status=200 if good else 503)

    async def _metrics_text(self, request: web.Request) -> web.Response:
        body, kind = self.metrics.text()
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _drain(self, request: web.Request) -> web.Response:
        if self.settings.admin_api_key is None:
            raise RouteError(404, "Not Found: POST /drain (--admin-api-key opens it)")
        self._check_key(request, [self.settings.admin_api_key.encode()])
        raw = b""
        async with reading_body():
            while len(raw) < HEAD_BYTES and (part := await request.content.readany()):
                raw += part
        try:
            asked = msgspec.json.decode(raw or b"{}", type=DrainRequest)
        except msgspec.MsgspecError as error:
            raise RouteError(400, f"The body cannot be read: {error}") from None
        if asked.replica is None:
            if asked.move or asked.undo:
                raise RouteError(400, "move and undo go with replica.", "move" if asked.move else "undo")
            self.stop()
            return web.json_response({"status": "draining", "in_flight": self.in_flight})
        replica = self.fleet.find(asked.replica)
        if replica is None:
            raise RouteError(
                400, f"replica: it must be one of {', '.join(one.address for one in self.fleet.replicas)}.", "replica"
            )
        if asked.move and asked.undo:
            raise RouteError(400, "move does not go with undo.", "move")
        replica.draining = not asked.undo
        if asked.undo:
            self.fleet.changed.set()
        moved = replica.leave() if asked.move else 0
        status = "draining" if replica.draining else "ready"
        return web.json_response({"status": status, "in_flight": replica.in_flight, "moved": moved})


async def _serve(settings: RouteSettings, announce: Callable[[str], None]) -> None:
    router = Router(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, router.stop)
    loop.add_signal_handler(signal.SIGHUP, router.read_certificate)
    await router.run(announce)


def serve(settings: RouteSettings, announce: Callable[[str], None]) -> None:
    """Until SIGTERM or SIGINT, and what follows; OSError where it cannot listen."""
    import uvloop

    uvloop.run(_serve(settings, announce))
