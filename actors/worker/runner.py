"""The worker's batch: the state of each row in arrays, and what a step does to it.

A row holds one sequence. By position of its tokens:
  [0, computed)       their KV is in the row's blocks
  [computed, known)   to be computed; those before `logged` stand in the request table, the one after is `last`
A row whose computed reaches known samples the token at position `known`.

Knows plans and tensors; not rings, nor why a plan is as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu_attention import PagedKV, Span, StepAttention
from actorserve.kernels.sampling import Parameters, sample
from actorserve.shm.logprobs import Logprobs
from actorserve.shm.table import slot_of

from ..matchers import Matchers
from ..messages import NewRow, Step
from ..parameters import Rendition
from .adjust import Adjustments
from .model import Model
from .told import Told

PLAIN = Rendition()
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


class Runner:
    """Runs steps on one model and its KV memory."""

    def __init__(
        self,
        model: Model,
        pool: Tensor,
        log: np.ndarray,
        block_size: int,
        rows: int,
        read_rendition: Callable[[int], Rendition] = lambda ref: PLAIN,
        logprobs: Logprobs | None = None,
        make_matchers: Callable[[], Matchers] | None = None,
    ) -> None:
        """`pool` as make_pool makes it, `log` the token ids of the request table [slots, tokens].

        `read_rendition` gives what the renderer made of a ref's request; `logprobs` takes what requests ask for;
        `make_matchers` is called when the first request has a grammar.
        """
        self.model = model
        self.kv = PagedKV(pool, block_size)
        self.log = log
        self.block_size = block_size
        self.scale = model.shape.head_dim**-0.5
        self.computed, self.known, self.logged = (np.zeros(rows, np.int64) for _ in range(3))
        self.slot, self.last = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.blocks = np.zeros((rows, -(-log.shape[1] // block_size)), np.int64)
        self.scattered = np.zeros(rows, np.bool_)  # the row's blocks do not follow one another
        self.sampling = Parameters(
            temperature=np.zeros(rows, np.float32),
            top_k=np.zeros(rows, np.int64),
            top_p=np.zeros(rows, np.float64),
            min_p=np.zeros(rows, np.float32),
            seed=np.zeros(rows, np.uint64),
            position=self.known,
        )
        self.read_rendition = read_rendition
        self.adjustments = Adjustments(rows, model.shape.vocab_size, make_matchers)
        self.told = Told(logprobs, rows)

    def run(self, step: Step) -> np.ndarray:
        """The tokens (int32) of the rows that sample, in the order of the step's rows."""
        self._change_rows(step)
        rows = np.frombuffer(step.rows, np.int32).astype(np.int64)
        counts = np.frombuffer(step.counts, np.int32).astype(np.int64)
        starts = self.computed[rows]
        ends = starts + counts
        firsts = np.cumsum(counts) - counts
        hidden = self._forward(rows, counts, starts, firsts)
        self.told.write_prompts(rows, firsts, counts, starts, self.log, lambda at: self.model.logits(hidden[at]))
        self.computed[rows] = ends
        samples = ends == self.known[rows]
        rows = rows[samples]
        if not rows.size:
            return np.empty(0, np.int32)
        if rows.size < len(hidden):
            last = hidden[torch.from_numpy((firsts + counts - 1)[samples])]
        else:
            last = hidden
        tokens = self._draw(self.model.logits(last), rows)
        self.last[rows] = tokens
        self.known[rows] += 1
        return tokens

    def _draw(self, logits: Tensor, rows: Ints) -> np.ndarray:
        """A token for each row, as its request wants it."""
        raw = self.told.raw(logits, rows)
        if self.adjustments:
            self.adjustments.apply(logits, rows)
        tokens = sample(logits, self.sampling.of(rows))
        if raw is not None:
            self.told.write(raw, rows, tokens, self.known[rows])
        if self.adjustments:
            self.adjustments.advance(rows, tokens)
        return tokens

    def _change_rows(self, step: Step) -> None:
        for new in step.new:
            self._place(new)
        if step.grown:
            for row, index, block in np.frombuffer(step.grown, np.int32).reshape(-1, 3).tolist():
                self.blocks[row, index] = block
                self.scattered[row] |= block != self.blocks[row, index - 1] + 1

    def _place(self, new: NewRow) -> None:
        """A sequence takes a row."""
        row, slot, drawn = new.row, slot_of(new.ref), new.sampling
        blocks = np.frombuffer(new.blocks, np.int32)
        self.computed[row], self.known[row], self.logged[row] = new.computed, new.known, new.known
        self.slot[row] = slot
        self.blocks[row, : blocks.size] = blocks
        self.scattered[row] = (np.diff(blocks) != 1).any()
        values = (drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p, drawn.seed & (1 << 64) - 1)
        for array, value in zip(self.sampling, values, strict=False):  # the position is `known`
            array[row] = value
        prompt, answer = self.log[slot, : new.prompt_tokens], self.log[slot, new.prompt_tokens : new.known]
        rendition = self.read_rendition(new.ref)
        self.adjustments.place(row, drawn, rendition, prompt.astype(np.int64), answer.tolist())
        self.told.place(row, slot, drawn, new.prompt_tokens)

    def _forward(self, rows: Ints, counts: Ints, starts: Ints, firsts: Ints) -> Tensor:
        """Compute the tokens of a step as one flat batch."""
        total = int(counts.sum())
        if total == rows.size:
            owners, positions = rows, starts
        else:
            owners = np.repeat(rows, counts)
            positions = np.arange(total) + np.repeat(starts - firsts, counts)
        ids = np.where(positions < self.logged[owners], self.log[self.slot[owners], positions], self.last[owners])
        slots = self.blocks[owners, positions // self.block_size] * self.block_size + positions % self.block_size
        one_run = ~self.scattered[rows]
        fields = (firsts.tolist(), counts.tolist(), starts.tolist(), self.blocks[rows], one_run.tolist())
        spans = [Span(*values) for values in zip(*fields, strict=True)]
        attention = StepAttention(self.kv, spans, self.model.shape.windows, self.scale)
        tokens, places, targets = (torch.from_numpy(values) for values in (ids, positions, slots))
        return self.model.forward(tokens, places, targets, self.kv, attention)
