"""What a whole server answers to sounds in conversations: the texts of transformers on the same weights."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx2 as httpx
import numpy as np
import openai
import pytest

from tests.support.models.sounds.listeners import ADAPTED, EVERY, Listening, listener
from tests.support.models.sounds.whispers import RATE, encoded, sound, wav
from tests.support.runs.original import Imports
from tests.support.server import WAIT_S, Server

ANSWER = 8
Heard = tuple[Server, Listening, str]


def serve(kind: str, root: Path, *options: str) -> Iterator[Heard]:
    folder = listener(kind, root)
    limits = ("--device", "cpu", "--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "8")
    with Server(
        str(folder), *limits, *options, "--limit-mm-per-prompt", '{"audio": 2}', imports=Imports.PLAIN
    ) as server:
        yield server, Listening(kind, folder), str(folder)


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    yield from serve("qwen2_audio", tmp_path_factory.mktemp("heard"))


def check(heard: Heard, *sounds: np.ndarray) -> int:
    """Returns how many tokens of its prompt were cached."""
    server, theirs, name = heard
    files = [base64.b64encode(wav(one)).decode() for one in sounds]
    content: list[Any] = [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}} for data in files]
    content.append({"type": "text", "text": "What is the capital?"})
    answer = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", timeout=120).chat.completions.create(
        model=name,
        messages=[{"role": "user", "content": content}],
        max_tokens=ANSWER,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    ids = answer.model_extra["prompt_token_ids"]  # type: ignore[index]
    wanted = theirs.generate(ids, theirs.inputs(*sounds) if sounds else {}, ANSWER)
    assert answer.choices[0].model_extra["token_ids"] == wanted  # type: ignore[index]
    details = answer.usage.prompt_tokens_details if answer.usage else None
    return details.cached_tokens or 0 if details else 0


def test_texts_are_those_of_transformers_and_other_sounds_share_no_prefix(heard: Heard) -> None:
    check(heard)
    assert check(heard, sound(1.9, 1)) == 0
    assert check(heard, sound(1.9, 1)) >= 32
    assert check(heard, sound(1.9, 2)) == 0
    check(heard, sound(0.5, 3), sound(1.2, 4))


def test_addresses_forms_and_refusals(heard: Heard) -> None:
    server, _, _ = heard

    def ask(*parts: dict[str, Any]) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": [*parts]}], "max_tokens": 2}
        return httpx.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=60)

    def at(data: bytes, kind: str) -> dict[str, Any]:
        url = f"data:audio/{kind};base64,{base64.b64encode(data).decode()}"
        return {"type": "audio_url", "audio_url": {"url": url}}

    samples = sound(1.0, 5)
    plain = ask(at(wav(samples), "wav"))
    assert plain.status_code == 200, plain.text
    flac = ask(at(encoded(samples, "flac", "flac"), "flac"))
    assert flac.json()["usage"]["prompt_tokens"] == plain.json()["usage"]["prompt_tokens"]
    for wrong, said in (
        ([at(wav(sound(2.5)), "wav")], "longer than 2 seconds"),
        ([at(b"nothing", "wav")], "no sound in a form that is read"),
        ([at(wav(samples), "wav")] * 3, "at most 2 are taken"),
        ([{"type": "image_url", "image_url": {"url": "https://example.com/x.png"}}], "takes text and audio only"),
        ([{"type": "input_audio"}], "input_audio is missing"),
    ):
        refused = ask(*wrong)
        assert refused.status_code == 400 and said in refused.json()["error"]["message"], refused.text
        assert refused.json()["error"]["param"].startswith("messages")


async def test_a_realtime_conversation_of_sounds(heard: Heard) -> None:
    """Committed by the client, then found by the server: answered as the chat is that has the same sounds."""
    server, _, name = heard
    first, quiet = sound(0.9, 6), np.zeros(RATE, np.int16)
    samples = np.concatenate([quiet, sound(0.8, 7), quiet])
    own: dict[str, Any] = {"format": {"type": "audio/pcm", "rate": RATE}, "turn_detection": None}
    limits = {"temperature": 0, "max_output_tokens": ANSWER}
    texts: list[str] = []
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{server.base_url}/v1/realtime?model={name}") as socket:
            for turn, found in ((wav(first)[44:], None), (wav(samples)[44:], {"type": "server_vad"})):
                update = {**limits, "audio": {"input": own | {"turn_detection": found}}}
                await socket.send_json({"type": "session.update", "session": update})
                audio = base64.b64encode(turn).decode()
                await socket.send_json({"type": "input_audio_buffer.append", "audio": audio})
                if found is None:
                    await socket.send_json({"type": "input_audio_buffer.commit"})
                    await socket.send_json({"type": "response.create"})
                event: dict[str, Any] = {"type": ""}
                while event["type"] != "response.done":
                    event = await socket.receive_json(timeout=WAIT_S)
                    assert event["type"] != "error", event
                texts.append(event["response"]["output"][0]["content"][0]["text"])
    second = samples[int(0.7 * RATE) : int(2.3 * RATE)]
    told: list[Any] = []
    client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", timeout=120)
    for said_first, text in zip((first, second), texts, strict=True):
        data = {"data": base64.b64encode(wav(said_first)).decode(), "format": "wav"}
        told.append({"role": "user", "content": [{"type": "input_audio", "input_audio": data}]})
        given: dict[str, Any] = {"model": name, "messages": told, "max_tokens": ANSWER, "temperature": 0}
        said = client.chat.completions.create(**given).choices[0].message.content
        assert said == text
        told.append({"role": "assistant", "content": text})


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind != "qwen2_audio"])
def test_texts_of_each_kind(kind: str, tmp_path: Path) -> None:
    for heard in serve(kind, tmp_path):
        check(heard)
        check(heard, sound(1.5, 1))
        check(heard, sound(5.0, 1), sound(0.3, 2))
        if kind in ADAPTED:
            assert check(heard, sound(1.5, 3)) == 0 and check(heard, sound(1.5, 3)) >= 32


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADAPTED)
def test_two_workers_each_hear_all(kind: str, tmp_path: Path) -> None:
    for heard in serve(kind, tmp_path, "--tensor-parallel-size", "2"):
        check(heard)
        assert check(heard, sound(1.5, 1)) == 0 and check(heard, sound(1.5, 1)) >= 32
        check(heard, sound(5.0, 1), sound(0.3, 2))
