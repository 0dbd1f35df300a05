"""Byte fallback: exactly where the pieces are decode()'s text, and what is promised where they are not."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import pytest
from tokenizers import Regex, Tokenizer, decoders, models

from actorserve.actors.detokenizer.decoder import BROKEN, MOST_HELD, FallbackDecoder, WindowDecoder, decoder_factory
from tests.support.models.tokenizers_made import byte_fallback, byte_level, metaspace, word_piece

REPLACE = decoders.Replace("▁", " ")
CHAIN = [REPLACE, decoders.ByteFallback(), decoders.Fuse()]
DECODERS = {
    "llama 2": [*CHAIN, decoders.Strip(" ", 1, 0)],
    "gemma": CHAIN,
    "two spaces stripped": [*CHAIN, decoders.Strip(" ", 2, 0)],
    "two replaced": [decoders.Replace("the", "THE"), *CHAIN],
    "none replaced": CHAIN[1:],
}
CHARACTERS = "aß你🙂\u200d👧é "


def tokenizer_with(name: str) -> Tokenizer:
    made = Tokenizer.from_str(byte_fallback().to_str())
    made.decoder = decoders.Sequence(DECODERS[name])
    return made


def in_pieces(tokenizer: Tokenizer, ids: list[int], skip: bool, rng: random.Random) -> str:
    decoder = decoder_factory(tokenizer)(skip)
    assert isinstance(decoder, FallbackDecoder)
    out, at = "", 0
    while at < len(ids):
        size = rng.randrange(1, 6)
        out += decoder.push(ids[at : at + size])
        at += size
    return out + decoder.flush()


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    return [number(tokenizer, f"<0x{byte:02X}>") for byte in data]


def number(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


def word_ids(tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    """A run of words, special and added tokens and ids beyond the vocabulary."""
    size = tokenizer.get_vocab_size()
    runs = [rng.randrange(size + 9) for _ in range(rng.randrange(1, 6))]
    return [token for token in runs if not re.fullmatch("<0x..>", tokenizer.id_to_token(token) or "")]


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("skip", [True, False])
def test_runs_of_whole_characters_are_as_decode_gives_them(name: str, skip: bool) -> None:
    tokenizer, rng = tokenizer_with(name), random.Random(name)
    for _ in range(300):
        ids: list[int] = []
        for _ in range(rng.randrange(6)):
            ids += (
                word_ids(tokenizer, rng) if rng.random() < 0.5 else byte_ids(tokenizer, rng.choice(CHARACTERS).encode())
            )
        assert in_pieces(tokenizer, ids, skip, rng) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_a_run_that_is_broken_from_its_beginning_is_as_decode_gives_it() -> None:
    tokenizer, rng = tokenizer_with("gemma"), random.Random(2)
    for _ in range(100):
        ids = word_ids(tokenizer, rng) + byte_ids(tokenizer, bytes(rng.randrange(128, 192) for _ in range(5)))
        assert in_pieces(tokenizer, ids, True, rng) == tokenizer.decode(ids)


def test_any_bytes_give_their_characters_and_one_sign_for_each_other_byte() -> None:
    tokenizer, rng = tokenizer_with("gemma"), random.Random(3)
    for _ in range(300):
        data = b"".join(
            rng.choice([rng.randbytes(2), rng.choice(CHARACTERS).encode()]) for _ in range(rng.randrange(8))
        )
        escaped = data.decode(errors="surrogateescape")
        expected = "".join(BROKEN if "\udc80" <= character <= "\udcff" else character for character in escaped)
        assert in_pieces(tokenizer, byte_ids(tokenizer, data), True, rng) == expected


def test_a_character_may_be_split_by_what_has_no_text() -> None:
    """decode() leaves special tokens out before it joins bytes."""
    tokenizer = tokenizer_with("gemma")
    first, *rest = byte_ids(tokenizer, "🙂".encode())
    ids = [first, number(tokenizer, "<s>"), tokenizer.get_vocab_size() + 3, *rest]
    decoder = decoder_factory(tokenizer)(True)
    assert [decoder.push([token]) for token in ids] == ["", "", "", "", "", "🙂"]
    assert tokenizer.decode(ids) == "🙂"
    ends = decoder_factory(tokenizer)(False)
    assert [ends.push([token]) for token in ids[:2]] == ["", f"{BROKEN}<s>"]


def test_which_way_a_tokenizer_goes() -> None:
    assert type(decoder_factory(byte_level())(True)).__name__ == "ByteDecoder"
    for made in (metaspace(), word_piece(), Tokenizer.from_str(json.dumps(_without_decoder()))):
        assert isinstance(decoder_factory(made)(True), WindowDecoder)
    other = Tokenizer.from_str(byte_fallback().to_str())
    by_pattern = [decoders.Replace(Regex("▁"), " "), *CHAIN[1:]]
    for members in ([*CHAIN, decoders.Strip(" ", 1, 1)], [*CHAIN, decoders.ByteLevel()], CHAIN[:2], by_pattern):
        other.decoder = decoders.Sequence(members)
        assert isinstance(decoder_factory(other)(True), WindowDecoder)


def _with_ends() -> Tokenizer:
    """As GPT-1: </w> is a space, but not at the end of the text."""
    names = ["<s>", "<pad>", "a</w>", "b", "c</w>", "</w>", "d"]
    made = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, "<s>"))
    made.decoder = decoders.BPEDecoder("</w>")
    made.add_special_tokens(names[:2])
    return made


def _without_decoder() -> dict[str, object]:
    return {**json.loads(word_piece().to_str()), "decoder": None}


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", ["metaspace", "word piece", "none", "ends of words"])
def test_a_window_gives_any_ids_as_decode_does(kind: str, skip: bool) -> None:
    makers: dict[str, Callable[[], Tokenizer]] = {
        "metaspace": metaspace,
        "word piece": word_piece,
        "ends of words": _with_ends,
    }
    tokenizer = makers[kind]() if kind in makers else Tokenizer.from_str(json.dumps(_without_decoder()))
    rng = random.Random(kind)
    special = [number(tokenizer, name) for name in ("<s>", "<pad>")]
    for _ in range(300):
        size = tokenizer.get_vocab_size() + 9
        ids = [rng.choice([rng.randrange(size), rng.choice(special)]) for _ in range(rng.randrange(40))]
        decoder = decoder_factory(tokenizer)(skip)
        out, at = "", 0
        while at < len(ids):
            step = rng.randrange(1, 5)
            out += decoder.push(ids[at : at + step])
            at += step
        assert out + decoder.flush() == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("members", [CHAIN, CHAIN[:2]])
def test_endless_broken_bytes_are_given_out_and_forgotten(members: list[decoders.Decoder]) -> None:
    tokenizer = Tokenizer.from_str(byte_fallback().to_str())
    tokenizer.decoder = decoders.Sequence(members)
    decoder = decoder_factory(tokenizer)(True)
    (first,) = byte_ids(tokenizer, b"\xf0")
    given = 0
    for count in range(1, 200):
        given += len(decoder.push([first]))
        assert given >= count - MOST_HELD
        if isinstance(decoder, WindowDecoder):
            assert len(decoder._ids) <= 2 * MOST_HELD
    assert given + len(decoder.flush()) == 199
