"""Which start a worker has: by its model, and by the device that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.checks.device import check_device, check_gpu
from ...model.memory.machine import without_effect
from ...options.config import Config, ConfigError
from ...runtime.process import Context
from ..plugins.worker import OPTION, make_worker
from ..torch_import import import_rest
from .shared import speaks_for_all

if TYPE_CHECKING:
    from ..actor import WorkerActor


def load(context: Context) -> WorkerActor:
    """The actor of the device that there is, its model loaded; ConfigError if model or memory cannot be had."""
    if context.config.worker_cls is not None and (context.model.pooling or context.model.encoder):
        raise ConfigError(f"{OPTION}: for models that go on with texts; {context.model.architecture} is none")
    if context.model.pooling is not None:
        from ..pooling import start as pooling_start

        return pooling_start.start(context)
    if context.model.encoder is not None:
        from ..encoder_decoder import start as reading_start

        return reading_start.start(context)
    on_gpu = uses_gpu(context.config)
    own = None if on_gpu else make_worker(context.config, context.spec.index)
    check_options(context.config, on_gpu)
    if on_gpu and len(context.system.models) > 1:
        check_gpus(context)
    if speaks_for_all(context):
        for words in without_effect(context.config, on_gpu):
            context.log.warning("%s", words)
    if not on_gpu:
        from . import cpu

        return cpu.start(context, own)
    import_rest()
    from ..gpu import start as gpu_start

    return gpu_start.start(context)


def uses_gpu(config: Config) -> bool:
    """--device; ConfigError if it wants what is not there."""
    import torch

    if config.device == "cuda":
        check_gpu(config)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no GPU here (nvidia-smi and torch.version.cuda may say why)")
    return config.device != "cpu" and torch.cuda.is_available()


def check_gpus(context: Context) -> None:
    """ConfigError if several models need more GPUs than there are."""
    import torch

    wanted, count = context.system.first_device(len(context.system.engines)), torch.cuda.device_count()
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
