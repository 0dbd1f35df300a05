"""A model whose layers are transformers': from the folder to a decoder that was verified. ConfigError if there is none.

Its class is that which transformers has for config.json, or with --trust-remote-code the one beside the weights. First
a tiny model of it is tried (verify.py), so that what cannot be served is said before any weight is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ...model.checks.combinations import check_adapted
from ...model.config_json import weights_method
from ...model.formats.stored import StoredWeights
from ...model.info import ModelInfo, read_json
from ...model.memory.machine import float_on_cpu
from ...model.quantization import NONE, QuantMethod, is_auto
from ...model.values import Values
from ...model.vision.refused import TEXTS_BY_TRANSFORMERS, instead
from ...options.config import Config, ConfigError
from ..lora.attached import attach
from ..memory import large_blocks_apart
from ..tensor_parallel import TensorParallelGroup
from .checkpoint.arriving import without_weights
from .checkpoint.reading import read_into
from .checkpoint.stored import Source
from .divided.cuts import Division
from .divided.shapes import part_of
from .divided.trial import verify_divided
from .fused.trial import fuse
from .hollow import hollow
from .hooks import Unfit, register
from .improve import improve
from .model import AdaptedModel, describe
from .probe import Traits, probe
from .rotations import settle
from .twin import shrink
from .verify import Verdict, randomise, verify

log = logging.getLogger("worker")
VERSION = f"transformers {transformers.__version__}"
UNLIKE = "it does not do what a small model of it does"
TWIN_WORDS = 128


class Adapted(NamedTuple):
    """What is known before weights are read."""

    config: Any  # transformers'
    verdict: Verdict
    make: Callable[..., Any]  # with weights as they are initialised
    part: tuple[Traits, nn.Module] | None  # of a member of a group


class Kept(NamedTuple):
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
        model = _random(found, config, kept, division) if dummy else _read(info, found, kept, division)
        if settle(model, info.max_model_len):
            log.info("all texts are rotated as those of --max-model-len %d tokens are", info.max_model_len)
        traits = _look(model, found.verdict.traits, info)
        if found.verdict.improved and traits.paged and division is None:
            fuse(model, kept.dtype)
        lora = attach(model) if config.enable_lora else None
    if division is not None:
        division.group = group
    return AdaptedModel(model, traits, found.verdict.tier, kept.dtype, kept.method is not NONE, lora)


def describe_adapted(config: Config, info: ModelInfo) -> tuple[Adapted, Traits, nn.Module]:
    """The same without weights: how it is computed, what it keeps, and the model as a shell that has shapes only. Of
    one that is divided, the part of a member."""
    found = try_model(config, info)
    if found.part is not None:
        return found, *found.part
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
    make = _maker(whole, info, trust)
    with code_of_others(lambda reason: _refused(info, f"no small model of it can be made to try it on ({reason})")):
        small = shrink(whole, TWIN_WORDS)
        small.name_or_path = info.folder
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            twin = make(small).float().eval()
    randomise(twin)
    with code_of_others(lambda reason: _refused(info, f"a small model of it fails ({reason})")):
        try:
            verdict = verify(twin, _improve_whole)
        except Unfit as error:
            raise _refused(info, f"it {error}") from None
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
            shell = part_of(make, config.tensor_parallel_size, lambda model: _look(model, verdict.traits, info))
            verify_divided(twin, verdict, partial(improve, dtype=torch.float32))
        except Unfit as error:
            raise refused(f"it {error}") from None
    return shell


def _improve_whole(model: Any) -> None:
    """As it will be served."""
    improve(model, torch.float32)
    fuse(model, torch.float32)


def types_of(config: Config, info: ModelInfo, found: Adapted) -> Kept:
    """What is computed in, and how weights are kept."""
    path = Path(info.folder) / "config.json"
    method, stored = weights_method(Values(path, read_json(path)), config.quantization)
    improved, auto = found.verdict.improved, is_auto(config.quantization)
    if not improved and auto:
        method = NONE
    elif not improved and method is not NONE:
        raise ConfigError(f"--quantization {method.name}: {info.architecture} is right with its own products only")
    if method.computes_in is None:
        whole = found.config
        own = getattr(whole.get_text_config(decoder=True), "dtype", None) or getattr(whole, "dtype", None)
        dtype = getattr(torch, float_on_cpu(config, str(own).removeprefix("torch.")))
        return Kept(dtype, method, stored, mixed=False)
    if (reason := method.refusal(config.dtype, on_gpu=False)) is not None:
        if stored is not None and auto:
            raise ConfigError(
                f"model: its weights ({stored.name}) become {method.name}, with {method.computes_in}; "
                f"for --dtype {config.dtype} set --quantization none"
            )
        raise ConfigError(f"--quantization {method.name}: {reason}")
    return Kept(getattr(torch, method.computes_in), method, stored, mixed=stored is not None and auto)


def _quiet() -> None:
    """No progress bars, and of warnings only what we say ourselves."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def _read_config(info: ModelInfo, trust: bool) -> Any:
    own = "auto_map" in read_json(Path(info.folder) / "config.json") and not trust
    instead = "--trust-remote-code runs the code beside its weights" if own else "a newer transformers may"
    with code_of_others(
        lambda reason: _refused(info, f"{VERSION} does not read its config.json ({reason}); {instead}")
    ):
        whole = AutoConfig.from_pretrained(info.folder, trust_remote_code=trust, local_files_only=True)
    if info.architecture in TEXTS_BY_TRANSFORMERS:
        whole = whole.get_text_config(decoder=True)
    for part in (whole, whole.get_text_config(decoder=True)):
        if hasattr(part, "quantization_config"):  # weights are decoded here
            del part.quantization_config
    return whole


def _maker(whole: Any, info: ModelInfo, trust: bool) -> Callable[..., Any]:
    """Of a model without weights. Some classes are not in transformers' own table of those that go on with texts."""
    if (own := _apart(whole, info)) is not None:
        return partial(own._from_config)
    return partial(AutoModelForCausalLM.from_config, trust_remote_code=trust)


def _apart(whole: Any, info: ModelInfo) -> Any:
    """Such a class, if it is the checkpoint's own."""
    if type(whole) in AutoModelForCausalLM._model_mapping or not info.architecture.endswith("ForCausalLM"):
        return None
    own = getattr(transformers, info.architecture, None)
    return own if isinstance(own, type) and getattr(own, "config_class", None) is type(whole) else None


def _check_class(whole: Any, info: ModelInfo, trust: bool) -> None:
    """Its class is one that goes on with texts, and the one that the checkpoint was made with."""
    if trust and "AutoModelForCausalLM" in (getattr(whole, "auto_map", None) or {}):
        return
    if _apart(whole, info) is not None:
        return
    known = AutoModelForCausalLM._model_mapping
    if type(whole) not in known:
        raise _refused(info, f"{VERSION} has no model of this kind that goes on with texts{_parts(whole, known)}")
    classes: Any = known[type(whole)]
    names = [one.__name__ for one in (classes if isinstance(classes, tuple | list) else [classes])]
    if not {info.architecture, TEXTS_BY_TRANSFORMERS.get(info.architecture)} & {*names}:
        said = f"of its kind transformers goes on with texts by {' or '.join(names)} alone"
        raise _refused(info, f"{said}; a checkpoint of that class can be served")


def _parts(whole: Any, known: Any) -> str:
    """What to say beside it of a model that sees or hears, or has a text part of a kind that can be served."""
    text = whole.get_text_config(decoder=True)
    own = known[type(text)] if text is not whole and type(text) in known else None
    name = own[0].__name__ if isinstance(own, tuple | list) else getattr(own, "__name__", None)
    alone = "" if name is None else f"; a checkpoint of its text part alone ({name}) can be served"
    sees = [part for part in ("vision_config", "audio_config") if hasattr(whole, part)]
    return alone + (f"; what it sees or hears with ({', '.join(sees)}) is not known here: {instead()}" if sees else "")


def _random(found: Adapted, config: Config, kept: Kept, division: Division | None) -> PreTrainedModel:
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


def _read(info: ModelInfo, found: Adapted, kept: Kept, division: Division | None) -> PreTrainedModel:
    """With the weights of the folder: all that the model has, and no others."""
    folder = Path(info.folder)
    source = Source(folder, kept.stored)

    def refused(reason: str) -> ConfigError:
        return ConfigError(f"model: the weights in {folder} cannot be loaded: {reason}")

    with code_of_others(refused):
        with without_weights():
            model: PreTrainedModel = found.make(dtype=kept.dtype)
        better = found.verdict.improved
        read_into(model, folder, source, kept.dtype, partial(_chosen, source, kept), better, division)
    return model


def _chosen(source: Source, kept: Kept) -> QuantMethod:
    """How what was read last is kept."""
    decoded = source.take()
    return kept.method if decoded or not kept.mixed else NONE


def _look(model: Any, tried: Traits, info: ModelInfo) -> Traits:
    """What a model does is what the small one did."""
    with code_of_others(lambda reason: _refused(info, f"two tokens cannot be computed ({reason})")):
        try:
            traits = probe(model, info.max_model_len)
        except Unfit as error:
            raise _refused(info, f"it {error}") from None
    for word in ("paged", "positions", "stateful"):
        if getattr(traits, word) != getattr(tried, word):
            raise _refused(info, f"{UNLIKE} ({word}: {traits.reason or tried.reason})")
    if bool(traits.gathered) != bool(tried.gathered):
        raise _refused(info, f"{UNLIKE} (gathered)")
    return traits


def _refused(info: ModelInfo, reason: str) -> ConfigError:
    return ConfigError(f"model: {info.architecture} cannot be served: {reason} ({Path(info.folder) / 'config.json'})")


@contextmanager
def code_of_others(refused: Callable[[str], ConfigError]) -> Iterator[None]:
    """What transformers, or the code beside the weights, raises meanwhile becomes a refusal with its reason.

    Any exception may come: their checks of configs, weights and shapes raise what they like, and so does the code of a
    model's folder, which may even end the process. What is no fault of a model (no memory) is not one here, either.
    """
    try:
        yield
    except (ConfigError, MemoryError):
        raise
    except SystemExit as error:
        raise refused(f"its code ends the process, with {error.code!r}") from None
    except Exception as error:
        log.debug("transformers or a model's own code failed", exc_info=True)
        raise refused(_first(error)) from None


def _first(error: object) -> str:
    """Its first line; of one that ends with a colon, the next as well, which says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 1 + lines[0].endswith(":")])
