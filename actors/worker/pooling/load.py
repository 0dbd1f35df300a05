"""A pooling model of transformers, from its folder to an Encoder whose way of computing was tried. ConfigError if there
is none.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PreTrainedModel

from ...model.gguf.folder import gguf_tensors
from ...model.info import ModelInfo, read_json
from ...model.memory.dtypes import float_on_cpu, method_at_load, pooled_on_gpu
from ...model.pooling.published import GTE, class_name, said_as_gte
from ...model.pooling.spec import PoolingSpec
from ...model.quantization import NONE, QuantMethod
from ...model.values import Values
from ...model.weights.places import some
from ...options.config import Config, ConfigError
from ..adapter.checkpoint.arriving import without_weights
from ..adapter.checkpoint.reading import read_into
from ..adapter.checkpoint.stored import Source
from ..adapter.hooks import Unfit, register
from ..adapter.improve import improve
from ..memory import large_blocks_apart
from ..start.beside import cast, exchange, moved, tensors_of
from .encoder import Encoder, Way, tried

log = logging.getLogger("worker")
ENCODER = "EncoderModel"
SEQUENCES = ("ForConditionalGeneration", "Model")  # what has such an encoder
NEAR = 0.98  # cosines of vectors of random texts, from which on a type has the range that the model needs
CPU = torch.device("cpu")
SUMMARY = "pooler."  # weights of a summary that embeddings do not look at


@large_blocks_apart()
def load_encoder(config: Config, info: ModelInfo, spec: PoolingSpec, device: torch.device = CPU) -> Encoder:
    """The model of `info.folder`, ready to run on this device."""
    model, dtype, method = _load(config, info, spec, device)
    with torch.inference_mode():
        encoder = Encoder(model, bool(spec.head))
        try:
            reasons = encoder.choose(info.max_model_len)
        except Exception as error:  # a model that takes something else than texts fails as it likes
            raise _refused(info, f"it makes no hidden states of a text ({_first(error)})") from None
        if spec.head:
            try:
                encoder.check_scores(info.max_model_len)
            except Unfit as error:
                raise _refused(info, f"it {error}") from None
        if device.type == "cpu":
            improve(encoder.base, dtype, method)
        else:
            others = (torch.bfloat16, torch.float32) if config.dtype == "auto" else ()
            _move(encoder, info, device, dtype, *(other for other in others if other is not dtype))
    why = "".join(f"; not {way.name.lower()}: {reason}" for way, reason in reasons.items() if way is not encoder.way)
    log.info("%s by transformers %s, %s%s", info.architecture, transformers.__version__, encoder.way.value, why)
    return encoder


@large_blocks_apart()
def load_whole(
    config: Config, info: ModelInfo, spec: PoolingSpec, device: torch.device
) -> tuple[PreTrainedModel, torch.dtype]:
    """The same of one that is asked for its own vectors."""
    model, dtype, method = _load(config, info, spec, device)
    with torch.inference_mode():
        if device.type == "cpu":
            improve(model, dtype, method)
        else:
            moved(model, device, dtype)
    model.requires_grad_(False)
    log.info("%s by transformers %s", info.architecture, transformers.__version__)
    return model, dtype


def _move(encoder: Encoder, info: ModelInfo, device: torch.device, *dtypes: torch.dtype) -> None:
    """To the device, in the first type in which a text has about the hidden states that it has on the host."""
    texts, own = tried(encoder.model, info.max_model_len), tensors_of(encoder.model)
    exact = encoder.hidden(texts)
    for dtype in dtypes:
        moved(encoder.model, device, dtype)
        near = min(_likeness(one, other) for one, other in zip(exact, encoder.hidden(texts), strict=True))
        if near >= NEAR:
            return
        name = str(dtype).removeprefix("torch.")
        said = f"in {name} its hidden states are not those of float32 (cosine {near:.4f})"
        log.info("%s: %s", info.architecture, said)
        exchange(encoder.model, own.__getitem__)
    others = " and ".join(f"--dtype {other}" for other in ("bfloat16", "float32") if other != name)
    raise _refused(info, f"{said}; {others} have more range")


def _likeness(exact: Tensor, found: Tensor) -> float:
    """Of a text's vectors."""
    return float(functional.cosine_similarity(exact.mean(0), found.float().mean(0).cpu(), 0))


def _load(
    config: Config, info: ModelInfo, spec: PoolingSpec, device: torch.device
) -> tuple[PreTrainedModel, torch.dtype, QuantMethod]:
    """On the host; what goes on to a GPU is in float32, so that ways are tried without roundings."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    register()
    whole = _read_config(config, info)
    dtype, method = _types(config, whole, device)
    first = dtype if device.type == "cpu" else torch.float32
    model = _make(config, info, spec, whole, first)
    cast(model, first)
    model.eval()
    return model, dtype, method


def _read_config(config: Config, info: ModelInfo) -> Any:
    file = Path(info.folder) / "config.json"
    if (said := said_as_gte(Values(file, read_json(file)))) is not None:
        return AutoConfig.for_model(GTE, **said)
    trust = config.trust_remote_code
    try:
        return AutoConfig.from_pretrained(info.folder, trust_remote_code=trust, local_files_only=True)
    except Exception as error:
        hint = "" if trust else "; --trust-remote-code runs the code beside its weights"
        raise _refused(
            info, f"transformers {transformers.__version__} does not read its config.json ({error}){hint}"
        ) from None


def _kind(info: ModelInfo, spec: PoolingSpec, whole: Any) -> Any:
    """The class that computes it: of a model with a decoder behind the encoder the encoder alone, if there is one."""
    name = class_name(info.architecture)
    if spec.head:
        return getattr(transformers, name, None)
    if name.endswith(ENCODER):
        return getattr(transformers, name, AutoModel)
    if getattr(whole, "is_encoder_decoder", False):
        stem = next((name.removesuffix(end) for end in SEQUENCES if name.endswith(end)), name)
        return getattr(transformers, f"{stem}{ENCODER}", AutoModel)
    return AutoModel


def _types(config: Config, whole: Any, device: torch.device) -> tuple[torch.dtype, QuantMethod]:
    """What is computed in, and how weights are kept."""
    stored = str(getattr(whole, "dtype", None)).removeprefix("torch.")
    if device.type != "cpu":
        return getattr(torch, pooled_on_gpu(config, stored, str(whole.model_type))), NONE
    method = method_at_load(config)
    return getattr(torch, method.computes_in or float_on_cpu(config, stored)), method


def _make(config: Config, info: ModelInfo, spec: PoolingSpec, whole: Any, dtype: torch.dtype) -> PreTrainedModel:
    """With the weights of the folder, or random ones."""
    kind = _kind(info, spec, whole)
    if kind is None:
        raise _refused(info, f"transformers {transformers.__version__} has no class of this name")
    trust = {"trust_remote_code": config.trust_remote_code}
    try:
        if config.load_format == "dummy":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(config.seed)
                made: PreTrainedModel = kind.from_config(whole, **trust) if kind is AutoModel else kind(whole)
                return made
        if gguf_tensors(Path(info.folder)) is not None:
            return _of_gguf(kind, whole, Path(info.folder), bool(spec.head))
        loaded, about = kind.from_pretrained(
            info.folder,
            config=whole,
            dtype=dtype,
            local_files_only=True,
            output_loading_info=True,
            **(trust if kind is AutoModel else {}),
        )
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"model: the weights in {info.folder} cannot be loaded: {_first(error)}") from None
    missing = sorted(name for name in about["missing_keys"] if spec.head or not name.startswith(SUMMARY))
    if missing:
        raise ConfigError(f"model: the weights in {info.folder} do not fit its config.json: it lacks {some(missing)}")
    whole_model: PreTrainedModel = loaded
    return whole_model


def _of_gguf(kind: Any, whole: Any, folder: Path, ranks: bool) -> PreTrainedModel:
    """Decoded; such files have no summary but where a head is on it, and embeddings do not look at one."""
    with without_weights():
        model: Any = kind.from_config(whole) if kind is AutoModel else kind(whole)
    if not ranks:
        model.pooler = None
    read_into(model, folder, Source(folder, None), torch.float32, lambda: NONE, better=False)
    made: PreTrainedModel = model
    return made


def _refused(info: ModelInfo, reason: str) -> ConfigError:
    return ConfigError(f"model: {info.architecture} cannot be served: {reason}")


def _first(error: object) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


__all__ = ["Way", "load_encoder", "load_whole"]
