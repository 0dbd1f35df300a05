"""Adapters of experts: in one flat batch what PEFT computes of each row alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.model.lora.adapter import AdapterError, read_adapter
from actorserve.actors.worker.cpu.layers import native
from tests.support.models.adapters import change_config, logprobs_of, write_adapter

from .test_products import Bench, Folders, off, text

EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
FAMILIES = [
    "qwen3_moe",
    pytest.param("qwen2_moe", marks=pytest.mark.slow),
    pytest.param("mixtral", marks=pytest.mark.slow),
    pytest.param("gpt_oss", marks=pytest.mark.slow),
    pytest.param("deepseek_v2", marks=pytest.mark.slow),
    pytest.param("deepseek_v3", marks=pytest.mark.slow),
]


@pytest.fixture
def kernels() -> Any:
    yield
    native.stop()


def of_parameters(folder: Path, target: Path, seed: int, parameters: list[str], **config: Any) -> Path:
    given = {"r": 3, "lora_alpha": 5, "target_modules": ["o_proj"]} | config
    return write_adapter(folder, target, seed, True, target_parameters=parameters, **given)


@pytest.mark.parametrize("family", FAMILIES)
def test_stacked_experts(family: str, checkpoints: Folders, tmp_path: Path, kernels: None) -> None:
    """Of both weights, or of one; one with other rows between its own."""
    folder = checkpoints(family, initializer_range=0.1)
    paths = [
        of_parameters(folder, tmp_path / "both", 1, EXPERTS, use_rslora=True),
        of_parameters(folder, tmp_path / "one", 2, EXPERTS[1:], r=2),
    ]
    bench = Bench(folder, paths)
    texts = [(number % 3, text(number, 9 + number)) for number in range(7)]
    for (adapter, ids), own in zip(texts, bench.logprobs(texts), strict=True):
        assert off(own, logprobs_of(folder, paths[adapter - 1] if adapter else None, ids)) < 1e-5
    alone = bench.logprobs([(0, ids) for _, ids in texts])
    assert off(alone[1], bench.logprobs(texts)[1]) > 0.01


@pytest.mark.parametrize("family", ["qwen3_moe", pytest.param("mixtral", marks=pytest.mark.slow)])
def test_names_of_linears_that_peft_makes_stacked(
    family: str, checkpoints: Folders, tmp_path: Path, kernels: None
) -> None:
    """Gate and up, which it takes as one, have twice the rank by a pattern; and other patterns beside that."""
    folder = checkpoints(family, initializer_range=0.1)
    experts = ["w1", "w2", "w3"] if family == "mixtral" else ["gate_proj", "up_proj", "down_proj"]
    given: dict[str, Any] = {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", *experts]}
    paths = [
        write_adapter(folder, tmp_path / "all", 1, **given),
        write_adapter(
            folder, tmp_path / "other", 2, **given, rank_pattern={"down_proj": 2}, alpha_pattern={"q_proj": 2}
        ),
    ]
    bench = Bench(folder, paths)
    texts = [(number % 3, text(number, 9 + number)) for number in range(5)]
    for (adapter, ids), own in zip(texts, bench.logprobs(texts), strict=True):
        assert off(own, logprobs_of(folder, paths[adapter - 1] if adapter else None, ids)) < 1e-5


def by_experts(folder: Path, target: Path) -> None:
    """The same adapter as older files have it: of each expert's linears, by the names of the checkpoint."""
    given = load_file(folder / "adapter_model.safetensors")
    made: dict[str, torch.Tensor] = {}
    for name, a in given.items():
        found = re.fullmatch(r"(.*\.experts)((?:\.base_layer)?)\.lora_A\.weight", name)
        if found is None:
            if ".experts." not in name:
                made[name] = a
            continue
        b = given[name.replace("lora_A", "lora_B")]
        rank = 3
        count = len(a) // rank
        for expert in range(count):
            own_a, own_b = a.view(count, rank, -1)[expert], b.view(len(b), rank, count)[:, :, expert]
            parts = {"gate_proj": own_b[: len(b) // 2], "up_proj": own_b[len(b) // 2 :]}
            for linear, rows in (parts if len(b) != 64 else {"down_proj": own_b}).items():
                prefix = f"{found[1]}.{expert}.{linear}"
                made |= {f"{prefix}.lora_A.weight": own_a.clone(), f"{prefix}.lora_B.weight": rows.contiguous()}
    target.mkdir()
    save_file(made, target / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    linears = ["o_proj", "gate_proj", "up_proj", "down_proj"]
    (target / "adapter_config.json").write_text(
        json.dumps(config | {"target_parameters": None, "target_modules": linears})
    )


def test_linears_of_single_experts(checkpoints: Folders, tmp_path: Path, kernels: None) -> None:
    folder = checkpoints("qwen3_moe", initializer_range=0.1)
    stacked = of_parameters(folder, tmp_path / "stacked", 3, EXPERTS)
    by_experts(stacked, tmp_path / "apart")
    bench = Bench(folder, [tmp_path / "apart"])
    ids = text(1, 30)
    assert off(bench.logprobs([(1, ids)])[0], logprobs_of(folder, stacked, ids)) < 1e-5


def test_what_is_not_the_models(checkpoints: Folders, tmp_path: Path, kernels: None) -> None:
    folder = checkpoints("qwen3_moe")
    bench = Bench(folder, [])
    path = of_parameters(folder, tmp_path / "one", 1, EXPERTS[1:], target_modules=[])

    def refused(reason: str, **fields: Any) -> None:
        change_config(path, **fields)
        with pytest.raises(AdapterError, match=reason):
            bench.maker.check(read_adapter(str(path), 64))

    refused("target_parameters names mlp.gate.weight, of which", target_parameters=["mlp.gate.weight"])
    refused(
        "rank_pattern and alpha_pattern are not supported for mlp.experts.other",
        target_parameters=["mlp.experts.other"],
        alpha_pattern={"other": 2},
    )
    refused("of 12 experts of rank 2; the model has 8 experts", target_parameters=EXPERTS[1:], alpha_pattern={}, r=2)
    refused("in place of", r=5)
