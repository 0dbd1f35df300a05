"""Streamed transcripts, as OpenAI's and as Mistral's clients read them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.errors import bad_request
from actorserve.http.generation.job import Job
from actorserve.http.output.answer import Answer
from actorserve.http.speech.answers import as_mistrals, whole
from actorserve.http.speech.events import MistralTranscriptWriter, TranscriptWriter, VllmTranscriptWriter
from actorserve.http.speech.schemas import SpeechRequest
from tests.http.fakes import rendered, say

COUNTS = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0)


def job(finish: Finish = Finish.STOP) -> Job:
    made = Job([TextPrompt("a")], [b""])
    rendered(made)
    say(made, 0, " It is late.", 3, finish)
    return made


def events(written: bytes) -> list[tuple[str, Any]]:
    """(name, data) of each."""
    parts = [event.partition("data: ") for event in written.decode().split("\n\n") if event]
    return [(name.removeprefix("event: ").strip(), json.loads(data)) for name, _, data in parts]


async def test_openais() -> None:
    made = job()
    writer = TranscriptWriter(made, 1.5)
    (delta,) = events(writer.update(made.choices[0]))
    (done,) = events(writer.closing())
    assert delta == ("", {"type": "transcript.text.delta", "delta": "It is late."})
    assert done[1]["text"] == "It is late." and done[1]["usage"] == {"type": "duration", "seconds": 2}


async def test_mistrals() -> None:
    made = job()
    writer = MistralTranscriptWriter(made, 1.5, "ears", "en")
    ((name, delta),) = events(writer.update(made.choices[0]))
    assert name == delta["type"] == "transcription.text.delta" and delta["text"] == "It is late."
    ((name, done),) = events(writer.closing())
    assert name == done["type"] == "transcription.done"
    assert done == {"type": name, **as_mistrals(whole("It is late.", 1.5), "ears", "en")}


@pytest.mark.parametrize(("each", "finish"), [(False, Finish.STOP), (True, Finish.LENGTH)])
async def test_vllms(each: bool, finish: Finish) -> None:
    """Its benchmarks read them: chunks, the counts of tokens, and the end."""
    made, answer = job(finish), Answer("ears", False, 5, 7)
    asked = SpeechRequest(file=b"", stream=True, stream_include_usage=True, stream_continuous_usage_stats=each)
    writer = VllmTranscriptWriter(made, answer, asked, "transcription.chunk")
    written, done = writer.update(made.choices[0]) + writer.closing(), b"data: [DONE]\n\n"
    assert written.endswith(done)
    text, end, counts = [data for _, data in events(written.removesuffix(done))]
    head = {"id": answer.id, "object": "transcription.chunk", "created": 7, "model": "ears"}
    assert all(head.items() <= event.items() for event in (text, end, counts))
    assert text["choices"] == [{"index": 0, "delta": {"content": "It is late."}, "finish_reason": None}]
    assert end["choices"] == [{"index": 0, "delta": {"content": ""}, "finish_reason": finish.name.lower()}]
    assert counts["choices"] == [] and counts["usage"]["completion_tokens"] == 3
    assert (text.get("usage"), end.get("usage")) == ((counts["usage"],) * 2 if each else (None, None))
    assert writer.failed(bad_request("no", "file")).endswith(done)


def test_a_whole_one_of_mistrals() -> None:
    segment = {"text": "It", "start": 0.0, "end": 1.0, "id": 0, "tokens": [1]}
    told = as_mistrals(whole("It", 1.5) | {"segments": [segment]}, "ears", None)
    assert told == {
        "model": "ears",
        "text": "It",
        "language": None,
        "segments": [{"type": "transcription_segment", "text": "It", "start": 0.0, "end": 1.0}],
        "usage": {**COUNTS, "prompt_audio_seconds": 2},
    }
