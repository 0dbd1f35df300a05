"""Sums over memory that all GPUs of a group see: a third of NCCL's time for what a step of decoding adds up.

    up to ONE_SHOT bytes    each reads the others' numbers and adds them up, in the order of the ranks
    above, if the switch can add (multimem), and up to the buffer    the switch does it
    else                    it is NCCL's to do
Not run on GPUs yet; where torch or the devices cannot do it, NCCL does all of it.
"""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist
from torch import Tensor

BUFFER = 8 << 20  # bytes of each member's
ONE_SHOT = 256 << 10  # beyond, reading all of all members takes longer than a part each
DTYPES = (torch.float32, torch.bfloat16)
ALIGNED = 16  # bytes
log = logging.getLogger(__name__)


class SymmetricSum:
    """This member's buffer, which the others read."""

    def __init__(self, buffer: Tensor, name: str, multicast: bool) -> None:
        """`buffer`: bytes that all members have met over; `name`: the group's; `multicast`: the switch can add."""
        self._buffer, self._name, self._multicast = buffer, name, multicast

    @classmethod
    def make(cls, rank: int, size: int, device: torch.device) -> SymmetricSum | None:
        """For all members, whose devices follow one another, or for none: each says whether it can, and the others
        hear it, before any of them waits for the others' memory, and behind that.
        """
        buffer, reason = _own_buffer(rank, size, device)
        if _is_all_of_them(buffer is not None):
            assert buffer is not None
            made, reason = cls._meet(buffer)
            if _is_all_of_them(made is not None):
                return made
        log.info("sums of the group are NCCL's: %s", reason or "another member has no memory that all see")
        return None

    @classmethod
    def _meet(cls, buffer: Tensor) -> tuple[SymmetricSum | None, str]:
        """(it, why there is none), once all have made theirs."""
        try:
            import torch.distributed._symmetric_memory as symmetric

            world = dist.group.WORLD
            assert world is not None
            multicast = symmetric.rendezvous(buffer, world.group_name).multicast_ptr != 0
            return cls(buffer, world.group_name, multicast), ""
        except (AttributeError, RuntimeError) as error:  # a driver without it
            return None, str(error).splitlines()[0]

    def add_up(self, x: Tensor) -> bool:
        """Whether x is the sum of all members' x now; if not, nothing has happened."""
        bytes_of = x.nbytes
        fits = x.dtype in DTYPES and x.is_contiguous() and bytes_of % ALIGNED == 0 and 0 < bytes_of <= BUFFER
        if not fits or (bytes_of > ONE_SHOT and not self._multicast):
            return False
        own = self._buffer[:bytes_of].view(x.dtype).view(x.shape)
        own.copy_(x)
        if bytes_of <= ONE_SHOT:
            torch.ops.symm_mem.one_shot_all_reduce_out(own, "sum", self._name, x)
        else:
            torch.ops.symm_mem.multimem_all_reduce_(own, "sum", self._name)
            x.copy_(own)
        return True


def _own_buffer(rank: int, size: int, device: torch.device) -> tuple[Tensor | None, str]:
    """(a member's memory that the others could see, why there is none)."""
    others = [device.index + other - rank for other in range(size) if other != rank]
    if not all(torch.cuda.can_device_access_peer(device, other) for other in others):
        return None, "the GPUs cannot read each other's memory"
    try:
        import torch.distributed._symmetric_memory as symmetric

        return symmetric.empty(BUFFER, dtype=torch.uint8, device=device), ""
    except (ImportError, AttributeError, RuntimeError) as error:  # an older torch, or a driver without it
        return None, str(error).splitlines()[0]


def _is_all_of_them(can: bool) -> bool:
    """Whether each member says so."""
    said = torch.tensor([can])
    dist.all_reduce(said, op=dist.ReduceOp.MIN)
    return bool(said)
