"""What the machine gives to the worker: compute threads, free memory, a GPU or none, KV blocks.

Knows /proc, /dev and cgroups; no torch, so that whoever starts the worker can ask, too.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from actorserve.shm.free_memory import available_bytes, cgroup_folders, cgroup_words

from ...options.config import Config, ConfigError, PassingError
from ...options.fields import flag
from ..architecture import Architecture
from ..layers import Axis, Kind
from .kv import KVSpec
from .kv_memory import KVMemory, plan_kv_memory

GPU_OPTIONS = ("gpu_memory_utilization", "enforce_eager", "cudagraph_capture_sizes")
GPU_FILES = ("nvidiactl", "nvmap")  # in /dev, of drivers: NVIDIA's, Jetson's
DEVICES = Path("/dev")
WSL_DRIVER = Path("/usr/lib/wsl/lib/libcuda.so.1")  # /dev/dxg is there with any GPU, or none


class Sized(Protocol):
    """A type of numbers, as torch's."""

    @property
    def itemsize(self) -> int:
        """Bytes of one."""


NO_BYTES: Mapping[str, float] = {}
# Of experts, of what multiplies queries and results of latents, and of what chooses which of them are seen.
DECODED = (Axis.EXPERT_INTERMEDIATE, Axis.LATENT_HEADS, Axis.INDEX_QUERIES, Axis.INDEX_KEY, Axis.INDEX_HEADS)
FLOAT32_BYTES = 4  # of a number of what weighs heads of an indexer, whatever the model's type is


def may_have_gpu() -> bool:
    """False: there is none, for no driver is loaded, none of its devices shall be seen, or torch was built for CPUs
    alone. True: ask torch.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    has_driver = any((DEVICES / name).exists() for name in GPU_FILES) or WSL_DRIVER.exists()
    return has_driver and torch_has_cuda()


def torch_has_cuda() -> bool:
    """Whether the torch that is installed was built for CUDA; it is not imported for that."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    return (Path(found.origin).parent / "lib" / "libtorch_cuda.so").exists()


def cpu_flags() -> set[str]:
    """What the processor can do, in the kernel's names, and who made it, where the kernel says so."""
    found: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features", "vendor_id"):
            found |= set(value.split())
        elif not name.strip() and found:  # those of the first one
            break
    return found


def usable_cores() -> int:
    """The cores that this process may run on, or as many as its cgroup's quota is worth."""
    quotas = [_quota(folder) for folder in cgroup_folders()]
    return max(1, min([len(os.sched_getaffinity(0)), *(math.floor(quota) for quota in quotas if quota is not None)]))


def total_bytes() -> int:
    """All memory that this process could ever have: the machine's, or the limit of its cgroup."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    own = [int(lines["MemTotal"].split()[0]) * 1024]
    for folder in cgroup_folders():
        for name in ("memory.max", "memory.limit_in_bytes"):
            own += [int(word) for word in cgroup_words(folder / name)[:1] if word.isdigit()]
    return min(own)


def lack_of(size: int) -> type[ConfigError]:
    """What to say of so many bytes that are not free now: of what the machine has, others may give it back."""
    return PassingError if size <= total_bytes() else ConfigError


def _quota(folder: Path) -> float | None:
    """The cores that a cgroup's CPU quota is worth."""
    quota, period = [*cgroup_words(folder / "cpu.max"), *cgroup_words(folder / "cpu.cfs_quota_us"), "", ""][:2]
    if not period and quota not in ("", "max"):
        period = "".join(cgroup_words(folder / "cpu.cfs_period_us"))
    return int(quota) / int(period) if period and quota.isdigit() else None


def weight_bytes(
    shape: Architecture,
    dtype: Sized,
    without: Collection[str] = (),
    stays: bool = False,
    own_bytes: Mapping[str, float] = NO_BYTES,
) -> int:
    """The size of all weights in memory but of these modules; `dtype` is that of what is not quantised. `stays`: what
    can has the bits of the checkpoint, but DECODED; `own_bytes`: what a number of some weights takes."""
    total, methods = 0.0, shape.methods()
    for name, spec in shape.specs().items():
        if name.rpartition(".")[0] in without:
            continue
        form = shape.format_of(name.removesuffix(".weight")) if stays and spec.kind is Kind.WEIGHT else None
        decoded = any(axis in (*spec.rows, spec.columns) for axis in DECODED)
        if form is not None and form.stays and not decoded:
            rows, columns = shape.tensor_shape(spec)
            total += form.bytes(rows, columns)
            continue
        if name in own_bytes and spec.kind is Kind.WEIGHT and not decoded:
            total += math.prod(shape.tensor_shape(spec)) * own_bytes[name]
            continue
        if Axis.INDEX_HEADS in spec.rows:
            total += math.prod(shape.tensor_shape(spec)) * FLOAT32_BYTES
            continue
        own = methods.get(name, shape.quantization).bytes_per_weight if spec.kind is Kind.WEIGHT else None
        total += math.prod(shape.tensor_shape(spec)) * (dtype.itemsize if own is None else own)
    return int(total)


def kv_memory_room(config: Config, mapped: int = 0) -> tuple[str, int]:
    """The option that says how much KV memory an engine may have, and the bytes: each has its part of a share of all,
    and as much as is given in bytes. `mapped`: weights in files, whose memory the system calls available.
    """
    if config.kv_cache_memory_bytes is not None:
        return "--kv-cache-memory-bytes", config.kv_cache_memory_bytes
    engines = max(1, config.local_engines)
    return "--kv-cache-memory-fraction", int(
        max(0, available_bytes() - mapped) * config.kv_cache_memory_fraction / engines
    )


def count_blocks(config: Config, kv: KVSpec, max_length: int, dtype: Sized, beside: int = 0) -> int:
    """How many KV blocks there shall be: at least for one sequence, and not more than could ever be used.

    `beside` are the bytes of a block in a draft model.
    """
    memory = plan_kv_memory(kv, config, max_length, dtype.itemsize, beside)
    return blocks_in(config, memory, max_length, *kv_memory_room(config))


def blocks_in(config: Config, memory: KVMemory, max_length: int, option: str, given: int) -> int:
    """The same of so many bytes, which that option gave."""
    size, sequence = memory.block_bytes, memory.sequence_blocks
    room = given - memory.state_bytes(config, given)
    if not size:  # no layer attends, and a block is a name for tokens alone
        return config.max_num_seqs * sequence
    if room // size < sequence:
        fits = room // size * config.block_size if memory.windows is None else 0
        hold = f"hold {fits:,} tokens" if fits else f"are less than one block of {config.block_size} tokens"
        hold = hold if memory.windows is None else "are too few"
        advice = f", or set --max-model-len to at most {fits}" if fits else ""
        kind = ConfigError if config.kv_cache_memory_bytes is not None else lack_of(sequence * size)
        raise kind(
            f"{option}: {room:,} bytes of KV memory {hold}, and one sequence may have {max_length:,} tokens "
            f"({sequence * size:,} bytes); give more{advice}"
        )
    blocks = min(room // size, config.max_num_seqs * sequence)
    if config.kv_cache_memory_bytes is not None and blocks * size > (there := total_bytes()):
        raise ConfigError(f"{option}: {blocks * size:,} bytes are more than the {there:,} that there are")
    return blocks


def unused_memory(config: Config, max_length: int, blocks: int, plan: KVMemory) -> str:
    """What to say where --kv-cache-memory-bytes is more than could ever be used; nothing if it is not. So many `blocks`
    were made of it.
    """
    given = config.kv_cache_memory_bytes
    if given is None:
        return ""
    taken = blocks * plan.block_bytes + plan.state_bytes(config, given)
    if given < taken + plan.block_bytes or blocks < config.max_num_seqs * plan.sequence_blocks:
        return ""
    return (
        f"--kv-cache-memory-bytes: of {given:,} bytes {taken:,} are taken, which is all that "
        f"{config.max_num_seqs} sequences (--max-num-seqs) of {max_length:,} tokens (--max-model-len) can use"
    )


def without_effect(config: Config, on_gpu: bool) -> list[str]:
    """What to say of options that were set and change nothing on this device."""
    device, other = ("a GPU", "a CPU") if on_gpu else ("a CPU", "a GPU")
    names = ["kv_cache_memory_fraction", "kv_offload"] if on_gpu else list(GPU_OPTIONS)
    said = [f"{flag(name)}: it has no effect on {device}, only on {other}" for name in names if _differs(name, config)]
    share = "gpu_memory_utilization" if on_gpu else "kv_cache_memory_fraction"
    if config.kv_cache_memory_bytes is not None and _differs(share, config):
        said.append(f"{flag(share)}: it has no effect beside --kv-cache-memory-bytes")
    if config.load_format != "dummy" and _differs("seed", config):
        said.append("--seed: it has no effect without --load-format dummy; requests have seeds of their own")
    return said


def _differs(name: str, config: Config) -> bool:
    return bool(getattr(config, name) != getattr(Config(), name))
