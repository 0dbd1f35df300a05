"""A Whisper that is not the first model of its server: it is asked by what is wanted, and its own worker listens."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import OpenAI

from tests.server.dialects.test_realtime import turn
from tests.server.speech.test_realtime import FORMAT, hear, pcm
from tests.support.models.sounds.whispers import sound, wav
from tests.support.server import WAIT_S, Server

SAMPLES = sound(1.7)


@pytest.fixture(scope="module")
def both(whisper: Path) -> Iterator[Server]:
    options = ("--device", "cpu", "--threads", "1", "--dtype", "float32", "--max-restarts", "100")
    with Server(*options, "--also", f"{whisper},dtype=float32,served-model-name=ears") as server:
        yield server


@pytest.fixture
def beside(both: Server) -> OpenAI:
    return OpenAI(base_url=f"{both.base_url}/v1", api_key="-", max_retries=0)


def written(client: OpenAI, **fields: Any) -> Any:
    about: dict[str, Any] = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
    file = ("a.wav", wav(SAMPLES))
    return client.audio.transcriptions.create(model="ears", file=file, language="en", **about, extra_body=fields)


THRESHOLDS: dict[str, Any] = {"logprob_threshold": 0, "temperature_inc": 1.0, "seed": 5, "no_speech_threshold": 1}


def test_words_and_silence_are_looked_for_in_its_own_worker(client: OpenAI, beside: OpenAI) -> None:
    alone = written(client)
    found = written(beside)
    assert found.words == alone.words and found.text == alone.text
    doubted = written(beside, **THRESHOLDS)
    assert doubted.segments[0].temperature == 1.0 and doubted.text != found.text


@pytest.mark.slow
def test_a_doubtful_text_is_the_same_when_its_worker_dies(beside: OpenAI, both: Server) -> None:
    doubted = written(beside, **THRESHOLDS)
    os.kill(both.pids()["worker@1"], signal.SIGKILL)
    assert written(beside, **THRESHOLDS) == doubted


async def test_a_realtime_connection_is_for_the_model_that_does_it(both: Server, client: OpenAI) -> None:
    url = f"{both.base_url}/v1/realtime"
    alone = client.audio.transcriptions.create(model="ears", file=("a.wav", wav(SAMPLES)), language="en")

    def kill() -> None:
        both.replace("frontend-0")

    async with aiohttp.ClientSession() as http:
        for query in ("intent=transcription", "model=ears"):
            async with http.ws_connect(f"{url}?{query}") as socket:
                session = (await socket.receive_json(timeout=WAIT_S))["session"]
                assert (
                    session["type"] == "transcription" and session["audio"]["input"]["transcription"]["model"] == "ears"
                )
                given = {"format": FORMAT, "transcription": {"language": "en", "model": "actorserve-demo"}}
                update = {"type": "transcription", "audio": {"input": given}}
                await socket.send_json({"type": "session.update", "session": update})
                refused = (await socket.receive_json(timeout=WAIT_S))["error"]
                assert refused["param"] == "session.model" and "model=actorserve-demo" in refused["message"]
                given["transcription"] = {"language": "en", "model": "ears"}
                await socket.send_json({"type": "session.update", "session": update})
                assert (await socket.receive_json(timeout=WAIT_S))["type"] == "session.updated"
                assert await hear(socket, pcm(SAMPLES), {1: kill}) == (alone.text, alone.text)
        async with http.ws_connect(url) as socket:
            assert (await socket.receive_json(timeout=WAIT_S))["session"]["model"] == "actorserve-demo"
            response = await turn(socket, "What is the capital of France?", {3: kill})
            assert response["output"][0]["content"][0]["text"]
