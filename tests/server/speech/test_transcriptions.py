"""The openai client's audio calls: texts, segments and subtitles are those of transformers' Whisper, whoever dies."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import signal
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest
from openai import APIStatusError, BadRequestError, OpenAI

from actorserve.actors.cli import main
from actorserve.actors.route.trails.transcript import Transcript
from actorserve.actors.sound.windows import cut as windows
from tests.support.client import http_client, metrics_at_rest
from tests.support.models.sounds.whispers import RATE, SECONDS, STEP, TIMES, Reference, encoded, sound, wav
from tests.support.server import Server

SHORT, LONG = sound(1.7), sound(7.0, seed=1)
SLOW = pytest.mark.slow
COUNTED = ("stream_include_usage", "stream_continuous_usage_stats")
BEGUN = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>"]


def ask(client: OpenAI, samples: np.ndarray = SHORT, **fields: Any) -> Any:
    return client.audio.transcriptions.create(model="ears", file=("a.wav", wav(samples)), **fields)


@functools.cache
def long_text(reference: Reference, timestamps: bool = False) -> str:
    """Of all windows of LONG."""
    marks = [] if timestamps else ["<|notimestamps|>"]
    parts = [LONG[slice(*place)] for place in windows(LONG / np.float32(32768), RATE, SECONDS)]
    texts = [reference.text(reference.window(part, [*BEGUN, *marks], timestamps)) for part in parts]
    return "".join(texts).strip()


def test_a_text_is_that_of_transformers(client: OpenAI, reference: Reference) -> None:
    wanted = reference.text(reference.tokens(SHORT, language="en", task="transcribe"))
    answer = ask(client, language="en")
    assert answer.text == wanted.strip() and answer.usage.seconds == 2
    assert ask(client, language="en", response_format="text").strip() == wanted.strip()


def test_the_language_is_heard(client: OpenAI, reference: Reference) -> None:
    wanted = reference.text(reference.tokens(SHORT, task="transcribe"))
    assert ask(client).text == wanted.strip()


def test_a_translation_is_another_task(client: OpenAI, reference: Reference) -> None:
    wanted = reference.text(reference.tokens(SHORT, language="de", task="translate"))
    file = ("a.wav", wav(SHORT))
    answer = client.audio.translations.create(model="ears", file=file, extra_body={"language": "de"})
    assert answer.text == wanted.strip()


def test_what_was_said_before_is_heeded(client: OpenAI, reference: Reference) -> None:
    before = reference.tokenizer.encode(" the quick brown fox", add_special_tokens=False).tokens
    marks = ["<|startofprev|>", *before, *BEGUN, "<|notimestamps|>"]
    wanted = reference.text(reference.window(SHORT, marks, False))
    assert ask(client, language="en", prompt="the quick brown fox").text == wanted.strip()


def test_segments_lie_between_the_timestamps_of_transformers(client: OpenAI, reference: Reference) -> None:
    drawn = reference.window(SHORT, BEGUN, True)
    first = reference.tokenizer.token_to_id(TIMES[0]) or 0
    times = {round((token - first) * STEP, 2) for token in drawn if token >= first} | {len(SHORT) / RATE}
    answer = ask(client, language="en", response_format="verbose_json")
    assert answer.language == "en" and answer.duration == pytest.approx(1.7)
    assert answer.text == reference.text(drawn).strip()
    assert answer.segments and [one.id for one in answer.segments] == list(range(len(answer.segments)))
    assert {one.start for one in answer.segments} <= times and {one.end for one in answer.segments} <= times
    assert all(one.start <= one.end for one in answer.segments)
    end = reference.tokenizer.token_to_id("<|endoftext|>") or 0
    words = [token for token in drawn if token < end]
    assert [token for one in answer.segments for token in one.tokens] == words
    assert all(one.avg_logprob < 0 for one in answer.segments)


@pytest.mark.parametrize(
    ("form", "head", "block"),
    [
        ("srt", "", r"(\d+)\n(\d\d:\d\d:\d\d,\d{3}) --> (\d\d:\d\d:\d\d,\d{3})\n(.+)"),
        ("vtt", "WEBVTT\n\n", r"()(\d\d:\d\d:\d\d\.\d{3}) --> (\d\d:\d\d:\d\d\.\d{3})\n(.+)"),
    ],
)
def test_subtitles_can_be_read(client: OpenAI, reference: Reference, form: str, head: str, block: str) -> None:
    text = ask(client, LONG, language="en", response_format=form)
    assert text.startswith(head)
    blocks = [re.fullmatch(block, part) for part in text.removeprefix(head).strip("\n").split("\n\n")]
    found = [one for one in blocks if one is not None]
    assert len(found) == len(blocks) > 1
    if form == "srt":
        assert [int(one[1]) for one in found] == list(range(1, len(found) + 1))
    times = [time for one in found for time in (one[2], one[3])]
    assert all(one <= other for one, other in pairwise(times))
    said = "".join(one[4] for one in found)
    assert re.sub(r"\s", "", said) == re.sub(r"\s", "", long_text(reference, True))


def test_windows_are_told_in_their_order(client: OpenAI, reference: Reference) -> None:
    *parts, last = ask(client, LONG, language="en", stream=True)
    wanted = long_text(reference)
    assert {part.type for part in parts} == {"transcript.text.delta"} and last.type == "transcript.text.done"
    assert "".join(part.delta for part in parts).strip() == last.text == wanted
    assert ask(client, LONG, language="en").text == wanted


def test_all_windows_are_in_the_language_of_the_first(client: OpenAI) -> None:
    start, end = windows(LONG / np.float32(32768), RATE, SECONDS)[0]
    heard = ask(client, LONG[start:end], response_format="verbose_json").language
    answer = ask(client, LONG, response_format="verbose_json")
    assert answer.language == heard and ask(client, LONG).text == ask(client, LONG, language=heard).text


def test_a_stream_that_is_asked_for_again_has_the_same_text(speech_server: Server, reference: Reference) -> None:
    """Which a router counts on, whose replica is lost."""
    form = {"model": "ears", "language": "en", "stream": "true"}
    url = f"{speech_server.base_url}/v1/audio/transcriptions"
    first, again = (httpx.post(url, data=form, files={"file": wav(LONG)}).content for _ in range(2))
    events = first.split(b"\n\n")
    for cut in range(0, len(events) - 1, 2):
        transcript = Transcript()
        passed, _ = transcript.feed(b"".join(one + b"\n\n" for one in events[:cut] if one))
        transcript.drop_rest()
        passed += transcript.feed(again)[0]
        *parts, last = (json.loads(one[6:]) for one in passed.split(b"\n\n") if one)
        assert "".join(part["delta"] for part in parts).strip() == last["text"] == long_text(reference)
        assert transcript.closed


@pytest.mark.parametrize(
    "name",
    ["renderer-0", "scheduler", "frontend-0", *(pytest.param(one, marks=SLOW) for one in ("worker", "detokenizer-0"))],
)
def test_a_stream_goes_on_when_one_dies(client: OpenAI, speech_server: Server, reference: Reference, name: str) -> None:
    events: list[Any] = []
    for event in ask(client, LONG, language="en", stream=True):
        if len(events) == 2:
            os.kill(speech_server.pids()[name], signal.SIGKILL)
        events.append(event)
    wanted = long_text(reference)
    assert events[-1].text == wanted
    assert "".join(event.delta for event in events[:-1]).strip() == wanted


def test_so_it_does_in_the_language_that_was_heard(client: OpenAI, speech_server: Server) -> None:
    """Which a frontend's successor need not ask for: that would take its turn, and its slots are given up meanwhile."""

    def sequences() -> float:
        with http_client(speech_server) as asking:
            lines = metrics_at_rest(asking).splitlines()
        return sum(float(one.split()[1]) for one in lines if one.startswith("vllm:request_generation_tokens_count"))

    begun = sequences()
    wanted, events = ask(client, LONG).text, list[Any]()
    undisturbed = sequences() - begun
    for event in ask(client, LONG, stream=True):
        if len(events) == 2:
            os.kill(speech_server.pids()["frontend-0"], signal.SIGKILL)
        events.append(event)
    assert "".join(event.delta for event in events[:-1]).strip() == events[-1].text == wanted
    assert sequences() - begun == 2 * undisturbed == 2 * (len(windows(LONG / np.float32(32768), RATE, SECONDS)) + 1)


@pytest.mark.parametrize("dies", [False, True])
def test_vllms_benchmark_reads_chunks(speech_server: Server, reference: Reference, dies: bool) -> None:
    """Whose fields of the form ask for them; also where the frontend dies meanwhile."""
    form = {"model": "ears", "language": "en", "stream": "True", "max_completion_tokens": "200"}
    asked = {"data": form | dict.fromkeys(COUNTED, "True"), "files": {"file": wav(LONG)}, "timeout": 60}
    told: list[str] = []
    with httpx.stream("POST", f"{speech_server.base_url}/v1/audio/transcriptions", **asked) as answer:  # type: ignore[arg-type]
        for line in filter(None, answer.iter_lines()):
            if dies and len(told) == 2:
                os.kill(speech_server.pids()["frontend-0"], signal.SIGKILL)
            told.append(line.removeprefix("data: "))
    assert told.pop() == "[DONE]"
    *events, last = map(json.loads, told)
    assert {(one["id"], one["object"], one["model"]) for one in events} == {(last["id"], "transcription.chunk", "ears")}
    pieces = [event["choices"][0]["delta"]["content"] for event in events]
    assert "".join(pieces).strip() == long_text(reference) and pieces.count("") == 1
    assert events[-1]["choices"][0]["finish_reason"] == "length", "this model writes as long as it may"
    assert last["choices"] == [] and last["usage"] == events[-1]["usage"]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] >= len(pieces) - 1


def test_other_forms_of_files(client: OpenAI) -> None:
    whole = ask(client, language="en").text
    file = ("a.flac", encoded(SHORT, "flac", "flac"))
    assert client.audio.transcriptions.create(model="ears", file=file, language="en").text == whole
    file = ("a.mp3", encoded(SHORT, "mp3", "libmp3lame"))
    assert client.audio.transcriptions.create(model="ears", file=file, language="en").text


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"language": "xx"}, "language", "de, en, fr"),
        ({"temperature": 3}, "temperature", "between 0 and 1"),
        ({"response_format": "pdf"}, "response_format", "pdf"),
        ({"response_format": "srt", "timestamp_granularities": ["word"]}, "timestamp_granularities", "verbose_json"),
        ({"timestamp_granularities": ["segment"]}, "timestamp_granularities", "verbose_json"),
        ({"response_format": "srt", "stream": True}, "stream", "srt"),
        *(({"extra_body": {name: True}}, name, "stream: true") for name in COUNTED),
        ({"file": b"no sound"}, "file", "no sound in a form"),
        ({"file": b""}, "file", "empty"),
        ({"include": ["logprobs"]}, "include", "not supported"),
        ({"keywords": ["Oslo"]}, "keywords", "not supported"),
        ({"languages": ["de", "en"]}, "languages", "not supported"),
        ({"extra_body": {"seed": "many"}}, "seed", "int"),
    ],
)
def test_what_cannot_be_is_refused(client: OpenAI, fields: dict[str, Any], param: str, text: str) -> None:
    given = {"file": wav(SHORT), **fields}
    with pytest.raises(BadRequestError) as refused:
        client.audio.transcriptions.create(model="ears", **{**given, "file": ("a.wav", given["file"])})
    assert refused.value.param == param and text in str(refused.value), refused.value


def test_a_batch_names_sounds_by_their_addresses(client: OpenAI, speech_server: Server, tmp_path: Path) -> None:
    """As vLLM's run-batch: the JSON of a line is the fields of a form."""
    url = f"data:audio/wav;base64,{base64.b64encode(wav(SHORT)).decode()}"
    bodies: list[dict[str, Any]] = [{"file_url": url, "language": "en"}, {"file_url": "ftp://nowhere"}]
    lines = [{"custom_id": f"{n}", "url": "/v1/audio/transcriptions", "body": body} for n, body in enumerate(bodies)]
    (source := tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = tmp_path / "out"
    assert main(["run-batch", "-i", str(source), "-o", str(target), "--base-url", speech_server.base_url]) == 0
    told = {one["custom_id"]: one for one in map(json.loads, target.read_text().splitlines())}
    assert told["0"]["response"]["body"]["text"] == ask(client, language="en").text
    assert told["1"]["response"] is None and "https://" in told["1"]["error"]["message"]


def with_junk(file: bytes, size: int) -> bytes:
    """The same WAV with so many bytes more, which say nothing."""
    body = file[8:12] + b"JUNK" + struct.pack("<I", size) + bytes(size) + file[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_a_sound_may_be_longer_than_other_bodies(client: OpenAI) -> None:
    whole = ask(client, language="en").text
    file = ("a.wav", with_junk(wav(SHORT), 900_000))
    answer = client.audio.transcriptions.create(model="ears", file=file, language="en-US")
    assert answer.text == whole == ask(client, language="EN").text


@pytest.mark.parametrize("size", [1_040_000, 2_000_000], ids=["the sound", "the form"])
def test_a_file_that_is_too_long(client: OpenAI, size: int) -> None:
    with pytest.raises(APIStatusError) as refused:
        client.audio.transcriptions.create(model="ears", file=("a.wav", with_junk(wav(SHORT), size)))
    assert refused.value.status_code == 413 and refused.value.param == "file"
    assert "--max-audio-bytes" in str(refused.value)


def test_other_endpoints_say_which_is_right(speech_server: Server, demo_server: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    answer = httpx.post(f"{speech_server.base_url}/v1/chat/completions", json=chat)
    assert answer.status_code == 400 and "/v1/audio/transcriptions" in answer.json()["error"]["message"]
    files = {"file": ("a.wav", wav(SHORT))}
    answer = httpx.post(f"{demo_server.base_url}/v1/audio/transcriptions", files=files)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "model"
    answer = httpx.post(f"{speech_server.base_url}/v1/audio/transcriptions", json={})
    assert answer.status_code == 415
    document = httpx.get(f"{speech_server.base_url}/openapi.json").json()
    assert "multipart/form-data" in document["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]
    assert "/v1/completions" not in document["paths"]
