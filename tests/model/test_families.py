"""The registry of families: whole, and known to those who depend on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from actorserve.actors.model.families.family import Family
from actorserve.actors.model.families.registry import BY_ARCHITECTURE, FAMILIES
from actorserve.actors.model.layers import Axis
from tests.support.models.checkpoints import KINDS

ROOT = Path(__file__).resolve().parents[2]


def test_each_architecture_is_compared_with_transformers() -> None:
    compared = {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] for model_type, _ in KINDS.values()}
    others = {  # not in transformers: compared with what they are made of
        *("MiMoForCausalLM",),  # in worker/speculative/test_heads.py
        *("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"),  # in worker/cpu/test_ling.py
        *("InternLM2ForCausalLM",),  # in llm
    }
    assert compared | others == set(BY_ARCHITECTURE)


def test_the_readme_lists_them() -> None:
    (row,) = re.findall(r"^\| architectures \| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == list(BY_ARCHITECTURE)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.architectures[0])
def test_products_are_in_the_order_that_executors_take(family: Family) -> None:
    """q, k, v, and gate, up; of one product all linears have biases, or none."""
    layer = family.layer
    heads = [Axis.QUERIES, Axis.KEYS, Axis.VALUES]
    assert [axis for linear in layer.qkv for axis in linear.rows] == ([] if layer.latent else heads)
    assert [axis for linear in layer.gate_up for axis in linear.rows] == [Axis.INTERMEDIATE] * 2
    for product in (layer.qkv, layer.gate_up):
        assert len({linear.bias for linear in product}) == bool(product)
    assert (layer.q_norm is None) == (layer.k_norm is None)
