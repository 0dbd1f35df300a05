"""Embeddings of pictures: made by the tower, or given by the client; kept by their digests, the last used longest.

A picture's embeddings may be needed in several steps, one for each part of its prompt that touches it, and by later
prompts with the same picture. What was let go of is made again: the arena has the pixels as long as the slot is used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...model.vision.spec import IMAGE_EMBEDS, VisionSpec
from ...protocol.media import AUDIO, VIDEO, MediaItem, MediaTensor
from ..transfer import sent
from .films import in_pieces
from .hearing import heard
from .slices import Slices
from .tower import arguments

CPU = torch.device("cpu")
EVERY: Container[str] = frozenset(("",))  # names of tensors
DIMENSIONS = {"pixel_values": 4, "image_sizes": 2, "image_grid_thw": 2, "video_grid_thw": 2}
OUT_OF_MEMORY = "allocate memory"  # in what torch's CPU allocator says when it cannot
WITHOUT_ROOM = "valid cuDNN algorithm"  # none that fits in what is free
OF_DEVICE = ("CUDA error", "cuDNN error", "cuBLAS error")  # in what torch says of the runtime and libraries
LISTED = {  # patches, some of them none
    "siglip2": {"pixel_values": 3, "pixel_attention_mask": 2, "spatial_shapes": 2},
    "gemma4": dict.fromkeys(("pixel_values", "image_position_ids", "pixel_values_videos", "video_position_ids"), 3),
}
MASKS = ("feature_attention_mask", "input_features_mask")  # which frames are a sound's own
TILES = ("llava_next", "smolvlm", "idefics3")  # pictures of several parts, which have a dimension of their own
PATCHES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm5_next")  # a row of numbers each


class MediaSource(Protocol):
    """Where items and their numbers lie: the media arena."""

    def items(self, slot: int, generation: int) -> list[MediaItem]:
        """Of a slot's prompt."""

    def array(self, tensor: MediaTensor) -> np.ndarray[Any, Any]:
        """A view that is only read."""

    def intact(self, slot: int, generation: int) -> bool:
        """Were all arrays of this use of a slot its own until now? Asked when they have been read."""


class Owner(NamedTuple):
    """Whose item it is."""

    slot: int
    generation: int


class BadItem(ValueError):
    """What was sent makes no embeddings; the message says why. It is this request's alone."""


class Embeddings(NamedTuple):
    """Of one item."""

    rows: Tensor  # [placeholders, hidden]
    deepstack: tuple[Tensor, ...]  # of the first layers, of the same shape

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.numel() * part.element_size() for part in (self.rows, *self.deepstack))


class EmbeddingCache:
    """By digest, of at most so many bytes; what is asked for last goes last."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = self.queries = self.hits = 0
        self._kept: OrderedDict[bytes, Embeddings] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._kept

    def get(self, digest: bytes) -> Embeddings | None:
        """And use it."""
        self.queries += 1
        found = self._kept.get(digest)
        if found is not None:
            self.hits += 1
            self._kept.move_to_end(digest)
        return found

    def put(self, digest: bytes, made: Embeddings) -> None:
        """One that is larger than all room is not kept."""
        if digest in self._kept or made.size > self.most:
            return
        self._kept[digest] = made
        self.size += made.size
        while self.size > self.most:
            _, gone = self._kept.popitem(last=False)
            self.size -= gone.size

    def clear(self) -> int:
        """Returns how many there were."""
        count = len(self._kept)
        self._kept.clear()
        self.size = 0
        return count


class VisionEncoder:
    """Makes embeddings with a tower."""

    def __init__(
        self,
        tower: PreTrainedModel,
        spec: VisionSpec,
        dtype: torch.dtype,
        source: MediaSource,
        most: int,
        device: torch.device = CPU,
    ) -> None:
        """`most`: bytes of embeddings that are kept; `device`: where the tower is, and what it makes."""
        self.tower, self.spec, self.dtype, self.source = tower, spec, dtype, source
        self.device = device
        self.cache = EmbeddingCache(most)
        self.most_numbers: int | None = None  # of a film that are computed together; None: all of them
        self._parts: dict[bool, Slices[Embeddings]] = {}  # of what hears, or sees
        self._functions: dict[str, tuple[Callable[..., Any], set[str]]] = {}

    def embeddings(self, item: MediaItem, owner: Owner) -> Embeddings:
        """Of one item; BadItem says what is wrong with it."""
        found = self.cache.get(item.digest)
        if found is None:
            found = self._begun(item) or self._make(item, owner)
            self.cache.put(item.digest, found)
        return found

    def look(self, item: MediaItem, owner: Owner, share: float) -> None:
        """Compute this share of an item's embeddings, all told: they will be wanted."""
        if item.digest not in self.cache:
            self._slices(item.modality).advance(
                item.digest, lambda: self._make(item, owner), share * self._count_pieces(item)
            )

    def try_out(self, modality: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Make embeddings of what is no request's, and keep none; BadItem says what the tower cannot do."""
        given = {name: self._shaped(name, torch.from_numpy(np.array(value))) for name, value in arrays.items()}
        self._made_of(modality, given)

    def _slices(self, modality: str) -> Slices[Embeddings]:
        hears = modality == AUDIO
        if hears not in self._parts:
            part = getattr(self.tower, "audio_tower" if hears else "vision_tower", self.tower)
            self._parts[hears] = Slices(part, self.device)
        return self._parts[hears]

    def _begun(self, item: MediaItem) -> Embeddings | None:
        """All of what was begun of it; who began it may have gone too soon, which is not this one's fault."""
        parts = self._parts.get(item.modality == AUDIO)
        work = None if parts is None else parts.take(item.digest)
        if parts is None or work is None:
            return None
        try:
            return parts.all_of(work)
        except BadItem:
            return None

    def tensors(self, item: MediaItem, owner: Owner, names: Container[str] = EVERY) -> dict[str, Tensor]:
        """What the processor made of it, copied, with the dimensions that a batch of one has; `names`: of these."""
        found = {}
        for tensor in item.tensors:
            if names is not EVERY and tensor.name not in names:
                continue
            value = torch.from_numpy(np.array(self.source.array(tensor)))
            found[tensor.name] = self._shaped(tensor.name, value)
        if not self.source.intact(*owner):
            raise BadItem("its request has ended, and its place is another's")
        return found

    def _shaped(self, name: str, value: Tensor) -> Tensor:
        wanted = DIMENSIONS.get(name)
        if self.spec.kind in LISTED:
            wanted = LISTED[self.spec.kind].get(name)
        elif name in ("pixel_values", "pixel_values_videos") and self.spec.kind in PATCHES:
            wanted = 2
        elif name == "pixel_values" and self.spec.kind in TILES:
            wanted = 5
        elif name == "pixel_attention_mask":
            wanted = 4
        if wanted is None:
            return value
        while value.dim() < wanted:
            value = value[None]
        return value.flatten(0, value.dim() - wanted) if value.dim() > wanted else value

    def _make(self, item: MediaItem, owner: Owner) -> Embeddings:
        return self._made_of(item.modality, self.tensors(item, owner))

    def _made_of(self, modality: str, given: dict[str, Tensor]) -> Embeddings:
        try:
            return self._given(given[IMAGE_EMBEDS]) if IMAGE_EMBEDS in given else self._encode(modality, given)
        except BadItem:
            raise
        except (ValueError, TypeError, IndexError, KeyError, AttributeError, RuntimeError) as error:
            if OUT_OF_MEMORY in str(error) or isinstance(error, torch.OutOfMemoryError):
                raise
            if self.device.type == "cuda":
                _raise_if_of_device(error)
            raise BadItem(f"the model's encoder does not take it ({str(error).splitlines()[0]})") from None

    def _given(self, value: Tensor) -> Embeddings:
        """Embeddings that came with the request: for a model with deepstack side by side, or without."""
        rows, hidden = value.reshape(-1, value.shape[-1]).to(self.dtype), self.spec.hidden
        if not bool(torch.isfinite(rows).all()):
            raise BadItem("image_embeds: a number is infinite or none")
        if rows.shape[-1] not in (hidden, hidden * (1 + self.spec.deepstack)):
            wide = f" or {hidden * (1 + self.spec.deepstack)}" if self.spec.deepstack else ""
            raise BadItem(f"image_embeds: rows have {rows.shape[-1]} numbers, {hidden}{wide} are needed")
        parts = self._there(rows).split(hidden, -1)
        return _copies(*parts)

    def _encode(self, modality: str, given: dict[str, Tensor]) -> Embeddings:
        if modality == AUDIO:
            features, mask = (
                self._there(given["input_features"].to(self.dtype)),
                next((given[name] for name in MASKS if name in given), None),
            )
            return _copies(heard(self.tower, features, None if mask is None else self._there(mask)))
        function, names = self._function("get_video_features" if modality == VIDEO else "get_image_features")
        floats = {name: value.to(self.dtype) if value.is_floating_point() else value for name, value in given.items()}
        if modality == VIDEO and "pixel_values_videos" not in names:
            floats = {"pixel_values" if name == "pixel_values_videos" else name: v for name, v in floats.items()}
        most = self.most_numbers if modality == VIDEO else None
        made = [self._asked(function, names, some) for some in ([floats] if most is None else in_pieces(floats, most))]
        rows, *deepstack = (torch.cat(parts) for parts in zip(*made, strict=True))
        return Embeddings(rows, tuple(deepstack))

    def _asked(self, function: Callable[..., Any], names: set[str], given: Mapping[str, Tensor]) -> list[Tensor]:
        """The embeddings, and what is added behind layers."""
        out = function(**{name: self._there(value) for name, value in given.items() if name in names})
        return [self._rows(part) for part in (out.pooler_output, *(getattr(out, "deepstack_features", None) or ()))]

    def _count_pieces(self, item: MediaItem) -> int:
        """In which it is computed, about."""
        if item.modality != VIDEO or self.most_numbers is None:
            return 1
        return -(-max(prod(tensor.shape) for tensor in item.tensors) // self.most_numbers)

    def _there(self, value: Tensor) -> Tensor:
        """Where the tower is, without a wait for what is under way there."""
        return sent(value, self.device)

    def _function(self, name: str) -> tuple[Callable[..., Any], set[str]]:
        name = name if hasattr(self.tower, name) else "get_image_features"
        if name not in self._functions:
            self._functions[name] = getattr(self.tower, name), arguments(self.tower, name)
        return self._functions[name]

    def _rows(self, made: Tensor | Sequence[Tensor]) -> Tensor:
        parts = [made] if isinstance(made, Tensor) else list(made)
        return torch.cat([part.reshape(-1, self.spec.hidden) for part in parts])


def _raise_if_of_device(error: Exception) -> None:
    """A GPU's errors are no picture's: there is no room for a library, or a step before has failed, which is heard at
    the next look.
    """
    from ..gpu.memory import is_out_of_memory  # and with it Triton

    words = (str(error).splitlines() or [""])[0]
    if is_out_of_memory(error) or WITHOUT_ROOM in words:
        raise torch.OutOfMemoryError(f"CUDA out of memory: {words}") from error
    if any(name in words for name in OF_DEVICE):
        raise error


def _copies(rows: Tensor, *deepstack: Tensor) -> Embeddings:
    """Tensors of their own: views would keep all that they are parts of."""
    return Embeddings(rows.clone(), tuple(part.clone() for part in deepstack))
