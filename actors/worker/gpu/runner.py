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

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from actorserve.kernels.triton import paged_prefill
from actorserve.kernels.triton.paged_decode import Scratch, split_count
from actorserve.kernels.triton.rotary_kv import Pools
from actorserve.kernels.triton.sampling import Workspace, sample
from actorserve.kernels.triton.step_inputs import StepInputs, keep_tokens, make_inputs
from actorserve.shm.table.logprobs import MOST, Logprobs
from actorserve.shm.table.table import slot_of

from ...grammar.matchers import Matchers
from ...protocol.request import Rendition
from ...protocol.step import NewRow, Step
from ..logits_processors import LogitsProcessors
from ..logprobs import LogprobsWriter, pack_records
from .executor import GpuBatch, GpuModel, Hidden
from .graphs import DecodeGraphs
from .processors import DeviceProcessors
from .rows import DeviceRows, Ints, to_device

if TYPE_CHECKING:
    from ...protocol.wire import Numbers

PLAIN = Rendition()
NOT_MASKS = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "logit_bias": []}
PROCESSORS = 16  # multiprocessors that there are taken to be where there is no GPU


class Sizes(NamedTuple):
    """What a runner has to do with."""

    rows: int
    tokens: int  # of one step, at most
    length: int  # of one sequence, at most
    block_size: int


class PendingStep:
    """A step that was started."""

    def __init__(self, rows: Ints) -> None:
        """`rows` draw tokens."""
        self.rows = rows
        self.bound = False  # the host has to know the tokens before it makes masks for the step behind
        self.tokens: Tensor | None = None  # int32, pinned, filled when `event` has come
        self.logprobs: tuple[Ints, Ints, Tensor] | None = None  # slots, positions, records, filled with the tokens
        self.event: torch.cuda.Event | None = None
        self.start: torch.cuda.Event | None = None
        self.finished = False
        self.failed_rows: Numbers = ()  # whose grammar has failed

    @property
    def seconds(self) -> float | None:
        """What it took on the device, once it has ended; None where that is not measured."""
        if self.start is None or self.event is None:
            return None
        return float(self.start.elapsed_time(self.event)) / 1e3


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
        self.logits_processors = LogitsProcessors(sizes.rows, model.shape.vocab_size, make_matchers)
        self.processors = DeviceProcessors(sizes.rows, model.shape.vocab_size, device)
        self.failed_rows: Numbers = ()  # of the step that was finished last, those whose grammar has failed
        self.logprobs = LogprobsWriter(logprobs, sizes.rows)
        self.pending: deque[PendingStep] = deque()
        self.graphs = DecodeGraphs(capture, self._decode_buffers, device)
        self.changing = DecodeGraphs(capture, self._change_buffers, device)
        self._make_buffers(max(capture, default=1))

    def _make_buffers(self, largest: int) -> None:
        """What graphs read and write: it stays where it is."""
        sizes, shape, device = self.sizes, self.model.shape, self.device
        self._numbers = torch.full((2, largest), -1, dtype=torch.int64, device=device)  # rows, and first positions
        self._asked = torch.full((2, largest), -1, dtype=torch.int64, device=device)  # rows that ask, and masks
        self._starts = torch.arange(largest + 1, device=device)
        self._inputs = StepInputs.make(largest, largest, self.rows.state.table.shape[1], device)
        self._logits = torch.empty(largest, shape.vocab_size, dtype=self.model.dtype, device=device)
        self._tokens = torch.empty(largest, dtype=torch.int32, device=device)
        self._workspace = Workspace.make(sizes.rows, shape.vocab_size, device)
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
        if step.new_rows and any(pending.bound and not pending.finished for pending in self.pending):
            self._settle()  # what was drawn is known to who drew it
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
        self.pending.append(pending)
        return pending

    def finish(self, pending: PendingStep) -> np.ndarray:
        """Wait for a step, the oldest that was not finished; its tokens."""
        assert self.pending.popleft() is pending, "steps are finished in the order in which they were started"
        self.failed_rows = pending.failed_rows
        return self._finish(pending)

    def _settle(self) -> None:
        """Wait until the host knows all that was drawn."""
        for pending in self.pending:
            self._finish(pending)

    def _finish(self, pending: PendingStep) -> np.ndarray:
        if pending.tokens is None:
            return np.empty(0, np.int32)
        if pending.event is not None:
            pending.event.synchronize()
        tokens = np.asarray(pending.tokens.numpy(), np.int32)
        if not pending.finished and pending.logprobs is not None:
            slots, positions, records = pending.logprobs
            self.logprobs.store(slots, positions, records.numpy())
        if not pending.finished and pending.bound:
            self.logits_processors.advance(pending.rows, tokens)
        pending.finished = True
        return tokens

    def _mark(self) -> torch.cuda.Event | None:
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event

    def _change_rows(self, step: Step) -> None:
        last = [self._place(new) for new in step.new_rows]
        self.processors.upload()
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
        rendition = self.read_rendition(new.ref)
        self.processors.place(row, new.sampling, prompt, answer, host=not rendition.is_plain())
        if rendition.is_plain():
            self.logits_processors.drop(row)
        else:
            masked = replace(new.sampling, **NOT_MASKS)
            self.logits_processors.place(row, masked, rendition, prompt.astype(np.int64), answer.tolist())
        self.logprobs.place(row, slot, new.sampling, new.num_prompt_tokens)
        return int(self.log[slot, new.num_known_tokens - 1])

    # --- decoding alone ------------------------------------------------------------------------------------------

    def _decode(self, size: int, rows: Ints, firsts: Ints) -> PendingStep:
        numbers = np.full((2, size), -1, np.int64)
        numbers[0, : rows.size], numbers[1, : rows.size] = rows, firsts
        self._numbers[:, :size].copy_(to_device(numbers, self.device), non_blocking=True)
        self.graphs.step(size)
        return self._drawn(self._logits[: rows.size], rows, self._tokens[: rows.size], size)

    def _decode_buffers(self, size: int) -> None:
        """The whole of it, on the buffers: what a graph holds."""
        rows, firsts = self._numbers[0, :size], self._numbers[1, :size]
        inputs = self._inputs.part(size, size)
        make_inputs(rows, self._starts[: size + 1], firsts, self.rows.state, inputs, self.sizes.block_size, 1)
        hidden = self.model.forward(GpuBatch(inputs, size, None, self._scratch(size)), self.pools)
        self._logits[:size].copy_(self.model.logits(hidden))
        self._draw(self._logits[:size], rows, self._tokens[:size])

    def _change_buffers(self, size: int) -> None:
        """The same for a step in which rows ask for something: all draw again, of numbers in float32."""
        own, which = self._asked[0, :size], self._asked[1, :size]
        changed = self._logits[:size].to(torch.float32, copy=True)  # logprobs are those of the model's own
        self.processors.apply(changed, own, which)
        self._draw(changed, self._numbers[0, :size], self._tokens[:size])
        self.processors.count(own, self._tokens[:size])

    def _scratch(self, size: int) -> Scratch:
        """The memory of splits, laid out for so many rows."""
        shape, splits = self.model.shape, self._splits[size]
        count = size * shape.heads * splits
        partial = self._partial[: count * shape.head_dim].view(size, shape.heads, splits, shape.head_dim)
        return Scratch(partial, self._sums[:count].view(size, shape.heads, splits))

    def _draw(self, logits: Tensor, rows: Tensor, tokens: Tensor) -> None:
        sample(logits, rows, self.rows.parameters, self._workspace, tokens)
        keep_tokens(rows, tokens, self.rows.state.last)

    # --- any other step ------------------------------------------------------------------------------------------

    def _mixed(self, rows: Ints, counts: Ints, firsts: Ints, samples: np.ndarray) -> PendingStep:
        starts = np.concatenate([[0], np.cumsum(counts)])
        hidden = self._forward(rows, counts, firsts, starts, self._given(rows, counts, firsts, starts))

        def some_logits(at: Tensor) -> Tensor:
            return self.model.logits(hidden.of(at.to(self.device))).float().cpu()

        self.logprobs.write_prompts(rows, starts[:-1], counts, firsts, self.log, some_logits)
        drawing = rows[samples]
        if not drawing.size:
            return PendingStep(drawing)
        numbers = to_device(np.stack([starts[1:][samples] - 1, drawing]), self.device)
        logits = self.model.logits(hidden.of(numbers[0]))
        tokens = torch.empty(drawing.size, dtype=torch.int32, device=self.device)
        self._draw(logits, numbers[1], tokens)
        return self._drawn(logits, drawing, tokens)

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

    # --- what is drawn -------------------------------------------------------------------------------------------

    def _drawn(self, logits: Tensor, rows: Ints, tokens: Tensor, size: int | None = None) -> PendingStep:
        """Tokens were drawn of `logits`, by a graph of this size if any; rows that want these changed draw again."""
        pending = PendingStep(rows)
        asking = self.processors.among(rows)
        if asking.size:
            pending.failed_rows = self._fill_masks(pending, rows[asking])
            masks = self.processors.masks_of(rows[asking], self.known[rows[asking]] - 1)
            if size is None:
                self._draw_changed(logits, np.stack([asking, rows[asking], masks]), tokens)
            else:
                asked = np.full((2, size), -1, np.int64)
                asked[:, asking] = rows[asking], masks
                self._asked[:, :size].copy_(to_device(asked, self.device), non_blocking=True)
                self.changing.step(size)
        told = self.logprobs.among(rows)
        if told.size:
            at = to_device(told, self.device)
            slots, most = self.logprobs.places(rows[told])
            records = pack_records(logits.index_select(0, at).float(), tokens.index_select(0, at).long(), most)
            pending.logprobs = slots, self.known[rows[told]] - 1, self._to_host(records)
        pending.tokens = self._to_host(tokens)
        return pending

    def _fill_masks(self, pending: PendingStep, rows: Ints) -> Numbers:
        """Masks that depend on the text so far, made while the device computes logits; whose grammar has failed."""
        masked = rows[self.logits_processors.among(rows)]
        if not masked.size:
            return ()
        self._settle()
        pending.bound = True
        bits, failed = self.logits_processors.fill_masks(masked)
        self.processors.set_masks(masked, bits)
        return failed

    def _draw_changed(self, logits: Tensor, asked: np.ndarray, tokens: Tensor) -> None:
        """Some rows draw again, of numbers in float32. `asked` [3, n]: indices, rows, masks."""
        at, own, which = to_device(asked, self.device)
        changed = logits.index_select(0, at).float()
        self.processors.apply(changed, own, which)
        again = self._draw_again(changed, own)
        self.processors.count(own, again)
        tokens.index_copy_(0, at, again)

    def _draw_again(self, logits: Tensor, own: Tensor) -> Tensor:
        tokens = torch.empty(len(own), dtype=torch.int32, device=self.device)
        self._draw(logits, own, tokens)
        return tokens

    def _to_host(self, values: Tensor) -> Tensor:
        """A copy that is there when the step's event has come."""
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=self.device.type == "cuda")
        return copy.copy_(values, non_blocking=True)

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
        for graphs in (self.graphs, self.changing):
            graphs.step(graphs.sizes[-1])

    def capture(self) -> int:
        """Make the graphs, in the same memory, as one runs after the other; how many there are."""
        pool = torch.cuda.graph_pool_handle()
        for graphs in (self.graphs, self.changing):
            graphs.capture(pool)
        return len(self.graphs.sizes) + len(self.changing.sizes)

    def _try_chunks(self, rows: int, tokens: int, behind: int = 0) -> None:
        counts = np.full(rows, tokens // rows, np.int64)
        counts[: tokens % rows] += 1
        starts = np.concatenate([[0], np.cumsum(counts)])
        nobody, firsts = np.full(rows, -1, np.int64), np.full(rows, max(0, behind), np.int64)
        hidden = self._forward(nobody, counts, firsts, starts, np.full(int(starts[-1]), -1, np.int64))
        at = to_device(starts[1:] - 1, self.device)
        logits = self.model.logits(hidden.of(at))
        self._draw_again(logits, to_device(nobody, self.device))
        self._try_changing(logits)

    def _try_changing(self, logits: Tensor) -> None:
        """As rows are drawn all of which ask for all that there is."""
        nobody = torch.full((2, len(logits)), -1, dtype=torch.int64, device=self.device)
        changed = logits.float()
        self.processors.apply(changed, *nobody)
        tokens = self._draw_again(changed, nobody[0])
        self.processors.count(nobody[0], tokens)
        pack_records(changed, tokens.long(), MOST)
