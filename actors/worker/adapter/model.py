"""A decoder of transformers under the project's own batch, KV memory and attention.

Four ways to compute a step, of which a model is given the first that was verified (verify.py):
- flat: all tokens of all rows are one row for it; positions come with them, and attention is ours;
- rows: attention is ours, but what it does depends on the order of a row's tokens (states of convolutions and linear
  attention, positions that it counts itself): rows that decode go through it side by side if they can, a chunk of a
  prompt alone;
- single: its own attention and masks, over the gathered context, one row at a time.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from actorserve.kernels.cpu.attention import StepAttention
from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from ...model.memory.kv import KVSpec
from ..cpu.layers.native import FEW_TOKENS
from ..cpu.memory.states import StepStates
from ..cpu.memory.window_tables import AnyKV, TabledAttention
from ..lora.sites import LoraSites
from ..vision.step import VisionStep
from .cache.row_states import give_states
from .fused.decoder import plain_head, whole_decoder
from .hooks import NAME, attending, use_attention
from .passes import Passes
from .pictures import GivenPictures
from .probe import Traits
from .steps import AdaptedStep, GatheredStep, PagedStep, in_order

Row = tuple[Span, ...]  # of a sequence, in each block table


class Tier(enum.Enum):
    """How a step is computed."""

    FLAT = "flat"
    ROWS = "rows"
    TOKENS = "tokens"
    SINGLE = "single"


class Spans:
    """The spans of a step that is computed in groups; each group has attention of its own."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans

    def advance(self) -> bool:
        """Groups are made anew."""
        return False


class AdaptedModel:
    """See cpu/decoder.py:Decoder."""

    batch_invariant = False
    step: VisionStep | None = None  # of the next forward pass, where the model sees pictures
    pictures: GivenPictures | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        traits: Traits,
        tier: Tier,
        dtype: torch.dtype,
        quantised: bool = False,
        lora: LoraSites | None = None,
    ) -> None:
        self.traits, self.tier, self.quantised = traits, tier, quantised
        self.dtype = self.precision = dtype
        self.kv: KVSpec = traits.kv
        self.vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
        self.reads_windows_alone = reads_windows_alone(traits, tier)
        self.model = model
        self.passes = Passes(model)
        self.lora = lora
        if tier is not Tier.SINGLE:
            use_attention(model, NAME)
        flat = tier is Tier.FLAT and not traits.gathered and in_order(traits)
        self.whole = whole_decoder(self.passes, traits.caches) if flat else None
        self.head = None if self.whole is None else plain_head(self.passes)

    def attention(self, kv: PagedKV, spans: Sequence[Span]) -> StepAttention | Spans:
        """See Decoder."""
        if self.tier is Tier.FLAT and not self.traits.gathered:
            return StepAttention(kv, spans, self.kv.layers)
        return Spans(spans)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        kv: AnyKV,
        attention: StepAttention | TabledAttention | Spans,
        states: StepStates | None = None,
    ) -> Tensor:
        """See Decoder."""
        if self.pictures is not None:
            self.pictures.see(self.step)
        if self.tier is Tier.FLAT:
            own_attention = self._attention(kv, [attention.spans]) if isinstance(attention, Spans) else attention
            attends = own_attention if self.pictures is None else self.pictures.attention(self.step, own_attention)
            seeing = self.step is not None and self.step.at is not None
            if not seeing and (done := self._at_once(ids, positions, slots, own_attention)) is not None:
                return done
            return self._pass(ids[None], positions[None], PagedStep(self.traits, kv, slots, attends))[0]
        assert not isinstance(attention, StepAttention)
        tables = [attention.spans] if isinstance(attention, Spans) else attention.spans
        rows, out = list(zip(*tables, strict=True)), None
        for group in self._groups(tables[0], states):
            own = None if states is None else StepStates(states.states, states.rows[group], states.fresh[group])
            for some in self._parts([rows[index] for index in group], own):
                tokens = _tokens(some)
                with ExitStack() as narrowed:
                    if self.lora is not None:
                        narrowed.enter_context(self.lora.narrowed(tokens))
                    if self.pictures is not None:
                        narrowed.enter_context(self.pictures.narrowed(tokens))
                    hidden = self._group(some, ids, positions, slots, kv, own)
                if out is None:
                    out = hidden.new_empty(len(ids), *hidden.shape[2:])
                out[tokens] = hidden.flatten(0, 1)
        assert out is not None
        return out

    def _at_once(
        self, ids: Tensor, positions: Tensor, slots: Tensor, attention: StepAttention | TabledAttention
    ) -> Tensor | None:
        """A step of few tokens, where the decoder is nothing but layers that are computed as one."""
        if self.whole is None or len(ids) > FEW_TOKENS or not isinstance(attention, StepAttention):
            return None
        of_all = attention.of_all_layers
        if of_all is None or not of_all.pool.joined:
            return None
        if self.lora is None:
            return self.whole(ids, positions, slots, of_all)
        if not self.lora.joins(self.whole.layers):
            return None
        return self.whole(ids, positions, slots, of_all, self.lora.added(self.whole.layers))

    def _attention(self, kv: AnyKV, tables: Sequence[Sequence[Span]]) -> StepAttention | TabledAttention:
        """Of spans, which stand in each block table."""
        if isinstance(kv, PagedKV):
            return StepAttention(kv, tables[0], self.kv.layers)
        return TabledAttention(kv, tables)

    def _parts(self, group: list[Row], states: StepStates | None) -> list[list[Row]]:
        """What is computed at a time: tokens of a row that has a state, one by one, where it must be so."""
        if self.tier is not Tier.TOKENS or states is None or states.fresh.any() or group[0][0].size == 1:
            return [group]
        (row,) = group
        return [[tuple(_token_of(span, number) for span in row)] for number in range(row[0].size)]

    def logits(self, x: Tensor) -> Tensor:
        """See Decoder."""
        return (self.passes.logits if self.head is None else self.head)(x).float()

    def _groups(self, spans: Sequence[Span], states: StepStates | None) -> list[list[int]]:
        """Which go through the model side by side: rows that decode from states, if positions can be given."""
        together: list[int] = []
        anywhere = self.traits.positions or not any(self.kv.layers)  # where positions are given, or mean nothing
        if states is not None and self.tier is not Tier.SINGLE and anywhere and not self.traits.gathered:
            together = [index for index, span in enumerate(spans) if span.size == 1 and not states.fresh[index]]
        alone = [[index] for index in range(len(spans)) if index not in set(together)]
        return [together, *alone] if together else alone

    def _group(
        self,
        group: list[Row],
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        kv: AnyKV,
        states: StepStates | None,
    ) -> Tensor:
        """Rows of as many tokens each, side by side; the result is [rows, tokens, …]."""
        tokens, size = _tokens(group), group[0][0].size
        tables = [
            [span._replace(first=number * size) for number, span in enumerate(spans)]
            for spans in zip(*group, strict=True)
        ]
        step: AdaptedStep
        if self.tier is Tier.SINGLE:
            assert isinstance(kv, PagedKV)
            step = GatheredStep(self.traits, kv, slots[tokens], tables[0][0])
        else:
            step = PagedStep(self.traits, kv, slots[..., tokens], self._attention(kv, tables))
        step.past = min(row[0].position for row in group)
        return self._pass(ids[tokens].view(-1, size), positions[tokens].view(-1, size), step, states)

    def _pass(self, ids: Tensor, positions: Tensor, step: AdaptedStep, states: StepStates | None = None) -> Tensor:
        """The decoder's answer to ids and positions [rows, tokens]."""
        step.lora = self.lora
        cache = self.traits.caches.make(step)
        kept = None
        if states is not None:
            kept = give_states(cache, self.kv.states, states.states, states.rows, fresh=bool(states.fresh.any()))
        with attending(step):
            hidden = self.passes.hidden(ids, positions, cache)
        if kept is not None:
            kept.put_back()
        return hidden


def _tokens(group: Sequence[Row]) -> Tensor:
    """Where the tokens of these rows stand in the flat batch."""
    return torch.cat([torch.arange(span.first, span.first + span.size) for span, *_ in group])


def _token_of(span: Span, number: int) -> Span:
    return span._replace(first=span.first + number, size=1, position=span.position + number)


def reads_windows_alone(traits: Traits, tier: Tier) -> bool:
    """Is what layers do not see read by nobody? A model that is given whole contexts reads all of them."""
    return tier is not Tier.SINGLE and not traits.gathered


def describe(traits: Traits, tier: Tier) -> str:
    """For the log and `check`."""
    words: dict[Tier, Any] = {
        Tier.FLAT: "all rows at once",
        Tier.ROWS: "with states of rows" if traits.stateful else "row by row",
        Tier.TOKENS: "with states of rows, prompts token by token behind their first chunk",
        Tier.SINGLE: "with transformers' own attention, row by row",
    }
    return f"{tier.value}: {words[tier]}"
