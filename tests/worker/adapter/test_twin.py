"""Small configs that follow a model's own."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

from actorserve.actors.worker.adapter.twin import MOST_LAYERS, WINDOW, shrink, shrink_fields
from tests.support.models.census import QWEN4


def small(kind: str, **fields: Any) -> Any:
    return shrink(AutoConfig.for_model(kind, **fields))


def test_layers_that_are_counted_from_1() -> None:
    """Qwen4-Exp: one of those that look up n-grams stays, and so does one of each other kind."""
    config = small("qwen4_exp_text", **{**QWEN4, "ple_layer_ids": [2, 7]})
    assert config.num_hidden_layers <= MOST_LAYERS and len(config.layer_types) == config.num_hidden_layers
    assert config.ple_layer_ids and all(
        config.layer_types[one - 1] == "linear_attention" for one in config.ple_layer_ids
    )
    assert len(config.ple_layer_ids) < config.layer_types.count("linear_attention")
    assert config.indexer_budget == WINDOW and config.indexer_budget % config.indexer_compress_ratio == 0


def test_heads_of_two_parts_in_some_layers() -> None:
    """dots 3 note: of layers with a window."""
    config = small("dots3_note_text")
    sliding = config.per_layer_config["sliding_attention"]
    assert sliding.head_dim == sliding.qk_nope_head_dim + sliding.qk_rope_head_dim < 32


def test_adapters_are_as_wide_as_what_they_lie_between() -> None:
    """dots 3 note, whose config.json is of what sees and hears, too."""
    config = small("dots3_note")
    assert config.vision_config.adapter_out_dim == config.audio_config.adapter_out_dim == config.text_config.hidden_size


def test_heads_of_mamba_by_another_name() -> None:
    """Or none at all: their width alone stays as it is."""
    fields = {"hidden_size": 512, "mamba_expand": 2, "mamba_headdim": 64}
    named = shrink_fields({**fields, "mamba_num_heads": 16})
    assert named["mamba_headdim"] * named["mamba_num_heads"] == named["mamba_expand"] * named["hidden_size"]
    assert shrink_fields(fields)["mamba_headdim"] == fields["mamba_headdim"]


def test_heads_of_mamba() -> None:
    """Zamba 2 says their width beside their number."""
    config = small("zamba2")
    assert config.mamba_headdim * config.n_mamba_heads == config.mamba_expand * config.hidden_size
