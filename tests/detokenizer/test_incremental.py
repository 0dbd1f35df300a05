"""Ids to text in pieces: the pieces together are what decode() gives, however the ids are cut."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer

from actorserve.actors.detokenizer.decoder import BROKEN, MOST_HELD, decoder_factory
from tests.support.models.tokenizers_made import CORPUS, KINDS, byte_fallback, byte_level, token_id

ROUNDS = 60


def in_pieces(tokenizer: Tokenizer, ids: list[int], skip: bool, rng: random.Random) -> list[str]:
    """What comes out for random cuts; the last piece is what was held back."""
    decoder = decoder_factory(tokenizer)(skip)
    pieces, at = [], 0
    while at < len(ids):
        size = rng.choice([1, 1, 1, 2, 5])
        pieces.append(decoder.push(ids[at : at + size]))
        at += size
    return [*pieces, decoder.flush()]


def texts_and_ids(tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    """Ids as a model makes them: of texts, with special tokens between them."""
    ids: list[int] = []
    for _ in range(rng.randrange(1, 5)):
        ids += tokenizer.encode(rng.choice(CORPUS), add_special_tokens=False).ids
        if rng.random() < 0.5:
            ids.append(token_id(tokenizer, rng.choice(["<|im_end|>", "<s>"])))
    return ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
def test_pieces_of_texts_are_the_text(kind: str, skip: bool) -> None:
    tokenizer, rng = KINDS[kind](), random.Random(kind)
    for _ in range(ROUNDS):
        ids = texts_and_ids(tokenizer, rng)
        assert "".join(in_pieces(tokenizer, ids, skip, rng)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("skip", [True, False])
def test_pieces_of_anything_are_the_text_of_a_byte_level_tokenizer(skip: bool) -> None:
    tokenizer, rng = byte_level(), random.Random(1)
    for _ in range(ROUNDS):
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(60))]
        assert "".join(in_pieces(tokenizer, ids, skip, rng)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", KINDS)
def test_cuts_change_nothing(kind: str) -> None:
    """A successor replays the log in other pieces and must find the same text, even for ids that make no sense."""
    tokenizer, rng = KINDS[kind](), random.Random(kind)
    for _ in range(ROUNDS):
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(40))]
        once = "".join(in_pieces(tokenizer, ids, True, rng))
        assert once == "".join(in_pieces(tokenizer, ids, True, rng))


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_no_half_character_is_given_out(kind: str) -> None:
    tokenizer = KINDS[kind]()
    for text in ("🦊𓀀", "🦝 𓂀"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        pieces = in_pieces(tokenizer, ids, True, random.Random(0))
        assert not any(BROKEN in piece for piece in pieces) and "".join(pieces) == text
        assert len(ids) > len(text)


def test_text_comes_as_soon_as_it_is_whole() -> None:
    tokenizer = byte_level()
    decoder = decoder_factory(tokenizer)(True)
    for character in "a🦊b":
        ids = tokenizer.encode(character, add_special_tokens=False).ids
        assert [decoder.push([token]) for token in ids] == [""] * (len(ids) - 1) + [character]


def test_what_is_cut_off_is_shown_broken() -> None:
    for tokenizer in (byte_level(), byte_fallback()):
        decoder = decoder_factory(tokenizer)(True)
        ids = tokenizer.encode("🦊", add_special_tokens=False).ids[:-1]
        assert decoder.push(ids).strip() == ""
        assert BROKEN in decoder.flush()


def test_endless_broken_bytes_are_not_held_for_ever() -> None:
    tokenizer = byte_fallback()
    decoder = decoder_factory(tokenizer)(True)
    broken = token_id(tokenizer, "<0xFF>")
    given = [decoder.push([broken]) for _ in range(20 * MOST_HELD)]
    assert sum(map(len, given)) >= 20 * MOST_HELD - 2 * MOST_HELD


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    for kind in KINDS.values():
        tokenizer = kind()
        decoder = decoder_factory(tokenizer)(True)
        size = tokenizer.get_vocab_size()
        assert decoder.push([size + 5, size + 70]) + decoder.flush() == ""
