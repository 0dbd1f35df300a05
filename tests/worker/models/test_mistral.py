"""Weights in Mistral's own form: the same numbers as the checkpoint of transformers that they were made of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.values import read_json
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.models.sharding import shard
from actorserve.actors.worker.models.weights import open_checkpoint
from tests.support.models.checkpoints import MINISTRAL3_ROPE
from tests.support.models.greedy import reference
from tests.support.models.mistral.files import convert, paired, tensors_of, write_tensors

from ..cpu.test_executor import prompts
from ..driver import Driver, Sequence, config_for, make_runner, prompt_logits
from .read_back import read_both
from .test_sharding import Place

Folders = Callable[..., Path]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))


def both(kind: str, checkpoints: Folders, into: Path, parts: int = 1) -> tuple[Path, Path]:
    """A checkpoint of transformers, and the same in Mistral's form."""
    folder = checkpoints(kind)
    return folder, convert(folder, into / f"{kind}-{parts}", parts)


KINDS = ["mistral", "mixtral", "ministral3", "mistral4"]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_transformers_form(kind: str, parts: int, checkpoints: Folders, tmp_path: Path) -> None:
    hub, own, _ = read_both(*both(kind, checkpoints, tmp_path, parts))
    assert all(torch.equal(hub[name], own[name]) for name in hub)


def test_parts_need_no_index(checkpoints: Folders, tmp_path: Path) -> None:
    folder, own = both("mistral", checkpoints, tmp_path, 2)
    (own / "consolidated.safetensors.index.json").unlink()
    hub, weights, _ = read_both(folder, own)
    assert all(torch.equal(hub[name], weights[name]) for name in hub)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind: str, checkpoints: Folders, tmp_path: Path) -> None:
    compare(*both(kind, checkpoints, tmp_path))


def test_scores_over_latents_do_not_grow_with_a_stretch_that_says_so(checkpoints: Folders, tmp_path: Path) -> None:
    """`apply_scale` of yarn is false in all that were published; the same without experts."""
    kept = {name: number for name, number in MINISTRAL3_ROPE.items() if "mscale" not in name}
    for number, changes in enumerate(({}, {"first_k_dense_replace": 3})):
        folder = checkpoints("mistral4", rope_parameters={**kept, "attention_factor": 1.0}, **changes)
        own = convert(folder, tmp_path / str(number))
        if changes:
            params = read_json(own / "params.json")
            del params["moe"]
            (own / "params.json").write_text(json.dumps(params))
        compare(folder, own)


def compare(folder: Path, own: Path) -> None:
    """Those of a prompt."""
    (prompt,) = prompts((150,))
    logits = prompt_logits(make_runner(config_for(own, block_size=16)), prompt)
    with torch.inference_mode():
        expected = reference(folder)(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)


def test_a_rank_has_its_part_of_queries_and_keys(checkpoints: Folders, tmp_path: Path) -> None:
    """KV heads that are fewer than ranks, too."""
    shapes, gets = [], []
    for folder in both("mistral", checkpoints, tmp_path):
        home = Path(resolve_model(config_for(folder)).folder)
        shapes.append(shape := read_architecture(read_json(home / "config.json")))
        gets.append([shard(open_checkpoint(home, shape), shape, Place(rank)) for rank in range(Place.size)])
    for name in shapes[0].tensors():
        assert all(torch.equal(hub(name), own(name)) for hub, own in zip(*gets, strict=True)), name


@pytest.mark.parametrize("scheme", ["TENSOR", "NO_SCALES"])
def test_weights_in_8_bits(scheme: str, checkpoints: Folders, tmp_path: Path) -> None:
    """A scale for each weight; scales of activations have no use here, nor those of KV memory."""
    folder = checkpoints("mistral")
    tensors = tensors_of(folder, read_json(folder / "config.json"))
    for name in [name for name in tensors if ".attention.w" in name or ".feed_forward." in name]:
        stem = name.removesuffix("weight")
        scale = tensors[name].abs().max() / 448
        tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
        tensors[f"{stem}qscale_weight"] = scale
        if scheme == "TENSOR":
            tensors[f"{stem}qscale_act"] = torch.tensor(0.5)
    tensors["layers.0.attention.k_fake_quantizer.qscale_act"] = torch.tensor(0.5)
    own = convert(folder, tmp_path / "fp8", quantization={"qformat_weight": "fp8_e4m3", "qscheme_act": scheme})
    write_tensors(own, tensors)
    home = Path(resolve_model(config_for(own)).folder)
    shape = read_architecture(read_json(home / "config.json"))
    read = open_checkpoint(home, shape)
    for kind, part in (("wq", "q_proj"), ("wk", "k_proj"), ("wo", "o_proj")):
        stored = tensors[f"layers.1.attention.{kind}.weight"].float()
        stored = stored * tensors[f"layers.1.attention.{kind}.qscale_weight"]
        found = read(f"model.layers.1.self_attn.{part}.weight", slice(None), None)
        assert torch.equal(stored, found if part == "o_proj" else paired(found, 16))


def test_scales_of_rows_turn_with_their_rows(checkpoints: Folders, tmp_path: Path) -> None:
    folder = checkpoints("mistral")
    tensors = tensors_of(folder, read_json(folder / "config.json"))
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    for name in [name for name in tensors if ".attention.w" in name or ".feed_forward." in name]:
        scale = tensors[name].abs().amax(1, keepdim=True) / 127
        tensors[name] = (tensors[name] / scale).round().to(torch.int8)
        tensors[f"{name.removesuffix('weight')}weight_scale"] = scale
    quantised = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": ["lm_head"],
    }
    own = convert(folder, tmp_path / "int8", quantization=quantised)
    write_tensors(own, tensors)
    home = Path(resolve_model(config_for(own)).folder)
    shape = read_architecture(read_json(home / "config.json"))
    name = "layers.2.attention.wk."
    found = open_checkpoint(home, shape)("model.layers.2.self_attn.k_proj.weight", slice(None), None)
    assert torch.equal(paired(found, 16), tensors[f"{name}weight"].float() * tensors[f"{name}weight_scale"])


def test_blocks_of_8_bits_of_a_model_with_latents(checkpoints: Folders, tmp_path: Path) -> None:
    """As Mistral Large 3 is published: all but what makes latents and chooses experts, named as vLLM's layers are."""
    folder = checkpoints("mistral4")
    tensors = tensors_of(folder, read_json(folder / "config.json"))
    plain = re.compile(r".*(_norm|norm|wq_a|wkv_a_with_mqa|gate|tok_embeddings|output)\.weight")
    for name in [name for name in tensors if not plain.fullmatch(name)]:
        weight = tensors[name]
        rows, columns = (-(-size // 16) for size in weight.shape)
        tensors[name] = weight.mul(64).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = torch.full((rows, columns), 1 / 64)
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": [16, 16]}
    quantised = {
        **{"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed"},
        "config_groups": {"FP8_BLOCK": {"targets": ["Linear"], "weights": weights}},
        "ignore": [
            "model.embed_tokens",
            *(f"re:.*{one}$" for one in ("kv_a_proj_with_mqa", "q_a_proj", "gate")),
            "lm_head",
        ],
    }
    own = convert(folder, tmp_path / "fp8", quantization_config=quantised)
    write_tensors(own, tensors)
    home = Path(resolve_model(config_for(own)).folder)
    read = open_checkpoint(home, read_architecture(read_json(home / "config.json")))
    for ours, theirs in (
        ("self_attn.kv_b_proj", "attention.wkv_b"),
        ("mlp.experts.3.down_proj", "experts.3.w2"),
        ("mlp.shared_experts.up_proj", "shared_experts.w3"),
    ):
        found = read(f"model.layers.1.{ours}.weight", slice(None), None)
        assert torch.equal(found, tensors[f"layers.1.{theirs}.weight"].float() / 64)
    assert torch.equal(read("model.layers.1.mlp.gate.weight", slice(None), None), tensors["layers.1.gate.weight"])


def test_what_the_model_has_no_use_for_is_told_by_its_own_name(checkpoints: Folders, tmp_path: Path) -> None:
    folder, own = both("mistral", checkpoints, tmp_path)
    tensors = tensors_of(folder, json.loads((folder / "config.json").read_text()))
    write_tensors(own, {**tensors, "layers.0.attention.sink": torch.zeros(4)})
    with pytest.raises(ConfigError, match=r"it has layers\.0\.attention\.sink, for which the model has no use"):
        make_runner(config_for(own))


@pytest.mark.parametrize("kind", ["mistral", "mixtral"])
def test_layers_of_transformers_read_the_same(kind: str, checkpoints: Folders, tmp_path: Path) -> None:
    (prompt,) = prompts((40,))
    options: dict[str, object] = {"block_size": 16, "model_impl": "transformers", "device": "cpu"}
    answers = [
        Driver(make_runner(config_for(folder, **options)), budget=64).run([Sequence(prompt, 8)])
        for folder in both(kind, checkpoints, tmp_path)
    ]
    assert answers[0] == answers[1] and len({*answers[0][0]}) > 2
