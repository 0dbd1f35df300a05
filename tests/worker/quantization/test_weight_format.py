"""A weight format is a module and a record: this is one, of checkpoints whose rows have 8 bits and a scale each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from actorserve.actors.model.architecture import Architecture
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.layers import Kind, LinearSpec, TensorSpec
from actorserve.actors.model.memory.dtypes import check_quantization
from actorserve.actors.model.memory.machine import weight_bytes
from actorserve.actors.model.quantization import METHODS, QuantMethod
from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.worker.inspection import inspect
from actorserve.actors.worker.models.sharding import shard
from actorserve.actors.worker.models.weights import load_model, open_checkpoint
from actorserve.actors.worker.quantization.base import CpuLinear, LinearTensors

from ..cpu.test_runner import prompt
from ..driver import Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]


# --- the format ----------------------------------------------------------------------------------------------------


def tensors_of(linear: LinearSpec) -> dict[str, TensorSpec]:
    """The weight in 8 bits, a scale of each of its rows, and the bias as ever."""
    weight = TensorSpec(Kind.WEIGHT, linear.rows, linear.columns, types=("I8",))
    scales = {f"{linear.name}.weight_scale": TensorSpec(Kind.SCALE, linear.rows)}
    return linear.tensors() | {f"{linear.name}.weight": weight} | scales


ROWS8 = QuantMethod(
    name="rows8",
    implementation=__name__,
    devices=("cpu",),
    bytes_per_weight=1,
    with_head=False,
    stored_as="rows8",
    tensors=tensors_of,
)


class Rows8Linear:
    """Weights of 8 bits in memory, made whole for each product."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        self.weight, self.scale, self.bias = weight, scale, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.scale[:, None], self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        residual.add_(self(x))


def cpu_linear(tensors: LinearTensors) -> CpuLinear:
    scale = tensors.joined("weight_scale", tensors.dtype)
    return Rows8Linear(tensors.joined("weight", torch.int8), scale, tensors.bias())


# --- and what all others make of it --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, ROWS8.name, ROWS8)


@pytest.fixture
def folders(checkpoints: Folders, tmp_path: Path) -> tuple[Path, Path]:
    """(a checkpoint of the format, the same numbers in float32)."""
    source = checkpoints("llama_biased", num_key_value_heads=2, initializer_range=0.1)
    packed, plain = (Path(shutil.copytree(source, tmp_path / name)) for name in ("packed", "plain"))
    values = json.loads((source / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(values | {"quantization_config": {"quant_method": "rows8"}}))
    found = load_file(source / "model.safetensors")
    exact = dict(found)
    for name, spec in read_architecture(values).specs().items():
        if spec.kind is Kind.WEIGHT and "layers" in name:
            scale = found[name].abs().amax(1) / 127
            whole = (found[name] / scale[:, None]).round()
            found |= {name: whole.to(torch.int8), f"{name}_scale": scale}
            exact[name] = whole * scale[:, None]
    save_file(found, packed / "model.safetensors", metadata={"format": "pt"})
    save_file(exact, plain / "model.safetensors", metadata={"format": "pt"})
    return packed, plain


def shape_of(folder: Path, quantization: str = "none") -> Architecture:
    return read_architecture(json.loads((folder / "config.json").read_text()), quantization=quantization)


def answers(config: Config) -> list[list[int]]:
    sequences = [Sequence(prompt(9 + 7 * number, number), 12) for number in range(3)]
    return Driver(make_runner(config), seed=3).run(sequences)


def test_a_checkpoint_of_the_format_is_served(folders: tuple[Path, Path]) -> None:
    """Without any option: config.json says what it is. The answers are those of the same numbers in float32."""
    packed, plain = folders
    find_model(config_for(packed))
    model = load_model(config_for(packed), resolve_model(config_for(packed)))
    assert isinstance(model.layers[1].qkv, Rows8Linear) and model.layers[1].qkv.weight.dtype == torch.int8
    assert not isinstance(model.head, Rows8Linear)
    assert answers(config_for(packed)) == answers(config_for(plain))


def test_its_memory_is_counted(folders: tuple[Path, Path]) -> None:
    packed, plain = folders
    whole, less = (weight_bytes(shape_of(folder), torch.float32) for folder in (plain, packed))
    specs = shape_of(packed).specs()
    products = [spec for name, spec in specs.items() if spec.kind is Kind.WEIGHT and "layers" in name]
    numbers = sum(torch.Size(shape_of(packed).tensor_shape(spec)).numel() for spec in products)
    scales = sum(shape_of(packed).tensor_shape(spec)[0] for spec in specs.values() if spec.kind is Kind.SCALE)
    assert whole - less == 3 * numbers - 4 * scales and numbers > 1000
    config = config_for(packed)
    facts = {key: value for part in inspect(config, resolve_model(config)) for key, value in part.items()}
    assert (facts["dtype"], facts["weights_bytes"]) == ("rows8 and float32", less)


def test_each_rank_reads_its_part(folders: tuple[Path, Path]) -> None:
    """Scales go with the rows of their weights; where columns are cut, every rank has all of them."""
    shape = shape_of(folders[0])
    read = open_checkpoint(folders[0], shape)

    class Place:
        size = 2

        def __init__(self, rank: int) -> None:
            self.rank = rank

    gets = [shard(read, shape, Place(rank)) for rank in range(2)]
    for name in shape.tensors():
        if name.endswith("weight_scale"):
            parts, whole = [get(name) for get in gets], read(name, slice(None), None)
            cut = not name.endswith(("o_proj.weight_scale", "down_proj.weight_scale"))
            assert torch.equal(torch.cat(parts), whole) if cut else all(torch.equal(part, whole) for part in parts)
            assert parts[0].shape[:1] == gets[0](name.removesuffix("_scale")).shape[:1]


def test_refusals(folders: tuple[Path, Path]) -> None:
    packed, plain = folders
    with pytest.raises(ConfigError, match="--quantization int8: the model's weights are rows8 already"):
        shape_of(packed, "int8")
    with pytest.raises(ConfigError, match="--quantization rows8: the model's weights are not of this format"):
        shape_of(plain, "rows8")
    with pytest.raises(ConfigError, match=r"model: weights in rows8: on a CPU only \(--device cpu\)"):
        check_quantization(Config(), shape_of(packed), on_gpu=True)
    check_quantization(Config(quantization="int8", dtype="bfloat16"), shape_of(plain, "int8"), on_gpu=True)
    with pytest.raises(ConfigError, match="--quantization int8: what is not quantised is float32 on a CPU, not bf"):
        check_quantization(Config(quantization="int8", dtype="bfloat16"), shape_of(plain, "int8"), on_gpu=False)


def test_only_what_the_format_names_may_have_its_type(folders: tuple[Path, Path]) -> None:
    path = folders[0] / "model.safetensors"
    save_file(load_file(path) | {"model.norm.weight": torch.zeros(64, dtype=torch.int8)}, path)
    with pytest.raises(ConfigError, match=r"model\.norm\.weight is stored as I8; supported are F32, F16, BF16"):
        find_model(config_for(folders[0]))
