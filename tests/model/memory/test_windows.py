"""Which layers lie in which block table, and how much of long sequences that saves."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from actorserve.actors.model.memory.kv import KV_TYPES, KVSpec, KVType, LayerAttention, uniform
from actorserve.actors.model.memory.kv_memory import plan_kv_memory
from actorserve.actors.model.memory.windows import MARGIN, Packing, plan_windows, windows_words
from actorserve.actors.options.config import Config, make_config


def windows_of(every: int, layers: int, window: int) -> KVSpec:
    """A window in all layers but every such one."""
    return uniform([None if index % every == every - 1 else window for index in range(layers)], 4, 2, 64, 1.0)


def test_tables_have_as_many_layers_as_see_everything() -> None:
    config = make_config({"max_num_batched_tokens": 512, "block_size": 32})
    plan = plan_windows(windows_of(6, 26, 512), config, 512)
    assert plan is not None
    assert plan.tables[0] == (5, 11, 17, 23) and len(plan.tables) == 7 and plan.tables[-1] == (24, 25)
    assert sorted(layer for table in plan.tables for layer in table) == list(range(26))
    assert plan.window == 512 + MARGIN


@pytest.mark.parametrize(
    "kv",
    [
        windows_of(1, 6, 512),  # none sees a window
        uniform([20_000] * 6, 4, 2, 64, 1.0),  # none sees everything, and all see all of the longest
        windows_of(6, 12, 15_000),  # it is longer than what it would save
    ],
)
def test_one_table_where_nothing_is_saved(kv: KVSpec) -> None:
    config = make_config({"max_num_batched_tokens": 512, "block_size": 32})
    assert plan_windows(kv, config, 512) is None
    assert plan_kv_memory(kv, config, 16384, 4).block_bytes == kv.block_bytes(32, 4)


def test_windows_in_five_of_six_layers_hold_three_times_the_tokens() -> None:
    """In 16 MB, of sequences of 16k: with the options that a server has where nobody sets them."""
    config, held = make_config({}), []
    for kv in (windows_of(6, 6, 1024), uniform([None] * 6, 4, 2, 64, 1.0)):
        plan = plan_kv_memory(kv, config, 16384, 4)
        held.append(plan.tokens(config, 16384, (16 << 20) // plan.block_bytes))
    windows, full = held
    assert windows >= 3 * full


def test_a_layer_that_reads_another_ones_keys_counts_for_it() -> None:
    """What one that sees everything reads, is kept."""
    kv = windows_of(2, 4, 100)
    everything = kv.layers[1]
    assert everything is not None and everything.window is None
    sharing = msgspec.structs.replace(everything, source=0)
    config = make_config({"max_num_batched_tokens": 64, "block_size": 16})
    plan = plan_windows(KVSpec(layers=(*kv.layers, sharing)), config, 1024)
    assert plan is not None and plan.tables == ((0, 1, 3), (2,))
    assert plan.table_of(KVSpec(layers=(*kv.layers, sharing))) == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("layers", "length", "tables", "share"),
    [(32, 32_768, 11, 5), (32, 4_096, 2, 1.1), (32, 2_048, 1, 1), (6, 16_384, 6, 3), (7, 1_000_000, 7, 6)],
)
def test_where_no_layer_sees_everything_a_few_keep_it(layers: int, length: int, tables: int, share: float) -> None:
    """A table of as many layers each: the first keeps all, and the others their window."""
    one = LayerAttention(heads=8, kv_heads=2, key_dim=64, value_dim=64, scale=1.0, window=2000)
    kv = KVSpec(layers=(one,) * layers)
    config = Config(block_size=16, max_num_batched_tokens=1000)
    plan, whole = plan_kv_memory(kv, config, length, 4), plan_kv_memory(kv, config, length, 4, may_free=False)
    assert (1 if plan.windows is None else len(plan.windows.tables)) == tables
    taken, before = (one.block_bytes * one.sequence_blocks for one in (plan, whole))
    assert taken * share <= before
    if plan.windows is not None:
        assert sorted(layer for table in plan.windows.tables for layer in table) == list(range(layers))


class Published(NamedTuple):
    """Layers of a model whose heads differ: those that see a window, and those that see everything."""

    layers: int
    every: int  # one of so many sees everything, the last of them
    window: int
    narrow: tuple[int, int, int]  # heads of keys, and their widths, of layers that see a window
    wide: tuple[int, int, int]
    shared: int = 0  # of the last layers, which read the keys of others

    def kv(self) -> KVSpec:
        """In bfloat16 as in all others."""
        made: list[LayerAttention] = []
        for index in range(self.layers):
            sees_all = index % self.every == self.every - 1
            kv_heads, key_dim, value_dim = self.wide if sees_all else self.narrow
            own = self.layers - self.shared
            source = (
                None
                if index < own
                else own
                - 1
                - next(back for back, one in enumerate(reversed(made[:own])) if (one.window is None) == sees_all)
            )
            made.append(
                LayerAttention(
                    heads=kv_heads * 2,
                    kv_heads=kv_heads,
                    key_dim=key_dim,
                    value_dim=value_dim,
                    scale=1.0,
                    window=None if sees_all else self.window,
                    source=source,
                )
            )
        return KVSpec(layers=tuple(made))


MODELS = {
    "Gemma 4 E2B": Published(35, 5, 512, (1, 256, 256), (1, 512, 512), 20),
    "Gemma 4 E4B": Published(42, 6, 512, (2, 256, 256), (2, 512, 512), 18),
    "Gemma 4 26B-A4B": Published(30, 6, 1024, (8, 256, 256), (2, 512, 512)),
    "Gemma 4 31B": Published(60, 6, 1024, (16, 256, 256), (4, 512, 512)),
    "MiMo-V2-Flash": Published(48, 6, 128, (8, 192, 128), (4, 192, 128)),  # but its first layer sees everything, too
}


@pytest.mark.parametrize(
    ("name", "tables", "packing", "share"),
    [
        ("Gemma 4 E2B", 1 + 2, Packing(1536, 1536), 2.6),
        ("Gemma 4 E4B", 1 + 3, Packing(4096, 4096), 3.0),
        ("Gemma 4 26B-A4B", 1 + 13, Packing(5120, 5120), 5.9),
        ("Gemma 4 31B", 1 + 10, Packing(20480, 20480), 6.6),
        ("MiMo-V2-Flash", 1 + 10, Packing(6144, 4096), 8.0),
    ],
)
def test_layers_whose_heads_differ_are_packed(name: str, tables: int, packing: Packing, share: float) -> None:
    """With the options that a server has where nobody sets them, a sequence of 32k takes so many times less."""
    kv, config = MODELS[name].kv(), make_config({})
    plan, whole = plan_kv_memory(kv, config, 32_768, 2), plan_kv_memory(kv, config, 32_768, 2, may_free=False)
    windows = plan.windows
    assert windows is not None and (len(windows.tables), windows.packing) == (tables, packing)
    own = [layer for layer, one in enumerate(kv.layers) if one is not None and one.source is None]
    assert sorted(layer for table in windows.tables for layer in table) == own
    assert all(kv.layers[layer].window is None for layer in windows.tables[0])  # type: ignore[union-attr]
    for spec in windows.specs(kv):
        (pool,) = spec.pools()
        assert len(pool.layers) * pool.kv_heads <= packing.rows(pool) == packing.values // pool.value_dim
    assert plan.block_bytes == 2 * config.block_size * sum(packing)
    taken, before = (one.block_bytes * one.sequence_blocks for one in (plan, whole))
    assert share * taken < before < (share + 0.2) * taken


@pytest.mark.parametrize("kind", KV_TYPES.values(), ids=KV_TYPES)
def test_a_packed_block_has_scales_for_each_number_of_rows(kind: KVType) -> None:
    plan = plan_windows(kv := MODELS["Gemma 4 31B"].kv(), config := make_config({}), 4096)
    assert plan is not None
    scales = (40 + 80) * (kind.keys.scale_bytes + kind.values.scale_bytes)
    numbers = kind.keys.bytes_of(20_480) + kind.values.bytes_of(20_480)
    assert plan.block_bytes(kv, config.block_size, kind) == config.block_size * (numbers + scales)


def test_a_short_sequence_has_larger_blocks_and_fewer_tables() -> None:
    """Windows that are long beside it: there is room for twice the blocks of one table, and no more."""
    kv, config = MODELS["Gemma 4 26B-A4B"].kv(), make_config({})
    plan = plan_kv_memory(kv, config, 8192, 2)
    assert plan.windows is not None and 1 < len(plan.windows.tables) < 14
    assert plan.sequence_blocks <= 2 * 8192 // config.block_size
    whole = plan_kv_memory(kv, config, 8192, 2, may_free=False)
    assert 1.5 * plan.block_bytes * plan.sequence_blocks < whole.block_bytes * whole.sequence_blocks
    assert plan_windows(kv, config, 2048 // config.block_size) is None


def test_what_cannot_be_packed_has_one_table() -> None:
    """Keys and values that differ otherwise in some layers, or no layer, or two shapes of them, that see everything."""
    model = MODELS["Gemma 4 26B-A4B"]
    narrow, wide = model.kv().layers[0], model.kv().layers[5]
    assert narrow is not None and wide is not None
    seeing = msgspec.structs.replace(wide, window=9)
    for kv in (
        model._replace(wide=(2, 512, 256)).kv(),
        KVSpec(layers=(*[narrow] * 20, seeing)),
        KVSpec(layers=(*[narrow] * 20, wide, msgspec.structs.replace(narrow, window=None))),
    ):
        assert plan_windows(kv, make_config({}), 1024) is None


def test_latents_have_one_table() -> None:
    latent = LayerAttention(heads=8, kv_heads=1, key_dim=64, value_dim=48, scale=1.0, window=9, values_in_keys=True)
    assert plan_windows(KVSpec(layers=(latent, msgspec.structs.replace(latent, window=None))), Config(), 4096) is None


def test_what_windows_keep_is_said() -> None:
    kv, config = MODELS["Gemma 4 26B-A4B"].kv(), make_config({})
    plan = plan_windows(kv, config, 1024)
    assert windows_words([kv], [plan]) == "25 of 30 layers see a window, 25 of them keep 1,040 tokens"
    assert windows_words([kv, kv], [plan, plan]) == "50 of 60 layers see a window, 50 of them keep 1,040 tokens"
    assert windows_words([kv], [None]) == "25 of 30 layers see a window, and keep all tokens"
    assert windows_words([uniform([None] * 3, 4, 2, 64, 1.0)], [None]) == ""
