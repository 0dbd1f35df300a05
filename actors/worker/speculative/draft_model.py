"""Drafts that a smaller model of the same vocabulary says, one token after the other.

It has KV memory of its own for the same blocks: a row's table serves both models, and a block that is found by its
prefix holds what both computed of it. What the draft model has not computed (its rows are left behind while they have
no drafts, and a block may be cached before its last position is) costs accepted drafts, never right tokens.

It draws as the model does, with the same random number of (seed, position). Measured, as the share of drafts accepted
(2048 words with logits of deviation 3, those of the draft model off by 0.3 or by 1):
                                       off by 0.3                       off by 1
    temperature                        0      0.5    1      1, top-p    0      0.5    1      1, top-p 0.9
    drawn with the same number         0.81   0.72   0.49   0.49        0.50   0.44   0.29   0.24
    its likeliest word                 0.81   0.56   0.22   0.25        0.50   0.40   0.19   0.21
    the most that any way could        0.81   0.85   0.89   0.89        0.50   0.55   0.65   0.65
The last line is what min(1, p / q) with a residual draw accepts; its text would depend on what was drafted, so that a
sequence which is computed again after a death could go on otherwise than its client has read.

Of a group of workers the first alone has the draft model; what it drafts, the others are told.
"""

from __future__ import annotations

import numpy as np
import torch

from actorserve.kernels.cpu.paged_kv import PagedKV
from actorserve.kernels.cpu.sampling import Parameters, sample

from ..cpu.batch import prepare_inputs, row_positions
from ..cpu.decoder import Decoder
from ..tensor_parallel import TensorParallelGroup
from .verifier import DraftBatch, Ints, Tokens

CATCH_UP = 64  # tokens that a row may be behind and still have drafts in the same step


class DraftModelProposer:
    """The proposer of `--speculative-config '{"method": "draft_model", …}'`."""

    follows = True

    def __init__(
        self, model: Decoder | None, kv: PagedKV | None, rows: int, most: int, group: TensorParallelGroup | None
    ) -> None:
        """Without model and KV memory it is told the drafts by its group."""
        self.model, self.kv = model, kv
        self.most = most
        self.group = group
        self._computed = np.zeros(rows, np.int64)  # positions whose KV is there, of this model

    def place(self, row: int, computed: int) -> None:
        """A sequence takes a row, and its first tokens were computed by both models."""
        self._computed[row] = computed

    def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
        """See Proposer. Prompts are computed along with the model; rows that decode only if they get drafts."""
        computed, known = self._computed, work.starts + work.pending
        computed[work.rows] = np.minimum(computed[work.rows], work.starts)  # what was rejected counts no more
        behind = known - computed[work.rows]
        in_prompt = work.pending > 1
        late = (behind > CATCH_UP) & ~in_prompt
        drafted = np.where(late, 0, work.room)
        counts = np.where(late, np.minimum(behind, CATCH_UP) * (work.room > 0), behind)
        counts[(work.room == 0) & ~in_prompt] = 0
        first = np.flatnonzero(counts)
        if first.size:
            self._draft(work, tokens, first, counts, drafted)
        computed[work.rows[first]] += counts[first] + np.maximum(drafted[first] - 1, 0)
        return drafted

    def _draft(self, work: DraftBatch, tokens: Tokens, first: Ints, counts: Ints, drafted: Ints) -> None:
        """Compute `counts` tokens of the rows with the indices `first`, then their drafts."""
        drafts = np.zeros((len(work.rows), self.most), np.int64)
        known = work.starts + work.pending
        if self.model is not None:
            starts = self._computed[work.rows]
            for number in range(max(1, int(drafted.max()))):
                drawing = np.flatnonzero(drafted > number)
                some = first if number == 0 else drawing
                batch = (work.rows[some], counts[some], starts[some])
                words = self._compute(work, tokens, batch, np.isin(some, drawing), known[some] + number)
                drafts[drawing, number] = words
                tokens[work.rows[drawing], known[drawing] + number] = words
                starts, counts = known + number, np.ones_like(counts)
        if self.group is not None:
            drafts = self.group.all_reduce(torch.from_numpy(drafts)).numpy()
            for index in np.flatnonzero(drafted).tolist():
                count, at = int(drafted[index]), int(known[index])
                tokens[work.rows[index], at : at + count] = drafts[index, :count]

    def _compute(
        self, work: DraftBatch, tokens: Tokens, batch: tuple[Ints, Ints, Ints], draws: np.ndarray, positions: Ints
    ) -> np.ndarray:
        """One pass; the next words of those rows of it that draw, which will stand at `positions`."""
        assert self.model is not None and self.kv is not None
        rows, counts, _ = batch
        ids = tokens[row_positions(*batch)].astype(np.int64)
        inputs = prepare_inputs(self.model.attention, self.kv, work.tables, *batch, ids)
        hidden = inputs.forward(self.model, self.kv)
        if not draws.any():
            return np.empty(0, np.int32)
        last = torch.from_numpy((np.cumsum(counts) - 1)[draws])
        parameters: Parameters = work.sampling.of(rows[draws])._replace(position=positions[draws])
        return sample(self.model.logits(hidden[last]), parameters)
