"""A decoder of transformers on a GPU, as the runner there has its models: all tokens of a step side by side, products
by the model's own modules, attention by Triton's kernels over the pools.

Graphs hold steps unless what the modules' Python does between kernels waits for the device, which is tried
(graph_trial.py). A model that keeps states of its rows computes a step in groups of these (groups.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from actorserve.kernels.pages import Scoring
from actorserve.kernels.triton.rotary_kv import Pools, RotaryTables
from actorserve.kernels.triton.vision.given_rows import GivenRows, put_rows

from ....model.vision.spec import VisionSpec
from ...adapter.cache.row_states import give_states
from ...adapter.hooks import NAME, attending, use_attention
from ...adapter.model import Tier
from ...adapter.passes import Passes
from ...adapter.probe import Traits
from ..executor import GpuBatch, GpuModel, Hidden
from .groups import Group, GroupRules, KeptRows
from .shape import AdaptedShape, SeenLayers
from .step import DeviceStep


class AdaptedGpuModel(GpuModel):
    """See GpuModel, of whose own parts it has none."""

    def __init__(
        self,
        model: PreTrainedModel,
        traits: Traits,
        shape: AdaptedShape,
        dtype: torch.dtype,
        device: torch.device,
        tier: Tier = Tier.FLAT,
        eager: bool = True,
        vision: VisionSpec | None = None,
    ) -> None:
        """`model`: on the device, with all its weights; `eager`: no graph holds its steps; `vision`: what it is given
        of pictures."""
        self.eager = eager
        self.traits, self.shape, self.dtype, self.device = traits, shape, dtype, device
        self.seen = SeenLayers.of(traits)
        if traits.stateful:
            self.groups = GroupRules(traits.positions or not any(traits.kv.layers), tier is Tier.TOKENS)
        self.group, self.lora, self.taps, self.fused = None, None, None, None
        self.batch_invariant = False
        self.table_of = [0] * len(shape.kv.layers)
        self.scorings = [
            Scoring(layer.scale, layer.window, layer.soft_cap, layer.chunk) for layer in shape.kv.layers if layer
        ]
        self.heads = [(layer.heads, layer.value_dim) for layer in shape.kv.layers if layer]
        # where tokens of a picture see one another, if they do
        together = vision is not None and vision.within_windows
        self.sees_on = [not together or scoring.window is not None for scoring in self.scorings]
        self._given: GivenRows | None = None  # of the forward pass that runs
        if vision is not None:
            model.get_input_embeddings().register_forward_hook(self._put)
        self.passes = Passes(model)
        use_attention(model, NAME)
        self.unturned = RotaryTables(torch.ones(1, 1, device=device), torch.zeros(1, 1, device=device))

    def forward(self, batch: GpuBatch, pools: list[Pools]) -> Hidden:
        if batch.kept is None:
            step, self._given = self._step(batch, pools), batch.given
            answer = self._hidden(batch, step, self.traits.caches.make(step), len(batch.inputs.ids))
            self._given = None
        else:
            parts = [self._group(group, group.of(batch), pools, batch.kept) for group in batch.kept.groups]
            answer = parts[0] if len(parts) == 1 else torch.cat(parts)
        return Hidden(answer, answer[:, :0])  # nothing is left to be added

    def _step(self, batch: GpuBatch, pools: list[Pools], past: int = 0) -> DeviceStep:
        return DeviceStep(self.seen, self.scorings, self._by_layer(batch), pools, self.unturned, past)

    def _group(self, group: Group, batch: GpuBatch, pools: list[Pools], kept: KeptRows) -> Tensor:
        """What the decoder makes of a group, whose states are then behind it."""
        step = self._step(batch, pools, group.past)
        cache = self.traits.caches.make(step)
        states = give_states(cache, self.shape.kv.states, kept.states, kept.rows[group.rows], fresh=not group.past)
        answer = self._hidden(batch, step, cache, group.size)
        states.put_back()
        return answer

    def _hidden(self, batch: GpuBatch, step: DeviceStep, cache: Any, size: int) -> Tensor:
        """The decoder's answer to tokens of a batch, [tokens, hidden]; rows have so many each."""
        shape = -1, size
        with attending(step):
            hidden = self.passes.hidden(batch.inputs.ids.view(shape), batch.inputs.positions.view(shape), cache)
        return hidden.flatten(0, 1)

    def _by_layer(self, batch: GpuBatch) -> list[GpuBatch]:
        """The step as each layer sees it, by its block table, its heads and how far its tokens see."""
        made: dict[tuple[int, tuple[int, int], bool], GpuBatch] = {}
        kinds, beside = [*zip(self.table_of, self.heads, self.sees_on, strict=True)], batch.chunk_scratch
        for table, heads, sees_on in kinds:
            if (table, heads, sees_on) not in made:
                made[table, heads, sees_on] = batch._replace(
                    inputs=batch.inputs.of(table),
                    scratch=batch.scratch.of_heads(*heads),
                    chunk_scratch=None if beside is None else beside.of_heads(*heads),
                    ends=batch.ends if sees_on else None,
                )
        return [made[kind] for kind in kinds]

    def _put(self, module: nn.Module, asked: Any, embedded: Tensor) -> None:
        """Embeddings of pictures in the place of those of ids; see adapter/pictures.py."""
        if self._given is not None:
            put_rows(embedded.view(-1, embedded.shape[-1]), self._given.embeddings, self._given.places)

    def norm(self, hidden: Hidden, out: Tensor | None = None) -> Tensor:
        """It was normed as the last part of the decoder."""
        return hidden.added if out is None else out.copy_(hidden.added)

    def own_logits(self, normed: Tensor) -> Tensor:
        return self.passes.logits(normed)
