"""What a GPU's memory, runner and sampler ask of a model's shape, of one that layers of transformers compute; and
whether its attention is such as the kernels have.

Kernels take heads of multiples of 16 numbers, and values no wider than keys: what is narrower is filled up with zeros,
which change no product. Heads may differ from layer to layer. Knows no tensors.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from actorserve.kernels.pages import LARGEST_GROUP, LARGEST_HEAD

from ....model.architecture import Architecture
from ....model.memory.kv import KVSpec, LayerAttention
from ....model.rope import Rope
from ...adapter.hooks import Unfit
from ...adapter.probe import AttentionCall, Traits

STEP = 16  # of widths
# Memory is counted in blocks of what layers keep of tokens: of a model that attends nowhere the least that can be.
NOWHERE = LayerAttention(heads=1, kv_heads=1, key_dim=STEP, value_dim=STEP, scale=1.0)
INSTEAD = "(--device cpu can)"


class AdaptedShape(Architecture, frozen=True, kw_only=True):
    """Its layers are in nobody's description: what they keep was seen."""

    kept: KVSpec

    @property
    def kv(self) -> KVSpec:
        """As pools have it: of each layer, and of layers that read the keys of another."""
        return self.kept


class SeenLayers(NamedTuple):
    """Calls of attention, and layers by the place that those have which attend: no other has memory of tokens."""

    asked: tuple[AttentionCall, ...]
    place: dict[int, int]

    @classmethod
    def of(cls, traits: Traits) -> SeenLayers:
        place = places(traits.kv)
        asked = (one._replace(layer=place[one.layer], source=place[one.source]) for one in traits.asked)
        return cls(tuple(asked), place)


def places(kv: KVSpec) -> dict[int, int]:
    """Of each layer that attends its place among them."""
    own = [index for index, layer in enumerate(kv.layers) if layer is not None]
    return {layer: number for number, layer in enumerate(own)}


def shape_of(kv: KVSpec, hidden: int, words: int) -> AdaptedShape:
    """Of a model whose decoder answers with so many numbers a token; Unfit if kernels or pools cannot have it."""
    layers = [_widened(layer) for layer in _attending(kv)]
    own = [layer for layer in layers if layer.source is None]
    first = layers[0]
    return AdaptedShape(
        vocab_size=words,
        hidden_size=hidden,
        intermediate_size=0,
        heads=first.heads,
        kv_heads=first.kv_heads,
        head_dim=first.key_dim,
        norm_eps=0.0,
        windows=tuple(layer.window for layer in own),
        rope=Rope(),
        kept=replace(kv, layers=tuple(layers)),
    )


def check_traits(traits: Traits) -> None:
    """Unfit if its attention cannot be that of kernels, or it counts positions itself: then each row would go alone."""
    if not traits.paged:
        raise Unfit(f"needs attention of transformers' own, which a GPU's worker has not {INSTEAD}: it {traits.reason}")
    if not (traits.positions or traits.stateful):
        raise Unfit(f"counts positions by itself, which by layers of transformers a GPU's worker cannot {INSTEAD}")


def _attending(kv: KVSpec) -> list[LayerAttention]:
    """The layers that do, one behind the other; those that read another's keys know it by its place."""
    place = places(kv)
    own = [layer for layer in kv.layers if layer is not None]
    return [layer if layer.source is None else replace(layer, source=place[layer.source]) for layer in own] or [NOWHERE]


def _widened(layer: LayerAttention) -> LayerAttention:
    """As wide as kernels take it."""
    width, narrower = (-(-size // STEP) * STEP for size in (max(layer.key_dim, layer.value_dim), layer.value_dim))
    if width > LARGEST_HEAD:
        raise Unfit(f"has heads of {width} numbers, and on a GPU {LARGEST_HEAD} are most {INSTEAD}")
    if layer.heads % layer.kv_heads or layer.heads // layer.kv_heads > LARGEST_GROUP:
        shared = f"{layer.heads} heads of queries over {layer.kv_heads} of keys"
        raise Unfit(f"has {shared}, of which on a GPU up to {LARGEST_GROUP} share one {INSTEAD}")
    return replace(layer, key_dim=width, value_dim=narrower)
