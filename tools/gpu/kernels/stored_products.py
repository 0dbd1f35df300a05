"""The product with gate's and up's weight in the bits of a checkpoint, beside the same with 16 bits (../products.py).

Of more than 64 rows what makes floats of the weight is in it.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from actorserve.kernels.triton.linear.stored_linear import stored_linear

from .. import ceilings
from ..report import TINY, say, surviving

from actorserve.kernels.triton.linear.stored_weights import StoredWeight, stored_weight  # isort: skip

KINDS = {  # form, numbers that share a scale (0: all of a row), the type of scales, zero
    "4 bits, groups of 128": ("bits4", 128, torch.float16, 8),
    "fp8, blocks of 128": ("e4m3", 128, torch.float32, 0),
    "8 bits, a scale a row": ("bits8", 0, torch.float32, 128),
}
BATCHES = (1,) if TINY else (1, 8, 64, 256)


def random_weight(kind: str, outputs: int, inputs: int) -> StoredWeight:
    form, group, dtype, zero = KINDS[kind]
    device, group = ceilings.device(), group or inputs
    numbers = torch.randint(0, 16 if form == "bits4" else 127, (outputs, inputs), dtype=torch.uint8, device=device)
    scales = torch.full((outputs, -(-inputs // group)), 0.01, dtype=dtype, device=device)
    return stored_weight(form, numbers, scales, group, zero=zero)


def stored_products(name: str, outputs: int, inputs: int, dtype: torch.dtype, limits: dict[str, float]) -> None:
    """Each kind's share of the roofline, by the bytes that it has, and its time in cuBLAS' with 16 bits."""
    device = ceilings.device()
    floats = torch.empty(outputs * inputs, dtype=dtype, device=device)
    plain = ceilings.cold(lambda: torch.randn(outputs, inputs, device=device).to(dtype), 2 * outputs * inputs, 32)
    for kind in KINDS:
        with surviving(f"{name}, {kind}"):
            size = random_weight(kind, outputs, inputs).bytes
            weights = ceilings.cold(partial(random_weight, kind, outputs, inputs), size, 32)
            for batch in BATCHES:
                x = torch.randn(batch, inputs, device=device).to(dtype)
                usual = ceilings.seconds_each([partial(F.linear, x, weight) for weight in plain], 10)
                took = ceilings.seconds_each(
                    [partial(stored_linear, x, weight, floats=floats) for weight in weights], 10
                )
                moved = size + batch * (outputs + inputs) * dtype.itemsize
                floor = max(moved / limits["bytes"], 2 * batch * outputs * inputs / limits["flops"])
                label = f"{name}, gate_up {outputs} x {inputs}, {kind}, batch {batch}"
                say(f"{label} ({took * 1e6:.1f} us): share", floor / took)
                say(f"{label}: times cuBLAS' time with 16 bits", took / usual)
            del weights
