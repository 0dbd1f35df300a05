"""How NVIDIA's libraries compute for torch. Leaf module."""

from __future__ import annotations

import torch


def settle_libraries() -> None:
    """float32 is float32, and attention of torch's own (towers, encoders) is by kernels that take any shape.

    On Hopper and Blackwell torch takes cuDNN's attention first, which plans anew for each batch size and each length,
    in each thread that asks: 25 to 35 ms of the host, where texts, pictures and contexts have lengths of their own.
    """
    torch.set_float32_matmul_precision("highest")  # a variable that images of CUDA set lowers it
    torch.backends.cudnn.allow_tf32 = False  # of convolutions, which that does not say
    torch.backends.cuda.enable_cudnn_sdp(False)
