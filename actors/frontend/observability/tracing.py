"""OpenTelemetry: each request that generates is a span, with a child for each of its stages, sent from a thread.

The loop only puts the end of a request into a bounded queue; spans are made of it in the thread, since all their times
are known by then. A collector that is slow, or away, costs the spans that find the queue full: they are counted, and
the count is said once a minute. What the client sends as `traceparent` is the request's parent, and says whether it is
wanted at all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import msgspec
from aiohttp import web
from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import actorserve
from actorserve.http.route import CHAT
from actorserve.http.routes import GENERATING

from ...options.serving.otlp import EXPORTERS, GRPC, HTTP, uses_grpc, with_path
from ...protocol.request import Generation
from .finished import FinishedRequest, Times

ROOT = "llm_request"
MOST_WAITING = 2048  # requests
BATCH = 128  # requests whose spans are sent at once
EVERY_S = 1.0  # at most so long one waits for others
EXPORT_S = 5.0  # what a collector gets for a batch, its retries included
GOODBYE_S = 2.0  # what it gets when the frontend ends
TELL_S = 60.0
NS = 1e9
CHILDREN = {
    "queued": "renderer_queue",
    "rendered": "render",
    "waiting": "scheduler_queue",
    "prefill": "prefill",
    "decode": "decode",
}
SAMPLED = TraceFlags(TraceFlags.SAMPLED)

log = logging.getLogger("traces")


@dataclass(slots=True)
class Waiting:
    """What is kept of a request until its spans are made: not its text."""

    times: Times
    status: int
    error: str
    attributes: dict[str, Any]
    params: bytes
    traceparent: str
    tracestate: str


class Tracer:
    """The queue, and the thread behind it."""

    def __init__(
        self,
        exporter: SpanExporter,
        actor: str,
        *,
        most: int = MOST_WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exporter = exporter
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "actorserve"}
        resource = Resource.create({**named, "actorserve.actor": actor})
        self._spans = Spans(resource)
        self._most = most
        self._clock = clock
        self._waiting: deque[Waiting] = deque()
        self._more = threading.Event()
        self._closing = False
        self._full = 0  # requests that found the queue full: the loop's word
        self._failed = 0  # requests that the collector did not take: the thread's
        self._told = 0
        self._next_telling = 0.0
        self._thread = threading.Thread(target=self._send, name="traces", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Requests of which no span was sent."""
        return self._full + self._failed

    def tell(self, end: FinishedRequest) -> None:
        """A request has ended. Never waits."""
        if not end.generates:
            return
        if len(self._waiting) >= self._most:
            self._full += 1
            return
        params = end.noted.job.params[0] if end.noted is not None else b""
        about = (end.times, end.status, end.error, _attributes(end), params, end.traceparent, end.tracestate)
        self._waiting.append(Waiting(*about))
        if len(self._waiting) >= BATCH:
            self._more.set()

    async def close(self, app: web.Application) -> None:
        """Send what waits, if there is somebody who takes it at once."""
        self._closing = True
        self._more.set()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, GOODBYE_S)

    def _send(self) -> None:
        while True:
            self._more.wait(EVERY_S)
            self._more.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                spans = [span for one in batch for span in self._spans.of(one)]
                if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
                    self._failed += len(batch)
                self._tell_drops()
            self._tell_drops()
            if self._closing:
                self._exporter.shutdown()
                return

    def _tell_drops(self) -> None:
        lost, now = self.dropped - self._told, self._clock()
        if lost and now >= self._next_telling:
            self._told, self._next_telling = self._told + lost, now + TELL_S
            log.warning("the traces of %d requests were dropped: the collector does not take them", lost)


class Spans:
    """From the end of a request to its spans."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._scope = InstrumentationScope("actorserve", actorserve.__version__)
        self._ids = RandomIdGenerator()
        self._propagator = TraceContextTextMapPropagator()

    def of(self, one: Waiting) -> list[ReadableSpan]:
        """The request's span and its children's; none if the client says that it is not sampled."""
        parent = self._parent(one)
        if parent is not None and not parent.trace_flags.sampled:
            return []
        number = parent.trace_id if parent is not None else self._ids.generate_trace_id()
        state = parent.trace_state if parent is not None else None
        root = SpanContext(number, self._ids.generate_span_id(), False, SAMPLED, state)
        wall = time.time_ns() - time.monotonic_ns()
        failed = Status(StatusCode.ERROR, one.error) if one.status >= 500 else Status()
        attributes = one.attributes | _asked(one.params)
        times = one.times
        spans = [self._span(ROOT, root, parent, (times.began + wall, times.ended + wall), attributes, failed)]
        for name, start, end in times.stages():
            context = SpanContext(number, self._ids.generate_span_id(), False, SAMPLED, state)
            spans.append(self._span(CHILDREN[name], context, root, (start + wall, end + wall), {}, Status()))
        return spans

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times: tuple[int, int],
        attributes: dict[str, Any],
        status: Status,
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            attributes,
            kind=SpanKind.SERVER if name == ROOT else SpanKind.INTERNAL,
            instrumentation_scope=self._scope,
            status=status,
            start_time=times[0],
            end_time=times[1],
        )

    def _parent(self, one: Waiting) -> SpanContext | None:
        if not one.traceparent:
            return None
        headers = {"traceparent": one.traceparent, "tracestate": one.tracestate}
        context = trace.get_current_span(self._propagator.extract(headers)).get_span_context()
        return context if context.is_valid else None


def _attributes(end: FinishedRequest) -> dict[str, Any]:
    """Under the names of the semantic conventions, and those that vLLM has beside them. Times are seconds."""
    times, noted = end.times, end.noted
    found: dict[str, Any] = {
        "gen_ai.request.id": end.request_id,
        "gen_ai.operation.name": GENERATING.get(end.endpoint, CHAT),
        "gen_ai.latency.e2e": (times.ended - times.began) / NS,
        "http.request.method": "POST",
        "url.path": end.endpoint,
        "http.response.status_code": end.status,
        "client.address": end.client,
    }
    if noted is None:
        return found
    job = noted.job
    found |= {
        "gen_ai.response.id": noted.answer_id,
        "gen_ai.request.model": noted.model,
        "gen_ai.response.model": noted.model,
        "gen_ai.response.finish_reasons": [choice.finish_reason or "none" for choice in job.choices],
        "gen_ai.usage.num_sequences": len(job.choices),
        "gen_ai.usage.prompt_tokens": job.prompt_tokens,
        "gen_ai.usage.cached_tokens": job.cached_tokens,
        "gen_ai.usage.completion_tokens": job.completion_tokens,
        "gen_ai.request.n": len(job.params),
        "actorserve.preemptions": end.preemptions,
        "actorserve.deaths_survived": end.deaths,
    }
    if (limit := job.rendering.get("max_tokens")) is not None:
        found["gen_ai.request.max_tokens"] = limit
    if times.scheduled and times.admitted:
        found["gen_ai.latency.time_in_queue"] = (times.scheduled - times.admitted) / NS
    if times.first_token:
        found["gen_ai.latency.time_to_first_token"] = times.to_first_token / NS
        found["gen_ai.latency.time_in_model_prefill"] = (times.first_token - times.scheduled) / NS
        found["gen_ai.latency.time_in_model_decode"] = (times.last_token - times.first_token) / NS
        found["gen_ai.latency.time_in_model_inference"] = (times.last_token - times.scheduled) / NS
    return found


def _asked(params: bytes) -> dict[str, Any]:
    if not params:
        return {}
    sampling = msgspec.msgpack.decode(params, type=Generation).sampling
    return {"gen_ai.request.temperature": sampling.temperature, "gen_ai.request.top_p": sampling.top_p}


def make_exporter(url: str) -> SpanExporter:
    """To the collector at this address. What it says of each failure is said once a minute by us."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    grpc = uses_grpc(url)
    module = import_module(f"{GRPC if grpc else HTTP}.{EXPORTERS}")
    endpoint = url.replace("grpc://", "http://", 1) if grpc else with_path(url)
    exporter: SpanExporter = module.OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_S)
    return exporter
