"""GGUF files of gpt-oss, Llama 4, and DeepSeek and its kin: weights are those of checkpoints, and answers are equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.families.sparse import choosing_layers
from actorserve.actors.model.gguf.architectures import Fields
from actorserve.actors.model.gguf.header import read_header
from actorserve.actors.model.gguf.sparse import choosing
from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.values import Values, read_json
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.models.weights import open_checkpoint
from tests.support.compiler import cache_with_kernels
from tests.support.models.checkpoints import YARN_ROPE
from tests.support.models.gguf.files import Stored, stored, tiny_fields, tiny_tensors, write
from tests.support.models.gguf.formats import KINDS, meaning
from tests.support.models.gguf.sparse import convert
from tests.support.models.greedy import assert_greedy, reference

from ..cpu.test_runner import prompt
from ..driver import Driver, Sequence, config_for, make_runner
from .read_back import read_both

Folders = Callable[..., Path]
YARN = {"rope_parameters": {**YARN_ROPE, "mscale": 0.7, "mscale_all_dim": 0.7}}  # files have one number for both
NO_DRAFTS = {"num_nextn_predict_layers": 0}  # what drafts is not read of files
OSS = {"swiglu_limit": 7.0}  # which files do not say
LLAMA4 = {  # nor these
    **{"attention_chunk_size": 8192, "no_rope_layer_interval": 4, "floor_scale": 8192, "attn_scale": 0.1},
}
FILES: dict[str, tuple[str, dict[str, Any], bool]] = {  # (kind of checkpoint, fields, latents in halves)
    "gpt_oss": ("gpt_oss", OSS, True),
    "llama4": ("llama4", LLAMA4, True),
    "deepseek_v2_lite": ("deepseek_v2", {}, True),
    "deepseek_v2": ("deepseek_v2_groups", YARN, True),
    "deepseek_v3": ("deepseek_v3", YARN, True),
    "deepseek_v3_older": ("deepseek_v3", YARN, False),
    "deepseek_v32": ("deepseek_v32", YARN | NO_DRAFTS, True),
    "glm_5": ("glm_moe_dsa", NO_DRAFTS, True),
    "mistral4": ("mistral4", {}, True),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_with_kernels(tmp_path / "cache")))


@pytest.mark.parametrize("name", FILES)
def test_files_are_as_their_checkpoints(name: str, checkpoints: Folders, tmp_path: Path) -> None:
    """All that is computed with, and every weight: experts, biases, sinks, corrections, and halves of latents."""
    kind, changes, halves = FILES[name]
    folder = checkpoints(kind, **changes)
    convert(folder, tmp_path / "model.gguf", lambda name: "F32", halves)
    wanted, found, read = read_both(folder, tmp_path / "model.gguf")
    for name, weight in wanted.items():
        assert torch.equal(found[name], weight), name
    rows = slice(10, 70)
    assert torch.equal(read("model.layers.1.self_attn.o_proj.weight", rows, slice(32, 64)), weight_at(wanted, rows))


def test_files_of_glm_4_7_flash(checkpoints: Folders, tmp_path: Path) -> None:
    """They count a layer that drafts with the others, and do not say how the router scores: by sigmoid."""
    folder, path = checkpoints("deepseek_v3", **YARN), tmp_path / "model.gguf"
    convert(folder, path, lambda name: "F32")
    header, raw = read_header(path), path.read_bytes()
    tensors = {
        name: stored("F32", np.frombuffer(raw[one.offset : one.offset + one.size], np.float32).reshape(one.shape))
        for name, one in header.tensors.items()
    }
    layers = header.fields["deepseek2.block_count"]
    last, behind = f"blk.{layers - 1}.", f"blk.{layers}."
    drafts = {name.replace(last, behind): one for name, one in tensors.items() if name.startswith(last)}
    drafts |= {f"{behind}nextn.{part}.weight": stored("F32", np.zeros((4, 8))) for part in ("eh_proj", "enorm")}
    fields = {name: value for name, value in header.fields.items() if name != "deepseek2.expert_gating_func"}
    fields |= {"deepseek2.block_count": layers + 1, "deepseek2.nextn_predict_layers": 1}
    write(path, fields, tensors | drafts)
    wanted, found, _ = read_both(folder, path)
    assert all(torch.equal(found[name], weight) for name, weight in wanted.items())


def weight_at(weights: dict[str, torch.Tensor], rows: slice) -> torch.Tensor:
    return weights["model.layers.1.self_attn.o_proj.weight"][rows, 32:64]


@pytest.mark.parametrize("name", ["gpt_oss", "llama4", "deepseek_v3", "glm_5", "mistral4"])
def test_answers_are_those_of_transformers(name: str, checkpoints: Folders, tmp_path: Path) -> None:
    kind, changes, halves = FILES[name]
    folder = checkpoints(kind, **changes)
    convert(folder, tmp_path / "model.gguf", lambda name: "F32", halves)
    theirs = reference(folder)
    prompts = [prompt(5 + 9 * number, number) for number in range(4)]
    runner = make_runner(config_for(tmp_path / "model.gguf"), rows=4)
    found = Driver(runner, seed=1).run([Sequence(tokens, 10) for tokens in prompts])
    assert_greedy(theirs, prompts, found, 10)


def test_experts_in_mxfp4(checkpoints: Folders, tmp_path: Path) -> None:
    """As gpt-oss is published: each expert's blocks are decoded by themselves."""
    folder = checkpoints("gpt_oss", **OSS)
    convert(folder, tmp_path / "plain.gguf", lambda name: "F32")
    path, means = tmp_path / "model.gguf", {}
    rng = np.random.default_rng(0)

    def packed(name: str, tensor: Stored) -> Stored:
        if "_exps.weight" not in name:
            return tensor
        count = int(np.prod(tensor.shape)) // 32
        blocks = rng.integers(0, 256, (count, KINDS["MXFP4"].size), dtype=np.uint8)
        blocks[:, 0] = blocks[:, 0] % 8 + 120
        means[name] = meaning("MXFP4", blocks.tobytes()).reshape(tensor.shape)
        return Stored(KINDS["MXFP4"].number, tensor.shape, blocks.tobytes())

    convert(folder, path, lambda name: "F32", change=packed)
    config = config_for(path, dtype="auto", device="cpu")
    home = Path(resolve_model(config).folder)
    assert json.loads((home / "config.json").read_text())["quantization_config"] == {"quant_method": "gguf"}
    read = open_checkpoint(home, read_architecture(read_json(home / "config.json")))
    for part in ("gate", "up", "down"):
        found = read(f"model.layers.2.mlp.experts.4.{part}_proj.weight", slice(None), None)
        assert np.array_equal(found.double().numpy(), means[f"blk.2.ffn_{part}_exps.weight"][4])
    runner = make_runner(config)
    assert len(Driver(runner, seed=1).run([Sequence(prompt(20, 1), 6)])[0]) == 6


def test_gates_and_ups_in_one_tensor_may_be_quantised(checkpoints: Folders, tmp_path: Path) -> None:
    """As files of Mistral 4 have them: the halves of an expert are decoded by themselves."""
    folder, path = checkpoints("mistral4"), tmp_path / "model.gguf"
    convert(folder, path, lambda name: "Q8_0" if "gate_up_exps" in name else "F32")
    wanted, found, _ = read_both(folder, path)
    for name, weight in wanted.items():
        assert torch.allclose(found[name], weight, atol=weight.abs().max().item() / 127), name


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [True] * 9),
        ({"attention.indexer.types": [True, False, True]}, [True, False, True]),
        ({"context_length": 1 << 20}, [True, True, True, False, False, False, True, False, False]),
    ],
)
def test_which_layers_choose_what_is_seen(
    given: dict[str, Any], expected: list[bool], checkpoints: Folders, tmp_path: Path
) -> None:
    """Where files do not say it: all, but of GLM-5.2, which has so long texts."""
    convert(checkpoints("glm_moe_dsa"), path := tmp_path / "model.gguf", lambda name: "F32")
    header = read_header(path)
    fields = {name: value for name, value in header.fields.items() if not name.endswith("indexer.types")}
    fields |= {f"glm-dsa.{name}": value for name, value in given.items()}
    found = choosing(Fields(header._replace(fields=fields)))
    assert choosing_layers(Values(path, found), len(expected)) == tuple(expected)


def test_layers_that_choose_are_told_by_true_and_false(checkpoints: Folders, tmp_path: Path) -> None:
    convert(checkpoints("glm_moe_dsa"), path := tmp_path / "model.gguf", lambda name: "F32")
    header = read_header(path)
    fields = header.fields | {"glm-dsa.attention.indexer.types": ["full", "shared"]}
    with pytest.raises(ConfigError, match=r"glm-dsa.attention.indexer.types = .*for each layer true or false"):
        choosing(Fields(header._replace(fields=fields)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"general.architecture": "deepseek2"}, "deepseek2.rope.dimension_count = None; a whole number"),
        ({"deepseek2.expert_gating_func": 4}, "expert_gating_func = 4; 1 (softmax) or 2 (sigmoid) is needed"),
        ({"deepseek2.rope.dimension_count": 64}, "rope.dimension_count = 64; less than the width of a head, 24,"),
        ({"llama4.attention.sliding_window": 0}, "llama4.attention.sliding_window = 0; 8192 is needed"),
        ({"gpt-oss.expert_count": 4}, "gpt-oss.expert_used_count = None; a whole number"),
        ({"mistral4.expert_gating_func": 2}, "mistral4.expert_gating_func = 2; 1 (softmax) is needed"),
        ({"glm-dsa.expert_gating_func": 1}, "glm-dsa.expert_gating_func = 1; 2 (sigmoid) is needed"),
        ({"gpt-oss.expert_gating_func": 2}, "gpt-oss.expert_gating_func = 2; 1, softmax, is needed"),
    ],
)
def test_what_cannot_be_is_named(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    architecture = fields.get("general.architecture") or next(iter(fields)).partition(".")[0]
    others = {"general.architecture": architecture, f"{architecture}.attention.key_length_mla": 24, **fields}
    write(tmp_path / "m.gguf", tiny_fields(others), tiny_tensors())
    with pytest.raises(ConfigError) as refused:
        find_model(config_for(tmp_path / "m.gguf"))
    assert words in str(refused.value) and "\n" not in str(refused.value)
