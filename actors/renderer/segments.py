"""Tokenising with a memory: a chat's earlier turns come again with every request, and need not be tokenised again.

The text is cut at its special tokens, which no tokenizer merges with what stands beside them; each piece is looked up,
or tokenised and kept. Whether that gives the same ids is tried for each tokenizer at load; where it does not, texts are
tokenised whole.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_IDS = 4 << 20  # of all kept pieces together
SHORTEST = 4096  # characters below which cutting costs more than it saves
SAMPLES = ("Hello, how are you?\n", " leading space", "trailing space ", "Grüße 你好 🙂", "\n\n", "a", " ", "1234 + 5")


class SegmentCache:
    """Text to ids without special tokens added, the least recently used pieces forgotten first."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = {token.content: number for number, token in added.items() if token.special}
        alternatives = "|".join(re.escape(content) for content in sorted(self._special, key=len, reverse=True))
        self._cut = re.compile(f"({alternatives})") if self._special else None
        self._kept: OrderedDict[str, list[int]] = OrderedDict()
        self._size = 0
        self.exact = self._cut is not None and self._is_exact()

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
            if piece in self._special:
                ids.append(self._special[piece])
            elif piece:
                ids += self._piece(piece)
        return ids

    def _piece(self, piece: str) -> list[int]:
        ids = self._kept.get(piece)
        if ids is not None:
            self._kept.move_to_end(piece)
            return ids
        ids = self._whole(piece)
        self._kept[piece] = ids
        self._size += len(ids)
        while self._size > MAX_IDS:
            _, forgotten = self._kept.popitem(last=False)
            self._size -= len(forgotten)
        return ids

    def _is_exact(self) -> bool:
        """Pieces alone and all together give the same ids, whatever stands beside a special token."""
        special = list(self._special)
        texts = [f"{a}{mark}{b}" for mark in special[:16] for a in SAMPLES for b in SAMPLES]
        texts += [f"{mark}{mark}{sample}{mark}" for mark in special[:16] for sample in SAMPLES]
        same = all(self._by_pieces(text) == self._whole(text) for text in texts)
        self._kept.clear()
        self._size = 0
        return same
