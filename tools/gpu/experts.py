"""One layer's experts: how near they are to the bytes of those that are hit, or to their products.

All that stands in the place of an MLP is timed as one graph, router and sum included; the floor is the bytes of the
experts that this routing hits over the measured copy, or their products, whichever takes longer. Weights are larger
than any cache. Other ways to launch the grouped products stand beside the one that is taken, and so do weights of
fewer bits: the entries of kernels/triton/moe/experts.py should be the quickest ones here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from . import ceilings
from .report import TINY, at_least, say, surviving

from actorserve.kernels.triton.moe.experts import ExpertsLaunch, add_up, launch_of, run_experts  # isort: skip
from actorserve.kernels.triton.moe.routing import Routed, Routing, route  # isort: skip
from actorserve.kernels.triton.moe.weights import ExpertWeights, int4_weights, int8_weights, mxfp4_weights  # isort: skip

NAME = "a toy" if TINY else "Qwen3-30B-A3B"
HIDDEN, INNER, ROUTING = (64, 32, Routing(8, 2)) if TINY else (2048, 768, Routing(128, 8, normalised=True))
DTYPE = torch.float32 if TINY else torch.bfloat16
BATCHES = (1, 5) if TINY else (1, 8, 32, 128, 256)
PROMPT = 24 if TINY else 2048
FORMS = ("floats", "int8", "int4", "mxfp4")
GOALS = {1: 0.6, 8: 0.7, 32: 0.75}  # of floats: the share of the roofline that is wanted
PREFILL = 0.4  # of the product's rate
TURNS = 1 if TINY else 4  # inputs that take turns: one's experts are in no cache when it is its turn again
PLACES = 4  # experts of which random weights are made; the others have the same


class Layer(NamedTuple):
    """Its weights."""

    router: Tensor
    up: ExpertWeights
    down: ExpertWeights

    @classmethod
    def make(cls, form: str) -> Layer:
        router = torch.randn(ROUTING.experts, HIDDEN, device=ceilings.device()).to(DTYPE)
        return cls(router, weights(form, 2 * INNER, HIDDEN), weights(form, HIDDEN, INNER))

    def bytes_of_expert(self) -> float:
        """Of one of them."""
        parts = [part for one in (self.up, self.down) for part in (one.numbers, one.scales, one.middles)]
        return sum(part.numel() * part.element_size() for part in parts if part is not None) / ROUTING.experts

    def __call__(self, x: Tensor, launch: ExpertsLaunch) -> Tensor:
        routed = self.route(x, launch)
        return add_up(run_experts(x, routed, self.up, self.down, launch=launch), routed)

    def route(self, x: Tensor, launch: ExpertsLaunch) -> Routed:
        return route(torch.nn.functional.linear(x, self.router), ROUTING, launch.block)


def weights(form: str, outputs: int, inputs: int) -> ExpertWeights:
    """Random ones; a few experts are converted, and repeated."""
    few = torch.randn(PLACES, outputs, inputs, device=ceilings.device()) / inputs**0.5
    if form == "mxfp4":
        codes = torch.randint(0, 256, (PLACES, outputs, inputs // 32, 16), dtype=torch.uint8, device=few.device)
        made = mxfp4_weights(codes, torch.full_like(codes[..., 0], 121))
    elif form == "floats":
        made = ExpertWeights(few.to(DTYPE), inputs)
    else:
        made = (int8_weights if form == "int8" else int4_weights)(few)
    times = ROUTING.experts // PLACES
    numbers, scales, middles = (
        None if part is None else part.repeat(times, *[1] * (part.dim() - 1))
        for part in (made.numbers, made.scales, made.middles)
    )
    assert numbers is not None
    return ExpertWeights(numbers, inputs, scales, middles)


def variants(own: ExpertsLaunch, form: str) -> Iterator[tuple[str, ExpertsLaunch]]:
    """The entry that is taken, and others, by what is changed."""
    yield ceilings.AS_IT_IS, own
    yield "half as wide", own._replace(tile_n=own.tile_n // 2)
    yield "twice as wide", own._replace(tile_n=2 * own.tile_n)
    yield "another stage", own._replace(stages=own.stages + 1)
    if form in ("floats", "int8"):
        yield "half of k", own._replace(tile_k=own.tile_k // 2)
    yield "2 warps" if own.warps == 4 else "4 warps", own._replace(warps=2 if own.warps == 4 else 4)


def timed(layer: Layer, form: str, tokens: int, limits: dict[str, float]) -> None:
    inputs = [torch.randn(tokens, HIDDEN, device=ceilings.device()).to(DTYPE) for _ in range(TURNS)]
    own = launch_of(DTYPE, tokens * ROUTING.choices, ROUTING.experts, form)
    hit = sum(torch.unique(layer.route(x, own).chosen).numel() for x in inputs) / TURNS
    products = 2 * tokens * ROUTING.choices * 3 * HIDDEN * INNER
    floor = max(hit * layer.bytes_of_expert() / limits["bytes"], products / limits["flops"])
    label = f"{NAME}, a layer's experts, {form}, {tokens} tokens, {hit:g} experts hit"
    wanted = [(name, one) for name, one in variants(own, form) if one.tile_n >= 16 and one.tile_k >= 16]
    calls = {name: [partial(layer, x, one) for x in inputs] for name, one in wanted[: 2 if TINY else len(wanted)]}
    times = ceilings.compared(label, calls)
    told = ", ".join(f"{name} {seconds * 1e6:.0f}" for name, seconds in times.items())
    if (took := times.get(ceilings.AS_IT_IS)) is None:
        say(f"{label}, others (us)", told)
        return
    goal = None if form != "floats" else PREFILL if tokens == PROMPT else GOALS.get(tokens)
    at_least(f"{label} ({took * 1e6:.0f} us): share of the roofline", floor / took, "", goal)
    say(f"{label}, quickest of (us: {told}): times as long as it is", min(times.values()) / took)


def main() -> None:
    limits = ceilings.known()
    with torch.inference_mode():
        for form in FORMS:
            with surviving(f"experts, {form}"):
                layer = Layer.make(form)
                for tokens in (*BATCHES, PROMPT):
                    with surviving(f"experts, {form}, {tokens} tokens"):
                        timed(layer, form, tokens, limits)
                del layer


if __name__ == "__main__":
    main()
