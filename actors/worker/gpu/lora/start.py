"""What the worker of a GPU needs for adapters: slots beside the weights, and who fills them."""

from __future__ import annotations

import torch

from ....model.info import ModelInfo
from ....options.config import Config
from ....runtime.process import Context
from ...lora.build import AdapterMaker
from ...lora.start import checked, native_layout, waker
from ...tensor_parallel import TensorParallelGroup
from ..executor import GpuModel
from ..runner import GpuRunner
from .resident import REASONS, GpuLayout, SlotAdapters
from .sites import GpuLoraSites, SlotProduct


def make_sites(config: Config, device: torch.device) -> GpuLoraSites | None:
    """Where a model that is loaded keeps what adapters may change; None without --enable-lora."""
    if not config.enable_lora:
        return None
    return GpuLoraSites(config.adapters_in_memory(), config.max_lora_rank, device)


def make_maker(
    config: Config, info: ModelInfo, model: GpuModel, group: TensorParallelGroup | None = None
) -> AdapterMaker[SlotProduct]:
    """What makes products of adapters for a model that was loaded with such sites."""
    assert model.lora is not None
    layout = native_layout(GpuLayout, config, info, model.lora, model.shape, group)
    return AdapterMaker(model.lora, layout, REASONS)


def start_adapters(context: Context, runner: GpuRunner, group: TensorParallelGroup | None) -> SlotAdapters | None:
    """Those of --enable-lora; ConfigError if one of --lora-modules cannot be had."""
    config, model = context.config, runner.model
    if runner.adapted is None or model.lora is None:
        return None
    taken = model.lora.count, config.max_lora_rank, model.lora.bytes / 2**30
    context.log.info("%d slots for adapters of ranks up to %d take %.2f GiB of the device", *taken)
    maker = make_maker(config, context.model, model, group)
    return checked(SlotAdapters(runner.adapted.slots, maker, config.max_lora_rank, waker(context)), config)
