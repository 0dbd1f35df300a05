"""A client that goes away frees its KV blocks at once, streaming or not: a long request does not run on without it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

import pytest

from tests.support.client import address
from tests.support.server import Server

WAIT_S = 30.0
LONG, FEW = 3500, 400  # tokens: of an answer; more than a start takes, fewer than come while a connection is waited for
TOKENS = 1500  # some seconds of work, if nobody stops it


class Connection:
    """A raw HTTP/1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, server: Server) -> Connection:
        return cls(*await asyncio.open_connection(*address(server)))

    def send(self, method: str, path: str, body: object = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)

    async def gauges(self) -> dict[str, float]:
        """/metrics by name, labels left out."""
        self.send("GET", "/metrics")
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        text = (await self.reader.readexactly(length)).decode()
        rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name.partition("{")[0]: float(value) for name, _, value in rows}

    async def until(self, name: str, wanted: bool) -> float:
        """Ask until the gauge is (or is not) zero; the seconds that it took."""
        start = time.monotonic()
        async with asyncio.timeout(WAIT_S):
            while bool((await self.gauges())[name]) is not wanted:
                pass
        return time.monotonic() - start


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("abort", [True, False], ids=["reset", "closed"])
async def test_blocks_are_freed_when_the_client_goes(demo_server: Server, stream: bool, abort: bool) -> None:
    watch, client = await Connection.to(demo_server), await Connection.to(demo_server)
    body = {"prompt": "Once upon a time", "max_tokens": TOKENS, "ignore_eos": True, "stream": stream, "n": 2}
    client.send("POST", "/v1/completions", body)
    await watch.until("vllm:kv_cache_usage_perc", True)
    before = await watch.gauges()
    if abort:
        client.writer.transport.abort()
    else:
        client.writer.close()
    seconds = await watch.until("vllm:kv_cache_usage_perc", False)
    after = await watch.gauges()
    print(f"freed after {1000 * seconds:.0f} ms")
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] < TOKENS
    watch.writer.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("abort", [True, False], ids=["reset", "closed"])
async def test_a_client_that_goes_with_its_frontend(demo_server: Server, stream: bool, abort: bool) -> None:
    """The successor finds its connection over, and does not wait for another."""
    watch, client = await Connection.to(demo_server), await Connection.to(demo_server)
    body = {"prompt": "Once upon a time", "max_tokens": LONG, "ignore_eos": True, "stream": stream}
    client.send("POST", "/v1/completions", body)
    await watch.until("vllm:kv_cache_usage_perc", True)
    before = await watch.gauges()
    os.kill(demo_server.pids()["frontend-0"], signal.SIGKILL)
    if abort:
        client.writer.transport.abort()
    else:
        client.writer.close()
    await watch.until("vllm:kv_cache_usage_perc", False)
    after = await watch.gauges()
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] < FEW
    watch.writer.close()


async def test_a_client_that_goes_before_its_answer_begins(demo_server: Server) -> None:
    """Many at once, gone as soon as they have asked: nothing stays behind."""
    watch = await Connection.to(demo_server)
    for number in range(40):
        client = await Connection.to(demo_server)
        client.send("POST", "/v1/completions", {"prompt": f"{number} times", "max_tokens": TOKENS, "stream": True})
        await client.writer.drain()
        client.writer.transport.abort()
    client = await Connection.to(demo_server)
    client.send("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 3})
    assert b"200 OK" in await client.reader.readuntil(b"\r\n")
    await watch.until("vllm:num_requests_running", False)
    await watch.until("vllm:kv_cache_usage_perc", False)
    for connection in (watch, client):
        connection.writer.close()
