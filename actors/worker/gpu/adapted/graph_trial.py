"""Whether CUDA graphs can hold the steps of a model of transformers: tried on the tiny one of its class, in the type
that it will compute in.

Of a step that is captured the modules' Python is done once. What it makes of numbers that the device has, or of how
many positions there were before, is that of the capture for good. So torch is told to refuse whatever waits for the
device first, without a capture: one that fails leaves torch's allocator in nobody knows what state. Then texts are
computed by a graph wherever all rows go on by a token, to the logits of the same steps that are started kernel by
kernel. Where there are states, such steps are compared with transformers before: rows that are none fill them up, and
to modules one position is before them, however many there are.
"""

from __future__ import annotations

import copy
import logging
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actorserve.kernels.triton.attention.tiles import Scratch
from actorserve.kernels.triton.step_inputs import StepInputs

from ...adapter.hooks import Unfit
from ...adapter.model import Tier
from ...adapter.probe import probe
from ...adapter.verify import DECODED, PROMPTS, compare, in_one_thread, reference_logits, texts_for
from ..compilations import writable_cache
from ..executor import GpuBatch, Hidden
from ..graphs import CaptureError, Graphs
from ..layers.scratch import widest_of
from ..memory import is_out_of_memory
from .groups import KeptRows
from .model import AdaptedGpuModel
from .trial import BLOCK, DeviceTrial, seen_shape

log = logging.getLogger("worker")
ROWS = len(PROMPTS)
APART = (
    0.05  # of the logits' deviation: libraries may round in a capture otherwise, and what stands still is further off
)


@in_one_thread()
def reason_against_graphs(twin: Any, tier: Tier, dtype: torch.dtype, device: torch.device) -> str:
    """Why no graph holds steps of this way, if none does. Unfit if a capture fails of which torch has refused nothing.
    Where there is no GPU nothing is tried.
    """
    if device.type != "cuda":
        return "there is no GPU"
    with torch.inference_mode(), writable_cache(log):
        model = _small_model(twin, tier, dtype, device)
        texts, rules = texts_for(twin), model.groups
        if rules is not None and not rules.together:
            return "it counts positions by itself, so that each row goes alone"
        try:
            if rules is not None:
                exact = GraphTrial(_small_model(twin, tier, torch.float32, device))
                compare(reference_logits(twin, texts), _on_host(exact.run(texts)))
            plain, trial = GraphTrial(model), GraphTrial(model)
            trial.capture()
            compare(_on_host(plain.run(texts)), _on_host(trial.run(texts)), APART)
        except RuntimeError as error:
            return _reason(error)
        except Unfit as error:
            return f"filled up, or by graphs, it computes something else: {error}"
    return ""


def _reason(error: RuntimeError) -> str:
    if isinstance(error, CaptureError) and error.of_capture:
        raise Unfit(f"cannot be captured ({error.__cause__}); --enforce-eager serves it without CUDA graphs") from error
    if isinstance(error, CaptureError) or is_out_of_memory(error):
        raise error
    return f"it waits for the device ({_place(error)}: {str(error).splitlines()[0]})"


class GraphTrial(DeviceTrial):
    """Steps in which all rows go on by a token are filled up. Once captured they are by one graph, and nothing of
    others waits for the device where a model keeps no states."""

    def __init__(self, model: AdaptedGpuModel) -> None:
        super().__init__(model)
        device, width = model.device, max(-(-(size + DECODED) // BLOCK) for size in PROMPTS)
        self.inputs = StepInputs.make(ROWS, ROWS, width, device)
        self.inputs.fill()
        self.places = torch.full((ROWS,), ROWS, device=device)  # of nobody
        self.scratch = Scratch.of(ROWS, *widest_of(model.shape), 1, device)
        self.hidden = torch.zeros(ROWS, model.shape.hidden_size, dtype=model.dtype, device=device)
        self.graphs, self.captured = Graphs([ROWS], self._decode, device), False

    def capture(self) -> None:
        self._decode(ROWS)  # what sets itself up may wait
        with _refusing_waits():
            self._decode(ROWS)
        self.captured = self.graphs.capture(torch.cuda.graph_pool_handle(), "of a small model") > 0

    def step(self, texts: list[Tensor], tables: list[Any], done: list[int], sizes: list[int]) -> Tensor:
        rows = [row for row, size in enumerate(sizes) if size]
        if any(sizes[row] > 1 or not done[row] for row in rows):
            return super().step(texts, tables, done, sizes)
        self.inputs.fill()
        self.places.fill_(ROWS)
        made = self._inputs(rows, texts, tables, done, sizes)
        for own, given in zip(self.inputs.part(len(rows), len(rows))[:-1], made[:-1], strict=True):
            own.copy_(given)
        self.inputs.blocks[: len(rows), : made.blocks.shape[1]].copy_(made.blocks)
        self.places[: len(rows)].copy_(self._there(rows, torch.int64))
        self.graphs.step(ROWS)
        return self.hidden[: len(rows)].clone()

    def _forward(self, batch: GpuBatch) -> Hidden:
        if batch.kept is not None or not self.captured:
            return super()._forward(batch)
        with _refusing_waits():
            return super()._forward(batch)

    def _decode(self, rows: int) -> None:
        batch = GpuBatch(self.inputs, rows, None, self.scratch)
        if (groups := self.model.groups) is not None:
            batch = batch._replace(kept=KeptRows(self.states, self.places, groups.of_nobody(batch)))
        self.model.norm(self.model.forward(batch, self.pools), self.hidden)
        self.model.logits(self.hidden)


@contextmanager
def _refusing_waits() -> Iterator[None]:
    """Meanwhile whatever waits for the device is a RuntimeError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch does not see all
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _small_model(twin: Any, tier: Tier, dtype: torch.dtype, device: torch.device) -> AdaptedGpuModel:
    """A copy with weights of this type; what modules compute for themselves stays as it is, as where one is read."""
    own = copy.deepcopy(twin)
    for parameter in own.parameters():
        parameter.data = parameter.data.to(dtype)
    traits = probe(own, 512)
    shape = seen_shape(own, traits)
    return AdaptedGpuModel(own.to(device), traits, shape, dtype, device, tier)


def _on_host(logits: list[Tensor]) -> list[Tensor]:
    return [one.float().cpu() for one in logits]


def _place(error: BaseException) -> str:
    """Where in transformers an error comes from, or in a model's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [one for one in frames if "transformers" in one.filename] or frames
    return f"{Path(inside[-1].filename).name}, line {inside[-1].lineno}"
