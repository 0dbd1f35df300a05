"""Kernels that are compiled side by side before any is run: what becomes of those that cannot be, of a compiler that is
killed, of a cache that cannot be written, and of a start with such a one.

Another process does it, because this one may have set TRITON_INTERPRET, under which nothing is compiled.
"""

from __future__ import annotations

import fcntl
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from tests.support.gpu.no_device import NoDevice, compile_nothing
from tests.support.warm import run_module

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
PATIENCE_S = 120
LOWER = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}  # products of float32 are TF32, as in images of CUDA


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = run_module("tests.worker.gpu.test_compile_ahead", wait_s=280, TRITON_INTERPRET="0", **LOWER)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_they_are_compiled_side_by_side_and_not_run(found: dict[str, Any]) -> None:
    assert found["together"] == {"count": 2, "ran": 0, "then": 2}


def test_torchs_own_compiler_is_not_imported_for_it(found: dict[str, Any]) -> None:
    assert found["imported"] == []


def test_a_compiler_that_is_killed_is_started_again(found: dict[str, Any]) -> None:
    assert found["killed once"] == {"count": 1, "tries": 2}


def test_one_that_cannot_be_compiled_is_named(found: dict[str, Any]) -> None:
    """The others are compiled all the same, and it is where it is launched, if it can be by then."""
    assert found["impossible"] == {
        "said": "kernel silu_mul_kernel cannot be compiled: no such instruction",
        "others": 1,
        "ran": 2,
        "then": 1,
    }


def test_what_another_worker_compiles_is_left_to_it(found: dict[str, Any]) -> None:
    """The next one is compiled meanwhile; and that one, too, once the other worker was killed in the middle of it."""
    assert found["elsewhere"] == [12, 11]


def test_a_worker_that_stands_still_is_not_waited_for(found: dict[str, Any]) -> None:
    assert found["stopped"] == [13]


def test_what_others_have_compiled_waits_for_nobody(found: dict[str, Any]) -> None:
    """Triton has it in the folder that the lock was in."""
    assert found["compiled"] == {"waited": False, "hit": [False, True]}


def test_threads_take_the_device_of_who_asks(found: dict[str, Any]) -> None:
    """By its number, also where that was not said: torch takes no other."""
    assert found["devices"] == ["cuda:3", "cuda:1"]


def test_a_device_that_cannot_be_taken_is_an_error(found: dict[str, Any]) -> None:
    """Nothing waits for what nobody compiles."""
    assert found["no device"] == "kernel silu_mul_kernel cannot be compiled: no such device"


def test_kernels_are_launched_as_ever_afterwards(found: dict[str, Any]) -> None:
    """Also where what was to be launched has failed."""
    assert found["failed"] == {"said": "no memory", "ran": 2}


def test_a_cache_that_cannot_be_written(found: dict[str, Any]) -> None:
    """The worker starts with a folder of its own, which is gone afterwards."""
    said = "/dev/null/cache cannot be written: kernels are compiled anew at each start"
    assert found["cache"] == {"written": True, "left": False, "said": [said], "kept": True}


def test_a_start_builds_what_launches_kernels_there(found: dict[str, Any]) -> None:
    """That, too, is compiled into Triton's folder, and its error would be one about a compiler."""
    assert found["start"]["built"] == [True]


def test_a_start_computes_float32_as_such(found: dict[str, Any]) -> None:
    assert found["start"]["precisions"] == ["high", "highest"]


def main() -> None:
    torch.set_num_threads(1)
    ran: list[str] = []
    compile_nothing(lambda *given: ran.append("it"))
    kernels = Kernels(ran)
    told = {
        "together": kernels.together(),
        "killed once": kernels.killed_once(),
        "impossible": kernels.impossible(),
        "failed": kernels.failed(),
        "elsewhere": kernels.elsewhere(),
        "stopped": kernels.stopped(),
        "devices": kernels.devices(),
        "no device": kernels.without_device(),
        "compiled": compiled_by_others(),
        "cache": cache(),
        "start": start(),
        "imported": [name for name in sys.modules if name == "torch._dynamo"],
    }
    print(json.dumps(told))


class Kernels:
    """One kernel, which is another for each size; and a compiler in the place of Triton's."""

    def __init__(self, ran: list[str]) -> None:
        from actorserve.actors.worker.gpu import compilations
        from actorserve.kernels.triton import silu_mul

        self.ran, self.module, self.compilations = ran, silu_mul, compilations
        self.compile_ahead = partial(compilations.compile_ahead, CPU, threads=2)
        self.launch(1)()
        self.kernel: Any = silu_mul.silu_mul_kernel
        self.nothing: Any = self.kernel.compile  # a stand-in's, which makes nothing

    def launch(self, *sizes: int) -> Callable[[], None]:
        def launch() -> None:
            for size in sizes:
                self.module.silu_mul(torch.zeros(2, 2 * size))

        return launch

    def together(self) -> dict[str, int]:
        """Two wait for each other: one by one they would do so for good."""
        both, before = threading.Barrier(2, timeout=PATIENCE_S), len(self.ran)
        self.kernel.compile = lambda *given, **named: both.wait() >= 0 and self.nothing(*given, **named)
        count = self.compile_ahead(self.launch(2, 3, 2))
        ran = len(self.ran)
        self.launch(2, 3)()
        return {"count": count, "ran": ran - before, "then": len(self.ran) - ran}

    def killed_once(self) -> dict[str, int]:
        tries: list[int] = []

        def compiled(*given: Any, **named: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                raise subprocess.CalledProcessError(-9, "ptxas")
            return self.nothing(*given, **named)

        self.kernel.compile = compiled
        return {"count": self.compile_ahead(self.launch(4)), "tries": len(tries)}

    def impossible(self) -> dict[str, Any]:
        others: list[int] = []

        def compiled(source: Any, *given: Any, **named: Any) -> Any:
            if 5 in source.constants.values():
                raise ValueError("no such instruction")
            others.append(1)
            return self.nothing(source, *given, **named)

        self.kernel.compile = compiled
        with pytest.raises(RuntimeError) as raised:
            self.compile_ahead(self.launch(5, 6))
        told, before = {"said": str(raised.value), "others": len(others)}, len(self.ran)
        again = self.kernel.compile = Mock(side_effect=self.nothing)
        self.launch(5, 6)()
        return told | {"ran": len(self.ran) - before, "then": again.call_count}

    def failed(self) -> dict[str, Any]:
        def without_memory(*given: Any, **named: Any) -> None:
            raise torch.OutOfMemoryError("no memory")

        self.kernel.compile = without_memory

        with pytest.raises(torch.OutOfMemoryError) as raised:
            self.compile_ahead(self.launch(8), without_memory)
        before = len(self.ran)
        self.kernel.compile = self.nothing
        self.launch(7, 8)()
        return {"said": str(raised.value), "ran": len(self.ran) - before}

    def sizes_compiled(self, sizes: list[int], then: Callable[[], object]) -> list[int]:
        """In which order one thread compiles these; `then`: what happens at each."""
        order: list[int] = []

        def compiled(source: Any, *given: Any, **named: Any) -> Any:
            order.append(next(value for value in source.constants.values() if value in sizes))
            then()
            return self.nothing(source, *given, **named)

        self.kernel.compile = compiled
        self.compile_ahead(self.launch(*sizes), threads=1)
        self.kernel.compile = self.nothing
        return order

    def elsewhere(self) -> list[int]:
        with other_worker(self.lock_of(11)) as other:
            return self.sizes_compiled([11, 12], other.kill)

    def stopped(self) -> list[int]:
        with other_worker(self.lock_of(13)), pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.compilations, "PATIENCE_S", 0.0)
            return self.sizes_compiled([13], lambda: None)

    def devices(self) -> list[str]:
        """Where threads compile what is for a GPU, and for one of two."""
        taken: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "current_device", lambda: 3)
            patch.setattr(torch.cuda, "set_device", lambda device: taken.append(str(device)))
            self.kernel.compile = self.nothing
            for size, device in ((15, torch.device("cuda")), (16, torch.device("cuda", 1))):
                self.compilations.compile_ahead(device, self.launch(size), threads=1)
        return taken

    def without_device(self) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "set_device", Mock(side_effect=ValueError("no such device")))
            with pytest.raises(RuntimeError) as raised:
                self.compilations.compile_ahead(torch.device("cuda", 7), self.launch(17, 18), threads=1)
        return str(raised.value)

    def lock_of(self, size: int) -> Path:
        """The file that whoever compiles this holds."""
        before = {*locks()}
        self.compile_ahead(self.launch(size))
        forget(self.kernel)
        (lock,) = {*locks()} - before
        return lock


def locks() -> Iterator[Path]:
    import triton

    return Path(triton.knobs.cache.dir).glob("*/lock")


def forget(kernel: Any) -> None:
    """What is compiled of it in this process."""
    for made, *_ in kernel.device_caches.values():
        made.clear()


def triton_mode() -> Any:
    import triton

    return triton.AsyncCompileMode


@contextmanager
def other_worker(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """It compiles what this is the lock of, and comes to no end."""
    hold = "import fcntl, signal; one = open({!r}); fcntl.flock(one, fcntl.LOCK_EX); print(flush=True); signal.pause()"
    command = [sys.executable, "-S", "-c", hold.format(str(lock))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            yield process
        finally:
            process.kill()


def compiled_by_others() -> dict[str, Any]:
    """One that Triton compiles; and again, when somebody holds what it held then."""
    import triton
    from triton.compiler.compiler import compile as compile_  # that of the package is a stand-in

    from actorserve.actors.worker.gpu import compilations
    from actorserve.kernels.triton.silu_mul import silu_mul, silu_mul_kernel

    hits: list[bool] = []
    waits: list[float] = []
    silu_mul_kernel.compile = compile_
    triton.knobs.compilation.listener = lambda **told: hits.append(told["cache_hit"])

    def launch() -> None:
        silu_mul(torch.zeros(2, 28))

    again = partial(compilations.compile_ahead, CPU, launch, threads=1)
    again()
    forget(silu_mul_kernel)
    (lock,) = (file for file in locks() if [*file.parent.glob("*.cubin")])
    with lock.open() as held, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(held, fcntl.LOCK_EX)

        def let_go(wait: float) -> None:
            waits.append(wait)
            fcntl.flock(held, fcntl.LOCK_UN)

        patch.setattr(time, "sleep", let_go)
        again()
    triton.knobs.compilation.listener = None
    return {"waited": bool(waits), "hit": hits}


def cache() -> dict[str, Any]:
    import triton

    from actorserve.actors.worker.gpu.compilations import writable_cache

    said: list[str] = []
    log = logging.Logger("worker")
    log.addHandler(type("Said", (logging.Handler,), {"emit": lambda self, record: said.append(record.getMessage())})())
    triton.knobs.cache.dir = "/dev/null/cache"
    with writable_cache(log):
        own = Path(triton.knobs.cache.dir)
        (own / "it").write_text("a kernel")
        written = (own / "it").exists()
    left = own.exists()
    with tempfile.TemporaryDirectory() as folder:
        triton.knobs.cache.dir = f"{folder}/new"
        with writable_cache(log):
            kept = triton.knobs.cache.dir == f"{folder}/new"
    return {"written": written, "left": left, "said": said, "kept": kept}


def start() -> dict[str, Any]:
    """The beginning of a worker's, where the folder cannot be written and launchers are to be built."""
    import triton

    from actorserve.actors.worker.gpu import start as gpu_start

    built: list[bool] = []

    def further(*given: object) -> None:
        raise InterruptedError

    class Driver(NoDevice):
        def __getattribute__(self, name: str) -> Any:
            if name == "utils":
                folder = Path(triton.knobs.cache.dir) / "key"
                folder.mkdir(parents=True)
                built.append(folder.exists())
            return super().__getattribute__(name)

    triton.runtime.driver.set_active(Driver())
    triton.knobs.cache.dir = "/dev/null/cache"
    precisions = [torch.get_float32_matmul_precision()]
    system = SimpleNamespace(first_device=lambda engine: 0)
    context: Any = SimpleNamespace(spec=SimpleNamespace(engine=0, index=0), system=system)
    context.config = SimpleNamespace(keep_kv=False)
    context.log, context.phase_ends = logging.Logger("worker"), lambda phase: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "set_device", lambda device: None)
        patch.setattr(gpu_start, "await_freed_memory", further)
        with pytest.raises(InterruptedError):
            gpu_start.start(context)
    precisions.append(torch.get_float32_matmul_precision())
    return {"built": built, "precisions": precisions}


if __name__ == "__main__":
    main()
