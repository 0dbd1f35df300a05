"""The workers of a tensor-parallel group: who is in it, and what they add up.

Each has a part of every layer's heads and of its MLP, and of the vocabulary; what they hand round are sums of the
hidden state (two a layer) and their parts of the logits. All draw the same tokens of the same logits, so that none has
to be told. They meet through a memory file that the supervisor made; a group that is started again meets under another
name.

All for one: whoever dies, the supervisor kills the others, so that none is waited for. What a member does by itself:
    waits in a sum for one that is dead       gloo sees the connection end, and raises; NCCL's kernel waits on the
                                              device until the supervisor kills this member
    waits for one that stands still           after `step_s` it raises; of NCCL the watchdog ends the process
    ends, or raises, with sums under way      it aborts its part of the group, waiting for nobody, and has LEAVE_S
"""

from __future__ import annotations

import atexit
import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .symmetric_memory import SymmetricSum

MEET_S = 600.0  # what the slowest gets to load its part; one that hangs is killed by its supervisor before
LEAVE_S = 5  # what a member's end may take: whole seconds


class TensorParallelGroup:
    """This worker's view of its group."""

    def __init__(
        self,
        rank: int,
        size: int,
        meeting_fd: int,
        life: int,
        device: torch.device | None = None,
        step_s: float = MEET_S,
    ) -> None:
        """`life`: which life of the group this is; all die together, so all count alike. Returns when all are here.

        `device`: the member's GPU; what lies there is added up by NCCL, or over memory that all of them see, both of
        which graphs can capture. `step_s`: how long one waits for the others in a step.
        """
        self.rank, self.size = rank, size
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        file = dist.FileStore(f"/proc/self/fd/{meeting_fd}", size)  # type: ignore[attr-defined]
        store = dist.PrefixStore(str(life), file)  # type: ignore[attr-defined]
        backend = "gloo" if device is None else "cpu:gloo,cuda:nccl"
        wait = timedelta(seconds=MEET_S)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait, device_id=device)
        self.symmetric = None if device is None else SymmetricSum.make(size, device)
        if device is not None:
            atexit.register(leave_at_once)
        self._step_s = step_s

    def all_reduce(self, x: Tensor) -> Tensor:
        """x becomes the sum of all members' x, bit for bit the same for all."""
        if self.symmetric is None or not self.symmetric.add_up(x):
            dist.all_reduce(x)
        return x

    def sum_in_order(self, x: Tensor) -> Tensor:
        """The same, added up in the order of the members: all_reduce's order depends on where in x a number stands."""
        if self.size == 2:
            return self.all_reduce(x)  # a + b is b + a
        parts = self._gather(x)
        for part in parts[1:]:
            parts[0].add_(part)
        return parts[0]

    def minimum(self, number: int) -> int:
        """The smallest of all members' numbers; asked for once, when all have loaded their parts.

        From then on none is waited for longer than a step may take.
        """
        found = torch.tensor([number])
        dist.all_reduce(found, op=dist.ReduceOp.MIN)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self._step_s))
        return int(found)

    def all_gather(self, part: Tensor) -> Tensor:
        """[rows, size * columns] of all members' [rows, columns]."""
        return self._gather(part).transpose(0, 1).reshape(len(part), -1)

    def _gather(self, x: Tensor) -> Tensor:
        """[size, …] of all members' x."""
        parts = torch.empty(self.size, *x.shape, dtype=x.dtype, device=x.device)
        dist.all_gather_into_tensor(parts.flatten(0, 1) if x.dim() > 1 else parts.view(-1), x.contiguous())
        return parts


def leave_at_once() -> None:
    """The end of a member of a group on GPUs: its sums are given up, since the others may not be there any more.

    Python's own end would wait for the device, on which a sum waits for them. The kernel sees to it that this ends.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LEAVE_S)
    dist.distributed_c10d._abort_process_group()


def embed(ids: Tensor, table: Tensor, dtype: torch.dtype, group: TensorParallelGroup | None) -> Tensor:
    """Rows of `table`, of which each member of a group has a part."""
    if group is None:
        return F.embedding(ids, table).to(dtype)
    count = len(table)
    own = ids - group.rank * count
    mine = (own >= 0) & (own < count)
    x = F.embedding(own.clamp(0, count - 1), table).to(dtype)
    return group.all_reduce(x.masked_fill_(~mine[:, None], 0))
