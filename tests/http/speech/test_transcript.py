"""What is read in the texts of windows."""

from __future__ import annotations

import pytest

from actorserve.actors.model.encoder_decoder.spec import SpeechSpec
from actorserve.http.speech.transcript import first_language

SPEC = SpeechSpec(
    languages={"en": 3, "fr": 4}, tasks={"transcribe": 5}, end=1, no_timestamps=6, mels=80, frames=100, alignment=[]
)


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["<|fr|><|transcribe|> oui", "<|en|> yes"], "fr"),
        (["", "<|fr|> oui"], "fr"),  # where nobody speaks
        (["<|xx|> a", "b"], None),
        ([], None),
    ],
)
def test_a_language_is_that_of_the_first_window_in_which_somebody_speaks(texts: list[str], language: str) -> None:
    assert first_language(texts, SPEC) == language
