"""Where transformers asks for attention: a function and a mask of that name, given to whoever computes a forward pass.

A model whose `_attn_implementation` is NAME hands queries, keys and values of a layer to `attend`. Without a mask
function of the same name transformers would drop masks silently; ours returns the predicate that a mask is made of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from ...options.config import ConfigError

NAME = "actorserve"
# By what names models of transformers take one, the newest first: since 5.24 all but RWKV's have the same.
CACHES = ("cache", "past_key_values", "cache_params", "past_key_value")
Predicate = Callable[..., Any]  # (batch, head, query, key) -> may it be seen


class Unfit(ConfigError):
    """A model cannot be run in this way; the reason follows "it"."""


class Mask(NamedTuple):
    """In place of a tensor: what a query sees of absolute positions. A model that does more than hand it on, fails."""

    predicate: Predicate


class Call(NamedTuple):
    """What a layer asks for."""

    module: nn.Module
    queries: Tensor  # [batch, heads, tokens, key_dim]
    keys: Tensor
    values: Tensor
    mask: Any
    options: dict[str, Any]  # scaling, softcap, s_aux, sliding_window, …


class Attending(Protocol):
    """Who computes a forward pass."""

    def attend(self, call: Call) -> Tensor:
        """[batch, tokens, heads, value_dim]."""


class _Running(threading.local):
    """Of a thread."""

    def __init__(self) -> None:
        self.steps: list[Attending] = []


_running = _Running()


@contextmanager
def attending(who: Attending) -> Iterator[None]:
    """Layers ask `who` meanwhile."""
    _running.steps.append(who)
    try:
        yield
    finally:
        _running.steps.pop()


def running() -> Attending | None:
    """Who computes a forward pass now."""
    return _running.steps[-1] if _running.steps else None


def use_attention(model: nn.Module, name: str) -> None:
    """All parts of a model ask the function of this name."""
    for config in _configs(model):
        config._attn_implementation = name


@contextmanager
def lent_attention(model: nn.Module) -> Iterator[None]:
    """All parts of a model ask ours meanwhile, and then each its own: that of a part that hears may be another."""
    own = [(config, config._attn_implementation) for config in _configs(model)]
    use_attention(model, NAME)
    try:
        yield
    finally:
        for config, name in own:
            config._attn_implementation = name


def _configs(model: nn.Module) -> list[Any]:
    """Of its parts."""
    found = {
        id(config): config for module in model.modules() if (config := getattr(module, "config", None)) is not None
    }
    return [config for config in found.values() if hasattr(config, "_attn_implementation")]


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    return _running.steps[-1].attend(Call(module, query, key, value, attention_mask, options)), None


def _mask(*, mask_function: Predicate, **about: Any) -> Mask:
    return Mask(mask_function)


def register() -> None:
    """Make both known to transformers."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _mask)


def as_scale(value: Any, width: int) -> float:
    """What scores are multiplied with; by default that of the paper."""
    return float(width**-0.5 if value is None else value.item() if isinstance(value, torch.Tensor) else value)
