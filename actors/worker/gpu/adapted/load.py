"""A model by layers of transformers on a GPU: from the folder to a decoder that was tried there. ConfigError if there
is none.

What is tried, and how weights are read, are the CPU's (worker/adapter/load.py); each tensor goes to the device as it
comes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ....model.config_json import weights_method
from ....model.info import ModelInfo, read_json
from ....model.memory.kv_memory import check_drafts_of_states
from ....model.quantization import NONE
from ....model.values import Values
from ....options.config import Config
from ...adapter.checkpoint.model_class import refused_model
from ...adapter.hooks import Unfit
from ...adapter.load import Adapted, WeightTypes, describe_adapted, read_model, stored_dtype
from ...adapter.pictures import drop_towers
from ...adapter.probe import Traits
from ...adapter.rotations import settle
from ...adapter.verify import Verdict
from ...models.weights import dtype_on_gpu
from ..load import check_kept
from ..memory import check_block_size, check_weights
from .graph_trial import reason_against_graphs
from .model import AdaptedGpuModel
from .shape import AdaptedShape
from .trial import seen_shape, verify_on_device

log = logging.getLogger("worker")


class Described(NamedTuple):
    """What is known before weights are read."""

    found: Adapted
    traits: Traits
    shape: AdaptedShape
    types: WeightTypes
    parameters: int


def load_on_gpu(config: Config, info: ModelInfo, device: torch.device) -> AdaptedGpuModel:
    """The model of `info.folder`, ready to run."""
    known = describe_on_gpu(config, info, device)
    check_weights(known.parameters * known.types.dtype.itemsize, device)
    model: Any
    with torch.inference_mode(), torch.random.fork_rng(devices=[]):
        if config.load_format == "dummy":
            model = _random(known.found, config, known.types.dtype, device)
        else:
            model = read_model(info, known.found, known.types, device=device)
        if info.vision is not None:
            drop_towers(model)
        model.to(device)  # what no checkpoint has: frequencies of rotations, say
        if settle(model, info.max_model_len):
            log.info("all texts are rotated as those of --max-model-len %d tokens are", info.max_model_len)
    verdict = known.found.verdict
    log.info("%s", graph_words(verdict))
    about = known.traits, known.shape, known.types.dtype, device, verdict.tier
    return AdaptedGpuModel(model, *about, vision=info.vision, eager=bool(verdict.without_graphs))


def graph_words(verdict: Verdict) -> str:
    """What of its steps is in CUDA graphs."""
    if verdict.without_graphs:
        return f"without CUDA graphs: {verdict.without_graphs}"
    return "decoding by CUDA graphs, prompts without" if verdict.traits.stateful else "by CUDA graphs"


def describe_on_gpu(config: Config, info: ModelInfo, device: torch.device) -> Described:
    """The same without weights; a small model is tried on the device."""
    check_block_size(config)

    def tried(twin: Any) -> Verdict:
        verdict = verify_on_device(twin, device)
        if config.enforce_eager:
            return verdict._replace(without_graphs="--enforce-eager")
        dtype = _types(config, info, twin.config).dtype
        return verdict._replace(without_graphs=reason_against_graphs(twin, verdict.tier, dtype, device))

    dtype = lambda found: _types(config, info, found.config).dtype  # noqa: E731
    found, traits, shell = describe_adapted(config, info, tried, dtype)
    try:
        shape = seen_shape(shell, traits)
    except Unfit as error:
        raise refused_model(info, f"it {error}") from None
    check_drafts_of_states(shape.kv, config)
    check_kept(config, shape, info.vision)
    if info.vision is not None:
        drop_towers(shell)
    return Described(found, traits, shape, _types(config, info, found.config), _count(shell))


def _types(config: Config, info: ModelInfo, whole: Any) -> WeightTypes:
    """All weights become floats; `whole`: transformers' config."""
    stored = stored_dtype(whole)
    dtype = dtype_on_gpu(config, "float32" if stored == "None" else stored)
    path = Path(info.folder) / "config.json"
    _, kept = weights_method(Values(path, read_json(path)), config.quantization)
    return WeightTypes(dtype, NONE, kept, mixed=False)


def _count(shell: nn.Module) -> int:
    """Numbers of all weights, those that are shared once."""
    shared: Any = getattr(shell, "all_tied_weights_keys", None) or {}
    return sum(parameter.numel() for name, parameter in shell.named_parameters() if name not in shared)


def _random(found: Adapted, config: Config, dtype: torch.dtype, device: torch.device) -> Any:
    """As it is initialised, in the way that it would have."""
    torch.manual_seed(config.seed)
    with device:
        return found.make(dtype=dtype).eval()
