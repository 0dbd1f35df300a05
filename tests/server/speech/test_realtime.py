"""/v1/realtime of a Whisper: what is said, as /v1/audio/transcriptions writes it, also where a frontend dies."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType
from openai import OpenAI

from tests.support.models.sounds.whispers import sound, wav
from tests.support.server import WAIT_S, Server

LONG = sound(7.0, seed=1)
RATE = 16_000
FORMAT = {"type": "audio/pcm", "rate": RATE}
SESSION = {"type": "transcription", "audio": {"input": {"format": FORMAT, "transcription": {"language": "en"}}}}


def pcm(samples: np.ndarray) -> bytes:
    """As `wav` has them."""
    return wav(samples)[44:]


async def hear(socket: ClientWebSocketResponse, data: bytes, at: dict[int, Callable[[], None]]) -> tuple[str, str]:
    """Send a sound in parts, doing something before some of them and behind some events; (deltas, transcript)."""
    parts = [data[start : start + 16_000] for start in range(0, len(data), 16_000)]
    for number, part in enumerate(parts):
        if number in at:
            at[number]()
        await socket.send_json({"type": "input_audio_buffer.append", "audio": base64.b64encode(part).decode()})
    await socket.send_json({"type": "input_audio_buffer.commit"})
    kinds: list[str] = []
    text = ""
    while True:
        message = await socket.receive(timeout=WAIT_S)
        assert message.type is WSMsgType.TEXT, (message, kinds)
        event = json.loads(message.data)
        kinds.append(event["type"].rpartition(".")[2])
        assert event["type"] != "error", event
        if (count := len(parts) + len(kinds)) in at:
            at[count]()
        text += event["delta"] if kinds[-1] == "delta" else ""
        if kinds[-1] == "completed":
            assert kinds[:3] == ["committed", "added", "done"] and kinds.count("committed") == 1
            return text, str(event["transcript"])


async def test_a_transcript_is_that_of_the_whole_file(speech_server: Server, client: OpenAI) -> None:
    def kill() -> None:
        os.kill(speech_server.pids()["frontend-0"], signal.SIGKILL)
        speech_server.wait_for("frontend-0 is up")

    file = ("a.wav", wav(LONG))
    wanted = client.audio.transcriptions.create(model="ears", file=file, language="en").text
    places: list[dict[int, Callable[[], None]]] = [{}, {5: kill, 15: kill}, {18: kill}]
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{speech_server.base_url}/v1/realtime?intent=transcription") as socket:
            assert (await socket.receive_json(timeout=WAIT_S))["session"]["type"] == "transcription"
            await socket.send_json({"type": "session.update", "session": SESSION})
            assert (await socket.receive_json(timeout=WAIT_S))["type"] == "session.updated"
            for at in places:
                assert await hear(socket, pcm(LONG), at) == (wanted, wanted)


async def test_a_language_that_is_not_known(speech_server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{speech_server.base_url}/v1/realtime") as socket:
            await socket.receive_json(timeout=WAIT_S)
            given: dict[str, Any] = {"audio": {"input": {"transcription": {"language": "xx"}}}}
            await socket.send_json({"type": "session.update", "session": given})
            error = (await socket.receive_json(timeout=WAIT_S))["error"]
            assert error["param"] == "session.language" and "de, en, fr" in error["message"]


def test_a_client_of_openais(speech_server: Server) -> None:
    pytest.importorskip("websockets")
    client: Any = OpenAI(base_url=f"{speech_server.base_url}/v1", api_key="none")
    with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        connection.session.update(session=SESSION)
        connection.input_audio_buffer.append(audio=base64.b64encode(pcm(sound(1.7))).decode())
        connection.input_audio_buffer.commit()
        kind = "conversation.item.input_audio_transcription.completed"
        done: Any = next(event for event in connection if event.type == kind)
        file = ("a.wav", wav(sound(1.7)))
        whole = client.audio.transcriptions.create(model="ears", file=file, language="en")
        assert done.transcript == whole.text and done.usage.seconds == pytest.approx(1.7)


class Turns:
    """Three of them, in a session in which the server finds where they begin and end."""

    PARTS = 16_000  # bytes
    MS = ((700, 2200), (2400, 4300), (4500, 5800))

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        quiet = np.zeros(RATE, np.int16)
        self.data = pcm(np.concatenate([quiet, sound(0.7), quiet, sound(1.1, 2), quiet, sound(0.5, 3), quiet]))
        self.socket = socket
        self.events: list[dict[str, Any]] = []

    async def begin(self) -> None:
        heard: dict[str, Any] = SESSION["audio"]["input"] | {"turn_detection": {"type": "server_vad"}}  # type: ignore[index]
        await self.socket.receive_json(timeout=WAIT_S)
        await self.socket.send_json({"type": "session.update", "session": {"audio": {"input": heard}}})
        told = (await self.socket.receive_json(timeout=WAIT_S))["session"]["audio"]["input"]["turn_detection"]
        assert (told["threshold"], told["silence_duration_ms"]) == (0.5, 500)

    async def send(self, start: int, end: int) -> None:
        text = base64.b64encode(self.data[start:end]).decode()
        await self.socket.send_json({"type": "input_audio_buffer.append", "audio": text})

    async def until(self, kind: str, count: int = 1) -> None:
        """So many events of this kind have come."""
        while sum(event["type"].endswith(kind) for event in self.events) < count:
            self.events.append(await self.socket.receive_json(timeout=WAIT_S))

    def check(self, client: OpenAI) -> None:
        """Each is written down as the file would be that it is, and told once."""
        names = ("speech_started", "speech_stopped", "committed")
        kinds = [event["type"].rpartition(".")[2] for event in self.events]
        assert [kind for kind in kinds if kind in names] == [*names] * 3 and "error" not in kinds
        begins = [event["audio_start_ms"] for event in self.events if "audio_start_ms" in event]
        ends = [event["audio_end_ms"] for event in self.events if "audio_end_ms" in event]
        assert list(zip(begins, ends, strict=True)) == [*self.MS]
        assert len({event["item_id"] for event in self.events if "item_id" in event}) == 3
        said = [event["transcript"] for event in self.events if "transcript" in event]
        for begin, end, text in zip(begins, ends, said, strict=True):
            file = ("a.wav", wav(np.frombuffer(self.data[begin * 32 : end * 32], "<i2")))
            assert client.audio.transcriptions.create(model="ears", file=file, language="en").text == text


@pytest.fixture
async def turns(speech_server: Server) -> AsyncIterator[Turns]:
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{speech_server.base_url}/v1/realtime?intent=transcription") as socket:
            made = Turns(socket)
            await made.begin()
            yield made


@pytest.mark.parametrize(
    ("deaths", "size"), [(set[int](), 1 << 20), ({2, 5, 9, 14}, Turns.PARTS)], ids=["whole", "deaths"]
)
async def test_turns_that_the_server_finds(
    deaths: set[int], size: int, turns: Turns, speech_server: Server, client: OpenAI
) -> None:
    for number, start in enumerate(range(0, len(turns.data), size)):
        await turns.send(start, start + size)
        if number in deaths:
            speech_server.replace("frontend-0")
    await turns.until("transcription.completed", 3)
    turns.check(client)


async def test_a_turn_begins_while_nothing_comes_of_the_one_before(
    turns: Turns, speech_server: Server, client: OpenAI
) -> None:
    """A successor that has heard nothing of the sound that is being written down looks for turns where it is to."""
    second = Turns.MS[1][0] * 32 // Turns.PARTS * Turns.PARTS + 2 * Turns.PARTS
    for start in range(0, second, Turns.PARTS):
        await turns.send(start, start + Turns.PARTS)
        if start <= Turns.MS[0][1] * 32 < start + Turns.PARTS:
            await turns.until("committed")
            worker = speech_server.pids()["worker"]
            os.kill(worker, signal.SIGSTOP)
            speech_server.replace("frontend-0")
    await turns.until("speech_started", 2)
    speech_server.replace("frontend-0")
    os.kill(worker, signal.SIGCONT)
    await turns.send(second, len(turns.data))
    await turns.until("transcription.completed", 3)
    turns.check(client)
