"""Sounds over a realtime connection: written down when they are committed, and turns that the server finds in them."""

from __future__ import annotations

import base64

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.topics.prompts import SoundPrompt
from actorserve.http.errors import ApiError
from actorserve.http.generation.job import Job
from actorserve.http.handlers.realtime.connection import FAR
from actorserve.http.realtime import audio
from actorserve.http.settings import MediaRules
from tests.http.fakes import finish_all, rendered, say
from tests.http.realtime.records import record_for
from tests.http.realtime.talk import SOUND, SPEECH, begun, talking
from tests.http.serving import serving


async def test_a_sound_is_written_down_when_it_is_committed() -> None:
    async with serving(encoder=SPEECH) as served, talking(served, "?intent=transcription") as talk:
        assert (await talk.error("input_audio_buffer.commit"))["code"] == "input_audio_buffer_commit_empty"
        await talk.send("input_audio_buffer.append", audio=SOUND)
        await talk.send("input_audio_buffer.clear")
        assert (await talk.next())["type"] == "input_audio_buffer.cleared"
        await talk.send("input_audio_buffer.append", audio=SOUND)
        await talk.send("input_audio_buffer.commit")
        committed, added, _ = [await talk.next() for _ in range(3)]
        assert committed["item_id"] == added["item"]["id"] and committed["previous_item_id"] is None
        job = await served.job()
        (asked,) = job.prompts
        assert isinstance(asked, SoundPrompt) and asked.data[:4] == b"RIFF" and len(asked.data) == 3200 + 44
        rendered(job)
        say(job, 0, "<|en|> well")
        assert (await talk.next())["delta"] == "well"
        say(job, 0, " said<|0.10|>", 2, Finish.STOP)
        done = (await talk.until("conversation.item.input_audio_transcription.completed"))[-1]
        assert done["transcript"] == "well said" and done["item_id"] == committed["item_id"]
        assert done["usage"]["type"] == "duration" and done["usage"]["seconds"] == pytest.approx(1600 / 24000)
        assert "makes no responses" in (await talk.error("response.create"))["message"]
        await talk.send("input_audio_buffer.append", audio=SOUND)
        await talk.send("input_audio_buffer.commit")
        assert (await talk.next())["previous_item_id"] == committed["item_id"]


async def test_a_long_sound_is_written_down_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with each of its messages, however long ago it has begun."""
    upgraded = record_for(monkeypatch).upgraded
    async with serving(encoder=SPEECH, max_body_bytes=1 << 20) as served, talking(served) as talk:
        upgraded.size = FAR // 4
        for _ in range(20):
            await talk.send("input_audio_buffer.append", audio=SOUND)
        await talk.send("session.update", session={"type": "transcription"})
        await talk.next()
        first, *between, last = upgraded.kept
        assert len(between) == 4 and {one.start for one in between} == {first.end}
        assert [one.end for one in (*between, last)] == [upgraded.size * count for count in (5, 10, 15, 20, 21)]


@pytest.mark.parametrize("accepted", [False, True])
async def test_a_commit_that_was_refused_is_refused_behind_a_death_too(
    monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    """What it left in the buffer is there for the next one, which may have come before the death."""
    upgraded = record_for(monkeypatch).upgraded
    async with serving(encoder=SPEECH) as served:
        async with talking(served) as talk:
            await talk.send("input_audio_buffer.append", audio=SOUND)
            served.engine.refusal = ApiError(429, "too often")
            assert (await talk.error("input_audio_buffer.commit"))["message"] == "too often"
            served.engine.refusal = None
            if accepted:
                await talk.send("input_audio_buffer.append", audio=SOUND)
                await talk.send("input_audio_buffer.commit")
                await talk.until("conversation.item.done")
                await served.job()
        left = upgraded.kept[-1]
        assert (left.start, left.end) == (0, 4 if accepted else 2)
        record_for(monkeypatch, left)
        async with talking(served, greets=False) as talk:
            for _ in range(2):
                await talk.send("input_audio_buffer.append", audio=SOUND)
                await talk.send("input_audio_buffer.commit")
            (asked,) = (await served.job()).prompts
            assert isinstance(asked, SoundPrompt) and len(asked.data) == 2 * 3200 + 44


async def test_sounds_have_an_end_and_are_base64() -> None:
    async with serving(encoder=SPEECH, max_body_bytes=5000) as served, talking(served) as talk:
        for audio, code in (("?", None), (base64.b64encode(bytes(3001)).decode(), "input_audio_buffer_full")):
            error = await talk.error("input_audio_buffer.append", audio=audio)
            assert (error["param"], error["code"]) == ("audio", code)


def heard(job: Job) -> int:
    """Bytes of the sound that it is to write down."""
    (asked,) = job.prompts
    assert isinstance(asked, SoundPrompt)
    return len(asked.data)


LONG = base64.b64encode(bytes(96 << 10)).decode()


@pytest.mark.parametrize("turns", [False, True])
async def test_sounds_of_all_sessions_have_an_end_too(monkeypatch: pytest.MonkeyPatch, turns: bool) -> None:
    """Who goes over it is told, and loses what was sent of that sound; what others have sent stays until they go."""
    monkeypatch.setattr(audio, "MOST_SOUND", 200 << 10)
    monkeypatch.setattr(audio, "LEAST_SOUNDS", 0)
    async with serving(encoder=SPEECH, max_body_bytes=1 << 20) as served, talking(served) as talk:
        async with talking(served) as other:
            await other.send("input_audio_buffer.append", audio=LONG)
            if turns:
                await talk.send("session.update", session=TURNS)
                await talk.next()
            sound = spoken(400, 700) if turns else LONG
            await talk.send("input_audio_buffer.append", audio=sound)
            if turns:
                assert (await talk.next())["type"] == BUFFER + "speech_started"
            error = await talk.error("input_audio_buffer.append", audio=sound)
            assert error["code"] is None and "sounds that are not committed" in error["message"]
            assert (await talk.error("input_audio_buffer.commit"))["code"] == "input_audio_buffer_commit_empty"
            await other.send("input_audio_buffer.commit")
            assert heard(await served.job()) == (96 << 10) + 44
            await other.send("input_audio_buffer.append", audio=LONG)
            await other.send("session.update", session={})
            await other.until("session.updated")
        for _ in range(2):
            await talk.send("input_audio_buffer.append", audio=sound)
        if turns:
            assert (await talk.next())["type"] == BUFFER + "speech_started"
        else:
            await talk.send("input_audio_buffer.commit")
            assert heard(await served.job()) == 2 * (96 << 10) + 44


async def test_a_sound_that_was_dropped_is_not_there_behind_a_death_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though what was sent is read again from where a sound begins that is about to be written down."""
    monkeypatch.setattr(audio, "MOST_SOUND", 200 << 10)
    monkeypatch.setattr(audio, "LEAST_SOUNDS", 0)
    upgraded = record_for(monkeypatch).upgraded
    async with serving(encoder=SPEECH, max_body_bytes=1 << 20) as served:
        async with talking(served) as talk:
            await talk.send("input_audio_buffer.append", audio=SOUND)
            await talk.send("input_audio_buffer.commit")
            await talk.until("conversation.item.done")
            assert not (await served.job()).started.done()
            for _ in range(2):
                await talk.send("input_audio_buffer.append", audio=LONG)
            await talk.send("input_audio_buffer.append", event_id="mine", audio=LONG)
            assert "dropped" in (await talk.next())["error"]["message"]
            await talk.send("input_audio_buffer.append", audio=SOUND)
            await talk.send("session.update", session={})
            await talk.until("session.updated")
        left = upgraded.kept[-1]
        assert left.start == 0
        record_for(monkeypatch, left)
        async with talking(served, greets=False) as talk:
            await talk.send("input_audio_buffer.append", audio=SOUND)
            await talk.send("input_audio_buffer.commit")
            for audio_of in (LONG, LONG, LONG, SOUND):
                await talk.send("input_audio_buffer.append", audio=audio_of)
            await talk.send("session.update", session={})
            again = await served.job()
            assert heard(again) == 3200 + 44
            finish_all(again)
            await talk.send("input_audio_buffer.commit")
            assert heard(await served.job()) == 3200 + 44


async def test_vllms_clients() -> None:
    async with serving(encoder=SPEECH) as served, talking(served) as talk:
        await talk.send("session.update", model="tiny")
        assert (await talk.next())["session"]["audio"]["input"]["format"]["rate"] == 16_000
        await talk.send("input_audio_buffer.commit")
        await talk.send("input_audio_buffer.append", audio=SOUND)
        await talk.send("input_audio_buffer.commit", final=True)
        finish_all(await served.job(), "yes")
        delta, done = await talk.next(), await talk.next()
        assert (delta["type"], delta["delta"]) == ("transcription.delta", "yes0")
        assert (done["type"], done["text"]) == ("transcription.done", "yes0")
        assert done["usage"]["completion_tokens"] == 3
        await talk.send("response.create")
        error = await talk.next()
        assert error["type"] == "error" and isinstance(error["error"], str)


TURNS = {"audio": {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 200}}}}
HEARS = MediaRules({"audio": 8}, 1 << 20, local_files=False)
BUFFER = "input_audio_buffer."


def spoken(*milliseconds: int) -> str:
    """Silence and noise in turn."""
    parts = [(b"\0\0" if at % 2 == 0 else b"\0\x10\0\xf0") * 24 for at in range(len(milliseconds))]
    return base64.b64encode(b"".join(part * ms for part, ms in zip(parts, milliseconds, strict=True))).decode()


async def test_a_turn_is_answered_and_the_next_one_interrupts() -> None:
    async with serving(media=HEARS) as served, talking(served) as talk:
        await talk.send("session.update", session=TURNS)
        assert (await talk.next())["session"]["audio"]["input"]["turn_detection"]["prefix_padding_ms"] == 300
        await talk.send("input_audio_buffer.append", audio=spoken(400, 200, 400))
        events = await talk.until("response.created")
        assert [event["type"] for event in events] == [
            *(BUFFER + name for name in ("speech_started", "speech_stopped", "committed")),
            *("conversation.item.added", "conversation.item.done", "response.created"),
        ]
        assert len({event.get("item_id") or event["item"]["id"] for event in events[:-1]}) == 1
        job = await served.job()
        rendered(job)
        say(job, 0, "well")
        await talk.until("response.output_text.delta")
        await talk.send("input_audio_buffer.append", audio=spoken(40, 100))
        again = await talk.until("response.done")
        assert again[0]["type"] == BUFFER + "speech_started" and again[-1]["response"]["status"] == "cancelled"
        assert again[-1]["response"]["status_details"]["reason"] == "turn_detected"
        error = await talk.error("session.update", session={"audio": {"input": {"turn_detection": None}}})
        assert error["param"] == "session.audio.input" and "a sound is being sent" in error["message"]
        await talk.send("input_audio_buffer.clear")
        await talk.until("input_audio_buffer.cleared")
        await talk.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
        assert (await talk.next())["session"]["audio"]["input"]["turn_detection"] is None
        assert (await talk.error("input_audio_buffer.commit"))["code"] == "input_audio_buffer_commit_empty"


async def test_a_client_that_goes_while_its_turn_begins_to_be_written_down_leaves_nothing() -> None:
    async with serving(encoder=SPEECH) as served:
        async with talking(served) as talk:
            await talk.send("session.update", session=TURNS)
            await talk.next()
            await talk.send("input_audio_buffer.append", audio=spoken(400, 200, 400))
            job = await served.job()
            assert talk.socket._response.connection is not None
            talk.socket._response.connection.transport.abort()  # type: ignore[union-attr]
            assert await served.release() is job and not job.started.done()


async def test_a_turn_need_not_be_answered_nor_interrupt() -> None:
    turns = {"type": "server_vad", "create_response": False, "interrupt_response": False, "silence_duration_ms": 200}
    async with serving(media=HEARS) as served, talking(served) as talk:
        await talk.send("session.update", session={"turn_detection": turns})
        await talk.next()
        job = await begun(served, talk)
        await talk.send("input_audio_buffer.append", audio=spoken(400, 200, 400))
        assert (await talk.until("conversation.item.done"))[0]["type"] == BUFFER + "speech_started"
        finish_all(job)
        assert (await talk.until("response.done"))[-1]["response"]["status"] == "completed"


async def test_who_says_nothing_behind_an_answer_is_spoken_to() -> None:
    turns = {"type": "server_vad", "silence_duration_ms": 200, "idle_timeout_ms": 5000}
    async with serving(media=HEARS, max_body_bytes=1 << 20) as served, talking(served) as talk:
        await talk.send("session.update", session={"turn_detection": turns})
        assert (await talk.next())["session"]["audio"]["input"]["turn_detection"]["idle_timeout_ms"] == 5000
        await talk.send("input_audio_buffer.append", audio=spoken(5200))
        finish_all(await begun(served, talk))
        await talk.until("response.done")
        await talk.send("input_audio_buffer.append", audio=spoken(5200))
        events = await talk.until("response.created")
        assert [event["type"] for event in events] == [
            *(BUFFER + name for name in ("timeout_triggered", "committed")),
            *("conversation.item.added", "conversation.item.done", "response.created"),
        ]
        assert (events[0]["audio_start_ms"], events[0]["audio_end_ms"]) == (5200, 10_200)
        assert len({event.get("item_id") or event["item"]["id"] for event in events[:-1]}) == 1
        finish_all(await served.job())
        await talk.until("response.done")


async def test_nobody_is_spoken_to_where_sounds_are_written_down() -> None:
    turns = {"type": "server_vad", "idle_timeout_ms": 5000}
    async with serving(encoder=SPEECH) as served, talking(served) as talk:
        error = await talk.error("session.update", session={"turn_detection": turns})
        assert error["param"] == "session.audio.input.turn_detection.idle_timeout_ms"
