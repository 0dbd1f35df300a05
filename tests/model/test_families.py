"""The registry of families: whole, and known to those who depend on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from actorserve.actors.model.families.family import Family
from actorserve.actors.model.families.registry import BY_ARCHITECTURE, FAMILIES
from actorserve.actors.model.layers import Axis
from tests.support.models.checkpoints import KINDS, OTHER_CLASSES

ROOT = Path(__file__).resolve().parents[2]
CLASSES = {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **OTHER_CLASSES}
MODEL_TYPES = {architecture: kind for kind, architecture in CLASSES.items()}
WITH_EXPERTS = [family for family in FAMILIES if family.layer.moe and family.architectures[0] in MODEL_TYPES]


def test_each_architecture_is_compared_with_transformers() -> None:
    compared = {CLASSES[model_type] for model_type, _ in KINDS.values()}
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


@pytest.mark.parametrize("family", WITH_EXPERTS, ids=lambda family: family.architectures[0])
def test_scores_of_routers_are_of_the_type_that_transformers_has(family: Family) -> None:
    """Where they are rounded, or are not, others are chosen."""
    (package,) = transformers.__path__
    name = MODEL_TYPES[family.architectures[0]].removesuffix("_text")
    source = (Path(package) / "models" / name / f"modeling_{name}.py").read_text()
    assert family.layer.moe is not None
    assert family.layer.moe.float32_scores == bool(re.search(r"router_logits = F\.linear\(\w+\.(type|float)", source))
