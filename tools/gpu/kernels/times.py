"""How near each kernel comes to what the device can do at most, with keys, values and logits that are in no cache."""

from __future__ import annotations

import torch

from .. import ceilings
from ..report import TINY, at_least, surviving


def goal_of(kernel: str, shape: str) -> float | None:
    """The share of the copy's rate that decoding has to reach: with long contexts, or with much of it in all."""
    if kernel != "decode" or "8-bit" in shape:
        return None
    batch, context = (int(number) for number in shape.split(", ")[1].split(" x "))
    if batch * context >= 1 << 16:
        return 0.8
    return 0.5 if batch == 1 and context >= 8192 else None


def main() -> None:
    from . import cases, latents  # after report has said where the packages are

    models = cases.MODELS
    if TINY:
        models = (cases.Model("tiny", 64, 4, 2, 16, 128, 512, True),)
        cases.BATCHES, cases.CONTEXTS, cases.CHUNKS = (1,), (64,), ((16, 16),)
    device = ceilings.device()
    limits = ceilings.known()
    with torch.inference_mode():
        for case in cases.cases(device, models, torch.float32 if TINY else torch.bfloat16):
            # What is small was written a moment ago in a step, too, and is in the cache there as it is here.
            with surviving(f"{case.kernel}, {case.shape}"):
                took = ceilings.seconds_each(ceilings.cold(case.make, case.moved, 32), 10)
                floor = case.least(limits["bytes"], limits["flops"])
                what = f"{case.kernel}, {case.shape} ({took * 1e6:.1f} us): share of the ceiling"
                at_least(what, floor / took, "", goal_of(case.kernel, case.shape))
    latents.main()


if __name__ == "__main__":
    main()
