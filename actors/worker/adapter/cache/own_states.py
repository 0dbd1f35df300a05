"""Models whose states transformers keeps elsewhere than in its cache: they find them in layers of a cache all the same.

- MiniMax wants a cache of its own class, which has a list of them;
- RecurrentGemma's recurrent blocks have them as attributes, and begin a convolution anew with every prompt's part;
- RWKV's are an argument and an answer of its forward pass, of all layers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import conv1d, pad
from transformers import MiniMaxConfig, PreTrainedConfig, RwkvConfig
from transformers.cache_utils import Cache, LinearAttentionLayer
from transformers.models.minimax.modeling_minimax import MiniMaxCache
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

OWN_CACHE = MiniMaxConfig  # of models that make a cache of their own class, and take no other
RWKV_STATES = 5


def cache_class(config: PreTrainedConfig) -> Callable[[Sequence[Any]], Cache]:
    """What makes of layers the cache that a model of this config takes."""
    return LightningCache if isinstance(config, OWN_CACHE) else _plain


def _plain(layers: Sequence[Any]) -> Cache:
    return Cache(layers=list(layers))


def own_layers(config: PreTrainedConfig) -> list[Any] | None:
    """Those of a model that says itself what is in its states; None: transformers knows."""
    return [LinearAttentionLayer(number_of_states=RWKV_STATES)] if isinstance(config, RwkvConfig) else None


class LightningCache(MiniMaxCache):
    """MiniMax's, over layers that have the states."""

    def __init__(self, layers: Sequence[Any]) -> None:
        Cache.__init__(self, layers=list(layers))

    def __len__(self) -> int:
        return len(self.layers)

    def set_linear_cache(self, layer_idx: int, linear_cache: Tensor) -> None:
        layer: Any = self.layers[layer_idx]
        layer.recurrent_states[0] = linear_cache

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        layer: Any = self.layers[layer_idx]
        state: Tensor | None = layer.recurrent_states[0]
        return state


def given_states(cache: Cache) -> list[Tensor] | None:
    """What RWKV is given; None: there are none yet."""
    layer: Any = cache.layers[0]
    states = [layer.recurrent_states[number] for number in range(RWKV_STATES)]
    return None if states[0] is None else states


def take_states(cache: Cache, states: Sequence[Tensor]) -> None:
    """What it has answered with."""
    layer: Any = cache.layers[0]
    for number, state in enumerate(states):
        layer.recurrent_states[number] = state


def replaced_forwards(decoder: nn.Module) -> list[tuple[nn.Module, Callable[..., Any]]]:
    """Parts that keep states by themselves, and what computes them in the meantime."""
    layers: Any = getattr(decoder, "layers", ())
    blocks = [(number, getattr(layer, "temporal_block", None)) for number, layer in enumerate(layers)]
    return [
        (block, partial(_recurrent_block, block, number))
        for number, block in blocks
        if isinstance(block, RecurrentGemmaRecurrentBlock)
    ]


def _recurrent_block(
    block: Any,
    number: int,
    input_states: Tensor,
    position_ids: Tensor,
    *args: Any,
    cache: Cache | None = None,
    past_key_values: Cache | None = None,
    **given: Any,
) -> tuple[Tensor, None]:
    """What a recurrent block of RecurrentGemma makes of tokens behind those that its states stand for."""
    kept: Any = past_key_values if cache is None else cache  # by its name before transformers 5.24, or since
    layer = kept.layers[number]
    before = block.conv1d_width - 1
    x = block.linear_x(input_states).transpose(1, 2)
    x = layer.update_conv_state(x, conv_kernel_size=before)
    x = pad(x, (before, 0))[..., -(before + input_states.shape[1]) :]
    x = conv1d(x, block.conv_1d.weight, block.conv_1d.bias, groups=block.lru_width)
    block.rg_lru.recurrent_states = layer.recurrent_states[0]
    x = block.rg_lru(x.transpose(1, 2), position_ids)
    layer.update_recurrent_state(block.rg_lru.recurrent_states)
    block.rg_lru.recurrent_states = None
    return block.linear_out(x * block.act_fn(block.linear_y(input_states))), None
