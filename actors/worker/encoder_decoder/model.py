"""An encoder–decoder of transformers under the project's own batch and KV memory.

The log of a row (model/encoder_decoder/spec.py) begins with the encoder's part, up to the end of a block: its blocks
hold the keys and values of cross attention, those behind them the decoder's own. A prompt is computed whole: the
encoder, then the decoder over its first tokens, which makes those keys and values. From then on a row decodes as any
other does.

Two ways, of which a model is given the first that was right when it was tried (verify.py):
- flat: all rows that decode are one row for the decoder, attention is ours. Cross attention of a token is that of the
  last position of the encoder's part, which sees all of it;
- single: the decoder's own attention (with relative positions: T5) over gathered contexts, one row at a time.

On a GPU, where starting a pass takes longer than many of its positions, the prompts of a step are read together: as
they are long, those that are equally long in one pass of the encoder; and where the way is flat they are one row for
the decoder, too.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

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

Given = TypeVar("Given")


class Way(enum.Enum):
    """How a step is computed."""

    FLAT = "flat: rows that decode go through at once"
    SINGLE = "single: with transformers' own attention, row by row"


class RowInput(NamedTuple):
    """What a row's encoder reads."""

    length: int  # positions of its answer; the log's first. 0: the slot is another's by now, and the row is nobody's
    features: Tensor | None = None  # of a sound [1, …]; None: it reads the log's first tokens. Of prompts alone


ReadRow = tuple[Span, RowInput]


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
        pairs = [(span, row) for span, row in zip(spans, inputs, strict=True) if row.length]
        prompts = [one for one in pairs if not one[0].position]
        decoding = [one for one in pairs if one[0].position]
        parts: list[tuple[Tensor, Tensor]] = []
        for group in _divided(prompts, self.device.type != "cpu"):
            parts += self._prompts(ids, slots, kv, group)
        for group in _divided(decoding, self.way is Way.FLAT):
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

    def _prompts(
        self, ids: Tensor, slots: Tensor, kv: AnyRowsKV, group: list[ReadRow]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Read, then go through all that the decoder has: places in the flat batch, and what is there."""
        answers = self._answers(ids, [row for _, row in group], [span.first for span, _ in group])
        begun = [(*one, answer) for one, answer in zip(group, answers, strict=True)]
        for some in _divided(begun, self.way is Way.FLAT):
            own, read, at, first = list[Span](), list[Tensor](), list[Tensor](), 0
            for span, row, _ in some:
                place = self._place(kv, row)
                own.append(behind(span, kv.block_size, place)._replace(first=first))
                first += own[-1].size
                read.append(torch.arange(span.first, span.first + row.length))
                at.append(torch.arange(span.first + place, span.first + span.size))
            make, those = FlatPrompt if self.way is Way.FLAT else SinglePrompt, torch.cat(at)
            of_read = sent(slots[torch.cat(read)], self.device)
            step = make(kv, self.kv, sent(slots[those], self.device), own, of_read, [len(one) for one in read])
            positions = sent(torch.cat([torch.arange(len(one)) for one in at]), self.device)
            answer = torch.cat([answer for *_, answer in some], 1)
            with attending(step):
                hidden = self.passes.decode(sent(ids[those], self.device)[None], positions, step, answer)
            yield those, hidden[0].cpu()

    def _answers(self, ids: Tensor, rows: list[RowInput], firsts: list[int]) -> list[Tensor]:
        """The encoder's answer [1, positions, width] to each, whose log begins at one of `firsts`."""
        found: dict[int, Tensor] = {}
        for length in {row.length for row in rows}:
            those = [index for index, row in enumerate(rows) if row.length == length]
            read = [
                ids[None, firsts[index] : firsts[index] + length] if features is None else features
                for index, features in ((index, rows[index].features) for index in those)
            ]
            answer = self.encode(torch.cat(read))
            if answer.shape[1] != length:
                raise Unfit(f"makes {answer.shape[1]} positions of {length}")
            found |= zip(those, answer.split(1), strict=True)
        return [found[index] for index in range(len(rows))]

    def encode(self, read: Tensor) -> Tensor:
        """The encoder's answer to ids [rows, positions], or to features of sounds."""
        given = sent(read, self.device) if read.device.type == "cpu" else read
        return self.passes.encode(given.to(self.dtype) if given.is_floating_point() else given)

    def _rows(self, ids: Tensor, slots: Tensor, kv: AnyRowsKV, group: list[ReadRow]) -> Tensor:
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

    def try_out(self, length: int, features: Tensor | None, kv: AnyRowsKV, rows: int, tokens: int) -> None:
        """All kinds of steps, so that kernels are compiled and memory is measured: prompts that read so many
        positions, as many as a step of `tokens` has, `rows` that decode behind them, and their logits. All of it is
        written to the first block.
        """
        read = RowInput(length, features)
        begun, first = self._place(kv, read) + 2, np.zeros(1, np.int32)
        table = first.repeat(begun // kv.block_size + 1)
        decoding = range(rows if self.way is Way.FLAT else 1)  # others go through one after the other
        most = tokens // begun if features is not None else -(-tokens // begun)  # shorter texts fill a step
        prompts = max(1, min(rows, most))
        for spans in (
            [Span(row * begun, begun, 0, table, False) for row in range(prompts)],
            [Span(row, 1, begun, table, False) for row in decoding],
        ):
            count = spans[-1].first + spans[-1].size
            slots = torch.zeros(count, dtype=torch.long)
            self.compute(torch.full((count,), 3), slots, kv, spans, [read] * len(spans))
        self.logits(torch.zeros(rows, self.passes.width, dtype=self.dtype))


def _divided(rows: list[Given], together: bool) -> list[list[Given]]:
    """Those that go through at once."""
    return [rows] if together and rows else [[one] for one in rows]
