"""Which start a worker has: by its model, and by the device that there is."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from ...model.checks.device import check_device, check_gpu
from ...model.memory.machine import without_effect
from ...options.config import Config, ConfigError
from ...runtime.process import Context
from ..plugins.worker import OPTION, make_worker
from ..torch_import import import_rest
from .shared import speaks_for_all

if TYPE_CHECKING:
    import torch

    from ..actor import WorkerActor

OLDEST_GPU = 8, 0  # the compute capability with asynchronous copies, bfloat16, and memory for tiles of prompts


def load(context: Context) -> WorkerActor:
    """The actor of the device that there is, its model loaded; ConfigError if model or memory cannot be had."""
    if context.config.worker_cls is not None and (context.model.pooling or context.model.encoder):
        raise ConfigError(f"{OPTION}: for models that go on with texts; {context.model.architecture} is none")
    if context.model.pooling is not None or context.model.encoder is not None:
        from .beside import device_of

        return _load_beside(context, device_of(context))
    first = context.system.first_device(context.served.engines[0])
    on_gpu = uses_gpu(context.config, first)
    own = None if on_gpu else make_worker(context.config, context.spec.index)
    check_options(context.config, on_gpu)
    if on_gpu and len(context.system.models) > 1:
        check_gpus(context)
    if speaks_for_all(context):
        for words in without_effect(context.config, on_gpu):
            context.log.warning("%s", words)
    if not on_gpu:
        from . import cpu

        if (reason := why_no_gpu(context.config, first)) and speaks_for_all(context):
            context.log.warning("computing on the CPU: %s", reason)

        return cpu.start(context, own)
    import_rest()
    from ..gpu import start as gpu_start

    return gpu_start.start(context)


def _load_beside(context: Context, device: torch.device) -> WorkerActor:
    """Of a model that goes on with no texts of its own, or reads by an encoder. A GPU may be full by other servers' KV
    memory: without --device cuda such a model is the CPU's then.
    """
    from .beside import CPU

    if context.model.pooling is not None:
        from ..pooling.start import start
    else:
        from ..encoder_decoder.start import start
    if device == CPU or context.config.device == "cuda":
        return start(context, device)
    from ..gpu.memory import NoRoom  # and with it Triton

    try:
        return start(context, device)
    except NoRoom as error:
        context.log.warning("computing on the CPU: %s", error)
    _let_go()
    return start(context, CPU)


def _let_go() -> None:
    """Of a GPU's memory, and the host's, what a start has left."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def uses_gpu(config: Config, first: int = 0) -> bool:
    """--device; ConfigError if it wants what is not there, or there is a driver, of whose GPUs torch finds none: a
    worker that begins again would go on with other numbers, and more slowly than anybody expects. `first` of the GPUs
    is this model's.
    """
    import torch

    may_be = check_gpu(config)
    if config.device == "cpu" or not torch.cuda.is_available():
        if may_be:
            raise ConfigError(
                f"--device {config.device}: there is a driver here, and torch finds no GPU ({_why_not_found()}); "
                "nvidia-smi and CUDA_VISIBLE_DEVICES may say more; --device cpu computes on the CPU"
            )
        return False
    reason = why_no_gpu(config, first)
    if reason and config.device == "cuda":
        raise ConfigError(f"--device cuda: {reason}")
    return not reason


def _why_not_found() -> str:
    """In torch's words, or CUDA's."""
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).partition("\n")[0]
    return f"made for CUDA {torch.version.cuda}"


def why_no_gpu(config: Config, first: int = 0) -> str:
    """What keeps the kernels from running on the GPUs that torch finds; nothing, if they can, or there is none."""
    import torch

    if config.device == "cpu" or not torch.cuda.is_available():
        return ""
    if torch.version.hip is not None:
        return "this torch is ROCm's, and the kernels are for CUDA"
    for index in range(first, min(torch.cuda.device_count(), first + config.workers * config.local_engines)):
        capability = torch.cuda.get_device_capability(index)
        if capability < OLDEST_GPU:
            name = f"{torch.cuda.get_device_name(index)} has compute capability {capability[0]}.{capability[1]}"
            return f"{name}, and the kernels need {OLDEST_GPU[0]}.{OLDEST_GPU[1]} or more (Ampere and newer)"
    return ""


def check_gpus(context: Context) -> None:
    """ConfigError if several models need more GPUs than there are."""
    import torch

    wanted, count = context.system.num_devices, torch.cuda.device_count()
    if wanted > count:
        text = f"--also: {wanted} GPUs are needed, one for each worker, and there are {count} here"
        raise ConfigError(f"{text}; device=cpu behind a model has it computed on the CPU")


def check_options(config: Config, on_gpu: bool) -> None:
    """ConfigError if one is for the other device, or for more devices than there are."""
    import torch

    check_device(config, on_gpu)
    count = torch.cuda.device_count() if on_gpu else 0
    if on_gpu and config.tensor_parallel_size > count:
        raise ConfigError(f"--tensor-parallel-size: there are {count} GPUs here")
    if on_gpu and (wanted := config.workers * config.local_engines) > count:
        raise ConfigError(f"--data-parallel-size: {wanted} GPUs are needed, and there are {count} here")
