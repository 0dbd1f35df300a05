"""What `actorserve check` says of a model whose layers are transformers': no weight is read for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ...model.info import ModelInfo
from ...model.memory.kv import KVSpec
from ...model.quantization import NONE, QuantMethod
from ...options.config import Config
from .checkpoint.stored import Source
from .hollow import hollow
from .load import describe_adapted, types_of
from .model import describe, reads_windows_alone
from .pictures import drop_towers
from .probe import Traits


class AdaptedFacts(NamedTuple):
    """What is known of a model before its weights are read."""

    known: dict[str, Any]
    kv: KVSpec
    dtype: torch.dtype  # in which it computes
    quantised: bool
    may_free: bool  # its windows let go of what they do not see


def facts(config: Config, info: ModelInfo) -> AdaptedFacts:
    """About a model that layers of transformers compute."""
    found, traits, shell = describe_adapted(config, info)
    whole = shell if found.part is None else hollow(found.make)
    if info.vision is not None:
        for model in (whole, shell):
            drop_towers(model)
    kept = types_of(config, info, found)
    dtype, method = kept.dtype, kept.method
    name = str(dtype).removeprefix("torch.")
    weights = weight_bytes(shell, dtype, NONE if kept.mixed else method)
    if config.load_format != "dummy":
        source = Source(Path(info.folder), kept.stored)  # which names what is wrong with its tensors
        if kept.mixed and method.bytes_per_weight is not None:
            weights -= int(source.quantised * (dtype.itemsize - method.bytes_per_weight))
    known = {
        "parameters": sum(parameter.numel() for parameter in whole.parameters()),
        "layers": layer_count(found.config, traits),
        "way": f"layers of transformers, {describe(traits, found.verdict.tier)}",
        "dtype": (name if method is NONE else f"{method.name} and {name}")
        + (f" (of {kept.stored.name})" if kept.stored is not None else ""),
        "weights_bytes": weights,
    }
    may_free = reads_windows_alone(traits, found.verdict.tier)
    return AdaptedFacts(known, traits.kv, dtype, method.computes_in is not None, may_free)


def layer_count(config: Any, traits: Traits) -> int:
    """All of them; where config.json gives their number another name, those that keep keys."""
    said = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    keeping = sum(layer is not None and layer.source is None for layer in traits.kv.layers) - len(traits.beside)
    return said if isinstance(said, int) else keeping


def weight_bytes(model: nn.Module, dtype: torch.dtype, method: QuantMethod) -> int:
    """The size of all weights in memory. What is multiplied is kept as the format has it; a table that makes logits as
    well is there twice."""
    each = dtype.itemsize if method.bytes_per_weight is None else method.bytes_per_weight
    multiplied = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    total = 0.0
    for parameter in model.parameters():
        alone = id(parameter) not in multiplied
        expert = alone and parameter.dim() == 3
        total += parameter.numel() * (each if expert or not alone else dtype.itemsize)
        total += parameter.numel() * dtype.itemsize * (not alone and id(parameter) in tables)
    return int(total)
