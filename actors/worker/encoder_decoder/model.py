"""An encoder–decoder of transformers under the project's own batch and KV memory.

The log of a row (model/encoder_decoder/spec.py) begins with the encoder's part, up to the end of a block: its blocks
hold the keys and values of cross attention, those behind them the decoder's own. A prompt is computed whole: the
encoder, then the decoder over its first tokens, which makes those keys and values. From then on a row decodes as any
other does.

Two ways, of which a model is given the first that was right when it was tried (verify.py):
- flat: all rows that decode are one row for the decoder, attention is ours. Cross attention of a token is that of the
  last position of the encoder's part, which sees all of it;
- single: the decoder's own attention (with relative positions: T5) over gathered contexts, one row at a time.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from ...model.memory.kv import KVSpec
from ..adapter.hooks import NAME, Unfit, attending, use_attention
from ..adapter.model import Spans
from ..transfer import sent
from .passes import EncoderDecoderPasses
from .rows_kv import AnyRowsKV
from .steps import DecodingStep, FlatPrompt, FlatRows, SinglePrompt, SingleRow, behind


class Way(enum.Enum):
    """How a step is computed."""

    FLAT = "flat: rows that decode go through at once"
    SINGLE = "single: with transformers' own attention, row by row"


class RowInput(NamedTuple):
    """What a row's encoder reads."""

    length: int  # positions of its answer; the log's first. 0: the slot is another's by now, and the row is nobody's
    features: Tensor | None = None  # of a sound [1, …]; None: it reads the log's first tokens. Of prompts alone


class EncoderDecoder:
    """See cpu/decoder.py:Decoder; what it computes of a step is asked by `compute` instead of `forward`."""

    batch_invariant = False

    def __init__(
        self, passes: EncoderDecoderPasses, kv: KVSpec, way: Way, dtype: torch.dtype, quantised: bool = False
    ) -> None:
        self.kv, self.way, self.quantised = kv, way, quantised
        self.dtype = self.precision = dtype
        self.vocab_size = int(passes.model.config.get_text_config(decoder=True).vocab_size)
        self.passes = passes
        self.device = passes.model.device  # where it is computed; what it is given, and gives, is on the host
        self.layers = self.passes.layers
        if way is Way.FLAT:
            use_attention(self.passes.decoder, NAME)

    def attention(self, kv: PagedKV, spans: Sequence[Span]) -> Spans:
        """Made of the spans when it is known what was read."""
        return Spans(spans)

    def forward(self, *given: Any) -> Tensor:
        raise NotImplementedError("an encoder–decoder computes with what its rows have read")

    def logits(self, x: Tensor) -> Tensor:
        """See Decoder."""
        return self.passes.logits(x.to(self.device)).float().cpu()

    def compute(
        self, ids: Tensor, slots: Tensor, kv: AnyRowsKV, spans: Sequence[Span], inputs: Sequence[RowInput]
    ) -> Tensor:
        """Hidden states of the decoder's tokens, at their places in the flat batch; without meaning for others, and
        zeros for a row that is nobody's.
        """
        out: Tensor | None = None
        decoding: list[tuple[Span, RowInput]] = []
        parts: list[tuple[Tensor, Tensor]] = []
        for span, row in zip(spans, inputs, strict=True):
            if not row.length:
                continue
            if span.position:
                decoding.append((span, row))
            else:
                at = torch.arange(span.first + self._place(kv, row), span.first + span.size)
                parts.append((at, self._prompt(ids, slots, kv, span, row).cpu()))
        for group in [decoding] if self.way is Way.FLAT and decoding else [[one] for one in decoding]:
            at = torch.cat([torch.arange(span.first, span.first + span.size) for span, _ in group])
            parts.append((at, self._rows(sent(ids[at], self.device), sent(slots[at], self.device), kv, group).cpu()))
        for at, hidden in parts:
            if out is None:
                out = hidden.new_zeros(len(ids), hidden.shape[-1])
            out[at] = hidden
        return torch.zeros(len(ids), self.passes.width, dtype=self.dtype) if out is None else out

    @staticmethod
    def _place(kv: AnyRowsKV, row: RowInput) -> int:
        """Where the decoder's tokens begin in a row's log."""
        return -(-row.length // kv.block_size) * kv.block_size

    def _prompt(self, ids: Tensor, slots: Tensor, kv: AnyRowsKV, span: Span, row: RowInput) -> Tensor:
        """Read, then go through all that the decoder has."""
        begin, end = span.first + self._place(kv, row), span.first + span.size
        ids, slots = sent(ids, self.device), sent(slots, self.device)
        answer = self.encode(ids[None, span.first : span.first + row.length] if row.features is None else row.features)
        if answer.shape[1] != row.length:
            raise Unfit(f"makes {answer.shape[1]} positions of {row.length}")
        own = behind(span, kv.block_size, self._place(kv, row))
        make = FlatPrompt if self.way is Way.FLAT else SinglePrompt
        step = make(kv, self.kv, slots[begin:end], own, slots[span.first : span.first + row.length])
        with attending(step):
            positions = torch.arange(end - begin, device=self.device)
            return self.passes.decode(ids[None, begin:end], positions, step, answer)[0]

    def encode(self, read: Tensor) -> Tensor:
        """The encoder's answer to ids [1, positions], or to features of a sound."""
        given = sent(read, self.device) if read.device.type == "cpu" else read
        return self.passes.encode(given.to(self.dtype) if given.is_floating_point() else given)

    def _rows(self, ids: Tensor, slots: Tensor, kv: AnyRowsKV, group: list[tuple[Span, RowInput]]) -> Tensor:
        """Rows that have read."""
        own, cross, first = [], [], 0
        for span, row in group:
            own.append(behind(span, kv.block_size, self._place(kv, row))._replace(first=first))
            cross += [Span(at, 1, row.length - 1, span.blocks, span.one_run) for at in range(first, first + span.size)]
            first += span.size
        positions = torch.cat([torch.arange(span.position, span.position + span.size) for span in own])
        step: DecodingStep = (FlatRows if self.way is Way.FLAT else SingleRow)(kv, self.kv, slots, own, cross)
        with attending(step):
            return self.passes.decode(ids[None], sent(positions, self.device), step, None)[0]

    def try_out(self, length: int, features: Tensor | None, kv: AnyRowsKV, rows: int) -> None:
        """All kinds of steps, so that kernels are compiled and memory is measured: a prompt that reads so many
        positions, `rows` that decode behind it, and their logits. All of it is written to the first block.
        """
        read = RowInput(length, features)
        begun, first = self._place(kv, read) + 2, np.zeros(1, np.int32)
        table = first.repeat(begun // kv.block_size + 1)
        decoding = range(rows if self.way is Way.FLAT else 1)  # others go through one after the other
        for spans in (
            [Span(0, begun, 0, table, False)],
            [Span(row, 1, begun, table, False) for row in decoding],
        ):
            count = spans[-1].first + spans[-1].size
            slots = torch.zeros(count, dtype=torch.long)
            self.compute(torch.full((count,), 3), slots, kv, spans, [read] * len(spans))
        self.logits(torch.zeros(rows, self.passes.width, dtype=self.dtype))
