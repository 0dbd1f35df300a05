"""The root-mean-square norm on a CPU: in float32 three operations, x / sqrt(|x|² + n·eps) * (gain · sqrt(n))."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.kernels.cpu.native.layers import RowOperations

from .native import current


class RMSNorm:
    """x / rms(x) * (gain + offset) over the last dimension."""

    def __init__(self, gain: Tensor, eps: float, batch_invariant: bool = False, offset: float = 0.0) -> None:
        library, size = current(), gain.shape[-1]
        self.native = None if library is None else RowOperations(library)
        self.eps = eps
        self.in_float32 = batch_invariant or offset != 0  # what is added may be more than 16 bits hold
        self.batch_invariant = batch_invariant
        self.size = (size,)
        self.gain = gain
        self.scaled_gain = (gain.float() + offset) * math.sqrt(size)
        self.floor = torch.tensor(math.sqrt(eps * size))

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:  # 16-bit types are squared and summed in float32
            if self.in_float32:
                return self(x.float()).to(x.dtype)
            return F.rms_norm(x, self.size, None, self.eps).mul_(self.gain)
        if self.native is not None and self.gain.dim() == 1:
            rows = x.reshape(-1, self.size[0])
            return self.native.norm(rows, self.scaled_gain, self.eps * self.size[0]).view(x.shape)
        return x.div(self._length(x)).mul_(self.scaled_gain)

    def in_place(self, x: Tensor) -> None:
        """x becomes its norm."""
        if self.native is not None and x.dtype == torch.float32:
            self.native.norm_in_place(x, self.scaled_gain, self.eps * self.size[0])
        elif x.dtype == torch.float32:
            x.div_(self._length(x)).mul_(self.scaled_gain)
        else:
            x.copy_(self(x))

    def _length(self, x: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, 2, -1, True)
        if self.batch_invariant:  # by operations that IEEE 754 lets have one result, in a vector or not
            return length.mul_(length).add_(self.eps * self.size[0]).sqrt_()
        return torch.hypot(length, self.floor, out=length)
