"""What a model keeps: pools by shape, and the bytes of a block and of a row."""

from __future__ import annotations

from actorserve.actors.model.kv import KVSpec, LayerAttention, StateSpec


def layer(kv_heads: int, key_dim: int, value_dim: int, source: int | None = None) -> LayerAttention:
    return LayerAttention(heads=8, kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim, scale=1.0, source=source)


def test_layers_of_one_shape_share_a_pool_and_what_is_anothers_takes_no_memory() -> None:
    kv = KVSpec(layers=(layer(2, 64, 64), layer(1, 512, 64), None, layer(2, 64, 64), layer(2, 64, 64, source=3)))
    assert [tuple(pool) for pool in kv.pools()] == [(2, 64, 64, (0, 3)), (1, 512, 64, (1,))]
    assert kv.block_bytes(16, 2) == 16 * 2 * (2 * 2 * 128 + 576)


def test_states_are_counted_by_their_types() -> None:
    states = (
        StateSpec(layer=0, name="conv", shape=(3, 4)),
        StateSpec(layer=1, name="ssm", shape=(5,), dtype="float32"),
    )
    assert KVSpec(layers=(None, None), states=states).row_bytes({None: 2, "float32": 4}) == 12 * 2 + 5 * 4
