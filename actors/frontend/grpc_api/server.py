"""The gRPC server of one frontend: its service, health and reflection on --grpc-port, which all frontends share.

Each binds the port by itself (SO_REUSEPORT): the kernel gives each new connection to one of them, and to none that has
died. The supervisor has tried before whether somebody else has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from actorserve.http.handlers.operators.operations import ServerEngine
from actorserve.http.settings import Settings

from ...options.config import Config
from .schema import message_class, service_descriptor
from .service import InferenceService, handlers

LOOK_S = 1.0  # between two looks at how the server is, for who watches
GOODBYE_S = 5.0  # for answers that are on their way when nothing runs any more
log = logging.getLogger("grpc")


class Health:
    """As probes ask: would a request be served now? Has the methods of grpc_health's HealthServicer."""

    def __init__(self, not_ready: Callable[[], list[str]], names: list[str]) -> None:
        self._not_ready, self._names = not_ready, ("", *names)
        self.draining = asyncio.Event()

    def _status(self, name: str) -> int:
        kinds = health_pb2.HealthCheckResponse
        if name not in self._names:
            return int(kinds.SERVICE_UNKNOWN)
        return int(kinds.NOT_SERVING if self.draining.is_set() or self._not_ready() else kinds.SERVING)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no service {request.service}.")
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        made = health_pb2.HealthListResponse()
        for name in self._names:
            made.statuses[name].status = self._status(name)
        return made

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
            if self.draining.is_set():
                return
            with contextlib.suppress(TimeoutError):  # nothing tells when an actor is down
                async with asyncio.timeout(LOOK_S):
                    await self.draining.wait()


class GrpcServer:
    """From the start of a frontend to its end."""

    def __init__(self, engine: ServerEngine, settings: Settings, config: Config, count: Callable[[int], None]) -> None:
        service = service_descriptor()
        self._health = Health(engine.not_ready, [service.full_name])
        options = [("grpc.so_reuseport", 1), ("grpc.max_receive_message_length", config.max_body_bytes)]
        self._server = grpc.aio.server(options=options)
        self._refusing: asyncio.Task[None] | None = None
        methods = {}
        for name, (make, method) in handlers(InferenceService(engine, settings, count)).items():
            taken = message_class(service.methods_by_name[name].input_type.name)
            answer = message_class(service.methods_by_name[name].output_type.name)
            methods[name] = make(
                method, request_deserializer=taken.FromString, response_serializer=answer.SerializeToString
            )
        own = grpc.method_handlers_generic_handler(service.full_name, methods)
        self._server.add_generic_rpc_handlers((own,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        known = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection((service.full_name, known, reflection.SERVICE_NAME), self._server)
        hosts = [host.strip() for host in config.host.split(",") if host.strip()] or [config.host]
        places = [f"[{host}]:{config.grpc_port}" if ":" in host else f"{host}:{config.grpc_port}" for host in hosts]
        self._address = " and ".join(places)
        for place in places:
            if config.ssl_certfile is None:
                self._server.add_insecure_port(place)
            else:
                self._server.add_secure_port(place, _credentials(config))

    async def start(self) -> None:
        await self._server.start()
        log.info("gRPC at %s", self._address)

    def refuse(self) -> None:
        """New calls, from now on; those that run may end, up to `stop`, however long they take."""
        self._health.draining.set()
        self._refusing = asyncio.get_running_loop().create_task(self._server.stop(math.inf))

    async def stop(self) -> None:
        """Nothing is generated any more."""
        await self._server.stop(GOODBYE_S)
        if self._refusing is not None:
            await self._refusing


def _credentials(config: Config) -> Any:
    """Files that have changed are read again for the connections that are made from then on."""
    files = CertificateFiles(config)
    first = files.read()
    return grpc.dynamic_ssl_server_credentials(first, files.changed, config.ssl_ca_certs is not None)


class CertificateFiles:
    """Asked at each handshake, by a thread of gRPC's."""

    def __init__(self, config: Config) -> None:
        assert config.ssl_certfile is not None
        self._chain, self._key = Path(config.ssl_certfile), Path(config.ssl_keyfile or config.ssl_certfile)
        self._authorities = None if config.ssl_ca_certs is None else Path(config.ssl_ca_certs)
        self._seen = self._state()

    def read(self) -> Any:
        """What they hold; OSError or ssl.SSLError where that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._chain, self._key, lambda: "")  # they fit, and have no password
        authorities = None if self._authorities is None else self._authorities.read_bytes()
        return grpc.ssl_server_certificate_configuration(
            ((self._key.read_bytes(), self._chain.read_bytes()),), authorities
        )

    def changed(self) -> Any:
        """None where all is as it was, or cannot be used."""
        try:
            state = self._state()
            if state == self._seen:
                return None
            self._seen = state
            return self.read()
        except (OSError, ValueError) as error:  # SSLError is an OSError
            log.warning("gRPC goes on with the certificates from before: %s", error)
            return None

    def _state(self) -> list[tuple[int, int, int]]:
        files = [path for path in (self._chain, self._key, self._authorities) if path is not None]
        found = [path.stat() for path in files]
        return [(one.st_ino, one.st_mtime_ns, one.st_size) for one in found]
