"""Embeddings that clients have made in the place of pictures: tensors as torch.save writes them."""

from __future__ import annotations

import binascii
from dataclasses import replace

import msgspec
import numpy as np

from ..model.info import ModelInfo
from ..model.vision.spec import IMAGE_EMBEDS
from ..model.weights.saved_tensor import UnreadableTensor, read_tensor
from ..options.config import Config
from ..protocol.media import IMAGE, MediaSource
from .processors import Marks, Processed, told_of
from .refused import MediaRefused

GRID = "image_grid_thw"


class GivenEmbeddings:
    """In the place of pictures."""

    def __init__(self, config: Config, model: ModelInfo) -> None:
        self._most = config.max_media_bytes
        self._told = told = told_of(model)
        self._marks = Marks(config, model, told, IMAGE)
        self._vision = model.vision

    def process(self, data: bytes, source: MediaSource) -> Processed:
        """Of the JSON that a frontend has made of a part: tensors in base64, by name."""
        write = self._marks.expansion.embeds
        if write is None:
            raise MediaRefused("this model's pictures are of several parts, which embeddings do not tell apart.")
        arrays = {name: self._tensor(name, text) for name, text in msgspec.json.decode(data).items()}
        if set(arrays) - {IMAGE_EMBEDS, GRID} or IMAGE_EMBEDS not in arrays:
            raise MediaRefused(f"tensors by the names {IMAGE_EMBEDS} and, where the model wants it, {GRID} are taken.")
        rows = self._rows(arrays[IMAGE_EMBEDS])
        found = {IMAGE_EMBEDS: rows}
        if self._marks.expansion.grid:
            found[GRID] = self._grid(arrays.get(GRID), len(rows))
        elif GRID in arrays:
            raise MediaRefused(f"this model's pictures have no {GRID}.")
        text = write(replace(self._told, outputs=found), self._marks.embedded, len(rows))
        return self._marks.processed(found, text)

    def _tensor(self, name: str, text: str) -> np.ndarray:
        try:
            data = binascii.a2b_base64(text.encode(), strict_mode=True)
        except (binascii.Error, ValueError) as error:
            raise MediaRefused(f"the base64 of {name} is wrong: {error}.") from None
        if len(data) > self._most:
            raise MediaRefused(f"it has more than the {self._most} bytes that --max-media-bytes allows.", 413)
        try:
            return read_tensor(data)
        except UnreadableTensor as error:
            raise MediaRefused(str(error)) from None

    def _rows(self, given: np.ndarray) -> np.ndarray:
        if given.ndim == 3 and given.shape[0] == 1:
            given = given[0]
        if given.ndim != 2 or given.dtype.kind != "f":
            raise MediaRefused(
                f"it has the shape {list(given.shape)} of {given.dtype}: floats, tokens × hidden, are taken."
            )
        rows = given.astype(np.float32)
        if not np.isfinite(rows).all():
            raise MediaRefused("a number is infinite or none.")
        if self._vision is not None:
            hidden, wide = self._vision.hidden, self._vision.hidden * (1 + self._vision.deepstack)
            if rows.shape[1] not in (hidden, wide):
                more = f" or {wide}" if wide != hidden else ""
                raise MediaRefused(f"its rows have {rows.shape[1]} numbers, {hidden}{more} are needed.")
        return rows

    def _grid(self, given: np.ndarray | None, rows: int) -> np.ndarray:
        if given is None or given.size != 3 or given.dtype.kind != "i":
            raise MediaRefused(f"this model wants {GRID} beside it: three integers, time, height and width in patches.")
        grid = given.astype(np.int64).reshape(1, 3)
        merge = int((self._told.config.get("vision_config") or {}).get("spatial_merge_size") or 2)
        time, high, wide = (int(one) for one in grid[0])
        if min(time, high, wide) < 1 or high % merge or wide % merge or time * high * wide != rows * merge**2:
            raise MediaRefused(f"{GRID} [{time}, {high}, {wide}] is not that of {rows} embeddings.")
        if time != 1:
            raise MediaRefused(f"{GRID} is that of a film: a picture has one time.")
        return grid
