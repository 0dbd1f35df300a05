"""Forms with sounds: what of them is kept, and how they name a language."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from actorserve.http.errors import ApiError
from actorserve.http.speech.prepare import LEAST_HELD, LISTS, MOST_HELD, HeldSounds, read_form


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
