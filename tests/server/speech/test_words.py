"""Times of words are those that transformers reads from the same text's cross attention, whoever dies meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI

from actorserve.actors.sound.windows import cut
from tests.support.models.sounds.whispers import RATE, SECONDS, Reference, sound, wav
from tests.support.selection import slow
from tests.support.server import Server

BEGUN = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>"]


def ask(client: OpenAI, samples: np.ndarray, **fields: Any) -> list[tuple[str, float, float]]:
    answer = client.audio.transcriptions.create(
        model="ears",
        file=("a.wav", wav(samples)),
        response_format="verbose_json",
        timestamp_granularities=["word"],
        **fields,
    )
    assert answer.words is not None
    return [(word.word, word.start, word.end) for word in answer.words]


def theirs(reference: Reference, samples: np.ndarray, most: int) -> list[tuple[str, float, float]]:
    drawn = reference.window(samples, BEGUN, True)[:most]
    return reference.words(samples, [reference.tokenizer.token_to_id(word) or 0 for word in BEGUN], drawn)


@pytest.mark.parametrize("seed", [0, 1, *slow(2, 3)])
def test_words_are_those_of_transformers(client: OpenAI, reference: Reference, seed: int) -> None:
    samples = sound(1.9, seed)
    wanted = theirs(reference, samples, 9)
    assert any(end for *_, end in wanted)
    extra = {"max_completion_tokens": 9}
    assert ask(client, samples, language="en", extra_body=extra) == wanted
    heard = ask(client, samples, extra_body={"max_completion_tokens": 11})  # it says the language first
    assert heard == wanted


def test_windows_follow_each_other_when_a_worker_dies(
    client: OpenAI, reference: Reference, speech_server: Server
) -> None:
    samples = sound(5.0, 9)
    wanted = []
    for begin, end in cut(samples / np.float32(32768), RATE, SECONDS):
        words = theirs(reference, samples[begin:end], 9)
        wanted += [
            (word, *(pytest.approx(min(begin / RATE + time, end / RATE), abs=0.011) for time in times))
            for word, *times in words
        ]
    os.kill(speech_server.pids()["worker"], signal.SIGKILL)
    assert ask(client, samples, language="en", extra_body={"max_completion_tokens": 9}) == wanted


@pytest.mark.slow
def test_another_model_stands_before_it(whisper: Path) -> None:
    """The worker that is asked is the one that has the text, not the server's first."""
    with Server("--threads", "1", "--also", f"{whisper},served-model-name=ears") as server:
        client = OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0)
        assert len(ask(client, sound(1.9), language="en", extra_body={"max_completion_tokens": 9})) > 1
