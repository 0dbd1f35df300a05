"""A GPU that is pretended: tensors say that they are there, and their numbers are the host's.

What torch does with such tensors is done by a CPU, and kernels run in Triton's interpreter; what a GPU would refuse, or
what only a GPU shows, is an error here:
    tensors of two devices in one operation, or a kernel that is given memory of the host
    within a capture     any copy between the two, any look at a number, and a pool of graphs that are gone
    while `hurrying`, or where torch is to refuse it (set_sync_debug_mode)
                         all for which torch waits for the device: numbers that are looked at, copies from or to memory
                         that is not pinned or that are to block
    memory in flight     what comes from the device is there when an event behind it was waited for, and nonsense
                         before; pinned memory that is written to before that is found
Composite operations are seen in their parts only without `inference_mode`, in whose place `no_grad` is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, ClassVar

import pytest
import torch
import triton
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from .dispatch_mode import DispatchMode
from .pretended_cuda import DeviceMemory, names_of
from .recorded_graphs import RecordedGraph, again

DEVICE = torch.device("cuda", 0)
SHELL = "meta"
NONSENSE = 0x55  # in each byte of what has not come yet
LOOKS = {  # operations whose results' sizes, or which themselves, are numbers of the device
    *("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero"),
    *("aten::_unique2", "aten::unique_dim", "aten::bincount"),
}


on_the_host = _disable_current_modes  # a context in which nothing of this is in the way


class OnDevice(Tensor):
    """A tensor there; `held` has its numbers."""

    held: Tensor
    memory: ClassVar[DeviceMemory] = DeviceMemory()

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        """What torch itself sees is a tensor without data: of a device that it was not built for it would refuse it."""
        with _disable_current_modes():
            shell = torch.empty_strided(inner.shape, inner.stride(), dtype=inner.dtype, device=SHELL)
            made: OnDevice = Tensor._make_subclass(cls, shell)
        made.held = inner
        OnDevice.memory.take(made, inner.untyped_storage())
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    def tolist(self) -> Any:
        """Which torch refuses for tensors that are not its own."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise AssertionError(f"{func} without the device that has it")


class PretendedDevice(DispatchMode):
    """Does what torch is asked for, and knows what is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.graph: RecordedGraph | None = None  # that is captured
        self.hurry = self.refuses = False
        self._pinned: dict[int, Any] = {}  # memory, which is kept, so that its address is nobody else's
        self._queue: list[Callable[[], None]] = []
        self._done = 0

    # --- what is under way ---------------------------------------------------------------------------------------

    @property
    def given(self) -> int:
        """How much was given to it so far."""
        return self._done + len(self._queue)

    def wait(self, given: int | None = None) -> None:
        """All of it is done, or so much."""
        count = len(self._queue) if given is None else max(0, given - self._done)
        own, self._queue = self._queue[:count], self._queue[count:]
        self._done += len(own)
        for end in own:
            end()

    @contextlib.contextmanager
    def hurrying(self) -> Iterator[None]:
        """Meanwhile nothing waits for it."""
        self.hurry = True
        try:
            yield
        finally:
            self.hurry = False

    def _looked_at(self, what: str) -> None:
        assert self.graph is None, f"{what} within a capture"
        if self.refuses:
            raise RuntimeError(f"called a synchronizing CUDA operation: {what}")
        assert not self.hurry, f"{what}: the host waits for the device"
        self.wait()

    # --- operations ----------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), func.name().partition(".")[0]
        if name in ("aten::is_pinned", "aten::_pin_memory"):
            return self._pin(args[0]) if name.endswith("_pin_memory") else self._is_pinned(args[0])
        if name in ("aten::copy_", "aten::_to_copy"):
            return self._copy(func, name, args, kwargs)
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        there = any(isinstance(one, OnDevice) for one in tensors)
        alone = [one for one in tensors if not isinstance(one, OnDevice) and one.dim()]
        assert not there or not alone, f"{func}: {[one.shape for one in alone]} are on the host"
        if there and (name in LOOKS or _looks(name, args)):
            self._looked_at(str(func))
        made_there = is_there(kwargs["device"]) if kwargs.get("device") is not None else there
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs["device"] = torch.device("cpu")
        pinned = kwargs.pop("pin_memory", None)
        made = self._do(func, tree_map(_inner, args), tree_map(_inner, kwargs))
        if pinned:
            self._pinned[made.untyped_storage().data_ptr()] = made.untyped_storage()
        if _changes(func):
            return kwargs["out"] if "out" in kwargs else args[0]
        return tree_map(_wrapped, made) if made_there else made

    def _do(self, func: Any, args: Any, kwargs: Any) -> Any:
        do = _histogram if func.name() == "aten::histc" else func
        with _disable_current_modes():
            made = do(*args, **kwargs)
        if self.graph is not None and not func.name().startswith(("aten::empty", "aten::new_empty")):
            self.graph.steps.append(again(do, args, kwargs, made))
        return made

    def _copy(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """`copy_`, or `to` where something is to be made."""
        wanted = kwargs.pop("device", None)
        if kwargs.get("layout") is None:
            kwargs.pop("layout", None)
        source = args[1] if name == "aten::copy_" else args[0]
        there = is_there(args[0].device if name == "aten::copy_" else wanted or source.device)
        blocks = not (kwargs.get("non_blocking") or (name == "aten::copy_" and len(args) > 2 and args[2]))
        if there == isinstance(source, OnDevice):
            made = self._do(func, tree_map(_inner, args), kwargs)
        else:
            assert self.graph is None, f"{func} between host and device within a capture"
            made = self._moved(func, name, args, kwargs, blocks)
        if name == "aten::copy_":
            return args[0]
        return OnDevice(made) if there else made

    def _moved(self, func: Any, name: str, args: Any, kwargs: Any, blocks: bool) -> Tensor:
        source = args[1] if name == "aten::copy_" else args[0]
        inner: Tensor = self._do(func, tree_map(_inner, args), kwargs)
        host = inner if isinstance(source, OnDevice) else source
        if name == "aten::copy_" and isinstance(source, OnDevice):
            host = args[0]
        if blocks or not self._is_pinned(host):
            what = "pinned memory" if self._is_pinned(host) else "memory that is not pinned"
            self._looked_at(f"{func} of {what}, {'which blocks' if blocks else 'which does not block'}")
        elif isinstance(source, OnDevice):
            self._comes_later(host)
        else:
            self._is_read(host)
        return inner

    def _comes_later(self, host: Tensor) -> None:
        with _disable_current_modes():
            numbers = host.clone()
            host.view(torch.uint8).fill_(NONSENSE) if host.dim() and host.numel() else None
        self._queue.append(lambda: _put(host, numbers))

    def _is_read(self, host: Tensor) -> None:
        with _disable_current_modes():
            numbers = host.clone()

        def check() -> None:
            with _disable_current_modes():
                assert torch.equal(host, numbers), "pinned memory was written to while the device read it"

        self._queue.append(check)

    def _is_pinned(self, tensor: Tensor) -> bool:
        return not isinstance(tensor, OnDevice) and tensor.untyped_storage().data_ptr() in self._pinned

    def _pin(self, tensor: Tensor) -> Tensor:
        with _disable_current_modes():
            made = tensor.clone()
        self._pinned[made.untyped_storage().data_ptr()] = made.untyped_storage()
        return made


def is_there(device: torch.device | str) -> bool:
    return torch.device(device).type in (DEVICE.type, SHELL)


def _put(host: Tensor, numbers: Tensor) -> None:
    with _disable_current_modes():
        host.copy_(numbers)


def _inner(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def _wrapped(value: Any) -> Any:
    return OnDevice(value) if isinstance(value, Tensor) else value


def _changes(func: Any) -> bool:
    """Whether it gives back what it was given."""
    returned = func._schema.returns
    alias = returned[0].alias_info if len(returned) == 1 else None
    return alias is not None and alias.is_write


def _looks(name: str, args: Any) -> bool:
    """Is there something that the host has to know first: bounds of a histogram that were not said, or how many rows
    each group has, of which torch makes products one by one but in bfloat16?"""
    if name == "aten::histc":
        return len(args) < 4 or args[2] == args[3]
    if name == "aten::_grouped_mm":
        return bool(args[0].dtype != torch.bfloat16)
    return name.startswith("aten::index") and _by_truth(args)


def _histogram(numbers: Tensor, *given: Any) -> Tensor:
    """A CPU has none of integers."""
    return torch.histc(numbers.float(), *given).to(numbers.dtype)


def _by_truth(args: Any) -> bool:
    """Are any of the indices true or false: how many are true, nobody knows?"""
    return any(isinstance(one, Tensor) and one.dtype == torch.bool for one in tree_leaves(args[1:2]))


class _Kernel:
    """Stands where a kernel stood: it is launched with what is on the device."""

    def __init__(self, kernel: Any, device: PretendedDevice) -> None:
        self.kernel, self.device = kernel, device

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Of another kernel, of which it is a part."""
        return self.kernel(*given, **named)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            for one in tree_leaves(arguments):
                given = isinstance(one, Tensor) and not isinstance(one, OnDevice)
                assert not given, f"{self.kernel.fn.__name__} is given memory of the host, {one.shape}"
            inner = tree_map(_inner, arguments)

            def run() -> None:
                with _disable_current_modes():
                    self.kernel[grid](*inner, **options)

            if self.device.graph is None:
                run()
            else:
                self.device.graph.kernels.append(self.kernel.fn.__name__)
                self.device.graph.steps.append(run)

        return launch


def _by_way_of_the_host(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Numbers become a tensor there by a copy, which a mode sees only where it is one of two tensors."""

    def tensor(data: Any, *, device: Any = None, **named: Any) -> Tensor:
        made = make(data, **named)
        return made if device is None else made.to(device)

    return tensor


@contextlib.contextmanager
def pretended() -> Iterator[PretendedDevice]:
    """A device for all kernels of this project that are imported by now."""
    for needed in ("actorserve.kernels.triton.linear.fixed_linear", "torch._dynamo"):  # which else a call would import
        import_module(needed)
    _device_constructors()  # which torch keeps from its first call on, and `torch.tensor` is another one below
    device, OnDevice.memory = PretendedDevice(), DeviceMemory()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names_of(device, OnDevice.memory).items():
            patch.setattr(torch.cuda, name, value)
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("actorserve.kernels.triton."):
                for name, value in list(vars(module).items()):
                    if isinstance(value, triton.KernelInterface):
                        patch.setattr(module, name, _Kernel(value, device))
        patch.setattr(torch, "inference_mode", torch.no_grad)
        patch.setattr(torch, "tensor", _by_way_of_the_host(torch.tensor))
        with torch.no_grad(), device:
            yield device
