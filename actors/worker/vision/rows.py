"""What rows of the worker's batch have of pictures, and what a step is given of it.

All is made of the slot's items and the prompt when a sequence takes a row, so that one which was preempted, or whose
worker has died, goes on as it was. An item that makes no embeddings ends its own request: its row is computed with
zeros in their place, and each such step tells of it, so that nobody finds what was made of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ...protocol.media import VIDEO, MediaItem
from .encoder import BadItem, Embeddings, Owner, VisionEncoder
from .step import Run, VisionStep

log = logging.getLogger("worker")
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
AXES = 3
GRIDS = ("image_grid_thw", "video_grid_thw")
SECONDS = ("second_per_grid_ts", "second_per_grid")


class Pictures(NamedTuple):
    """A row's."""

    items: list[MediaItem]
    places: list[Ints]  # of each item, the positions of its embeddings
    # [3, prompt]: by what the prompt's tokens are turned, where that is not their position
    turns: np.ndarray[Any, np.dtype[np.int64]] | None
    delta: int  # the same of all tokens behind it, less their position
    owner: Owner


class VisionRows:
    """Of all rows of the batch."""

    def __init__(self, encoder: VisionEncoder, rows: int) -> None:
        self.encoder, self.spec = encoder, encoder.spec
        self.broken = np.zeros(rows, np.bool_)  # rows whose item makes no embeddings
        self._delta = np.zeros(rows, np.int64)
        self._rows: dict[int, Pictures] = {}
        self._ends = np.zeros(rows, np.int64)  # behind the last embedding of each row

    def place(self, row: int, slot: int, generation: int, prompt: Ints) -> None:
        """A sequence takes a row."""
        self._rows.pop(row, None)
        self.broken[row], self._delta[row], self._ends[row] = False, 0, 0
        items = self.encoder.source.items(slot, generation)
        if not items:
            return
        owner = Owner(slot, generation)
        places = [self._places(item, prompt) for item in items]
        turns, delta = None, 0
        if self.spec.axes:
            try:
                turns, delta = self._turns(items, prompt, owner)
            except BadItem as error:
                self._break(row, owner, error)
        self._rows[row] = Pictures(items, places, turns, delta, owner)
        self._delta[row] = delta
        self._ends[row] = max((int(place[-1]) + 1 for place in places if len(place)), default=0)

    def look(self, row: int, position: int, share: float) -> None:
        """Compute this share, all told, of the embeddings of the item that begins there."""
        own = self._rows.get(row)
        item = next((item for item in own.items if item.start == position), None) if own is not None else None
        if own is None or item is None or self.broken[row]:
            return
        self.encoder.look(item, own.owner, share)

    def step(self, rows: Ints, starts: Ints, counts: Ints) -> VisionStep | None:
        """For these rows' next `counts` tokens from `starts` on; None: nothing but ids and positions."""
        seeing = starts < self._ends[rows]
        if not seeing.any():
            return self._shifted(rows, starts, counts)
        firsts = np.cumsum(counts) - counts
        at: list[Ints] = []
        parts: list[tuple[Embeddings, slice]] = []
        runs: list[Run] = []
        for index in np.flatnonzero(seeing).tolist():
            row, start, count, first = (int(values[index]) for values in (rows, starts, counts, firsts))
            own = self._rows[row]
            for item, places in zip(own.items, own.places, strict=True):
                inside = np.flatnonzero((places >= start) & (places < start + count))
                if len(inside):
                    at.append(places[inside] - start + first)
                    part = slice(int(inside[0]), int(inside[-1]) + 1)  # places ascend: no index goes to a device
                    parts.append((self._embeddings(row, item, len(places)), part))
                    runs += self._runs(index, places[inside]) if self.spec.whole_pictures else []
        return VisionStep(
            self._turned(rows, starts, counts, firsts) if self.spec.axes else None,
            torch.from_numpy(np.concatenate(at)) if at else None,
            torch.cat([made.rows[part] for made, part in parts]) if parts else None,
            self._deepstack(parts),
            tuple(runs),
        )

    def _shifted(self, rows: Ints, starts: Ints, counts: Ints) -> VisionStep | None:
        """Of tokens of texts: behind pictures they turn by other positions than their own."""
        delta = self._delta[rows]
        if not delta.any():
            return None
        firsts = np.cumsum(counts) - counts
        positions = np.arange(int(counts.sum())) + np.repeat(starts - firsts + delta, counts)
        return VisionStep(torch.from_numpy(positions))

    def _turned(self, rows: Ints, starts: Ints, counts: Ints, firsts: Ints) -> Tensor:
        shifted = np.arange(int(counts.sum())) + np.repeat(starts - firsts + self._delta[rows], counts)
        turns = np.tile(shifted, (AXES, 1))
        about = rows.tolist(), starts.tolist(), counts.tolist(), firsts.tolist()
        for row, start, count, first in zip(*about, strict=True):
            own = self._rows.get(row)
            if own is not None and own.turns is not None and start < len(own.turns[0]):
                part = own.turns[:, start : start + count]
                turns[:, first : first + len(part[0])] = part
        return torch.from_numpy(turns)

    def _deepstack(self, parts: Sequence[tuple[Embeddings, slice]]) -> tuple[Tensor, ...]:
        """Of each layer those of all items; zeros where the client gave embeddings without."""
        count = max((len(made.deepstack) for made, _ in parts), default=0)
        return tuple(
            torch.cat(
                [
                    (made.deepstack[layer] if made.deepstack else torch.zeros_like(made.rows))[part]
                    for made, part in parts
                ]
            )
            for layer in range(count)
        )

    def _embeddings(self, row: int, item: MediaItem, needed: int) -> Embeddings:
        try:
            if not self.broken[row]:
                made = self.encoder.embeddings(item, self._rows[row].owner)
                if len(made.rows) == needed:
                    return made
                raise BadItem(f"it makes {len(made.rows)} embeddings, and the prompt has room for {needed}")
        except BadItem as error:
            self._break(row, self._rows[row].owner, error)
        zeros = torch.zeros(needed, self.spec.hidden, dtype=self.encoder.dtype, device=self.encoder.device)
        return Embeddings(zeros, ())

    def _break(self, row: int, owner: Owner, error: BadItem) -> None:
        log.warning("slot %d: a picture cannot be used: %s", owner.slot, error)
        self.broken[row] = True

    def _places(self, item: MediaItem, prompt: Ints) -> Ints:
        inside = prompt[item.start : item.start + item.length]
        return item.start + np.flatnonzero(np.isin(inside, self.spec.placeholders))

    @staticmethod
    def _runs(span: int, places: Ints) -> list[Run]:
        """Positions that follow one another are of one picture."""
        cuts = np.flatnonzero(np.diff(places) != 1) + 1
        return [Run(span, int(part[0]), int(part[-1]) + 1) for part in np.split(places, cuts)]

    def _turns(self, items: Sequence[MediaItem], prompt: Ints, owner: Owner) -> tuple[Any, int]:
        """By transformers' function, which counts pictures and films apart."""
        kinds = np.zeros(len(prompt), np.int64)
        given: dict[str, list[Tensor]] = {}
        for item in items:
            kinds[self._places(item, prompt)] = 2 if item.modality == VIDEO else 1
            for name, value in self.encoder.tensors(item, owner, (*GRIDS, *SECONDS)).items():
                if name in GRIDS:
                    given.setdefault(name, []).append(value.long())
                else:
                    given.setdefault(SECONDS[0], []).append(value.reshape(-1).float())
        arguments = {name: torch.cat(values) for name, values in given.items()}
        ids, tower = torch.from_numpy(prompt)[None], cast(Any, self.encoder.tower)
        try:
            positions, delta = tower.get_rope_index(
                input_ids=ids, mm_token_type_ids=torch.from_numpy(kinds)[None], **arguments
            )
        except (ValueError, TypeError, RuntimeError, IndexError, StopIteration) as error:
            raise BadItem(f"the places of its parts cannot be told ({str(error).splitlines()[:1]})") from None
        return positions[:, 0].numpy(), int(delta[0])
