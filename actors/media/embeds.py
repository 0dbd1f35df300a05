"""Embeddings that clients have made: tensors as torch.save writes them, read without torch.

Such a file is a zip: a pickle of what it holds, and each tensor's numbers in an entry of its own. As with torch's
weights_only a pickle may name what tensors are made of, and nothing else (model/weights/pickled.py); nothing that it
says is run, and entries are read only as they are, uncompressed.
"""

from __future__ import annotations

import binascii
import io
import pickle
import zipfile
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..model.info import ModelInfo
from ..model.vision.spec import IMAGE_EMBEDS
from ..model.weights.pickled import Storage, TensorUnpickler
from ..options.config import Config
from ..protocol.media import IMAGE, MediaSource
from .processors import Marks, Processed, told_of
from .refused import MediaRefused

DTYPES = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I32": np.int32, "I64": np.int64, "BF16": np.uint16}
GRID = "image_grid_thw"
LONGEST_PICKLE = 1 << 16


class Stored(NamedTuple):
    """The numbers of a tensor."""

    place: str
    storage: Storage


class _Reader(TensorUnpickler):
    """Makes arrays."""

    def __init__(self, archive: zipfile.ZipFile, folder: str, sizes: dict[str, int]) -> None:
        super().__init__(io.BytesIO(archive.read(f"{folder}.pkl")), folder, sizes)
        self._archive = archive

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._array
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        return Stored(f"{self.folder}/{pid[2]}", super().persistent_load(pid))

    def _array(self, stored: Stored, offset: int, shape: Any, stride: Any, *_: object) -> np.ndarray:
        kind = DTYPES.get(stored.storage.dtype)
        if kind is None:
            raise pickle.UnpicklingError(f"its numbers are {stored.storage.dtype}; floats and integers are read")
        numbers = np.frombuffer(self._archive.read(stored.place), kind)
        sizes, steps = (tuple(int(one) for one in given) for given in (shape, stride))
        last = offset + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        if min((offset, *sizes, *steps)) < 0 or (0 not in sizes and last >= len(numbers)):
            raise pickle.UnpicklingError("it lies beyond its numbers")
        if 0 in sizes:
            raise pickle.UnpicklingError("it has no numbers")
        item = numbers.itemsize
        seen = np.lib.stride_tricks.as_strided(numbers[offset:], sizes, tuple(step * item for step in steps))
        if seen.size > len(numbers):
            raise pickle.UnpicklingError("it says the same numbers again and again")
        found = np.ascontiguousarray(seen)
        return (found.astype(np.uint32) << 16).view(np.float32) if stored.storage.dtype == "BF16" else found


def read_tensor(data: bytes) -> np.ndarray:
    """The one that torch.save has written. MediaRefused says what it is instead."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            sizes = {one.filename: one.file_size for one in entries}
            name = next((name for name in sizes if name.endswith("/data.pkl") and name.count("/") == 1), None)
            if name is None or any(one.compress_type != zipfile.ZIP_STORED for one in entries):
                raise MediaRefused("it is no tensor as torch.save writes it.")
            if sizes[name] > LONGEST_PICKLE:
                raise MediaRefused("what it says of its tensor is too long.")
            found = _Reader(archive, name.removesuffix(".pkl"), sizes).load()
    except MediaRefused:
        raise
    except pickle.UnpicklingError as error:
        raise MediaRefused(f"it is no tensor: {error}.") from None
    except Exception as error:  # a pickle's operations raise anything where it is broken
        raise MediaRefused(f"it is no tensor as torch.save writes it ({type(error).__name__}).") from None
    if not isinstance(found, np.ndarray):
        raise MediaRefused("it is no tensor, but something with tensors in it.")
    return found


class GivenEmbeddings:
    """In the place of pictures."""

    def __init__(self, config: Config, model: ModelInfo) -> None:
        self._most = config.max_media_bytes
        self._told = told = told_of(model)
        self._marks = Marks(model, told, IMAGE)
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
        return read_tensor(data)

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
