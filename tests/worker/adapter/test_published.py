"""Config.json as publishers have it, where it asks for what the defaults of its kind do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from actorserve.actors.worker.adapter import hooks, verify
from actorserve.actors.worker.adapter.improve import improve
from actorserve.actors.worker.adapter.model import Tier
from actorserve.actors.worker.adapter.twin import shrink_fields
from tests.support.models.census import examine

from .test_adapter import made

hooks.register()

SLIDING, FULL = "sliding_attention", "full_attention"
TURNS = {
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA4: dict[str, Any] = {
    **{"final_logit_softcapping": 30.0, "head_dim": 256, "global_head_dim": 512, "vocab_size": 262144},
    **{"rope_parameters": TURNS, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh"},
}
GEMMA4_E2B = GEMMA4 | {
    **{"hidden_size": 1536, "intermediate_size": 6144, "hidden_size_per_layer_input": 256, "sliding_window": 512},
    **{"num_hidden_layers": 35, "layer_types": ([SLIDING] * 4 + [FULL]) * 7, "num_kv_shared_layers": 20},
    **{"num_attention_heads": 8, "num_key_value_heads": 1, "use_double_wide_mlp": True},
}
GEMMA4_26B = GEMMA4 | {
    **{"hidden_size": 2816, "intermediate_size": 2112, "hidden_size_per_layer_input": 0, "sliding_window": 1024},
    **{"num_hidden_layers": 30, "layer_types": ([SLIDING] * 5 + [FULL]) * 5, "num_kv_shared_layers": 0},
    **{"num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2, "attention_k_eq_v": True},
    **{"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
}
HUNYUAN_A13B: dict[str, Any] = {
    **{"hidden_size": 4096, "intermediate_size": 3072, "num_hidden_layers": 32, "head_dim": 128},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "num_experts": 64, "moe_topk": [8] * 32},
    **{"moe_intermediate_size": [3072] * 32, "num_shared_expert": [1] * 32, "vocab_size": 128167},
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0},
}
PUBLISHED = {
    "Gemma 4 E2B": ("gemma4_text", GEMMA4_E2B),
    "Gemma 4 26B-A4B": ("gemma4_text", GEMMA4_26B),
    "Hunyuan A13B": ("hunyuan_v1_moe", HUNYUAN_A13B),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_all_rows_go_through_it_at_once(name: str) -> None:
    kind, fields = PUBLISHED[name]
    verdict = verify.verify(made(kind, **fields), lambda model: improve(model, torch.float32))
    assert verdict.tier is Tier.FLAT, verdict.reasons


@pytest.mark.parametrize("name", PUBLISHED)
def test_answers_are_those_of_generate(name: str, tmp_path: Path) -> None:
    """Of sequences that are preempted, where they have the time to grow, and found again by their prefix."""
    kind, fields = PUBLISHED[name]
    row = examine(kind, tmp_path / "model", 20, fields)
    assert (row.result, row.way) == ("equal", "flat") and row.preempted and row.cached, row


def test_sizes_by_layer_are_made_small_in_each() -> None:
    """And no more experts are asked than there are."""
    fields = {**AutoConfig.for_model("hunyuan_v1_moe").to_dict(), **HUNYUAN_A13B}
    small = shrink_fields(fields)
    count = small["num_hidden_layers"]
    assert small["moe_topk"] == [2] * count and max(small["moe_intermediate_size"]) < 64 and small["num_experts"] == 4


def test_a_trial_takes_one_thread_and_gives_the_others_back() -> None:
    def fail() -> None:
        with verify.in_one_thread():
            raise KeyError(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(KeyError, match="1"):
            fail()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
