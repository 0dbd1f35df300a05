"""How weights are stored, told elsewhere than in quantization_config: other files, other fields, embeddings as well."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.formats.places import told_elsewhere
from actorserve.actors.model.formats.rules import listed
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.quantization.int8 import Int8Linear
from tests.support.models.other_formats import MLX_GROUP, mlx, torchao_config
from tests.support.models.weight_formats import FORMATS, write
from tests.worker.driver import config_for

from .test_published_weights import answers, load

Folders = Callable[..., Path]


def torchao_with(granularity: object) -> dict[str, Any]:
    given = {"_type": "Int8WeightOnlyConfig", "_data": {"granularity": granularity}}
    return torchao_config(None) | {"quant_type": {"default": given}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def source(checkpoints: Folders) -> Path:
    return checkpoints("llama", num_key_value_heads=2, initializer_range=0.1)


def change(folder: Path, drop: str, **fields: Any) -> dict[str, Any]:
    """config.json without one field, which is returned."""
    path = folder / "config.json"
    values = json.loads(path.read_text())
    dropped: dict[str, Any] = values.pop(drop, {})
    path.write_text(json.dumps(values | fields))
    return dropped


@pytest.mark.parametrize("name", ["modelopt_fp8", "modelopt_nvfp4", "modelopt_mixed"])
def test_a_file_of_its_own(name: str, source: Path, tmp_path: Path) -> None:
    """As Model Optimizer writes it."""
    packed, plain = write(source, name, tmp_path)
    given = change(packed, "quantization_config")
    given["exclude_modules"] = given.pop("ignore")
    given.pop("quant_method")
    about = {"producer": {"name": "modelopt"}, "quantization": {**given, "kv_cache_quant_algo": "FP8"}}
    (packed / "hf_quant_config.json").write_text(json.dumps(about))
    found, wanted = load(packed, quantization="none"), load(plain)
    assert answers(found) == answers(wanted)
    assert isinstance(load(packed, quantization="modelopt_fp4").layers[0].down, Int8Linear)


def test_an_older_name(source: Path, tmp_path: Path) -> None:
    packed, plain = write(source, "w4a16", tmp_path)
    given = change(packed, "quantization_config")
    given.pop("quant_method")
    change(packed, "", compression_config=given)
    assert answers(load(packed, quantization="none")) == answers(load(plain))


@pytest.mark.parametrize(("form", "whole"), [("mlx", {"bits": 4}), ("mlx_mxfp4", {"bits": 4, "mode": "mxfp4"})])
def test_mlx_has_embeddings_so_too(form: str, whole: dict[str, Any], checkpoints: Folders, tmp_path: Path) -> None:
    """All that is multiplied or looked up; the table makes logits as well. A layer's own mode is affine if not said."""
    packed, plain = write(checkpoints("llama_tied", initializer_range=0.1), form, tmp_path)
    exact, tensors = load_file(plain / "model.safetensors"), load_file(packed / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("embed_tokens.weight", "layers.1.mlp.up_proj.weight"))]:
        stored, meant = mlx(8)(tensors.pop(name).double().numpy())
        tensors |= {name.removesuffix("weight") + part: tensor for part, tensor in stored.items()}
        exact[name] = exact[name].new_tensor(meant)
    save_file(tensors, packed / "model.safetensors", {"format": "mlx"})
    save_file(exact, plain / "model.safetensors", {"format": "pt"})
    more = {"bits": 8, "group_size": MLX_GROUP}
    own = {**whole, "group_size": MLX_GROUP, "model.embed_tokens": more, "model.layers.1.mlp.up_proj": more}
    own |= {f"model.layers.1.mlp.{part}_proj": False for part in ("gate", "down")}
    change(packed, "quantization_config", quantization=own)
    change(packed, "", quantization_config=own)
    assert answers(load(packed, quantization="none")) == answers(load(plain))
    model = load(packed)
    assert isinstance(model, CpuModel) and isinstance(model.head, Int8Linear)


def test_embeddings_of_mlx_are_floats_of_4_bits(checkpoints: Folders, tmp_path: Path) -> None:
    packed, plain = write(checkpoints("llama_tied", initializer_range=0.1), "mlx_mxfp4", tmp_path)
    exact, tensors = load_file(plain / "model.safetensors"), load_file(packed / "model.safetensors")
    name = "model.embed_tokens.weight"
    stored, meant = FORMATS["mlx_mxfp4"].pack(tensors.pop(name).double().numpy())
    tensors |= {name.removesuffix("weight") + part: tensor for part, tensor in stored.items()}
    exact[name] = exact[name].new_tensor(meant)
    save_file(tensors, packed / "model.safetensors", {"format": "mlx"})
    save_file(exact, plain / "model.safetensors", {"format": "pt"})
    given = {name: value for name, value in FORMATS["mlx_mxfp4"].config.items() if name != "model.embed_tokens"}
    change(packed, "", quantization_config=given)
    assert answers(load(packed, quantization="none")) == answers(load(plain))


def test_kinds_whose_weights_mlx_changes(source: Path, tmp_path: Path) -> None:
    packed, _ = write(source, "mlx", tmp_path)
    change(packed, "quantization_config", quantization={"bits": 4, "group_size": 64}, model_type="qwen3_next")
    with pytest.raises(ConfigError, match=r"is MLX' of a qwen3_next, whose weights it changes; read are gemma, .*GGUF"):
        resolve_model(config_for(packed))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": ["llama"], "quantization": {"bits": 4, "group_size": 64}}, "is MLX' of a"),
        ({"quantization_config": torchao_config(0) | {"quant_type": {"default": {"_type": "X"}}}}, "_type"),
        *(
            ({"quantization_config": torchao_with(wrong)}, "granularity")
            for wrong in ("PerRow", {"_type": "PerGroup", "_data": [32]}, {"_type": "PerGroup"}, [5])
        ),
    ],
)
def test_what_nobody_writes_is_refused_by_its_field(
    fields: dict[str, Any], said: str, source: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "wrong"))
    change(folder, "", **fields)
    with pytest.raises(ConfigError, match=said):
        find_model(config_for(folder))


def test_scales_of_keys_and_values_alone(source: Path, tmp_path: Path) -> None:
    """Weights are floats; the scales are not used."""
    folder = Path(shutil.copytree(source, tmp_path / "scaled"))
    scheme = {"num_bits": 8, "type": "float"}
    given = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "kv_cache_scheme": scheme}
    change(folder, "", quantization_config=given)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"model.layers.0.self_attn.{part}_scale": torch.ones(1) for part in "kv"}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert answers(load(folder)) == answers(load(source))


@pytest.mark.parametrize("names", [("k_scale", "v_scale"), ("kv_scale",), ("k_proj.output_scale",)])
def test_scales_of_keys_and_values_beside_fp8(names: tuple[str, ...], source: Path, tmp_path: Path) -> None:
    """As AutoFP8 writes them, by name in three versions of it."""
    packed, _ = write(source, "fp8_old", tmp_path)
    before = answers(load(packed))
    tensors = load_file(packed / "model.safetensors")
    tensors |= {f"model.layers.0.self_attn.{name}": torch.ones(1) for name in names}
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    assert answers(load(packed)) == before


@pytest.mark.parametrize("part", ["self_attn.o", "mlp.down"])
def test_names_anywhere_in_those_of_layers_that_awq_left_in_floats(part: str, source: Path, tmp_path: Path) -> None:
    """As AutoAWQ reads modules_to_not_convert; the tensors tell, for others mean whole names by it."""
    packed, plain = write(source, "awq", tmp_path)
    tensors, exact = load_file(packed / "model.safetensors"), load_file(plain / "model.safetensors")
    kept = {name: tensor for name, tensor in exact.items() if f".{part}_proj.weight" in name}
    assert kept and not kept.keys() <= tensors.keys()
    tensors = {name: tensor for name, tensor in tensors.items() if f".{part}_proj." not in name} | kept
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    given = json.loads((packed / "config.json").read_text())["quantization_config"]
    given["modules_to_not_convert"] = [*given["modules_to_not_convert"], part, "q_pro"]
    change(packed, "quantization_config", quantization_config=given)
    assert answers(load(packed, quantization="none")) == answers(load(plain))


def test_routers_are_looked_for_where_the_text_part_has_experts() -> None:
    """Of a model that sees, as Qwen3-VL-MoE."""
    there = {"model.language_model.layers.0.mlp.gate.weight", "model.language_model.layers.0.mlp.experts.0.x.qweight"}
    values = {"quantization_config": {"quant_method": "gptq"}, "text_config": {"num_experts": 4}}
    rules: dict[str, Any] = {"quantization_config": {"dynamic": {"-:.*\\.gate$": {}}}}
    assert told_elsewhere(Path("m"), values, lambda: there) == rules
    assert told_elsewhere(Path("m"), values | {"text_config": {}}, lambda: there) == {}


@pytest.mark.parametrize(
    ("name", "those", "others"),
    [
        ("model.layers.6*", ["model.layers.6.mlp.up_proj", "model.layers.61.mlp.up_proj"], ["model.layers.5.mlp.up"]),
        ("model.layers.6.*", ["model.layers.6.mlp.up_proj"], ["model.layers.61.mlp.up_proj"]),
        ("*.mlp.gate", ["model.layers.6.mlp.gate"], ["model.layers.6.mlp.gate_proj"]),
        ("*mlp.gate*", ["model.layers.6.mlp.gate", "model.layers.6.mlp.gate_proj"], ["model.layers.6.mlp.up_proj"]),
        ("*mlp.gate.*", ["model.layers.6.mlp.gate"], ["model.layers.6.mlp.gate_proj"]),
        ("layers.*.self_attn", ["model.layers.61.self_attn.q_proj"], ["model.layers.61.mlp.up_proj"]),
        ("model.language_model.layers.6*", ["model.layers.60.mlp.up_proj"], ["model.layers.5.mlp.up_proj"]),
    ],
)
def test_a_star_stands_for_anything(name: str, those: list[str], others: list[str]) -> None:
    names_it = listed((name,))
    assert all(map(names_it, those)) and not any(map(names_it, others))


@pytest.mark.parametrize("in_parts", [False, True])
def test_routers_that_gptq_left_in_floats_without_saying_so(
    in_parts: bool, checkpoints: Folders, tmp_path: Path
) -> None:
    """As Qwen's own of Qwen3-30B-A3B; only the tensors tell."""
    packed, plain = write(checkpoints("qwen3_moe", initializer_range=0.1), "gptq", tmp_path)
    tensors, exact = load_file(packed / "model.safetensors"), load_file(plain / "model.safetensors")
    routers = {name: tensor for name, tensor in exact.items() if name.endswith(".mlp.gate.weight")}
    assert routers
    kept = {name: tensor for name, tensor in tensors.items() if ".mlp.gate." not in name} | routers
    (packed / "model.safetensors").unlink()
    file = "model-00001-of-00001.safetensors" if in_parts else "model.safetensors"
    save_file(kept, packed / file, metadata={"format": "pt"})
    if in_parts:
        index = {"weight_map": dict.fromkeys(kept, file)}
        (packed / "model.safetensors.index.json").write_text(json.dumps(index))
    found = answers(load(packed))
    given = json.loads((packed / "config.json").read_text())["quantization_config"]
    rules = {**given.get("dynamic", {}), "-:.*mlp.gate$": {}}
    change(packed, "quantization_config", quantization_config={**given, "dynamic": rules})
    assert found == answers(load(packed))
