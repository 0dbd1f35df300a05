"""A model whose layers are transformers': from the folder to a decoder that was verified. ConfigError if there is none.

Which class it is: checkpoint/model_class.py. First a tiny model of it is tried (verify.py), so that what cannot be
served is said before any weight is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from msgspec.structs import replace
from torch import nn
from transformers import PreTrainedModel

from ...model.checks.combinations import check_adapted
from ...model.config_json import TRANSFORMERS, weights_method
from ...model.formats.stored import StoredWeights
from ...model.info import ModelInfo, read_json
from ...model.memory.dtypes import float_on_cpu
from ...model.quantization import NONE, QuantMethod, is_auto
from ...model.values import Values
from ...model.vision.refused import TEXTS_BY_TRANSFORMERS
from ...options.config import Config, ConfigError
from ..lora.attached import attach
from ..memory import large_blocks_apart
from ..tensor_parallel import TensorParallelGroup
from .checkpoint.arriving import without_weights
from .checkpoint.model_class import check_class, code_of_others, keep_quiet, maker, read_config, refused_model
from .checkpoint.reading import read_into
from .checkpoint.stored import Source
from .divided.cuts import Division
from .divided.shapes import part_of
from .divided.trial import verify_divided
from .fused.trial import fuse
from .hollow import hollow
from .hooks import Unfit, register
from .improve import improve
from .model import AdaptedModel, Tier, describe
from .pictures import GivenPictures, drop_towers
from .probe import Traits, probe
from .rotations import settle
from .twin import shrink
from .verify import Verdict, in_one_thread, randomise, verify

log = logging.getLogger("worker")
UNLIKE = "it does not do what a small model of it does"
TWIN_WORDS = 128


Verifier = Callable[[Any], Verdict]  # of a small model


class Adapted(NamedTuple):
    """What is known before weights are read."""

    config: Any  # transformers'
    verdict: Verdict
    make: Callable[..., Any]  # with weights as they are initialised
    part: tuple[Traits, nn.Module] | None  # of a member of a group


class WeightTypes(NamedTuple):
    """How weights are."""

    dtype: torch.dtype  # that is computed in
    method: QuantMethod  # in memory
    stored: StoredWeights | None  # in the checkpoint, where they are no floats
    mixed: bool  # only what the checkpoint has quantised is of the method


def load_adapted(config: Config, info: ModelInfo, group: TensorParallelGroup | None = None) -> AdaptedModel:
    """The model of `info.folder`, or this member's part of it, ready to run."""
    found = try_model(config, info)
    division = None if group is None else Division(group.rank, group.size)
    kept = types_of(config, info, found)
    with torch.inference_mode(), torch.random.fork_rng(devices=[]), large_blocks_apart():
        dummy = config.load_format == "dummy"
        model = _random(found, config, kept, division) if dummy else read_model(info, found, kept, division)
        if info.vision is not None:
            drop_towers(model)
        if settle(model, info.max_model_len):
            log.info("all texts are rotated as those of --max-model-len %d tokens are", info.max_model_len)
        traits = _look(model, found.verdict, info)
        if found.verdict.improved and traits.paged and division is None:
            fuse(model, kept.dtype)
        lora = attach(model) if config.enable_lora else None
    if division is not None:
        division.group = group
    adapted = AdaptedModel(model, traits, found.verdict.tier, kept.dtype, kept.method.computes_in is not None, lora)
    if info.vision is not None:
        if info.vision.whole_pictures and (adapted.tier is not Tier.FLAT or traits.gathered):
            way = describe(traits, adapted.tier)
            instead = f"it sees whole pictures, and is computed {way}; --model-impl {TRANSFORMERS} serves its texts"
            raise refused_model(info, instead)
        adapted.pictures = GivenPictures(model, info.vision)
    return adapted


@in_one_thread()
def describe_adapted(
    config: Config,
    info: ModelInfo,
    trial: Verifier | None = None,
    dtype: Callable[[Adapted], torch.dtype] | None = None,
) -> tuple[Adapted, Traits, nn.Module]:
    """The same without weights: how it is computed, what it keeps, and the model as a shell that has shapes only. Of
    one that is divided, the part of a member. `trial`: as for `try_model`; `dtype`: that it will compute in, which
    states follow, where what is seen of the shell is all that is."""
    found = try_model(config, info, trial)
    if found.part is not None:
        return found, *found.part
    shell = hollow(found.make if dtype is None else partial(found.make, dtype=dtype(found)))
    traits = _look(shell, found.verdict, info)
    return found, traits, shell


@in_one_thread()
def try_model(config: Config, info: ModelInfo, trial: Verifier | None = None) -> Adapted:
    """How a model can be computed; ConfigError says why it cannot. `trial`: of a small one on another device."""
    check_adapted(config, info, on_gpu=trial is not None)
    keep_quiet()
    register()
    trust = config.trust_remote_code
    whole = read_config(info, trust)
    check_class(whole, info, trust)
    make = maker(whole, info, trust)
    with code_of_others(
        lambda reason: refused_model(info, f"no small model of it can be made to try it on ({reason})")
    ):
        small = shrink(whole, TWIN_WORDS)
        small.name_or_path = info.folder
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            twin = make(small).float().eval()
    randomise(twin)
    with code_of_others(lambda reason: refused_model(info, f"a small model of it fails ({reason})")):
        try:
            verdict = verify(twin, _improve_whole) if trial is None else trial(twin)
        except Unfit as error:
            raise refused_model(info, f"it {error}") from None
    made = partial(make, whole)
    part = _divide(config, info, verdict, twin, made) if config.tensor_parallel_size > 1 else None
    log.info(
        "%s by the layers of transformers %s, tried in %.1f s: %s",
        *(info.architecture, transformers.__version__, verdict.seconds, describe(verdict.traits, verdict.tier)),
    )
    return Adapted(whole, verdict, made, part)


def _divide(
    config: Config, info: ModelInfo, verdict: Verdict, twin: Any, make: Callable[..., Any]
) -> tuple[Traits, nn.Module]:
    """What a member of a group has of a model, whose plan is tried on the small one."""

    def refused(reason: str) -> ConfigError:
        name = f"--tensor-parallel-size {config.tensor_parallel_size}"
        return ConfigError(f"{name}: {info.architecture} cannot be divided: {reason}; leave the option out")

    with code_of_others(refused):
        try:
            shell = part_of(make, config.tensor_parallel_size, lambda model: _look(model, verdict, info))
            verify_divided(twin, verdict, partial(improve, dtype=torch.float32))
        except Unfit as error:
            raise refused(f"it {error}") from None
    return shell


def _improve_whole(model: Any) -> None:
    """As it will be served."""
    improve(model, torch.float32)
    fuse(model, torch.float32)


def types_of(config: Config, info: ModelInfo, found: Adapted) -> WeightTypes:
    """What is computed in, and how weights are kept."""
    path = Path(info.folder) / "config.json"
    values = read_json(path)
    text = values.get("text_config")  # where some of whole models say it (Kimi K2.5's)
    inside = {"quantization_config": text.get("quantization_config")} if isinstance(text, dict) else {}
    method, stored = weights_method(Values(path, inside | values), config.quantization)
    improved = found.verdict.improved
    auto = is_auto(config.quantization) and method.name != config.quantization  # fp8 of floats was asked for
    if not improved and auto:
        method = NONE
    elif not improved and method is not NONE:
        raise ConfigError(f"--quantization {method.name}: {info.architecture} is right with its own products only")
    if method.computes_in is None:
        dtype = getattr(torch, float_on_cpu(config, stored_dtype(found.config)))
        return WeightTypes(dtype, method, stored, mixed=False)
    if (reason := method.refusal(config.dtype, on_gpu=False)) is not None:
        if stored is not None and auto:
            raise ConfigError(
                f"model: its weights ({stored.name}) become {method.name}, with {method.computes_in}; "
                f"for --dtype {config.dtype} set --quantization none"
            )
        raise ConfigError(f"--quantization {method.name}: {reason}")
    return WeightTypes(getattr(torch, method.computes_in), method, stored, mixed=stored is not None and auto)


def stored_dtype(whole: Any) -> str:
    """The type that config.json says floats are of; or `None`."""
    own = getattr(whole.get_text_config(decoder=True), "dtype", None) or getattr(whole, "dtype", None)
    return str(own).removeprefix("torch.")


def _random(found: Adapted, config: Config, kept: WeightTypes, division: Division | None) -> PreTrainedModel:
    """As it is initialised, in the way that it would have."""
    torch.manual_seed(config.seed)
    made: Any = found.make()
    model: PreTrainedModel = made.to(kept.dtype).eval()
    cuts = {} if division is None else division.cuts(model)
    if division is not None:
        division.take_all(model, cuts)
    if found.verdict.improved:
        improve(model, kept.dtype, kept.method)
    if division is not None:
        division.join(model, cuts)
    return model


def read_model(
    info: ModelInfo,
    found: Adapted,
    kept: WeightTypes,
    division: Division | None = None,
    device: torch.device | None = None,
) -> PreTrainedModel:
    """With the weights of the folder: all that the model has, and no others."""
    folder = Path(info.folder)
    source = Source(folder, kept.stored, info.architecture in TEXTS_BY_TRANSFORMERS)

    def refused(reason: str) -> ConfigError:
        return ConfigError(f"model: the weights in {folder} cannot be loaded: {reason}")

    with code_of_others(refused):
        with without_weights():
            model: PreTrainedModel = found.make(dtype=kept.dtype)
        better = found.verdict.improved
        read_into(model, folder, source, kept.dtype, partial(_chosen, source, kept), better, division, device)
    return model


def _chosen(source: Source, kept: WeightTypes) -> QuantMethod:
    """How what was read last is kept."""
    decoded = source.take()
    return kept.method if decoded or not kept.mixed else NONE


def _look(model: Any, verdict: Verdict, info: ModelInfo) -> Traits:
    """What a model does is what the small one did, which is computed in a way that was tried."""
    tried = verdict.traits
    with code_of_others(lambda reason: refused_model(info, f"two tokens cannot be computed ({reason})")):
        try:
            traits = probe(model, info.max_model_len)
        except Unfit as error:
            raise refused_model(info, f"it {error}") from None
    for word in ("paged", "positions", "stateful"):
        if getattr(traits, word) != getattr(tried, word):
            raise refused_model(info, f"{UNLIKE} ({word}: {traits.reason or tried.reason})")
    if bool(traits.gathered) != bool(tried.gathered):
        raise refused_model(info, f"{UNLIKE} (gathered)")
    return traits._replace(kv=replace(traits.kv, by_token=verdict.tier is Tier.TOKENS))
