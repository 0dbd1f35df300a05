"""Sounds in a conversation: features, tokens and masks are those of transformers' extractor; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorserve.actors.media.processors import Processed, make_processors
from actorserve.actors.media.refused import MediaRefused
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.media import MediaSource
from tests.support.models.sounds.listeners import EVERY, KINDS, Listening, listener
from tests.support.models.sounds.whispers import encoded, sound, wav


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("listeners")


def processed(kind: str, root: Path, data: bytes) -> Processed:
    folder = listener(kind, root)
    made = make_processors(Config(model=str(folder)), resolve_model(Config(model=str(folder), worker="scripted")))
    steps: Any = made["audio"].process(data, MediaSource("audio", ""))
    whole: Processed = next(one for one in steps if one is not None)
    return whole


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("seconds", [0.05, 0.731, 2.0, 5.3])
def test_features_and_tokens_are_those_of_transformers(kind: str, seconds: float, root: Path) -> None:
    samples = sound(seconds, 3)
    if kind == "qwen2_audio" and seconds > 2:
        with pytest.raises(MediaRefused, match="longer than 2 seconds"):
            processed(kind, root, wav(samples))
        return
    found = processed(kind, root, wav(samples))
    theirs = Listening(kind, listener(kind, root))
    inputs = theirs.inputs(samples)
    assert set(found.arrays) == set(inputs)
    assert np.abs(found.arrays["input_features"] - inputs["input_features"].numpy()).max() < 1e-4
    for name in set(inputs) - {"input_features"}:
        assert np.array_equal(found.arrays[name], inputs[name].numpy())
    assert found.count == theirs.count(inputs) and found.token == theirs.token
    if kind == "gemma4":
        assert found.text == "<|audio>" + "<|audio|>" * found.count + "<audio|>"
    else:
        assert found.text == KINDS[kind]["token"] * found.count


def test_other_forms_and_what_is_no_sound(root: Path) -> None:
    samples = sound(1.0, 1)
    plain = processed("voxtral", root, wav(samples))
    flac = processed("voxtral", root, encoded(samples, "flac", "flac"))
    assert np.abs(plain.arrays["input_features"] - flac.arrays["input_features"]).max() < 1e-3
    with pytest.raises(MediaRefused, match="no sound in a form that is read"):
        processed("voxtral", root, b"nothing of the kind" * 50)
    with pytest.raises(MediaRefused, match="longer than"):
        processed("voxtral", root, wav(np.zeros(16_000 * 400, np.int16)))


def test_sounds_as_long_as_gemma_hears(root: Path) -> None:
    with pytest.raises(MediaRefused, match="160 samples long; 161 are needed"):
        processed("gemma4", root, wav(np.zeros(160, np.int16)))
    assert processed("gemma4", root, wav(np.zeros(161, np.int16))).count == 1
    assert processed("gemma4", root, wav(np.zeros(480_000, np.int16))).count == 750
    with pytest.raises(MediaRefused, match="longer than 30 seconds"):
        processed("gemma4", root, wav(np.zeros(481_600, np.int16)))
