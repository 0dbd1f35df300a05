"""The workers of a tensor-parallel group: who is in it, and what they add up.

Each has a part of every layer's heads and of its MLP, and of the vocabulary; what they hand round are sums of the
hidden state (two a layer) and their parts of the logits. All draw the same tokens of the same logits, so that none has
to be told. They meet through a memory file that the supervisor made; a group that is started again meets under another
name.

All for one: whoever dies, the supervisor kills the others, so that none is waited for. What a member does by itself:
    waits in a sum for one that is dead       gloo sees the connection end, and raises; NCCL's kernel waits on the
                                              device until the supervisor kills this member
    waits for one that stands still           gloo raises after `step_s`; NCCL's watchdog knows no sums of graphs,
                                              whose steps take too long: gpu/actor.py ends the process
    ends, or raises, with sums under way      as any actor, at once (runtime/process.py), waiting for nobody
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .symmetric_memory import SymmetricSum

MEET_S = 600.0  # what the slowest gets to load its part; one that hangs is killed by its supervisor before
MEET_AFAR_S = 3000.0  # the same on several machines, which somebody has to start


class MeetingPlace(NamedTuple):
    """Where workers of several machines meet."""

    host: str
    port: int
    is_host: bool  # one worker is
    interface: str  # of this machine, by which the others reach it


def meet(
    rank: int,
    size: int,
    meeting_fd: int,
    life: int,
    device: torch.device | None = None,
    place: MeetingPlace | None = None,
) -> None:
    """Returns when all workers are here that share a model; for the arguments see TensorParallelGroup. `place`: where
    they are on several machines.
    """
    wait = timedelta(seconds=MEET_S if place is None else MEET_AFAR_S)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if place is None else place.interface)
    found: Any
    if place is None:
        found = dist.FileStore(f"/proc/self/fd/{meeting_fd}", size)  # type: ignore[attr-defined]
    else:
        found = dist.TCPStore(place.host, place.port, size, place.is_host, wait, False)  # type: ignore[attr-defined]
    store = dist.PrefixStore(str(life), found)  # type: ignore[attr-defined]
    backend = "gloo" if device is None else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait, device_id=device)


def least(number: int, step_s: float, group: dist.ProcessGroup | None = None) -> int:
    """The smallest number of all who have met; asked for when all have loaded their parts.

    From then on none is waited for longer than `step_s`, neither by all nor in `group`.
    """
    found = torch.tensor([number])
    dist.all_reduce(found, op=dist.ReduceOp.MIN)
    for one in (None, group) if group is not None else (None,):
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=step_s), one)
    return int(found)


class TensorParallelGroup:
    """This worker's view of its group."""

    symmetric: SymmetricSum | None

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
        meet(rank, size, meeting_fd, life, device)
        self._join(rank, size, step_s, None)
        if device is not None:
            self.symmetric = SymmetricSum.make(rank, size, device)

    @classmethod
    def among(cls, rank: int, size: int, step_s: float, group: dist.ProcessGroup) -> TensorParallelGroup:
        """Of some of those who have met, on a CPU."""
        found = cls.__new__(cls)
        found._join(rank, size, step_s, group)
        return found

    def _join(self, rank: int, size: int, step_s: float, group: dist.ProcessGroup | None) -> None:
        """`group`: of some of those who have met; None: of all."""
        self.rank, self.size = rank, size
        self.symmetric = None
        self._step_s, self._group = step_s, group

    def wait_for_all(self) -> None:
        """Returns when all have come so far, however long they load: on the host, since a sum on a device keeps that
        busy until the last one is there. Before `minimum`.
        """
        dist.all_reduce(torch.zeros(1), group=self._group)

    def all_reduce(self, x: Tensor) -> Tensor:
        """x becomes the sum of all members' x, bit for bit the same for all."""
        if self.symmetric is None or not self.symmetric.add_up(x):
            dist.all_reduce(x, group=self._group)
        return x

    def maximum(self, x: Tensor) -> Tensor:
        """x becomes the largest of all members' x, number by number."""
        dist.all_reduce(x, op=dist.ReduceOp.MAX, group=self._group)
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
        """The smallest of all numbers, of other stages of a pipeline too; from then on none is waited for longer than a
        step may take.
        """
        return least(number, self._step_s, self._group)

    def all_gather(self, part: Tensor) -> Tensor:
        """[rows, size * columns] of all members' [rows, columns]."""
        return self._gather(part).transpose(0, 1).reshape(len(part), -1)

    def _gather(self, x: Tensor) -> Tensor:
        """[size, …] of all members' x."""
        parts = torch.empty(self.size, *x.shape, dtype=x.dtype, device=x.device)
        flat = parts.flatten(0, 1) if x.dim() > 1 else parts.view(-1)
        dist.all_gather_into_tensor(flat, x.contiguous(), group=self._group)
        return parts


def embed(ids: Tensor, table: Tensor, dtype: torch.dtype, group: TensorParallelGroup | None) -> Tensor:
    """Rows of `table`, of which each member of a group has a part."""
    if group is None:
        return F.embedding(ids, table).to(dtype)
    count = len(table)
    own = ids - group.rank * count
    mine = (own >= 0) & (own < count)
    x = F.embedding(own.clamp(0, count - 1), table).to(dtype)
    return group.all_reduce(x.masked_fill_(~mine[:, None], 0))
