"""Tokenising by pieces gives the ids of the whole text, or is not done."""

from __future__ import annotations

import random

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from actorserve.actors.renderer import segments
from actorserve.actors.renderer.segments import SegmentCache
from tests.tokenizers_made import CORPUS, KINDS, SPECIAL, byte_level


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SHORTEST", 0)


def chat(rng: random.Random) -> str:
    """Turns between special tokens, with all that may stand beside them."""
    pieces = []
    for _ in range(rng.randrange(1, 8)):
        pieces += [
            rng.choice(SPECIAL),
            rng.choice(["", "\n", " ", "user\n"]),
            rng.choice(CORPUS),
            rng.choice(["", " ", "\n\n"]),
        ]
    return "".join(pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_whole_text(kind: str) -> None:
    tokenizer, rng = KINDS[kind](), random.Random(kind)
    cache = SegmentCache(tokenizer)
    for _ in range(200):
        text = chat(rng)
        assert cache.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_the_usual_tokenizer_is_cut_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SegmentCache(byte_level())
    assert cache.exact
    text = chat(random.Random(3)) * 3
    first = cache.encode(text)
    monkeypatch.setattr(cache, "_whole", lambda text: pytest.fail("tokenised again"))
    assert cache.encode(text) == first


@pytest.mark.parametrize("side", ["lstrip", "rstrip"])
def test_special_tokens_that_swallow_their_neighbours_forbid_it(side: str) -> None:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_special_tokens([AddedToken("<mask>", special=True, **{side: True})])
    cache = SegmentCache(tokenizer)
    assert not cache.exact
    text = "a <mask> b"
    assert cache.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_without_special_tokens_nothing_is_cut() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    cache = SegmentCache(tokenizer)
    assert not cache.exact and cache.encode("a b") == [0, 1]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_IDS", 50)
    cache, rng = SegmentCache(byte_level()), random.Random(0)
    for _ in range(50):
        cache.encode(chat(rng))
        assert sum(len(ids) for ids in cache._kept.values()) == cache._size <= 50
