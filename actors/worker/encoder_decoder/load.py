"""An encoder–decoder of transformers, from its folder to a model whose way of computing was tried. ConfigError if there
is none.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from ...model.architecture import Architecture
from ...model.info import ModelInfo, read_json
from ...model.memory.dtypes import float_on_cpu, method_at_load
from ...model.memory.kv import KVSpec
from ...model.quantization import NONE, QuantMethod
from ...model.weights.places import some
from ...options.config import Config, ConfigError
from ..adapter.checkpoint.model_class import VERSION, code_of_others, refused_model
from ..adapter.hollow import hollow
from ..adapter.hooks import Unfit, register
from ..adapter.improve import improve
from ..adapter.twin import shrink
from ..adapter.verify import in_one_thread, randomise
from ..memory import large_blocks_apart
from ..models.weights import dtype_on_gpu
from ..start.beside import moved
from .model import EncoderDecoder, Way
from .passes import EncoderDecoderPasses, width_of
from .verify import READ, Reader, Verdict, describe, verify, verify_there

log = logging.getLogger("worker")
CPU = torch.device("cpu")
TWIN_WORDS = 128


class Tried(NamedTuple):
    """What is known before weights are read."""

    config: Any  # transformers'
    kind: Any  # the model's class
    verdict: Verdict


def load_encoder_decoder(config: Config, info: ModelInfo, device: torch.device) -> EncoderDecoder:
    """The model of `info.folder`, ready to run on this device."""
    found = try_encoder_decoder(config, info, device)
    dtype, method = types_of(config, info, found, device)
    with torch.inference_mode(), torch.random.fork_rng(devices=[]), large_blocks_apart():
        model = _random(config, found, dtype) if config.load_format == "dummy" else _read(info, found, dtype)
        passes = EncoderDecoderPasses(model.eval())
        try:
            kv, cross = describe(passes, found.verdict.way)
        except Unfit as error:
            raise refused_model(info, f"it {error}") from None
        if found.verdict.improved:
            improve(model, dtype, method, apart=cross)
        if device.type != "cpu":
            moved(model, device)
    return EncoderDecoder(passes, kv, found.verdict.way, dtype, method.computes_in is not None)


@in_one_thread()
def describe_encoder_decoder(config: Config, info: ModelInfo, device: torch.device = CPU) -> tuple[Tried, KVSpec, Any]:
    """The same without weights: how it is computed, what it keeps, and the model as a shell that has shapes only."""
    found = try_encoder_decoder(config, info, device)
    shell: Any = hollow(partial(found.kind, found.config))
    return found, describe(EncoderDecoderPasses(shell), found.verdict.way)[0], shell


@in_one_thread()
def try_encoder_decoder(config: Config, info: ModelInfo, device: torch.device) -> Tried:
    """How a model can be computed; ConfigError says why it cannot. What replaces parts of it is the CPU's."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    register()
    if read_json(Path(info.folder) / "config.json").get("quantization_config") is not None:
        raise refused_model(info, "quantised weights are not read for an encoder and a decoder; int8 is made at load")
    kind: Any = getattr(transformers, info.architecture, None)
    if kind is None:
        raise refused_model(info, f"{VERSION} has no class of this name")
    with code_of_others(lambda reason: refused_model(info, f"{VERSION} does not read its config.json ({reason})")):
        whole = AutoConfig.from_pretrained(info.folder, local_files_only=True)
    with code_of_others(
        lambda reason: refused_model(info, f"no small model of it can be made to try it on ({reason})")
    ):
        small = shrink(whole, TWIN_WORDS)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            twin = kind(small).float().eval()
    randomise(twin)
    with code_of_others(lambda reason: refused_model(info, f"a small model of it fails ({reason})")):
        try:
            read = _reader(small, TWIN_WORDS)
            if device.type == "cpu":
                verdict = verify(twin, read, partial(improve, dtype=torch.float32))
            else:
                verdict = verify_on(device, twin, read)
        except Unfit as error:
            raise refused_model(info, f"it {error}") from None
    log.info(
        "%s by the layers of transformers %s, tried in %.1f s: %s",
        *(info.architecture, transformers.__version__, verdict.seconds, verdict.way.value),
    )
    return Tried(whole, kind, verdict)


def shape_on_gpu(info: ModelInfo, kv: KVSpec, config: Any) -> Architecture:
    """What a GPU's memory asks of it, by transformers' config. ConfigError if kernels or pools cannot have it."""
    from ..gpu.adapted.shape import shape_of

    try:
        return shape_of(kv, width_of(config), int(config.get_text_config(decoder=True).vocab_size))
    except Unfit as error:
        raise refused_model(info, f"it {error}") from None


def verify_on(device: torch.device, twin: PreTrainedModel, read: Reader) -> Verdict:
    """The way that is right on the host, tried on the device."""
    from ..eager.trial import BLOCK, trial_kv  # and with it Triton
    from ..gpu.compilations import check_launcher, writable_cache

    verdict = verify(twin, read)
    with writable_cache(log):
        if verdict.way is Way.FLAT:  # whose attention is Triton's
            check_launcher()
        verify_there(twin, read, verdict.way, device, trial_kv, BLOCK)
    return verdict


def _reader(small: Any, words: int) -> Callable[[int], Tensor]:
    """What the encoder of a tiny model may be given."""

    def read(row: int) -> Tensor:
        generator = torch.Generator().manual_seed(row)
        if getattr(small, "num_mel_bins", None):
            return torch.randn(1, small.num_mel_bins, 2 * small.max_source_positions, generator=generator)
        return torch.randint(3, words - 8, (1, READ[row]), generator=generator)

    return read


def types_of(
    config: Config, info: ModelInfo, found: Tried, device: torch.device = CPU
) -> tuple[torch.dtype, QuantMethod]:
    """What is computed in, and how weights are kept."""
    stored = str(getattr(found.config, "dtype", None)).removeprefix("torch.")
    if device.type != "cpu":
        return dtype_on_gpu(config, "float32" if stored == "None" else stored), NONE
    method = method_at_load(config)
    if method is not NONE and not found.verdict.improved:
        raise ConfigError(f"--quantization {method.name}: {info.architecture} is right with its own products only")
    return getattr(torch, method.computes_in or float_on_cpu(config, stored)), method


def _random(config: Config, found: Tried, dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(config.seed)
    made: Any = found.kind(copy.deepcopy(found.config))
    model: PreTrainedModel = made.to(dtype)
    return model


def _read(info: ModelInfo, found: Tried, dtype: torch.dtype) -> PreTrainedModel:
    """With the weights of the folder: all that the model has."""

    def refused(reason: str) -> ConfigError:
        return ConfigError(f"model: the weights in {info.folder} cannot be loaded: {reason}")

    with code_of_others(refused):
        model, about = found.kind.from_pretrained(
            info.folder, config=found.config, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    if missing := sorted(about["missing_keys"]):
        raise ConfigError(f"model: the weights in {info.folder} do not fit its config.json: it lacks {some(missing)}")
    loaded: PreTrainedModel = model
    return loaded
