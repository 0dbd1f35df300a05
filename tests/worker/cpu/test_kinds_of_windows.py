"""Kinds whose layers see windows, by layers of transformers: which keep more of a context than they see."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from actorserve.actors.model.memory.kv import KVSpec
from actorserve.actors.model.memory.windows import plan_windows, windows_words
from actorserve.actors.options.config import make_config
from actorserve.actors.worker.adapter import hooks, verify
from actorserve.actors.worker.adapter.improve import improve
from actorserve.actors.worker.adapter.model import reads_windows_alone
from tests.support.models.census import FIELDS
from tests.support.selection import slow

from ..adapter.test_adapter import made

hooks.register()

ALL: dict[str, Any] = {"sliding_window": 4096}
SOME = ALL | {"use_sliding_window": True, "max_window_layers": 2}


def mixed(count: int) -> dict[str, Any]:
    """Of four layers three see a window."""
    kinds = (["sliding_attention"] * 3 + ["full_attention"]) * (count // 4)
    return ALL | {"layer_types": kinds, "num_hidden_layers": count}


BY_DEFAULT = """
    afmoe beam cohere2 cohere2_moe cwm exaone4 exaone_moe flint gemma2 gemma3_text gemma3n_text gemma4_text
    gemma4_unified_text gpt_oss granite_swa granitemoe_swa kolibri1 lfm3 llama4_text mimo_v2_flash ministral
    modernbert-decoder olmo3 recurrent_gemma vaultgemma
"""
KINDS: dict[str, dict[str, Any]] = {  # what switches windows on, where defaults do not
    **{name: {} for name in BY_DEFAULT.split()},
    **dict.fromkeys("mistral mixtral ministral3 minimax phi3 phimoe starcoder2".split(), ALL),
    **dict.fromkeys("qwen2 qwen2_moe qwen3 qwen3_moe".split(), SOME),
    **{"laguna": mixed(40), "mellum": mixed(28), "smollm3": mixed(36) | {"use_sliding_window": True}},
}
KEEP_MORE = ("deepseek_v4",)  # whose latents are in no table of windows
QUICK = ("gemma4_text", "recurrent_gemma", "laguna")


@pytest.mark.parametrize("name", [*QUICK, *slow(*(name for name in (*KINDS, *KEEP_MORE) if name not in QUICK))])
def test_nothing_is_kept_that_no_layer_sees(name: str) -> None:
    """But in the first table, by which prefixes are found, where there is room for it."""
    model = made(name, **{**FIELDS.get(name, {}), **KINDS.get(name, {})})
    verdict = verify.verify(model, lambda one: improve(one, torch.float32))
    own = [layer for layer in verdict.traits.kv.layers if layer is not None and layer.source is None]
    kv = KVSpec(layers=own * 4)  # of small models some have one such layer alone
    assert windows_words([kv], [None]), "no layer sees a window"
    plan = plan_windows(kv, make_config({"block_size": 8, "max_num_batched_tokens": 8}), 4096)
    assert (reads_windows_alone(verdict.traits, verdict.tier) and plan is not None) == (name not in KEEP_MORE)
