"""What the host sends to a device without a wait. Leaf module."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """A copy there, which does not wait for it: through pinned memory, which torch keeps until it is copied."""
    tensor = torch.from_numpy(values)
    return sent(tensor, device) if device.type == "cuda" else tensor.clone()


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The same of a tensor, which is as it is where that is the device."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def to_host(values: Tensor) -> Tensor:
    """A copy on the host, which is there when an event behind it has come."""
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.device.type == "cuda")
    return copy.copy_(values, non_blocking=True)
