"""A model whose layers are transformers': from the folder to a decoder that was verified. ConfigError if there is none.

Its class is that which transformers has for config.json, or with --trust-remote-code the one beside the weights. First
a tiny model of it is tried (verify.py), so that what cannot be served is said before any weight is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ...model.checks import check_adapted
from ...model.info import ModelInfo, read_json
from ...model.memory.machine import float_on_cpu
from ...model.quantization import METHODS, NONE, QuantMethod
from ...model.weight_files import some
from ...options.config import Config, ConfigError
from .hollow import hollow
from .hooks import Unfit, register
from .improve import improve
from .model import AdaptedModel, describe
from .probe import Traits, probe
from .twin import shrink
from .verify import Verdict, randomise, verify

log = logging.getLogger("worker")
FAILURES = (Exception,)  # transformers' checks and code beside the weights raise what they like
VERSION = f"transformers {transformers.__version__}"
UNLIKE = "it does not do what a small model of it does"
TWIN_WORDS = 128


class Adapted(NamedTuple):
    """What is known before weights are read."""

    config: Any  # transformers'
    verdict: Verdict
    make: Callable[[], PreTrainedModel]  # with weights as they are initialised


def load_adapted(config: Config, info: ModelInfo) -> AdaptedModel:
    """The model of `info.folder`, ready to run."""
    found = try_model(config, info)
    dtype, method = types_of(config, found.config)
    model = _random(found, config.seed) if config.load_format == "dummy" else _read(config, info, found, dtype)
    served: Any = model
    model = served.to(dtype).eval()
    with torch.inference_mode(), torch.random.fork_rng(devices=[]):
        traits = _look(model, found.verdict.traits, info)
        if found.verdict.improved:
            improve(model, dtype, method)
        elif method is not NONE:
            raise ConfigError(f"--quantization {method.name}: {info.architecture} is right with its own products only")
    return AdaptedModel(model, traits, found.verdict.tier, dtype)


def describe_adapted(config: Config, info: ModelInfo) -> tuple[Adapted, Traits, nn.Module]:
    """The same without weights: how it is computed, what it keeps, and the model as a shell that has shapes only."""
    found = try_model(config, info)
    shell = hollow(found.make)
    traits = _look(shell, found.verdict.traits, info)
    return found, traits, shell


def try_model(config: Config, info: ModelInfo) -> Adapted:
    """How a model can be computed; ConfigError says why it cannot."""
    check_adapted(config, info)
    _quiet()
    register()
    trust = config.trust_remote_code
    whole = _read_config(info, trust)
    _check_class(whole, info, trust)
    make = partial(AutoModelForCausalLM.from_config, trust_remote_code=trust)
    try:
        small = shrink(whole, TWIN_WORDS)
        small.name_or_path = info.folder
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            twin = make(small).float().eval()
    except FAILURES as error:
        raise _refused(info, f"no small model of it can be made to try it on ({_first(error)})") from None
    randomise(twin)
    try:
        verdict = verify(twin, partial(improve, dtype=torch.float32))
    except Unfit as error:
        raise _refused(info, f"it {error}") from None
    except FAILURES as error:
        raise _refused(info, f"a small model of it fails ({_first(error)})") from None
    log.info(
        "%s by the layers of transformers %s, tried in %.1f s: %s",
        *(info.architecture, transformers.__version__, verdict.seconds, describe(verdict.traits, verdict.tier)),
    )
    return Adapted(whole, verdict, partial(make, whole))


def types_of(config: Config, whole: Any) -> tuple[torch.dtype, QuantMethod]:
    """What is computed in, and how weights are kept."""
    method = METHODS.get(config.quantization, NONE)
    if method.stored_as is not None:
        raise ConfigError(f"--quantization {method.name}: the model's weights are not of this format")
    stored = getattr(whole.get_text_config(decoder=True), "dtype", None) or getattr(whole, "dtype", None)
    if method.computes_in is not None:
        if (reason := method.refusal(config.dtype, on_gpu=False)) is not None:
            raise ConfigError(f"--quantization {method.name}: {reason}")
        return getattr(torch, method.computes_in), method
    return getattr(torch, float_on_cpu(config, str(stored).removeprefix("torch."))), method


def _quiet() -> None:
    """No progress bars, and of warnings only what we say ourselves."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def _read_config(info: ModelInfo, trust: bool) -> Any:
    try:
        return AutoConfig.from_pretrained(info.folder, trust_remote_code=trust, local_files_only=True)
    except FAILURES as error:
        own = "auto_map" in read_json(Path(info.folder) / "config.json") and not trust
        instead = "--trust-remote-code runs the code beside its weights" if own else "a newer transformers may"
        raise _refused(info, f"{VERSION} does not read its config.json ({_first(error)}); {instead}") from None


def _check_class(whole: Any, info: ModelInfo, trust: bool) -> None:
    """Its class is one that goes on with texts, and the one that the checkpoint was made with."""
    if trust and "AutoModelForCausalLM" in (getattr(whole, "auto_map", None) or {}):
        return
    known = AutoModelForCausalLM._model_mapping
    if type(whole) not in known:
        raise _refused(info, f"{VERSION} has no model of this kind that goes on with texts")
    classes: Any = known[type(whole)]
    names = [one.__name__ for one in (classes if isinstance(classes, tuple | list) else [classes])]
    if info.architecture not in names:
        raise _refused(info, f"of its kind transformers goes on with texts by {' or '.join(names)} alone")


def _random(found: Adapted, seed: int) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return found.make()


def _read(config: Config, info: ModelInfo, found: Adapted, dtype: torch.dtype) -> PreTrainedModel:
    """With the weights of the folder: all that the model has, and no others."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            info.folder,
            config=found.config,
            dtype=dtype,
            trust_remote_code=config.trust_remote_code,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except FAILURES as error:
        raise ConfigError(f"model: the weights in {info.folder} cannot be loaded: {_first(error)}") from None
    model, about = loaded
    problems = []
    if missing := sorted(about["missing_keys"]):
        problems.append(f"lacks {some(missing)}")
    if unknown := sorted(name for name in about["unexpected_keys"] if not name.endswith("rotary_emb.inv_freq")):
        problems.append(f"has {some(unknown)}, for which the model has no use")
    if wrong := sorted(map(_mismatch, about["mismatched_keys"])):
        problems.append(f"has the shape of {some(wrong)}")
    if errors := about.get("error_msgs"):
        problems.append(f"cannot be used: {_first(errors[0] if isinstance(errors, list) else errors)}")
    if problems:
        raise ConfigError(
            f"model: the weights in {info.folder} do not fit its config.json: it {'; it '.join(problems)}"
        )
    whole: PreTrainedModel = model
    return whole


def _mismatch(about: Any) -> str:
    name, found, wanted = about
    return f"{name} {list(found)} in place of {list(wanted)}"


def _look(model: Any, tried: Traits, info: ModelInfo) -> Traits:
    """What a model does is what the small one did."""
    try:
        traits = probe(model, info.max_model_len)
    except Unfit as error:
        raise _refused(info, f"it {error}") from None
    except FAILURES as error:
        raise _refused(info, f"two tokens cannot be computed ({_first(error)})") from None
    for word in ("paged", "positions", "stateful"):
        if getattr(traits, word) != getattr(tried, word):
            raise _refused(info, f"{UNLIKE} ({word}: {traits.reason or tried.reason})")
    if bool(traits.gathered) != bool(tried.gathered):
        raise _refused(info, f"{UNLIKE} (gathered)")
    return traits


def _refused(info: ModelInfo, reason: str) -> ConfigError:
    return ConfigError(f"model: {info.architecture} cannot be served: {reason} ({Path(info.folder) / 'config.json'})")


def _first(error: object) -> str:
    """Its first line; of one that ends with a colon, the next as well, which says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 1 + lines[0].endswith(":")])
