"""What requests want of the logits, done on the device: penalties, biases, allowed tokens, no end before `min_tokens`.

The host sends what a row asks for when a sequence takes it, and per step a few numbers; counts of what is drawn are
kept on the device, so no step waits for the tokens of the one before. Masks that need the text so far (grammars, bad
words, thinking budgets), and DRY's penalties, which are biases, are made by ../logits/processors.py on the host, while
the model computes the logits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.triton.logits import (
    MOST_BIASES,
    Bias,
    Mask,
    RowPenalties,
    adjust,
    count_tokens,
    count_type,
)

from ...protocol.request import PENALTIES, Sampling, default_of
from ..logits.windows import PenaltyWindow
from ..transfer import to_device
from .rows import Ints

ANY = -1  # a mask that is none
NO_PENALTIES = tuple(default_of(name) for name in PENALTIES)


def packed(words: np.ndarray) -> np.ndarray:
    """int32 [..., words / 32] of bool [..., words]: bit w % 32 of number w // 32."""
    bits: np.ndarray = np.packbits(words, axis=-1, bitorder="little").view(np.int32)
    return bits


class Changes(NamedTuple):
    """What rows ask for, apart from what is counted later."""

    rows: Tensor  # int64: an index of each in these penalties and biases, -1: it asks for nothing
    penalties: RowPenalties
    bias: Bias
    mask: Mask

    def apply(self, logits: Tensor) -> None:
        """Change the logits [n, words] float32 of these rows in place."""
        adjust(logits, *self)

    def of(self, some: slice) -> Changes:
        """What some of these rows ask for."""
        return self._replace(rows=self.rows[some], mask=Mask(self.mask.bits, self.mask.which[some]))


class PlacedRow(NamedTuple):
    """A row that was taken, of which the device has not been told."""

    row: int
    sampling: Sampling
    prompt: Ints  # of which penalties look back on all
    counted: Ints  # and of these on how often they are there


class DeviceProcessors:
    """The rows that ask for something, and the memory for it.

    A row has two masks: 2 · row, without its suppressed tokens, for the first `min_tokens`; then 2 · row + 1. Of a row
    whose masks the host makes, step by step, it is always the first.
    """

    def __init__(self, rows: int, words: int, length: int, device: torch.device) -> None:
        """All memory is taken now, so that the KV memory is given what is left. `length`: of the longest sequence."""
        self._words, self._device = words, device

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        numbers = (torch.ones(rows, device=device), zeros(torch.float32, rows), zeros(torch.float32, rows))
        self._penalties = RowPenalties(
            *numbers, zeros(torch.int32, rows, -(-words // 32)), zeros(count_type(length), rows, words)
        )
        self._bias = Bias(zeros(torch.int32, rows, MOST_BIASES) - 1, zeros(torch.float32, rows, MOST_BIASES))
        self._bits = zeros(torch.int32, 2 * rows, -(-words // 32))
        self._masks = np.full((rows, 2), ANY, np.int64)  # while tokens are suppressed, and then
        self._suppressed_until = np.zeros(rows, np.int64)  # how long the sequence has to be
        self._asking: dict[int, Sampling] = {}
        self._windows: dict[int, PenaltyWindow] = {}
        self._biased: set[int] = set()  # rows whose biases are others than those of their requests
        self._placed: list[PlacedRow] = []

    def place(
        self, row: int, sampling: Sampling, prompt: np.ndarray, answer: np.ndarray, host: bool, given: int = 0
    ) -> None:
        """A sequence takes a row; `upload` is to follow. `host`: its masks are set before each step. `given`: so many
        embeddings stand before the prompt's tokens."""
        for known in (self._asking, self._windows):
            known.pop(row, None)
        self._biased.discard(row)
        if sampling.is_plain() and not host:
            return
        suppresses = bool(sampling.min_tokens and sampling.suppress)
        self._masks[row, 1] = 2 * row + 1 if sampling.allowed_token_ids else ANY
        self._masks[row, 0] = 2 * row if suppresses else self._masks[row, 1]
        if host:
            self._masks[row] = 2 * row
        self._suppressed_until[row] = given + prompt.size + sampling.min_tokens
        self._asking[row] = sampling
        if sampling.repeat_last_n > 0:
            window = self._windows[row] = PenaltyWindow(sampling.repeat_last_n, [*prompt.tolist(), *answer.tolist()])
            prompt, answer = prompt[:0], np.array(window.tokens)
        self._placed.append(PlacedRow(row, sampling, prompt.astype(np.int64), answer.astype(np.int64)))

    def among(self, rows: Ints) -> Ints:
        """Which of these rows ask for something, as indices."""
        if not self._asking:
            return np.empty(0, np.int64)
        return np.flatnonzero([row in self._asking for row in rows.tolist()])

    # --- what the device is told ---------------------------------------------------------------------------------

    def upload(self) -> None:
        """Tell the device of the rows that were placed, behind the steps that were started before."""
        placed, self._placed = self._placed, []
        if not placed:
            return
        rows = self._sent(np.array([one.row for one in placed]))
        samplings = [one.sampling for one in placed]
        values = [tuple(getattr(one, name) for name in PENALTIES) for one in samplings]
        for target, own in zip(self._penalties, self._sent(np.array(values, np.float32).T), strict=False):
            target.index_copy_(0, rows, own)
        self._upload_biases(rows, [_biases_of(sampling) for sampling in samplings])
        self._upload_masks(placed)
        self._upload_counts([one for one, own in zip(placed, values, strict=True) if own != NO_PENALTIES])

    def _upload_biases(self, rows: Tensor, biases: list[dict[int, float]]) -> None:
        words = np.full((len(biases), MOST_BIASES), -1, np.int32)
        values = np.zeros((len(biases), MOST_BIASES), np.float32)
        for index, own in enumerate(biases):
            words[index, : len(own)] = list(own)
            values[index, : len(own)] = list(own.values())
        self._bias.words.index_copy_(0, rows, self._sent(words))
        self._bias.values.index_copy_(0, rows, self._sent(values))

    def _upload_masks(self, placed: list[PlacedRow]) -> None:
        masks: list[int] = []
        bits: list[np.ndarray] = []
        for row, sampling, _, _ in placed:
            allowed = np.full(self._bits.shape[1] * 32, not sampling.allowed_token_ids)
            allowed[sampling.allowed_token_ids] = True
            first, then = self._masks[row].tolist()
            if first == then == 2 * row:
                continue
            if then != ANY:
                masks.append(then)
                bits.append(packed(allowed))
            if first != then:
                allowed[sampling.suppress] = False
                masks.append(first)
                bits.append(packed(allowed))
        if masks:
            self._bits.index_copy_(0, self._sent(np.array(masks)), self._sent(np.stack(bits)))

    def _upload_counts(self, penalized: list[PlacedRow]) -> None:
        if not penalized:
            return
        prompted = np.zeros((len(penalized), self._bits.shape[1] * 32), bool)
        answered: list[Ints] = []
        numbers: list[Ints] = []
        for index, (row, _, prompt, counted) in enumerate(penalized):
            prompted[index, prompt] = True
            words, counts = np.unique(counted, return_counts=True)
            answered.append(row * self._words + words)
            numbers.append(counts)
        rows = self._sent(np.array([one.row for one in penalized]))
        _, _, _, seen, times = self._penalties
        seen.index_copy_(0, rows, self._sent(packed(prompted)))
        own = self._sent(np.stack([np.concatenate(answered), np.concatenate(numbers)]))
        times.index_fill_(0, rows, 0).view(-1).index_copy_(0, own[0], own[1].to(times.dtype))

    def _sent(self, values: np.ndarray) -> Tensor:
        return to_device(np.ascontiguousarray(values), self._device)

    # --- a step --------------------------------------------------------------------------------------------------

    def set_masks(self, rows: Ints, bits: np.ndarray) -> None:
        """For the step that is being started, masks that the host has made of some rows."""
        self._bits.index_copy_(0, self._sent(2 * rows), self._sent(bits))

    def set_penalties(self, penalties: dict[int, tuple[Ints, np.ndarray]]) -> None:
        """For the same step, what is taken from which words' logits of some rows."""
        changed = [row for row, (words, _) in penalties.items() if words.size or row in self._biased]
        if not changed:
            return
        biases = []
        for row in changed:
            own = _biases_of(self._asking[row])
            words, values = penalties[row]
            (self._biased.add if words.size else self._biased.discard)(row)
            for word, value in zip(words.tolist(), values.tolist(), strict=True):
                own[word] = own.get(word, 0.0) - value
            biases.append(own)
        self._upload_biases(self._sent(np.array(changed)), biases)

    def masked(self, rows: Ints) -> Ints:
        """Those of these rows whose masks are set before each step."""
        found: Ints = rows[self._masks[rows, 1] == 2 * rows]
        return found

    def windows_among(self, rows: Ints) -> list[tuple[int, PenaltyWindow]]:
        """Which of these rows, as indices, have penalties that look back on their last tokens alone."""
        found = ((index, self._windows.get(row)) for index, row in enumerate(rows.tolist()))
        return [(index, window) for index, window in found if window is not None] if self._windows else []

    def masks_of(self, rows: Ints, lengths: Ints) -> Ints:
        """The masks of rows whose sequences have so many tokens."""
        first, then = self._masks[rows].T
        masks: Ints = np.where(lengths < self._suppressed_until[rows], first, then)
        return masks

    def apply(self, logits: Tensor, rows: Tensor, masks: Tensor) -> None:
        """Change the logits [n, words] float32 of these rows in place."""
        adjust(logits, rows, self._penalties, self._bias, Mask(self._bits, masks))

    def changes(self, rows: Tensor, asking: Tensor, masks: Tensor) -> Changes:
        """What these rows ask for now, before what they draw is counted; `asking`: -1 where one asks for nothing."""
        index = torch.arange(len(rows), device=rows.device).masked_fill_(asking < 0, -1)
        penalties = RowPenalties(*(values.index_select(0, rows) for values in self._penalties))
        return Changes(
            index, penalties, Bias(*(values.index_select(0, rows) for values in self._bias)), Mask(self._bits, masks)
        )

    def count(self, rows: Tensor, tokens: Tensor, leaving: Tensor) -> None:
        """These rows have drawn these tokens, and look back no longer on those that leave."""
        count_tokens(rows, tokens, leaving, self._penalties.counts)


def _biases_of(sampling: Sampling) -> dict[int, float]:
    biases: dict[int, float] = {}
    for word, value in sampling.logit_bias:
        biases[word] = biases.get(word, 0.0) + value
    return biases
