"""Lives of workers, one after the other: what is computed with where bits are promised, and where not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.memory.machine import cpu_flags
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.process import RENEW, Context
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.worker.cpu.layers import native
from actorserve.actors.worker.start import kernels
from actorserve.actors.worker.start.kernels import promises_bits, use_kernels
from actorserve.kernels.cpu.native.compiler import NativeError
from actorserve.kernels.cpu.native.library import Image, Library, load
from tests.support.compiler import need_compiler

from ..driver import config_for

Folders = Callable[..., Path]


class Machine:
    """A server's, as its workers find it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, **options: object) -> None:
        self.config = config_for(folder, **options)
        self.memory = Memory(System(self.config, resolve_model(self.config)))
        self.patch = patch
        self.can_load(True)
        patch.setattr(kernels, "AGAIN_S", 0.0)

    def can_load(self, works: bool, variant: str = "") -> None:
        """By the cache and the compiler; another variant than the machine's, perhaps."""

        def find(flags: set[str], keep: Callable[[Image], None]) -> Library:
            if not works:
                raise NativeError("cc fails")
            return load(flags, variant or None, keep)

        self.patch.setattr(kernels, "load", find)

    def forbid_memory(self) -> None:
        """No library may be in memory."""

        def refuse(image: Image) -> Library:
            raise NativeError(f"{image.name} in memory: not permitted")

        self.patch.setattr(kernels, "load_image", refuse)

    def life(self, threads: int = 2) -> tuple[str, int]:
        """What the next one computes with, and by how many threads."""
        native.stop()
        context = Context(self.memory.boot(self.memory.system.by_name["worker"]))
        try:
            threads = use_kernels(context, threads, promises_bits(context))
        finally:
            context.close()
        library = native.current()
        return "torch" if library is None else library.variant, threads


@pytest.fixture
def machine(checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machine]]:
    need_compiler()
    yield lambda **options: Machine(checkpoints("llama"), monkeypatch, **options)
    native.stop()


PROMISED = [{"deterministic": True}, {"quantization": "int8"}]


def test_lesser_kernels_than_the_processor_runs_are_warned_of(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One says nothing where they are those of the processor."""
    machine().life()
    assert not [one for one in caplog.records if one.levelname == "WARNING"]
    server, lesser = machine(), load(cpu_flags())
    lesser.lack = "not amx: cc fails: no such instruction"
    monkeypatch.setattr(kernels, "load", lambda flags, keep: lesser)
    server.life()
    (warned,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warned == f"kernels: native ({lesser.variant}; {lesser.lack})"


@pytest.mark.parametrize("options", [{}, *PROMISED])
def test_later_lives_have_the_library_of_the_first(machine: Callable[..., Machine], options: dict[str, object]) -> None:
    server = machine(**options)
    first = server.life()
    assert first[0] != "torch"
    server.can_load(False)
    assert server.life() == server.life() == first


@pytest.mark.parametrize("options", PROMISED)
def test_torch_stays_where_bits_are_promised(
    machine: Callable[..., Machine], options: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    server = machine(**options)
    server.can_load(False)
    assert server.life() == ("torch", 2)
    assert "kernels: torch: cc fails; until the server is started again" in caplog.text
    server.can_load(True)
    assert server.life() == ("torch", 2)


def test_where_none_are_it_goes_with_the_trouble(machine: Callable[..., Machine]) -> None:
    server = machine()
    server.can_load(False)
    assert server.life() == ("torch", 2)
    server.can_load(True)
    assert server.life()[0] != "torch"


def test_the_number_of_threads_is_that_of_the_first(machine: Callable[..., Machine]) -> None:
    """Cores may come and go."""
    server = machine(deterministic=True)
    assert server.life(3)[1] == server.life(1)[1] == 3
    other = machine()
    assert (other.life(3)[1], other.life(1)[1]) == (3, 1)


@pytest.mark.parametrize("works", [True, False])
def test_who_cannot_have_the_same_waits_and_says_why(
    machine: Callable[..., Machine], caplog: pytest.LogCaptureFixture, works: bool
) -> None:
    server = machine(deterministic=True)
    first = server.life()
    if works and first[0] == "plain":
        pytest.skip("this processor runs no other kernels")
    server.forbid_memory()
    assert server.life() == first, "the cache is there still"
    server.can_load(works, "plain")
    with pytest.raises(SystemExit) as end:
        server.life()
    assert end.value.code == RENEW
    reason = f"they are plain, and the workers before had {first[0]}" if works else "cc fails"
    assert f"kernels: {reason}; requests wait until they can be had" in caplog.text
    server.can_load(True)
    assert server.life() == first


def test_other_options_choose_anew(machine: Callable[..., Machine]) -> None:
    server = machine(deterministic=True)
    first = server.life()
    server.memory.system = System(
        config_for(Path(server.config.model), deterministic=True, cpu_kernels="torch"), resolve_model(server.config)
    )
    assert server.life() == ("torch", 2)
    assert first[0] != "torch"
