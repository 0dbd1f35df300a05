"""Small configs that follow a model's own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from actorserve.actors.worker.adapter import hooks, verify
from actorserve.actors.worker.adapter.improve import improve
from actorserve.actors.worker.adapter.model import Tier
from actorserve.actors.worker.adapter.twin import MOST_LAYERS, WINDOW, shrink, shrink_fields
from tests.support.models.census import QWEN4, examine

from .test_adapter import made

hooks.register()

SLIDING, FULL = "sliding_attention", "full_attention"
TURNS = {
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
}
# Fields of config.json as they are published, where they ask for what defaults do not.
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
    assert sliding.head_dim == sliding.qk_nope_head_dim + sliding.qk_rope_head_dim < 48


@pytest.mark.parametrize("kind", ["gemma4_text", "gemma4_unified_text"])
def test_heads_of_layers_that_see_everything_are_wider(kind: str) -> None:
    """Gemma 4 and its kin, of which config.json says it layer by layer ("05": …): two of each kind are tried."""
    fields = GEMMA4_26B if kind == "gemma4_text" else {}
    whole, tiny = AutoConfig.for_model(kind, **fields), small(kind, **fields)
    assert next(iter(whole.to_dict()["per_layer_config"])) == "05"
    assert sorted(tiny.layer_types) == [FULL] * 2 + [SLIDING] * 2
    for config in (whole, tiny):
        by_kind: Any = config.per_layer_config
        full, windowed = by_kind[FULL], by_kind[SLIDING]
        assert full.head_dim == 2 * windowed.head_dim
        assert (full.num_key_value_heads < windowed.num_key_value_heads) == (kind == "gemma4_text")


def test_a_trial_has_heads_of_two_widths() -> None:
    verdict = verify.verify(made("gemma4_text", **GEMMA4_26B), lambda model: improve(model, torch.float32))
    assert {(pool.kv_heads, pool.key_dim) for pool in verdict.traits.kv.pools()} == {(2, 16), (1, 32)}


def test_layers_with_more_heads_than_others_have_more() -> None:
    """Laguna: 48 of queries where all is seen, 64 where a window is."""
    kinds, heads = [FULL, SLIDING, SLIDING, SLIDING] * 10, [48, 64, 64, 64] * 10
    fields = {"layer_types": kinds, "num_attention_heads_per_layer": heads, "sliding_window": 512}
    tiny = small("laguna", **fields)
    assert tiny.num_attention_heads_per_layer == [4 if one == FULL else 8 for one in tiny.layer_types]
    verdict = verify.verify(made("laguna", **fields), lambda model: improve(model, torch.float32))
    assert verdict.tier is Tier.FLAT, verdict.reasons


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


@pytest.mark.parametrize("name", PUBLISHED)
def test_all_rows_go_through_it_at_once(name: str) -> None:
    kind, fields = PUBLISHED[name]
    verdict = verify.verify(made(kind, **fields), lambda model: improve(model, torch.float32))
    assert verdict.tier is Tier.FLAT, verdict.reasons


@pytest.mark.parametrize("name", PUBLISHED)
def test_answers_are_those_of_generate(name: str, tmp_path: Path) -> None:
    """Of sequences that are preempted, where they have the time to grow, and found again by their prefix."""
    kind, fields = PUBLISHED[name]
    row = examine(kind, tmp_path / "model", 32, fields)
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


class Turn:
    """A lock that says that somebody waits for it."""

    def __init__(self) -> None:
        self._lock, self.is_waited_for = threading.RLock(), threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_waited_for.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_of_two_trials_at_once_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process has is changed: the one that ended first would have given the other all threads, which ended by
    giving back the one that it had found."""
    turn, over = Turn(), threading.Event()
    monkeypatch.setattr(verify, "_turn", turn)

    def second() -> bool:
        with verify.in_one_thread():
            return over.is_set()

    with ThreadPoolExecutor(1) as pool:
        with verify.in_one_thread(), verify.in_one_thread():
            waits = pool.submit(second)
            assert turn.is_waited_for.wait(60)
            over.set()
        assert waits.result(60)
