"""Which modules of transformers' models can be computed by parts.py: tried, one by one, with the parts that they have.

A module is tried with its products stood in for by numbers that are known: what it gives to the cache and to attention,
and what it answers, must be what ours makes of the same numbers. Every other module stays as it is. In float32, where
there are kernels in C.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actorserve.kernels.cpu.native.heads import HeadNorm, HeadRules, TurnedHeads, Turning
from actorserve.kernels.cpu.native.layers import RowOperations
from actorserve.kernels.cpu.native.library import Library

from ...cpu.layers.native import current
from ..cache.caches import Caches
from ..hooks import CACHES, Call, Unfit, attending, lent_attention
from ..improve import TOGETHER, JoinedProducts, LinearModule, NormModule, PartModule
from ..passes import Passes
from ..probe import Recorder
from .parts import FusedAttention, FusedMlp, rows_of
from .whole import FAILURES, TOKENS, Given, near, replaced, take_layers, values, wide_values

POSITIONS = 37  # where the tokens stand by which modules are tried


def fuse(model: Any, dtype: torch.dtype) -> None:
    """All modules of a model, improved before, whose trial says that they can be."""
    library = current()
    if library is None or dtype != torch.float32:
        return
    silu_mul = RowOperations(library).silu_mul
    for module, joined, down in list(_joined_modules(model, 2)):
        if _is_gated(module, joined):
            module.forward = FusedMlp(module.forward, joined, down, silu_mul)
    attentions = {module: (joined, out) for module, joined, out in _joined_modules(model, 3)}
    layers = [module for module in model.modules() if any(child in attentions for child in module.children())]
    with lent_attention(model):
        given = _arguments(model, [*attentions, *layers])
        for module, (joined, out) in attentions.items():
            made = _attention(library, module, joined, out, given.get(module), Caches(model.config))
            if made is not None:
                module.forward = made
    take_layers(library, {layer: given[layer] for layer in layers if layer in given})


def _joined_modules(model: nn.Module, count: int) -> Iterator[tuple[Any, JoinedProducts, LinearModule]]:
    """Those with so many products that are computed as one, and one more beside them."""
    for module in model.modules():
        parts = _parts(module, count)
        others = [child for child in module.children() if isinstance(child, LinearModule)]
        if parts and len(others) == 1 and "forward" not in vars(module):
            yield module, parts[0].joined, others[0]


def _parts(module: nn.Module, count: int) -> list[PartModule]:
    for names in TOGETHER:
        children = [getattr(module, name, None) for name in names]
        parts = [child for child in children if isinstance(child, PartModule)]
        if len(parts) == len(names) == count and len({id(part.joined) for part in parts}) == 1:
            return parts
    return []


class _Answer(nn.Module):
    """Stands for a product."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer
        self.weight = answer  # whoever looks at its type
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return self.answer


def _stand_in(module: Any, joined: JoinedProducts, inputs: list[Tensor]) -> Any:
    """The same module, whose products give these numbers, but for the last, which gives what it is given."""
    others: dict[str, nn.Module] = {}
    for name, child in module._modules.items():
        if isinstance(child, PartModule) and child.joined is joined:
            others[name] = _Answer(inputs[child.index].clone())  # modules may change it
        elif isinstance(child, LinearModule):
            others[name] = nn.Identity()
    return replaced(module, others)


def _were_given(stand_in: Any, x: Tensor) -> bool:
    """Were its products asked of this very tensor? What is done to it before them, ours would not do."""
    return all(child.seen is x for child in stand_in.children() if isinstance(child, _Answer))


def _is_gated(module: Any, joined: JoinedProducts) -> bool:
    """Is it silu(gate) · up, and no more?"""
    gate, up = (wide_values(1, TOKENS, size) + index for index, size in enumerate(joined.sizes))
    try:
        stand_in, x = _stand_in(module, joined, [gate, up]), values(1, TOKENS, 8)
        found = stand_in.forward(x)
    except FAILURES:
        return False
    expected = F.silu(gate) * up
    return isinstance(found, Tensor) and near(found, expected) and _were_given(stand_in, x)


def _arguments(model: Any, modules: list[Any]) -> dict[Any, Given]:
    """What modules are given when the model computes some tokens."""
    found: dict[Any, Given] = {}

    def note(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        found.setdefault(module, Given(args, kwargs))

    handles = [module.register_forward_pre_hook(note, with_kwargs=True) for module in modules]
    try:
        if modules:
            positions = torch.arange(POSITIONS, POSITIONS + TOKENS)[None]
            recorder = Recorder()
            passes = Passes(model)
            with torch.inference_mode(), attending(recorder):
                passes.hidden(torch.ones(1, TOKENS, dtype=torch.long), positions, Caches(model.config).make(recorder))
    except FAILURES:  # it is no model of which attention could be ours
        found.clear()
    finally:
        for handle in handles:
            handle.remove()
    return found


class _Witness:
    """Plays the part of who computes."""

    past = 0

    def __init__(self) -> None:
        self.layer = -1
        self.keys = self.values = self.queries = self.mixed = torch.empty(0)
        self.sinks: Tensor | None = None
        self.asked = 0

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.layer, self.keys, self.values = layer, keys, values
        return keys, values

    def attend(self, call: Call) -> Tensor:
        if call.keys is not self.keys or call.values is not self.values:
            raise Unfit("attends to other keys than it keeps")
        self.queries, self.sinks = call.queries, call.options.get("s_aux")
        self.asked += 1
        batch, heads, tokens = call.queries.shape[:3]
        self.mixed = wide_values(batch, tokens, heads, call.values.shape[3])
        return self.mixed


def _attention(
    library: Library, module: Any, joined: JoinedProducts, out: LinearModule, whole: Given | None, caches: Caches
) -> FusedAttention | None:
    """Ours, if it does the same."""
    if whole is None or whole.args:
        return None
    given = whole.kwargs
    parts = [wide_values(1, TOKENS, size) + index for index, size in enumerate(joined.sizes)]
    witness = _Witness()
    name = next((name for name in CACHES if name in given), None)
    if name is None:
        return None
    try:
        with torch.inference_mode(), attending(witness):
            stand_in = _stand_in(module, joined, parts)
            answer = stand_in.forward(**{**given, name: caches.make(witness)})
        plain = len(answer) == 2 and answer[1] is None and torch.equal(answer[0][0], witness.mixed[0].flatten(1))
        plain = plain and _were_given(stand_in, given["hidden_states"])
        if not plain or witness.asked != 1 or not torch.equal(_flat(witness.values), parts[2][0]):
            return None
        heads = _turned_heads(library, module, parts, witness, given)
    except FAILURES:
        return None
    if heads is None:
        return None
    return FusedAttention(module.forward, joined, out, heads, witness.layer, witness.sinks)


def _flat(heads: Tensor) -> Tensor:
    """Rows of heads [1, heads, tokens, width]."""
    return heads[0].transpose(0, 1).flatten(1)


def _turned_heads(
    library: Library, module: Any, parts: list[Tensor], witness: _Witness, given: dict[str, Any]
) -> TurnedHeads | None:
    """What makes of q and k what attention was given."""
    heads, kv_heads, head_dim = witness.queries.shape[1], witness.keys.shape[1], witness.keys.shape[3]
    expected = torch.cat([_flat(witness.queries), _flat(witness.keys)], 1)
    embeddings = given.get("position_embeddings")
    turned = embeddings[0].shape[-1] if isinstance(embeddings, tuple) and len(embeddings) == 2 else 0
    norms = [HeadNorm(child.norm.gain, child.norm.eps) for child in module.children() if isinstance(child, NormModule)]
    pairs: list[tuple[HeadNorm | None, HeadNorm | None, bool]] = [(None, None, False)]
    if len(norms) == 2:
        pairs += [(norms[0], norms[1], last) for last in (False, True)]
    kinds = Turning if turned else [Turning.NONE]
    for kind, (q_norm, k_norm, last) in itertools.product(kinds, pairs):
        rules = HeadRules(heads, kv_heads, head_dim, kind, turned, q_norm, k_norm, last)
        own, rows = TurnedHeads(library, rules), torch.cat([part[0] for part in parts], 1)
        own(rows, *rows_of(embeddings, given["hidden_states"], rules))
        if near(rows[:, : expected.shape[1]], expected):
            return own
    return None
