"""Forms with sounds: what of them is kept, and how they name a language."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from actorserve.actors.model.encoder_decoder.spec import SpeechSpec
from actorserve.http.errors import ApiError
from actorserve.http.speech.prepare import LEAST_HELD, LISTS, MOST_HELD, TRANSCRIBE, HeldSounds, check, read_form


def test_sounds_are_held_up_to_a_bound_and_let_go_of() -> None:
    held = HeldSounds(1 << 20)
    for _ in range(2):
        with ExitStack() as all_of_them:
            for _ in range(MOST_HELD >> 20):
                all_of_them.enter_context(held.hold(1 << 20))
            with pytest.raises(ApiError) as refused, held.hold(1):
                pass
            assert refused.value.status == 503 and refused.value.retry_after
        assert held.held == 0
    with HeldSounds(MOST_HELD).hold(LEAST_HELD * MOST_HELD):
        pass


@pytest.mark.parametrize("language", ["en", "EN", "en-US", "en_us", " en "])
def test_a_language_is_its_code(language: str) -> None:
    assert read_form({"file": [b"a"], "language": [language.encode()]}).language == "en"
    assert read_form({"file": [b"a"], "language": [b""]}).language is None


def test_one_of_several_languages_is_the_language() -> None:
    assert read_form({"file": [b"a"], "languages[]": [b"DE"]}).language == "de"
    assert read_form({"file": [b"a"], "languages[]": [b"de"], "language": [b"en"]}).language == "en"
    assert read_form({"file": [b"a"], "languages[]": [b"de", b"en"]}).languages == ["de", "en"]


@pytest.mark.parametrize("name", LISTS)
def test_an_empty_field_of_a_list_says_nothing(name: str) -> None:
    read = read_form({"file": [b"a"], name: [b""]})
    assert getattr(read, name) == [] and read.language is None


@pytest.mark.parametrize(
    ("name", "asks", "nothing"),
    [
        ("use_beam_search", b"true", b"false"),
        ("n", b"2", b"1"),
        ("watermarking", b"true", b"False"),
        ("vllm_xargs", b'{"a": 1}', b"{}"),
        ("hotwords", b"Ada", b""),
    ],
)
def test_what_is_not_built_is_refused_by_its_name(name: str, asks: bytes, nothing: bytes) -> None:
    spec = SpeechSpec(languages={}, tasks={}, end=1, no_timestamps=2, mels=80, frames=3000)
    check(read_form({"file": [b"a"], name: [nothing]}), spec, TRANSCRIBE)
    with pytest.raises(ApiError, match=f"{name} is not supported") as refused:
        check(read_form({"file": [b"a"], name: [asks]}), spec, TRANSCRIBE)
    assert (refused.value.status, refused.value.param) == (400, name)
