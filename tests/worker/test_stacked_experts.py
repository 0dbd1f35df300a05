"""Checkpoints that have the experts of a layer in one tensor: floats and MXFP4, as gpt-oss and others are published."""

from __future__ import annotations

import json
import shutil
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
from actorserve.actors.model.sharding import shard_shape
from actorserve.actors.model.weights.weight_files import check_weights
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.models.sharding import Alone, shard
from actorserve.actors.worker.models.weights import open_checkpoint
from actorserve.actors.worker.quantization.int8 import Int8Linear
from tests.support.models.greedy import assert_greedy, reference
from tests.support.models.weight_formats import FORMATS

from .cpu.test_executor import prompts
from .driver import Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]
ALL = slice(None)
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.1.mlp.experts"]}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def rewritten(source: Path, folder: Path, tensors: dict[str, Tensor], **values: Any) -> Path:
    """The same folder with other tensors."""
    shutil.copytree(source, folder)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(known | values))
    return folder


def shape_of(folder: Path, quantization: str = "auto") -> Architecture:
    return read_architecture(json.loads((folder / "config.json").read_text()), quantization=quantization)


def in_mxfp4(source: Path, folder: Path) -> Path:
    """Random bytes for the experts of all layers but one."""
    random = torch.Generator().manual_seed(4)
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj") and ".experts." in name and ".1." not in name]:
        experts, columns, rows = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = torch.randint(
            256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=random
        )
        tensors[f"{name}_scales"] = torch.randint(
            122, 125, (experts, rows, columns // 32), dtype=torch.uint8, generator=random
        )
    return rewritten(source, folder, tensors, quantization_config=MXFP4)


def in_floats(packed: Path, folder: Path) -> Path:
    """What its numbers mean: number for number, by the format's definition."""
    tensors = load_file(packed / "model.safetensors")
    for name in [name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")]:
        blocks, scales = tensors.pop(f"{name}_blocks").long(), tensors.pop(f"{name}_scales").double()
        halves = torch.stack([blocks & 15, blocks >> 4], -1).flatten(3)
        numbers = torch.tensor(E2M1, dtype=torch.double)[halves & 7] * (1 - 2 * (halves >> 3))
        tensors[name] = (numbers * 2 ** (scales - 127)[..., None]).flatten(2).transpose(1, 2).float()
    plain = rewritten(packed, folder, tensors)
    values = json.loads((plain / "config.json").read_text())
    del values["quantization_config"]
    (plain / "config.json").write_text(json.dumps(values))
    return plain


@pytest.fixture
def packed(checkpoints: Folders, tmp_path: Path) -> Path:
    return in_mxfp4(checkpoints("gpt_oss"), tmp_path / "packed")


def test_what_is_read_of_mxfp4_is_what_it_means(packed: Path, tmp_path: Path) -> None:
    """Whole, in parts, and by the reference library's own decoder."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    shape, stored = shape_of(packed), load_file(packed / "model.safetensors")
    read, meant = open_checkpoint(packed, shape), load_file(in_floats(packed, tmp_path / "plain") / "model.safetensors")
    for part, linear in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
        whole = f"model.layers.2.mlp.experts.{part}"
        theirs = convert_moe_packed_tensors(stored[f"{whole}_blocks"], stored[f"{whole}_scales"], dtype=torch.float32)
        assert torch.equal(theirs, meant[whole])
        for expert in range(6):
            for index, name in enumerate(linear):
                own = read(f"model.layers.2.mlp.experts.{expert}.{name}.weight", ALL, None)
                assert torch.equal(own, theirs[expert].t()[index :: len(linear)])
                some = read(f"model.layers.2.mlp.experts.{expert}.{name}.weight", slice(5, 20), slice(3, 40))
                assert torch.equal(some, own[5:20, 3:40])
                bias = read(f"model.layers.2.mlp.experts.{expert}.{name}.bias", slice(2, None), None)
                assert torch.equal(bias, meant[f"{whole}_bias"][expert][index :: len(linear)][2:])


def test_the_text_of_mxfp4_is_that_of_its_numbers(packed: Path, tmp_path: Path) -> None:
    model = reference(in_floats(packed, tmp_path / "plain"))
    texts = prompts((3, 40, 70))
    runner = make_runner(config_for(packed, block_size=16, quantization="none"))
    tokens = Driver(runner).run([Sequence(prompt, 16) for prompt in texts])
    assert_greedy(model, texts, tokens, 16)


def test_experts_become_8_bits_and_the_rest_stays(packed: Path) -> None:
    find_model(config_for(packed))
    model = make_runner(config_for(packed)).model
    assert isinstance(model, CpuModel)
    kept = [isinstance(layer.moe.experts.experts[5].down, Int8Linear) for layer in model.layers if layer.moe]
    assert kept == [True, False, True, True] and not isinstance(model.layers[0].out, Int8Linear)


def test_a_group_reads_its_parts(packed: Path) -> None:
    """Of gate and up, whose rows alternate, the same numbers; biases of what is summed are the first one's."""
    shape = shape_of(packed, "none")
    read = open_checkpoint(packed, shape)
    name = "model.layers.0.mlp.experts.1."
    parts = [shard(read, shape, Alone(rank, 2)) for rank in range(2)]
    for own, rows in (("gate_proj.weight", 0), ("up_proj.bias", 0), ("down_proj.weight", 1)):
        whole = read(name + own, ALL, None)
        assert torch.equal(torch.cat([part(name + own) for part in parts], rows), whole), own
    assert not parts[1](f"{name}down_proj.bias").any() and parts[0](f"{name}down_proj.bias").any()
    assert parts[1]("model.layers.0.self_attn.sinks").shape == (2,) and shard_shape(shape, 2).heads == 2


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_experts_of_others_may_be_stacked(kind: str, checkpoints: Folders, tmp_path: Path) -> None:
    """As transformers has them in memory: rows of gate, then those of up."""
    source = checkpoints(kind)
    tensors = load_file(source / "model.safetensors")
    plain, shape = dict(tensors), shape_of(source)
    assert shape.moe is not None
    for layer in map(shape.layer_at, range(shape.layers)):
        if layer.moe is None:
            continue
        pairs = [layer.moe.expert(number) for number in range(shape.moe.experts)]
        assert layer.moe.stacked is not None
        joined = [torch.cat([tensors.pop(f"{linear.name}.weight") for linear in up]) for up, _ in pairs]
        tensors[layer.moe.stacked.gate_up] = torch.stack(joined)
        tensors[layer.moe.stacked.down] = torch.stack([tensors.pop(f"{down.name}.weight") for _, down in pairs])
    stacked = rewritten(source, tmp_path / "stacked", tensors)
    read = open_checkpoint(stacked, shape)
    assert all(torch.equal(read(name, ALL, None), tensor) for name, tensor in plain.items())
    missing = next(name for name in tensors if name.endswith("experts.down_proj"))
    del tensors[missing]
    with pytest.raises(ConfigError, match=f"it lacks {missing}$"):
        check_weights(rewritten(source, tmp_path / "less", tensors), shape)


@pytest.mark.parametrize("turned", [True, False])
def test_stacked_experts_of_8_bits_have_their_scales_beside_them(
    turned: bool, checkpoints: Folders, tmp_path: Path
) -> None:
    """As Qwen3-VL's are published in FP8, with columns before rows, and as transformers writes them."""
    source, (rows, columns) = checkpoints("qwen3_moe"), (8, 16)
    tensors, shape = load_file(source / "model.safetensors"), shape_of(source)
    random, meant = torch.Generator().manual_seed(3), {}

    def packed_of(names: list[str]) -> tuple[Tensor, Tensor]:
        numbers, scales = [], []
        for name in names:
            own = (tensors.pop(f"{name}.weight") * 8).to(torch.float8_e4m3fn)
            scale = torch.rand(own.shape[0] // rows, own.shape[1] // columns, generator=random)
            spread = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
            meant[f"{name}.weight"] = own.float() * spread
            numbers.append(own)
            scales.append(scale)
        return torch.cat(numbers), torch.cat(scales)

    plain = ["self_attn", "mlp.gate"]
    for number, layer in enumerate(map(shape.layer_at, range(shape.layers))):
        if layer.moe is None or layer.moe.stacked is None:
            plain.append(f"layers.{number}.mlp")
            continue
        pairs = [layer.moe.expert(expert) for expert in range(layer.moe.experts)]
        for whole, linears in (
            (layer.moe.stacked.gate_up, [[linear.name for linear in up] for up, _ in pairs]),
            (layer.moe.stacked.down, [[down.name] for _, down in pairs]),
        ):
            found = zip(*map(packed_of, linears), strict=True)
            parts = [torch.stack(own).transpose(1, 2) if turned else torch.stack(own) for own in found]
            tensors |= dict(zip((whole, f"{whole}_scale_inv"), parts, strict=True))
    said = {"quant_method": "fp8", "weight_block_size": [rows, columns], "modules_to_not_convert": plain}
    folder = rewritten(source, tmp_path / "fp8", tensors, experts_transposed=True, quantization_config=said)
    shape = shape_of(folder)
    check_weights(folder, shape)
    read = open_checkpoint(folder, shape)
    assert meant and all(torch.equal(read(name, ALL, None), tensor) for name, tensor in meant.items())


LLAMA4_FLOATS = ["self_attn", "shared_expert", "router", "model.layers.0.feed_forward", "model.layers.2.feed_forward"]


def numbers_of_8_bits(weight: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """(numbers, scales in this shape, what they mean) of [experts, columns, rows]: a scale for so many of its parts."""
    scales = torch.rand(shape, generator=torch.Generator().manual_seed(len(weight)))
    numbers = (weight * 8).to(torch.float8_e4m3fn)
    spread = scales if scales.numel() == 1 else scales.view(len(weight), 1, -1)
    spread = (
        spread.reshape(()) if scales.numel() == 1 else spread.repeat_interleave(weight.shape[2] // spread.shape[2], 2)
    )
    return numbers, scales, numbers.float() * spread


def fp8_by_tensor(
    scales: Callable[[int], tuple[int, ...]],
) -> Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]:
    """Model Optimizer's; `scales`: their shape, of so many linears."""

    def pack(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        numbers, scale, meant = numbers_of_8_bits(weight, scales(2 if "gate_up" in name else 1))
        return {name: numbers, f"{name}_weight_scale": scale, f"{name}_input_scale": torch.tensor(0.5)}, meant

    return pack


def fp8_by_row(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Meta's own, which transposes the one and not the other."""
    experts, _, rows = weight.shape
    numbers, scale, meant = numbers_of_8_bits(weight, (experts, 1, rows) if "gate_up" in name else (experts, rows, 1))
    return {name: numbers, f"{name}_scale": scale}, meant


def nvfp4(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    experts, _, rows = weight.shape
    found, exact = FORMATS["modelopt_nvfp4"].pack(weight.transpose(1, 2).flatten(0, 1).double().numpy())
    stacked = {end: part.unflatten(0, (experts, rows)).transpose(1, 2) for end, part in found.items() if part.ndim > 1}
    packed = {name: stacked["weight"], f"{name}_weight_scale": stacked["weight_scale"]}
    meant = torch.from_numpy(exact).float().unflatten(0, (experts, rows)).transpose(1, 2)
    return packed | {f"{name}_weight_scale_2": found["weight_scale_2"]}, meant


MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": LLAMA4_FLOATS}
LLAMA4_FORMATS: dict[str, tuple[dict[str, Any], Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]]] = {
    "one scale": (MODELOPT, fp8_by_tensor(lambda linears: ())),
    "a scale for each expert": (MODELOPT, fp8_by_tensor(lambda linears: (5,))),
    "a scale for each linear": (MODELOPT, fp8_by_tensor(lambda linears: (5, linears))),
    "a scale for each row": ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": LLAMA4_FLOATS}, fp8_by_row),
    "4 bits": (MODELOPT | {"quant_algo": "NVFP4"}, nvfp4),
}


@pytest.mark.parametrize("kind", LLAMA4_FORMATS)
def test_experts_of_llama_4_as_they_are_published_in_few_bits(kind: str, checkpoints: Folders, tmp_path: Path) -> None:
    """All of a layer in one tensor, with columns before rows, and what belongs to it beside it."""
    source, (said, pack) = checkpoints("llama4"), LLAMA4_FORMATS[kind]
    tensors, means = load_file(source / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith("_proj")]:
        packed, means[name] = pack(name, tensors.pop(name))
        tensors |= packed
    folder = rewritten(source, tmp_path / "packed", tensors, quantization_config=said)
    shape = shape_of(folder)
    check_weights(folder, shape)
    read, width = open_checkpoint(folder, shape), shape.moe.intermediate_size if shape.moe else 0
    for name, meant in means.items():
        for expert, own in enumerate(meant.transpose(1, 2)):
            parts = {"gate_proj": own[:width], "up_proj": own[width:]} if "gate_up" in name else {"down_proj": own}
            for part, weight in parts.items():
                found = read(f"{name.rpartition('.')[0]}.{expert}.{part}.weight", ALL, None)
                torch.testing.assert_close(found, weight, rtol=1e-6, atol=0)
    assert len(means) == 4


def test_a_stacked_tensor_of_another_shape_is_named(packed: Path, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj_blocks"
    tensors = load_file(packed / "model.safetensors")
    tensors[name] = tensors[name][:5]
    with pytest.raises(ConfigError, match=rf"has the shape of {name} \[5, 192, 2, 16\] in place of \[6, 192, 2, 16\]"):
        find_model(config_for(rewritten(packed, tmp_path / "wrong", tensors)))
