"""What a worker on a CPU needs for adapters, made for the model that it has loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from actorserve.shm.rings.mailbox import wake

from ...model.architecture import Architecture
from ...model.config_json import read_architecture
from ...model.info import ModelInfo, read_json
from ...model.lora.adapter import AdapterError
from ...options.config import Config, ConfigError
from ...options.lora import read_modules
from ...runtime.process import Context
from ..cpu.decoder import Decoder
from ..cpu.executor import CpuModel
from ..models.sharding import Alone, Get, cutter
from ..models.weights import open_weights
from ..tensor_parallel import TensorParallelGroup
from .build import Layout, Sites
from .native import NativeLayout
from .resident import AdapterReader, CpuAdapterMaker, ResidentAdapters
from .sites import LoraSites

Reader = TypeVar("Reader", bound=AdapterReader[Any, Any])


def start_adapters(context: Context, model: Decoder, group: TensorParallelGroup | None) -> ResidentAdapters | None:
    """Those of --enable-lora; ConfigError if one of --lora-modules cannot be had."""
    if not context.config.enable_lora:
        return None
    maker = make_maker(context.config, context.model, model, group)
    return checked(ResidentAdapters(maker, context.config.max_lora_rank, waker(context)), context.config)


def waker(context: Context) -> Callable[[], None]:
    """What wakes this actor."""
    return partial(wake, context.eventfds[context.name])


def checked(adapters: Reader, config: Config) -> Reader:
    """ConfigError if one of --lora-modules cannot be had."""
    for module in read_modules(config):
        try:
            adapters.check(module.path)
        except AdapterError as error:
            raise ConfigError(f"--lora-modules: {module.name}: {error}") from None
    return adapters


def make_maker(
    config: Config, info: ModelInfo, model: Decoder, group: TensorParallelGroup | None = None
) -> CpuAdapterMaker:
    """What makes products of adapters for a model that was loaded with --enable-lora."""
    sites, layout = _layout(config, info, model, group)
    sites.batch_invariant = model.batch_invariant
    return CpuAdapterMaker(sites, layout)


def _layout(
    config: Config, info: ModelInfo, model: Decoder, group: TensorParallelGroup | None
) -> tuple[LoraSites, Layout]:
    if not isinstance(model, CpuModel):
        from ..adapter.model import AdaptedModel  # which brings transformers
        from .adapted import layout_of

        assert isinstance(model, AdaptedModel) and model.lora is not None
        return model.lora, layout_of(model, model.lora)
    assert model.lora is not None
    return model.lora, native_layout(NativeLayout, config, info, model.lora, model.shape, group)


def native_layout(
    kind: type[NativeLayout],
    config: Config,
    info: ModelInfo,
    sites: Sites[object],
    own: Architecture,
    group: TensorParallelGroup | None,
) -> NativeLayout:
    """Of a model of this server's own layers; `own` is the shape of this member's part."""
    whole = read_architecture(read_json(Path(info.folder) / "config.json"), quantization=config.quantization)

    def weights() -> Get:
        return open_weights(config, info, whole, None)[1]

    place = group or Alone()
    return kind(sites, whole, own, cutter(whole, place, config.enable_expert_parallel), place, weights)
