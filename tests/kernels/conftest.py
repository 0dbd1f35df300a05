"""torch takes one thread; where there is no GPU, kernels are interpreted."""

import os

import torch

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")  # read when kernels are imported

from tests.support.gpu.triton_interpreter import quick_interpreter

__all__ = ["quick_interpreter"]  # a fixture

torch.set_num_threads(1)
