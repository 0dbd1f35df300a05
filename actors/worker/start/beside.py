"""Where models are computed that go on with no texts of their own, or read by an encoder: those that pool, Whisper,
T5 and their kin. They are transformers' modules, or layers that are run as these are: step by step, without graphs.

A GPU is theirs where the models that go on with texts leave one; --device cuda shares one with these, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from ...model.checks.device import check_device, check_gpu, only_on_cpu
from ...model.info import ModelInfo, read_json
from ...model.memory.dtypes import float_on_gpu
from ...options.config import Config, ConfigError
from ...runtime.process import Context
from ..torch_import import import_rest
from .libraries import settle_libraries
from .model import uses_gpu, why_no_gpu
from .shared import speaks_for_all

CPU = torch.device("cpu")
FREQUENCIES = "inv_freq"  # in transformers' names of them


def device_of(context: Context) -> torch.device:
    """That of this worker; ConfigError if it cannot be the one that options ask for."""
    config, system, spec = context.config, context.system, context.spec
    first = system.first_device(context.served.engines[0])
    on_gpu, reason = uses_gpu_beside(config, context.model, first)
    count = torch.cuda.device_count() if on_gpu else 0
    if on_gpu and config.device != "cuda" and (reason := _too_few(config, first, count)):
        on_gpu = False
        check_device(config, on_gpu)
    if on_gpu:
        return torch.device("cuda", (system.first_device(spec.engine) + spec.index) % count)
    if reason and speaks_for_all(context):
        context.log.warning("computing on the CPU: %s", reason)
    return CPU


def uses_gpu_beside(config: Config, model: ModelInfo, first: int = 0) -> tuple[bool, str]:
    """Whether a GPU computes such a model, and else what keeps it from one that there is. ConfigError if no device can
    do what options ask for.
    """
    reason = only_on_cpu(config, model)
    on_gpu = not reason and uses_gpu(config, first)  # torch is asked for no GPU that is not wanted
    if reason:
        reason = reason if check_gpu(config) else ""
    elif on_gpu:
        try:
            check_on_gpu(config, model)
        except ConfigError as error:
            if config.device == "cuda":
                raise
            on_gpu, reason = False, str(error)
    else:
        reason = why_no_gpu(config, first)
    if not on_gpu:
        check_device(config, on_gpu=False)
    return on_gpu, reason


def check_on_gpu(config: Config, model: ModelInfo) -> None:
    """ConfigError if an option, or the shape of the model's own layers, is one that a CPU alone can do."""
    check_device(config, on_gpu=True)
    if model.pooling is not None and not model.pooling.base:
        return
    import_rest()
    from ..gpu.memory import check_block_size  # and with it Triton

    check_block_size(config)
    if model.pooling is None:
        stored = read_json(Path(model.folder) / "config.json")
        own = float_on_gpu(config, str(stored.get("dtype") or stored.get("torch_dtype") or "float32"))
    else:
        from ..eager.decoder import check_decoder
        from ..pooling.decoder import hidden_shape

        own = str(check_decoder(config, hidden_shape(config, model, model.pooling))).removeprefix("torch.")
    if config.kv_cache_dtype not in ("auto", own):
        raise ConfigError(f"--kv-cache-dtype {config.kv_cache_dtype}: {model.architecture} has auto on a GPU")


def _too_few(config: Config, first: int, count: int) -> str:
    """What to say where other models of the server have the GPUs."""
    wanted = first + config.workers * config.local_engines
    if wanted <= count:
        return ""
    return (
        f"{wanted} GPUs would be needed, one for each worker, and there are {count} here; --device cuda shares one, of "
        "which there must be room beside the others' --gpu-memory-utilization"
    )


@contextmanager
def computing_on(config: Config, device: torch.device) -> Iterator[None]:
    """What is loaded meanwhile lies there, and has no more of a GPU than --gpu-memory-utilization from then on. NoRoom
    if that is not enough.
    """
    if device.type == "cpu":
        yield
        return
    from ..gpu.memory import NoRoom, await_freed_memory, is_out_of_memory  # and with it Triton

    torch.cuda.set_device(device)
    settle_libraries()
    await_freed_memory(config, device, held=0)
    torch.cuda.set_per_process_memory_fraction(config.gpu_memory_utilization, device)
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0].split(" If reserved")[0]
        raise NoRoom(
            f"out of GPU memory at the start: {reason} Lower --max-num-batched-tokens, --max-num-seqs or "
            "--max-model-len; --gpu-memory-utilization is what this model may have of the GPU, of which others may "
            "have a part; --device cpu computes it on the CPU"
        ) from None


def moved(model: nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> None:
    """To the device, as it is, or in this type but for what stays in float32. NoRoom if it does not fit."""
    from ..gpu.memory import check_weights

    own = tensors_of(model)
    types = {name: _type_of(model, name, one, dtype) for name, one in own.items()}
    check_weights(sum(one.numel() * types[name].itemsize for name, one in own.items()), device)
    exchange(model, lambda name: own[name].to(device, types[name]))


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """In this type, where it is, but for what stays in float32."""
    own = tensors_of(model)
    exchange(model, lambda name: own[name].to(_type_of(model, name, own[name], dtype)))


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """By name; what is shared once."""
    return {name: one.detach() for name, one in _named(model)}


def exchange(model: nn.Module, tensor: Callable[[str], Tensor]) -> None:
    """Give it others of these names."""
    before = _named(model)
    names = {id(one): name for name, one in before}

    def other(one: Tensor) -> Tensor:
        """What a module has that comes a second time is another's already."""
        name = names.get(id(one))
        return one if name is None else tensor(name)

    model._apply(other)


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _type_of(model: nn.Module, name: str, tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """In which a tensor of that name is. Frequencies of rotations are multiplied by positions: in few bits far ones
    are turned by whole radians too much or too little.
    """
    if dtype is None or not tensor.is_floating_point() or FREQUENCIES in name:
        return tensor.dtype
    kept = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype is torch.float16:
        kept |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    return torch.float32 if any(f".{part}." in f".{name}." for part in kept) else dtype
