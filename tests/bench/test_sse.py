"""Events come out the same wherever the stream is cut."""

from __future__ import annotations

import pytest

from actorserve.actors.bench.load.sse import EventReader

STREAM = b': hello\n\nevent: x\ndata: {"a": "\xc3\xa4"}\n\ndata:one\ndata: two\n\nid: 4\n\n\n\ndata: [DONE]\n\n'
EVENTS = [b'{"a": "\xc3\xa4"}', b"one\ntwo", b"[DONE]"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_cut_gives_the_same_events(end: bytes) -> None:
    stream = STREAM.replace(b"\n", end)
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1, 7):
            reader = EventReader()
            found = [
                one for part in (stream[:first], stream[first:second], stream[second:]) for one in reader.feed(part)
            ]
            # A CR at the very end may be half of CRLF: the next byte decides.
            found += reader.feed(b"\n") if end == b"\r" else []
            assert found == EVENTS, (first, second)
            assert not reader.cut


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_byte_by_byte(end: bytes) -> None:
    reader = EventReader()
    stream = STREAM.replace(b"\n", end)
    assert [event for byte in stream for event in reader.feed(bytes([byte]))] == EVENTS


def test_a_stream_that_ends_within_an_event_says_so() -> None:
    reader = EventReader()
    assert reader.feed(b"data: 1\n\ndata: 2") == [b"1"]
    assert reader.cut
