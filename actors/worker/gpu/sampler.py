"""The end of a step: logits of the rows that draw, what requests want changed, the tokens, and how the host gets them.

It is apart from the forward pass (runner.py), and has graphs of its own, by the number of rows that draw; steps of all
kinds share them. One is for rows that want their logits as they are, one for steps in which any row asks for
something; and where a group of workers shares the vocabulary, one for steps in which all rows are greedy and nobody
is told of logits: there each member finds the likeliest of its own words, and no logits are gathered. Between the two
parts of a step the host makes masks: rows with grammars, bad words, thinking budgets or DRY (processors.py) need the
tokens of the step before, which it waits for while the device computes this one's.

Tokens stay on the device, where the next step takes them; the host fetches them when the device has come so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from actorserve.kernels.triton.greedy import greedy_keys, words_of
from actorserve.kernels.triton.sampler.log_weights import TOGETHER, log_weights_
from actorserve.kernels.triton.sampling import Workspace, sample
from actorserve.kernels.triton.step_inputs import keep_tokens
from actorserve.shm.table.logprobs import Logprobs

from ...grammar.matchers import Matchers
from ...protocol.request import PENALTIES, Rendition, Sampling, default_of
from ..logits.processors import LogitsProcessors
from ..logits.windows import NONE, PenaltyWindow
from ..logprobs import CHUNK, LogprobRecords, LogprobsWriter, pack_records, parameters_of
from ..transfer import to_device, to_host
from .buffers import Sizes, StepBuffers, StepNumbers
from .executor import GpuModel, Hidden
from .graphs import Graphs, size_for
from .processors import Changes, DeviceProcessors
from .rows import DeviceRows, Ints

if TYPE_CHECKING:
    from actorserve.kernels.cpu.sampling import Parameters

    from ...protocol.wire import Numbers

OF_DEVICE = (*PENALTIES, "repeat_last_n", "logit_bias")
NOT_OF_HOST = {name: default_of(name) for name in OF_DEVICE}
NO_USES: Ints = np.empty(0, np.int64)
ALL_FILTERS = parameters_of(
    [Sampling(0, 1, 2, 0.9, 0.1, top_n_sigma=1, typical_p=0.9, xtc_probability=1, dynatemp_range=0.5)],
    np.zeros(1, np.int64),
)


class RowWork(NamedTuple):
    """What a step is for its rows."""

    rows: Ints
    counts: Ints  # tokens that each computes
    firsts: Ints  # their first positions; at most, where there are drafts (worker/gpu/drafts/speculation.py)
    sent: Ints  # the same as the device is told
    known: Ints  # tokens of each sequence before the step
    draws: Ints  # tokens that each draws
    uses: Ints = NO_USES  # where there are drafts: how often each row was taken before

    def decodes(self) -> bool:
        """Whether all compute one token and draw one."""
        return np.count_nonzero(self.draws) == self.draws.size and bool((self.counts == 1).all())


class PendingStep:
    """A step that was started."""

    def __init__(self, work: RowWork, buffers: StepBuffers) -> None:
        self.work, self.buffers = work, buffers
        self.decodes = work.decodes()
        # Who draws tokens, each as often as it is there, and where these will stand.
        self.rows, self.positions = work.rows, work.known
        if not self.decodes:
            self.rows, self.positions = np.repeat(work.rows, work.draws), np.repeat(work.known, work.draws)
        self.bound = False  # the host has to know the tokens before it makes masks for the step behind
        self.told: list[LogprobRecords] = []  # logprobs, which come with the tokens
        self.event: torch.cuda.Event | None = None  # of its end
        self.seconds: float | None = None  # what it took on the device, once it was finished
        self.windows: list[tuple[int, PenaltyWindow]] = []  # by index of a row
        self.failed_rows: Numbers = ()  # whose grammar has failed
        self.tokens: np.ndarray | None = None  # once the host has them


class Sampler:
    """Draws tokens; knows of each row what its request wants."""

    def __init__(
        self,
        model: GpuModel,
        sizes: Sizes,
        rows: DeviceRows,
        numbers: Tensor,
        capture: Sequence[int],
        logprobs: Logprobs | None = None,
        make_matchers: Callable[[], Matchers] | None = None,
    ) -> None:
        """`numbers`: where a step's numbers come to lie on the device (buffers.py). The others as for GpuRunner."""
        self.model, self.rows = model, rows
        device = self.device = model.device
        words = model.shape.vocab_size
        self.logits_processors = LogitsProcessors(sizes.rows, words, make_matchers)
        self.processors = DeviceProcessors(sizes.rows, words, sizes.length, device)
        self.logprobs = LogprobsWriter(logprobs, sizes.rows)
        self.pending: deque[PendingStep] = deque()
        self.plain = Graphs(capture, self._plain, device)
        self.changing = Graphs(capture, self._changing, device)
        self.greedy = Graphs(capture if model.group is not None else (), self._greedily, device)
        self._is_greedy = np.zeros(sizes.rows, bool)
        self.tells = np.zeros(sizes.rows, bool)  # logprobs, be it by another member of the group
        # What graphs read and write stays where it is:
        self._numbers, self._at = numbers, StepNumbers.of(numbers, sizes)
        most = sizes.draws
        self.normed = torch.zeros(most, model.shape.hidden_size, dtype=model.dtype, device=device)
        self._logits = torch.empty(most, words, dtype=model.dtype, device=device)
        self._tokens = torch.zeros(most, dtype=torch.int32, device=device)
        self._workspace = Workspace.make(most, words, device)
        self._keys = torch.full((most,), -1, device=device)  # of word 0, for who looks before any was made

    def place(
        self, row: int, sampling: Sampling, rendition: Rendition, prompt: Ints, answer: Ints, given: int = 0
    ) -> None:
        """A sequence takes a row; `upload` is to follow. `given`: so many embeddings stand before the tokens."""
        # Of its parameters alone: only one of a group's members knows whose logprobs are told, and all do the same.
        self.tells[row] = sampling.logprobs >= 0
        self._is_greedy[row] = sampling.temperature == 0 and not self.tells[row]
        self.processors.place(row, sampling, prompt, answer, not rendition.is_plain(), given)
        if rendition.is_plain() and not sampling.dry_multiplier:
            self.logits_processors.drop(row)
            return
        by_host = replace(sampling, **NOT_OF_HOST)
        self.logits_processors.place(row, by_host, rendition, prompt.astype(np.int64), answer.tolist())

    # --- steps in flight -----------------------------------------------------------------------------------------

    def finish(self, pending: PendingStep) -> np.ndarray:
        """Wait for a step, the oldest that was not finished; its tokens."""
        assert self.pending.popleft() is pending, "steps are finished in the order in which they were started"
        return self._finish(pending)

    def settle_drawn(self) -> None:
        """Wait until what was drawn is known to who drew it, if anybody has to know."""
        if any(pending.bound and pending.tokens is None for pending in self.pending):
            self._settle()

    def _settle(self) -> None:
        """Wait until the host knows all that was drawn."""
        for pending in self.pending:
            self._finish(pending)

    def _finish(self, pending: PendingStep) -> np.ndarray:
        """`pending.tokens`, of each of its rows."""
        if pending.tokens is not None:
            return pending.tokens
        if pending.event is not None:
            pending.event.synchronize()
        tokens = pending.tokens = pending.buffers.tokens[: pending.rows.size].numpy().copy()
        for told in pending.told:
            self.logprobs.store(told)
        if pending.bound:
            self.logits_processors.advance(pending.rows, tokens)
        for index, window in pending.windows:
            window.add(int(tokens[index]))
        return tokens

    # --- drawing -------------------------------------------------------------------------------------------------

    def keep(self, hidden: Hidden) -> None:
        """What the rows' logits are made of, as the last part of a forward pass."""
        self.model.norm(hidden, self.normed[: len(hidden.added)])

    def draw(self, pending: PendingStep) -> None:
        """The tokens of a step's rows, behind its forward pass, which `keep` ended and which sent their numbers."""
        rows = pending.rows
        count = rows.size
        if not count:
            return
        size = size_for(self.plain.sizes, count) or count
        asking = self.processors.among(rows)
        changes = None
        if asking.size:
            pending.failed_rows = self._fill_masks(pending, rows[asking])
            self._send_asking(pending, asking, size)
            changes = self._changes_told(rows)
            self.changing.step(size)
        elif self.model.group is not None and self._is_greedy[rows].all():
            self.greedy.step(size)
        else:
            self.plain.step(size)
        self.fetch(pending)
        self._tell(pending, changes)

    def _send_asking(self, pending: PendingStep, asking: Ints, size: int) -> None:
        """What the device is told of the rows that ask, beside what it knows."""
        numbers, rows = pending.buffers.numbers, pending.rows
        masks = self.processors.masks_of(rows[asking], pending.positions[asking])
        windows = self.processors.windows_among(rows)
        if not all(window.is_known for _, window in windows):
            self._settle()
        leaving = np.full(rows.size, NONE)
        for index, window in windows:
            leaving[index] = window.start()
        pending.windows = windows
        parts = (numbers.asking, rows[asking]), (numbers.masks, masks), (numbers.leaving, leaving[asking])
        for values, own in parts:
            values[:size] = -1
            values[asking] = own
        pending.buffers.send(self._numbers, 0, len(parts) * len(self._at.asking))

    def fetch(self, pending: PendingStep) -> None:
        """Start to copy what was drawn to the host."""
        pending.buffers.tokens.copy_(self._tokens, non_blocking=True)  # a view of some would take longer

    def _told_as_drawn(self, rows: Ints) -> Ints:
        """Which of these rows are told of what they draw from, as indices."""
        told = self.logprobs.among(rows)
        drawn: Ints = told[self.logprobs.drawn_among(rows[told])]
        return drawn

    def _changes_told(self, rows: Ints) -> Changes | None:
        """What those of them ask for, before it counts what they draw; None: there are none."""
        drawn = self._told_as_drawn(rows)
        if not drawn.size:
            return None
        at, own = to_device(drawn, self.device), to_device(rows[drawn], self.device)
        return self.processors.changes(own, self._at.asking.index_select(0, at), self._at.masks.index_select(0, at))

    def _tell(self, pending: PendingStep, changes: Changes | None) -> None:
        """Logprobs, of logits as the model made them, or of what is drawn from."""
        rows, positions = pending.rows, pending.positions
        told = self.logprobs.among(rows)
        if not told.size:
            return
        at = to_device(told, self.device)
        logits = self._logits.index_select(0, at).float()
        drawn = self._told_as_drawn(rows)
        if drawn.size:
            parameters = self.logprobs.drawing(rows[drawn], positions[drawn])
            for begin in range(0, drawn.size, TOGETHER):
                some = slice(begin, begin + TOGETHER)
                own = None if changes is None else changes.of(some)
                weights = self._log_weights(drawn[some], parameters.of(np.arange(drawn.size)[some]), own)
                logits.index_copy_(0, to_device(told.searchsorted(drawn[some]), self.device), weights)
        refs, most, listed = self.logprobs.places(rows[told])
        records = pack_records(logits, self._tokens[at].long(), most, listed)
        pending.told.append(LogprobRecords(refs, positions[told], to_host(records), listed))

    def _log_weights(self, drawn: Ints, parameters: Parameters, changes: Changes | None) -> Tensor:
        """What these rows, as indices, draw from, as logarithms."""
        logits = self._logits.index_select(0, to_device(drawn, self.device)).float()
        if changes is not None:
            changes.apply(logits)
        log_weights_(logits, parameters)
        return logits

    def tell_prompts(self, pending: PendingStep, starts: Ints, hidden: Hidden, log: np.ndarray) -> None:
        """Logprobs of prompts' tokens behind those of a step, which begin at `starts` and were made to `hidden`."""

        def logits(at: Ints) -> Tensor:
            return self._logits_of(hidden.of(to_device(at, self.device)))

        rows, counts, firsts, *_ = pending.work
        for told in self.logprobs.of_prompts(rows, starts, counts, firsts, log, logits):
            pending.told.append(told._replace(records=to_host(told.records)))

    def _logits_of(self, hidden: Hidden) -> Tensor:
        """Rows side by side, as all are of which logprobs are made: a group's have words behind them that are none."""
        return self.model.logits(self.model.norm(hidden)).float().contiguous()

    def _fill_masks(self, pending: PendingStep, rows: Ints) -> Numbers:
        """Masks and penalties that follow from the text so far, made while the device computes; the failed grammars."""
        known = rows[self.logits_processors.among(rows)]
        if not known.size:
            return ()
        self._settle()
        pending.bound = True
        self.processors.set_penalties(self.logits_processors.dry_penalties(known))
        masked = self.processors.masked(known)
        if not masked.size:
            return ()
        bits, failed = self.logits_processors.fill_masks(masked)
        self.processors.set_masks(masked, bits)
        return failed

    # --- what graphs hold ----------------------------------------------------------------------------------------

    def _plain(self, size: int) -> None:
        """Logits and tokens of so many rows."""
        self._draw(self._make_logits(size))

    def _changing(self, size: int) -> None:
        """The same where rows ask for something: numbers are changed in float32."""
        own, which, leaving = self._at.asking[:size], self._at.masks[:size], self._at.leaving[:size]
        changed = self._make_logits(size).to(torch.float32, copy=True)  # logprobs are those of the model's own
        self.processors.apply(changed, own, which)
        self._draw(changed)
        self.processors.count(own, self._tokens[:size], leaving)

    def _greedily(self, size: int) -> None:
        """Tokens of so many rows that are greedy, by what each member of a group has of the vocabulary."""
        group, words = self.model.group, self.model.shape.vocab_size
        assert group is not None
        own = self.model.own_logits(self.normed[:size])
        first = group.rank * own.shape[1]
        rows, keys = self._at.drawing[:size], self._keys[:size]
        own = own[:, : max(0, words - first)]  # the last one may have words that are none
        greedy_keys(own, first, rows, self.rows.parameters, self._workspace, keys)
        words_of(group.maximum(keys), self._tokens[:size])
        self._keep_drawn(size)

    def _make_logits(self, size: int) -> Tensor:
        return self._logits[:size].copy_(self.model.logits(self.normed[:size]))

    def _draw(self, logits: Tensor) -> None:
        size = len(logits)
        rows, tokens = self._at.drawing[:size], self._tokens[:size]
        sample(logits, rows, self.rows.parameters, self._workspace, tokens)
        self._keep_drawn(size)

    def _keep_drawn(self, size: int) -> None:
        """Where the next step finds the tokens that so many rows have drawn."""
        keep_tokens(self._at.drawing[:size], self._tokens[:size], self.rows.state.last)

    # --- before the first step -----------------------------------------------------------------------------------

    def try_out(self, size: int, hidden: Hidden) -> None:
        """As so many rows draw that are none, all of which ask for all that there is, behind a step that made `hidden`.
        Of a prompt up to CHUNK tokens are told, whatever the number of rows."""
        self._plain(size)
        self._changing(size)
        if self.model.group is not None:
            self._greedily(size)
        told = torch.zeros(max(size, CHUNK), dtype=torch.int64, device=self.device)
        logits = self._logits_of(hidden.of(told))
        rows = told[: len(self._is_greedy)]
        changes = self.processors.changes(rows, rows, rows - 1)
        drawn = logits[: min(len(rows), TOGETHER)].clone()
        changes.of(slice(len(drawn))).apply(drawn)
        log_weights_(drawn, ALL_FILTERS.of(np.zeros(len(drawn), np.int64)))
        pack_records(logits, told, self.logprobs.most_likely)
