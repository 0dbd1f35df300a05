"""Whether a model of transformers is right on this device: tried on a tiny one of its class, as on a CPU (see
adapter/verify.py), with the attention and the memory that it will be served with.
"""

from __future__ import annotations

import copy
import logging
import time
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.triton.attention.tiles import Scratch
from actorserve.kernels.triton.step_inputs import StepInputs

from ...adapter.hooks import Unfit, attending, lent_attention
from ...adapter.model import Tier
from ...adapter.passes import Passes
from ...adapter.probe import TOKENS, Recorder, Traits, probe
from ...adapter.verify import PROMPTS, Schedule, Verdict, compare, failure_words, reference_logits, texts_for
from ...cpu.memory.states import RowStates
from ..compilations import writable_cache
from ..executor import GpuBatch, Hidden
from ..layers.scratch import widest_of
from ..memory import is_out_of_memory, make_pools
from .groups import KeptRows
from .latents import absorbed
from .model import AdaptedGpuModel
from .shape import AdaptedShape, check_traits, shape_of

log = logging.getLogger("worker")
BLOCK = 16
OTHER_WAYS = "--device cpu tries other ways, too"


def verify_on_device(twin: Any, device: torch.device) -> Verdict:
    """Of a tiny model in float32, which is on a CPU. Unfit says why it cannot be served there."""
    begun = time.perf_counter()
    reasons: dict[Tier, str] = {}
    with torch.inference_mode():
        traits = probe(twin, 512)
        check_traits(traits)
        shape = seen_shape(twin, traits)
        texts = texts_for(twin)
        expected = reference_logits(twin, texts)
        for tier in (Tier.ROWS, Tier.TOKENS) if traits.stateful else (Tier.FLAT,):
            try:
                own = copy.deepcopy(twin).to(device)
                model = AdaptedGpuModel(own, traits, shape, torch.float32, device, tier)
                with writable_cache(log):
                    found = DeviceTrial(model).run(texts)
                compare(expected, [logits.float().cpu() for logits in found])
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                reasons[tier] = failure_words(error)
            else:
                return Verdict(tier, traits, reasons, time.perf_counter() - begun, improved=False)
    raise Unfit(f"is not right on this GPU ({OTHER_WAYS}): {next(iter(reasons.values()))}")


def seen_shape(model: Any, traits: Traits) -> AdaptedShape:
    """What is to be known of a model's shape, hollow or not, seen as it computes two tokens on a CPU."""
    passes, recorder = Passes(model), Recorder()
    with lent_attention(model), torch.inference_mode(), attending(recorder):
        ids = torch.ones(1, TOKENS, dtype=torch.long)
        hidden = passes.hidden(ids, torch.arange(TOKENS)[None], traits.caches.make(recorder))[0]
        words = passes.logits(hidden).shape[1]
    return shape_of(absorbed(traits, recorder), hidden.shape[1], words)


class DeviceTrial(Schedule):
    """The model is on a GPU."""

    def __init__(self, model: AdaptedGpuModel) -> None:
        super().__init__(BLOCK)
        self.model = model
        self.pools = make_pools(model.shape, self.blocks, BLOCK, model.dtype, model.device)
        places = len(PROMPTS) + 1  # the last is nobody's
        self.states = RowStates(model.shape.kv.states, places, 0, model.dtype, model.device)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)

    def step(self, texts: list[Tensor], tables: list[Any], done: list[int], sizes: list[int]) -> Tensor:
        """Rows of one token come first."""
        rows = sorted((row for row, size in enumerate(sizes) if size), key=lambda row: sizes[row] > 1)
        own = [sizes[row] for row in rows]
        decoding = own.count(1)
        starts = list(accumulate(own, initial=0))[decoding:]
        others = self._there(starts, torch.int32) if len(starts) > 1 else None
        scratch = Scratch.of(max(1, decoding), *widest_of(self.model.shape), 1, self.model.device)
        batch = GpuBatch(self._inputs(rows, texts, tables, done, sizes), decoding, others, scratch)
        if self.model.groups is not None:
            groups = self.model.groups.of(np.array(own), np.array(done)[rows])
            batch = batch._replace(kept=KeptRows(self.states, self._there(rows, torch.int64), groups))
        parts = self.model.norm(self._forward(batch)).split(own)
        return torch.cat([parts[rows.index(row)] for row in sorted(rows)])

    def _forward(self, batch: GpuBatch) -> Hidden:
        return self.model.forward(batch, self.pools)

    def _inputs(
        self, rows: list[int], texts: list[Tensor], tables: list[Any], done: list[int], sizes: list[int]
    ) -> StepInputs:
        """Of these rows, one after the other."""
        ids, positions, slots = [], [], []
        width = max(map(len, tables))
        blocks = torch.zeros(len(rows), width, dtype=torch.int32)
        for index, row in enumerate(rows):
            at, table = torch.arange(done[row], done[row] + sizes[row]), torch.from_numpy(tables[row])
            ids.append(texts[row][at])
            positions.append(at)
            slots.append(table[at // BLOCK] * BLOCK + at % BLOCK)
            blocks[index, : len(table)] = table
        lengths = self._there([done[row] + sizes[row] for row in rows], torch.int32)
        made = [torch.cat(part).to(self.model.device) for part in (ids, positions, slots)]
        return StepInputs(made[0], made[1], made[2], lengths, blocks.to(self.model.device))

    def _there(self, numbers: list[int], dtype: torch.dtype) -> Tensor:
        return torch.tensor(numbers, dtype=dtype).to(self.model.device)
