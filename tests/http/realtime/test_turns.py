"""Turns in a sound that comes: where they begin and end, and that who reads the same messages again finds the same."""

from __future__ import annotations

import random
from array import array
from typing import Any

import msgspec
import pytest

from actorserve.http.errors import ApiError
from actorserve.http.realtime.audio import SoundBudget
from actorserve.http.realtime.turns import BufferStart, Idle, Turn, TurnBuffer, TurnDetection, read_turn_detection

RATE = 24_000
PATH = "session.audio.input"


def silence(ms: int) -> bytes:
    return bytes(2 * RATE * ms // 1000)


def speech(ms: int, level: int = 3000, seed: int = 0) -> bytes:
    rng = random.Random(seed)
    return array("h", [rng.randint(-level, level) for _ in range(RATE * ms // 1000)]).tobytes()


def buffer_of(heard: BufferStart | None = None, most: int = 1 << 22, **given: Any) -> TurnBuffer:
    return TurnBuffer(SoundBudget(most), TurnDetection(type="server_vad", **given), RATE, heard or BufferStart())


def heed(buffer: TurnBuffer) -> list[tuple[Turn, bytes]]:
    """All turns of what has come; the sound of those that have ended."""
    found = []
    while (turn := buffer.look()) is not None:
        assert isinstance(turn, Turn)
        found.append((turn, b"" if turn.begins else buffer.turn()))
        if not turn.begins:
            buffer.over()
    buffer.trim()
    return found


def test_a_turn_has_its_padding_and_the_silence_behind_it() -> None:
    buffer, said = buffer_of(), speech(400)
    buffer.put(silence(1000) + said + silence(600) + speech(100) + silence(900), 0)
    (begins, _), (ends, sound), (again, _), (last, _) = heed(buffer)
    assert (begins, ends) == (Turn(True, 700), Turn(False, 1900))
    assert sound == silence(300) + said + silence(500)
    assert (again, last) == (Turn(True, 1900), Turn(False, 2600)), "the padding begins no earlier than the buffer"
    assert buffer.size < len(silence(500))


@pytest.mark.parametrize(("threshold", "level", "found"), [(0.5, 150, 0), (0.1, 150, 2), (0.5, 1000, 2), (1, 1000, 0)])
def test_a_threshold_is_a_loudness(threshold: float, level: int, found: int) -> None:
    buffer = buffer_of(threshold=threshold)
    buffer.put(silence(400) + speech(400, level) + silence(700), 0)
    assert len(heed(buffer)) == found


def test_a_click_is_no_turn_and_silence_is_let_go_of() -> None:
    buffer = buffer_of()
    for place in range(100):
        buffer.put(silence(480) + speech(20), place)
        assert not heed(buffer) and buffer.size <= len(silence(900))
    assert buffer.place is not None and buffer.place >= 97


def test_a_turn_ends_when_the_buffer_is_full() -> None:
    buffer = buffer_of(most=len(silence(1000)))
    turns = []
    for place in range(12):
        buffer.put(speech(200, seed=place), place)
        turns += [turn for turn, _ in heed(buffer)]
    assert [turn.begins for turn in turns] == [True, False] * 2
    with pytest.raises(ApiError, match="at most 48000 bytes"):
        buffer.put(silence(1001), 13)


def test_a_client_may_commit_itself() -> None:
    """In the middle of a turn, which ends there; the next one begins anew."""
    buffer = buffer_of()
    with pytest.raises(ApiError) as refused:
        buffer.peek()
    assert refused.value.code == "input_audio_buffer_commit_empty"
    said = silence(100) + speech(400)
    buffer.put(said, 0)
    assert buffer.look() == Turn(True, 0)
    assert buffer.peek() == said and buffer.take() == said and not buffer.size
    buffer.put(silence(400) + speech(400) + silence(700), 1)
    assert [turn for turn, _ in heed(buffer)] == [Turn(True, 600), Turn(False, 1800)]
    buffer.put(speech(10)[:-1], 2)
    with pytest.raises(ApiError, match="a sample has two bytes"):
        buffer.take()
    assert buffer.size


def test_who_reads_the_messages_again_finds_the_same_turns() -> None:
    """From what was written down behind each message, or in the middle of one behind a turn, as it is after a death."""
    rng = random.Random(1)
    whole = b"".join(
        speech(rng.randrange(40, 900), seed=at) if at % 2 else silence(rng.randrange(40, 1300)) for at in range(24)
    )
    messages, at = [], 0
    while at < len(whole):
        size = rng.choice([301, 960, 4801, 24_000, 96_001])
        messages.append(whole[at : at + size])
        at += size
    first, wanted, kept = buffer_of(), [], []  # kept: (turns so far, where the buffer begins, what is heeded, heard)
    for place, message in enumerate(messages):
        first.put(message, place)
        while (turn := first.look()) is not None:
            assert isinstance(turn, Turn)
            if turn.begins:
                first.heard.item = "told"
                wanted.append((turn, b""))
            else:
                wanted.append((turn, first.turn()))
                first.over()
                kept.append(_kept(first, len(wanted), place))
        first.trim()
        kept.append(_kept(first, len(wanted), place + 1))
    assert sum(not turn.begins for turn, _ in wanted) > 5
    for count, begin, heeded, state in kept:
        heard = msgspec.msgpack.decode(state, type=BufferStart)
        told = heard.item is not None
        second = buffer_of(heard)
        for place in range(begin, heeded):
            second.put(messages[place], place)
            second.catch_up()
        found = []
        for place in range(heeded, len(messages)):
            second.put(messages[place], place)
            found += heed(second)
        if told and begin == heeded:
            found = found[1:]
        assert found == wanted[count:]


def _kept(buffer: TurnBuffer, count: int, heeded: int) -> tuple[int, int, int, bytes]:
    begin = heeded if buffer.place is None else min(buffer.place, heeded)
    return count, begin, heeded, msgspec.msgpack.encode(buffer.heard)


def test_silence_behind_an_answer_is_found_once() -> None:
    """Not before one, nor while somebody speaks; whoever goes on counts from the same sample."""
    buffer = buffer_of(idle_timeout_ms=5000)
    buffer.put(silence(6000), 0)
    assert not heed(buffer)
    buffer.await_turn(True)
    buffer.put(silence(4000), 1)
    assert not heed(buffer)
    heard = msgspec.msgpack.decode(msgspec.msgpack.encode(buffer.heard), type=BufferStart)
    again = buffer_of(heard, idle_timeout_ms=5000)
    again.put(silence(1000 + len(buffer.peek()) * 500 // RATE), 1)
    for one in (buffer, again):
        if one is buffer:
            one.put(silence(1000), 2)
        assert one.look() == Idle(6000, 11_000)
        assert len(one.silence()) >= len(silence(300)) and one.look() is None
    buffer.await_turn(True)
    buffer.put(speech(400) + silence(600), 3)
    assert [turn.begins for turn, _ in heed(buffer)] == [True, False]
    buffer.put(silence(6000), 4)
    assert buffer.look() is None, "whoever has spoken waits for an answer"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"type": "semantic_vad"}, "turn_detection.type"),
        ({"type": "server_vad", "threshold": 1.5}, "turn_detection.threshold"),
        ({"type": "server_vad", "silence_duration_ms": -1}, "turn_detection.silence_duration_ms"),
        ({"type": "server_vad", "idle_timeout_ms": 4999}, "turn_detection.idle_timeout_ms"),
        ({"type": "server_vad", "eagerness": "low"}, "turn_detection.eagerness"),
    ],
    ids=["semantic", "threshold", "silence", "idle", "unknown"],
)
def test_what_is_not_here_is_refused_by_its_name(given: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_turn_detection(given, PATH)
    assert refused.value.param == f"{PATH}.{param}", refused.value.message
