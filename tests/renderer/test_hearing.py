"""The tokens with which a decoder begins that writes down what it hears: what a client says was said before is text."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from actorserve.actors.model.encoder_decoder.spec import EncoderSpec, SpeechSpec
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.request import Rendition
from actorserve.actors.protocol.topics.prompts import SoundPrompt
from actorserve.actors.renderer import hearing as module
from actorserve.actors.renderer.hearing import Hearer
from tests.support.models.sounds.whispers import SPECIAL, TIMES, write_whisper


class Bench:
    """A hearer of a tiny Whisper."""

    def __init__(self, folder: Path) -> None:
        write_whisper(folder)
        encoder = resolve_model(Config(model=str(folder))).encoder
        assert encoder is not None and encoder.speech is not None
        self.encoder: EncoderSpec = encoder
        self.spec: SpeechSpec = encoder.speech
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.hearer = Hearer(self.tokenizer, self.encoder, self.spec, 8)

    def begun(self, before: str) -> tuple[list[int], list[int]]:
        """(what was said before, what follows that)."""
        log = self.hearer.log(SoundPrompt(b"", "transcribe", "en", before)).tokens
        start = log.index(self.encoder.start[0], self.encoder.longest)
        assert self.spec.previous is not None
        return log[log.index(self.spec.previous) + 1 : start], log[start:]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("whisper"))


@pytest.mark.parametrize("word", [*SPECIAL, TIMES[3], "<|<|fr|>", "<|fr|><|fr|>", "<|fr", ""])
def test_control_tokens_in_it_are_text(bench: Bench, word: str) -> None:
    text = f"the {word} fox"
    said, begun = bench.begun(text)
    assert bench.tokenizer.decode(said, skip_special_tokens=False) == f" {text}"
    assert max(said) < bench.spec.end
    spec = bench.spec
    assert begun == [bench.encoder.start[0], spec.languages["en"], spec.tasks["transcribe"], spec.no_timestamps]


@pytest.mark.parametrize("language", ["", "fr"])
def test_whoever_goes_on_can_read_which_language_was_asked_for(bench: Bench, language: str) -> None:
    packed = bench.hearer.log(SoundPrompt(b"", "transcribe", language)).rendition
    hearing = msgspec.msgpack.decode(packed, type=Rendition).hearing
    assert hearing is not None and hearing.language == language and hearing.detects == (not language)


def test_other_text_has_the_tokens_that_it_always_has(bench: Bench) -> None:
    text = "the quick brown fox"
    assert bench.begun(text)[0] == bench.tokenizer.encode(f" {text}", add_special_tokens=False).ids


def test_who_asks_again_about_a_sound_waits_for_no_decoding(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a frontend's successor does, when others were heard meanwhile; of old ones nothing is known any more."""
    decoded: list[bytes] = []

    def decode(data: bytes, rate: int, beat: object) -> np.ndarray:
        decoded.append(data)
        return np.zeros(rate * int(data), np.float32)

    monkeypatch.setattr(module, "decode", decode)
    monkeypatch.setattr(module, "MOST_MEASURED", 2)
    hearer = Hearer(bench.tokenizer, bench.encoder, bench.spec, 8)
    first = hearer.measure(b"3")
    assert first[0] == 3 and hearer.measure(b"5")[0] == 5
    assert hearer.measure(b"3") == first and decoded == [b"3", b"5"]
    assert len(hearer.features(b"3", [0])) == 1 and decoded == [b"3", b"5", b"3"]
    hearer.measure(b"7")
    hearer.measure(b"5")
    assert decoded[3:] == [b"7", b"5"]
