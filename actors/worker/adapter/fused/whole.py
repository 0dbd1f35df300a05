"""Which layers of transformers' models are computed as a whole: norm, attention and MLP of parts.py, each added to what
came in. Tried as modules are (trial.py): with attention and MLP stood in for."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from actorserve.kernels.cpu.native.heads import Turning
from actorserve.kernels.cpu.native.layers import PlainLayer, PlainLayers, PlainShape
from actorserve.kernels.cpu.native.library import Library
from actorserve.kernels.cpu.native.linear import NativeLinear

from ..hooks import Unfit
from ..improve import NormModule
from .parts import FusedAttention, FusedLayer, FusedMlp

TOKENS = 2
NEAR = 1e-5
LARGE = 1e4  # limits that models are published with are up to 16
FAILURES = (Unfit, AttributeError, TypeError, ValueError, RuntimeError, KeyError, IndexError, AssertionError)


class Given(NamedTuple):
    """To a module."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Parts(NamedTuple):
    """Of a layer."""

    attention: FusedAttention
    mlp: FusedMlp
    attention_norm: NormModule
    mlp_norm: NormModule


class _Witness(nn.Module):
    """Stands for attention or an MLP."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer
        self.seen: list[Tensor] = []
        self.kwargs: dict[str, Any] = {}

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Any:
        self.seen.append(hidden_states)
        self.kwargs = kwargs
        return self.answer


def values(*shape: int) -> Tensor:
    """Some numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def wide_values(*shape: int) -> Tensor:
    """The same of [1, tokens, …], of which the last token's are large: what a module cuts off shows by these."""
    found = values(*shape)
    found[:, -1] *= LARGE
    return found


def replaced(module: Any, others: Mapping[str, nn.Module]) -> Any:
    """The same module with other children."""
    other = copy.copy(module)
    vars(other)["_modules"] = module._modules | dict(others)
    return other


def near(found: Tensor, expected: Tensor) -> bool:
    """The same numbers, but for how they were rounded: by the largest of each token."""
    if found.shape != expected.shape:
        return False
    largest = expected.abs().amax(-1, keepdim=True).clamp(min=1)
    return torch.allclose(found / largest, expected / largest, rtol=NEAR, atol=NEAR)


def take_layers(library: Library, given: Mapping[Any, Given]) -> None:
    """Of layers and what these are given, those that can be: as many as are alike."""
    found = {module: parts for module, own in given.items() if (parts := _parts_of(module, own)) is not None}
    shapes = {module: _shape(parts) for module, parts in found.items()}
    alike = [module for module in found if shapes[module] == next(iter(shapes.values()))]
    shape = shapes[alike[0]] if alike else None
    if shape is None:
        return
    layers = PlainLayers(library, shape, [_plain(found[module]) for module in alike])
    turns = [given[module].kwargs.get("position_embeddings") for module in given]
    same = len(alike) == len(given) and all(turn is turns[0] for turn in turns)
    same = same and [found[module].attention.layer for module in alike] == list(range(len(alike)))
    rules = [found[module].attention.heads.rules for module in alike]
    turning = next((one for one in rules if one.kind is not Turning.NONE), rules[0]) if same else None
    for number, module in enumerate(alike):
        module.forward = FusedLayer(module.forward, found[module].attention, layers, number, turning)


def _parts_of(module: Any, given: Given) -> _Parts | None:
    """If the layer is of such, in this order, and does no more."""
    by_forward = {name: vars(child).get("forward") for name, child in module._modules.items()}
    attentions = [name for name, own in by_forward.items() if isinstance(own, FusedAttention)]
    mlps = [name for name, own in by_forward.items() if isinstance(own, FusedMlp)]
    norms = [child for child in module.children() if isinstance(child, NormModule)]
    if (len(attentions), len(mlps), len(norms), len(by_forward)) != (1, 1, 2, 4) or len(given.args) != 1:
        return None
    size = len(norms[0].weight)
    x, mixed, made = (wide_values(1, TOKENS, size) + number for number in range(3))
    attention, mlp = _Witness((mixed, None)), _Witness(made)
    try:
        with torch.inference_mode():
            answer = replaced(module, {attentions[0]: attention, mlps[0]: mlp}).forward(x, **given.kwargs)
            pairs = [pair for pair in (norms, norms[::-1]) if _same(attention.seen, pair[0](x))]
            pairs = [pair for pair in pairs if _same(mlp.seen, pair[1](x + mixed))]
    except FAILURES:
        return None
    told = attention.kwargs.get("position_embeddings") is given.kwargs.get("position_embeddings")
    if not pairs or not told or not _same([answer], x + mixed + made):
        return None
    own, inner = by_forward[attentions[0]], by_forward[mlps[0]]
    return _Parts(own, inner, *pairs[0])


def _same(found: Sequence[Any], expected: Tensor) -> bool:
    """Was it asked once, with this?"""
    (one, *others) = found or [None]
    return isinstance(one, Tensor) and not others and near(one, expected)


def _linears(parts: _Parts) -> list[Any]:
    attention, mlp = parts.attention, parts.mlp
    return [attention.joined.product, attention.out.product, mlp.joined.product, mlp.down.product]


def _shape(parts: _Parts) -> PlainShape | None:
    """None where there are no kernels for it as a whole."""
    linears, rules = _linears(parts), parts.attention.heads.rules
    epsilons = {norm.norm.eps for norm in parts[2:]}
    joined = linears[0].outputs == (rules.heads + 2 * rules.kv_heads) * rules.head_dim
    if not all(isinstance(one, NativeLinear) for one in linears) or len(epsilons) > 1 or not joined:
        return None
    if parts.attention.sinks is not None:
        return None
    sizes = rules.heads, rules.kv_heads, rules.head_dim
    return PlainShape(linears[0].inputs, *sizes, linears[3].inputs, epsilons.pop())


def _plain(parts: _Parts) -> PlainLayer:
    qkv, out, gate_up, down = _linears(parts)
    before, between = (norm.norm.scaled_gain for norm in parts[2:])
    return PlainLayer(qkv, out, gate_up, down, before, None, between, None, parts.attention.heads)
