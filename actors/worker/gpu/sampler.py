"""What is drawn of a step's logits, as requests want it, and how the host comes to know of it.

Tokens stay on the device, where the next step takes them; the host fetches them when the device has come so far. Rows
with grammars, bad words or thinking budgets (processors.py) are why it may have to wait sooner: it makes their masks of
the tokens of the step before, while the device computes logits already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from actorserve.kernels.triton.sampling import Workspace, sample
from actorserve.kernels.triton.step_inputs import keep_tokens
from actorserve.shm.table.logprobs import MOST, Logprobs

from ...grammar.matchers import Matchers
from ...protocol.request import Rendition, Sampling
from ..logits_processors import LogitsProcessors
from ..logprobs import LogprobsWriter, pack_records
from .graphs import DecodeGraphs
from .processors import DeviceProcessors
from .rows import DeviceRows, Ints, to_device

if TYPE_CHECKING:
    from ...protocol.wire import Numbers

NOT_MASKS = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "logit_bias": []}


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


class Sampler:
    """Draws tokens of logits; knows of each row what its request wants."""

    def __init__(
        self,
        words: int,
        dtype: torch.dtype,
        sizes: Sizes,
        rows: DeviceRows,
        capture: Sequence[int],
        logprobs: Logprobs | None,
        make_matchers: Callable[[], Matchers] | None,
    ) -> None:
        """`words` and `dtype`: of logits; the others as for GpuRunner."""
        self.rows, self.device = rows, rows.device
        self.logits_processors = LogitsProcessors(sizes.rows, words, make_matchers)
        self.processors = DeviceProcessors(sizes.rows, words, self.device)
        self.logprobs = LogprobsWriter(logprobs, sizes.rows)
        self.pending: deque[PendingStep] = deque()
        self.changing = DecodeGraphs(capture, self._change_buffers, self.device)
        largest = max(capture, default=1)  # what graphs read and write stays where it is:
        self.numbers = torch.full((2, largest), -1, dtype=torch.int64, device=self.device)  # rows, first positions
        self.logits = torch.empty(largest, words, dtype=dtype, device=self.device)
        self.tokens = torch.empty(largest, dtype=torch.int32, device=self.device)
        self._asked = torch.full((2, largest), -1, dtype=torch.int64, device=self.device)  # rows that ask, and masks
        self._workspace = Workspace.make(sizes.rows, words, self.device)

    def place(self, row: int, sampling: Sampling, rendition: Rendition, prompt: np.ndarray, answer: np.ndarray) -> None:
        """A sequence takes a row; `upload` is to follow."""
        self.processors.place(row, sampling, prompt, answer, host=not rendition.is_plain())
        if rendition.is_plain():
            self.logits_processors.drop(row)
            return
        masked = replace(sampling, **NOT_MASKS)
        self.logits_processors.place(row, masked, rendition, prompt.astype(np.int64), answer.tolist())

    # --- steps in flight -----------------------------------------------------------------------------------------

    def finish(self, pending: PendingStep) -> np.ndarray:
        """Wait for a step, the oldest that was not finished; its tokens."""
        assert self.pending.popleft() is pending, "steps are finished in the order in which they were started"
        return self._finish(pending)

    def settle_drawn(self) -> None:
        """Wait until what was drawn is known to who drew it, if anybody has to know."""
        if any(pending.bound and not pending.finished for pending in self.pending):
            self._settle()

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

    # --- drawing -------------------------------------------------------------------------------------------------

    def draw(self, logits: Tensor, rows: Tensor, tokens: Tensor) -> None:
        """A token for each of these rows, which the next step takes."""
        sample(logits, rows, self.rows.parameters, self._workspace, tokens)
        keep_tokens(rows, tokens, self.rows.state.last)

    def draw_new(self, logits: Tensor, own: Tensor) -> Tensor:
        """The same, in memory of their own."""
        tokens = torch.empty(len(own), dtype=torch.int32, device=self.device)
        self.draw(logits, own, tokens)
        return tokens

    def drawn(
        self, logits: Tensor, rows: Ints, positions: Ints, tokens: Tensor, size: int | None = None
    ) -> PendingStep:
        """Tokens were drawn of `logits`, for these positions, by a graph of this size if any; rows that want their
        logits changed draw again."""
        pending = PendingStep(rows)
        asking = self.processors.among(rows)
        if asking.size:
            pending.failed_rows = self._fill_masks(pending, rows[asking])
            masks = self.processors.masks_of(rows[asking], positions[asking])
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
            pending.logprobs = slots, positions[told], self._to_host(records)
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

    def _change_buffers(self, size: int) -> None:
        """What a graph holds for a step in which rows ask for something: all draw again, of numbers in float32."""
        own, which = self._asked[0, :size], self._asked[1, :size]
        changed = self.logits[:size].to(torch.float32, copy=True)  # logprobs are those of the model's own
        self.processors.apply(changed, own, which)
        self.draw(changed, self.numbers[0, :size], self.tokens[:size])
        self.processors.count(own, self.tokens[:size])

    def _draw_changed(self, logits: Tensor, asked: np.ndarray, tokens: Tensor) -> None:
        """Some rows draw again, of numbers in float32. `asked` [3, n]: indices, rows, masks."""
        at, own, which = to_device(asked, self.device)
        changed = logits.index_select(0, at).float()
        self.processors.apply(changed, own, which)
        again = self.draw_new(changed, own)
        self.processors.count(own, again)
        tokens.index_copy_(0, at, again)

    def _to_host(self, values: Tensor) -> Tensor:
        """A copy that is there when the step's event has come."""
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=self.device.type == "cuda")
        return copy.copy_(values, non_blocking=True)

    def try_out(self, logits: Tensor) -> None:
        """As rows that are none draw all of which ask for all that there is."""
        nobody = torch.full((2, len(logits)), -1, dtype=torch.int64, device=self.device)
        self.draw_new(logits, nobody[0])
        changed = logits.float()
        self.processors.apply(changed, *nobody)
        tokens = self.draw_new(changed, nobody[0])
        self.processors.count(nobody[0], tokens)
        pack_records(changed, tokens.long(), MOST)
