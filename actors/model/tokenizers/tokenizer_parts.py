"""The parts of a tokenizer.json, for whoever makes one of what a vocabulary came in."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

SPACE = "▁"  # what SentencePiece writes for a space
LONGEST_PIECE = 256  # characters or bytes: all cuts of a piece are tried
SPACES_SHOWN = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
WITH_BYTES = {"fuse_unk": True, "byte_fallback": True}
Token = tuple[str, int]  # a text and its number
Text = TypeVar("Text", str, bytes)


def byte_pairs(vocabulary: Mapping[str, int], merges: list[list[str]]) -> dict[str, Any]:
    """A model that merges pairs in the order of `merges`."""
    return {
        **{"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None},
        **{"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False},
        "vocab": dict(vocabulary),
        "merges": merges,
    }


def byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes (GPT-2): printable Latin-1 for itself, the others from 256 up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


def byte_level() -> dict[str, Any]:
    """Each byte is a character of its own."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def split_by(pattern: str) -> dict[str, Any]:
    """Words by a regular expression."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def in_turn(kind: str, steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Several steps as one; none of none. `kind` is what the list is called."""
    return {"type": "Sequence", kind: steps} if steps else None


def added_token(token: int, text: str, special: bool) -> dict[str, Any]:
    """A token that stands for itself wherever its text does; special ones are left out of answers.

    Its number counts only where the model's vocabulary has it as well: else the library gives it the next one.
    """
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": text, **plain, "special": special}


def around(
    single: Sequence[Token | str | None], pair: Sequence[Token | str | None], second: int = 0
) -> dict[str, Any] | None:
    """Special tokens around a text, "A", and around two, "A" and "B"; from "B" on all are of the type `second`.
    None stands for a token that there is not; without any the whole is None.
    """

    def places(parts: Sequence[Token | str | None]) -> Iterator[dict[str, Any]]:
        kind = 0
        for part in parts:
            kind = second if part == "B" else kind
            if isinstance(part, str):
                yield {"Sequence": {"id": part, "type_id": kind}}
            elif part is not None:
                yield {"SpecialToken": {"id": part[0], "type_id": kind}}

    tokens = dict(part for part in [*single, *pair] if part is not None and not isinstance(part, str))
    special = {text: {"id": text, "ids": [token], "tokens": [text]} for text, token in tokens.items()}
    template = {"single": list(places(single)), "pair": list(places(pair)), "special_tokens": special}
    return {"type": "TemplateProcessing", **template} if tokens else None


def between(first: Token | None, last: Token | None) -> dict[str, Any] | None:
    """The tokens that stand before and behind every text."""
    return around([first, "A", last], [first, "A", last, first, "B", last])


def pieces_decoder(strip: int) -> dict[str, Any]:
    """Of pieces with ▁ and of bytes; at the text's beginning so many spaces are dropped: one was put there."""
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    first = [{"type": "Strip", "content": " ", "start": strip, "stop": 0}] if strip else []
    return {"type": "Sequence", "decoders": [*steps, *first]}


def normal_form(
    characters: bytes, fewer_spaces: bool, prefix: bool, legacy: bool
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """(what becomes of a text, how it is cut), as SentencePiece does it, `characters` its compiled table of them.
    `prefix`: a space stands before it; `legacy`: before what follows a special token as well.
    """
    steps: list[dict[str, Any]] = []
    if characters:
        table = base64.b64encode(characters).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": table})
    if fewer_spaces:
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
        steps.append({"type": "Replace", "pattern": {"Regex": r"\A | \z"}, "content": ""})
    if not prefix or legacy:
        before = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
        return [*steps, *before, SPACES_SHOWN], None
    return steps, {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}


def unigram(pieces: Iterable[tuple[str, float]], unknown: int, byte_fallback: bool) -> dict[str, Any]:
    """The likeliest pieces of a text, by their scores; `unknown`: -1 if there is no such piece."""
    return {
        "type": "Unigram",
        "unk_id": unknown if unknown >= 0 else None,
        "vocab": [[text, score] for text, score in pieces],
        "byte_fallback": byte_fallback,
    }


def merges_by_score(known: Mapping[str, tuple[int, float]]) -> list[list[str]]:
    """Every pair of pieces that gives a piece, the best piece first; of each piece (its number, its score).

    Of several with one score SentencePiece merges what stands first in the text: so a long run of spaces, whose pieces
    have one score, grows from its beginning, for which the longer first part has to come first here.
    ValueError names a piece that is too long.
    """
    found = []
    for text, (_, score) in known.items():
        for first, second in _cuts(text, known):
            found.append((-score, -len(first), known[first][0], known[second][0], [first, second]))
    return [pair for *_, pair in sorted(found)]


def merges_by_rank(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The same of bytes: the lowest rank first. ValueError names a token that is too long."""
    found = []
    for text, rank in ranks.items():
        for first, second in _cuts(text, ranks):
            found.append((rank, -len(first), ranks[first], ranks[second], (first, second)))
    return [pair for *_, pair in sorted(found)]


def _cuts(text: Text, known: Mapping[Text, Any]) -> Iterable[tuple[Text, Text]]:
    if len(text) > LONGEST_PIECE:
        raise ValueError(f"{text[:60]!r}… has more than {LONGEST_PIECE} characters")
    for cut in range(1, len(text)):
        if text[:cut] in known and text[cut:] in known:
            yield text[:cut], text[cut:]
