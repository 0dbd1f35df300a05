"""Weights that a start leaves for the next one: the same bits, and a miss where the file is not what it should be."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.weights.weight_cache import GIB, NEW, weight_files
from actorserve.actors.options.config import Config
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.cpu.layers import native
from actorserve.actors.worker.models import weights as load_weights
from actorserve.actors.worker.models.weights import load_model
from actorserve.actors.worker.weight_cache import cache, file
from actorserve.actors.worker.weight_cache import quiet as quiet_steps
from actorserve.actors.worker.weight_cache.cache import WeightCache
from actorserve.actors.worker.weight_cache.quiet import Quiet
from actorserve.kernels.cpu.native.linear import NativeLinear, Scales
from tests.support.models.gguf.files import convert

from .driver import config_for

Folders = Callable[..., Path]
LOADED = WeightCache.loaded


@pytest.fixture
def weights(native_kernels: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which they are kept, of small models as well; a load has written its own when it returns."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "LEAST", 0)
    monkeypatch.setattr(file, "CHUNK", 1 << 12)
    monkeypatch.setattr(file, "large_share", lambda path: 1.0)  # as of a file that is larger
    loaded = WeightCache.loaded

    def waited(self: WeightCache) -> None:
        if writer := loaded(self):
            writer.join()

    monkeypatch.setattr(WeightCache, "loaded", waited)
    return tmp_path / "actorserve" / "weights"


def load(config: Config) -> tuple[CpuModel, int]:
    """(a model, how many of its bytes are those of a file)."""
    memory = native.current().weights  # type: ignore[union-attr]
    before = memory.mapped
    return load_model(config, resolve_model(config)), memory.mapped - before


def parts(model: CpuModel) -> list[NativeLinear]:
    linears = [one for layer in model.layers for one in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    found = [one for one in (*linears, model.head) if isinstance(one, NativeLinear)]
    assert len(found) == len(linears) + 1
    return found


def assert_same(one: CpuModel, other: CpuModel) -> None:
    for mine, yours in zip(parts(one), parts(other), strict=True):
        numbers = [
            (part.inputs, *(getattr(part.data, name) for name in ("kind", "outputs", "scaled", "group", "stride")))
            for part in (mine, yours)
        ]
        assert numbers[0] == numbers[1]
        for own, others in zip(mine.kept, yours.kept, strict=True):
            assert (own is None) == (others is None)
            assert own is None or others is None or (own.dtype == others.dtype and torch.equal(own, others))


@pytest.mark.parametrize("large_pages", [True, False])
@pytest.mark.parametrize("quantization", ["auto", "int8", "int4"])
def test_the_next_start_has_the_same_bits(
    weights: Path, checkpoints: Folders, monkeypatch: pytest.MonkeyPatch, quantization: str, large_pages: bool
) -> None:
    """Mapped, or copied where the map has no large pages."""
    monkeypatch.setattr(file, "large_share", lambda path: float(large_pages))
    config = config_for(checkpoints("qwen2"), quantization=quantization)
    made, none = load(config)
    (kept,) = weights.iterdir()
    found, mapped = load(config)
    assert_same(made, found)
    assert none == 0 and (mapped == 0) == (not large_pages)
    assert list(weights.iterdir()) == [kept]
    ids = torch.arange(5)
    x, weight = made.embed(ids), parts(made)[0]
    assert torch.equal(weight(x), parts(found)[0](x))


def test_outputs_of_several_kinds_are_kept(weights: Path, checkpoints: Folders, tmp_path: Path) -> None:
    source = checkpoints("qwen2", hidden_size=256, intermediate_size=256)
    convert(source, tmp_path / "model.gguf", lambda name: "Q6_K" if "self_attn.v" in name else "Q4_K")
    config = config_for(tmp_path / "model.gguf", dtype="auto", device="cpu")
    made, found = load(config)[0], load(config)[0]
    for mine, yours in zip(made.layers, found.layers, strict=True):
        assert isinstance(mine.qkv, NativeLinear) and isinstance(yours.qkv, NativeLinear)
        assert [part.data.scaled for part in yours.qkv.parts] == [Scales.SUPER_BLOCKS, Scales.SIX_BITS]
        x = torch.randn(3, mine.qkv.inputs)
        assert yours.qkv.outputs == mine.qkv.outputs and torch.equal(mine.qkv(x), yours.qkv(x))
        assert yours.qkv.bias is not None and torch.equal(torch.as_tensor(mine.qkv.bias), yours.qkv.bias)


def test_what_it_follows_from_is_in_its_name(weights: Path, checkpoints: Folders) -> None:
    folder = checkpoints("llama")
    load(config_for(folder))
    load(config_for(folder, deterministic=True))
    assert len(weight_files()) == 2
    model = next(folder.glob("*.safetensors"))
    os.utime(model, ns=(1, 1))
    assert load(config_for(folder))[1] == 0 and len(weight_files()) == 3


def test_files_that_are_replaced_while_they_are_read(
    weights: Path, checkpoints: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made of the old ones is not what the next start finds of the new ones."""
    folder = Path(shutil.copytree(checkpoints("llama"), tmp_path / "model"))
    file, new = folder / "model.safetensors", tmp_path / "new"
    save_file({name: 2 * one for name, one in load_file(file).items()}, new)
    opened = load_weights.open_weights

    def replaced(*args: Any) -> Any:
        found = opened(*args)
        new.replace(file)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(load_weights, "open_weights", replaced)
        load(config_for(folder))
    found, _ = load(config_for(folder))
    assert_same(load(config_for(folder, weight_cache_gib=0))[0], found)


def test_none_are_kept_or_used_where_none_are_wanted(weights: Path, checkpoints: Folders) -> None:
    folder = checkpoints("llama")
    load(config_for(folder, weight_cache_gib=0))
    assert not weights.exists()
    load(config_for(folder, weight_cache_gib=1e-6))
    assert not list(weights.iterdir()), "they are larger than that"
    load(config_for(folder))
    assert load(config_for(folder, weight_cache_gib=0))[1] == 0


@pytest.mark.parametrize("damage", ["shorter", "longer", "empty", "header", "end", "another"])
def test_what_is_not_whole_is_made_anew(weights: Path, checkpoints: Folders, damage: str) -> None:
    config = config_for(checkpoints("llama"))
    made, _ = load(config)
    (kept,) = weights.iterdir()
    whole = kept.read_bytes()
    broken = {
        "shorter": whole[:-1], "longer": whole + b"x", "empty": b"", "header": whole[:40] + b"\xff" + whole[41:],
        "end": whole[:-1] + bytes([whole[-1] ^ 1]), "another": b"x" * len(whole),
    }  # fmt: skip
    kept.unlink()  # it may be mapped still
    kept.write_bytes(broken[damage])
    again, mapped = load(config)
    assert not mapped
    assert_same(made, again)
    assert kept.read_bytes() == whole and load(config)[1]


def test_a_disk_without_room(
    weights: Path, checkpoints: Folders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "worker")
    written, write = [], os.pwritev

    def full(fd: int, data: list[memoryview], offset: int) -> int:
        written.append(offset)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwritev", full)
    load(config_for(checkpoints("llama")))
    assert len(written) == 3 and not list(weights.iterdir())
    assert f"not kept for the next start: {weights}: No space left on device" in caplog.text
    monkeypatch.setattr(cache, "SPARE", 1 << 60)
    load(config_for(checkpoints("llama")))
    assert len(written) == 3 and "too little room" in caplog.text


def test_of_two_who_write_at_once_one_does(weights: Path, checkpoints: Folders) -> None:
    config = config_for(checkpoints("llama"))
    load(config)
    (kept,) = weights.iterdir()
    new = kept.rename(kept.with_name(NEW + kept.name))
    with new.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        load(config)
        assert list(weights.iterdir()) == [new]
    load(config)  # the other one is gone, and its part is not gone on with
    assert list(weights.iterdir()) == [kept] and load(config)[1]


def killed_load(config: Config, at: int) -> int:
    """How a process ends that is killed at this write, or before it renames the file."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count, write = [], os.pwritev

    def dies(fd: int, data: list[memoryview], offset: int) -> int:
        count.append(offset)
        if len(count) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(fd, data, offset)

    os.pwritev = dies  # type: ignore[assignment]
    Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,method-assign]
    load_model(config, resolve_model(config))
    os._exit(0)


def test_one_who_is_killed_while_it_writes(weights: Path, checkpoints: Folders) -> None:
    """At the first chunk, in the middle, before it is renamed: nothing of it is ever used."""
    config = config_for(checkpoints("llama"))
    for at in (1, 9, 0):
        assert killed_load(config, at) == -signal.SIGKILL
        assert [path.name[: len(NEW)] for path in weights.iterdir()] == [NEW]
    made, mapped = load(config)
    assert not mapped and len(list(weights.iterdir())) == 1
    found, mapped = load(config)
    assert mapped
    assert_same(made, found)


def test_the_longest_unused_are_removed(weights: Path, checkpoints: Folders) -> None:
    first, second = (config_for(checkpoints("llama"), deterministic=choice) for choice in (False, True))
    load(first)
    load(second)
    newer, older = weight_files()
    for age, one in enumerate((older, newer)):
        os.utime(one.path, ns=(age, age))
    load(first)  # it is used, and the other one is older now
    room = 2.5 * max(one.bytes for one in (newer, older)) / GIB
    load(config_for(checkpoints("qwen2"), weight_cache_gib=room))
    assert {one.model for one in weight_files()} == {str(checkpoints("llama")), str(checkpoints("qwen2"))}
    assert older.path.exists() and not newer.path.exists()


def test_a_folder_that_others_may_write_is_not_used(weights: Path, checkpoints: Folders) -> None:
    weights.mkdir(parents=True)
    weights.chmod(0o777)
    load(config_for(checkpoints("llama")))
    assert not list(weights.iterdir())


def test_it_is_written_while_no_step_is_computed(
    weights: Path, checkpoints: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk at most stands beside the beginning of a step, and the next waits for its end."""
    written, write, library = threading.Semaphore(0), os.pwritev, native.current()
    wanted = threading.Event()

    def told(fd: int, data: list[memoryview], offset: int) -> int:
        assert wanted.wait(60)
        done = write(fd, data, offset)
        written.release()
        return done

    monkeypatch.setattr(os, "pwritev", told)
    monkeypatch.setattr(WeightCache, "loaded", LOADED)
    waits, slept = threading.Semaphore(0), time.sleep

    def sleep(seconds: float) -> None:
        waits.release()
        slept(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    config = config_for(checkpoints("llama"))
    with native.awake(library, 1):
        load(config)
        wanted.set()
        for _ in range(3):
            assert waits.acquire(timeout=60)
        assert not written.acquire(blocking=False)
    for writer in threading.enumerate():
        if writer.name == "weight cache":
            writer.join(60)
    assert written.acquire(blocking=False) and load(config)[1]


@pytest.mark.parametrize("tokens", [1, 1000])
def test_a_piece_of_it_is_written_under_load_too(
    native_kernels: None, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After PATIENCE_S without a pause."""
    now, quiet = [100.0], Quiet()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)

    def waited() -> float:
        before = now[0]
        quiet.wait()
        return now[0] - before

    assert waited() == 0
    monkeypatch.setattr(native, "QUIET", quiet)
    with native.awake(native.current(), tokens):
        assert waited() == pytest.approx(quiet_steps.PATIENCE_S, abs=quiet_steps.QUIET_S)
    assert waited() == pytest.approx(quiet_steps.QUIET_S)
    assert waited() == 0
