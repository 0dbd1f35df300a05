"""When kernels are compiled: all side by side before the worker says that it is ready, and none after.

Triton compiles a kernel where it is launched with arguments of a kind that were not met before, which takes up to some
seconds, and whoever launches waits for it. So at the start all is launched once without being run, and what has to be
compiled for that is compiled by threads, as many as the worker has cores: nearly all of it is outside Python's lock.
Workers that start beside each other mostly want the same kernels. What one compiles the others find in Triton's folder:
they go on with the next meanwhile, so that together they compile each once.
Later it would be all streams that stand still; so what is compiled then is counted and named instead of being taken for
a slow device.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from logging import Logger
from pathlib import Path
from typing import Any, cast

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime._async_compile import FutureKernel
from triton.runtime.cache import get_cache_manager, triton_key
from triton.runtime.jit import JITFunction

from ...model.memory.machine import usable_cores
from ...options.config import ConfigError
from ...runtime.process import Context
from ...telemetry.gauges import WorkerGauge

LACKS = (
    "Triton builds what launches them with a C compiler, Python's headers and the driver's libcuda.so (Debian, Ubuntu: "
    "apt install gcc python3-dev); --device cpu needs none"
)
TRIES = 2  # the compiler of a GPU's code is a process, which somebody may kill
COMPILED = "__grp__*"  # a file that Triton writes last
AGAIN_S = 0.02  # after which it is looked again whether another worker has compiled a kernel
PATIENCE_S = 60.0  # with one that is stopped, or on a disk that nobody answers for; who is dead holds nothing
ATEN = torch.ops.aten
PRODUCTS = {ATEN.linear.default, ATEN.mm.default}
NEW = {
    *(ATEN.empty.memory_format, ATEN.empty_like.default, ATEN.empty_strided.default),
    *(ATEN.new_empty.default, ATEN.new_empty_strided.default),
}


def begin_to_read_triton() -> None:
    """Its own files, by which it knows whether a kernel was compiled by it: most of a second, beside the weights."""
    threading.Thread(target=triton_key, name="reads-triton", daemon=True).start()


def check_launcher() -> None:
    """ConfigError if what launches kernels cannot be built here: Triton does so at its first use, by a C compiler."""
    if triton.knobs.runtime.interpret:
        return
    try:
        _ = triton.runtime.driver.active.utils
    except (RuntimeError, OSError, ImportError, AssertionError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"--device: kernels of a GPU cannot be launched: {error}. {LACKS}") from error


def compile_ahead(device: torch.device, *launch: Callable[[], None], threads: int | None = None) -> int:
    """Have everything compiled and loaded that these launch, of which nothing is run; how many kernels there are.

    `threads`: how many compile; as many as there are cores. RuntimeError names a kernel that cannot be compiled.
    """
    if triton.knobs.runtime.interpret:
        return 0
    compilers = _Compilers(device, usable_cores() if threads is None else threads)
    try:
        with compilers.pool, _NamedCompilations(compilers):
            with compilers.in_place_of_launches(), _NothingComputed():
                for one in launch:
                    one()
    finally:
        compilers.forget_failed()
    for future, name in compilers.names.items():
        if (error := future.exception()) is not None:
            raise RuntimeError(f"kernel {name} cannot be compiled: {error}") from error
    return len(compilers.names)


class _Compilers:
    """What Triton gives kernels to that are to be compiled."""

    def __init__(self, device: torch.device, threads: int) -> None:
        self.pool = ThreadPoolExecutor(threads, "compiler")
        self._device = _numbered(device)
        self.names: dict[Future[Any], str] = {}
        self.key = ""  # by which Triton knows what is given next
        self._launched = ""
        self._kernels: set[Any] = set()

    @contextmanager
    def in_place_of_launches(self) -> Iterator[None]:
        """Meanwhile this thread's kernels are not run where they are launched."""
        run, own = JITFunction.run, threading.get_ident()

        def compile_only(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> Any:
            if threading.get_ident() == own:
                self._launched, warmup = kernel.fn.__name__, True
                self._kernels.add(kernel)
            return run(kernel, *given, grid=grid, warmup=warmup, **named)

        JITFunction.run = compile_only
        try:
            yield
        finally:
            JITFunction.run = run

    def forget_failed(self) -> None:
        """What could not be compiled Triton would keep as it is, and raise its error again at each launch
        (triton-lang/triton#10921)."""
        for kernel in self._kernels:
            for made, *_ in kernel.device_caches.values():
                for key in [key for key, one in made.items() if isinstance(one, FutureKernel) and one.kernel is None]:
                    del made[key]

    def submit(self, compile: Callable[[], Any]) -> Future[Any]:  # noqa: A002 (it is what it is)
        future = Future[Any]()
        self.names[future] = self._launched
        self.pool.submit(self._try, future, compile, self.key, time.monotonic() + PATIENCE_S)
        return future

    def _try(self, future: Future[Any], compile: Callable[[], Any], key: str, until: float) -> None:  # noqa: A002
        """Compile it, or find it compiled; what another worker is about comes behind all others. An error is the
        kernel's, whatever fails here: Triton waits for all that it has given."""
        try:
            _use(self._device)
            with _holding(key) as ours:
                kernel = _compiled(compile) if ours or time.monotonic() > until else None
            if kernel is None:
                time.sleep(AGAIN_S)
                self.pool.submit(self._try, future, compile, key, until)
                return
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(kernel)


class _NamedCompilations(triton.AsyncCompileMode):  # type: ignore[misc]
    """Tells who compiles which kernel it is."""

    def __init__(self, compilers: _Compilers) -> None:
        super().__init__(cast(Any, compilers), ignore_errors=True)

    def submit(self, key: str, *given: Any) -> Any:
        self.executor.key = key
        return super().submit(key, *given)


@contextmanager
def _holding(key: str) -> Iterator[bool]:
    """Whether nobody else compiles this kernel meanwhile; True also where it is compiled, or that cannot be known.
    The lock is a file in the folder where Triton is to have the kernel, and is let go by a death, too.
    """
    descriptor = None
    try:
        file = getattr(get_cache_manager(hashlib.sha256(key.encode()).hexdigest()), "lock_path", None)
        if file is not None and not any(Path(file).parent.glob(COMPILED)):
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)  # NFS locks what may be written
    except OSError:
        pass
    if descriptor is None:
        yield True
        return
    try:
        yield _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a folder on a disk without locks
        pass
    return True


def _numbered(device: torch.device) -> torch.device:
    """A GPU by its number, without which no thread can take it; who asks may have one that is its own."""
    return torch.device("cuda", torch.cuda.current_device()) if str(device) == "cuda" else device


def _use(device: torch.device) -> None:
    """A thread loads kernels onto the device that is its own."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _compiled(compile: Callable[[], Any]) -> Any:  # noqa: A002
    """A kernel, once it is loaded, for which some versions of Triton compile C as well."""
    for left in reversed(range(TRIES)):
        try:
            kernel = compile()
            kernel.run  # noqa: B018
            return kernel
        except Exception:
            if not left:
                raise
    raise AssertionError


class _NothingComputed(TorchDispatchMode):
    """Meanwhile memory that is new is zeros, since no kernel writes to it, and its numbers may be looked up in tables;
    and products, which would take longest, are zeros, too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: for that torch imports its compiler, which takes longer than some kernels take to compile."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS:
            x, weight = args[:2]
            return x.new_zeros(*x.shape[:-1], weight.shape[0 if func is ATEN.linear.default else 1])
        made = func(*args, **(kwargs or {}))
        return cast(Tensor, made).zero_() if func in NEW else made


@contextmanager
def writable_cache(log: Logger) -> Iterator[None]:
    """Where Triton's folder of compiled kernels cannot be written, one that is there for the start."""
    folder = Path(triton.knobs.cache.dir)
    if _is_writable(folder):
        yield
        return
    log.warning("%s cannot be written: kernels are compiled anew at each start", folder)
    with tempfile.TemporaryDirectory(prefix="actorserve-kernels-") as own:
        triton.knobs.cache.dir = own
        yield


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def report_late_compilations(context: Context) -> None:
    """From now on each kernel that is compiled is counted (`actorserve:late_kernel_compilations`) and logged."""

    def compiled(*, fn: Any, repr: str, **others: Any) -> None:  # noqa: A002 (Triton's names)
        context.status.add(WorkerGauge.LATE_COMPILATIONS, 1)
        context.log.warning("kernel %s was compiled while requests ran: they stood still for it", fn.name)
        context.log.debug("compiled late: %s", repr)

    triton.knobs.runtime.jit_post_compile_hook = compiled


@contextmanager
def compiling(context: Context) -> Iterator[None]:
    """A start whose kernels are compiled as they are launched: what is compiled later is counted."""
    begin_to_read_triton()
    with writable_cache(context.log):
        yield
    report_late_compilations(context)
