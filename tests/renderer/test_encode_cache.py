"""Tokenising by pieces gives the ids of the whole text, or is not done."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from actorserve.actors.renderer import encode_cache as segments
from actorserve.actors.renderer.encode_cache import SegmentCache
from tests.support.models.tokenizers_made import CORPUS, KINDS, SPECIAL, byte_level, metaspace


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
    monkeypatch.setattr(segments, "MAX_BYTES", 5000)
    cache, rng = SegmentCache(byte_level()), random.Random(0)
    for _ in range(50):
        text = chat(rng)
        assert cache.encode(text) == byte_level().encode(text, add_special_tokens=False).ids
        kept = sum(len(ids) for ids in cache._kept.values()) + sum(map(len, cache._kept))
        assert 0 < kept * 4 + 300 * len(cache._kept) == cache._size <= 5000


def test_what_is_used_is_kept_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SegmentCache(byte_level())
    for piece in ("one", "two", "one", "three"):
        cache.encode(f"<s>{piece}")
    assert list(cache._kept) == ["two", "one", "three"]


def test_pieces_without_ids_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_BYTES", 5000)
    tokenizer = changed({"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}})
    cache = SegmentCache(tokenizer)
    assert cache.exact
    for count in range(1, 200):
        assert cache.encode(f"<s>{' ' * count}<s>") == [0, 0]
    assert len(cache._kept) < 5000 / 300


# --- which tokenizers it is not done for -----------------------------------------------------------------------------

TRICKY = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<m>",
    "<mm>",
    "ab",
    "a",
    "b",
    " ",
    "  ",
    "\n",
    "é",
    "e\u0301",
    "\u0301",
    "A",
    "x1",
]


def changed(parts: dict[str, Any], *added: AddedToken) -> Tokenizer:
    """The byte-level tokenizer with other parts and more added tokens."""
    made = Tokenizer.from_str(json.dumps({**json.loads(byte_level().to_str()), **parts}))
    for token in added:
        (made.add_special_tokens if token.special else made.add_tokens)([token])
    return made


def raw(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, **{"normalized": False, "special": True, **flags})


def with_space(scheme: str) -> Tokenizer:
    splitter = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    return Tokenizer.from_str(json.dumps({**json.loads(metaspace().to_str()), "pre_tokenizer": splitter}))


NFC = {"normalizer": {"type": "NFC"}}
PREPEND = {"normalizer": {"type": "Prepend", "prepend": "▁"}}
LOWER = {"normalizer": {"type": "Lowercase"}}
MANY = [raw(f"<reserved_{number}>") for number in range(40)]
VARIANTS: dict[str, tuple[Tokenizer, bool]] = {
    "as it is": (changed({}), True),
    "NFC": (changed(NFC), True),
    "a prefix for each piece": (changed(PREPEND), True),
    "lower case": (changed(LOWER), True),
    "a space before each piece": (with_space("always"), True),
    "a space before the first piece": (with_space("first"), False),
    "a special token is another's beginning": (changed({}, raw("<m>"), raw("<m>ab")), True),
    "a plain token holds a special one": (changed({}, raw("a<s>b", special=False)), True),
    "a plain token overlaps a special one": (changed({}, raw("ab<", special=False), raw("<m>")), True),
    "a plain token, sought in the normalized text": (changed(LOWER, AddedToken("ab", special=False)), True),
    "a special token, sought in the normalized text": (changed(LOWER, raw("<M>", normalized=True)), False),
    "nothing is normalized": (changed({}, raw("<m>", normalized=True)), True),
    "a plain token swallows": (changed({}, raw("ab", special=False, lstrip=True)), False),
    "the last of many swallows": (changed({}, *MANY, raw("<m>", rstrip=True)), False),
    "no space before any piece": (with_space("never"), True),
    "one of many swallows": (changed({}, *MANY[:20], raw("<m>", lstrip=True), *MANY[20:]), False),
    "a word by itself": (changed({}, raw("<m>", single_word=True)), False),
    "one of many is a word by itself": (changed({}, *MANY[:20], raw("m", single_word=True), *MANY[20:]), False),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_ids_are_the_same_whatever_the_tokenizer_is_like(name: str) -> None:
    tokenizer, exact = VARIANTS[name]
    cache, rng = SegmentCache(tokenizer), random.Random(name)
    assert cache.exact == exact
    for _ in range(500):
        text = "".join(rng.choice(TRICKY) for _ in range(rng.randrange(1, 12)))
        assert cache.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids, repr(text)
