"""What became of each request: told once, at its end, to whoever wants to know, in the end as a line of the log.

A request ends when its answer is out and its connection rests: from then on no successor reads it again, so that none
tells of it a second time. One that its client has left ends there. What a predecessor had in the background ends here;
who asked for it is not known any more. Nothing is told of a prompt, nor of a key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from actorserve.http.generation.job import Job
from actorserve.http.middleware.context import (
    CLOSED,
    GIVEN_AWAY,
    GO_ON,
    NOTED,
    REFUSED,
    REPLAYED,
    REQUEST_ID,
    RequestContext,
)
from actorserve.http.paths.responses import RESPONSES
from actorserve.http.routes import GENERATING, PAGE_PATHS
from actorserve.http.settings import printable
from actorserve.shm.table.stamps import Stamps
from actorserve.shm.table.table import RequestTable

from ...protocol.request import Generation
from ...runtime.process import Context
from .finished import FinishedRequest, Times
from .job_times import NAMES, read_times
from .log_lines import Logger, log

GONE = 499
UPGRADED = 101
UNKNOWN = "-"
BEGAN = web.RequestKey("began", int)
LONGEST_REASON = 200  # characters


def watch_ends(context: Context, app: web.Application) -> Callable[[web.BaseRequest, int], None] | None:
    """Tell of this app's requests, if anybody wants to know; what is to be called with each answer that is out."""
    config = context.config
    tells = [Logger(context.name, config.log_format == "json").tell] if config.enable_log_requests else []
    if config.otlp_traces_endpoint is not None:
        from .tracing import Tracer, make_exporter  # packages that not everybody has

        tracer = Tracer(make_exporter(config.otlp_traces_endpoint), context.name)
        app.on_cleanup.append(tracer.close)
        tells.append(tracer.tell)
    if not tells:
        return None
    ends = RequestLog(context.table, tells)
    app.middlewares.insert(0, ends.watch)
    for noted in app[GO_ON]:
        ends.goes_on(noted)
    return ends.answered


class RequestLog:
    """The ends of one frontend's requests. `tell` is called once for each."""

    def __init__(self, table: RequestTable, tells: Sequence[Callable[[FinishedRequest], None]]) -> None:
        self._table = table
        self._stamps = Stamps(table)
        self._tells = tells

    @web.middleware
    async def watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A request begins; one whose answer does not reach its end ends here."""
        request[BEGAN] = time.monotonic_ns()
        try:
            return await handler(request)
        except (asyncio.CancelledError, ConnectionError):
            if GIVEN_AWAY not in request:
                self._end(request, UPGRADED if CLOSED in request else GONE)
            raise

    def answered(self, request: web.BaseRequest, status: int) -> None:
        """All of the answer was handed over."""
        if isinstance(request, web.Request) and BEGAN in request:  # others were malformed
            self._end(request, status)

    def _end(self, request: web.Request, status: int) -> None:
        """Now, or when what goes on in the background has ended."""
        noted = request.get(NOTED)
        if noted is not None and noted.background and status < 400 and not noted.job.done.done():
            noted.job.done.add_done_callback(lambda _: self._tell(request, status))
        else:
            self._tell(request, status)

    def _tell(self, request: web.Request, status: int) -> None:
        noted, headers = request.get(NOTED), request.headers
        times = Times(began=request[BEGAN], ended=time.monotonic_ns())
        end = FinishedRequest(
            noted.request_id if noted is not None else request.get(REQUEST_ID, ""),
            request.path if request.path in GENERATING else printable(request.path),
            request.remote or "",
            status,
            times,
            noted,
            error=_why(request.get(REFUSED), noted),
            replayed=request.get(REPLAYED, False),
            traceparent=headers.get("traceparent", ""),
            tracestate=headers.get("tracestate", ""),
            is_page=request.path in PAGE_PATHS and request.method != "POST",
        )
        self._tell_all(end)

    def goes_on(self, noted: RequestContext) -> None:
        """This runs in the background for a client of a predecessor's: it is told of when it has ended."""
        if not noted.request_id:
            packed = self._table.params(noted.job.refs[0])
            noted.request_id = msgspec.msgpack.decode(packed, type=Generation).request_id
        noted.job.done.add_done_callback(lambda _: self._tell_inherited(noted))

    def _tell_inherited(self, noted: RequestContext) -> None:
        now, error = time.monotonic_ns(), _why(None, noted)
        self._tell_all(
            FinishedRequest(noted.request_id, RESPONSES, UNKNOWN, 200, Times(began=now, ended=now), noted, error=error)
        )

    def _tell_all(self, end: FinishedRequest) -> None:
        if end.noted is not None:
            self._read(end, end.noted.job)
        for tell in self._tells:
            tell(end)

    def _read(self, end: FinishedRequest, job: Job) -> None:
        """What the job and the request table say."""
        reasons = [choice.finish_reason for choice in job.choices]
        end.finish_reason = reasons[0] or "" if len(set(reasons)) == 1 else ", ".join(one or "none" for one in reasons)
        if end.status == GONE and None not in reasons:  # it had everything when it left
            end.status = 200
        known = read_times(job, self._stamps)
        if not known.arrival:
            return
        end.deaths = max(end.deaths, known.deaths)
        for name in NAMES:
            setattr(end.times, name, getattr(known, name))
        if known.arrival < end.times.began and not end.replayed:  # it came to a frontend that is dead
            end.deaths += 1
            end.times.began = known.arrival


def _why(error: Any, noted: RequestContext | None) -> str:
    """Why it failed. What is the client's mistake may hold words of its request: of that only the field is named."""
    if error is None and noted is not None and noted.job.done.done() and not noted.job.done.cancelled():
        error = noted.job.done.exception()
    if error is None:
        return ""
    status = getattr(error, "status", 500)
    if status >= 500 or log.isEnabledFor(logging.DEBUG):
        return printable(str(error)[:LONGEST_REASON])
    return printable(str(getattr(error, "code", None) or getattr(error, "param", None) or "")[:LONGEST_REASON])
