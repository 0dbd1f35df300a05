"""Passes through the parts of an encoder–decoder of transformers: its encoder, its decoder, and what makes logits.

What a model does between its decoder and its logits (scales, a bias) stands in its own forward pass and nowhere else:
that is what runs, with a decoder that answers with rows which it is given.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoEModelOutput, MoEModelOutputWithPastAndCrossAttentions

from ..adapter.hooks import CACHES, Unfit
from .caches import CrossKeysValues, make_caches


class EncoderDecoderPasses:
    """Of one model."""

    def __init__(self, model: PreTrainedModel) -> None:
        found: Any = model
        self.model = model
        self.encoder, self.decoder = found.get_encoder(), found.get_decoder()
        self.layers = _layers(model.config)
        self._own_configs()
        names = inspect.signature(self.decoder.forward).parameters
        self._cache = next((name for name in CACHES if name in names), "")
        if not self._cache or "encoder_hidden_states" not in names:
            raise Unfit("has a decoder without a cache, or without cross attention")
        self._positions: Tensor | None = None
        self.positions = self._take_positions()
        self.width = width_of(model.config)
        self.read_width = _width(_part(model.config, "encoder"))  # of what its encoder answers

    def _own_configs(self) -> None:
        """How the decoder attends is not how the encoder does."""
        copies: dict[int, Any] = {}
        for module in self.decoder.modules():
            config = getattr(module, "config", None)
            if config is not None:
                module.config = copies.setdefault(id(config), copy.deepcopy(config))

    def _take_positions(self) -> bool:
        """Have the decoder's positions said by who computes a pass; False where it has no table of them."""
        table: Any = getattr(self.decoder, "embed_positions", None)
        is_table = isinstance(table, nn.Embedding)
        if not is_table or "position_ids" not in inspect.signature(table.forward).parameters:
            return False
        own = table.forward

        def forward(ids: Any, *args: Any, **kwargs: Any) -> Tensor:
            if self._positions is None:
                result: Tensor = own(ids, *args, **kwargs)
                return result
            result = own(ids, position_ids=self._positions)
            return result if result.dim() == 3 else result[None]

        table.forward = forward
        return True

    def encode(self, given: Tensor) -> Tensor:
        """The encoder's answer [rows, positions, width] to ids [rows, positions], or to features of sounds."""
        name = "input_ids" if given.dim() == 2 else "input_features"
        answer: Tensor = self.encoder(**{name: given})[0]
        return answer

    def decode(self, ids: Tensor, positions: Tensor | None, whose: CrossKeysValues, answer: Tensor | None) -> Tensor:
        """Hidden states [1, tokens, width] of ids [1, tokens]; `positions` [tokens], where they are not the order."""
        known = answer is None
        seen = self._unseen(whose.read_length) if answer is None else answer
        self._positions = positions
        try:
            caches: dict[str, Any] = {self._cache: make_caches(whose, self.layers, known)}
            made = self.decoder(input_ids=ids, encoder_hidden_states=seen, use_cache=True, **caches)
        finally:
            self._positions = None
        hidden: Tensor = made[0]
        return hidden

    def _unseen(self, length: int) -> Tensor:
        """In place of an encoder's answer whose keys and values are kept: masks are made for its length."""
        return torch.zeros(1, dtype=self.model.dtype, device=self.model.device).expand(1, length, self.read_width)

    def logits(self, rows: Tensor) -> Tensor:
        """[rows, vocabulary] of rows of hidden states."""
        self.decoder.forward = lambda *args, **kwargs: MoEModelOutputWithPastAndCrossAttentions(
            last_hidden_state=rows[None]
        )
        try:
            out = self.model(
                encoder_outputs=MoEModelOutput(last_hidden_state=rows.new_zeros(1, 1, self.read_width)),
                decoder_input_ids=torch.zeros(1, len(rows), dtype=torch.long, device=rows.device),
                use_cache=False,
            )
        finally:
            del self.decoder.forward
        logits: Tensor = out.logits[0]
        return logits


def width_of(config: Any) -> int:
    """Of hidden states of the decoder."""
    return _width(_part(config, "decoder"))


def _width(config: Any) -> int:
    return int(getattr(config, "d_model", 0) or config.hidden_size)


def _part(config: Any, name: str) -> Any:
    """The config of the encoder or the decoder, where it is one of its own."""
    part = getattr(config, name, config)
    return getattr(part, "text_config", part)


def _layers(config: Any) -> int:
    """Of the decoder."""
    own = _part(config, "decoder")
    for name in ("decoder_layers", "num_decoder_layers", "num_hidden_layers", "num_layers"):
        value = getattr(own, name, None)
        if value is not None:
            return int(value)
    raise Unfit("does not say how many layers its decoder has")
