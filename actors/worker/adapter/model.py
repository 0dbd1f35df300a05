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
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from actorserve.kernels.cpu.attention import StepAttention, contexts
from actorserve.kernels.cpu.native.heads import HeadRules
from actorserve.kernels.cpu.native.layers import PlainLayers
from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from ...model.memory.kv import KVSpec
from ..cpu.layers.native import FEW_TOKENS
from ..cpu.memory.states import StepStates
from ..cpu.memory.window_tables import AnyKV, TabledAttention
from ..lora.sites import LoraSites
from .cache import load_states, store_states
from .fused.parts import Turn
from .hooks import NAME, Call, Unfit, attending, use_attention
from .passes import Passes
from .probe import Traits


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

    def __init__(
        self,
        model: PreTrainedModel,
        traits: Traits,
        tier: Tier,
        dtype: torch.dtype,
        quantised: bool = False,
        lora: LoraSites | None = None,
    ) -> None:
        self.traits, self.tier, self.dtype, self.quantised = traits, tier, dtype, quantised
        self.kv: KVSpec = traits.kv
        self.vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
        self.reads_windows_alone = reads_windows_alone(traits, tier)
        self.model = model
        self.passes = Passes(model)
        self.lora = lora
        if tier is not Tier.SINGLE:
            use_attention(model, NAME)

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
        if not isinstance(attention, Spans):
            return self._pass(ids[None], positions[None], _Paged(self.traits, kv, slots, attention))[0]
        assert isinstance(kv, PagedKV)
        spans = attention.spans
        if self.tier is Tier.FLAT:
            step = _Paged(self.traits, kv, slots, StepAttention(kv, spans, self.kv.layers))
            return self._pass(ids[None], positions[None], step)[0]
        out: Tensor | None = None
        for group in self._groups(spans, states):
            own = None if states is None else StepStates(states.states, states.rows[group], states.fresh[group])
            for some in self._parts([spans[index] for index in group], own):
                tokens = _tokens(some)
                with nullcontext() if self.lora is None else self.lora.narrowed(tokens):
                    hidden = self._group(some, ids, positions, slots, kv, own)
                if out is None:
                    out = hidden.new_empty(len(ids), *hidden.shape[2:])
                out[tokens] = hidden.flatten(0, 1)
        assert out is not None
        return out

    def _parts(self, group: list[Span], states: StepStates | None) -> list[list[Span]]:
        """What is computed at a time: tokens of a row that has a state, one by one, where it must be so."""
        if self.tier is not Tier.TOKENS or states is None or states.fresh.any() or group[0].size == 1:
            return [group]
        (span,) = group
        return [[span._replace(first=span.first + n, size=1, position=span.position + n)] for n in range(span.size)]

    def logits(self, x: Tensor) -> Tensor:
        """See Decoder."""
        return self.passes.logits(x).float()

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
        group: list[Span],
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        kv: PagedKV,
        states: StepStates | None,
    ) -> Tensor:
        """Rows of as many tokens each, side by side; the result is [rows, tokens, …]."""
        tokens, size = _tokens(group), group[0].size
        own = [span._replace(first=number * size) for number, span in enumerate(group)]
        step: _Step
        if self.tier is Tier.SINGLE:
            step = _Contexts(kv, slots[tokens], own[0])
        else:
            step = _Paged(self.traits, kv, slots[tokens], StepAttention(kv, own, self.kv.layers))
        step.past = min(span.position for span in group)
        return self._pass(ids[tokens].view(-1, size), positions[tokens].view(-1, size), step, states)

    def _pass(self, ids: Tensor, positions: Tensor, step: _Step, states: StepStates | None = None) -> Tensor:
        """The decoder's answer to ids and positions [rows, tokens]."""
        if self.lora is not None and self.lora.parts:
            step.whole = False
        cache = self.traits.caches.make(step)
        if states is not None and not states.fresh.any():
            load_states(cache, self.kv.states, states)
        with attending(step):
            hidden = self.passes.hidden(ids, positions, cache)
        if states is not None:
            store_states(cache, self.kv.states, states)
        return hidden


def _tokens(group: Sequence[Span]) -> Tensor:
    """Where the tokens of these spans stand in the flat batch."""
    return torch.cat([torch.arange(span.first, span.first + span.size) for span in group])


class _Step:
    """Who computes one forward pass, for the cache and the attention function."""

    past = 0
    whole = False

    def __init__(self, kv: AnyKV, slots: Tensor) -> None:
        self.kv = kv
        self.slots = slots

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [rows, heads, tokens, width] of a layer."""
        flat = (part.transpose(1, 2).flatten(0, 1) for part in (keys, values))
        self.kv.write(layer, self.slots, *flat)

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """See cache.py:KeysValues."""
        raise NotImplementedError

    def attend(self, call: Call) -> Tensor:
        """See hooks.py:Attending."""
        raise Unfit("asks for attention that nobody has prepared")


class _Paged(_Step):
    """Attention is ours."""

    def __init__(self, traits: Traits, kv: AnyKV, slots: Tensor, attention: Any) -> None:
        super().__init__(kv, slots)
        self.traits = traits
        self.attention = attention
        self.given: dict[int, tuple[Tensor, Tensor]] = {}
        self.calls = iter(traits.asked)
        self.whole = len(slots) <= FEW_TOKENS  # layers that can be are computed at once
        self.stream: Tensor | None = None  # what the last of them made
        self.all_done = False  # that is what all of them make
        self.whole_order = tuple(asked.layer for asked in traits.asked)

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, keys, values)
        if layer in self.traits.gathered:
            found = self.attention.contexts(layer)
            keys, values = (torch.cat(parts, 1)[None] for parts in zip(*found, strict=True))
        self.given[layer] = keys, values
        return keys, values

    def attend(self, call: Call) -> Tensor:
        asked = next(self.calls, None)
        queries = call.queries.transpose(1, 2)
        flat = queries.flatten(0, 1)
        sinks = call.options.get("s_aux")
        if asked is None:
            raise Unfit("asks for attention more often than when it was tried")
        if asked.gathered:
            ends = torch.tensor([span.position + span.size for span in self.attention.spans])
            keys, values = (part[0].split(ends.tolist(), 1) for part in (call.keys, call.values))
            out = self.attention.attend_gathered(asked.layer, flat, keys, values, sinks)
        else:
            keys_, values_ = self.given[asked.source]
            if call.keys is not keys_ or call.values is not values_:
                raise Unfit("attends to other keys than when it was tried")
            out = self.attention(asked.layer, flat, sinks)
        result: Tensor = out.view(*queries.shape[:3], -1)
        return result

    def whole_layer(
        self, layers: PlainLayers, number: int, layer: int, hidden: Tensor, turn: Turn, alike: bool
    ) -> Tensor | None:
        """What a layer makes of hidden states, if it can be computed at once; see fused/parts.py. `alike`: all layers
        are given what this one is, so that the first may compute what comes of all of them."""
        attention = self.attention if self.whole else None
        if not isinstance(attention, StepAttention) or (native := attention.native_of(layer)) is None:
            return None
        self._next(layer)
        if self.all_done:
            if hidden is not self.stream:
                raise Unfit("does more between its layers than when it was tried")
            return hidden
        if hidden is not self.stream:
            self.stream = hidden = hidden.clone()
        rows, of_all = hidden.view(-1, hidden.shape[-1]), attention.of_all_layers
        if alike and number == 0 and of_all is not None and self.whole_order == tuple(range(layers.count)):
            layers.forward_all(rows, self.slots, self.slots, of_all, turn)
            self.all_done = True
        else:
            layers.forward_one(number, rows, (*turn, self.slots), *native)
        return hidden

    def _next(self, layer: int) -> None:
        """The next layer that attends is this one, to its own keys."""
        asked = next(self.calls, None)
        if asked is None or asked.gathered or asked.source != layer or asked.layer != layer:
            raise Unfit("attends to other keys than when it was tried")

    def mix(self, layer: int, qkv: Tensor, rules: HeadRules, sinks: Tensor | None) -> Tensor:
        """Attention of rows of q, k and v, whose heads are what attention is given; see fused/parts.py."""
        self._next(layer)
        keys_from = rules.heads * rules.head_dim
        values_from = keys_from + rules.kv_heads * rules.head_dim
        kv_heads = (rules.kv_heads, -1)
        if 2 * (values_from - keys_from) == qkv.shape[1] - keys_from:
            self.kv.write_joined(layer, self.slots, qkv[:, keys_from:].unflatten(1, (2, *kv_heads)))
        else:
            keys, values = qkv[:, keys_from:values_from], qkv[:, values_from:]
            self.kv.write(layer, self.slots, keys.unflatten(1, kv_heads), values.unflatten(1, kv_heads))
        queries = qkv[:, :keys_from].unflatten(1, (rules.heads, -1))
        mixed: Tensor = self.attention(layer, queries, sinks).flatten(1)
        return mixed


class _Contexts(_Step):
    """Attention is the model's own, of one row."""

    def __init__(self, kv: PagedKV, slots: Tensor, span: Span) -> None:
        super().__init__(kv, slots)
        self.span = span

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.write(layer, keys, values)
        assert isinstance(self.kv, PagedKV)
        ((own_keys, own_values),) = contexts(self.kv, [self.span], self.kv.spec.layers, layer)
        return own_keys[None], own_values[None]


def reads_windows_alone(traits: Traits, tier: Tier) -> bool:
    """Is what layers do not see read by nobody? A model that is given whole contexts reads all of them."""
    return tier is Tier.FLAT and not traits.gathered


def describe(traits: Traits, tier: Tier) -> str:
    """For the log and `check`."""
    words: dict[Tier, Any] = {
        Tier.FLAT: "all rows at once",
        Tier.ROWS: "with states of rows" if traits.stateful else "row by row",
        Tier.TOKENS: "with states of rows, prompts token by token behind their first chunk",
        Tier.SINGLE: "with transformers' own attention, row by row",
    }
    return f"{tier.value}: {words[tier]}"
