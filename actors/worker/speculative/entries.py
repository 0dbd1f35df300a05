"""What drafts by hidden states of the model, and has KV memory of its own for the same blocks: its entries.

The entry of a position can be made as soon as the model has computed it and the token behind it stands: at the end of
each step, of all positions that the step computed and did not reject, prompts included. So it is there whenever the
model's own is: after a preemption or a death both are computed again, and a block that is found by its prefix holds
both.

Rows that decode without drafts are not observed: what drafts costs nothing where drafts are off. Their last hidden
states are kept (KEPT_BYTES at most, MOST_KEPT of a row), and observed at once when the row has room for drafts again.
Entries of positions before these are not made any more, which costs accepted drafts, never right tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from ...model.heads.formats import TargetStates
from ..cpu.batch import BlockTables, row_positions
from ..cpu.executor import CpuModel, ResidualTaps
from .verifier import Computed, DraftBatch, Ints, Tokens, read_states

KEPT_BYTES = 64 << 20  # of hidden states of all rows
MOST_KEPT = 256  # positions of a row
NONE = -1  # no step of the row was observed


class EntriesProposer(ABC):
    """A proposer whose entries are made here; see Observer."""

    follows = True

    def __init__(self, target: CpuModel, reads: TargetStates, rows: int) -> None:
        self.target, self.reads = target, reads
        if reads.layers:
            target.taps = ResidualTaps(reads.layers)
        self._entered = np.full(rows, NONE)  # positions before this one have entries
        self._kept = torch.empty(0)  # [rows, positions in a circle, numbers of a state], once there is one
        self._put_off = np.zeros(rows, np.bool_)  # decodes without drafts: what is computed now is not observed
        self._late = np.zeros(rows, np.int64)  # positions behind the last one that is observed

    @abstractmethod
    def make_entries(self, batch: tuple[Ints, Ints, Ints], tables: BlockTables, tokens: Tokens, states: Tensor) -> None:
        """Of these positions (see row_positions), of which the model has computed `states`."""

    def place(self, row: int, computed: int) -> None:
        """A sequence takes a row; nothing is drafted before its first tokens are observed."""
        self._entered[row], self._late[row] = NONE, 0

    def read(self, hidden: Tensor, index: Tensor | slice) -> Tensor:
        """See Observer."""
        return read_states(self.target, self.reads, hidden, index)

    def begin(self, work: DraftBatch, tokens: Tokens) -> Ints:
        """How many drafts each row is to have: none where an entry is missing. What rows compute that decode without
        drafts is put off until they have some."""
        self._put_off[work.rows] = (work.room == 0) & (work.pending == 1)
        wanted = work.room > 0
        self._catch_up(work.rows[wanted], work.starts[wanted], work.tables, tokens)
        return np.where(self._entered[work.rows] + 1 == work.starts + work.pending, work.room, 0)

    def observe(self, computed: Computed, tokens: Tokens) -> None:
        """Make the entries of these positions, of whose tokens the next ones are known, but for rows that wait."""
        rows, starts, counts, tables, states = computed
        later = self._put_off[rows]
        if later.any():
            at = torch.from_numpy((np.cumsum(counts) - 1)[later])
            self._keep(rows[later], starts[later], states[at])
            if later.all():
                return
            states = states[torch.from_numpy(~np.repeat(later, counts))]
            rows, counts, starts = rows[~later], counts[~later], starts[~later]
        self._catch_up(rows, starts, tables, tokens)
        self._enter((rows, counts, starts), tables, tokens, states)

    def _keep(self, rows: Ints, positions: Ints, states: Tensor) -> None:
        """One state of each row, until the row has drafts again."""
        if not self._kept.numel():
            most = KEPT_BYTES // (len(self._late) * states.shape[1] * states.element_size())
            self._kept = states.new_empty(len(self._late), max(1, min(most, MOST_KEPT)), states.shape[1])
        self._kept[torch.from_numpy(rows), torch.from_numpy(positions % self._kept.shape[1])] = states
        self._late[rows] += 1

    def _catch_up(self, rows: Ints, ends: Ints, tables: BlockTables, tokens: Tokens) -> None:
        """Observe what was put off of these rows, which have computed the positions before `ends`."""
        late = self._late[rows] > 0
        if not late.any():
            return
        rows, ends = rows[late], ends[late]
        counts = np.minimum(self._late[rows], self._kept.shape[1])
        batch = (rows, counts, ends - counts)
        owners, positions = row_positions(*batch)
        states = self._kept[torch.from_numpy(owners), torch.from_numpy(positions % self._kept.shape[1])]
        self._enter(batch, tables, tokens, states)
        self._late[rows] = 0

    def _enter(self, batch: tuple[Ints, Ints, Ints], tables: BlockTables, tokens: Tokens, states: Tensor) -> None:
        rows, counts, starts = batch
        self.make_entries(batch, tables, tokens, states)
        self._entered[rows] = starts + counts
