"""What of CUDA's driver is needed for device memory that outlives a process: memory by cuMemCreate, a descriptor of it
that another process imports, and an address for it there. By ctypes, without torch; no call that creates, exports or
imports needs a CUDA context. It has not been run on a GPU: its tests have a driver of their own (tests/keeper/).
"""

from __future__ import annotations

import ctypes

LIBRARY = "libcuda.so.1"
PINNED, POSIX_DESCRIPTOR, ON_DEVICE, READ_WRITE, MINIMUM = 1, 1, 1, 3, 0
SIZE, POINTER, HANDLE, INT = ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int
FLAGS = ctypes.c_ulonglong


class DriverError(RuntimeError):
    """A call has failed, or there is no driver."""


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", INT), ("id", INT))


class AllocationFlags(ctypes.Structure):
    """Part of CUmemAllocationProp."""

    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", INT),
        ("handle_types", INT),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", AllocationFlags),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", INT))


class Driver:
    """The library, once it has begun."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise DriverError(f"there is no driver of a GPU: {error}") from None
        self._call("cuInit", ctypes.c_uint(0))

    def _call(self, name: str, *args: object) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DriverError(f"the driver has no {name}") from None
        status = int(function(*args))
        if status:
            said = ctypes.c_char_p()
            known = not int(self._library.cuGetErrorString(status, ctypes.byref(said)))
            words = said.value.decode(errors="replace") if known and said.value else "unknown"
            raise DriverError(f"{name}: error {status} ({words})")

    def granularity(self, device: int) -> int:
        """Of memory there, which comes in multiples of it."""
        found = SIZE()
        self._call(
            "cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(_properties(device)), INT(MINIMUM)
        )
        return found.value

    def create(self, device: int, size: int) -> int:
        """A handle of so many bytes, a multiple of the granularity; what stands there is not known."""
        handle = HANDLE()
        self._call("cuMemCreate", ctypes.byref(handle), SIZE(size), ctypes.byref(_properties(device)), FLAGS(0))
        return handle.value

    def export(self, handle: int) -> int:
        """A descriptor of it."""
        fd = INT(-1)
        self._call("cuMemExportToShareableHandle", ctypes.byref(fd), HANDLE(handle), INT(POSIX_DESCRIPTOR), FLAGS(0))
        return fd.value

    def take_in(self, fd: int) -> int:
        """A handle of what another process has exported; the descriptor may be closed then."""
        handle = HANDLE()
        place = ctypes.c_void_p(fd)
        self._call("cuMemImportFromShareableHandle", ctypes.byref(handle), place, INT(POSIX_DESCRIPTOR))
        return handle.value

    def map(self, handle: int, size: int, device: int) -> int:
        """Its address in this process, where the device may read and write it. There has to be a context."""
        pointer = POINTER()
        self._call("cuMemAddressReserve", ctypes.byref(pointer), SIZE(size), SIZE(0), POINTER(0), FLAGS(0))
        try:
            self._call("cuMemMap", pointer, SIZE(size), SIZE(0), HANDLE(handle), FLAGS(0))
        except DriverError:
            self._call("cuMemAddressFree", pointer, SIZE(size))
            raise
        access = Access(Location(ON_DEVICE, device), READ_WRITE)
        try:
            self._call("cuMemSetAccess", pointer, SIZE(size), ctypes.byref(access), SIZE(1))
        except DriverError:
            self._call("cuMemUnmap", pointer, SIZE(size))
            self._call("cuMemAddressFree", pointer, SIZE(size))
            raise
        return pointer.value

    def release(self, handle: int) -> None:
        """It is gone once no process maps it or has a handle or descriptor of it."""
        self._call("cuMemRelease", HANDLE(handle))


def _properties(device: int) -> Properties:
    return Properties(PINNED, POSIX_DESCRIPTOR, Location(ON_DEVICE, device), None, AllocationFlags())
