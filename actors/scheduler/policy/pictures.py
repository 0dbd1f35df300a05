"""Pictures in prompts, as plans see them: embeddings that a step has to make first, and tokens that stay together.

The worker makes a picture's embeddings in the first step that computes a part of it. That takes time which has nothing
to do with how many tokens the step computes, so that a plan has a budget of its own for it: as many placeholders as
`--max-num-encoder-input-tokens` says, and beside rows that decode as leaves these their time. A picture that takes
longer is made in parts, over several steps, before the step that computes the first of it. Where tokens of a picture
see one another, a step computes all of them or none, and no row begins in the middle of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from actorserve.shm.table.table import RequestTable, generation_of, slot_of

from ...model.vision.spec import VisionSpec
from ...protocol.media import MediaItem
from ...protocol.step import LOOKS
from .chunk_size import LEAST, ChunkSizePolicy

LEAST_PART = 16  # placeholders of a picture
MOST_PARTS = 64  # of one picture
Items = Callable[[int, int], list[MediaItem]]  # of a slot and generation
Span = tuple[int, int]
Look = tuple[int, int, int]  # row, position of a picture, and the share of it, in LOOKS, that is made then
Progress = tuple[int, int]  # up to where pictures are encoded, and so many placeholders of the next one


class Picture(NamedTuple):
    """Positions [start, end) of a prompt, of which `tokens` are placeholders."""

    start: int
    end: int
    tokens: int
    digest: bytes


class Pictures(NamedTuple):
    """Of one sequence, in order."""

    all: tuple[Picture, ...] = ()
    whole: tuple[Span, ...] = ()  # tokens that see one another
    given: tuple[int, bytes] | None = None  # of a prompt that is embeddings: their count and digest

    def before(self, computed: int) -> int:
        """So much may be computed already where a row begins."""
        return next((start for start, end in self.whole if start < computed < end), computed)

    def are_before(self, end: int) -> bool:
        """Does something stand before this position that token ids do not say?"""
        return self.given is not None or (bool(self.all) and self.all[0].start < end)

    @property
    def spans(self) -> list[tuple[int, int, bytes]]:
        """As hashes of blocks want them."""
        given = [] if self.given is None else [(0, *self.given)]
        return [*given, *((picture.start, picture.end, picture.digest) for picture in self.all)]


NONE = Pictures()


def read_pictures(table: RequestTable, ref: int, items: Items, spec: VisionSpec) -> Pictures:
    """What the slot has."""
    found, whole = [], []
    for item in sorted(items(slot_of(ref), generation_of(ref)), key=lambda item: item.start):
        ids = np.frombuffer(table.token_ids(ref, item.start, item.start + item.length), np.int32)
        places = item.start + np.flatnonzero(np.isin(ids, spec.placeholders))
        found.append(Picture(item.start, item.start + item.length, len(places), item.digest))
        if spec.whole_pictures and len(places):
            runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
            whole += [(int(run[0]), int(run[-1]) + 1) for run in runs]
    return Pictures(tuple(found), tuple(whole)) if found else NONE


class EncoderBudget:
    """Of one plan after the other. Beside rows that decode, pictures and tokens of prompts share the time of a step:
    whoever comes first has it, and what does not fit is of a later one. Who is alone has a least part in any case.
    """

    def __init__(self, most: int, policy: ChunkSizePolicy) -> None:
        """`most`: placeholders whose embeddings a step may make."""
        self.most = most
        self.policy = policy
        self.planned = 0  # of this step
        self.looks: list[Look] = []  # likewise
        self._decoding = self._room = self._given = 0

    def begin(self, decoding: int, room: int) -> None:
        """A plan with so many decoding rows; `room` tokens of the step are kept from prompts so that it is short."""
        self.planned, self.looks = 0, []
        self._decoding, self._room, self._given = decoding, room, 0

    def give(self, tokens: int) -> None:
        """So many tokens of a prompt are computed in this step."""
        self._given += tokens

    def left(self, budget: int) -> int:
        """Of a budget for prompts, what embeddings that are made in this step leave of it."""
        if not (self._decoding and self.planned):
            return budget
        return max(0, min(budget, self.policy.beside(self._decoding, self.planned) - self._given))

    def reach(self, pictures: Pictures, computed: int, count: int, budget: int) -> int:
        """How many tokens are to be computed of `count` that fit: more where a picture would be cut at once, since no
        later step could do it either.
        """
        for start, end in pictures.whole:
            if start < computed + count < end:
                if start > computed:
                    return start - computed
                return end - computed if end - computed <= budget + self._room else 0
        return count

    def cut(self, pictures: Pictures, progress: Progress, computed: int, count: int, row: int) -> tuple[int, Progress]:
        """(how many of these tokens, how far pictures are encoded then). `progress`: the same before."""
        encoded, looked = progress
        count = max(0, pictures.before(computed + count) - computed)
        for picture in pictures.all:
            if picture.start >= computed + count:
                break
            if picture.end <= max(computed, encoded):
                continue
            before = max(0, picture.start - computed)
            left = picture.tokens - looked
            if not self._decoding:
                if self.planned and self.planned + left > self.most:
                    count = before
                    break
                self.planned += left
                encoded, looked = picture.end, 0
                continue
            beside = self._beside(pictures, picture, computed, count, left)
            part = self._part(picture, before, left)
            if left <= part and beside > before:
                self.planned += left
                encoded, looked = picture.end, 0
                count = min(count, beside)
                continue
            if part := min(left, part):
                looked += part
                self.planned += part
                self.looks.append((row, picture.start, looked * LOOKS // picture.tokens))
                encoded, looked = (picture.end, 0) if looked == picture.tokens else (encoded, looked)
            count = before
            break
        return max(0, pictures.before(computed + count) - computed), (encoded, looked)

    def _part(self, picture: Picture, before: int, left: int) -> int:
        """So many of a picture's placeholders, of which these are left, may be made now, beside rows that decode and so
        many tokens before it. If there is something else in the step: of a part that is worth it, or none.
        """
        given = self._given + before
        allowed = min(self.most, self.policy.encoder_tokens(self._decoding, given)) - self.planned
        least = max(LEAST_PART, -(-picture.tokens // MOST_PARTS))
        if not (given or self.planned):
            return max(allowed, least)
        return allowed if allowed >= min(least, left) else 0

    def _beside(self, pictures: Pictures, picture: Picture, computed: int, count: int, left: int) -> int:
        """How many of `count` tokens there is time for in the step that makes what is left of a picture: all of them,
        or some if these are worth it.
        """
        found = min(count, self.policy.beside(self._decoding, self.planned + left) - self._given)
        needed = picture.end - computed if pictures.whole else min(count, LEAST)
        return found if found >= needed else 0
