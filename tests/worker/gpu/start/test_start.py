"""What is decided before a GPU is used: memory, and what cannot be."""

from __future__ import annotations

import json
import logging
import os
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.architecture import Architecture
from actorserve.actors.model.checks import device as checked
from actorserve.actors.model.rope import Rope
from actorserve.actors.model.shapes import MoeShape
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.worker import inspection
from actorserve.actors.worker.gpu import compilations
from actorserve.actors.worker.gpu import load as gpu_load
from actorserve.actors.worker.gpu import memory as gpu_memory
from actorserve.actors.worker.gpu import start as gpu_start
from actorserve.actors.worker.gpu.load import check_shape, choose_dtype
from actorserve.actors.worker.gpu.memory import (
    RESERVE,
    await_freed_memory,
    blocks_in,
    check_given_bytes,
    is_out_of_memory,
    kv_block_bytes,
    kv_kind,
    make_pools,
    out_of_memory,
    plan_memory,
    room_for_blocks,
)
from actorserve.actors.worker.start import model as start_model
from actorserve.actors.worker.start import shared
from actorserve.actors.worker.start.model import uses_gpu, why_no_gpu
from actorserve.kernels.triton.quantised_kv import E4M3

SHAPE = Architecture(
    vocab_size=1000,
    hidden_size=256,
    intermediate_size=512,
    heads=8,
    kv_heads=2,
    head_dim=64,
    norm_eps=1e-6,
    windows=(None, None),
    rope=Rope(),
    stored_dtype="bfloat16",
)
EXPERTS = MoeShape(experts=8, per_token=2, intermediate_size=64, layers=(True, True), routed=8)
GIB = 1 << 30


def test_kv_memory_is_what_is_left() -> None:
    config = make_config({"gpu_memory_utilization": 0.5, "max_num_seqs": 4, "block_size": 32})
    room = room_for_blocks(config, 80 * GIB, 16 * GIB, 4 * GIB)
    assert room == 20 * GIB - RESERVE
    size = kv_block_bytes(SHAPE, 32, torch.bfloat16)
    assert size == 2 * 2 * 2 * 32 * 64 * 2
    plan = plan_memory(config, SHAPE, 1024, torch.bfloat16)
    assert plan.block_bytes == size and plan.sequence_blocks == 32 and plan.windows is None
    assert blocks_in(config, plan, 1024, 40 * size) == 40
    assert blocks_in(config, plan, 1024, room) == 4 * 32, "no more than all rows can fill"
    with pytest.raises(ConfigError, match=r"--gpu-memory-utilization.*--max-model-len to at most 992"):
        blocks_in(config, plan, 1024, 31 * size)
    with pytest.raises(ConfigError, match="smaller model"):
        blocks_in(config, plan, 1024, -5)
    own = make_config({"kv_cache_memory_bytes": 31 * size, "block_size": 32})
    assert room_for_blocks(own, 80 * GIB, 16 * GIB, 4 * GIB) == 31 * size
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes"):
        blocks_in(own, plan, 1024, 31 * size)
    large = make_config({"kv_cache_memory_bytes": 8 * GIB, "block_size": 32, "max_num_seqs": 4})
    asked = blocks_in(large, plan, 1024, 8 * GIB)
    taken = 4 * 32 * size
    assert not check_given_bytes(large, plan, asked, taken, taken) and not check_given_bytes(config, plan, asked, 0, 0)
    words = check_given_bytes(large, plan, asked, taken, 1000)
    assert words.startswith(f"--kv-cache-memory-bytes: {taken:,} bytes are more than the 1,000 that are sure")
    with pytest.raises(ConfigError, match=r"^--kv-cache-memory-bytes: .* more than the 1,000 that weights and steps"):
        check_given_bytes(large, plan, asked, 1000, 900)


@pytest.mark.parametrize(("free", "total", "said"), [(7, 8, None), (0, 8, "warned"), (5, 5, "refused")])
def test_what_is_checked_beside_a_server_that_runs(
    free: int, total: int, said: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has memory that will be free when its successor starts."""
    size = kv_block_bytes(SHAPE, 32, torch.bfloat16)
    config = make_config({"kv_cache_memory_bytes": 4 * GIB, "block_size": 32, "max_num_seqs": 256})
    model: Any = SimpleNamespace(max_model_len=1 << 20, vision=None)
    monkeypatch.setattr(gpu_memory, "device_memory", lambda device: (free * GIB, total * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    facts = inspection._memory_on_gpu(config, model, SHAPE, torch.bfloat16, 2 * GIB)
    if said == "refused":
        with pytest.raises(ConfigError, match=f"^--kv-cache-memory-bytes: .* the {3 * GIB:,} that weights and steps"):
            list(facts)
        return
    assert list(facts)[-1]["blocks"] == 4 * GIB // size
    assert ("--kv-cache-memory-bytes" in caplog.text) == (said == "warned")


@pytest.mark.parametrize("kind", [torch.bfloat16, E4M3])
def test_layers_of_windows_share_memory(kind: torch.dtype) -> None:
    """Three of four see 64 tokens back: at 16k a sequence takes little more than a quarter of the memory."""
    shape = msgspec.structs.replace(SHAPE, windows=(64, None, 64, 64))
    config = make_config({"max_num_batched_tokens": 256, "block_size": 16})
    plan = plan_memory(config, shape, 1 << 14, kind)
    assert plan.windows is not None and plan.windows.tables == ((1,), (0,), (2,), (3,))
    whole = kv_block_bytes(shape, 16, kind)
    assert plan.block_bytes * 4 == whole
    assert plan.block_bytes * plan.sequence_blocks < 0.27 * whole * (1 << 10)
    pools = make_pools(shape, 5, 16, kind, torch.device("cpu"), plan.windows)
    assert len(pools) == 4 and len({pool.keys.data_ptr() for pool in pools}) == 1
    held = {part.data_ptr(): part.numel() * part.element_size() for part in (pools[0].keys, pools[0].values)}
    scales = 0 if pools[0].scales is None else sum(part.numel() for part in pools[0].scales)
    assert sum(held.values()) + scales == 5 * plan.block_bytes
    drafts = {"method": "draft_model", "model": "m", "num_speculative_tokens": 2}
    other = make_config({"max_num_batched_tokens": 256, "block_size": 16, "speculative_config": json.dumps(drafts)})
    assert plan_memory(other, shape, 1 << 14, kind, 7).windows is None, "its blocks are those of the draft model, too"


@pytest.mark.parametrize(
    ("free", "held", "looks"),
    [
        ([79], 0, 1),  # nobody else is there
        ([10, 30, 60, 79, 79], 0, 4),  # a predecessor's memory comes back
        ([10, 30, 30, 30, 30, 30, 30], 0, 7),  # the rest is somebody's who stays
        ([look // 2 for look in range(200)], 0, 101),  # whoever gives back so slowly is not waited for
        ([19, 19, 19, 19, 19, 19], 60, 1),  # the rest is kept for this worker
        ([9, 19], 60, 2),
    ],
)
def test_memory_that_is_still_being_freed(
    monkeypatch: pytest.MonkeyPatch, free: list[int], held: int, looks: int
) -> None:
    seen, waited = iter(free), list[float]()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(seen) * GIB, 1000 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    config = make_config({"gpu_memory_utilization": 0.079})
    found = await_freed_memory(config, torch.device("cuda", 0), held * GIB, waited.append)
    assert found == free[looks - 1] * GIB and len(waited) == looks - 1 and sum(waited) <= 10.01


def test_types() -> None:
    assert choose_dtype(make_config({}), SHAPE) is torch.bfloat16
    assert choose_dtype(make_config({"dtype": "float32"}), SHAPE) is torch.float32
    exact = msgspec.structs.replace(SHAPE, stored_dtype="float32")
    assert choose_dtype(make_config({}), exact) is torch.bfloat16, "float32 is for checks"
    assert choose_dtype(make_config({"dtype": "float32"}), exact) is torch.float32
    with pytest.raises(ConfigError, match="float64"):
        choose_dtype(make_config({}), msgspec.structs.replace(SHAPE, stored_dtype="float64"))
    device = torch.device("cpu")
    assert kv_kind(make_config({}), torch.float16, device) is torch.float16
    assert kv_kind(make_config({"kv_cache_dtype": "fp8"}), torch.float16, device) is E4M3
    assert kv_kind(make_config({"kv_cache_dtype": "bfloat16"}), torch.bfloat16, device) is torch.bfloat16
    with pytest.raises(ConfigError, match=r"^--kv-cache-dtype float16: on a GPU auto, bfloat16 or fp8"):
        kv_kind(make_config({"kv_cache_dtype": "float16"}), torch.bfloat16, device)


@pytest.mark.parametrize(
    ("options", "changes", "word"),
    [
        ({"block_size": 24}, {}, "--block-size 24"),
        ({"block_size": 256}, {}, "--block-size 256"),
        ({}, {"head_dim": 72}, "heads of 72"),
        ({}, {"heads": 512}, "256 heads share"),
        ({}, {"head_dim": 592}, "heads of 592"),
        ({}, {"moe": msgspec.structs.replace(EXPERTS, routed=1032)}, "2 of 1032 experts for each token"),
        ({}, {"moe": msgspec.structs.replace(EXPERTS, per_token=33)}, "33 of 8 experts for each token"),
    ],
)
def test_what_the_kernels_cannot_take(options: dict[str, Any], changes: dict[str, Any], word: str) -> None:
    check_shape(make_config({}), msgspec.structs.replace(SHAPE, moe=EXPERTS))
    with pytest.raises(ConfigError, match=word):
        check_shape(make_config(options), msgspec.structs.replace(SHAPE, **changes))


def test_out_of_memory_says_what_to_lower() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. If reserved but unallocated …")
    text = str(out_of_memory(error, with_weights=True))
    assert "Tried to allocate 2.00 GiB." in text and "reserved" not in text
    assert "--max-num-batched-tokens" in text and "--kv-cache-memory-bytes (if it is given)" in text
    text = str(out_of_memory(error, with_weights=False))
    assert "Tried to allocate 2.00 GiB." in text and "int4" in text and "--max-num-batched-tokens" not in text


def test_whoever_says_that_memory_is_out() -> None:
    triton, cublas = RuntimeError("Triton Error [CUDA]: out of memory"), RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when")
    assert is_out_of_memory(torch.OutOfMemoryError("x")) and is_out_of_memory(triton) and is_out_of_memory(cublas)
    assert not is_out_of_memory(RuntimeError("an illegal memory access")) and not is_out_of_memory(None)
    ended = RuntimeError("the capture has failed")
    ended.__context__ = triton
    assert is_out_of_memory(ended)


def test_memory_that_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """What files are cached in is free there, and nowhere else."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10, 100))
    monkeypatch.setattr(gpu_memory, "available_bytes", lambda: 70)
    for capability, free in (((12, 1), 70), ((12, 0), 10)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, told=capability: told)
        assert gpu_memory.device_memory(0) == (free, 100)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a driver, which there may be."""
    monkeypatch.setattr(checked, "may_have_gpu", lambda: False)
    assert not uses_gpu(make_config({})) and not uses_gpu(make_config({"device": "cpu"}))
    with pytest.raises(ConfigError, match="--device cuda"):
        uses_gpu(make_config({"device": "cuda"}))


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_driver_of_whose_gpus_torch_finds_none(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """A worker that begins again behind an error of its GPU is no CPU's of a sudden."""

    def init() -> None:
        raise RuntimeError("No CUDA GPUs are available\nand more")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(checked, "may_have_gpu", lambda: True)
    words = (
        rf"^--device {device}: .*torch finds no GPU \(No CUDA GPUs are available\);.*--device cpu computes on the CPU$"
    )
    with pytest.raises(ConfigError, match=words):
        uses_gpu(make_config({"device": device}))
    assert not uses_gpu(make_config({"device": "cpu"}))


@pytest.mark.parametrize(("capability", "hip", "said"), [((7, 5), None, "7.5"), ((9, 0), "6.4", "ROCm")])
def test_gpus_that_kernels_do_not_run_on(
    capability: tuple[int, int], hip: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU computes, unless they are asked for."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 6) if index else capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla T4")
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(start_model, "check_gpu", lambda config: True)
    assert not uses_gpu(make_config({})) and said in why_no_gpu(make_config({}))
    with pytest.raises(ConfigError, match=f"--device cuda: .*{said}"):
        uses_gpu(make_config({"device": "cuda"}))
    assert why_no_gpu(make_config({"device": "cpu"})) == ""
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5) if index else (8, 0))
    assert uses_gpu(make_config({})), "the other one is not used"
    assert uses_gpu(make_config({}), first=0) and not uses_gpu(make_config({}), first=1), "that of another model"


@pytest.mark.parametrize(("cores", "engines", "threads"), [(16, 1, 4), (16, 2, 2), (3, 1, 1)])
def test_workers_share_cores_to_compile(
    monkeypatch: pytest.MonkeyPatch, cores: int, engines: int, threads: int
) -> None:
    """Those of all engines; of a group behind the last one's weights, since their sums are run then."""
    done: list[object] = []

    def compile_ahead(*given: object, threads: int) -> int:
        done.append(threads)
        return 0

    monkeypatch.setattr(gpu_start, "compile_ahead", compile_ahead)
    monkeypatch.setattr(gpu_start, "usable_cores", lambda: cores)
    monkeypatch.setattr(gpu_start, "engines_beside", lambda context: engines)
    config, log = make_config({"tensor_parallel_size": 4}), logging.Logger("worker")
    runner: Any = SimpleNamespace(device=None, profile_steps=None, try_graphs=None)
    group: Any = SimpleNamespace(wait_for_all=lambda: done.append("all are there"))
    gpu_start._compile(cast(Any, SimpleNamespace(config=config, log=log)), runner, group)
    assert done == ["all are there", threads]


@pytest.mark.parametrize(("options", "threads"), [({}, 3), ({"tensor_parallel_size": 2}, 1), ({"threads": 5}, 5)])
def test_workers_share_cores_to_load(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], threads: int) -> None:
    done: list[int] = []

    def load(*given: object) -> Any:
        assert done == [threads], "before any weight is read"
        return SimpleNamespace(dtype=torch.bfloat16)

    monkeypatch.setattr(torch, "set_num_threads", done.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(shared, "usable_cores", lambda: 4)
    monkeypatch.setattr(shared, "engines_beside", lambda context: 1)
    monkeypatch.setattr(gpu_load, "load_model", load)
    context: Any = SimpleNamespace(config=make_config(options), log=logging.Logger("worker"))
    context.model, context.phase_ends = SimpleNamespace(architecture="Some", vision=None), lambda phase: None
    model, draft, vision = gpu_load.load_all(context, torch.device("cpu"), None)
    assert model.dtype == torch.bfloat16 and draft is None and vision is None


@pytest.mark.parametrize("error", [RuntimeError("Failed to find C compiler"), AssertionError("no libcuda.so")])
def test_a_machine_that_cannot_build_launchers(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Triton asserts that the driver's library is where the linker's cache says."""

    class Driver:
        @property
        def utils(self) -> object:
            raise error

    monkeypatch.setattr(
        compilations,
        "triton",
        SimpleNamespace(
            knobs=SimpleNamespace(runtime=SimpleNamespace(interpret=False)),
            runtime=SimpleNamespace(driver=SimpleNamespace(active=Driver())),
        ),
    )
    with pytest.raises(ConfigError, match=rf"{error}.* gcc python3-dev"):
        compilations.check_launcher()
