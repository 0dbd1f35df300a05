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

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from actorserve.kernels.cpu.attention import StepAttention, contexts
from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from ...model.memory.kv import KVSpec
from ..adapter.hooks import NAME, Call, Unfit, as_scale, attending, use_attention
from ..adapter.model import Spans
from .passes import EncoderDecoderPasses


class Way(enum.Enum):
    """How a step is computed."""

    FLAT = "flat: rows that decode go through at once"
    SINGLE = "single: with transformers' own attention, row by row"


class RowInput(NamedTuple):
    """What a row's encoder reads."""

    length: int  # positions of its answer; the log's first. 0: the slot is another's by now, and the row is nobody's
    features: Tensor | None = None  # of a sound [1, …]; None: it reads the log's first tokens. Of prompts alone


class RowsKV(NamedTuple):
    """One KV memory, seen twice: what a step of attention lays aside lasts until the next one of the same view."""

    own: PagedKV  # which is written
    cross: PagedKV

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.own.block_size


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
        return self.passes.logits(x).float()

    def compute(
        self, ids: Tensor, slots: Tensor, kv: RowsKV, spans: Sequence[Span], inputs: Sequence[RowInput]
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
                parts.append((at, self._prompt(ids, slots, kv, span, row)))
        for group in [decoding] if self.way is Way.FLAT and decoding else [[one] for one in decoding]:
            at = torch.cat([torch.arange(span.first, span.first + span.size) for span, _ in group])
            parts.append((at, self._rows(ids[at], slots[at], kv, group)))
        for at, hidden in parts:
            if out is None:
                out = hidden.new_zeros(len(ids), hidden.shape[-1])
            out[at] = hidden
        return torch.zeros(len(ids), self.passes.width, dtype=self.dtype) if out is None else out

    @staticmethod
    def _place(kv: RowsKV, row: RowInput) -> int:
        """Where the decoder's tokens begin in a row's log."""
        return -(-row.length // kv.block_size) * kv.block_size

    def _prompt(self, ids: Tensor, slots: Tensor, kv: RowsKV, span: Span, row: RowInput) -> Tensor:
        """Read, then go through all that the decoder has."""
        begin, end = span.first + self._place(kv, row), span.first + span.size
        read = ids[None, span.first : span.first + row.length] if row.features is None else row.features
        answer = self.passes.encode(read if row.features is None else read.to(self.dtype))
        if answer.shape[1] != row.length:
            raise Unfit(f"makes {answer.shape[1]} positions of {row.length}")
        own = _behind(span, kv.block_size, self._place(kv, row))
        make = _FlatPrompt if self.way is Way.FLAT else _SinglePrompt
        step = make(kv, self.kv, slots[begin:end], own, slots[span.first : span.first + row.length])
        with attending(step):
            return self.passes.decode(ids[None, begin:end], torch.arange(end - begin), step, answer)[0]

    def _rows(self, ids: Tensor, slots: Tensor, kv: RowsKV, group: list[tuple[Span, RowInput]]) -> Tensor:
        """Rows that have read."""
        own, cross, first = [], [], 0
        for span, row in group:
            own.append(_behind(span, kv.block_size, self._place(kv, row))._replace(first=first))
            cross += [Span(at, 1, row.length - 1, span.blocks, span.one_run) for at in range(first, first + span.size)]
            first += span.size
        positions = torch.cat([torch.arange(span.position, span.position + span.size) for span in own])
        step: _Decoding = (_FlatRows if self.way is Way.FLAT else _SingleRow)(kv, self.kv, slots, own, cross)
        with attending(step):
            return self.passes.decode(ids[None], positions, step, None)[0]


def _behind(span: Span, block_size: int, place: int) -> Span:
    """The decoder's part of a span, whose positions count from its first token."""
    start = max(span.position, place)
    return Span(0, span.position + span.size - start, start - place, span.blocks[place // block_size :], span.one_run)


class _Step:
    """Who computes one pass, for the caches and the attention function."""

    past = 0

    def __init__(self, kv: RowsKV, spec: KVSpec, slots: Tensor) -> None:
        self.kv, self.spec, self.slots = kv, spec, slots
        self.count = sum(layer is not None and layer.source is None for layer in spec.layers)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [1, heads, tokens, width]."""
        self.kv.own.write(layer, slots, *(part.transpose(1, 2).flatten(0, 1) for part in (keys, values)))

    def attend(self, call: Call) -> Tensor:
        raise Unfit("asks for attention that nobody has prepared")

    def cross_update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        raise Unfit("reads the encoder's answer where there is none")

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        raise Unfit("asks for keys of cross attention that are made in this pass")


class _Prompt(_Step):
    """The decoder's first tokens of one row, with the encoder's answer."""

    def __init__(self, kv: RowsKV, spec: KVSpec, slots: Tensor, own: Span, read: Tensor) -> None:
        super().__init__(kv, spec, slots)
        self.read = read  # slots of the encoder's part

    def cross_update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, self.read, keys, values)
        return keys, values


class _FlatPrompt(_Prompt):
    """Attention is ours: what was stored of the decoder, and all that the encoder has answered."""

    def __init__(self, kv: RowsKV, spec: KVSpec, slots: Tensor, own: Span, read: Tensor) -> None:
        super().__init__(kv, spec, slots, own, read)
        self.attention = StepAttention(kv.own, [own], spec.layers)
        self.given: dict[int, int] = {}  # layers by what they were given

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, self.slots, keys, values)
        self.given = {id(keys): layer}
        return keys, values

    def attend(self, call: Call) -> Tensor:
        layer = self.given.pop(id(call.keys), None)
        if layer is not None:
            return _flat(call, self.attention, layer)
        scale = as_scale(call.options.get("scaling"), call.queries.shape[3])
        return scaled_dot_product_attention(call.queries, call.keys, call.values, scale=scale).transpose(1, 2)


class _SinglePrompt(_Prompt):
    """Attention is the model's own, over what it has just made."""

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, self.slots, keys, values)
        return keys, values


class _Decoding(_Step):
    """Rows whose cross attention is kept."""

    def __init__(self, kv: RowsKV, spec: KVSpec, slots: Tensor, own: list[Span], cross: list[Span]) -> None:
        super().__init__(kv, spec, slots)

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class _FlatRows(_Decoding):
    """Attention is ours."""

    def __init__(self, kv: RowsKV, spec: KVSpec, slots: Tensor, own: list[Span], cross: list[Span]) -> None:
        super().__init__(kv, spec, slots, own, cross)
        self.own = StepAttention(kv.own, own, spec.layers)
        self.crossed = StepAttention(kv.cross, cross, spec.layers)
        layer = spec.layers[0]
        assert layer is not None
        marks = torch.empty(self.count, 1, layer.kv_heads, 1, layer.key_dim)
        self.marks = list(marks.unbind(0))  # in place of keys that nobody but us reads
        self.layers: dict[int, int] = {}  # by what was handed out

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, self.slots, keys, values)
        self.layers = {id(keys): layer}
        return keys, values

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        self.layers = {id(self.marks[layer]): self.count + layer}
        return self.marks[layer], self.marks[layer]

    def attend(self, call: Call) -> Tensor:
        layer = self.layers.get(id(call.keys))
        if layer is None:
            raise Unfit("changes keys and values behind its cache")
        return _flat(call, self.own if layer < self.count else self.crossed, layer)


class _SingleRow(_Decoding):
    """Attention is the model's own, over gathered contexts."""

    def __init__(self, kv: RowsKV, spec: KVSpec, slots: Tensor, own: list[Span], cross: list[Span]) -> None:
        super().__init__(kv, spec, slots, own, cross)
        (self.span,), self.read = own, cross[0]
        self.past = self.span.position
        self.latest: tuple[int, tuple[Tensor, Tensor]] | None = None  # keys and values are asked for apart

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, self.slots, keys, values)
        return self._gathered(self.span, layer)

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        if self.latest is None or self.latest[0] != layer:
            self.latest = layer, self._gathered(self.read, layer)
        return self.latest[1]

    def _gathered(self, span: Span, layer: int) -> tuple[Tensor, Tensor]:
        ((keys, values),) = contexts(self.kv.own, [span], self.spec.layers, layer)
        return keys[None], values[None]


def _flat(call: Call, attention: StepAttention, layer: int) -> Tensor:
    queries = call.queries.transpose(1, 2)
    out = attention(layer, queries.flatten(0, 1).contiguous())
    result: Tensor = out.view(*queries.shape[:3], -1)
    return result
