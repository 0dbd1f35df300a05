"""The workers of a tensor-parallel group: who is in it, and what they add up.

Each has a part of every layer's heads and of its MLP, and of the vocabulary; what they hand round are sums of the
hidden state (two a layer) and their parts of the logits. All draw the same tokens of the same logits, so that none has
to be told. They meet through a memory file that the supervisor made; a group that is started again meets under another
name.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

MEET_S = 600.0  # what the slowest gets to load its part; one that hangs is killed by its supervisor before


class TensorParallelGroup:
    """This worker's view of its group."""

    def __init__(self, rank: int, size: int, meeting_fd: int, life: int, device: torch.device | None = None) -> None:
        """`life`: which life of the group this is; all die together, so all count alike. Returns when all are here.

        `device`: the member's GPU; what lies there is added up by NCCL, which graphs can capture.
        """
        self.rank, self.size = rank, size
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        file = dist.FileStore(f"/proc/self/fd/{meeting_fd}", size)  # type: ignore[attr-defined]
        store = dist.PrefixStore(str(life), file)  # type: ignore[attr-defined]
        backend = "gloo" if device is None else "cpu:gloo,cuda:nccl"
        wait = timedelta(seconds=MEET_S)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait, device_id=device)

    def all_reduce(self, x: Tensor) -> Tensor:
        """x becomes the sum of all members' x, bit for bit the same for all."""
        dist.all_reduce(x)
        return x

    def sum_in_order(self, x: Tensor) -> Tensor:
        """The same, added up in the order of the members: all_reduce's order depends on where in x a number stands."""
        if self.size == 2:
            return self.all_reduce(x)  # a + b is b + a
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x)
        for part in parts[1:]:
            parts[0].add_(part)
        return parts[0]

    def minimum(self, number: int) -> int:
        """The smallest of all members' numbers."""
        found = torch.tensor([number])
        dist.all_reduce(found, op=dist.ReduceOp.MIN)
        return int(found)

    def all_gather(self, part: Tensor) -> Tensor:
        """[rows, size * columns] of all members' [rows, columns]."""
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, 1)


def embed(ids: Tensor, table: Tensor, dtype: torch.dtype, group: TensorParallelGroup | None) -> Tensor:
    """Rows of `table`, of which each member of a group has a part."""
    if group is None:
        return F.embedding(ids, table).to(dtype)
    count = len(table)
    own = ids - group.rank * count
    mine = (own >= 0) & (own < count)
    x = F.embedding(own.clamp(0, count - 1), table).to(dtype)
    return group.all_reduce(x.masked_fill_(~mine[:, None], 0))
