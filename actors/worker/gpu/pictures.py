"""What tokens of a step have of pictures, in a device's memory, where graphs read it: embeddings, how far tokens stand
from their positions, and how far they see.

The host knows all of it before the step (worker/vision/rows.py), and sends a few numbers a token; embeddings are on the
device, where they were made. A step without any sends nothing, and one that decodes has none: of its tokens it is at
most said how far they stand from their positions.
    embeddings   and what is added behind layers (given_rows.py)
    turns        of models whose tokens stand at three positions: cosines and sines by token, made at the step's begin
    reach        of models in which tokens of a picture see one another: the end of each token's picture
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.triton.rotary_kv import RotaryTables
from actorserve.kernels.triton.vision.axis_turns import AXES, AxisTurns, turn_by_axes

from ...model.info import ModelInfo
from ...model.vision.spec import VisionSpec
from ...options.config import Config, ConfigError
from ...protocol.media import AUDIO, IMAGE
from ...protocol.step import LOOKS, NewRow, Step
from ..models.rope import inverse_frequencies
from ..vision.step import Run
from .buffers import Sizes, StepBuffers
from .executor import GpuBatch, GpuModel
from .given_rows import NUMBERS, GivenBuffer
from .memory import NoRoom, is_out_of_memory, measure

if TYPE_CHECKING:  # with transformers, which a model of texts alone does without
    from ..vision.encoder import VisionEncoder
    from ..vision.rows import VisionRows
    from ..vision.trial import Trial
    from .sampler import PendingStep, RowWork

log = logging.getLogger("worker")

# In which a tower computes a large picture, where none was tried: one of 16,384 patches takes Qwen2-VL's 0.6 GiB.
TOWER_BYTES = 1 << 30


def pictures_bytes(config: Config, tower: int = TOWER_BYTES) -> int:
    """Of a device's memory, what is kept for pictures beside the tower's weights: embeddings, and how they are made."""
    return int(config.encoder_cache_gb * (1 << 30)) + tower


def try_tower(config: Config, info: ModelInfo, vision: VisionRows | None, large: bool) -> int:
    """Encode a small picture and sound, or the largest of a request; bytes that are kept for such, if any may come.
    ConfigError if it cannot be done, NoRoom for want of memory."""
    if vision is None:
        return 0
    from ..vision.trial import make_trials  # with transformers

    trials = make_trials(config, info, large)
    peak = max((_try_out(info, vision.encoder, trial) for trial in trials), default=0)
    for trial in trials:
        if large and trial.modality == IMAGE:  # what a film has more is computed after that
            vision.encoder.most_numbers = trial.arrays["pixel_values"].size
    return pictures_bytes(config, peak) if trials else 0


def _try_out(info: ModelInfo, encoder: VisionEncoder, trial: Trial) -> int:
    """What the encoder takes beside its weights."""
    from ..vision.encoder import BadItem  # with transformers

    try:
        peak, _ = measure(encoder.device, partial(encoder.try_out, trial.modality, trial.arrays))
    except BadItem as error:
        raise ConfigError(_refusal(info, f"its encoder cannot compute {trial.words} on this GPU ({error})")) from error
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        less = "--max-model-len" if trial.modality == AUDIO else "--max-media-pixels and --mm-processor-kwargs"
        room = f"takes more memory than this GPU has left ({less} bound it)"
        raise NoRoom(_refusal(info, f"{trial.words}, as one request may have it, {room}")) from error
    log.info("%s: the encoder takes %.2f GiB", trial.words, peak / 2**30)
    return peak


def _refusal(info: ModelInfo, reason: str) -> str:
    texts = f"--limit-mm-per-prompt '{json.dumps(dict.fromkeys(info.media, 0))}' serves texts alone"
    return f"model: {info.architecture}: {reason}. --device cpu serves it; {texts}"


def numbers_of(spec: VisionSpec) -> int:
    """How many the host says of a token: whose embeddings it has, how far it stands off, or sees."""
    return NUMBERS + (AXES if spec.axes else 0) + spec.whole_pictures


def axis_turns(spec: VisionSpec, model: GpuModel, length: int) -> AxisTurns:
    """How tokens turn by three positions; `length`: of the longest sequence."""
    rope = model.shape.rope
    frequencies = inverse_frequencies(rope, rope.rotary_dim or model.shape.turning, length)
    axes = torch.tensor(spec.axes[: len(frequencies)], dtype=torch.int32)
    return AxisTurns(axes.to(model.device), frequencies.to(model.device), rope.attention_factor)


class StepPictures:
    """Of one runner."""

    def __init__(self, vision: VisionRows, sizes: Sizes, model: GpuModel) -> None:
        spec, device, tokens = vision.spec, model.device, sizes.listed_tokens
        self.vision, self._tokens = vision, tokens
        self._numbers = torch.zeros(tokens * numbers_of(spec), dtype=torch.int64, device=device)
        self._given = GivenBuffer(self._numbers, tokens, spec.hidden, 1 + spec.deepstack, model.dtype)
        self._shifts = self._numbers[tokens:].view(tokens, AXES) if spec.axes else None
        self._ends = self._numbers[tokens:] if spec.whole_pictures else None
        self._shifted = False  # whether what is there is of anybody
        self._own = torch.arange(tokens, device=device)
        if spec.axes:
            self._turns = axis_turns(spec, model, sizes.length)
            self._turned = RotaryTables(*torch.zeros(2, tokens, len(self._turns.frequencies), device=device))

    # --- rows ----------------------------------------------------------------------------------------------------

    def place(self, new: NewRow, slot: int, generation: int, prompt: np.ndarray) -> None:
        """A sequence takes a row."""
        self.vision.place(new.row, slot, generation, prompt.astype(np.int64))

    def look(self, step: Step) -> None:
        """Compute parts of pictures that later steps will want."""
        if step.packed_looks:
            for row, position, share in step.looks.tolist():
                self.vision.look(row, position, share / LOOKS)

    def tell_broken(self, pending: PendingStep) -> None:
        """Rows of a step whose pictures make no embeddings, whether they draw or not."""
        rows = pending.work.rows
        broken = self.vision.broken[rows]
        if broken.any():
            pending.failed_rows = [*pending.failed_rows, *(~rows[broken]).tolist()]

    # --- steps ---------------------------------------------------------------------------------------------------

    def begin(self, buffers: StepBuffers, work: RowWork) -> bool:
        """Give the device what it has to know of a step; whether any of its tokens are pictures'."""
        step = self.vision.step(work.rows, work.firsts, work.counts)
        if self._shifts is not None:
            self._shift(self._shifts, buffers, None if step is None else step.turns, work)
        if step is None or step.at is None:
            if self._given.take_back() and self._ends is not None:
                self._ends.zero_()
            return False
        assert step.rows is not None
        # none behind layers where clients gave none
        self._given.give(buffers, step.at.numpy(), (step.rows, *step.deepstack))
        if self._ends is not None:
            self._reach(buffers, step.runs, work)
        return True

    def _shift(self, shifts: Tensor, buffers: StepBuffers, turns: Tensor | None, work: RowWork) -> None:
        if turns is None:
            if self._shifted:
                shifts.zero_()
            self._shifted = False
            return
        counts = work.counts
        positions = np.arange(turns.shape[-1]) + np.repeat(work.firsts - (np.cumsum(counts) - counts), counts)
        target = buffers.pictures[self._tokens :].reshape(shifts.shape)
        target[: len(positions)] = (turns.expand(AXES, -1).numpy() - positions).T
        buffers.send_pictures(self._numbers, self._tokens, self._tokens + AXES * len(positions))
        self._shifted = True

    def _reach(self, buffers: StepBuffers, runs: tuple[Run, ...], work: RowWork) -> None:
        ends = buffers.pictures[self._tokens :]
        ends.fill(0)
        begins = np.cumsum(work.counts) - work.counts - work.firsts  # of each row, less its first position
        for run in runs:
            ends[begins[run.span] + run.start : begins[run.span] + run.end] = run.end
        buffers.send_pictures(self._numbers, self._tokens, 2 * self._tokens)

    # --- what graphs hold ----------------------------------------------------------------------------------------

    def among(self, batch: GpuBatch, given: bool) -> GpuBatch:
        """A step with what its tokens have; `given`: some may be pictures'."""
        tokens = len(batch.inputs.ids)
        if given:
            ends = None if self._ends is None else self._ends[:tokens]
            batch = batch._replace(given=self._given.of(tokens), ends=ends)
        if self._shifts is None:
            return batch
        turned = RotaryTables(*(table[:tokens] for table in self._turned))
        turn_by_axes(batch.inputs.positions, self._shifts[:tokens], self._turns, turned)
        return batch._replace(inputs=batch.inputs._replace(positions=self._own[:tokens]), turned=turned)
