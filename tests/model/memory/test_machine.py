"""What the machine gives: cores, memory, KV blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from actorserve.actors.model.architecture import Architecture
from actorserve.actors.model.memory import machine
from actorserve.actors.model.memory.kv_memory import KVMemory
from actorserve.actors.model.memory.machine import (
    count_blocks,
    unused_memory,
    usable_cores,
    without_effect,
)
from actorserve.actors.model.rope import Rope
from actorserve.actors.options.config import ConfigError, PassingError, make_config
from actorserve.shm import free_memory
from actorserve.shm.free_memory import available_bytes, cgroup_folders

SHAPE = Architecture(
    vocab_size=10,
    hidden_size=8,
    intermediate_size=8,
    heads=4,
    kv_heads=2,
    head_dim=16,
    norm_eps=1e-6,
    windows=(None, None),
    rope=Rope(),
)
BLOCK = 2 * 2 * 2 * 32 * 16 * 4  # layers, keys and values, heads, tokens, numbers, bytes


def blocks(max_length: int, **options: Any) -> int:
    return count_blocks(make_config({"block_size": 32, **options}), SHAPE.kv, max_length, torch.float32)


def test_the_size_of_a_block() -> None:
    assert SHAPE.kv.block_bytes(32, 4) == BLOCK == 2 * SHAPE.kv.block_bytes(32, 2)


def test_given_memory_is_filled_with_blocks() -> None:
    assert blocks(64, kv_cache_memory_bytes=10 * BLOCK + 5) == 10


def test_no_more_than_could_be_used() -> None:
    assert blocks(65, kv_cache_memory_bytes=1000 * BLOCK, max_num_seqs=2) == 2 * 3


def test_a_share_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 40 * BLOCK)
    assert blocks(64, kv_cache_memory_fraction=0.5) == 20


def test_too_little_memory_says_what_would_fit() -> None:
    with pytest.raises(ConfigError) as caught:
        blocks(1000, kv_cache_memory_bytes=10 * BLOCK)
    said = str(caught.value)
    assert said.startswith("--kv-cache-memory-bytes: ") and "--max-model-len to at most 320" in said
    assert f"1,000 tokens ({32 * BLOCK:,} bytes)" in said
    with pytest.raises(ConfigError) as caught:
        blocks(1000, kv_cache_memory_bytes=1000)
    assert str(caught.value) == (
        "--kv-cache-memory-bytes: 1,000 bytes of KV memory are less than one block of 32 tokens, and one sequence may "
        f"have 1,000 tokens ({32 * BLOCK:,} bytes); give more"
    )


@pytest.mark.parametrize(("total", "kind"), [(32 * BLOCK, PassingError), (31 * BLOCK, ConfigError)])
def test_memory_that_others_have_may_be_free_later(
    total: int, kind: type[ConfigError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 20 * BLOCK)
    monkeypatch.setattr(machine, "total_bytes", lambda: total)
    with pytest.raises(ConfigError, match="--kv-cache-memory-fraction") as caught:
        blocks(1000)
    assert type(caught.value) is kind


def test_more_memory_than_can_be_used_is_said() -> None:
    config, plan = make_config({"kv_cache_memory_bytes": "900G", "max_num_seqs": 2}), KVMemory(BLOCK, 3, None, 0)
    assert unused_memory(config, 65, 6, plan) == (
        f"--kv-cache-memory-bytes: of {900 << 30:,} bytes {6 * BLOCK:,} are taken, which is all that 2 sequences "
        "(--max-num-seqs) of 65 tokens (--max-model-len) can use"
    )
    exact = make_config({"kv_cache_memory_bytes": 6 * BLOCK + 5, "max_num_seqs": 2})
    assert not unused_memory(exact, 65, 6, plan) and not unused_memory(make_config({}), 65, 6, plan)


def test_more_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "total_bytes", lambda: 10 * BLOCK)
    assert blocks(64, kv_cache_memory_bytes=10 * BLOCK) == 10
    with pytest.raises(ConfigError, match=f"{11 * BLOCK:,} bytes are more than the {10 * BLOCK:,} that there are"):
        blocks(64, kv_cache_memory_bytes=11 * BLOCK)
    assert blocks(64, kv_cache_memory_bytes=1 << 40, max_num_seqs=2) == 4, "what is never used need not be there"


def test_options_of_the_other_device_are_said() -> None:
    given = make_config({"gpu_memory_utilization": 0.5, "enforce_eager": True, "seed": 3})
    assert [line.partition(":")[0] for line in without_effect(given, on_gpu=False)] == [
        "--gpu-memory-utilization",
        "--enforce-eager",
        "--seed",
    ]
    assert without_effect(given, on_gpu=True) == [
        "--seed: it has no effect without --load-format dummy; requests have seeds of their own"
    ]
    beside = make_config({"kv_cache_memory_bytes": "1G", "kv_cache_memory_fraction": 0.5, "threads": 2})
    assert without_effect(beside, on_gpu=False) == [
        "--kv-cache-memory-fraction: it has no effect beside --kv-cache-memory-bytes"
    ]
    tiers = make_config({"kv_offload": "host:1Gi"})
    assert without_effect(tiers, on_gpu=True) == ["--kv-offload: it has no effect on a GPU, only on a CPU"]
    assert [line.partition(":")[0] for line in without_effect(beside, on_gpu=True)] == ["--kv-cache-memory-fraction"]
    assert not without_effect(make_config({}), on_gpu=True)


def limit(monkeypatch: pytest.MonkeyPatch, found: list[Path]) -> None:
    """To what these folders say."""
    for module in (machine, free_memory):
        monkeypatch.setattr(module, "cgroup_folders", lambda: found)


def folders(tmp_path: Path, own: str, files: dict[str, str]) -> list[Path]:
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own)
    return cgroup_folders(tmp_path / "fs", tmp_path / "own")


@pytest.mark.parametrize(
    ("own", "files", "cores", "room"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n", "memory.current": "5\n"}, None, None),
        (
            "0::/a/b\n",
            {
                "a/cpu.max": "150000 100000\n",
                "a/b/cpu.max": "max 100000\n",
                "a/b/memory.max": "900\n",
                "a/b/memory.current": "200\n",
            },
            1,
            700,
        ),
        (
            "4:memory:/x\n1:cpu:/\n0::/\n",
            {
                "cpu/cpu.cfs_quota_us": "100000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "memory/x/memory.limit_in_bytes": "900\n",
                "memory/x/memory.usage_in_bytes": "1000\n",
            },
            1,
            0,
        ),
        (
            "0::/a/b\n",
            {
                "a/b/memory.max": "900\n",
                "a/b/memory.current": "800\n",
                "a/b/memory.stat": "anon 500\nfile 350\nshmem 50\ninactive_file 200\nactive_file 100\n",
            },
            None,
            400,
        ),
        (
            "4:memory:/x\n",
            {
                "memory/x/memory.limit_in_bytes": "900\n",
                "memory/x/memory.usage_in_bytes": "800\n",
                "memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 200\ntotal_active_file 700\n",
            },
            None,
            900,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None, None),
    ],
)
def test_limits_of_cgroups(
    own: str,
    files: dict[str, str],
    cores: int | None,
    room: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = folders(tmp_path, own, files)
    limit(monkeypatch, [])
    all_cores, all_bytes = usable_cores(), available_bytes()
    limit(monkeypatch, found)
    assert usable_cores() == (all_cores if cores is None else cores)
    if room is None:
        assert available_bytes() > all_bytes // 2  # others take memory meanwhile
    else:
        assert available_bytes() == room
