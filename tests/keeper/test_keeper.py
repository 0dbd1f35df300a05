"""KV memory of a GPU that outlives its worker, with a driver that needs none: real processes, descriptors, deaths."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actorserve.actors.keeper.actor import Memories
from actorserve.actors.keeper.driver import Driver, DriverError
from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.model.memory.kv import KVSpec, LayerAttention
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.protocol.sockets import keeper_wire as wire
from actorserve.actors.worker.kept_memory.device import DeviceMemory, drop, needed
from actorserve.actors.worker.kept_memory.file import KeptMemory
from tests.support.client import http_client
from tests.support.server import Server

DIGEST, OTHER = bytes(range(32)), bytes(32)
DEVICE = torch.device("cpu")
SIZE = 3 << 20
LOG = logging.getLogger("keeper")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).with_name("fake_cuda.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, source], check=True)
    return str(path)


def test_a_library_without_a_function_is_no_driver() -> None:
    """An older one, of which the thread that answers must not die."""
    with pytest.raises(DriverError, match="the driver has no cuInit"):
        Driver("libc.so.6")


class Keeper:
    """The actor's part that answers."""

    def __init__(self, library: str) -> None:
        self.memories, self.listener = Memories(Driver(library)), wire.listen_here()
        self.thread = threading.Thread(target=self._answer_on, daemon=True)
        self.thread.start()

    def _answer_on(self) -> None:
        while True:
            line, _ = self.listener.accept()
            with line:
                question = wire.receive(line)
                if question is None:
                    return
                try:
                    wire.answer(line, *self.memories.answer(question))
                except DriverError as error:
                    wire.answer(line, wire.Kept(problem=str(error)), None)

    def end(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(self.listener.getsockname())
        self.thread.join()
        self.listener.close()


@pytest.fixture
def keeper(library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    monkeypatch.setattr(Driver.__init__, "__defaults__", (library,))
    one = Keeper(library)
    yield one
    one.end()


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.memfd_create("header")
    yield fd
    os.close(fd)


def memory(keeper: Keeper, file: int, life: int, digest: bytes = DIGEST) -> DeviceMemory:
    kept = KeptMemory(file, digest, life)
    return DeviceMemory(kept, keeper.listener.fileno(), "worker", digest, DEVICE)


def test_a_worker_that_is_killed_leaves_its_memory(keeper: Keeper, file: int) -> None:
    """Not the part of it that has not been zeros: of what was made nothing is as the driver had it."""
    child = os.fork()
    if not child:
        first = memory(keeper, file, 4)
        assert not first.since
        first.forget()
        first.begin(12, SIZE, 4)
        own = first.take(1000)
        assert not own.any() and not first.take(SIZE - 2000).any()
        own += 5
        os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    second = memory(keeper, file, 5)
    assert second.since == 4 and second.go_on() == 12
    assert bool((second.take(1000) == 5).all()) and not second.take(SIZE - 2000).any()
    assert second.take(8).data_ptr() % 8 == 0
    with pytest.raises(ValueError, match="bytes of KV memory of"):
        second.take(SIZE)


def made(keeper: Keeper, file: int, life: int = 1) -> DeviceMemory:
    one = memory(keeper, file, life)
    one.begin(3, SIZE, life)
    return one


@pytest.mark.parametrize("what", ["another model", "header is gone", "keeper is another", "header is another's"])
def test_what_does_not_belong_together_is_not_gone_on_with(keeper: Keeper, file: int, library: str, what: str) -> None:
    made(keeper, file)
    digest = DIGEST
    if what == "another model":
        digest = OTHER
    elif what == "header is gone":
        os.ftruncate(file, 0)
    elif what == "keeper is another":
        keeper.memories = Memories(Driver(library))
    else:
        KeptMemory(file, DIGEST, 9).begin(3)
    assert not memory(keeper, file, 10, digest).since
    assert memory(keeper, file, 2).since == (1 if what == "another model" else 0)


def test_memory_is_free_when_it_is_dropped(keeper: Keeper, file: int) -> None:
    """Also that which another life made, and dies with nobody."""
    one = made(keeper, file)
    assert keeper.memories.bytes == 4 << 20, "in the driver's grains"
    one.forget()
    assert not keeper.memories.bytes and not memory(keeper, file, 2).since
    made(keeper, file, 2)
    made(keeper, file, 3)
    assert keeper.memories.bytes == 4 << 20 and memory(keeper, file, 4).since == 3


def test_more_than_there_is_cannot_be_had(keeper: Keeper, file: int) -> None:
    with pytest.raises(DriverError, match=r"cuMemCreate: error 2 \(out of memory\)"):
        memory(keeper, file, 1).begin(3, 2 << 30, 1)
    assert not memory(keeper, file, 2).since


def test_without_a_driver_it_is_said() -> None:
    with pytest.raises(DriverError, match="there is no driver of a GPU"):
        Driver("libnosuchdriver.so.1")
    with pytest.raises(ConfigError, match="--keep-kv: on a CPU"):
        make_config({"keep_kv": True, "device": "cpu"})


@pytest.mark.parametrize("eight", [False, True])
def test_pools_lie_in_it(keeper: Keeper, file: int, eight: bool) -> None:
    """The same numbers in the next life's."""
    pytest.importorskip("triton")
    from actorserve.actors.worker.gpu.memory import make_pools, pool_bytes

    shape: Any = Shape()
    kind = torch.float8_e4m3fn if eight else torch.float32
    sizes = pool_bytes(shape, 4, 16, kind)
    first = memory(keeper, file, 1)
    first.begin(4, needed(sizes), 1)
    pools = make_pools(shape, 4, 16, kind, DEVICE, take=first.take)
    for number, pool in enumerate(pools):
        pool.keys.view(torch.uint8).fill_(number + 1)
        pool.values.view(torch.uint8).fill_(number + 11)
        if pool.scales is not None:
            pool.scales.values.fill_(number + 21)
    second = memory(keeper, file, 2)
    assert second.since == 1 and second.go_on() == 4
    for pool, found in zip(pools, make_pools(shape, 4, 16, kind, DEVICE, take=second.take), strict=True):
        assert torch.equal(pool.keys.view(torch.uint8), found.keys.view(torch.uint8))
        assert torch.equal(pool.values.view(torch.uint8), found.values.view(torch.uint8))
        if pool.scales is not None and found.scales is not None:
            assert torch.equal(pool.scales.values, found.scales.values)
    plain = make_pools(shape, 4, 16, kind, DEVICE)
    assert [pool.keys.shape for pool in plain] == [pool.keys.shape for pool in pools]


class FakeBoard:
    life = 1

    def incarnation(self, position: int) -> int:
        return self.life


def context_of(keeper: Keeper, file: int, life: int, **options: Any) -> Any:
    """As much of a worker's context as is asked for its memory."""
    board, spec = FakeBoard(), SimpleNamespace(engine=0, name="worker", index=0, position=0, model=0)
    board.life = life
    return SimpleNamespace(
        board=board, spec=spec, served=SimpleNamespace(engines=range(1)), kept_since=0, log=LOG,
        config=make_config({"keep_kv": True, **options}),
        model=SimpleNamespace(folder=DEMO_FOLDER),
        system=SimpleNamespace(workers_of=lambda engine: [spec]),
        files={"kv-worker": file, wire.KEEPER: keeper.listener.fileno()},
    )  # fmt: skip


def test_a_life_says_since_when_its_memory_is_the_same(keeper: Keeper, file: int) -> None:
    """Of other options, or with more than blocks, it begins anew; who sleeps gives it back."""
    pytest.importorskip("triton")
    from actorserve.actors.worker.kept_memory.on_gpu import KeptOnDevice, held_bytes

    first = context_of(keeper, file, 3)
    assert not held_bytes(first)
    kept = KeptOnDevice(first, DEVICE, True, "what")
    assert not kept.found(None) and not first.kept_since
    take = kept.begin(7, SIZE)
    assert take is not None and first.kept_since == 3
    take(100).fill_(9)
    second = context_of(keeper, file, 4)
    assert held_bytes(second) == keeper.memories.bytes >= SIZE
    kept = KeptOnDevice(second, DEVICE, True, "what")
    assert kept.found(None) == 7 and second.kept_since == 3 and bool((kept.take(100) == 9).all())
    third = context_of(keeper, file, 5, gpu_memory_utilization=0.5)
    assert held_bytes(third), "be it of no use to it"
    kept = KeptOnDevice(third, DEVICE, True, "what")
    assert not kept.found(None) and not third.kept_since and not keeper.memories.bytes
    assert KeptOnDevice(third, DEVICE, False, "what").begin(7, SIZE) is None
    assert KeptOnDevice(context_of(keeper, file, 5, keep_kv=False), DEVICE, True).begin(7, SIZE) is None
    assert not held_bytes(context_of(keeper, file, 5, keep_kv=False))
    assert kept.begin(7, SIZE) is not None
    drop(keeper.listener.fileno(), "worker", LOG)
    found = memory(keeper, file, 6)
    assert not found.since


@pytest.mark.parametrize("found", [False, True])
@pytest.mark.parametrize("call", ["cuMemMap", "cuMemSetAccess"])
def test_memory_that_cannot_be_mapped_is_free_for_torch(
    keeper: Keeper, file: int, monkeypatch: pytest.MonkeyPatch, call: str, found: bool
) -> None:
    """Be it new, or an earlier life's; nothing of it stays mapped here."""
    pytest.importorskip("triton")
    from actorserve.actors.worker.kept_memory.on_gpu import KeptOnDevice

    if found:
        assert KeptOnDevice(context_of(keeper, file, 3), DEVICE, True, "what").begin(7, SIZE)
    context, real, undone = context_of(keeper, file, 4), Driver._call, list[str]()

    def fails(driver: Driver, name: str, *given: object) -> None:
        if name == call:
            raise DriverError(f"{name}: error 1")
        undone.extend([name] if name in ("cuMemUnmap", "cuMemAddressFree") else [])
        real(driver, name, *given)

    monkeypatch.setattr(Driver, "_call", fails)
    kept = KeptOnDevice(context, DEVICE, True, "what")
    assert not kept.found(None) and not keeper.memories.bytes
    assert kept.begin(7, SIZE) is None and not context.kept_since
    assert not keeper.memories.bytes, "the keeper has let go of it"
    assert undone == (["cuMemUnmap"] if call == "cuMemSetAccess" else []) + ["cuMemAddressFree"]


def test_without_a_keeper_memory_goes_with_its_process(
    keeper: Keeper, file: int, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("triton")
    from actorserve.actors.worker.kept_memory.on_gpu import KeptOnDevice, held_bytes

    context = context_of(keeper, file, 3)
    with wire.listen_here() as nobody:
        nobody.shutdown(socket.SHUT_RDWR)
        context.files[wire.KEEPER] = nobody.fileno()
        assert not held_bytes(context)
        kept = KeptOnDevice(context, DEVICE, True, "what")
    assert not kept.found(None) and kept.begin(7, SIZE) is None and not context.kept_since
    assert "KV memory is not kept" in caplog.text


def test_the_keeper_is_an_actor_as_any() -> None:
    """Without a driver nothing is kept, and the server serves; killed, it is there again."""
    with Server("--worker", "scripted", "--keep-kv", "--debug") as server:
        assert "no KV memory is kept: there is no driver of a GPU" in server.output
        os.kill(server.pids()["keeper"], signal.SIGKILL)
        server.wait_for("no KV memory is kept: there is no driver of a GPU")
        with http_client(server) as client:
            asked = {"prompt": "a", "max_tokens": 2}
            assert client.post("/v1/completions", json=asked).status_code == 200


class Shape:
    """As much of an architecture as pools need."""

    layers, kv_heads, head_dim = 3, 2, 16
    kv = KVSpec(layers=(LayerAttention(heads=2, kv_heads=2, key_dim=16, value_dim=16, scale=0.25),) * 3)
