"""When a text is written anew at a higher temperature, and when it is none: by the figures of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from actorserve.http.speech.fallback import compression_ratio, temperatures
from actorserve.http.speech.schemas import SpeechRequest
from tests.support.models.sounds.whispers import Reference, sound, wav

BEGUN = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>"]
SAMPLES = sound(1.7)


def ask(client: OpenAI, samples: np.ndarray = SAMPLES, **fields: Any) -> Any:
    return client.audio.transcriptions.create(
        model="ears",
        file=("a.wav", wav(samples)),
        language="en",
        response_format="verbose_json",
        extra_body={"temperature_inc": 1.0, "seed": 5, **fields},
    )


def test_a_text_is_as_likely_as_transformers_says(client: OpenAI, reference: Reference) -> None:
    drawn = reference.window(SAMPLES, BEGUN, True)
    likely, silent = reference.figures(SAMPLES, BEGUN, drawn)
    text = reference.text(drawn).strip()
    sure = ask(client, logprob_threshold=likely - 0.005)
    assert sure.text == text and {segment.temperature for segment in sure.segments} == {0.0}
    assert sure.segments[0].no_speech_prob == pytest.approx(silent, abs=1e-5)
    doubted = ask(client, logprob_threshold=likely + 0.005)
    assert doubted.text != text and {segment.temperature for segment in doubted.segments} == {1.0}
    assert ask(client, logprob_threshold=likely + 0.005).text == doubted.text  # by its seed
    quiet: dict[str, Any] = {"no_speech_threshold": silent * 0.99}
    assert ask(client, logprob_threshold=likely + 0.005, **quiet).text == ""
    assert ask(client, logprob_threshold=likely - 0.005, **quiet).text == text
    assert ask(client, **quiet).text == ""
    assert ask(client, no_speech_threshold=silent * 1.01).text == text


def test_a_text_that_repeats_itself(client: OpenAI, reference: Reference) -> None:
    text = reference.text(reference.window(SAMPLES, BEGUN, True)).strip()
    ratio = compression_ratio(text)
    assert ask(client, compression_ratio_threshold=ratio + 0.01).text == text
    assert ask(client, compression_ratio_threshold=ratio - 0.01).text != text
    assert ask(client, compression_ratio_threshold=ratio - 0.01, temperature_inc=0).text == text


def test_words_of_a_text_that_was_written_anew(client: OpenAI) -> None:
    """Their slots are there until the answer is."""
    answer = ask(client, logprob_threshold=0, timestamp_granularities=["word"])
    assert answer.words and answer.segments[0].temperature == 1.0
    assert "".join("".join(word.word for word in answer.words).split()) == "".join(answer.text.split())


def test_the_temperatures_in_their_order() -> None:
    assert temperatures(SpeechRequest(file=b"")) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert temperatures(SpeechRequest(file=b"", temperature=0.5, temperature_inc=0.25)) == [0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprob_threshold": 1}, "logprob_threshold"),
        ({"temperature_inc": 0.01}, "temperature_inc"),
        ({"logprob_threshold": -1, "stream": True, "response_format": "json"}, "stream"),
    ],
)
def test_what_cannot_be_is_refused(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        ask(client, **fields)
    assert refused.value.param == param
