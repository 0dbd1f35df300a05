"""The GPU's memory: what a model needs beside its weights is tried out, and what is left is for keys and values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch

from actorserve.kernels.pages import BLOCK_SIZES
from actorserve.kernels.triton.quantised_kv import E4M3, Scales, supported
from actorserve.kernels.triton.rotary_kv import Pools
from actorserve.shm.free_memory import available_bytes

from ...model.architecture import Architecture
from ...model.memory.kv import GROUP, KVFormat, KVSpec, KVType, PoolSpec
from ...model.memory.kv_memory import ITEM_BYTES, KVMemory, check_drafts_of_states
from ...model.memory.windows import Packing, WindowPlan, plan_windows
from ...options.config import Config, ConfigError
from ...options.objects.speculative import DraftModelOptions, read_speculative

if TYPE_CHECKING:
    from .runner import GpuRunner

Take = Callable[[int], torch.Tensor]  # so many bytes
SCALE_BYTES = 1  # of a head's keys, or values, of 8 bits
LOOK_S = 0.1  # between looks at memory that is being freed
LOOKS = 100  # 10 s at most
STILL = 5  # looks at which nothing more was free: what is not, others have
RESERVE = 128 << 20  # bytes for what is made later: the context of libraries, and rounding of the allocator
# Of graphs' memory what their trial does not show: cuBLAS' own of the stream that captures (32 MiB on Hopper), and what
# lies between tensors of one kind and is too small for those of another. Computed, not measured.
OF_CAPTURE = 128 << 20
OF_MACHINE = ((8, 7), (11, 0), (12, 1))  # Jetson Orin and Thor, DGX Spark: the memory of processor and GPU is one
SAID = ("out of memory", "ALLOC_FAILED", "cudaErrorMemoryAllocation")  # by CUDA, cuBLAS and Triton
LOWER = (
    "--kv-cache-memory-bytes (if it is given), --gpu-memory-utilization (if others use the GPU), "
    "--max-num-batched-tokens, --max-num-seqs or --max-model-len"
)
LOWER_LORA = "--max-cpu-loras or --max-lora-rank"
SMALLER = "Take a smaller model, fewer bits (--quantization int8 or int4), or more GPUs (--tensor-parallel-size)"


class NoRoom(ConfigError):
    """The device has less memory than the model needs; a CPU may have it."""


def make_pools(
    shape: Architecture,
    blocks: int,
    block_size: int,
    kind: torch.dtype,
    device: torch.device,
    windows: WindowPlan | None = None,
    take: Take | None = None,
) -> list[Pools]:
    """Each layer's keys and values [blocks, kv_heads, block_size, width] of zeros; of 8 bits with their scales. Latents
    are keys, of which values are a part; what tokens are chosen by lies behind all of a layer's. A layer that reads the
    keys of another has the same.

    In several block tables layers of the same place in their tables have the same memory, of which each has blocks of
    its own. `take`: bytes that are kept for it, which `pool_bytes` says, in the place of zeros.
    """
    if take is None:
        take = partial(torch.zeros, dtype=torch.uint8, device=device)
    given = blocks, block_size, kind, take
    if windows is not None and windows.packing is not None:
        own = dict(_packed_pools(shape.kv, windows, windows.packing, *given))
    else:
        specs = _specs(shape.kv)
        tables = [tuple(specs)] if windows is None else windows.tables
        made = [_own_pools(specs[layer], *given) for layer in tables[0]]
        own = {layer: made[place] for table in tables for place, layer in enumerate(table)}
    layers = enumerate(shape.kv.layers)
    return [own[index if layer is None or layer.source is None else layer.source] for index, layer in layers]


def pool_bytes(shape: Architecture, blocks: int, block_size: int, kind: torch.dtype) -> list[int]:
    """What each layer takes one after the other: of its keys and values, and of the scales of both, if it has any."""
    return [size for spec in _specs(shape.kv).values() for size in _own_bytes(spec, blocks, block_size, kind)]


def _specs(kv: KVSpec) -> dict[int, PoolSpec]:
    """The shapes of what layers keep, by layer; without those that read the keys of others."""
    return dict(sorted((layer, spec) for spec in kv.pools() for layer in spec.layers))


def _own_bytes(spec: PoolSpec, blocks: int, block_size: int, kind: torch.dtype) -> list[int]:
    tokens, width = blocks * spec.kv_heads * block_size, spec.key_dim + (0 if spec.values_in_keys else spec.value_dim)
    return [tokens * width * kind.itemsize, *([2 * tokens] if kind == E4M3 else [])]


def _own_pools(spec: PoolSpec, blocks: int, block_size: int, kind: torch.dtype, take: Take) -> Pools:
    """Of one layer, in memory that no other has, one part behind the other: keys, what tokens are chosen by, which are
    numbers that each key is counted with, and values."""
    numbers, *scales = (take(size) for size in _own_bytes(spec, blocks, block_size, kind))
    sizes = blocks, spec.kv_heads, block_size
    widths = spec.key_dim - spec.beside, spec.beside, 0 if spec.values_in_keys else spec.value_dim
    parts = numbers.view(kind).split([math.prod(sizes) * width for width in widths])
    keys, index, values = (part.view(*sizes, width) for part, width in zip(parts, widths, strict=True))
    if spec.values_in_keys:
        values = keys[..., : spec.value_dim]
    of_both = Scales(*scales[0].view(2, *sizes).unbind(0)) if scales else None
    return Pools(keys, values, of_both, index if spec.beside else None)


def _packed_pools(
    kv: KVSpec, plan: WindowPlan, packing: Packing, blocks: int, block_size: int, kind: torch.dtype, take: Take
) -> Iterator[tuple[int, Pools]]:
    """By layer: keys of all in one memory, and values in another, of whose blocks each has a row of tokens for each
    head of the layers of a table; see Packing. Scales are as many as a block has rows."""
    memories = [take(blocks * block_size * numbers * kind.itemsize).view(kind) for numbers in packing]
    scales: dict[int, torch.Tensor] = {}  # by the number of rows
    for own in plan.specs(kv):
        (spec,) = own.pools()
        rows = packing.rows(spec)
        if kind == E4M3 and rows not in scales:
            scales[rows] = take(2 * blocks * rows * block_size).view(2, blocks, rows, block_size)
        both = [memory.view(blocks, rows, block_size, -1) for memory in memories]
        for place, layer in enumerate(spec.layers):
            heads = slice(place * spec.kv_heads, (place + 1) * spec.kv_heads)
            of_both = Scales(*scales[rows][:, :, heads].unbind(0)) if scales else None
            yield layer, Pools(both[0][:, heads], both[1][:, heads], of_both)


def check_block_size(config: Config) -> None:
    """ConfigError unless kernels can read blocks of so many tokens."""
    if config.block_size not in BLOCK_SIZES:
        sizes = f"multiples of {BLOCK_SIZES.step} up to {BLOCK_SIZES[-1]}"
        raise ConfigError(f"--block-size {config.block_size}: on a GPU it is one of the {sizes}")


def plan_tables(config: Config, shape: Architecture, max_length: int) -> WindowPlan | None:
    """In which block tables layers lie; None: all in one. A draft model shares the blocks of that."""
    drafts = read_speculative(config)
    if isinstance(drafts, DraftModelOptions):
        return None
    return plan_windows(shape.kv, config, -(-max_length // config.block_size))


def kv_kind(config: Config, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """--kv-cache-dtype: the type of keys and values; ConfigError if this device cannot read it."""
    if config.kv_cache_dtype in ("auto", name := str(dtype).removeprefix("torch.")):
        return dtype
    if config.kv_cache_dtype != "fp8":
        raise ConfigError(f"--kv-cache-dtype {config.kv_cache_dtype}: on a GPU auto, {name} or fp8 for this model")
    if not supported(device):
        raise ConfigError("--kv-cache-dtype fp8: this GPU has no instructions for it (Ada, Hopper and newer do)")
    return E4M3


def kv_block_bytes(shape: Architecture, block_size: int, kind: torch.dtype, windows: WindowPlan | None = None) -> int:
    """The size of one KV block in all layers, or those of one table, scales included."""
    one = KVFormat(str(kind), GROUP * kind.itemsize, SCALE_BYTES if kind == E4M3 else 0)
    kept = KVType(one.name, one, one)
    if windows is None:
        return shape.kv.block_bytes(block_size, kept)
    return windows.block_bytes(shape.kv, block_size, kept)


def plan_memory(config: Config, shape: Architecture, max_length: int, kind: torch.dtype, beside: int = 0) -> KVMemory:
    """`beside`: bytes of a block in what makes drafts."""
    check_drafts_of_states(shape.kv, config)
    windows = plan_tables(config, shape, max_length)
    sequence = -(-max_length // config.block_size)
    if windows is not None:
        sequence += (len(windows.tables) - 1) * windows.blocks
    states = shape.kv.row_bytes({None: kind.itemsize} | ITEM_BYTES)
    size = kv_block_bytes(shape, config.block_size, kind, windows) + beside
    return KVMemory(size, sequence, windows, states, states, shape.kv.by_token)  # with those of a row that is none


def device_memory(device: torch.device | int) -> tuple[int, int]:
    """(free bytes, all) of a device.

    Where its memory is the machine's, what files are cached in counts as free: weights were read from some just now.
    """
    free, total = torch.cuda.mem_get_info(device)
    if torch.cuda.get_device_capability(device) not in OF_MACHINE:
        return free, total
    return min(total, max(free, available_bytes())), total


def await_freed_memory(
    config: Config, device: torch.device, held: int, wait: Callable[[float], object] = time.sleep
) -> int:
    """Free bytes of the device, once they are as many as may be used, or as many as they become; `held`: what is kept
    for this worker, who waits for no part of that.

    The driver takes seconds to free what a killed predecessor had, which would be missing as KV memory ever after.
    """
    free, total = device_memory(device)
    still = 0
    for _ in range(LOOKS):
        if free + held >= total * config.gpu_memory_utilization or still == STILL:
            break
        wait(LOOK_S)
        before, free = free, device_memory(device)[0]
        still = still + 1 if free <= before else 0
    return free


def check_weights(size: int, device: torch.device) -> None:
    """NoRoom if so many bytes of a model of transformers do not fit, who would say less."""
    free = device_memory(device)[0]
    if size > free:
        raise NoRoom(
            f"model: its weights take {size:,} bytes of the GPU's memory, and {free:,} are free; --device cpu computes "
            "it on the CPU"
        )


def measure(device: torch.device, try_out: Callable[[], None]) -> tuple[int, int]:
    """(bytes that the largest step takes beside what stays, bytes that all processes have of the device by then)."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try_out()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free, total = device_memory(device)
    return peak, total - free


def graph_bytes(runner: GpuRunner) -> int:
    """What all CUDA graphs will take: the memory in which they compute, which they share, since one runs after the
    other; and each its own, for what it launches; and what only their capture takes."""
    device = runner.device
    computing, _ = measure(device, runner.try_graphs)
    own = runner.own_bytes(lambda: torch.cuda.mem_get_info(device)[0])
    torch.cuda.empty_cache()
    return computing + own + OF_CAPTURE


def room_for_blocks(config: Config, total: int, used: int, steps: int) -> int:
    """Bytes for KV memory: a share of the device's `total`, less what is `used` and what `steps` take."""
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes
    return int(total * config.gpu_memory_utilization) - used - steps - RESERVE


def blocks_in(config: Config, plan: KVMemory, max_length: int, room: int) -> int:
    """How many KV blocks there shall be: at least for one sequence, and not more than could ever be used. States of
    rows, and snapshots of them, come out of the same room first."""
    size, sequence = plan.block_bytes, plan.sequence_blocks
    if room > 0:  # else states are not what is too large
        room -= plan.state_bytes(config, room)
    if room < sequence * size:
        option = "--gpu-memory-utilization" if config.kv_cache_memory_bytes is None else "--kv-cache-memory-bytes"
        fits = plan.tokens(config, max_length, max(0, room // size))
        advice = f"or set --max-model-len to at most {fits}" if fits else "or take a smaller model"
        raise NoRoom(
            f"{option}: {max(0, room):,} bytes are left for KV memory, which hold {fits:,} tokens, and one sequence "
            f"may have {max_length:,} ({sequence * size:,} bytes); give more, {advice}"
        )
    return min(room // size, config.max_num_seqs * sequence)


def check_given_bytes(config: Config, plan: KVMemory, blocks: int, left: int, sure: int) -> str:
    """What to say where --kv-cache-memory-bytes asks for more than is `sure` to be free beside weights and steps;
    ConfigError beyond what may be `left`."""
    if (given := config.kv_cache_memory_bytes) is None:
        return ""
    taken = blocks * plan.block_bytes + plan.state_bytes(config, given)
    if taken <= sure:
        return ""
    if taken > left:
        raise NoRoom(
            f"--kv-cache-memory-bytes: {taken:,} bytes are more than the {max(0, left):,} that weights and steps leave "
            "of the GPU's memory; give less, or leave the option out"
        )
    return (
        f"--kv-cache-memory-bytes: {taken:,} bytes are more than the {max(0, sure):,} that are sure to be free beside "
        "weights and steps; give less where the GPU's memory does not suffice"
    )


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the device had no room, whoever says so: torch has an error of its own for its allocator alone. One in
    the middle of a capture is the context of what the end of the capture says.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in SAID):
            return True
        error = error.__cause__ or error.__context__
    return False


def out_of_memory(error: BaseException, with_weights: bool) -> ConfigError:
    """What to say when the device has not even enough to start; before its weights are there, or behind that."""
    reason = str(error).splitlines()[0].split(" If reserved")[0]
    if with_weights:
        return ConfigError(f"out of GPU memory at the start: {reason} Lower {LOWER}; of adapters {LOWER_LORA}")
    return ConfigError(f"out of GPU memory while weights were loaded: {reason} {SMALLER}; do others use the GPU?")
