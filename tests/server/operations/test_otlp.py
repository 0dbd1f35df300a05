"""Traces: a real server sends each request's spans to a collector, and is not held up by one that hangs."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Sequence

import httpx2 as httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actorserve.actors.options.config import ConfigError, make_config
from tests.support.server import Server

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from actorserve.actors.frontend.observability.finished import FinishedRequest, Times
from actorserve.actors.frontend.observability.tracing import Tracer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PATIENCE_S = 30.0


class Collector:
    """Takes spans over HTTP, or hangs."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.asked = 0
        self.news = asyncio.Event()
        self.hangs = False
        self._end = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.hangs:
            self.news.set()
            await self._end.wait()
        told = ExportTraceServiceRequest.FromString(await request.read())
        for resource in told.resource_spans:
            self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
            for scope in resource.scope_spans:
                self.spans += scope.spans
        self.news.set()
        return web.Response()

    async def root(self, request_id: str) -> Span:
        """The span of this request, once it has come."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for span in self.spans:
                    if attributes(span).get("gen_ai.request.id") == request_id:
                        return span
                self.news.clear()
                await self.news.wait()

    def release(self) -> None:
        self._end.set()


def attributes(span: Span) -> dict[str, object]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in span.attributes}


@pytest.fixture
async def collector() -> AsyncIterator[tuple[Collector, str]]:
    one = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", one.take)
    async with TestServer(app) as server:
        yield one, str(server.make_url("/"))
        one.release()


def body(**more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, **more}


async def test_spans_of_requests(collector: tuple[Collector, str]) -> None:
    taken, url = collector
    server = await asyncio.to_thread(Server("--worker", "scripted", "--otlp-traces-endpoint", url).__enter__)
    try:
        async with httpx.AsyncClient(base_url=server.base_url, timeout=PATIENCE_S) as client:
            parent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "one"}
            answer = (await client.post("/v1/chat/completions", json=body(temperature=0.5), headers=parent)).json()
            unwanted = {"traceparent": f"00-{TRACE}-{PARENT}-00", "X-Request-Id": "unwanted"}
            await client.post("/v1/chat/completions", json=body(), headers=unwanted)
            headers = {"X-Request-Id": "two"}
            async with client.stream("POST", "/v1/chat/completions", json=body(stream=True), headers=headers) as stream:
                [line async for line in stream.aiter_lines()]
            await client.post("/v1/chat/completions", json=body(model="none"), headers={"X-Request-Id": "refused"})
            await client.get("/v1/models")
        roots = {name: await taken.root(name) for name in ("one", "two", "refused")}
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)
    assert taken.services == {"actorserve"}
    one = roots["one"]
    assert (one.name, one.trace_id.hex(), one.parent_span_id.hex()) == ("llm_request", TRACE, PARENT)
    said = attributes(one)
    assert said["gen_ai.usage.prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert said["gen_ai.usage.completion_tokens"] == answer["usage"]["completion_tokens"] == 6
    assert (said["gen_ai.request.max_tokens"], said["gen_ai.request.temperature"]) == (6, 0.5)
    assert said["gen_ai.response.id"] == answer["id"] and said["http.response.status_code"] == 200
    seconds = (one.end_time_unix_nano - one.start_time_unix_nano) / 1e9
    assert said["gen_ai.latency.e2e"] == pytest.approx(seconds, abs=1e-6)
    first = said["gen_ai.latency.time_to_first_token"]
    assert isinstance(first, float) and 0 < first <= seconds
    assert roots["two"].trace_id != one.trace_id and not roots["two"].parent_span_id
    for root in (one, roots["two"]):
        children = [span for span in taken.spans if span.parent_span_id == root.span_id]
        assert [span.name for span in children] == ["renderer_queue", "render", "scheduler_queue", "prefill", "decode"]
        times = [time for span in children for time in (span.start_time_unix_nano, span.end_time_unix_nano)]
        assert times == sorted(times) and {span.trace_id for span in children} == {root.trace_id}
        assert root.start_time_unix_nano <= times[0] and times[-1] <= root.end_time_unix_nano
    assert attributes(roots["refused"])["http.response.status_code"] == 404
    assert len(taken.spans) == 6 + 6 + 1  # none of the request that its client does not want traced, nor of /v1/models


async def test_a_collector_that_hangs_delays_nobody(collector: tuple[Collector, str]) -> None:
    taken, url = collector
    taken.hangs = True
    server = await asyncio.to_thread(Server("--worker", "scripted", "--otlp-traces-endpoint", url).__enter__)
    try:
        async with httpx.AsyncClient(base_url=server.base_url, timeout=PATIENCE_S) as client:
            await client.post("/v1/chat/completions", json=body())
            async with asyncio.timeout(PATIENCE_S):
                await taken.news.wait()
            answers = [await client.post("/v1/chat/completions", json=body()) for _ in range(5)]
            assert [answer.status_code for answer in answers] == [200] * 5 and taken.asked == 1
        assert await asyncio.to_thread(server.stop) == 0  # though it hangs still
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)


class Exporter(SpanExporter):
    """Takes what `go` lets it."""

    def __init__(self, result: SpanExportResult = SpanExportResult.SUCCESS) -> None:
        self.go, self.begun, self.result = threading.Event(), threading.Event(), result
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.begun.set()
        assert self.go.wait(PATIENCE_S)
        self.spans += spans
        return self.result


def ends(count: int) -> Iterable[FinishedRequest]:
    return (
        FinishedRequest(f"r{n}", "/v1/chat/completions", "1.2.3.4", 200, Times(began=1, ended=2)) for n in range(count)
    )


async def test_the_queue_is_bounded_and_drops_are_said(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter()
    tracer = Tracer(exporter, "frontend-0", most=10)
    with caplog.at_level(logging.WARNING):
        tracer.tell(next(iter(ends(1))))
        assert await asyncio.to_thread(exporter.begun.wait, PATIENCE_S)
        for end in ends(25):
            tracer.tell(end)
        assert tracer.dropped == 15
        exporter.go.set()
        await tracer.close(web.Application())
    assert len(exporter.spans) == 11
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "the traces of 15 requests were dropped"
    ]


async def test_what_a_collector_refuses_is_counted_and_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    exporter, now = Exporter(SpanExportResult.FAILURE), [100.0]
    exporter.go.set()
    tracer = Tracer(exporter, "frontend-0", clock=lambda: now[0])

    async def tell(count: int) -> None:
        before = tracer.dropped
        for end in ends(count):
            tracer.tell(end)
        async with asyncio.timeout(PATIENCE_S):
            while tracer.dropped < before + count:
                await asyncio.sleep(0.02)

    with caplog.at_level(logging.WARNING):
        await tell(1)
        await tell(2)
        now[0] += 61
        await tell(3)
        await tracer.close(web.Application())
    counts = [int(re.findall(r"\d+", record.getMessage())[0]) for record in caplog.records]
    assert counts[0] == 1 and sum(counts) == 6 and len(counts) == 2, counts


def test_without_its_packages_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint: .*pip install 'actorserve\[otlp\]'"):
        make_config({"otlp_traces_endpoint": "http://localhost:4318"})


@pytest.mark.parametrize("url", ["localhost:4318", "http://", "ftp://there", "4318"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint: .* is no address"):
        make_config({"otlp_traces_endpoint": url})
