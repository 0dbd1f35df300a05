"""KV memory that the next life of a worker finds: what is kept, since which life, and what makes it nobody's."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from actorserve.actors.model.memory.kv import KV_TYPES, KVSpec, KVType, uniform
from actorserve.actors.options.config import make_config
from actorserve.actors.worker.kept_memory.file import KeptMemory, code_stamps, digest_of
from actorserve.actors.worker.memory import make_pools
from actorserve.kernels.cpu.pool_memory import QuantisedPool
from actorserve.shm.kv_tier.blocks import MAGIC
from actorserve.shm.layout import PAGE
from tests.kernels.reference.kv_formats import codes_of

DIGEST, OTHER = bytes(32), b"\1" * 32


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("kept")
    yield made
    os.close(made)


def test_the_next_life_finds_what_was_written(fd: int) -> None:
    first = KeptMemory(fd, DIGEST, 3)
    assert (first.since, first.blocks) == (0, 0)
    first.begin(7)
    parts = [first.take(100), first.take(PAGE + 1), first.take(5)]
    for number, part in enumerate(parts):
        part[:] = bytes([number + 1]) * len(part)
        part.close()
    second = KeptMemory(fd, DIGEST, 4)
    assert (second.since, second.blocks) == (3, 7)
    for number, size in enumerate((100, PAGE + 1, 5)):
        assert set(second.take(size)[:]) == {number + 1}


@pytest.mark.parametrize("digest", [DIGEST, OTHER])
def test_what_is_begun_anew_is_all_zeros(fd: int, digest: bytes) -> None:
    first = KeptMemory(fd, DIGEST, 3)
    first.begin(7)
    first.take(100)[:] = b"x" * 100
    second = KeptMemory(fd, digest, 4)
    assert second.since == (3 if digest == DIGEST else 0), "of another model nothing is found"
    second.forget()
    assert KeptMemory(fd, DIGEST, 5).since == 0
    second.begin(9)
    assert (second.since, second.blocks) == (4, 9) and not any(second.take(100)[:])


def test_a_life_that_dies_before_the_magic_has_begun_nothing(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptMemory(fd, DIGEST, 3)
    write = os.pwrite

    def dies(file: int, data: bytes, offset: int) -> int:
        if data == MAGIC:
            raise KeyboardInterrupt
        return write(file, data, offset)

    monkeypatch.setattr(os, "pwrite", dies)
    with pytest.raises(KeyboardInterrupt):
        kept.begin(7)
    assert KeptMemory(fd, DIGEST, 4).since == 0


def test_each_input_of_the_digest_counts(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    given = make_config({"dtype": "float32"})
    before = digest_of(given, str(tmp_path), 1)
    assert digest_of(make_config({"dtype": "float32", "log_level": "debug"}), str(tmp_path), 1) == before
    assert digest_of(given, str(tmp_path), 2) != before
    others: list[dict[str, object]] = [{"dtype": "bfloat16"}, {"block_size": 64}, {"kv_cache_dtype": "int8"}]
    for other in others:
        assert digest_of(make_config({"dtype": "float32"} | other), str(tmp_path), 1) != before
    os.utime(weights, ns=(1, 1))
    assert digest_of(given, str(tmp_path), 1) != before


def test_code_of_each_device_counts() -> None:
    """What writes KV memory, and what says how it lies there."""
    names = {name for stamps in code_stamps() for name, _, _ in stamps}
    assert {"file.py", "pool_memory.py", "rotary_kv.py", "quantised_kv.py", "pages.py"} <= names


@pytest.mark.parametrize("kept", ["float32", "int8", "nvfp4", "turboquant_k3v4_nc"])
def test_pools_of_two_lives_are_the_same_memory(fd: int, kept: str) -> None:
    spec, kind = uniform([None, None], 2, 2, 16, 1.0), KV_TYPES[kept]
    first = KeptMemory(fd, DIGEST, 1)
    first.begin(4)
    for number, part in enumerate(parts_of(spec, kind, first), 1):
        part.fill_(number)
    for number, part in enumerate(parts_of(spec, kind, KeptMemory(fd, DIGEST, 2)), 1):
        assert (part == number).all()


def parts_of(spec: KVSpec, kind: KVType, kept: KeptMemory) -> list[torch.Tensor]:
    """Of four blocks of eight tokens; of codes the scales, too."""
    (pool,) = make_pools(spec, 4, 8, kind, kept.take)
    parts = [*codes_of(pool), pool.scales] if isinstance(pool, QuantisedPool) else [pool]
    return [part for part in parts if isinstance(part, torch.Tensor)]


def test_a_mapping_is_of_the_file(fd: int) -> None:
    kept = KeptMemory(fd, DIGEST, 1)
    kept.begin(1)
    assert isinstance(kept.take(1), mmap.mmap) and os.fstat(fd).st_size == 2 * PAGE
