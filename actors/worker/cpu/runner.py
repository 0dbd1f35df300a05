"""The worker's batch: the state of each row in arrays, and what a step does to it.

A row holds one sequence. By position of its tokens:
  [0, computed)       their KV is in the row's blocks
  [computed, known)   to be computed; those before `logged` stand in the request table, the one after is `last`
A row whose computed reaches known samples the token at position `known`; one that has drafts
(worker/speculative/verifier.py) computes their positions as well, and samples as many tokens as its drafts were right,
and one more.

Knows plans and tensors; not rings, nor why a plan is as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.attention import PagedKV
from actorserve.kernels.cpu.sampling import Parameters, sample
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import slot_of

from ...grammar.matchers import Matchers
from ...protocol.request import Rendition, row_types
from ...protocol.step import NewRow, Step
from ..logits_processors import Adjustments
from ..logprobs import Told
from ..speculative.verifier import Outcome, Speculation, Work
from .batch import Inputs, Tables, places, prepare
from .executor import Model
from .steady_decode import Steady

if TYPE_CHECKING:
    from ...protocol.wire import Numbers

PLAIN = Rendition()
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]


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
        speculation: Speculation | None = None,
    ) -> None:
        """`pool` as make_pool makes it, `log` the token ids of the request table [slots, tokens].

        `read_rendition` gives what the renderer made of a ref's request; `logprobs` takes what requests ask for;
        `make_matchers` is called when the first request has a grammar; `speculation` makes drafts.
        """
        self.model = model
        self.kv = PagedKV(pool, block_size, aligned=model.shape.quantization.batch_invariant)
        self.log = log
        self.block_size = block_size
        self.computed, self.known, self.logged = (np.zeros(rows, np.int64) for _ in range(3))
        self.slot, self.last = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.blocks = np.zeros((rows, -(-log.shape[1] // block_size)), np.int64)
        self.scattered = np.zeros(rows, np.bool_)  # the row's blocks do not follow one another
        self._tables = Tables(self.blocks, self.scattered)
        self.sampling = Parameters(
            **{name: np.zeros(rows, dtype) for name, dtype in row_types().items()}, position=self.known
        )
        self.read_rendition = read_rendition
        self.adjustments = Adjustments(rows, model.shape.vocab_size, make_matchers)
        self.told = Told(logprobs, rows)
        self.speculation = speculation
        self.outcome: Outcome | None = None  # of the last step, where rows had drafts
        self.failed_rows: Numbers = ()  # of the last step, those whose grammar has failed
        self._steady: Steady | None = None  # while it is there, `computed`, `known` and `last` of its rows wait

    def run(self, step: Step) -> np.ndarray:
        """The tokens (int32) of the rows that sample, in the order of the step's rows."""
        self.failed_rows = ()
        if self._steady is not None and not self._steady.goes_on(step):
            self._settle()
        scattered = self._change_rows(step)
        if self._steady is not None:
            return self._run_steady(step, self._steady, scattered)
        rows = step.rows
        starts = self.computed[rows]
        counts, drafted = self._with_drafts(rows, step.counts, starts, self.known[rows], step.min_accepted)
        return self._run_anew(step, rows, starts, counts, drafted)

    def _run_steady(self, step: Step, steady: Steady, scattered: bool) -> np.ndarray:
        """A step of the same rows as the last one."""
        rows, parameters = steady.rows, steady.parameters
        if self.speculation is not None:
            starts = steady.inputs.positions + 1
            counts, drafted = self._with_drafts(rows, steady.counts, starts, starts + 1, step.min_accepted)
            if drafted.any():
                self._settle()
                return self._run_anew(step, rows, starts, counts, drafted)
        steady.move_on(scattered)
        hidden = steady.inputs.forward(self.model, self.kv)
        tokens = self._draw(self.model.logits(hidden), rows, parameters)
        steady.inputs.ids[:] = tokens
        if self.speculation is not None:
            self.speculation.append(rows, parameters.position, tokens)
        return tokens

    def _settle(self) -> None:
        """What was put off while the same rows decoded."""
        steady, self._steady = self._steady, None
        if steady is not None:
            rows, known = steady.rows, steady.parameters.position
            self.computed[rows], self.known[rows], self.last[rows] = known, known + 1, steady.inputs.ids

    def _run_anew(self, step: Step, rows: Ints, starts: Ints, counts: Ints, drafted: Ints) -> np.ndarray:
        """A step of which nothing is prepared: of each row `counts` tokens from `starts` on, the last ones drafts."""
        ends = starts + counts
        firsts = np.cumsum(counts) - counts
        inputs = self._inputs(rows, counts, starts)
        hidden = inputs.forward(self.model, self.kv)
        self.told.write_prompts(rows, firsts, counts, starts, self.log, lambda at: self.model.logits(hidden[at]))
        self.computed[rows] = ends - drafted
        samples = ends - drafted == self.known[rows]
        rows, drafted = rows[samples], drafted[samples]
        if not rows.size:
            return np.empty(0, np.int32)
        last = (firsts + counts - 1)[samples]
        if drafted.any():
            return self._draw_many(hidden, rows, last, drafted)
        if rows.size < len(hidden):
            hidden = hidden[torch.from_numpy(last)]
        parameters = self.sampling.of(rows)
        tokens = self._draw(self.model.logits(hidden), rows, parameters)
        self.last[rows] = tokens
        self.known[rows] += 1
        if self.speculation is not None:
            self.speculation.append(rows, parameters.position, tokens)
        if rows.size == len(starts) == len(inputs.ids):
            inputs.ids[:] = tokens
            again = partial(prepare, self.model, self.kv, self._tables, rows, counts)
            self._steady = Steady(step, rows, inputs, parameters, again)
        return tokens

    def _draw(self, logits: Tensor, rows: Ints, parameters: Parameters, drafted: Ints | None = None) -> np.ndarray:
        """The token of each row at the position of its parameters, as its request wants it.

        With `drafted` a row comes once for each of its drafts and once more; what follows a wrong draft is left out.
        """
        raw = self.told.raw(logits, rows)
        if self.adjustments:
            self.failed_rows = self.adjustments.apply(logits, rows)
        tokens, positions = sample(logits, parameters), parameters.position
        if drafted is not None:
            kept = self._verify(rows, drafted, tokens)
            if raw is not None:
                told = kept[raw[0]]
                raw = (np.cumsum(kept) - 1)[raw[0][told]], raw[1][torch.from_numpy(told)]
            rows, positions, tokens = rows[kept], positions[kept], tokens[kept]
        if raw is not None:
            self.told.write(raw, rows, tokens, positions)
        if self.adjustments:
            self.adjustments.advance(rows, tokens)
        return tokens

    def _with_drafts(
        self, rows: Ints, counts: Ints, starts: Ints, known: Ints, min_accepted: float
    ) -> tuple[Ints, Ints]:
        """(what each row computes, how much of that is drafts)."""
        self.outcome = None
        pending = known - starts
        if self.speculation is None:
            return np.minimum(counts, pending), np.zeros_like(counts)
        room = np.maximum(counts - pending, 0)
        if self.adjustments:
            room[self.adjustments.among(rows)] = 0
        pending = np.minimum(counts, pending)
        work = Work(rows, starts, pending, room, self._tables, self.sampling)
        drafted = self.speculation.draft(work, min_accepted)
        return pending + drafted, drafted

    def _draw_many(self, hidden: Tensor, rows: Ints, last: Ints, drafted: Ints) -> np.ndarray:
        """Draw at the positions behind each row's next token and its drafts; `last` are their last ones in the step."""
        assert self.speculation is not None
        sizes = drafted + 1
        owners, back = np.repeat(rows, sizes), np.repeat(np.cumsum(sizes), sizes) - np.arange(sizes.sum()) - 1
        index = np.repeat(last, sizes) - back
        if len(index) < len(hidden):
            hidden = hidden[torch.from_numpy(index)]
        positions = self.known[owners] + np.repeat(drafted, sizes) - back
        parameters = self.sampling.of(owners)._replace(position=positions)
        tokens = self._draw(self.model.logits(hidden), owners, parameters, drafted)
        assert self.outcome is not None
        drawn = self.outcome.drawn
        self.speculation.append(np.repeat(rows, drawn), _counting(self.known[rows], drawn), tokens)
        self.last[rows] = tokens[np.cumsum(drawn) - 1]
        self.computed[rows] += drawn - 1
        self.known[rows] += drawn
        return tokens

    def _verify(self, owners: Ints, drafted: Ints, tokens: np.ndarray) -> Bools:
        """Which of these tokens count: those of right drafts and the one that follows."""
        assert self.speculation is not None
        rows = owners[np.cumsum(drafted + 1) - 1]
        accepted = self.speculation.accepted(rows, self.known[rows], drafted, tokens)
        self.outcome = Outcome(accepted + 1, drafted)
        place = _counting(np.zeros_like(drafted), drafted + 1)
        kept: Bools = place <= np.repeat(accepted, drafted + 1)
        return kept

    def _change_rows(self, step: Step) -> bool:
        """New rows and new blocks; whether one of these does not follow its row's last one."""
        for new in step.new_rows:
            self._place(new)
        scattered = False
        if step.packed_new_blocks:
            for row, index, block in step.new_blocks.tolist():
                self.blocks[row, index] = block
                if block != self.blocks[row, index - 1] + 1:
                    self.scattered[row] = scattered = True
        return scattered

    def _place(self, new: NewRow) -> None:
        """A sequence takes a row."""
        row, slot, drawn = new.row, slot_of(new.ref), new.sampling
        blocks = new.blocks
        self.computed[row], self.known[row], self.logged[row] = new.computed, new.known, new.known
        self.slot[row] = slot
        self.blocks[row, : blocks.size] = blocks
        self.scattered[row] = (np.diff(blocks) != 1).any()
        for name, value in drawn.row().items():
            getattr(self.sampling, name)[row] = value
        prompt, answer = self.log[slot, : new.prompt_tokens], self.log[slot, new.prompt_tokens : new.known]
        rendition = self.read_rendition(new.ref)
        self.adjustments.place(row, drawn, rendition, prompt.astype(np.int64), answer.tolist())
        self.told.place(row, slot, drawn, new.prompt_tokens)
        if self.speculation is not None:
            self.speculation.place(row, self.log[slot, : new.known], new.computed)

    def _inputs(self, rows: Ints, counts: Ints, starts: Ints) -> Inputs:
        """The tokens of a step as one flat batch."""
        owners, positions = places(rows, counts, starts)
        if self.speculation is not None:
            ids = self.speculation.tokens[owners, positions].astype(np.int64)
        else:
            ids = np.where(positions < self.logged[owners], self.log[self.slot[owners], positions], self.last[owners])
        return prepare(self.model, self.kv, self._tables, rows, counts, starts, ids)


def _counting(firsts: Ints, counts: Ints) -> Ints:
    """From each of `firsts` on so many numbers, one after the other."""
    numbers: Ints = np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    return numbers
