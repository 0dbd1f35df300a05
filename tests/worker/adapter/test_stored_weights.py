"""Models of transformers' layers from quantised checkpoints: they compute what the decoded weights do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.formats.stored import ExpertFloat4Weight
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.adapter import verify
from actorserve.actors.worker.adapter.facts import facts
from actorserve.actors.worker.adapter.improve import LinearModule, PartModule
from actorserve.actors.worker.adapter.load import load_adapted
from actorserve.actors.worker.adapter.model import AdaptedModel
from actorserve.actors.worker.adapter.twin import shrink
from actorserve.actors.worker.cpu.layers.linear import PlainLinear
from actorserve.actors.worker.formats.floats import expert
from actorserve.actors.worker.quantization.int8 import Int8Linear
from tests.support.models.weight_formats import APPROXIMATE, FORMATS, write
from tests.support.selection import slow
from tests.worker.driver import config_for

Checkpoints = Callable[..., Path]
BY_TRANSFORMERS = {"model_impl": "transformers", "device": "cpu"}
QUICK = ("w4a16_g_idx", "w8a8_zero_points", "auto_round_awq", "mxfp4", "mlx", "bnb_nf4_bf16")


def load(folder: Path, **options: Any) -> AdaptedModel:
    config = config_for(folder, **BY_TRANSFORMERS, **options)
    find_model(config)
    return load_adapted(config, resolve_model(config))


def logits_of(model: AdaptedModel) -> torch.Tensor:
    trial, text = verify.Trial(model), torch.arange(3, 3 + verify.DECODED + 5)
    with torch.inference_mode():
        return trial.run([text])[0]


def same(packed: Path, plain: Path, exact: bool = True, **options: Any) -> None:
    found, wanted = (logits_of(load(folder, **options)) for folder in (packed, plain))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0 if exact else 2e-3 * float(wanted.std()))


@pytest.fixture
def source(checkpoints: Checkpoints) -> Path:
    return checkpoints("llama", num_key_value_heads=2, initializer_range=0.1)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FORMATS]
)
def test_the_numbers_are_those_that_the_format_means(name: str, source: Path, tmp_path: Path) -> None:
    same(*write(source, name, tmp_path), name not in APPROXIMATE, quantization="none")


def test_whole_numbers_of_8_bits_are_multiplied_as_they_are(source: Path, tmp_path: Path) -> None:
    """Not rounded by another step once more, which a row would be whose largest number is not 127 of its own."""
    packed, _ = write(source, "w8a8", tmp_path)
    tensors = load_file(packed / "model.safetensors")
    for tensor in tensors.values():
        if tensor.dtype == torch.int8:
            tensor[:, 0] = -128
            tensor[1::2] = tensor[1::2].clamp(-90, 90)
    save_file(tensors, packed / "model.safetensors", metadata={"format": "pt"})
    layer = load(packed).model.model.layers[0]
    for product, names in (
        (layer.mlp.gate_proj.joined.product, ("mlp.gate_proj", "mlp.up_proj")),
        (layer.self_attn.o_proj.product, ("self_attn.o_proj",)),
    ):
        stored = [tensors[f"model.layers.0.{name}.weight"] for name in names]
        scales = [tensors[f"model.layers.0.{name}.weight_scale"].view(-1) for name in names]
        known = Int8Linear(torch.cat(stored).float() * torch.cat(scales)[:, None], None, torch.cat(scales))
        x = torch.randn(3, product.inputs, generator=torch.Generator().manual_seed(2))
        assert torch.equal(product(x), known(x))
        assert not torch.equal(known(x), Int8Linear(torch.cat(stored).float() * torch.cat(scales)[:, None], None)(x))


@pytest.mark.parametrize("name", ["gptq_g_idx", *slow("w4a16_zero_points", "fp8")])
def test_as_int8_they_are_what_floats_become(name: str, source: Path, tmp_path: Path) -> None:
    packed, plain = write(source, name, tmp_path)
    same(packed, plain, quantization="int8")
    model = load(packed)
    layers = [layer.mlp for layer in model.model.model.layers]
    kinds = [(type(mlp.gate_proj.joined.product), type(mlp.down_proj.product)) for mlp in layers]
    assert kinds == [(Int8Linear, Int8Linear), (PlainLinear, PlainLinear), (Int8Linear, Int8Linear)]
    assert isinstance(model.model.lm_head.product, PlainLinear)
    theirs = load(plain, quantization="int8").model.model.layers[2].mlp
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(layers[2].up_proj(x), theirs.up_proj(x))


def test_products_that_are_not_quantised_alike_are_not_joined(source: Path, tmp_path: Path) -> None:
    packed, plain = write(source, "fp8", tmp_path)
    found, floats = load_file(packed / "model.safetensors"), load_file(plain / "model.safetensors")
    layer = "model.layers.0.self_attn.v_proj"
    found.pop(f"{layer}.weight_scale_inv")
    found[f"{layer}.weight"] = floats[f"{layer}.weight"]
    save_file(found, packed / "model.safetensors", {"format": "pt"})
    attention = load(packed).model.model.layers[0].self_attn
    assert isinstance(attention.q_proj, LinearModule) and isinstance(attention.q_proj.product, Int8Linear)
    assert isinstance(attention.v_proj.product, PlainLinear)
    same(packed, plain, quantization="none")


@pytest.mark.parametrize("name", [*slow("gptq"), "fp8"])
def test_experts_of_a_file_each(name: str, checkpoints: Checkpoints, tmp_path: Path) -> None:
    """What transformers has in one tensor lies there by experts, decoded one after the other."""
    packed, plain = write(checkpoints("qwen3_moe", initializer_range=0.1), name, tmp_path)
    same(packed, plain, quantization="none")
    same(packed, plain, quantization="int8")


# --- all experts in one tensor ----------------------------------------------------------------------------------------


def made(name: str, folder: Path, **fields: Any) -> tuple[Path, dict[str, torch.Tensor], dict[str, Any]]:
    """A tiny checkpoint of this kind: the folder, its tensors and config.json."""
    config = shrink(AutoConfig.for_model(name, **fields))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float()
    verify.randomise(model)
    model.save_pretrained(folder)
    return folder, load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def saved(tensors: dict[str, torch.Tensor], values: dict[str, Any], folder: Path) -> Path:
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    """As gpt-oss has them: blocks and scales of all experts of a layer."""
    _, tensors, values = made("gpt_oss", tmp_path / "source")
    packed, exact = dict(tensors), dict(tensors)
    generator = torch.Generator().manual_seed(3)
    for name, weight in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            count, columns, rows = weight.shape
            blocks = torch.randint(0, 256, (count, rows, columns // 32, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(122, 125, (count, rows, columns // 32), generator=generator, dtype=torch.uint8)
            del packed[name]
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            parts = ({"blocks": one, "scales": scale} for one, scale in zip(blocks, scales, strict=True))
            exact[name] = torch.stack([expert(ExpertFloat4Weight(), part, rows, columns).t() for part in parts])
    stored = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    folders = (
        saved(packed, values | {"quantization_config": stored}, tmp_path / "packed"),
        saved(exact, values, tmp_path / "plain"),
    )
    same(*folders, exact=False, quantization="none", skip_tokenizer_init=True)
    same(*folders, exact=False, quantization="int8", skip_tokenizer_init=True)
    broken = load_file(folders[0] / "model.safetensors")
    lost = next(name for name in broken if name.endswith("_scales"))
    broken.pop(lost)
    with pytest.raises(ConfigError, match=f"{lost} is missing"):
        load(saved(broken, values | {"quantization_config": stored}, tmp_path / "broken"), skip_tokenizer_init=True)


def test_experts_in_fp8(tmp_path: Path) -> None:
    """A tensor of all experts, and one of the scales of all their blocks."""
    _, tensors, values = made("gpt_oss", tmp_path / "source")
    packed, exact = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            count, rows, columns = weight.shape
            numbers = (weight * 16).to(torch.float8_e4m3fn)
            scales = torch.rand(count, -(-rows // 16), -(-columns // 48)) / 16 + 0.03
            packed |= {name: numbers, f"{name}_scale_inv": scales}
            spread = scales.repeat_interleave(16, 1)[:, :rows].repeat_interleave(48, 2)[:, :, :columns]
            exact[name] = numbers.float() * spread
    stored = {"quant_method": "fp8", "weight_block_size": [16, 48]}
    folders = (
        saved(packed, values | {"quantization_config": stored}, tmp_path / "packed"),
        saved(exact, values, tmp_path / "plain"),
    )
    same(*folders, quantization="none", skip_tokenizer_init=True)


def test_a_kind_that_has_no_layers_of_our_own(tmp_path: Path) -> None:
    """A model that is none of the project's own families: the rules of formats know layers wherever they are."""
    _, tensors, values = made("gpt_neox", tmp_path / "source")
    renamed: dict[str, torch.Tensor] = {}
    for name, weight in tensors.items():
        if weight.dim() == 2 and "layers." in name:
            numbers = (weight.clamp(-1, 1) * 100).to(torch.float8_e4m3fn)
            renamed |= {name: numbers, name.replace("weight", "weight_scale_inv"): torch.full((1, 1), 0.01)}
            tensors[name] = numbers.float() * 0.01
        else:
            renamed[name] = weight
    stored = {"quant_method": "fp8", "weight_block_size": [512, 512]}
    folders = (
        saved(renamed, values | {"quantization_config": stored}, tmp_path / "packed"),
        saved(tensors, values, tmp_path / "plain"),
    )
    same(*folders, quantization="none", skip_tokenizer_init=True)


# --- what is told, and refused ----------------------------------------------------------------------------------------


def test_sizes_of_mixed_weights(source: Path, tmp_path: Path) -> None:
    packed, plain = write(source, "gptq", tmp_path)
    known = []
    for folder in (packed, plain):
        config = config_for(folder, **BY_TRANSFORMERS)
        known.append(facts(config, resolve_model(config))[0])
    quantised = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96) + 2 * 64 * 64 + 2 * 32 * 64
    assert known[1]["weights_bytes"] - known[0]["weights_bytes"] == 3 * quantised
    assert known[0]["dtype"] == "int8 and float32 (of gptq)"


AT = "model.layers.2.self_attn.v_proj."


@pytest.mark.parametrize(
    ("name", "part", "tensor", "said"),
    [
        ("gptq", "qzeros", None, f"model: {AT}qzeros is missing"),
        ("gptq", "weight", torch.zeros(32, 64), f"{AT}weight beside {AT}g_idx.*, which make the same"),
        ("gptq", "qweight", torch.zeros(16, 32).int(), r"v_proj.* \[.*\] in place of"),
        ("gptq", "scales", torch.zeros(2, 32).int(), f"{AT}scales is stored as I32; supported are F32, F16"),
        ("gptq", "bias", torch.ones(32), f"{AT}bias, for which the model has no use"),
        ("gptq", "scales", torch.full((2, 32), torch.nan), f"{AT}weight has numbers that are not finite"),
        ("fp8", "weight_scale_inv", torch.ones(3, 3), rf"{AT}weight_scale_inv has the shape \[3, 3\]"),
    ],
)
def test_tensors_that_do_not_fit(
    name: str, part: str, tensor: torch.Tensor | None, said: str, source: Path, tmp_path: Path
) -> None:
    packed, _ = write(source, name, tmp_path)
    tensors = load_file(packed / "model.safetensors")
    tensors.pop(AT + part, None)
    if tensor is not None:
        tensors[AT + part] = tensor
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=said) as caught:
        load(packed)
    assert "\n" not in str(caught.value)


def test_numbers_of_8_bits_that_config_json_does_not_mention(source: Path, tmp_path: Path) -> None:
    packed, _ = write(source, "fp8", tmp_path)
    shutil.copy(source / "config.json", packed / "config.json")
    with pytest.raises(ConfigError, match=r"is stored as F8_E4M3, and its config.json has no quantization_config"):
        load(packed)


@pytest.mark.parametrize(
    ("form", "option", "said"),
    [
        ("gptq", "awq", "--quantization awq: the model's weights are gptq"),
        (
            None,
            "gptq",
            "--quantization gptq: the model's weights are not quantised .*; int8 or fp8 makes 8 bits of them at load",
        ),
        ("gptq", "gptq", ""),
    ],
)
def test_a_checkpoints_format_may_be_named(
    form: str | None, option: str, said: str, source: Path, tmp_path: Path
) -> None:
    folder = source if form is None else write(source, form, tmp_path)[0]
    if said:
        with pytest.raises(ConfigError, match=said):
            load(folder, quantization=option)
    else:
        assert isinstance(load(folder, quantization=option).model.model.layers[0].self_attn.q_proj, PartModule)
