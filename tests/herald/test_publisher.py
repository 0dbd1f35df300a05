"""Batches over ZeroMQ: what is kept is sent again whole."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actorserve.actors.herald.actor import EngineHerald
from actorserve.actors.herald.publisher import END, Publisher
from actorserve.actors.options.config import ConfigError
from actorserve.actors.options.objects.kv_events import OPTION, KVEvents

zmq = pytest.importorskip("zmq")
BATCHES = 5000  # more than ZeroMQ lets wait at both ends by itself, and than the kernel holds
WAIT_MS = 20_000


def test_who_reads_late_gets_all_of_a_replay(tmp_path: Path) -> None:
    """It reads nothing before all is sent: what had no room was dropped without a word, and the end with it."""
    replay = f"ipc://{tmp_path}/replay"
    settings = KVEvents(endpoint=f"ipc://{tmp_path}/events", replay_endpoint=replay, buffer_steps=BATCHES)
    publisher, context = Publisher(settings, 0), zmq.Context()
    asks = context.socket(zmq.DEALER)
    try:
        for number in range(BATCHES + 10):
            publisher.send(number, b"x" * 256)
        asks.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        asks.connect(replay)
        asks.send_multipart((b"", (0).to_bytes(8, "big")))
        assert publisher._replay is not None and publisher._replay.poll(WAIT_MS)
        ((who, start),) = publisher.requests()
        publisher.answer(who, start)
        told = [asks.recv_multipart()[1] for _ in range(BATCHES + 1)]
        assert told == [number.to_bytes(8, "big") for number in range(10, BATCHES + 10)] + [END]
    finally:
        context.destroy(linger=0)
        publisher.close()


@pytest.mark.parametrize("taken", ["endpoint", "replay_endpoint"])
def test_an_address_in_use_ends_the_start_and_is_tried_again_later(taken: str, tmp_path: Path) -> None:
    said = list[str]()
    with socket.create_server(("127.0.0.1", 0)) as held:
        addresses = {"endpoint": f"ipc://{tmp_path}/events", taken: f"tcp://*:{held.getsockname()[1]}"}
        settings = msgspec.structs.replace(KVEvents(), **addresses)
        log: Any = SimpleNamespace(warning=lambda *words: said.append(words[0] % words[1:]))
        herald: Any = EngineHerald.__new__(EngineHerald)
        herald._herald, herald._rank = SimpleNamespace(settings=settings, context=SimpleNamespace(log=log)), 0
        with pytest.raises(ConfigError, match=rf"{OPTION}: endpoint or replay_endpoint of engine 0: .*in use"):
            herald.open(True)
        herald.open(False)
    assert len(said) == 1 and "wait for their address: [Errno 98] Address already in use" in said[0]
