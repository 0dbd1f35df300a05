"""Decoders of which a step of few tokens is embeddings, the layers of whole.py at once, and a norm; and logits that are
one product. Tried with layers that answer known numbers, so that the Python around layers is run where it does more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from actorserve.kernels.cpu.native.attention import NativeAttention
from actorserve.kernels.cpu.native.heads import Turning
from actorserve.kernels.cpu.native.lora import LoraAdded

from ..cache.caches import Caches
from ..hooks import Unfit, attending
from ..improve import EmbeddingModule, LinearModule, NormModule
from ..passes import Passes
from .parts import FusedLayer, Turn, rows_of
from .whole import FAILURES, values

TRIED = (torch.tensor([[37, 38, 39]]), torch.tensor([[5, 0, 211]]))  # positions


class WholeDecoder:
    """What it makes of the tokens of a step."""

    def __init__(self, embed: EmbeddingModule, turning: nn.Module | None, norm: NormModule, first: FusedLayer) -> None:
        self.embed, self.turning, self.norm = embed, turning, norm
        self.layers, self.rules = first.layers, first.rules

    def inputs(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, Turn]:
        """What the layers are given."""
        x = self.embed(ids)
        if self.turning is None:
            return x, (None, None)
        return x, rows_of(self.turning(x[None], positions[None]), x[None], self.rules)

    def __call__(
        self, ids: Tensor, positions: Tensor, slots: Tensor, attention: NativeAttention, lora: LoraAdded | None = None
    ) -> Tensor:
        """Hidden states [tokens, hidden]; `attention` is that of all layers, `lora` what adapters add in this step."""
        x, turn = self.inputs(ids, positions)
        self.layers.forward_all(x, slots, slots, attention, turn, lora)
        hidden: Tensor = self.norm(x)
        return hidden


class _Witness:
    """Plays the part of who computes: all layers at once make `made`."""

    past = 0

    def __init__(self, made: Tensor) -> None:
        self.made = made
        self.given: tuple[Tensor, Turn] | None = None

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        raise Unfit("keeps more than its layers do")

    def attend(self, call: Any) -> Tensor:
        raise Unfit("attends outside of its layers")

    def whole_layer(self, layers: Any, number: int, layer: int, hidden: Tensor, turn: Turn, alike: bool) -> Tensor:
        """See ../model.py."""
        if number == 0 and self.given is None:
            self.given = hidden[0].clone(), turn
        elif hidden is not self.made:
            raise Unfit("does more between its layers")
        return self.made


def whole_decoder(passes: Passes, caches: Caches) -> WholeDecoder | None:
    """A model's, if its decoder does no more."""
    decoder = passes.decoder
    forwards = [vars(module).get("forward") for module in decoder.modules()]
    layers = [forward for forward in forwards if isinstance(forward, FusedLayer)]
    if not layers or not all(layer.alike for layer in layers) or len(layers) != layers[0].layers.count:
        return None
    children = list(decoder.children())
    embeds = [child for child in children if isinstance(child, EmbeddingModule)]
    norms = [child for child in children if isinstance(child, NormModule)]
    others = [child for child in children if not isinstance(child, EmbeddingModule | NormModule | nn.ModuleList)]
    turns = layers[0].rules.kind is not Turning.NONE
    if (len(embeds), len(norms), len(others)) != (1, 1, int(turns)):
        return None
    whole = WholeDecoder(embeds[0], others[0] if turns else None, norms[0], layers[0])
    try:
        with torch.inference_mode():
            right = all(_does_no_more(whole, passes, caches, positions) for positions in TRIED)
    except FAILURES:
        return None
    return whole if right else None


def _does_no_more(whole: WholeDecoder, passes: Passes, caches: Caches, positions: Tensor) -> bool:
    ids = positions % whole.embed.num_embeddings
    made = values(1, positions.shape[1], whole.embed.embedding_dim)
    witness = _Witness(made)
    with attending(witness):
        answer = passes.hidden(ids, positions, caches.make(witness))
    if witness.given is None:
        return False
    x, turn = whole.inputs(ids[0], positions[0])
    given, own_turn = witness.given
    pairs = zip((x, *turn, whole.norm(made[0])), (given, *own_turn, answer[0]), strict=True)
    return all(one is other or (one is not None and other is not None and one.equal(other)) for one, other in pairs)


def plain_head(passes: Passes) -> Callable[[Tensor], Tensor] | None:
    """What makes logits of rows by one product, if a model does no more; its decoder has answered before."""
    head = passes.model.get_output_embeddings()
    if not isinstance(head, LinearModule) or not passes.answered:
        return None
    try:
        with torch.inference_mode():
            for scale in (1.0, 100.0):
                rows = values(3, head.in_features) * scale
                if not torch.equal(passes.logits(rows), head(rows)):
                    return None
    except FAILURES:
        return None
    return head
