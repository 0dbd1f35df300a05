"""Batches of events over ZeroMQ, as vLLM sends them: `topic, number, batch` to whoever listens, the number in 8 bytes,
big-endian; and by a second address once more to whoever asks for those from a number on, then -1.

What a subscriber is too slow for, or misses while it is not there, ZeroMQ drops without a word: the numbers tell it.
"""

from __future__ import annotations

from collections import deque

import zmq

from ..options.objects.kv_events import KVEvents, address_of, binds

END = (-1).to_bytes(8, "big", signed=True)
MOST_REQUESTS = 16  # that are answered in one turn


class Publisher:
    """Of one engine. OSError where its address cannot be had."""

    def __init__(self, settings: KVEvents, rank: int) -> None:
        self._topic = settings.topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=settings.buffer_steps)
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.PUB)
        self._replay: zmq.Socket[bytes] | None = None
        self._events.set_hwm(settings.hwm)
        self._events.setsockopt(zmq.LINGER, 0)
        address = address_of(settings.endpoint, rank)
        self.addresses = f"{'published at' if binds(settings.endpoint) else 'sent to'} {address}"
        try:
            (self._events.bind if binds(settings.endpoint) else self._events.connect)(address)
            if settings.replay_endpoint is not None:
                self._replay = self._context.socket(zmq.ROUTER)
                self._replay.setsockopt(zmq.LINGER, 0)
                self._replay.setsockopt(zmq.SNDHWM, settings.buffer_steps + 1)  # a replay and its end wait whole
                replay = address_of(settings.replay_endpoint, rank)
                self._replay.bind(replay)
                self.addresses += f", sent again at {replay}"
        except zmq.ZMQError as error:  # which is no OSError
            self.close()
            raise OSError(error.errno, str(error)) from None

    @property
    def kept(self) -> int:
        """Batches that can be sent again."""
        return len(self._kept)

    def send(self, number: int, batch: bytes) -> None:
        """Never waits: who is too slow misses it."""
        self._kept.append((number, batch))
        self._events.send_multipart((self._topic, number.to_bytes(8, "big"), batch), zmq.NOBLOCK)

    def requests(self) -> list[tuple[bytes, int]]:
        """(who, from which number on) that ask for batches once more."""
        found: list[tuple[bytes, int]] = []
        while self._replay is not None and len(found) < MOST_REQUESTS and self._replay.poll(0):
            frames = self._replay.recv_multipart(zmq.NOBLOCK)
            if len(frames) == 3 and len(frames[2]) == 8:
                found.append((frames[0], int.from_bytes(frames[2], "big")))
        return found

    def has(self, number: int) -> bool:
        """Are all batches from this one on kept?"""
        return bool(self._kept) and self._kept[0][0] <= number

    def answer(self, who: bytes, start: int) -> None:
        """Send what is kept."""
        assert self._replay is not None, "who asks has an address to ask at"
        for number, batch in self._kept:
            if number >= start:
                self._replay.send_multipart((who, b"", number.to_bytes(8, "big"), batch), zmq.NOBLOCK)
        self._replay.send_multipart((who, b"", END, b""), zmq.NOBLOCK)

    def close(self) -> None:
        """Give its addresses up."""
        self._context.destroy(linger=0)
