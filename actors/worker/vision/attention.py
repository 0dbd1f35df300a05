"""Attention of a step in which tokens of one picture see one another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.kernels.cpu.attention import StepAttention, contexts

from ..cpu.memory.window_tables import TabledAttention
from .step import Run


class PictureAttention:
    """Attention of a step in which tokens of one picture see one another, and all that is before as ever."""

    def __init__(
        self, inner: StepAttention | TabledAttention, runs: tuple[Run, ...], within_windows: bool = False
    ) -> None:
        """`within_windows`: in layers with a window alone, of which no token sees further back."""
        self.inner, self.runs, self.within_windows = inner, runs, within_windows
        self._masks: dict[tuple[int | None, int], Tensor] = {}

    def __call__(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        """As StepAttention."""
        out = self.inner(layer, queries, sinks)
        inner = self.inner
        part = inner.parts[inner.table_of[layer]] if isinstance(inner, TabledAttention) else inner
        assert isinstance(part, StepAttention) and sinks is None
        rule = part.layers[layer]
        assert rule is not None
        if self.within_windows and rule.window is None:
            return out
        assert rule.soft_cap is None and rule.chunk is None
        for number, run in enumerate(self.runs):
            span = part.spans[run.span]
            first = rule.first_seen(run.start)
            seen = span._replace(size=run.end - span.position)
            ((keys, values),) = contexts(part.kv, [seen], part.layers, layer, first)
            own = slice(span.first + run.start - span.position, span.first + run.end - span.position)
            mask = self._mask(number, rule.window, run, first)
            found = F.scaled_dot_product_attention(
                *(queries[own].transpose(0, 1)[None], keys[None], values[None]),
                attn_mask=mask,
                scale=rule.scale,
                enable_gqa=True,
            )
            out[own] = found[0].transpose(0, 1)
        return out

    def _mask(self, number: int, window: int | None, run: Run, first: int) -> Tensor:
        """[tokens of the picture, positions from `first` to its end]."""
        if (window, number) not in self._masks:
            at, keys = torch.arange(run.start, run.end)[:, None], torch.arange(first, run.end)
            inside = keys > at - (window or run.end + 1)
            self._masks[window, number] = inside if self.within_windows else inside | (keys >= run.start)
        return self._masks[window, number]
