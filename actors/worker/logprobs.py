"""Logprobs for the rows whose requests ask for them: computed from the model's own logits, written for detokenizers.

They are those of the logits as the model gives them, before penalties, masks, temperature and filters; or of what is
drawn from behind all of these (post_sampling_probs).
A step may come late for a request that has ended. Its slot may be another's by then, whose records another engine's
worker writes, so that nothing is stored, nor given back, for a use of a slot that is not the present one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.penalties import log_sums, top_logprobs
from actorserve.kernels.cpu.sampling import Parameters
from actorserve.shm.layout import LOW32
from actorserve.shm.table.logprobs import USUAL_MOST, Logprobs
from actorserve.shm.table.table import slot_of

from ..protocol.request import Sampling
from ..protocol.sampling.fields import row_types
from .transfer import to_device

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
CHUNK = 64  # positions of a prompt whose logits are made at once: they are as long as the vocabulary
ENTRY = np.dtype([("id", "<i4"), ("logprob", "<f4")])


def _device_log_sums(logits: Tensor) -> Tensor:
    from actorserve.kernels.triton import logits as kernels  # a worker of a CPU may have no triton

    return kernels.log_sums(logits)


LOG_SUMS = {"cpu": log_sums, "cuda": _device_log_sums}  # both give a row the same bits in every batch


class Listed(NamedTuple):
    """The token ids whose logprobs some rows want."""

    words: np.ndarray  # int64 [rows, most of any row]; 0 where a row has fewer
    counts: Ints


class LogprobRecords(NamedTuple):
    """Records (`pack_records`) of tokens at these positions of these refs, which may be on their way from a device."""

    refs: Ints
    positions: Ints
    records: Tensor
    listed: Listed | None = None


class LogprobsWriter:
    """Which rows' tokens are told with their logprobs. Without an area nothing is written, but what the logits of a
    prompt, or of tokens without a choice, need of a whole group is done by each of its members.
    """

    def __init__(self, area: Logprobs | None, rows: int) -> None:
        self._area = area
        self.most_likely = USUAL_MOST if area is None else area.most  # that any request may be told
        self._most = np.full(rows, -1, np.int64)
        self._rows_with_logprobs: set[int] = set()  # the rows of which tokens are told
        self._as_drawn: dict[int, Sampling] = {}  # those of which what is drawn from is told
        self._wanted = np.zeros(rows, np.bool_)  # whether they are, by whoever has an area
        self._prompts: dict[int, tuple[int, int, bool]] = {}  # row: most likely tokens, length, whether ids are listed
        self._listed: dict[int, Ints] = {}  # row: the token ids that its request lists
        self._ref = np.zeros(rows, np.int64)
        self._used: set[int] = set()  # slots whose memory was written
        self._used_listed: set[int] = set()  # those of them whose requests listed token ids
        self._entries = None
        if area is not None:
            shape, strides = (area.slots, area.max_tokens, 1 + area.most), (area.stride, area.record, 8)
            self._entries = np.ndarray(shape, ENTRY, area.map, 0, strides)
            self._values = np.ndarray((area.slots, area.listed_stride // 4), "<f4", area.map, area.listed_start)

    def place(self, row: int, ref: int, sampling: Sampling, prompt_tokens: int) -> None:
        """A sequence takes a row."""
        self._most[row] = -1
        self._rows_with_logprobs.discard(row)
        for known in (self._prompts, self._listed, self._as_drawn):
            known.pop(row, None)
        self._ref[row] = ref
        self._wanted[row] = sampling.logprobs >= 0
        if sampling.post_sampling_probs:
            self._as_drawn[row] = sampling
        if sampling.prompt_logprobs >= 0:
            self._prompts[row] = sampling.prompt_logprobs, prompt_tokens, sampling.lists_prompt
        if self._area is None:
            return
        self._most[row] = sampling.logprobs
        if sampling.logprobs >= 0:
            self._rows_with_logprobs.add(row)
            if sampling.logprob_token_ids:
                self._listed[row] = np.array(sampling.logprob_token_ids, np.int64)
        if self._area.is_current(ref):
            self._give_back(slot_of(ref), row in self._listed, sampling)

    def _give_back(self, slot: int, lists: bool, sampling: Sampling) -> None:
        """The memory of a slot's former use, where the present one writes nothing over it."""
        assert self._area is not None
        if lists:
            self._used_listed.add(slot)
        elif slot in self._used_listed:
            self._used_listed.remove(slot)
            self._area.forget_listed(slot)
        if sampling.logprobs >= 0 or sampling.prompt_logprobs >= 0:
            self._used.add(slot)
        elif slot in self._used:
            self._used.remove(slot)
            self._area.forget(slot)

    def among(self, rows: Ints) -> Ints:
        """Which of these rows are told, as indices."""
        return np.flatnonzero(self._most[rows] >= 0) if self._rows_with_logprobs else np.empty(0, np.int64)

    def wanted(self, rows: Ints) -> Ints:
        """The same for all members of a group, whichever of them tells."""
        return np.flatnonzero(self._wanted[rows])

    def places(self, rows: Ints) -> tuple[Ints, int, Listed | None]:
        """(the refs of these rows, how many of the most likely words are told, and which others)."""
        return self._ref[rows], int(self._most[rows].max()), self._listed_by(rows)

    def _listed_by(self, rows: Ints) -> Listed | None:
        """None: no row lists any."""
        if not self._listed:
            return None
        own = [self._listed.get(row, np.empty(0, np.int64)) for row in rows.tolist()]
        counts = np.array([len(one) for one in own], np.int64)
        words = np.zeros((len(own), counts.max(initial=0)), np.int64)
        for row, one in zip(words, own, strict=True):
            row[: len(one)] = one
        return Listed(words, counts) if words.size else None

    def raw(self, logits: Tensor, rows: Ints) -> tuple[Ints, Tensor] | None:
        """(which of these rows are told, their logits as they are now); None if none is."""
        asked = self.among(rows)
        return (asked, logits.index_select(0, torch.from_numpy(asked))) if asked.size else None

    def as_drawn(self, raw: tuple[Ints, Tensor], rows: Ints, weights: Callable[[Ints], Tensor]) -> None:
        """What some of these rows are told of is what they draw from: `weights` makes it, as logarithms, by indices."""
        asked, logits = raw
        own = self.drawn_among(rows[asked])
        if own.size:
            logits[torch.from_numpy(own)] = weights(asked[own])

    def drawn_among(self, rows: Ints) -> Ints:
        """Which of these rows are told of what they draw from, as indices."""
        if not self._as_drawn:
            return np.empty(0, np.int64)
        return np.flatnonzero([row in self._as_drawn for row in rows.tolist()])

    def drawing(self, rows: Ints, positions: Ints) -> Parameters:
        """Of such rows, how they draw the tokens of these positions."""
        return parameters_of([self._as_drawn[row] for row in rows.tolist()], positions)

    def write(self, raw: tuple[Ints, Tensor], rows: Ints, tokens: np.ndarray, positions: Ints) -> None:
        """The rows have drawn these tokens, which will stand at these positions."""
        asked, logits = raw
        refs, most, listed = self.places(rows[asked])
        if self._entries is not None:
            self.store(LogprobRecords(refs, positions[asked], _records(logits, tokens[asked], most, listed), listed))

    def prompts_among(self, rows: Ints) -> bool:
        """Whether any of these rows wants to be told of its prompt."""
        return bool(self._prompts) and not self._prompts.keys().isdisjoint(rows.tolist())

    def of_prompts(
        self, rows: Ints, firsts: Ints, counts: Ints, starts: Ints, log: np.ndarray, logits: Callable[[Ints], Tensor]
    ) -> Iterator[LogprobRecords]:
        """What is told of tokens of prompts: of those that follow the positions which this step computes.

        `firsts`, `counts`, `starts`: where each row's part of the step begins, its length and its first position;
        `logits` makes the logits of some indices of the step.
        """
        if not self._prompts:
            return
        for row, first, count, start in zip(*(v.tolist() for v in (rows, firsts, counts, starts)), strict=True):
            if row not in self._prompts:
                continue
            most, length, lists = self._prompts[row]
            ref, words = int(self._ref[row]), self._listed.get(row) if lists else None
            stop = min(start + count, length - 1)  # the last position's logits are for the first token of the answer
            for begin in range(start, stop, CHUNK):
                end = min(begin + CHUNK, stop)
                following = np.arange(begin + 1, end + 1)
                own = logits(np.arange(first + begin - start, first + end - start))
                tokens = log[slot_of(ref), following]
                listed = None if words is None else _repeated(words, end - begin)
                yield LogprobRecords(np.full(end - begin, ref), following, _records(own, tokens, most, listed), listed)

    def store(self, told: LogprobRecords) -> None:
        """Records that are on the host."""
        if self._entries is None or self._area is None:
            return
        refs, positions, records, listed = told
        current = np.flatnonzero([self._area.is_current(ref) for ref in refs.tolist()])
        slots, positions = (refs & LOW32)[current], positions[current]
        found = records.numpy().view(ENTRY)[..., 0][current]
        if listed is not None:
            found, values = np.split(found, [-listed.words.shape[1]], 1)
            self._store_listed(slots, positions, values["logprob"], listed.counts[current])
        self._entries[slots, positions, : found.shape[1]] = found

    def _store_listed(self, slots: Ints, positions: Ints, values: np.ndarray, counts: Ints) -> None:
        """Of the token ids that requests list: each slot has as many at a position as its request lists."""
        places = zip(slots.tolist(), positions.tolist(), counts.tolist(), values, strict=True)
        for slot, position, count, own in places:
            self._values[slot, position * count : (position + 1) * count] = own[:count]


def parameters_of(samplings: list[Sampling], positions: Ints) -> Parameters:
    """How rows draw the tokens of these positions."""
    drawn, types = [sampling.row() for sampling in samplings], row_types()
    values = {name: np.array([row[name] for row in drawn], types[name]) for name in Parameters._fields[:-1]}
    return Parameters(**values, position=positions)


def _repeated(words: np.ndarray, count: int) -> Listed:
    """The same list, so many times."""
    return Listed(np.tile(words, (count, 1)), np.full(count, len(words)))


def _records(logits: Tensor, tokens: np.ndarray, most: int, listed: Listed | None = None) -> Tensor:
    """Of these rows and tokens, on the device of `logits`."""
    return pack_records(logits, to_device(tokens.astype(np.int64), logits.device), most, listed)


def pack_records(logits: Tensor, tokens: Tensor, most: int, listed: Listed | None = None) -> Tensor:
    """int32 [rows, 1 + most, 2], on the device of `logits`: (rank, bits of the logprob) of one token of each row
    (`tokens` int64 [rows]), and (word, bits of the logprob) of the most likely words. Then come those that are
    `listed`, as many for each row as the longest list has."""
    sums = LOG_SUMS[logits.device.type](logits)
    logprobs, words, rank = top_logprobs(logits, tokens, min(most, logits.shape[1]), sums)
    names = [rank[:, None], words]
    if listed is not None:
        names.append(to_device(listed.words, logits.device))
        logprobs = torch.cat([logprobs, logits.gather(1, names[-1]) - sums[:, None]], 1)
    return torch.stack([torch.cat(names, 1).int(), logprobs.view(torch.int32)], 2)
