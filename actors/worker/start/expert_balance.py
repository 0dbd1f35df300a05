"""What --enable-eplb adds to a model whose experts are divided over a group."""

from __future__ import annotations

from pathlib import Path

from ...model.config_json import read_architecture
from ...model.info import ModelInfo, read_json
from ...model.layers import MoeSpec
from ...options.config import Config
from ...options.objects.eplb import read_eplb
from ..cpu.builder import CpuBuilder
from ..cpu.executor import CpuModel
from ..cpu.layers.expert_balance import ExpertBalance
from ..cpu.layers.experts import Expert
from ..models.weights import open_weights
from ..tensor_parallel import TensorParallelGroup


def balance_experts(config: Config, info: ModelInfo, model: CpuModel, group: TensorParallelGroup) -> None:
    """Each layer with experts counts and comes to its turn; the checkpoint stays open for that."""
    shape = read_architecture(read_json(Path(info.folder) / "config.json"), quantization=config.quantization)
    own, get = open_weights(config, info, shape, group)
    build = CpuBuilder(own, get, model.precision, group, model.batch_invariant)
    attach(build, model, group, read_eplb(config).step_interval, read_eplb(config).window_size)


def attach(build: CpuBuilder, model: CpuModel, group: TensorParallelGroup, interval: int, window: int) -> None:
    """`build` makes parts of the same checkpoint."""
    for index, layer in enumerate(model.layers):
        if layer.moe is None:
            continue
        spec = build.layer(index).moe
        assert spec is not None, "it is the same layer"

        def make(number: int, spec: MoeSpec = spec) -> Expert:
            up, down = spec.expert(number - spec.first)
            return Expert(build.linear(*up, few_rows=True), build.linear(down, few_rows=True))

        experts, turn = layer.moe.experts, index % interval
        experts.balance = ExpertBalance(f"layer {index}", experts, group, make, interval, window, turn)
