"""Whether torch multiplies e4m3 with a scale for each row where tests run: before 2.13 it may do so on a GPU alone.

TRITON_INTERPRET must be set by whoever imports this.
"""

from __future__ import annotations

import pytest
import torch

from actorserve.kernels.triton.linear.scaled_linear import try_product


def are_there() -> bool:
    """A GPU's are; whether it has them itself, its own tests ask."""
    if torch.cuda.is_available():
        return True
    try:
        try_product(torch.device("cpu"))
    except RuntimeError:
        return False
    return True


needs_them = pytest.mark.skipif(not are_there(), reason="this torch has no such products on a CPU")
