"""What a model keeps: pools by shape, and the bytes of a block and of a row."""

from __future__ import annotations

import math
from contextlib import nullcontext

import msgspec
import pytest

from actorserve.actors.model.memory.kv import KV_TYPES, KVSpec, LayerAttention, StateSpec
from actorserve.actors.model.memory.kv_memory import plan_kv_memory
from actorserve.actors.options.config import Config, ConfigError


def layer(kv_heads: int, key_dim: int, value_dim: int, source: int | None = None) -> LayerAttention:
    return LayerAttention(heads=8, kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim, scale=1.0, source=source)


def test_layers_of_one_shape_share_a_pool_and_what_is_anothers_takes_no_memory() -> None:
    kv = KVSpec(layers=(layer(2, 64, 64), layer(1, 512, 64), None, layer(2, 64, 64), layer(2, 64, 64, source=3)))
    assert [tuple(pool) for pool in kv.pools()] == [(2, 64, 64, (0, 3), False, 0), (1, 512, 64, (1,), False, 0)]
    assert kv.block_bytes(16, 2) == 16 * 2 * (2 * 2 * 128 + 576)
    for name, bytes_of_key, bytes_of_value in (
        ("int8", 64 + 4, 64 + 4),
        ("fp8", 64 + 4, 64 + 4),
        ("nvfp4", 36 + 4, 36 + 4),
        ("turboquant_k8v4", 64 + 4, 32 + 4),
        ("turboquant_4bit_nc", 32 + 4, 32 + 4),
        ("turboquant_k3v4_nc", 24 + 4, 32 + 4),
        ("turboquant_3bit_nc", 24 + 4, 24 + 4),
    ):
        own = KVSpec(layers=(layer(2, 64, 64), None, layer(2, 64, 64)))
        assert own.block_bytes(16, KV_TYPES[name]) == 16 * 2 * 2 * (bytes_of_key + bytes_of_value), name


@pytest.mark.parametrize("name", KV_TYPES)
def test_what_cannot_be_kept_so_is_refused(name: str) -> None:
    few = name == "nvfp4" or name.startswith("turboquant")
    latent = msgspec.structs.replace(layer(1, 64, 48), values_in_keys=True)
    for kept, reason in (
        (layer(2, 64, 40), "its heads are 40 numbers wide, and 16 are kept together"),
        (latent, "MLA"),
    ):
        refused = few or (reason == "MLA" and name in ("int8", "fp8"))
        with pytest.raises(ConfigError, match=f"^--kv-cache-dtype {name}: .*{reason}") if refused else nullcontext():
            plan_kv_memory(KVSpec(layers=(layer(2, 64, 64), kept)), Config(), 64, 4, kind=KV_TYPES[name])


def test_states_are_counted_by_their_types() -> None:
    states = (
        StateSpec(layer=0, name="conv", shape=(3, 4)),
        StateSpec(layer=1, name="ssm", shape=(5,), dtype="float32"),
    )
    assert KVSpec(layers=(None, None), states=states).row_bytes({None: 2, "float32": 4}) == 12 * 2 + 5 * 4


def test_what_a_query_sees_first_and_for_how_long() -> None:
    """Against the positions themselves, in all of a while."""
    for window in (None, 1, 3, 7):
        for chunk in (None, 1, 4, 6):
            rule = msgspec.structs.replace(layer(1, 8, 8), window=window, chunk=chunk)
            seen = [
                min(
                    j
                    for j in range(p + 1)
                    if (window is None or j > p - window) and (chunk is None or j // chunk == p // chunk)
                )
                for p in range(40)
            ]
            assert [rule.first_seen(p) for p in range(40)] == seen
            for p in range(20):
                later = [q for q in range(p, 40) if seen[q] != seen[p]]
                assert rule.steps_on(p) == (later[0] - 1 - p if later else math.inf), (window, chunk, p)
