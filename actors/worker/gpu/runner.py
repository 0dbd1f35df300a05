"""Steps on a GPU: started one after the other, their tokens fetched when the device has come so far.

The host knows of every row how many tokens are computed and known, and so what each step does, without having seen the
tokens: these stay on the device (rows.py), where the next step takes them as its input. So a step can be started
while the one before it runs, and the device never waits for Python. Exceptions are rows whose masks the host makes of
the tokens (sampler.py).

A step is a forward pass, which ends with what the drawing rows' logits are made of, and then what is drawn of these.
Both are graphs (graphs.py), over buffers that stay; the host sends the numbers of a step in one piece (buffers.py):
    a step of decoding alone    filled up with rows that are none
    any other                   rows of one token first, then chunks of prompts; both filled up with rows without
                                tokens, and a last row that is none has all tokens that fill up
A step that no graph holds is started kernel by kernel, as large as it is. In the interpreter of Triton all of it runs
on a CPU, too, over the same buffers: that is how it is tested where no GPU is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.triton.rotary_kv import Pools
from actorserve.kernels.triton.step_inputs import StepInputs, make_inputs
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import generation_of, slot_of

from ...grammar.matchers import Matchers
from ...protocol.request import Rendition
from ...protocol.step import NewRow, Step
from ..speculative.verifier import DraftOutcome
from .buffers import BufferPool, Sizes, StepBuffers, StepNumbers, fill_up
from .executor import GpuBatch, GpuModel, Hidden
from .given_rows import NUMBERS, PromptRows
from .graphs import Graphs, StepSize, capture_sizes, size_for, smallest
from .layers.scratch import SplitScratch
from .lora.slots import AdapterSlots
from .lora.steps import AdaptedSteps
from .pictures import StepPictures, numbers_of
from .rows import DeviceRows
from .sampler import PendingStep, RowWork, Sampler

if TYPE_CHECKING:
    from ...protocol.wire import Numbers
    from ..cpu.prompt_embeds import RowEmbeds
    from ..vision.rows import VisionRows

PLAIN = Rendition()
STARTED = 4  # steps that are there at a time, at most: those that were planned ahead, and the one that is told of


class GpuRunner:
    """Runs steps on one model and its KV memory."""

    sampler_type: ClassVar[type[Sampler]] = Sampler

    def __init__(
        self,
        model: GpuModel,
        log: np.ndarray,
        sizes: Sizes,
        capture: Sequence[int],
        read_rendition: Callable[[int], Rendition] = lambda ref: PLAIN,
        logprobs: Logprobs | None = None,
        make_matchers: Callable[[], Matchers] | None = None,
        mixed: Sequence[StepSize] = (),
        vision: VisionRows | None = None,
        embeds: RowEmbeds | None = None,
    ) -> None:
        """`log`: the token ids of the request table [slots, tokens]; `capture`: batch sizes of graphs, ascending;
        `mixed`: sizes of those for steps with prompts; `vision` is there where the model sees pictures, `embeds`
        where prompts may be embeddings; not both.

        The KV memory is set afterwards (`pools`, one of each layer), when it is known how much there can be.
        """
        said = 0 if embeds is None else NUMBERS
        sizes = sizes._replace(seen=said if vision is None else numbers_of(vision.spec))
        self.model, self.log, self.sizes = model, log, sizes
        self.device = device = model.device
        self.pools: list[Pools] = []
        self.computed, self.known, self.logged, self.slot = (np.zeros(sizes.rows, np.int64) for _ in range(4))
        width = -(-max(sizes.length, log.shape[1]) // sizes.block_size)  # of a table, as the scheduler counts it
        self.rows = DeviceRows(sizes.rows, sizes.tables * width, device)
        self.read_rendition = read_rendition
        self.failed_rows: Numbers = ()  # of the step that was finished last, those whose grammar has failed
        self.outcome: DraftOutcome | None = None  # likewise, where rows had drafts
        self.decoding = Graphs(capture, self._decode, device)
        self.mixed = Graphs(mixed, self._compute, device)
        self.adapted: AdaptedSteps | None = None  # with --enable-lora
        self.pictures = None if vision is None else StepPictures(vision, sizes, model)
        self.embeds = None if embeds is None else PromptRows(embeds, sizes, model)
        self._numbers = torch.zeros(sum(StepNumbers.counts(sizes)), dtype=torch.int64, device=device)
        self._at = StepNumbers.of(self._numbers, sizes)
        self._at_decoding = StepNumbers.decoding(self._numbers, sizes)
        for rows in (self._at.asking, self._at.masks, self._at.leaving, self._at.drawing, self._at.rows):
            rows.fill_(-1)  # there are none before the first step
        self._buffers = BufferPool(sizes, device)
        entries = self.rows.state.table.shape[1]
        self._inputs = StepInputs.make(sizes.listed, len(self._at.given), entries, device, sizes.tables)
        self._inputs.fill()
        self._starts = torch.arange(sizes.rows + 1, device=device)
        drawn = capture_sizes([], sizes.draws) if sizes.drafts else capture
        self.sampler = self.sampler_type(model, sizes, self.rows, self._numbers, drawn, logprobs, make_matchers)
        counts = {*self.decoding.sizes, *(size.decoding for size in self.mixed.sizes), sizes.rows}
        self.scratch = SplitScratch(model.shape, sizes.length, counts, device)
        uneven = [] if model.batch_invariant else [size for size in capture if self.scratch.divides(size)]
        self.uneven = Graphs(uneven, self._decode_uneven, device)
        if model.lora is not None:
            kinds = self.decoding, self.uneven, self.mixed
            self.adapted = AdaptedSteps(AdapterSlots(model.lora), sizes, model, *kinds)

    @property
    def pending(self) -> Sequence[PendingStep]:
        """Steps that were started and not finished, the oldest first."""
        return self.sampler.pending

    # --- a step --------------------------------------------------------------------------------------------------

    def run(self, step: Step) -> np.ndarray:
        """The tokens (int32) of the rows that sample, in the order of the step's rows."""
        return self.finish(self.launch(step))

    def launch(self, step: Step) -> PendingStep:
        """Start a step behind those that were started. To be finished in the same order."""
        if step.new_rows:
            self.sampler.settle_drawn()
        buffers = self._buffers.take()
        buffers.begin()
        self._change_rows(step, buffers)
        work = self._plan(step)
        seeing = any(one is not None and one.begin(buffers, work) for one in (self.pictures, self.embeds))
        self._before(buffers, work)
        pending = PendingStep(work, buffers)
        self.known[work.rows] = work.known + work.draws
        few = self._decoding_size(work) if pending.decodes and not seeing else None
        size = self._start(pending) if few is None else self._start_decoding(buffers, few, work)
        self.sampler.draw(pending)
        self._after(size)
        if self.pictures is not None:
            self.pictures.tell_broken(pending)
        pending.event = buffers.end()
        self.sampler.pending.append(pending)
        return pending

    def finish(self, pending: PendingStep) -> np.ndarray:
        """Wait for a step, the oldest that was not finished; its tokens."""
        tokens = self._counted(pending, self.sampler.finish(pending))
        pending.seconds = pending.buffers.seconds
        self._buffers.give_back(pending.buffers)
        self.failed_rows = pending.failed_rows
        return tokens

    def _plan(self, step: Step) -> RowWork:
        """What each row does, which is done from now on as far as plans go."""
        rows, counts = step.rows, step.counts
        firsts, known = self.computed[rows], self.known[rows]
        ends = firsts + counts
        self.computed[rows] = ends
        return RowWork(rows, counts, firsts, firsts, known, (ends == known).astype(np.int64))

    def _before(self, buffers: StepBuffers, work: RowWork) -> None:
        """What the device is given before the forward pass."""

    def _after(self, size: int | StepSize) -> None:
        """What it is given behind the tokens of a step, whose numbers and inputs are still there."""

    def _counted(self, pending: PendingStep, tokens: np.ndarray) -> np.ndarray:
        """Of the tokens that were drawn, those that count."""
        return tokens

    def _change_rows(self, step: Step, buffers: StepBuffers) -> None:
        last = [self._place(new) for new in step.new_rows]
        self.sampler.processors.upload()
        if step.new_rows or step.packed_new_blocks:
            self.rows.change(step, last, buffers)
        if self.pictures is not None:
            self.pictures.look(step)

    def _place(self, new: NewRow) -> int:
        """A sequence takes a row; the last token of its log."""
        row, slot = new.row, slot_of(new.ref)
        self.computed[row], self.known[row], self.logged[row], self.slot[row] = (
            new.num_computed_tokens,
            new.num_known_tokens,
            new.num_known_tokens,
            slot,
        )
        prompt, answer = (
            self.log[slot, : new.num_prompt_tokens],
            self.log[slot, new.num_prompt_tokens : new.num_known_tokens],
        )
        given = 0 if self.embeds is None else self.embeds.place(row, new.ref)  # which have no tokens
        self.sampler.place(row, new.sampling, self.read_rendition(new.ref), prompt[given:], answer, given)
        self.sampler.logprobs.place(row, new.ref, new.sampling, new.num_prompt_tokens)
        if self.adapted is not None:
            self.adapted.place(row, new.adapter)
        if self.pictures is not None:
            self.pictures.place(new, slot, generation_of(new.ref), prompt)
        return int(self.log[slot, new.num_known_tokens - 1])

    # --- decoding alone ------------------------------------------------------------------------------------------

    def _decoding_size(self, work: RowWork) -> int | None:
        """To how many rows such a step is filled up; None: it is started as any other."""
        return size_for(self.decoding.sizes, work.rows.size)

    def _start_decoding(self, buffers: StepBuffers, size: int, work: RowWork) -> int:
        numbers, count = buffers.numbers, work.rows.size
        numbers.drawing[:count] = work.rows
        numbers.drawing[count:] = -1  # the graph that draws may be of more rows than this one
        numbers.firsts[:count] = work.sent
        buffers.send_decoding(self._at_decoding)
        adapted = self.adapted if self.adapted is not None and self.adapted.begin(buffers, size, work.rows) else None
        uneven = size in self.uneven.sizes and self.scratch.is_uneven(size, self.computed[work.rows])
        steps = self if adapted is None else adapted
        (steps.uneven if uneven else steps.decoding).step(size)
        return size

    def _decode(self, size: int) -> None:
        """The forward pass of so many rows, on the buffers."""
        rows, firsts, starts = self._at.drawing[:size], self._at.firsts[:size], self._starts[: size + 1]
        inputs = self._inputs.part(size, size)
        self._make_inputs(rows, starts, firsts, inputs, 1)
        self.sampler.keep(self._forward(self._seen(GpuBatch(inputs, size, None, self.scratch.of(size)))))

    def _decode_uneven(self, size: int) -> None:
        """The same, with long rows divided."""
        with self.scratch.uneven():
            self._decode(size)

    def _make_inputs(
        self,
        rows: Tensor,
        starts: Tensor,
        firsts: Tensor,
        inputs: StepInputs,
        longest: int,
        given: Tensor | None = None,
    ) -> None:
        state, sizes = self.rows.state, self.sizes
        make_inputs(rows, starts, firsts, state, inputs, sizes.block_size, longest, given, sizes.window)

    def _seen(self, batch: GpuBatch, given: bool = False) -> GpuBatch:
        """With what its tokens have of pictures; `given`: some may be embeddings, of these or of prompts."""
        if self.embeds is not None and given:
            batch = self.embeds.among(batch)
        return batch if self.pictures is None else self.pictures.among(batch, given)

    def _forward(self, batch: GpuBatch) -> Hidden:
        return self.model.forward(batch, self.pools)

    # --- any other step ------------------------------------------------------------------------------------------

    def _start(self, pending: PendingStep) -> int | StepSize:
        """How large the step is that was started."""
        buffers, work, drawing = pending.buffers, pending.work, pending.rows
        rows, counts, firsts = work.rows, work.counts, work.firsts
        starts = np.concatenate([[0], np.cumsum(counts)])
        several = np.flatnonzero(counts > 1)
        decoding = int(several[0]) if several.size else rows.size  # rows of one token before the first chunk
        step = StepSize(int(starts[-1]), decoding, rows.size - decoding)
        told = self.sampler.logprobs.prompts_among(rows)
        size = step if told else smallest(self.mixed.sizes, step) or step
        numbers = buffers.numbers
        fill_up(numbers, size, step, starts, work.rows, work.sent, work.draws)
        numbers.drawing[:] = -1
        numbers.drawing[: drawing.size] = drawing
        numbers.last[:] = 0
        apart = starts[1:] - np.cumsum(work.draws)
        numbers.last[: drawing.size] = np.repeat(apart, work.draws) + np.arange(drawing.size)
        owners = np.repeat(rows, counts)
        positions = np.arange(step.tokens) + np.repeat(firsts - starts[:-1], counts)
        known = self.log[self.slot[owners], positions]
        numbers.given[: step.tokens] = np.where(positions < self.logged[owners], known, -1)
        behind = len(self._at.given) - step.tokens + len(self._at.drafting) + len(self._at.wanted)
        buffers.send(self._numbers, 3 * len(self._at.drawing), len(self._numbers) - behind)
        adapted = self.adapted
        if adapted is not None and not adapted.begin(buffers, size.tokens, rows, counts):
            adapted = None
        if not told:
            (self.mixed if adapted is None else adapted.mixed).step(size)
            return size
        with nullcontext() if adapted is None else adapted.giving(size.tokens):
            hidden = self._compute(size)
        self.sampler.tell_prompts(pending, starts[:-1], hidden, self.log)
        return size

    def _compute(self, size: StepSize) -> Hidden:
        """The forward pass of a step of this size, on the buffers; what is given back is there as long as no graph
        runs."""
        n, at = size.rows, self._at
        rows, starts, firsts = at.rows[: n + 1], at.starts[: n + 2], at.firsts[: n + 1]
        given = at.given[: size.tokens]
        inputs = self._inputs.part(n + 1, size.tokens)
        self._make_inputs(rows, starts, firsts, inputs, size.tokens, given)
        self._add_inputs(rows, starts, inputs)
        keys = self.pools[self.scratch.layer].keys
        hidden = self._forward(self._seen(self._batch(size, self.scratch, keys), given=True))
        self.sampler.keep(hidden.of(at.last[: self._draws(size)]))
        return hidden

    def _batch(self, size: StepSize, scratch: SplitScratch, keys: Tensor) -> GpuBatch:
        """What a step of this size is, whose inputs are made; `keys`: such as are read."""
        n = size.rows
        begins = self._at.starts[size.decoding : n + 1].int() if size.chunks else None
        beside = None if begins is None else scratch.of_chunks(size.tokens, size.chunks, keys)
        own = scratch.of(max(1, size.decoding))
        return GpuBatch(self._inputs.part(n, size.tokens), size.decoding, begins, own, beside)

    def _add_inputs(self, rows: Tensor, starts: Tensor, inputs: StepInputs) -> None:
        """What else is to be written into the inputs of a step that are made."""

    def _draws(self, size: StepSize) -> int:
        """Tokens that a step of this size may draw."""
        return min(size.tokens if self.sizes.drafts else size.rows, len(self._at.last))

    # --- before the first step -----------------------------------------------------------------------------------

    def profile_steps(self) -> None:
        """Steps up to the largest, of rows that are none: for the memory that they take, and so that all kernels are
        compiled and loaded. Which kernel multiplies depends on the number of tokens; ours know two ways to decode, and
        two to compute chunks."""
        profiled = self._profiled()
        for size in profiled:
            self.sampler.try_out(self._draws(size), self._compute(size))
        self.decoding.step(self.decoding.sizes[-1])
        if self.adapted is not None:  # there are two ways to add what adapters do
            for size in (profiled[0], *profiled[-2:]):
                self.adapted.mixed.step(size)
        made = [self._buffers.take() for _ in range(STARTED)]  # pinning memory may wait for the device
        self.rows.try_out(made[0])
        for buffers in made:
            self._buffers.give_back(buffers)

    def _profiled(self) -> list[StepSize]:
        rows, tokens = self.sizes.rows, self.sizes.tokens
        sizes = [StepSize(1, 1, 0), StepSize(rows, rows, 0)]
        counts = sorted({min(1 << power, tokens) for power in range(4, tokens.bit_length() + 1)})
        sizes += [StepSize(count, 0, max(1, min(rows, count // 2))) for count in counts]
        return [*sizes, *self.mixed.sizes[-1:]]

    def try_graphs(self) -> None:
        """The largest step of each kind, of rows that are none."""
        for graphs in self._graphs().values():
            graphs.step(graphs.sizes[-1])

    def own_bytes(self, free: Callable[[], int]) -> int:
        """What the graphs will take of the device beside the memory they compute in; `free`: bytes that are left.

        Each kind is tried in a pool of its own: when the graphs of one are gone, torch takes no others into its pool.
        """
        handle = torch.cuda.graph_pool_handle
        return sum(graphs.own_bytes(handle(), name, free) for name, graphs in self._graphs().items())

    def capture(self) -> int:
        """Make the graphs, in the same memory, as one runs after the other; how many there are."""
        pool = torch.cuda.graph_pool_handle()
        return sum(graphs.capture(pool, name) for name, graphs in self._graphs().items())

    def _graphs(self) -> dict[str, Graphs[Any]]:
        """Each kind that there is, those first that take most memory."""
        kinds: dict[str, Graphs[Any]] = {"prompts": self.mixed, "decoding": self.decoding}
        kinds["decoding, some rows long"] = self.uneven
        if self.adapted is not None:
            kinds |= {"prompts, adapters": self.adapted.mixed, "decoding, adapters": self.adapted.decoding}
            kinds["decoding, some rows long, adapters"] = self.adapted.uneven
        sampler = self.sampler
        kinds |= {"rows that ask": sampler.changing, "rows": sampler.plain, "greedy rows": sampler.greedy}
        return {name: graphs for name, graphs in kinds.items() if graphs.sizes}
