"""Tokenising with a memory: a chat's earlier turns come again with every request, and need not be tokenised again.

The text is cut at its added tokens, as the tokenizer itself does before all else; what lies between them is looked up,
or tokenised and kept. That gives the same ids unless an added token looks at its neighbours (lstrip, rstrip,
single_word), is sought in the normalized text, or what stands first is treated apart (a space before it). Such texts
are tokenised whole; samples are tried for each tokenizer at load.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

MAX_BYTES = 64 << 20  # of all kept pieces together
PIECE_BYTES = 300  # of one piece, beside its text and ids
SHORTEST = 4096  # characters below which cutting costs more than it saves
SAMPLED = 8  # added tokens, of the first and of the last
SAMPLES = ("Hello, how are you?\n", " leading space", "trailing space ", "Grüße 你好 🙂", "\n\n", "a", " ", "1234 + 5")


class SegmentCache:
    """Text to ids without special tokens added, the least recently used pieces forgotten first."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        raw = {number: token for number, token in added.items() if not _is_normalized(tokenizer, token)}
        self._marks = {token.content: number for number, token in raw.items()}
        alternatives = "|".join(re.escape(content) for content in sorted(self._marks, key=len, reverse=True))
        self._cut = re.compile(f"({alternatives})") if raw else None
        self._kept: OrderedDict[str, array[int]] = OrderedDict()
        self._size = 0
        special = {number for number, token in added.items() if token.special}
        alone = special <= raw.keys() and not any(_sees_neighbours(token) for token in raw.values())
        self.exact = bool(special) and alone and self._is_exact()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, in which special tokens count as such."""
        if not self.exact or len(text) < SHORTEST:
            return self._whole(text)
        return self._by_pieces(text)

    def _whole(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _by_pieces(self, text: str) -> list[int]:
        assert self._cut is not None
        ids: list[int] = []
        for piece in self._cut.split(text):
            if piece in self._marks:
                ids.append(self._marks[piece])
            elif piece:
                ids += self._piece(piece)
        return ids

    def _piece(self, piece: str) -> array[int]:
        ids = self._kept.get(piece)
        if ids is not None:
            self._kept.move_to_end(piece)
            return ids
        ids = array("i", self._whole(piece))
        self._kept[piece] = ids
        self._size += _bytes(piece, ids)
        while self._size > MAX_BYTES:
            self._size -= _bytes(*self._kept.popitem(last=False))
        return ids

    def _is_exact(self) -> bool:
        """Pieces alone and all together give the same ids, whatever stands beside a special token."""
        marks = list(self._marks)
        marks = marks[:SAMPLED] + marks[SAMPLED:][-SAMPLED:]
        texts = [f"{a}{mark}{b}" for mark in marks for a in SAMPLES for b in SAMPLES]
        texts += [f"{mark}{mark}{sample}{mark}" for mark in marks for sample in SAMPLES]
        same = all(self._by_pieces(text) == self._whole(text) for text in texts)
        self._kept.clear()
        self._size = 0
        return same


def _bytes(piece: str, ids: array[int]) -> int:
    """What a kept piece takes, at most; a long text may have few ids."""
    return PIECE_BYTES + 4 * (len(piece) + len(ids))


def _is_normalized(tokenizer: Tokenizer, token: AddedToken) -> bool:
    """Is it sought in the normalized text, after the others?"""
    return token.normalized and tokenizer.normalizer is not None


def _sees_neighbours(token: AddedToken) -> bool:
    """Does it take spaces beside it, or depend on what stands there?"""
    return token.lstrip or token.rstrip or token.single_word
