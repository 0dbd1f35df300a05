"""A forward pass of a model of transformers in two parts: hidden states of all tokens, then logits of a few.

What a model does between its last layer and its logits (scales, caps, another norm) stands in its own forward pass and
nowhere else. So that is always the one that runs: the first time it is stopped when its decoder has answered, the
second time its decoder answers with rows that it is given.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .cache.own_states import given_states, replaced_forwards, take_states
from .hooks import CACHES, Unfit

STATE = "state"  # RWKV's
KEPT = "logits_to_keep"


class _Answered(BaseException):
    """The decoder has."""


class Passes:
    """Of one model, whose decoder's forward pass it takes the place of meanwhile."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.decoder = _find_decoder(model)
        own = _names(model, self.decoder)
        self.positions = "position_ids" in own
        self.cache = cache_among(own)
        if self.cache == STATE:  # its weights stay as they are: float16 alone needs hidden states to be halved
            about: Any = self.decoder.config
            about.rescale_every = 0
        self._compute = self.decoder.forward
        self._parts = replaced_forwards(self.decoder)
        self._rows: Tensor | None = None
        self._answer: Any = None

    @staticmethod
    def arguments(model: PreTrainedModel) -> set[str]:
        """The names of arguments of a model's forward pass."""
        return _names(model, _find_decoder(model))

    @property
    def answered(self) -> bool:
        """Has its decoder answered before, so that logits can be made?"""
        return self._answer is not None

    def hidden(self, ids: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """The decoder's answer [batch, tokens, hidden] to ids and positions [batch, tokens]."""
        given: dict[str, Any] = {self.cache: given_states(cache) if self.cache == STATE else cache, "use_cache": True}
        if self.positions:
            given["position_ids"] = positions
        try:
            with self._in_its_place():
                self.model(input_ids=ids, **given)
        except _Answered:
            pass
        else:
            raise Unfit("does not ask its decoder")
        answer = self._answer
        if self.cache == STATE:
            take_states(cache, answer.state)
        hidden: Tensor = answer[0]
        self._answer = _emptied(answer)
        return hidden

    def logits(self, rows: Tensor) -> Tensor:
        """[rows, vocabulary] of rows of such an answer."""
        self._rows = rows[None]
        try:
            with self._in_its_place():
                ids = torch.zeros(1, len(rows), dtype=torch.long, device=rows.device)
                out = self.model(input_ids=ids, use_cache=False)
        finally:
            self._rows = None
        logits: Tensor = out.logits[0]
        return logits

    @contextmanager
    def _in_its_place(self) -> Iterator[None]:
        """The decoder's forward pass is `_forward`, and parts that keep states in themselves are computed without."""
        replaced = [(self.decoder, self._forward), *self._parts]
        for module, forward in replaced:
            module.forward = forward
        try:
            yield
        finally:
            for module, _ in replaced:
                del module.forward

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._rows is None:
            if isinstance(kwargs.get(KEPT), int):  # with a number Gemma 4's layers that share keys cut masks to size
                kwargs[KEPT] = slice(None)
            self._answer = self._compute(*args, **kwargs)
            raise _Answered
        answer = copy.copy(self._answer)
        if isinstance(answer, tuple):
            return (self._rows, *answer[1:])
        answer.last_hidden_state = self._rows
        return answer


def cache_among(names: Collection[str]) -> str:
    """Of the names of arguments that of the cache."""
    for name in (*CACHES, STATE):
        if name in names:
            return name
    raise Unfit("has no argument for a cache")


def _emptied(answer: Any) -> Any:
    """The same without tensors, which would live on."""
    if isinstance(answer, tuple):
        return tuple(None for _ in answer)
    for name in list(answer.keys()):
        if name != "last_hidden_state":
            answer[name] = None
    answer.last_hidden_state = torch.empty(0)
    return answer


def _arguments(module: nn.Module) -> tuple[set[str], bool]:
    """The names of those of a forward pass, and whether it takes others."""
    parameters = inspect.signature(module.forward).parameters
    return set(parameters), any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _names(model: PreTrainedModel, decoder: nn.Module) -> set[str]:
    """Of arguments that reach the decoder."""
    own, others = _arguments(model)
    return own | (_arguments(decoder)[0] if others else set())


def _find_decoder(model: PreTrainedModel) -> nn.Module:
    """The part that a model's forward pass asks first."""
    first: list[nn.Module] = []

    def note(module: nn.Module, given: Any) -> None:
        if module is not model:
            first.append(module)
            raise _Answered

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        with torch.inference_mode():
            device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
            model(input_ids=torch.ones(1, 2, dtype=torch.long, device=device))
    except _Answered:
        pass
    finally:
        handle.remove()
    if not first or not isinstance(first[0], PreTrainedModel):
        raise Unfit("has no decoder apart from what makes logits")
    return first[0]
