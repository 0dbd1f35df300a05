"""Who listens to KV events by ZeroMQ, as vLLM's listeners do, knows what is cached, whatever dies and is missed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import msgspec
import pytest
import zmq

from tests.herald.vllm_events import Index, KVEventBatch
from tests.support.client import http_client
from tests.support.server import Server

ADMIN = {"Authorization": "Bearer key"}
WAIT_MS = 60_000
END = (-1).to_bytes(8, "big", signed=True)


class Listener:
    """A subscriber with an index."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index, self.numbers = folder, Index(), list[int]()
        self.zmq = zmq.Context()
        self.events = self.zmq.socket(zmq.SUB)
        self.events.subscribe(b"kv")
        self.events.connect(f"ipc://{folder}/events")

    def next(self) -> None:
        """Hear what comes; if nothing does, ask what was missed while the socket found its way back."""
        if not self.events.poll(500):
            self.catch_up()
            return
        topic, number, payload = self.events.recv_multipart()
        assert topic == b"kv" and len(number) == 8
        found = int.from_bytes(number, "big")
        if self.numbers and found > self.numbers[-1] + 1:
            self.catch_up()
        self.take(found, payload)

    def take(self, number: int, payload: bytes) -> None:
        """One that was heard before is left."""
        if not self.numbers or number > self.numbers[-1]:
            self.numbers.append(number)
            self.index.hear(msgspec.msgpack.decode(payload, type=KVEventBatch))

    def catch_up(self) -> None:
        """Ask for what was missed."""
        for number, payload in self.replay(self.numbers[-1] + 1 if self.numbers else 0):
            self.take(number, payload)

    def until(self, blocks: int) -> None:
        end = time.monotonic() + WAIT_MS / 1e3
        while len(self.index.tokens) != blocks:
            assert time.monotonic() < end, f"{len(self.index.tokens)} blocks are told of, not {blocks}"
            self.next()

    def replay(self, start: int) -> list[tuple[int, bytes]]:
        asks = self.zmq.socket(zmq.DEALER)
        asks.connect(f"ipc://{self.folder}/replay")
        asks.send_multipart((b"", start.to_bytes(8, "big")))
        found: list[tuple[int, bytes]] = []
        while True:
            assert asks.poll(WAIT_MS)
            _, number, payload = asks.recv_multipart()
            if number == END:
                asks.close()
                return found
            found.append((int.from_bytes(number, "big"), payload))

    def close(self) -> None:
        self.zmq.destroy(linger=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    said = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{folder}/events",
        "replay_endpoint": f"ipc://{folder}/replay",
        "topic": "kv",
        "buffer_steps": 4,
    }
    events = msgspec.json.encode(said).decode()
    options = ("--worker", "scripted", "--admin-api-key", "key", "--max-num-seqs", "4", "--debug")
    with Server(*options, "--kv-events-config", events) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with http_client(server) as made:
        yield made


@pytest.fixture
def listener(server: Server, folder: Path) -> Iterator[Listener]:
    made = Listener(folder)
    yield made
    made.close()


def ask(client: httpx.Client, first: int, blocks: int = 4) -> None:
    """A prompt that fills so many blocks; its answer fills none."""
    prompt = [first + at for at in range(blocks * 32 + 1)]
    client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2, "ignore_eos": True}).raise_for_status()


def told_all(listener: Listener) -> None:
    """It knows where it stands, behind a reset: all is told anew to who asks for what is not kept."""
    while not listener.index.cleared:
        for number, payload in listener.replay(0):
            listener.take(number, payload)


def test_a_listener_knows_what_is_cached(client: httpx.Client, listener: Listener) -> None:
    client.post("/reset_prefix_cache", headers=ADMIN).raise_for_status()
    ask(client, 1000)
    told_all(listener)
    client.post("/reset_prefix_cache", headers=ADMIN).raise_for_status()
    ask(client, 300)
    while tuple(range(300, 300 + 128)) not in listener.index.tokens.values():
        listener.next()
    assert len(listener.index.tokens) == 4, "the others are gone"
    numbers = listener.numbers
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_herald_that_is_born_again_says_everything(server: Server, client: httpx.Client, listener: Listener) -> None:
    client.post("/reset_prefix_cache", headers=ADMIN).raise_for_status()
    ask(client, 400)
    told_all(listener)
    listener.until(4)
    last, cleared = listener.numbers[-1], listener.index.cleared
    os.kill(server.pids()["herald"], signal.SIGKILL)
    ask(client, 800)
    while listener.index.cleared == cleared:
        listener.next()
    listener.until(8)
    assert min(number for number in listener.numbers if number > last) >= last + 1, "numbers go on"


def test_what_was_missed_is_sent_again(server: Server, client: httpx.Client, listener: Listener) -> None:
    client.post("/reset_prefix_cache", headers=ADMIN).raise_for_status()
    told_all(listener)
    for first in range(500, 510):
        ask(client, first, 1)
    listener.until(10)
    last = listener.numbers[-1]
    (number, payload), *_ = listener.replay(last)
    assert number == last and msgspec.msgpack.decode(payload, type=KVEventBatch).data_parallel_rank == 0
    other = Index()
    for _, payload in listener.replay(0):  # only four batches are kept: so all is said once more
        other.hear(msgspec.msgpack.decode(payload, type=KVEventBatch))
    assert other.tokens == listener.index.tokens


def test_a_scheduler_that_dies_changes_nothing(server: Server, client: httpx.Client, listener: Listener) -> None:
    client.post("/reset_prefix_cache", headers=ADMIN).raise_for_status()
    ask(client, 600)
    told_all(listener)
    listener.until(4)
    os.kill(server.pids()["scheduler"], signal.SIGKILL)
    ask(client, 700)
    listener.until(8)
    text = client.get("/metrics").text
    assert 'actorserve:kv_events_blocks{engine="0"' in text
