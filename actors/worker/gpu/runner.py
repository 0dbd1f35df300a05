"""Steps on a GPU: started one after the other, their tokens fetched when the device has come so far.

The host knows of every row how many tokens are computed and known, and so what each step does, without having seen the
tokens: these stay on the device (rows.py), where the next step takes them as its input. So a step can be started
while the one before it runs, and the device never waits for Python. Exceptions are rows with grammars, bad words or
thinking budgets (processors.py): in a step with such rows the host waits for the tokens of the step before and makes
masks of them while the device computes logits already.

    a step of decoding alone    one graph, from row numbers to drawn tokens (graphs.py); where rows ask for something,
                                another behind it, which changes logits and draws again
    any other                   started kernel by kernel; rows of one token first, then chunks of prompts
In the interpreter of Triton all of it runs on a CPU, too, without graphs: that is how it is tested where no GPU is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.triton import paged_prefill
from actorserve.kernels.triton.paged_decode import Scratch, split_count
from actorserve.kernels.triton.rotary_kv import Pools
from actorserve.kernels.triton.step_inputs import StepInputs, make_inputs
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import slot_of

from ...grammar.matchers import Matchers
from ...protocol.request import Rendition
from ...protocol.step import NewRow, Step
from .executor import GpuBatch, GpuModel, Hidden
from .graphs import DecodeGraphs
from .rows import DeviceRows, Ints, to_device
from .sampler import PendingStep, Sampler, Sizes

if TYPE_CHECKING:
    from ...protocol.wire import Numbers

PLAIN = Rendition()
PROCESSORS = 16  # multiprocessors that there are taken to be where there is no GPU


class GpuRunner:
    """Runs steps on one model and its KV memory."""

    def __init__(
        self,
        model: GpuModel,
        log: np.ndarray,
        sizes: Sizes,
        capture: Sequence[int],
        read_rendition: Callable[[int], Rendition] = lambda ref: PLAIN,
        logprobs: Logprobs | None = None,
        make_matchers: Callable[[], Matchers] | None = None,
    ) -> None:
        """`log`: the token ids of the request table [slots, tokens]; `capture`: batch sizes of graphs, ascending.

        The KV memory is set afterwards (`pools`, one of each layer), when it is known how much there can be.
        """
        self.model, self.log, self.sizes = model, log, sizes
        self.device = device = model.device
        self.pools: list[Pools] = []
        self.computed, self.known, self.logged, self.slot = (np.zeros(sizes.rows, np.int64) for _ in range(4))
        self.rows = DeviceRows(sizes.rows, -(-sizes.length // sizes.block_size), device)
        self.read_rendition = read_rendition
        self.failed_rows: Numbers = ()  # of the step that was finished last, those whose grammar has failed
        self.sampler = Sampler(model.shape.vocab_size, model.dtype, sizes, self.rows, capture, logprobs, make_matchers)
        self.graphs = DecodeGraphs(capture, self._decode_buffers, device)
        self._make_buffers(max(capture, default=1))

    def _make_buffers(self, largest: int) -> None:
        """What graphs read and write: it stays where it is."""
        sizes, shape, device = self.sizes, self.model.shape, self.device
        self._starts = torch.arange(largest + 1, device=device)
        self._inputs = StepInputs.make(largest, largest, self.rows.state.table.shape[1], device)
        cuda = device.type == "cuda"
        processors = torch.cuda.get_device_properties(device).multi_processor_count if cuda else PROCESSORS
        self._processors = processors
        self._splits = {
            size: split_count(size, shape.kv_heads, sizes.length, processors)
            for size in (*self.graphs.sizes, sizes.rows)
        }
        most = max(size * splits for size, splits in self._splits.items())
        self._partial = torch.empty(most * shape.heads * shape.head_dim, device=device)
        self._sums = torch.empty(most * shape.heads, device=device)

    # --- a step --------------------------------------------------------------------------------------------------

    def run(self, step: Step) -> np.ndarray:
        """The tokens (int32) of the rows that sample, in the order of the step's rows."""
        return self.finish(self.launch(step))

    def launch(self, step: Step) -> PendingStep:
        """Start a step behind those that were started. To be finished in the same order."""
        if step.new_rows:
            self.sampler.settle_drawn()
        start = self._mark()
        self._change_rows(step)
        rows, counts = step.rows, step.counts
        firsts = self.computed[rows]
        ends = firsts + counts
        samples = ends == self.known[rows]
        self.computed[rows] = ends
        self.known[rows[samples]] += 1
        size = self.graphs.size_for(rows.size) if (counts == 1).all() and samples.all() else None
        pending = self._mixed(rows, counts, firsts, samples) if size is None else self._decode(size, rows, firsts)
        pending.start, pending.event = start, self._mark()
        self.sampler.pending.append(pending)
        return pending

    def finish(self, pending: PendingStep) -> np.ndarray:
        """Wait for a step, the oldest that was not finished; its tokens."""
        tokens = self.sampler.finish(pending)
        self.failed_rows = pending.failed_rows
        return tokens

    def _mark(self) -> torch.cuda.Event | None:
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event

    def _change_rows(self, step: Step) -> None:
        last = [self._place(new) for new in step.new_rows]
        self.sampler.processors.upload()
        if step.new_rows or step.packed_new_blocks:
            self.rows.change(step, last)

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
        self.sampler.place(row, new.sampling, self.read_rendition(new.ref), prompt, answer)
        self.sampler.logprobs.place(row, slot, new.sampling, new.num_prompt_tokens)
        return int(self.log[slot, new.num_known_tokens - 1])

    # --- decoding alone ------------------------------------------------------------------------------------------

    def _decode(self, size: int, rows: Ints, firsts: Ints) -> PendingStep:
        numbers = np.full((2, size), -1, np.int64)
        numbers[0, : rows.size], numbers[1, : rows.size] = rows, firsts
        self.sampler.numbers[:, :size].copy_(to_device(numbers, self.device), non_blocking=True)
        self.graphs.step(size)
        own = self.sampler.logits[: rows.size], rows, self.known[rows] - 1, self.sampler.tokens[: rows.size]
        return self.sampler.drawn(*own, size)

    def _decode_buffers(self, size: int) -> None:
        """The whole of it, on the buffers: what a graph holds."""
        rows, firsts = self.sampler.numbers[0, :size], self.sampler.numbers[1, :size]
        inputs = self._inputs.part(size, size)
        make_inputs(rows, self._starts[: size + 1], firsts, self.rows.state, inputs, self.sizes.block_size, 1)
        hidden = self.model.forward(GpuBatch(inputs, size, None, self._scratch(size)), self.pools)
        self.sampler.logits[:size].copy_(self.model.logits(hidden))
        self.sampler.draw(self.sampler.logits[:size], rows, self.sampler.tokens[:size])

    def _scratch(self, size: int) -> Scratch:
        """The memory of splits, laid out for so many rows."""
        shape, splits = self.model.shape, self._splits[size]
        count = size * shape.heads * splits
        partial = self._partial[: count * shape.head_dim].view(size, shape.heads, splits, shape.head_dim)
        return Scratch(partial, self._sums[:count].view(size, shape.heads, splits))

    # --- any other step ------------------------------------------------------------------------------------------

    def _mixed(self, rows: Ints, counts: Ints, firsts: Ints, samples: np.ndarray) -> PendingStep:
        starts = np.concatenate([[0], np.cumsum(counts)])
        hidden = self._forward(rows, counts, firsts, starts, self._given(rows, counts, firsts, starts))

        def some_logits(at: Tensor) -> Tensor:
            return self.model.logits(hidden.of(at.to(self.device))).float()

        self.sampler.logprobs.write_prompts(rows, starts[:-1], counts, firsts, self.log, some_logits)
        drawing = rows[samples]
        if not drawing.size:
            return PendingStep(drawing)
        numbers = to_device(np.stack([starts[1:][samples] - 1, drawing]), self.device)
        logits = self.model.logits(hidden.of(numbers[0]))
        tokens = self.sampler.draw_new(logits, numbers[1])
        return self.sampler.drawn(logits, drawing, self.known[drawing] - 1, tokens)

    def _given(self, rows: Ints, counts: Ints, firsts: Ints, starts: Ints) -> Ints:
        """The step's token ids as far as the log has them, else -1."""
        owners = np.repeat(rows, counts)
        positions = np.arange(starts[-1]) + np.repeat(firsts - starts[:-1], counts)
        return np.where(positions < self.logged[owners], self.log[self.slot[owners], positions], -1).astype(np.int64)

    def _forward(self, rows: Ints, counts: Ints, firsts: Ints, starts: Ints, given: Ints) -> Hidden:
        others = np.flatnonzero(counts > 1)
        decoding = int(others[0]) if others.size else rows.size  # rows of one token before the first chunk
        n, total = rows.size, int(starts[-1])
        packed = to_device(np.concatenate([rows, firsts, starts, given]), self.device)
        own, first, begins, ids = packed.split([n, n, n + 1, total])
        inputs = StepInputs.make(n, total, self.rows.state.table.shape[1], self.device)
        make_inputs(own, begins, first, self.rows.state, inputs, self.sizes.block_size, int(counts.max()), ids)
        chunks = begins[decoding:].int() if decoding < n else None
        size = self.graphs.size_for(decoding) or self.sizes.rows
        longest = int((firsts + counts)[decoding:].max(initial=0))
        chunk_scratch = self._chunk_scratch(total - int(starts[decoding]), n - decoding, longest)
        return self.model.forward(GpuBatch(inputs, decoding, chunks, self._scratch(size), chunk_scratch), self.pools)

    def _chunk_scratch(self, tokens: int, rows: int, longest: int) -> Scratch | None:
        """Memory for chunks of so many tokens in all, if their keys are to be divided."""
        shape = self.model.shape
        if not tokens:
            return None
        splits = paged_prefill.split_count(tokens, rows, shape.heads, self.pools[0].keys, longest, self._processors)
        if splits == 1:
            return None
        return Scratch.of(tokens, shape.heads, shape.head_dim, splits, self.device)

    # --- before the first step -----------------------------------------------------------------------------------

    def profile_steps(self) -> None:
        """Steps up to the largest, of rows that are none: for the memory that they take, and so that all kernels are
        compiled and loaded. Which kernel multiplies depends on the number of tokens; ours know two ways to decode."""
        rows, tokens = self.sizes.rows, self.sizes.tokens
        for count in (1, rows):
            self._try_chunks(count, count)
        self._try_chunks(1, min(16, tokens), behind=self.sizes.length - 16)
        for count in sorted({min(1 << power, tokens) for power in range(4, tokens.bit_length() + 1)}):
            self._try_chunks(max(1, min(rows, count // 2)), count)

    def try_decoding(self) -> None:
        """The largest step of decoding alone, of rows that are none."""
        for graphs in (self.graphs, self.sampler.changing):
            graphs.step(graphs.sizes[-1])

    def capture(self) -> int:
        """Make the graphs, in the same memory, as one runs after the other; how many there are."""
        pool = torch.cuda.graph_pool_handle()
        for graphs in (self.graphs, self.sampler.changing):
            graphs.capture(pool)
        return len(self.graphs.sizes) + len(self.sampler.changing.sizes)

    def _try_chunks(self, rows: int, tokens: int, behind: int = 0) -> None:
        counts = np.full(rows, tokens // rows, np.int64)
        counts[: tokens % rows] += 1
        starts = np.concatenate([[0], np.cumsum(counts)])
        nobody, firsts = np.full(rows, -1, np.int64), np.full(rows, max(0, behind), np.int64)
        hidden = self._forward(nobody, counts, firsts, starts, np.full(int(starts[-1]), -1, np.int64))
        at = to_device(starts[1:] - 1, self.device)
        logits = self.model.logits(hidden.of(at))
        self.sampler.try_out(logits)
