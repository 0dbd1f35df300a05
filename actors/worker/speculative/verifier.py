"""Drafts: which tokens a row may go on with, verified in the forward pass that computes its next token.

A row with drafts d1 … dk computes its next token's position and those of the drafts at once. At each position the token
is then drawn exactly as it would be without drafts: of the model's logits there, with the random number of (seed,
position). d1 is accepted if it is the token drawn first, d2 if it is the second, and so on; the first token that is not
its draft is itself the row's last new one. So the text is that of a run without drafts, greedy or drawn, whatever
was drafted, and after any death or preemption as well, since drafts leave no trace in it.

That is rejection sampling. A draft x that does not depend on the random number is accepted with probability p(x), and
given that it is not, the token has the distribution p without x: what min(1, p / q) and the residual (p - q)+ come to
for a q that is sure of x. A draft model draws with the random number of the position that it drafts, too: the two draw
alike where their distributions do, which is a coupling of p and q. Any coupling leaves the target's draws what they
are, so one rule serves both. See draft_model.py.

A row whose drafts are not accepted often enough (`min_accepted`, which comes with the step, since all workers of a
group must decide alike) has none for a while, then is tried again; each failure doubles the while. Rows whose logits
are changed by what they have said so far (worker/logits/processors.py) have no drafts; what a grammar leaves no choice
of needs none (jumps.py).

Positions of a row, as in worker/cpu/runner.py; `tokens` has those before `known`, and drafts behind it while a step
runs.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.sampling import Parameters

from ...model.heads.formats import TargetStates
from ..cpu.batch import BlockTables, row_positions
from ..cpu.executor import CpuModel
from ..tensor_parallel import TensorParallelGroup

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Tokens = np.ndarray[tuple[int, int], np.dtype[np.int32]]

FIRST_SHARE = 0.6  # taken for accepted of a row's drafts before any was tried
WEIGHT = 0.2  # of the last step in a row's share
LEAST_SHARE = 0.3  # below which drafts are given up whatever they cost
FIRST_PAUSE, LONGEST_PAUSE = 32, 512  # steps without drafts
TRIAL = 2  # drafts of a row behind its pause, until one is accepted


class DraftBatch(NamedTuple):
    """The rows of a step, for what proposes drafts: all of them, of which some may have any."""

    rows: Ints
    starts: Ints  # the position that each computes first
    pending: Ints  # how many it computes without drafts
    room: Ints  # how many drafts each may have
    tables: BlockTables  # of all rows
    sampling: Parameters  # likewise


class Proposer(Protocol):
    """Where drafts come from."""

    follows: bool  # it is asked in each step, since it keeps up with what is said; else where some row has room

    def place(self, row: int, computed: int) -> None:
        """A sequence takes a row, whose first tokens are computed. Those of the one before still stand there."""

    def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
        """Write drafts into `tokens` behind what is known of rows with room; returns how many each row has."""


class Computed(NamedTuple):
    """Positions that a step has computed, of tokens that stand; the token behind each stands, too."""

    rows: Ints
    starts: Ints  # the first of each row
    counts: Ints  # how many of each row
    tables: BlockTables  # of all rows
    states: Tensor  # of each position, what the proposer reads


@runtime_checkable
class Observer(Proposer, Protocol):
    """A proposer that goes on from hidden states of the model."""

    def read(self, hidden: Tensor, index: Tensor | slice) -> Tensor:
        """What it observes, of these tokens of a step, whose output of the last layer is `hidden`."""

    def observe(self, computed: Computed, tokens: Tokens) -> None:
        """What each step has computed, before the next one asks for drafts."""


def read_states(target: CpuModel, reads: TargetStates, hidden: Tensor, index: Tensor | slice) -> Tensor:
    """See Observer.read."""
    if reads.layers:
        assert target.taps is not None
        return target.taps.of(index)
    return target.norm(hidden[index]) if reads.normed else hidden[index]


class DraftOutcome(NamedTuple):
    """Of each row that sampled in a step with drafts."""

    drawn: Ints
    drafted: Ints


class DraftVerifier:
    """The rows' tokens, and whether drafts of them pay."""

    def __init__(self, proposer: Proposer, rows: int, length: int) -> None:
        self.proposer = proposer
        self.observer = proposer if isinstance(proposer, Observer) else None
        self.follows = proposer.follows
        self.tokens: Tokens = np.zeros((rows, length), np.int32)
        self._share = np.zeros(rows)
        self._pause, self._wait = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._min_accepted = 0.0

    def place(self, row: int, tokens: np.ndarray, computed: int) -> None:
        """A sequence takes a row."""
        self.proposer.place(row, computed)
        self.tokens[row, : len(tokens)] = tokens
        self._share[row], self._pause[row], self._wait[row] = FIRST_SHARE, FIRST_PAUSE, 0

    def draft(self, work: DraftBatch, min_accepted: float) -> Ints:
        """How many drafts each row has now."""
        self._min_accepted = max(min_accepted, LEAST_SHARE)
        able = work.rows[work.room > 0]
        waiting = self._wait[able] > 0
        self._wait[able[waiting]] -= 1
        room = np.where(self._pause[work.rows] > FIRST_PAUSE, np.minimum(work.room, TRIAL), work.room)
        room[self._wait[work.rows] > 0] = 0
        return self.proposer.propose(work._replace(room=room), self.tokens)

    def observe(self, computed: Computed) -> None:
        """See Observer; its tokens were appended before."""
        assert self.observer is not None
        self.observer.observe(computed, self.tokens)

    def append(self, rows: Ints, positions: Ints, tokens: np.ndarray) -> None:
        """These tokens were drawn; they take the drafts' places."""
        self.tokens[rows, positions] = tokens

    def accepted(self, rows: Ints, known: Ints, drafted: Ints, drawn: np.ndarray) -> Ints:
        """How many of the rows' first drafts were drawn; `drawn` are 1 + drafted tokens of each row, in a line."""
        ends = np.cumsum(drafted + 1)
        accepted = np.zeros(len(rows), np.int64)
        for index in np.flatnonzero(drafted).tolist():
            count, first, row = int(drafted[index]), int(ends[index] - drafted[index] - 1), rows[index]
            same = drawn[first : first + count] == self.tokens[row, known[index] : known[index] + count]
            accepted[index] = count if same.all() else same.argmin()
        self._learn(rows, drafted, accepted)
        return accepted

    def _learn(self, rows: Ints, drafted: Ints, accepted: Ints) -> None:
        tried = drafted > 0
        rows, now = rows[tried], accepted[tried] / drafted[tried]
        share = self._share[rows] + WEIGHT * (now - self._share[rows])
        good = share >= self._min_accepted
        self._pause[rows[good & (now > 0)]] = FIRST_PAUSE
        poor = rows[~good]
        self._wait[poor] = self._pause[poor]
        self._pause[poor] = np.minimum(2 * self._pause[poor], LONGEST_PAUSE)
        share[~good] = self._min_accepted  # so that the next try decides
        self._share[rows] = share


def share_drafts(group: TensorParallelGroup | None, work: DraftBatch, drafted: Ints, tokens: Tokens) -> None:
    """Drafts of the first of a group become those of all, who must verify the same ones."""
    some = np.flatnonzero(drafted)
    if group is None or not some.size:
        return
    owners, positions = row_positions(work.rows[some], drafted[some], (work.starts + work.pending)[some])
    own = torch.from_numpy(tokens[owners, positions].astype(np.int64))
    tokens[owners, positions] = group.all_reduce(own if group.rank == 0 else torch.zeros_like(own)).numpy()
