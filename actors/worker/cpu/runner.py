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

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.paged_kv import PagedKV
from actorserve.kernels.cpu.pool_memory import Pool
from actorserve.kernels.cpu.sampling import Parameters, log_weights, sample
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import generation_of, slot_of

from ...grammar.matchers import Matchers
from ...protocol.request import Rendition
from ...protocol.sampling.fields import row_types
from ...protocol.step import LOOKS, NewRow, Step
from ..logits.processors import LogitsProcessors
from ..logprobs import LogprobsWriter
from ..lora.sites import RowAdapters
from ..speculative.jumps import Jumps, find_jumps
from ..speculative.verifier import Computed, DraftBatch, DraftOutcome, DraftVerifier
from .batch import BatchInputs, counting, prepare_inputs, row_positions
from .decoder import Decoder
from .hidden_states import HiddenStatesWriter
from .layers.native import awake, current
from .memory.row_blocks import RowBlocks
from .memory.states import RowStates, StepStates
from .memory.window_tables import AnyKV, TabledKV
from .prompt_embeds import RowEmbeds
from .steady_decode import SteadyDecode

if TYPE_CHECKING:
    from ...protocol.wire import Numbers
    from ..vision.rows import VisionRows

PLAIN = Rendition()
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]


class CpuRunner:
    """Runs steps on one model and its KV memory."""

    def __init__(
        self,
        model: Decoder,
        pools: Sequence[Pool] | Any,
        log: np.ndarray,
        block_size: int,
        rows: int,
        read_rendition: Callable[[int], Rendition] = lambda ref: PLAIN,
        logprobs: Logprobs | None = None,
        make_matchers: Callable[[], Matchers] | None = None,
        verifier: DraftVerifier | None = None,
        states: RowStates | None = None,
        vision: VisionRows | None = None,
    ) -> None:
        """`pools` as make_pools makes them, or memory in several tables or on a GPU; `log` are the token ids of the
        request table [slots, tokens].

        `read_rendition` gives what the renderer made of a ref's request; `logprobs` takes what requests ask for;
        `make_matchers` is called when the first request has a grammar; `verifier` makes drafts;
        `states` are those that the model keeps of rows; `vision` is there where the model sees pictures.
        """
        self.model = model
        self._library = current()
        rules = model.batch_invariant, model.dtype, self._library, model.precision != model.dtype
        self.kv: AnyKV = PagedKV(model.kv, pools, block_size, *rules) if isinstance(pools, Sequence) else pools
        self.log = log
        self.block_size = block_size
        self.computed, self.known, self.logged = (np.zeros(rows, np.int64) for _ in range(3))
        self.slot, self.last = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        strides = pools.strides if isinstance(pools, TabledKV) else None
        self.blocks = RowBlocks(rows, -(-log.shape[1] // block_size), strides)
        self.sampling = Parameters(
            **{name: np.zeros(rows, dtype) for name, dtype in row_types().items()}, position=self.known
        )
        self.read_rendition = read_rendition
        self.logits_processors = LogitsProcessors(rows, model.vocab_size, make_matchers)
        self.logprobs = LogprobsWriter(logprobs, rows)
        self.verifier = verifier
        self.outcome: DraftOutcome | None = None  # of the last step, where rows had drafts
        self._jumps: Jumps | None = None  # of this step
        self.lora: RowAdapters | None = None  # of --enable-lora
        self.states = states or None  # of no model with drafts: a rejected one cannot be taken back from them
        assert self.states is None or verifier is None
        self.vision = vision
        self.embeds: RowEmbeds | None = None  # of --enable-prompt-embeds
        self.hidden_states: HiddenStatesWriter | None = None  # of --enable-return-hidden-states, in who reports
        self.failed_rows: Numbers = ()  # of the last step, as StepDone has them
        self._steady: SteadyDecode | None = None  # while it is there, `computed`, `known` and `last` of its rows wait

    def run(self, step: Step) -> np.ndarray:
        """The tokens (int32) of the rows that sample, in the order of the step's rows."""
        self.failed_rows = ()
        if self._steady is not None and not self._steady.goes_on(step):
            self._settle()
        scattered = self._change_rows(step)
        if self.vision is not None and step.packed_looks:
            for row, position, share in step.looks.tolist():
                self.vision.look(row, position, share / LOOKS)
        with awake(self._library, step.num_tokens):
            tokens = self._compute(step, scattered)
        if self.vision is not None and (broken := self.vision.broken[step.rows]).any():  # whether they draw or not
            self.failed_rows = [*self.failed_rows, *(~step.rows[broken]).tolist()]
        if self.states is not None and step.packed_saves:
            for row, snapshot in step.saves.tolist():
                self.states.save(row, snapshot)
        return tokens

    def _compute(self, step: Step, scattered: bool) -> np.ndarray:
        if self._steady is not None:
            return self._run_steady(step, self._steady, scattered)
        rows = step.rows
        starts = self.computed[rows]
        counts, drafted = self._with_drafts(rows, step.counts, starts, self.known[rows], step.min_accepted)
        return self._run_anew(step, rows, starts, counts, drafted)

    def _forward(self, inputs: BatchInputs, rows: Ints, starts: Ints, counts: Ints) -> Tensor:
        """The last layer's output for each token of a step, whose rows' states are then behind it."""
        own = counts if len(inputs.ids) > len(rows) else np.ones_like(rows)  # without room for drafts
        if self.vision is not None:
            self.model.step = self.vision.step(rows, starts, own)  # type: ignore[attr-defined]
        if self.embeds is not None:
            self.model.given = self.embeds.step(rows, starts, own, self.model.shape.hidden_size)  # type: ignore[attr-defined]
        if self.lora is not None:
            self.lora.begin(rows, counts if len(inputs.ids) > len(rows) else None)
        states = None if self.states is None else StepStates.of(self.states, rows, starts)
        hidden = inputs.forward(self.model, self.kv, states)
        if self.states is not None:
            self.states.length[rows] = starts + counts
        if self.hidden_states is not None:
            self.hidden_states.write(rows, starts, own, hidden)
        return hidden

    def _run_steady(self, step: Step, steady: SteadyDecode, scattered: bool) -> np.ndarray:
        """A step of the same rows as the last one."""
        rows, parameters = steady.rows, steady.parameters
        self.outcome = self._jumps = None
        if self.verifier is not None and (steady.has_room or self.verifier.follows):
            starts = steady.inputs.positions + 1
            counts, drafted = self._with_drafts(rows, steady.counts, starts, starts + 1, step.min_accepted)
            if drafted.any() or self._jumps is not None:
                self._settle()
                return self._run_anew(step, rows, starts, counts, drafted)
        steady.move_on(scattered)
        hidden = self._forward(steady.inputs, rows, steady.inputs.positions, steady.counts)
        tokens = self._draw(self._logits(hidden), rows, parameters)
        steady.inputs.ids[:] = tokens
        if self.verifier is not None:
            self.verifier.append(rows, parameters.position, tokens)
            counts = np.ones_like(rows)
            self._observe(rows, steady.inputs.positions, counts, np.arange(len(rows)), hidden)
        return tokens

    def _logits(self, hidden: Tensor, tokens: Ints | None = None) -> Tensor:
        """`tokens`: which of the step's these are; None: all, in their order."""
        if self.lora is None:
            return self.model.logits(hidden)
        with self.lora.drawing(tokens):
            return self.model.logits(hidden)

    def _settle(self) -> None:
        """What was put off while the same rows decoded."""
        steady, self._steady = self._steady, None
        if steady is not None:
            rows, known = steady.rows, steady.parameters.position
            self.computed[rows], self.known[rows], self.last[rows] = known, known + 1, steady.inputs.ids

    def _run_anew(self, step: Step, rows: Ints, starts: Ints, counts: Ints, drafted: Ints) -> np.ndarray:
        """A step of which nothing is prepared: of each row `counts` tokens from `starts` on, the last ones drafts."""
        firsts, jumps = np.cumsum(counts) - counts, self._jumps
        if jumps is not None:
            self.known[rows] += jumps.counts
        inputs = self._inputs(rows, counts, starts)
        hidden = self._forward(inputs, rows, starts, counts)
        if jumps is not None:
            self._tell_jumps(jumps, hidden, rows, firsts)
        made = lambda at: self._logits(hidden[torch.from_numpy(at)], at)  # noqa: E731
        for told in self.logprobs.of_prompts(rows, firsts, counts, starts, self.log, made):
            self.logprobs.store(told)
        self.computed[rows] = starts + counts - drafted
        samples = self.computed[rows] == self.known[rows]
        tokens = self._sample(hidden, rows[samples], (firsts + counts - 1)[samples], drafted[samples])
        if jumps is not None:
            tokens, self.outcome = jumps.joined(samples, tokens, self.outcome)
        self._observe(rows, starts, self.computed[rows] - starts, firsts, hidden)
        if samples.all() and len(rows) == len(inputs.ids):
            inputs.ids[:] = tokens
            parameters = self.sampling.of(rows)._replace(position=self.known[rows] - 1)
            again = partial(prepare_inputs, self.model.attention, self.kv, self.blocks.tables, rows, counts)
            self._steady = SteadyDecode(step, rows, inputs, parameters, again)
        return tokens

    def _tell_jumps(self, jumps: Jumps, hidden: Tensor, rows: Ints, firsts: Ints) -> None:
        """The logprobs of tokens that were not drawn, where they are wanted."""
        owners = np.repeat(rows, jumps.counts)
        asked = self.logprobs.wanted(owners)  # a group's members make their logits together
        if not asked.size:
            return
        index = jumps.places(firsts)[asked]
        positions = jumps.places(self.known[rows] - jumps.counts)[asked]
        logits = self._logits(hidden[torch.from_numpy(index)], index)
        raw = np.arange(len(asked)), logits
        forced = torch.from_numpy(jumps.tokens[asked]).long()[:, None]
        certain = torch.full_like(logits, -torch.inf).scatter_(1, forced, 0)
        self.logprobs.as_drawn(raw, owners[asked], lambda at: certain[torch.from_numpy(at)])
        self.logprobs.write(raw, owners[asked], jumps.tokens[asked], positions)

    def _sample(self, hidden: Tensor, rows: Ints, last: Ints, drafted: Ints) -> np.ndarray:
        """Draw the next token of these rows, or of each several; `last` are their last positions in the flat batch."""
        if not rows.size:
            return np.empty(0, np.int32)
        if drafted.any():
            return self._draw_many(hidden, rows, last, drafted)
        if rows.size < len(hidden):
            hidden = hidden[torch.from_numpy(last)]
        parameters = self.sampling.of(rows)
        tokens = self._draw(self._logits(hidden, last), rows, parameters)
        self.last[rows] = tokens
        self.known[rows] += 1
        if self.verifier is not None:
            self.verifier.append(rows, parameters.position, tokens)
        return tokens

    def _observe(self, rows: Ints, starts: Ints, counts: Ints, firsts: Ints, hidden: Tensor) -> None:
        """Show whoever drafts what was computed: of each row `counts` tokens, the first one `firsts` in the batch."""
        if self.verifier is None or self.verifier.observer is None:
            return
        total = int(counts.sum())
        index = slice(None) if total == len(hidden) else torch.from_numpy(counting(firsts, counts))
        read = self.verifier.observer.read(hidden, index)
        self.verifier.observe(Computed(rows, starts, counts, self.blocks.tables, read))

    def _draw(self, logits: Tensor, rows: Ints, parameters: Parameters, drafted: Ints | None = None) -> np.ndarray:
        """The token of each row at the position of its parameters, as its request wants it.

        With `drafted` a row comes once for each of its drafts and once more; what follows a wrong draft is left out.
        """
        raw = self.logprobs.raw(logits, rows)
        if self.logits_processors:
            self.failed_rows = self.logits_processors.apply(logits, rows)
        tokens, positions = sample(logits, parameters), parameters.position
        if raw is not None:
            weights = partial(_weights_of, logits, parameters)
            self.logprobs.as_drawn(raw, rows, weights)
        if drafted is not None:
            kept = self._verify(rows, drafted, tokens)
            if raw is not None:
                told = kept[raw[0]]
                raw = (np.cumsum(kept) - 1)[raw[0][told]], raw[1][torch.from_numpy(told)]
            rows, positions, tokens = rows[kept], positions[kept], tokens[kept]
        if raw is not None:
            self.logprobs.write(raw, rows, tokens, positions)
        if self.logits_processors:
            self.logits_processors.advance(rows, tokens)
        return tokens

    def _with_drafts(
        self, rows: Ints, counts: Ints, starts: Ints, known: Ints, min_accepted: float
    ) -> tuple[Ints, Ints]:
        """(what each row computes, how much of that is drafts)."""
        self.outcome = self._jumps = None
        pending = known - starts
        if self.verifier is None:
            return np.minimum(counts, pending), np.zeros_like(counts)
        room = np.maximum(counts - pending, 0)
        pending = np.minimum(counts, pending)
        if self.logits_processors:
            among = self.logits_processors.among(rows)
            self._jumps = find_jumps(self.logits_processors, among, rows, known, room, self.verifier.tokens)
            room[among] = 0
            if self._jumps is not None:
                pending = pending + self._jumps.counts
        work = DraftBatch(rows, starts, pending, room, self.blocks.first, self.sampling)
        drafted = self.verifier.draft(work, min_accepted)
        return pending + drafted, drafted

    def _draw_many(self, hidden: Tensor, rows: Ints, last: Ints, drafted: Ints) -> np.ndarray:
        """Draw at the positions behind each row's next token and its drafts; `last` are their last ones in the step."""
        assert self.verifier is not None
        sizes = drafted + 1
        owners, back = np.repeat(rows, sizes), np.repeat(np.cumsum(sizes), sizes) - np.arange(sizes.sum()) - 1
        index = np.repeat(last, sizes) - back
        if len(index) < len(hidden):
            hidden = hidden[torch.from_numpy(index)]
        positions = self.known[owners] + np.repeat(drafted, sizes) - back
        parameters = self.sampling.of(owners)._replace(position=positions)
        tokens = self._draw(self._logits(hidden, index), owners, parameters, drafted)
        assert self.outcome is not None
        drawn = self.outcome.drawn
        self.verifier.append(np.repeat(rows, drawn), counting(self.known[rows], drawn), tokens)
        self.last[rows] = tokens[np.cumsum(drawn) - 1]
        self.computed[rows] += drawn - 1
        self.known[rows] += drawn
        return tokens

    def _verify(self, owners: Ints, drafted: Ints, tokens: np.ndarray) -> Bools:
        """Which of these tokens count: those of right drafts and the one that follows."""
        assert self.verifier is not None
        rows = owners[np.cumsum(drafted + 1) - 1]
        accepted = self.verifier.accepted(rows, self.known[rows], drafted, tokens)
        self.outcome = DraftOutcome(accepted + 1, drafted)
        place = counting(np.zeros_like(drafted), drafted + 1)
        kept: Bools = place <= np.repeat(accepted, drafted + 1)
        return kept

    def _change_rows(self, step: Step) -> bool:
        """New rows and new blocks; whether one of these does not follow its row's last one."""
        for new in step.new_rows:
            self._place(new)
        return self.blocks.add(step.new_blocks) if step.packed_new_blocks else False

    def _place(self, new: NewRow) -> None:
        """A sequence takes a row."""
        row, slot, drawn = new.row, slot_of(new.ref), new.sampling
        self.computed[row], self.known[row], self.logged[row] = (
            new.num_computed_tokens,
            new.num_known_tokens,
            new.num_known_tokens,
        )
        self.slot[row] = slot
        if self.lora is not None:
            self.lora.place(row, new.adapter)
        if self.states is not None:
            self.states.begin(row, new.num_computed_tokens, new.snapshot)
        self.blocks.place(row, new.blocks)
        for name, value in drawn.row().items():
            getattr(self.sampling, name)[row] = value
        rendition = self._render(row, new)
        prompt, answer = (
            self.log[slot, self._begin(row) : new.num_prompt_tokens],
            self.log[slot, new.num_prompt_tokens : new.num_known_tokens],
        )
        if self.vision is not None:
            self.vision.place(row, slot, generation_of(new.ref), prompt.astype(np.int64))
        if self.embeds is not None:
            prompt = prompt[self.embeds.place(row, new.ref) :]
        place = new.ref, new.num_known_tokens
        self.logits_processors.place(row, drawn, rendition, prompt.astype(np.int64), answer.tolist(), place)
        self.logprobs.place(row, new.ref, drawn, new.num_prompt_tokens)
        if self.hidden_states is not None:
            self.hidden_states.place(row, new.ref, drawn.hidden_states)
        if self.verifier is not None:
            self.verifier.place(row, self.log[slot, : new.num_known_tokens], new.num_computed_tokens)

    def _render(self, row: int, new: NewRow) -> Rendition:
        """What was made of its request."""
        return self.read_rendition(new.ref)

    def _begin(self, row: int) -> int:
        """Where in a row's log the tokens begin that its text goes on with."""
        return 0

    def _inputs(self, rows: Ints, counts: Ints, starts: Ints) -> BatchInputs:
        """The tokens of a step as one flat batch."""
        owners, positions = row_positions(rows, counts, starts)
        if self.verifier is not None:
            ids = self.verifier.tokens[owners, positions].astype(np.int64)
        else:
            ids = np.where(positions < self.logged[owners], self.log[self.slot[owners], positions], self.last[owners])
        return prepare_inputs(self.model.attention, self.kv, self.blocks.tables, rows, counts, starts, ids)


def _weights_of(logits: Tensor, parameters: Parameters, at: Ints) -> Tensor:
    """What some of a step's rows draw from."""
    return log_weights(logits[torch.from_numpy(at)], parameters.of(at))
