"""The frontend actor: an event loop between the clients' connections and the mailbox.

When the supervisor asks it to end, by SIGTERM and a word on the board, it drains: nobody accepts any more, and it
answers what it has and what still comes over open connections, each answer with `Connection: close`, and ends when
nothing runs any more. How long that may take is the supervisor's to say. If it dies meanwhile, its successor finds the
word on the board, and goes on with that. A SIGTERM of anybody else is a death, after which a successor goes on with all
connections; only where none could (TLS, connections without a record) it drains, too.

If the server gives up (Order.GIVE_UP on the board), be it in the middle of a drain, whoever waits is told so, and it
ends as soon as that is out.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, cast

import aiohttp
import uvloop
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from actorserve.http.app import make_app
from actorserve.http.middleware.context import CLOSES, DRAIN
from actorserve.http.settings import Settings
from actorserve.http.transport.connection import below, unknown_names
from actorserve.http.transport.header_timeout import TimedConnection
from actorserve.http.transport.resume import record_of
from actorserve.shm.board.board import ActorState, Order
from actorserve.shm.journals.request_journal import RequestJournal
from actorserve.shm.journals.response_journal import ResponseJournal

from ..options.config import Config, ConfigError
from ..options.serving.certificates import Certificates, first_context
from ..protocol.messages import ToFrontend
from ..runtime.in_flight import Ended
from ..runtime.loop import LoopActor, LoopTurns
from ..runtime.process import Context
from ..telemetry.gauges import FrontendGauge
from .admission import AdmissionQueue
from .connections.pool import ConnectionPool, only_about_the_server
from .connections.upgrade import UpgradeLog
from .engine import FrontendEngine
from .middlewares import load_middlewares
from .observability.request_log import watch_ends
from .parsers import unknown_calls
from .requests.jobs import about_to_end, cannot_finish
from .settings import settings_of
from .warm_up import is_wanted, warm_up

if TYPE_CHECKING:
    from .grpc_api.server import GrpcServer

COLLECT_AT = 50_000  # objects more than at the last look for garbage: a burst of requests is not garbage
GIVE_UP_S = 3.0  # what clients get to take an error, when the server gives up
LINGER_S = 0.3  # a client that was told to close may have sent a request meanwhile


class Frontend(LoopActor):
    """One frontend: HTTP server, mailbox, drain."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.loop = asyncio.get_running_loop()
        self.tls = first_context(context.config, context.incarnation == 1)
        self._keeps = self.tls is None or context.config.http2_port is not None  # some connections come without TLS
        kept = context.system.files.answers if self._keeps else 0
        answers = context.files["answers"]
        self.answers = ResponseJournal(answers, kept)
        self.engine = FrontendEngine(context, self.answers.all_refs(answers), alone=self.tls is not None)
        self.draining = False
        self.pool: ConnectionPool | None = None
        self.certificates: Certificates | None = None
        self.server: web.Server | None = None
        self.grpc: GrpcServer | None = None
        self.patience: asyncio.Timeout | None = None  # while it drains
        self.over: asyncio.Future[None] = self.loop.create_future()  # it is to drain, or an exception has come

    async def run(self) -> None:
        """Serve until the end is asked for, then drain."""
        self.loop.add_signal_handler(signal.SIGTERM, self._told_to_stop)
        if self.context.config.debug:
            self.loop.add_signal_handler(signal.SIGUSR1, self._fail)
        settings = settings_of(self.context, self.engine)
        app = self._make_app(settings)
        ends = watch_ends(self.context, app)
        runner = await _make_runner(app, self.context.config)
        assert self.context.channel is not None and runner.server is not None
        self.server = runner.server
        LoopTurns(self.context, self.loop, self).start()
        kept, room = self.context.system.files.journal
        life = (self.context.spec.position + 1) << 32 | self.context.incarnation
        journal = RequestJournal(self.context.files["journal"], kept if self._keeps else 0, room, life)
        longest = self.context.config.max_header_bytes
        channel, server = self.context.channel, runner.server
        upgrades = UpgradeLog(self.engine)
        over = self.engine.nobody_goes_on
        ended = Ended(self.context.board.ended(self.context.spec.position))
        self.pool = ConnectionPool(
            *(channel, journal, self.answers, server, self.tls, ends, longest, upgrades, over),
            ended=ended,
            status=self.context.status,
        )
        if self.tls is not None:
            first = self.context.spec.index == 0
            self.certificates = Certificates(self.context.config, self.pool.use_certificates, first)
        await self._start_grpc(settings)
        self.context.set_state(ActorState.READY)
        self._warn()
        if self.context.stopping or self.context.is_asked_to_end:  # since before it could hear
            self._told_to_stop()
        warming = self._warm_up() if is_wanted(self.context) else None
        try:
            await self.over
        except Exception:  # a successor goes on with all connections, if this process lets go of nothing on its way out
            self.context.log.exception("the frontend ends")
            os._exit(1)
        if warming is not None:
            warming.cancel()
        await self._end(runner)

    def _make_app(self, settings: Settings) -> web.Application:
        app = make_app(self.engine, settings, load_middlewares(self.context.config.middleware))
        app.on_response_prepare.append(self._close_when_draining)
        app[CLOSES] = lambda: self.draining
        app.middlewares.insert(0, AdmissionQueue().wait)
        app.middlewares.insert(0, only_about_the_server)
        app.middlewares.append(self._refuse_when_giving_up)
        return app

    async def _start_grpc(self, settings: Settings) -> None:
        if self.context.config.grpc_port is not None:
            from .grpc_api.server import GrpcServer  # packages that not everybody has

            count = partial(self.context.status.add, FrontendGauge.GRPC_CALLS)
            self.grpc = GrpcServer(self.engine, settings, self.context.config, count)
            await self.grpc.start()

    async def _end(self, runner: web.AppRunner) -> None:
        """Drain: what runs may end."""
        self.draining = True
        if runner.app is not None:
            runner.app[DRAIN]()
        try:
            async with asyncio.timeout(GIVE_UP_S if self.engine.gives_up else None) as self.patience:
                if self.grpc is not None:
                    self.grpc.refuse()
                await self._drain()
                if self.grpc is not None:
                    await self.grpc.stop()
                await runner.cleanup()
        except TimeoutError:
            self.context.log.warning("%d clients do not take what they are told", self.engine.in_flight())
        finally:
            self.patience = None  # whoever gives up now need not hurry it

    def _warn(self) -> None:
        """Once, of all frontends and their lives."""
        if self.context.spec.index or self.context.incarnation > 1:
            return
        for served in self.context.system.models:
            if doubt := unknown_calls(served.config, served.info):
                self.context.log.warning("%s%s", f"{served.name}: " if served.index else "", doubt)

    def _warm_up(self) -> asyncio.Task[None]:
        task = self.loop.create_task(warm_up(self.context, self.engine))
        task.add_done_callback(self._warmed_up)
        return task

    def _warmed_up(self, task: asyncio.Task[None]) -> None:
        """It ends well, or is cancelled, or has a mistake, with which this process ends as with any other."""
        if not task.cancelled() and (error := task.exception()) is not None and not self.over.done():
            self.over.set_exception(error)

    @web.middleware
    async def _refuse_when_giving_up(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """What a predecessor has begun is told so in its own form; whatever else comes now is not waited for."""
        record = record_of(request)
        if self.engine.gives_up and (record is None or record.predecessor is None):
            raise about_to_end()
        return await handler(request)

    @property
    def connections(self) -> list[TimedConnection]:
        """Those that are open."""
        return cast(list[TimedConnection], self.server.connections if self.server is not None else [])

    # --- its turns -----------------------------------------------------------------------------------------------

    def handle(self, message: ToFrontend) -> None:
        self.engine.handle(message)

    def do_work(self) -> int:
        answers = self.engine.turn_ends()
        self._heed()  # after what has ended in this turn
        return answers

    def beat(self) -> None:
        self.engine.beat(len(self.connections), self.pool is None or self.pool.may_go_on)
        if self.certificates is not None:
            self.certificates.look(self.loop.time())

    def _heed(self) -> None:
        """If the server gives up, so does this frontend."""
        if self.engine.gives_up or self.context.board.order(self.context.spec.position) is not Order.GIVE_UP:
            return
        self.context.log.warning("the server ends at once: %d requests get an error", self.engine.in_flight())
        self.draining = True
        self.engine.give_up()
        for connection in self.connections:
            connection.give_up(cannot_finish())
        if self.patience is not None:
            self.patience.reschedule(self.loop.time() + GIVE_UP_S)
        self._told_to_stop()

    def _told_to_stop(self) -> None:
        """SIGTERM has come."""
        if self.over.done():
            return
        if self.context.is_asked_to_end or not (self.pool is None or self.pool.can_hand_over()):
            self.over.set_result(None)
        else:
            self.context.log.info("SIGTERM: its successor goes on with what it has")
            self.loop.remove_signal_handler(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    def _fail(self) -> None:
        """The event loop only logs what is raised in a callback; this ends the process as in other actors."""
        if not self.over.done():
            self.over.set_exception(RuntimeError("an exception was injected (SIGUSR1)"))  # a future takes no other

    # --- the end -------------------------------------------------------------------------------------------------

    async def _close_when_draining(self, request: web.Request, response: web.StreamResponse) -> None:
        if self.draining and not isinstance(response, web.WebSocketResponse):
            response.force_close()
            response.headers[hdrs.CONNECTION] = "close"  # aiohttp has decided about that before this is asked

    async def _drain(self) -> None:
        assert self.pool is not None
        self.context.set_state(ActorState.DRAINING)
        quiet_since, taken = self.loop.time(), self.pool.taken
        while self.loop.time() - quiet_since < LINGER_S:
            await asyncio.sleep(LINGER_S / 10)  # a request is seen only when it comes: this is time, not a signal
            reading = any(connection.is_reading for connection in self.connections)  # aiohttp would read no more of it
            if reading or self.engine.in_flight() or self.pool.is_adopting or taken != self.pool.taken:
                quiet_since, taken = self.loop.time(), self.pool.taken


async def _make_runner(app: web.Application, config: Config) -> web.AppRunner:
    """Ready to be given connections. ConfigError if this aiohttp has not the private names that are used."""
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=65,
        lingering_time=1,
        auto_decompress=False,
        logger=_quiet_logger(),
        max_line_size=config.max_header_bytes // 2,
        max_field_size=config.max_header_bytes // 2,
        max_headers=config.max_header_count,
    )
    await runner.setup()
    assert runner.server is not None
    if missing := unknown_names(runner.server):
        names = ", ".join(missing)
        raise ConfigError(f"aiohttp {aiohttp.__version__} has no {names}: install aiohttp 3.14, which has them")
    if config.root_path:
        runner.server.request_factory = below(config.root_path, runner.server.request_factory)
    return runner


def _quiet_logger() -> logging.Logger:
    """aiohttp logs a traceback for every malformed request; clients' mistakes are not ours."""
    logger = logging.getLogger("http.server")
    logger.setLevel(logging.CRITICAL)
    return logger


def main(context: Context) -> None:
    """Run a frontend until it is told to stop."""

    async def serve() -> None:
        frontend = Frontend(context)
        gc.freeze()
        gc.set_threshold(COLLECT_AT)
        await frontend.run()

    uvloop.run(serve())
