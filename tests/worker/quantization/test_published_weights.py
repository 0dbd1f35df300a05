"""Checkpoints of quantised weights, in each format: decoded, computed with, and refused where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from actorserve.actors.model.architecture import Architecture
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.formats.configs import read_stored_weights
from actorserve.actors.model.formats.quark import BESIDE
from actorserve.actors.model.formats.stored import WHOLE, Float4Weight, GptqWeight, ScaledWeight
from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.memory.dtypes import architecture_on_gpu, check_quantization
from actorserve.actors.model.memory.machine import weight_bytes
from actorserve.actors.model.quantization import NONE
from actorserve.actors.model.values import Values as FileValues
from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.cpu.runner import CpuRunner
from actorserve.actors.worker.inspection import inspect
from actorserve.actors.worker.memory import make_pools
from actorserve.actors.worker.models.sharding import Alone, shard
from actorserve.actors.worker.models.weights import load_model, open_checkpoint
from actorserve.actors.worker.quantization.int8 import Int8Linear
from actorserve.kernels.cpu.native.linear import NativeLinear, Weights
from tests.support.models.weight_formats import APPROXIMATE, FORMATS, write

from ..cpu.test_runner import prompt
from ..driver import LENGTH, Driver, Sequence, check_grouped, config_for

Folders = Callable[..., Path]
ALL = slice(None)


@pytest.fixture
def source(checkpoints: Folders) -> Path:
    return checkpoints("llama", num_key_value_heads=2, initializer_range=0.1)


def shape_of(folder: Path, quantization: str = "auto") -> Architecture:
    return read_architecture(json.loads((folder / "config.json").read_text()), quantization=quantization)


def answers(model: CpuModel) -> list[list[int]]:
    config = config_for(Path())
    pools = make_pools(model.kv, 64, config.block_size, model.dtype)
    runner = CpuRunner(model, pools, torch.zeros(4, LENGTH, dtype=torch.int32).numpy(), config.block_size, 4)
    return Driver(runner, seed=3).run([Sequence(prompt(9 + 7 * number, number), 12) for number in range(3)])


def load(folder: Path, **options: object) -> CpuModel:
    config = config_for(folder, **options)
    find_model(config)
    return load_model(config, resolve_model(config))


def same(found: Tensor, wanted: Tensor, name: str) -> None:
    tolerance = 1e-6 if name in APPROXIMATE else 0
    torch.testing.assert_close(found.float(), wanted.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FORMATS)
def test_the_numbers_are_those_that_the_format_means(name: str, source: Path, tmp_path: Path) -> None:
    """Whole, in parts, and in products: those of floats, and those of int8 as of the same floats."""
    packed, plain = write(source, name, tmp_path)
    shape, meant = shape_of(packed), load_file(plain / "model.safetensors")
    read = open_checkpoint(packed, shape)
    for key in shape.specs():
        same(read(key, ALL, None), meant[key], name)
    key = "model.layers.0.mlp.down_proj.weight"
    same(read(key, slice(3, 50), slice(7, 41)), meant[key][3:50, 7:41], name)
    floats = load(packed, quantization="none")
    if name in ("w4a16", "gptq", "awq", "fp8"):
        assert answers(floats) == answers(load(plain))
    ours = load(packed)
    if shape.scale_specs():
        return  # see below
    get = shard(open_checkpoint(plain, shape_of(plain)), shape_of(plain), Alone())
    theirs = CpuModel(shape, get, torch.float32, LENGTH)
    assert [isinstance(layer.down, Int8Linear) for layer in ours.layers] == [True, False, True]
    assert not isinstance(ours.head, Int8Linear)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    for own, other in zip(ours.layers, theirs.layers, strict=True):
        torch.testing.assert_close(own.qkv(x), other.qkv(x), rtol=0, atol=0.02 if name in APPROXIMATE else 0)
        torch.testing.assert_close(own.gate_up(x), other.gate_up(x), rtol=0, atol=0.02 if name in APPROXIMATE else 0)
    if name in ("w4a16", "gptq", "awq", "fp8"):
        assert answers(ours) == answers(theirs)


@pytest.mark.parametrize("name", ["w4a16", "gptq", "awq"])
@pytest.mark.usefixtures("native_kernels")
def test_four_bits_are_multiplied_as_they_are(name: str, source: Path, tmp_path: Path) -> None:
    packed, _ = write(source, name, tmp_path)
    kinds = {Weights.GROUPED, Weights.FLOAT_32}  # not all of its layers are quantised
    check_grouped(load(packed), load(packed, quantization="none"), kinds)
    eight = load(packed, quantization="int8").layers[0].out
    assert isinstance(eight, NativeLinear) and eight.data.kind == Weights.INT_8


@pytest.mark.parametrize("name", ["w8a8", "bnb_int8"])
def test_numbers_of_8_bits_are_not_rounded_again(name: str, source: Path, tmp_path: Path) -> None:
    """They reach no 127, and yet stay what they are, with their scales."""
    packed, _ = write(source, name, tmp_path)
    stored, model = load_file(packed / "model.safetensors"), load(packed)
    linear = model.layers[0].down
    assert isinstance(linear, Int8Linear)
    whole, _ = torch.ops.quantized.linear_unpack(linear.weight)
    wanted = stored["model.layers.0.mlp.down_proj.weight"]
    assert torch.equal(whole.int_repr()[:, : wanted.shape[1]], wanted) and wanted.abs().max() == 101
    scales = [value for key, value in stored.items() if "0.mlp.down" in key and key.endswith(("scale", "SCB"))]
    steps = scales[0].double().view(-1) / (127 if name == "bnb_int8" else 1)
    torch.testing.assert_close(whole.q_per_channel_scales(), steps, rtol=1e-6, atol=0)
    for layer in (model.layers[0].qkv, load(packed, load_format="dummy").layers[0].qkv):
        assert isinstance(layer, Int8Linear)
        used = torch.ops.quantized.linear_unpack(layer.weight)[0].int_repr()
        assert used.abs().max() > 60


@pytest.mark.parametrize("name", ["w4a16_zero_points", "gptq", "awq", "fp8"])
def test_fused_weights_and_parts_of_a_group(name: str, checkpoints: Folders, tmp_path: Path) -> None:
    """A rank of two reads its rows and columns of each, wherever groups of columns end."""
    packed, plain = write(checkpoints("phi3", initializer_range=0.1), name, tmp_path)
    shape, other = shape_of(packed), shape_of(plain)
    read, meant = open_checkpoint(packed, shape), open_checkpoint(plain, other)

    class Place:
        size = 2

        def __init__(self, rank: int) -> None:
            self.rank = rank

    for rank in range(2):
        get, wanted = shard(read, shape, Place(rank)), shard(meant, other, Place(rank))
        for key in shape.specs():
            assert torch.equal(get(key).float(), wanted(key)), key


def test_memory_and_what_is_told(source: Path, tmp_path: Path) -> None:
    """int8 of what is quantised, floats of the rest; dummy weights need no file, and have the same size."""
    packed, plain = write(source, "gptq", tmp_path)
    whole, ours, floats = shape_of(plain), shape_of(packed), shape_of(packed, "none")
    assert weight_bytes(whole, torch.float32) == weight_bytes(floats, torch.float32)
    quantised = 3 * 64 * (64 + 32 + 32 + 64) + 2 * 3 * 64 * 96
    assert weight_bytes(whole, torch.float32) - weight_bytes(ours, torch.float32) == 3 * quantised
    config = config_for(packed)
    facts = {key: value for part in inspect(config, resolve_model(config)) for key, value in part.items()}
    assert facts["dtype"] == "int8 and float32 (of gptq)"
    assert facts["parameters"] == sum(torch.Size(size).numel() for size in whole.tensors().values())
    (packed / "model.safetensors").unlink()
    dummy = load(packed, load_format="dummy")
    assert isinstance(dummy.layers[0].down, Int8Linear) and not isinstance(dummy.layers[1].down, Int8Linear)
    everything = load(plain, quantization="int8")
    assert isinstance(everything.head, Int8Linear)


def test_devices_and_types(source: Path, tmp_path: Path) -> None:
    packed, _ = write(source, "gptq", tmp_path)
    check_quantization(Config(), shape_of(packed), on_gpu=True)
    check_quantization(Config(quantization="int8"), shape_of(packed, "int8"), on_gpu=True)
    check_quantization(Config(quantization="none"), shape_of(packed, "none"), on_gpu=True)
    with pytest.raises(ConfigError, match="for --dtype bfloat16 set --quantization none"):
        load(packed, dtype="bfloat16")
    assert load(packed, dtype="bfloat16", quantization="none").dtype == torch.bfloat16


def test_names_that_lists_of_larger_models_have() -> None:
    """auto-round's blocks, layers and patterns, and gptqmodel's patterns, of a model that sees."""
    inner = "model.language_model.layers"
    given = {
        "block_name_to_quantize": inner,
        "extra_config": {f"{inner}.0.mlp.up_proj": {"bits": 16}, ".*mlp.down_proj": {"bits": 8}},
    }
    of = read_stored_weights(FileValues("config.json", FORMATS["auto_round"].config | given)).of
    bits = {name: getattr(of(f"model.layers.{name}"), "bits", None) for name in ("0.mlp.up_proj", "1.mlp.up_proj")}
    assert bits == {"0.mlp.up_proj": None, "1.mlp.up_proj": 4} and of("lm_head") is None
    down = of("model.layers.3.mlp.down_proj")
    assert isinstance(down, GptqWeight) and down.bits == 8
    given = {"dynamic": {rf"-:{inner}\.0\.": {}}}
    of = read_stored_weights(FileValues("config.json", FORMATS["gptq"].config | given)).of
    assert of("model.layers.0.mlp.up_proj") is None and of("model.layers.1.mlp.up_proj") is not None


Values = dict[str, Any]
COMPRESSED = FORMATS["w4a16"].config


def weights_with(**values: object) -> Values:
    """compressed-tensors with other numbers."""
    group = COMPRESSED["config_groups"]["group_0"]
    return COMPRESSED | {"config_groups": {"group_0": group | {"weights": group["weights"] | values}}}


def quark_with(**weight: object) -> Values:
    """Quark's FP8 by tensor, with other numbers."""
    known = FORMATS["quark_fp8"].config
    layer = known["global_quant_config"]
    return known | {"global_quant_config": layer | {"weight": layer["weight"] | weight}}


def rotated(*locations: str) -> Values:
    """What llm-compressor writes of a rotation, R1 of SpinQuant: of weights alone."""
    applied = [{"location": one, "targets": ["re:.*o_proj$"], "inverse": False, "ignore": []} for one in locations]
    return {"config_groups": {"R1": {"type": "hadamard", "head_dim": 128, "apply": applied}}}


def test_rotations_that_are_in_the_weights_ask_for_nothing() -> None:
    """Laguna XS.2 in FP8 was refused."""
    folded: list[Values] = [rotated("weight_output", "weight_input"), {"config_groups": {}}]
    for given in folded:
        values = FileValues("config.json", COMPRESSED | {"transform_config": given})
        assert read_stored_weights(values).of("model.layers.0.mlp.up_proj") is not None


def test_layers_of_quark_are_named_by_patterns() -> None:
    """The first that names a layer counts, then what is said of linears, then what is said of all."""
    four = FORMATS["quark_mxfp4"].config["global_quant_config"]
    rules = {
        "layer_quant_config": {"*k_proj": four, "re:.*layers\\.2\\..*": {"weight": None}, "*.2.mlp.up_proj": four},
        "layer_type_quant_config": {"Linear": quark_with(qscheme="per_channel")["global_quant_config"]},
    }
    of = read_stored_weights(FileValues("config.json", FORMATS["quark_fp8"].config | rules)).of
    by_row = ScaledWeight(type="F8_E4M3", block=(1, WHOLE), others=BESIDE)
    assert of("model.layers.0.self_attn.q_proj") == by_row and of("model.layers.0.mlp.up_proj") == by_row
    assert isinstance(of("model.layers.2.self_attn.k_proj"), Float4Weight) and of("model.layers.2.mlp.up_proj") is None
    assert of("model.layers.1.mlp.up_proj") is None and of("lm_head") is None
    assert of("model.layers.1.mlp_norm.proj") == by_row
    attention = "model.layers.0.self_attn"
    scales = ("k_proj.output_scale", "q_proj.output_scale", "prob_output_scale", "k_scale")
    needless = read_stored_weights(FileValues("config.json", quark_with())).needless
    assert needless is not None and all(needless.fullmatch(f"{attention}.{scale}") for scale in scales)
    assert not needless.fullmatch(f"{attention}.k_proj.weight_scale")
    seen = read_stored_weights(FileValues("config.json", quark_with() | {"exclude": ["language_model.lm_head"]})).of
    assert seen("lm_head") is None and seen("model.layers.1.mlp.up_proj") is not None


def test_a_group_that_names_a_layer_goes_before_one_of_all() -> None:
    """As compressed-tensors has it: names, then patterns, then classes, of whichever group."""
    weights = {bits: weights_with(num_bits=bits)["config_groups"]["group_0"] | {"targets": []} for bits in (2, 4, 8)}
    targets = {4: ["Linear"], 2: ["re:.*mlp.*"], 8: ["model.layers.0.mlp.up_proj"]}
    groups = {f"group_{at}": weights[bits] | {"targets": targets[bits]} for at, bits in enumerate(targets)}
    of = read_stored_weights(FileValues("config.json", COMPRESSED | {"config_groups": groups, "ignore": []})).of
    names = ("mlp.up_proj", "mlp.down_proj", "self_attn.q_proj")
    assert [getattr(of(f"model.layers.0.{name}"), "bits", None) for name in names] == [8, 2, 4]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"quant_method": "hqq"}, "quant_method = 'hqq', which is not supported; these are: compressed-tensors, gptq"),
        ({"quant_method": None, "bits": 4}, "quant_method = None"),
        (FORMATS["gptq"].config | {"bits": 5}, "bits = 5; 2 or 3 or 4 or 8 is needed"),
        (FORMATS["auto_round"].config | {"packing_format": "auto_round:x"}, "packing_format = 'auto_round:x'; auto_ro"),
        (FORMATS["auto_round"].config | {"data_type": "mx_fp"}, "data_type = 'mx_fp'; int is needed"),
        (FORMATS["auto_round_awq"].config | {"extra_config": {"a": {"bits": 8}}}, "bits = 8; 4 or 16 is needed"),
        (FORMATS["gptq"].config | {"bits": True}, "bits = True"),
        (FORMATS["gptq"].config | {"group_size": 0}, "group_size = 0; -1 or a whole number from 1 is needed"),
        (FORMATS["gptq"].config | {"checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'; gptq or gptq_v2"),
        (FORMATS["gptq"].config | {"dynamic": {"-:(": {}}}, "dynamic = {'-:(': {}}; patterns of names"),
        (FORMATS["awq"].config | {"version": "gemv"}, "version = 'gemv'; gemm"),
        (FORMATS["awq"].config | {"zero_point": 1}, "zero_point = 1; true or false"),
        (FORMATS["fp8"].config | {"weight_block_size": [128]}, "weight_block_size = [128]; a list of 2 numbers"),
        (COMPRESSED | {"format": "marlin-24"}, "format = 'marlin-24'; pack-quantized or"),
        (COMPRESSED | {"transform_config": rotated("weight_output", "input")}, "weight_output; not input"),
        (COMPRESSED | {"transform_config": rotated("q_attn")}, "not q_attn"),
        (COMPRESSED | {"transform_config": {"config_groups": {"R1": {"apply": "all"}}}}, "a list `apply`"),
        (COMPRESSED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "format = 'sparse-24-bitmask'; dense"),
        (COMPRESSED | {"ignore": "lm_head"}, "ignore = 'lm_head'; a list of texts"),
        (weights_with(num_bits=3), "num_bits = 3; 2 or 4 or 8"),
        (weights_with(strategy="tensor_group"), "strategy = 'tensor_group'; group or channel"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit = None; true here or in load_in_8bit"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo = 'W4A8_AWQ'; FP8 or FP8_PER"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers = None; an object with the"),
        ({"quant_method": "mlx", "bits": 8, "mode": "mxfp8"}, "mode = 'mxfp8'; affine or mxfp4 or nvfp4"),
        ({"quant_method": "mlx", "bits": 4, "group_size": 64, "mode": "mxfp4"}, "group_size = 64; 32"),
        (quark_with(dtype="fp6_e3m2"), "dtype = 'fp6_e3m2'; fp8_e4m3 or int8 or fp4 is needed"),
        (quark_with(qscheme="per_group"), "qscheme = 'per_group'; per_tensor or per_channel is needed"),
        (quark_with(dtype="fp4", qscheme="per_group", group_size=32), "scale_format = None; e8m0 is needed"),
        (quark_with(dtype="int8", symmetric=False), "symmetric = False; true is needed"),
        (quark_with(is_dynamic=True), "is_dynamic = True; false is needed"),
        (quark_with() | {"export": {"weight_format": "fake_quantized"}}, "weight_format = 'fake_quantized'; real_qu"),
        (quark_with() | {"layer_quant_config": {"*v_proj": {"weight": [{}, {}]}}}, "weight = [{}, {}]; an object"),
        (quark_with() | {"layer_type_quant_config": {"Embedding": {}}}, "Embedding': {}}; Linear alone is needed"),
        (
            quark_with() | {"algo_config": [{"name": "rotation", "r1": True, "r4": True}]},
            "nothing that rotates inputs is needed",
        ),
    ],
)
def test_what_config_json_may_not_say(values: Values, said: str, source: Path) -> None:
    known = json.loads((source / "config.json").read_text())
    with pytest.raises(ConfigError) as caught:
        read_architecture(known | {"quantization_config": values})
    assert said in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 300


AT = "model.layers.2.self_attn.v_proj."


def without(part: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(AT + part)


def with_(part: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({AT + part: tensor})


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("gptq", without("qzeros"), f"it lacks {AT}qzeros"),
        ("gptq_g_idx", without("g_idx"), f"it lacks {AT}g_idx"),
        ("gptq", with_("weight", torch.zeros(32, 64)), f"it has {AT}weight, for which the model has no use"),
        ("gptq", with_("qweight", torch.zeros(16, 32).int()), rf"{AT}qweight \[16, 32\] in place of \[8, 32\]"),
        ("gptq", with_("scales", torch.zeros(2, 32).int()), f"{AT}scales is stored as I32; supported are F32, F16"),
        ("gptq", with_("g_idx", torch.full((64,), 2).int()), f"{AT}g_idx has groups from 2 to 2; there are 2"),
        ("gptq", with_("bias", torch.ones(32)), f"{AT}bias is not 0, and by config.json the layer has none"),
        (
            "quark_int8",
            with_("weight_zero_point", torch.ones(32).int()),
            f"{AT}weight_zero_point is not 0, and by config.json the layer has none",
        ),
        ("gptq", with_("scales", torch.full((2, 32), torch.nan)), f"{AT}weight has numbers that are not finite"),
        ("w4a16", with_("weight_shape", torch.tensor([64, 32])), rf"{AT}weight_shape is \[64, 32\], .* \[32, 64\]"),
        ("w4a16_zero_points", without("weight_zero_point"), f"it lacks {AT}weight_zero_point"),
        ("w4a16", with_("weight_zero_point", torch.zeros(4, 2).int()), f"it has {AT}weight_zero_point, for which"),
        ("fp8_old", without("weight_scale"), f"either {AT}weight_scale or {AT}weight_scale_inv is needed"),
        ("fp8", with_("weight", torch.zeros(32, 64)), f"{AT}weight is stored as F32; supported are F8_E4M3"),
        (
            "bnb_nf4",
            with_("weight.quant_state.bitsandbytes__nf4", torch.zeros(5).byte()),
            f"{AT}weight: its weight.quant_state.bitsandbytes__nf4 holds no JSON object with a shape",
        ),
        (
            "bnb_nf4",
            with_("weight.absmax", torch.ones(7)),
            f"{AT}weight: its weight.absmax has 7 numbers in",
        ),
    ],
)
def test_tensors_that_do_not_fit(
    name: str, damage: Callable[[dict[str, Tensor]], object], said: str, source: Path, tmp_path: Path
) -> None:
    packed, _ = write(source, name, tmp_path)
    tensors = load_file(packed / "model.safetensors")
    damage(tensors)
    save_file(tensors, packed / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=said) as caught:
        load(packed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("form", "option", "said"),
    [
        ("gptq", "awq", "--quantization awq: the model's weights are gptq"),
        ("awq", "gptq", "--quantization gptq: the model's weights are awq"),
        (
            None,
            "gptq",
            r"--quantization gptq: the model's weights are not quantised .*; int8 or fp8 makes 8 bits of them at load",
        ),
        ("gptq", "gguf", "--quantization gguf: the model's weights are gptq"),
        ("gptq", "gptq", ""),
        ("fp8", "fp8", ""),
        ("auto_round", "auto-round", ""),
        *((form, FORMATS[form].config["quant_method"], "") for form in FORMATS),
        ("fp8", "torchao", "--quantization torchao: the model's weights are fp8"),
    ],
)
def test_a_checkpoints_format_may_be_named(form: str | None, option: str, said: str, source: Path) -> None:
    """As other servers' users do: the same as auto where it is so, and refused where it is not."""
    known = json.loads((source / "config.json").read_text())
    values = known | ({"quantization_config": FORMATS[form].config} if form else {})
    if said:
        with pytest.raises(ConfigError, match=said):
            read_architecture(values, quantization=option)
    else:
        own, auto = (read_architecture(values, quantization=name) for name in (option, "auto"))
        assert own.quantization == auto.quantization and own.mixed and own.stored is not None
        for on_gpu in (False, True):
            check_quantization(Config(quantization=option), own, on_gpu)
        there, stays = architecture_on_gpu(Config(quantization=option), own)
        assert stays and there.quantization is NONE and there.stored is own.stored and not there.mixed
