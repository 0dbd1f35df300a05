"""What requests want of the logits before a token is drawn: penalties, bias, masks, forced ends of thinking.

State of the rows that ask for any of it; a step in which no row does costs nothing. A row's state follows from its
parameters and its tokens, so a sequence that comes back after a preemption is treated as before.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.penalties import Penalties, penalize
from actorserve.kernels.triton.grammar_mask import apply_mask
from actorserve.shm.table.mirostat import MirostatStates

from ...grammar.compiler import unpack
from ...grammar.matchers import Matchers
from ...model.encoder_decoder.spec import SpeechSpec
from ...protocol.request import PENALTIES, Rendition, Sampling, ThinkBudget
from ...protocol.step import PLUGIN_FAILED
from ..plugins.rows import Plugins, PluginTrouble, RowPlugins
from .dry import Dry
from .mirostat import Mirostat
from .speech_rules import SpeechRules
from .watermark import Watermark

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
NEVER = float("-inf")
log = logging.getLogger("worker")


@dataclass
class ThinkingState:
    """One row's way through its thinking: how much there is, and what has to come when there is too much."""

    budget: ThinkBudget
    inside: bool
    used: int = 0

    def add(self, answer: list[int]) -> None:
        """The answer has one more token."""
        if self.inside:
            self.used += 1
            self.inside = not _ends_with(answer, self.budget.end)
        elif not self.used and _ends_with(answer, self.budget.start):
            self.inside = True

    def forced(self, answer: list[int]) -> int | None:
        """The token that has to come next, if the model may not choose."""
        if not self.inside or self.used < self.budget.tokens:
            return None
        end, closing = self.budget.end, self.budget.closing
        begun, written = _begun(answer, end), _begun(answer, closing)
        return closing[written] if closing and written >= begun else end[begun]


def _begun(answer: list[int], tokens: list[int]) -> int:
    """With how many of these the answer ends already; all of them would be the end."""
    return next((size for size in range(len(tokens) - 1, 0, -1) if _ends_with(answer, tokens[:size])), 0)


def _ends_with(answer: list[int], tokens: list[int]) -> bool:
    return not tokens or answer[-len(tokens) :] == tokens


@dataclass
class RowProcessor:
    """What one row asks for, and the tokens of its answer so far."""

    sampling: Sampling
    rendition: Rendition
    answer: list[int] = field(default_factory=list)
    bias: tuple[Tensor, Tensor] | None = None
    allowed: Tensor | None = None
    suppressed: Tensor | None = None
    thinking: ThinkingState | None = None
    penalized: bool = False
    recent: deque[int] | None = None  # the tokens that its penalties look back on, if not on all
    speech: SpeechRules | None = None
    plugins: RowPlugins | None = None
    watermark: Watermark | None = None
    dry: Dry | None = None
    mirostat: Mirostat | None = None

    def mask(self, logits: Tensor) -> None:
        """Change the row's logits [words] in place: -inf for words that must not be drawn."""
        if self.speech is not None:
            self.speech.mask(logits, self.answer)
        if self.allowed is not None:
            kept = logits[self.allowed]
            logits.fill_(NEVER)[self.allowed] = kept
        if self.suppressed is not None and len(self.answer) < self.sampling.min_tokens:
            logits[self.suppressed] = NEVER
        for word in self.rendition.bad_words:
            if _ends_with(self.answer, word[:-1]):
                logits[word[-1]] = NEVER
        forced = self.thinking.forced(self.answer) if self.thinking is not None else None
        if forced is not None:
            logits.fill_(NEVER)[forced] = 0

    def bits(self, words: int) -> np.ndarray:
        """The same as a bit for each of so many words: uint32, word w is bit w % 32 of number w // 32."""
        forced = self.thinking.forced(self.answer) if self.thinking is not None else None
        if forced is not None:
            return _bits_of([forced], words)
        bits = _bits_of(self.sampling.allowed_token_ids or slice(None), words)
        never = [word[-1] for word in self.rendition.bad_words if _ends_with(self.answer, word[:-1])]
        if len(self.answer) < self.sampling.min_tokens:
            never += self.sampling.suppress
        return bits & ~_bits_of(never, words) if never else bits

    def add(self, token: int) -> None:
        self.answer.append(token)
        if self.dry is not None:
            self.dry.add(token)
        if self.mirostat is not None:
            self.mirostat.add(token)
        if self.thinking is not None:
            self.thinking.add(self.answer)


def _bits_of(chosen: list[int] | slice, words: int) -> np.ndarray:
    there = np.zeros(-(-words // 32) * 32, bool)
    there[:words][chosen] = True
    return np.packbits(there, bitorder="little").view(np.uint32)


class LogitsProcessors:
    """The rows that ask for something."""

    def __init__(self, rows: int, words: int, make_matchers: Callable[[], Matchers] | None = None) -> None:
        """`make_matchers` is called when the first request with a grammar comes."""
        self._size = rows, words
        self.speech: SpeechSpec | None = None  # of a model that listens
        self.plugins: Plugins | None = None  # of --logits-processors
        self.mirostat: MirostatStates | None = None  # where successors find those of rows
        self.token_bytes: Callable[[], Callable[[int], bytes]] | None = None  # called when the first needs them
        self._bytes_of: Callable[[int], bytes] | None = None
        self._make_matchers = make_matchers
        self._matchers: Matchers | None = None
        self._processors: dict[int, RowProcessor] = {}
        self._prompted: Tensor | None = None  # [rows, words], made when the first request asks for penalties
        self._counts: Tensor | None = None
        self._penalties = Penalties(*(np.zeros(rows, np.float32) for _ in range(3)))

    def __bool__(self) -> bool:
        return bool(self._processors)

    def drop(self, row: int) -> None:
        """A row asks for nothing from now on."""
        self._processors.pop(row, None)
        if self._matchers is not None:
            self._matchers.drop(row)

    def place(
        self,
        row: int,
        sampling: Sampling,
        rendition: Rendition,
        prompt: Ints,
        answer: list[int],
        drawn: tuple[int, int] = (0, 0),
    ) -> None:
        """A sequence takes a row. `drawn`: its ref, and where its next token will stand."""
        self.drop(row)
        if self.plugins is None and sampling.is_plain() and rendition.is_plain():
            return
        processor = RowProcessor(sampling, rendition)
        if sampling.logit_bias:
            words, values = zip(*sampling.logit_bias, strict=True)
            processor.bias = torch.tensor(words), torch.tensor(values, dtype=torch.float32)
        if sampling.allowed_token_ids:
            processor.allowed = torch.tensor(sampling.allowed_token_ids)
        if sampling.min_tokens and sampling.suppress:
            processor.suppressed = torch.tensor(sampling.suppress)
        if rendition.hearing is not None and self.speech is not None:
            processor.speech = SpeechRules(self.speech, rendition.hearing)
        if rendition.budget is not None:
            processor.thinking = ThinkingState(rendition.budget, rendition.opened)
        for token in answer:
            processor.add(token)
        if self.plugins is not None:
            processor.plugins = self.plugins.of_row(sampling, prompt.tolist(), processor.answer)
        if sampling.watermarking_config is not None:
            processor.watermark = Watermark(sampling.watermarking_config, sampling, prompt.tolist(), self._size[1])
        if sampling.dry_multiplier:
            processor.dry = self._make_dry(sampling, [*prompt.tolist(), *answer])
        if sampling.mirostat and sampling.temperature:
            processor.mirostat = Mirostat(sampling, self.mirostat, *drawn)
        if rendition.grammar:
            self._place_grammar(row, rendition.grammar, answer)
        self._place_penalties(row, processor, prompt)
        self._processors[row] = processor

    def _place_grammar(self, row: int, grammar: bytes, answer: list[int]) -> None:
        if self._matchers is None:
            if self._make_matchers is None:
                raise RuntimeError("this worker was made without grammars")
            self._matchers = self._make_matchers()
        self._matchers.place(row, unpack(grammar), answer)

    def _make_dry(self, sampling: Sampling, tokens: list[int]) -> Dry:
        if self._bytes_of is None:
            if self.token_bytes is None:
                raise RuntimeError("this worker was made without the texts of tokens")
            self._bytes_of = self.token_bytes()
        return Dry(sampling, tokens, self._bytes_of)

    def _place_penalties(self, row: int, processor: RowProcessor, prompt: Ints) -> None:
        sampling = processor.sampling
        values = [getattr(sampling, name) for name in PENALTIES]
        processor.penalized = values != [1, 0, 0] and sampling.repeat_last_n != 0
        if not processor.penalized:
            return
        if self._prompted is None or self._counts is None:
            self._prompted = torch.zeros(self._size, dtype=torch.bool)
            self._counts = torch.zeros(self._size, dtype=torch.int32)
        for array, value in zip(self._penalties, values, strict=True):
            array[row] = value
        self._prompted[row] = False
        if sampling.repeat_last_n < 0:
            self._prompted[row, torch.from_numpy(prompt)] = True
            counted = processor.answer
        else:
            last = prompt[-sampling.repeat_last_n :].tolist() + processor.answer
            processor.recent = deque(last, maxlen=sampling.repeat_last_n)
            counted = [*processor.recent]
        self._counts[row] = torch.bincount(torch.tensor(counted, dtype=torch.int64), minlength=self._size[1])

    def among(self, rows: Ints) -> Ints:
        """Which of these rows ask for something, as indices."""
        return (
            np.flatnonzero([row in self._processors for row in rows.tolist()])
            if self._processors
            else np.empty(0, np.int64)
        )

    def apply(self, logits: Tensor, rows: Ints) -> np.ndarray:
        """Change the logits [len(rows), words] of these rows in place; those whose grammar has failed (int32)."""
        found = [(index, self._processors[row]) for index, row in enumerate(rows.tolist()) if row in self._processors]
        some = [index for index, processor in found if processor.penalized]
        if some and self._prompted is not None and self._counts is not None:
            chosen = rows[some]
            own, at = torch.from_numpy(chosen), torch.tensor(some)
            part = logits[at]
            penalties = Penalties(*(values[chosen] for values in self._penalties))
            penalize(part, self._prompted[own], self._counts[own], penalties)
            logits[at] = part
        for index, processor in found:
            if processor.dry is not None:
                processor.dry.apply(logits[index])
            if processor.bias is not None:
                logits[index].index_add_(0, *processor.bias)
        failed = self._apply_plugins(logits, rows, found)
        constrained = [index for index, processor in found if processor.rendition.grammar]
        before = logits[torch.tensor(constrained)] if constrained else None
        for index, processor in found:
            processor.mask(logits[index])
        if before is not None:
            self._apply_grammars(logits, rows, constrained, before)
            assert self._matchers is not None
            failed = np.concatenate([failed, self._matchers.failed(rows[constrained])])
        for index, processor in found:
            if processor.watermark is not None:  # of what may be drawn
                processor.watermark.apply(logits[index], processor.answer)
            if processor.mirostat is not None:
                processor.mirostat.truncate(logits[index])
        return failed

    def _apply_plugins(self, logits: Tensor, rows: Ints, found: list[tuple[int, RowProcessor]]) -> np.ndarray:
        """The rows whose processors failed (int32), each PLUGIN_FAILED more."""
        failed = []
        for index, processor in found:
            if processor.plugins is None:
                continue
            try:
                processor.plugins.apply(logits[index])
            except PluginTrouble as error:
                log.warning("row %d ends: the logits processor %s", rows[index], error)
                failed.append(int(rows[index]) + PLUGIN_FAILED)
        return np.array(failed, np.int32)

    def _apply_grammars(self, logits: Tensor, rows: Ints, constrained: list[int], before: Tensor) -> None:
        """Keep to the grammars; where another mask leaves nothing of what one allows, the grammar is stronger."""
        assert self._matchers is not None
        _, bits = self._matchers.fill(rows[constrained])
        at = np.array(constrained)
        apply_mask(logits, bits, at)
        none = torch.nonzero(logits[torch.from_numpy(at)].amax(-1) == NEVER)[:, 0].numpy()
        if none.size:
            alone = before[torch.from_numpy(none)]
            apply_mask(alone, bits[none])
            logits[torch.from_numpy(at[none])] = alone

    def forced(self, row: int, most: int) -> list[int]:
        """The row's next tokens that its grammar leaves no choice of, which is stronger than whatever else it asks."""
        processor = self._processors.get(row)
        if (
            self._matchers is None
            or processor is None
            or not processor.rendition.grammar
            or processor.plugins is not None
            or processor.mirostat is not None  # which sees each token drawn
        ):
            return []
        return self._matchers.forced(row, most)

    def fill_masks(self, rows: Ints) -> tuple[np.ndarray, np.ndarray]:
        """For who changes logits on a device: the words that these rows may draw, a bit each (int32 [rows, words / 32,
        rounded up]), and those rows whose grammar has failed (int32)."""
        bits = np.stack([self._processors[row].bits(self._size[1]) for row in rows.tolist()]).view(np.int32)
        if self._matchers is None:
            return bits, np.empty(0, np.int32)
        constrained, allowed = self._matchers.fill(rows)
        both = bits[constrained] & allowed
        bits[constrained] = np.where(both.any(-1, keepdims=True), both, allowed)  # a grammar is stronger than a mask
        return bits, self._matchers.failed(rows[constrained])

    def dry_penalties(self, rows: Ints) -> dict[int, tuple[Ints, np.ndarray]]:
        """For the same: of the rows with DRY, what is taken from which words' logits."""
        found = ((row, self._processors[row].dry) for row in rows.tolist())
        return {row: dry.penalties() for row, dry in found if dry is not None}

    def advance(self, rows: Ints, tokens: np.ndarray) -> None:
        """These rows have drawn these tokens."""
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            processor = self._processors.get(row)
            if processor is None:
                continue
            processor.add(token)
            if self._matchers is not None and processor.rendition.grammar:
                self._matchers.advance(row, token)
            if processor.penalized:
                self._count(row, processor, token)

    def _count(self, row: int, processor: RowProcessor, token: int) -> None:
        assert self._counts is not None
        recent = processor.recent
        if recent is not None:
            if len(recent) == recent.maxlen:
                self._counts[row, recent[0]] -= 1
            recent.append(token)
        self._counts[row, token] += 1
