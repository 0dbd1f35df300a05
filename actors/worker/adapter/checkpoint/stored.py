"""Tensors of a checkpoint under the names that floats of them would have, each read or decoded when it is asked for.

Which tensors make one weight is told by their names and types and by `quantization_config` (model/formats); how many
rows and columns it has, by their shapes: what a model wants is compared when it has come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Set
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....model.formats.stored import (
    FLOATS,
    WORD,
    AffineWeight,
    AwqWeight,
    BnbWeight,
    ExpertFloat4Weight,
    Float4Weight,
    GptqWeight,
    PackedWeight,
    ScaledWeight,
    StoredWeights,
    WeightFormat,
)
from ....model.gguf.folder import gguf_tensors
from ....model.vision.texts import text_name
from ....model.weights.places import some
from ....model.weights.weight_files import read_weights
from ....options.config import ConfigError
from ...formats.decoding import decode
from ...formats.floats import expert
from ...formats.integers import scaled
from ...models.gguf_tensors import gguf_reader
from ...models.weights import read_parts

LAYERS = re.compile(r"\.(h|blocks|block|layer)\.(?=\d)")  # what formats call layers
IN_LAYER = re.compile(r"\.\d+\.")
ALL = slice(None)
SOME_ROWS = 256
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
BLOCKS, SCALES = "_blocks", "_scales"  # of experts in MXFP4
WHOLE_NUMBERS = ("I32", "I64", "BOOL", "F64")  # of buffers, which are no weights


class LazyTensor:
    """What safetensors' slices are for transformers: read when it is indexed."""

    def __init__(self, source: Source, get: Callable[[], Tensor], decoded: bool) -> None:
        self.source, self.get, self.decoded = source, get, decoded

    def __getitem__(self, index: Any) -> Tensor:
        self.source.decoded |= self.decoded
        try:
            return self.get()[index]
        except ConfigError as error:  # transformers would go on
            self.source.error = self.source.error or error
            raise


def _as_of_texts(name: str) -> str:
    """What a tensor is called where there is nothing but the text part."""
    return text_name(name) or name.removeprefix("language_model.")


class Source:
    """Those of a folder."""

    def __init__(self, folder: Path, stored: StoredWeights | None, text_alone: bool = False) -> None:
        """ConfigError names what is missing, or has another shape than the tensors beside it. `text_alone`: of a whole
        model, whose text part is filled."""
        self.text_alone = text_alone
        self.found = read_weights(folder)
        self.stored = stored
        self.decoded = False
        self.error: ConfigError | None = None
        self.zeros: set[str] = set()  # biases that old tools write where there is none: all 0
        self.quantised = 0  # numbers of weights that are
        self.rows: list[Tensor] = []  # scales of rows that were read, of weights of whole numbers of 8 bits
        self.tensors: dict[str, LazyTensor] = {}
        if (gguf := gguf_tensors(folder)) is not None:
            self.read = gguf_reader(folder, *gguf)
            for name, one in self.found.items():
                self.tensors[name] = LazyTensor(self, partial(self.read, name, ALL, None), one.dtype not in FLOATS)
            return
        self.read = read_parts({name: one.home(name) for name, one in self.found.items()})
        used: set[str] = set()
        if stored is not None:
            for name in self.found:
                used |= self._quantised(name, stored)
        for name in self.found.keys() - used:
            if stored is None or stored.needless is None or not stored.needless.fullmatch(name):
                self._plain(name)
        if text_alone:
            self.tensors = {_as_of_texts(name): tensor for name, tensor in self.tensors.items()}
            self.zeros = {_as_of_texts(name) for name in self.zeros}

    def take(self) -> bool:
        """Was what has been read since the last call quantised?"""
        decoded, self.decoded = self.decoded, False
        return decoded

    def scales_of(self, weight: Tensor) -> Tensor | None:
        """Those that the rows of a decoded weight are whole numbers of, if the checkpoint has it so: what is made of it
        then is what stands there, and nothing is rounded twice. Whether they are its own is seen by the numbers."""
        for index, scales in enumerate(self.rows):
            if weight.dim() == 2 and len(scales) == len(weight) and _are_whole(weight, scales):
                return self.rows.pop(index)
        return None

    def table_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The type in which embeddings can be kept without loss: that of all floats, or what is computed in."""
        if any(one.decoded and not IN_LAYER.search(name) for name, one in self.tensors.items()):
            return dtype
        kinds = {one.dtype for one in self.found.values() if one.dtype in FLOATS and len(one.shape) == 2}
        kept = DTYPES[kinds.pop()] if len(kinds) == 1 else dtype
        return kept if kept.itemsize <= dtype.itemsize else dtype

    def is_needless(self, name: str) -> bool:
        """Need a model have no use of it?"""
        return name in self.zeros and not self.tensors[name][...].any()

    def _add(self, name: str, own: Set[str], get: Callable[[], Tensor], numbers: int) -> None:
        """A weight that is made of its own tensors."""
        if name in self.found and name not in own:
            raise ConfigError(
                f"model: the checkpoint has {name} beside {some(sorted(own))}, which make the same weight"
            )
        self.quantised += numbers
        self.tensors[name] = LazyTensor(self, get, decoded=True)

    def _plain(self, name: str) -> None:
        kind = self.found[name].dtype
        if kind not in FLOATS and kind not in WHOLE_NUMBERS:
            said = "its config.json has no quantization_config" if self.stored is None else "config.json says it is not"
            raise ConfigError(f"model: {name} is stored as {kind}, and {said}; supported are {', '.join(FLOATS)}")
        self.tensors[name] = LazyTensor(self, partial(self.read, name, ALL, None), decoded=False)

    def _quantised(self, name: str, stored: StoredWeights) -> set[str]:
        """The names that make a weight of which this is the first; none if it is none."""
        if name.endswith(BLOCKS) and stored.name == "mxfp4":
            return self._experts_of_mxfp4(name.removesuffix(BLOCKS))
        layer, _, last = name.rpartition(".")
        form = self._format_of(layer, stored)
        if form is None:
            return self._experts(layer, name, stored)
        spec = next(iter(form.tensors(8, 8).items()))
        if last != spec[0] or self.found[name].dtype not in spec[1].types:
            return self._experts(layer, name, stored)
        if isinstance(form, BnbWeight) and f"{name}.absmax" not in self.found:  # floats in the type of its storage
            return set()
        if len(self.found[name].shape) == 3 and isinstance(form, ScaledWeight):
            return self._scaled_experts(name, form)
        return self._one(f"{layer}.", form)

    @staticmethod
    def _format_of(layer: str, stored: StoredWeights) -> WeightFormat | None:
        return stored.of(layer) or stored.of(LAYERS.sub(".layers.", layer))

    def _one(self, prefix: str, form: WeightFormat) -> set[str]:
        """The weight of a linear layer."""
        rows, columns = self._size(prefix, form)
        specs = form.tensors(rows, columns)
        if missing := [
            prefix + end for end, one in specs.items() if not one.optional and prefix + end not in self.found
        ]:
            raise ConfigError(f"model: {some(missing)} is missing")
        for end, one in specs.items():
            there = self.found.get(prefix + end)
            if there is not None and one.shape is not None and there.shape not in (one.shape, *one.also):
                raise ConfigError(
                    f"model: {prefix}{end} has the shape {list(there.shape)} in place of {list(one.shape)}"
                )
            if there is not None and there.dtype not in one.types:
                raise ConfigError(
                    f"model: {prefix}{end} is stored as {there.dtype}; supported are {', '.join(one.types)}"
                )
        own = {prefix + end for end in specs if prefix + end in self.found}
        if isinstance(form, GptqWeight) and f"{prefix}bias" in own:
            own.discard(f"{prefix}bias")
            self.zeros.add(f"{prefix}bias")

        def get() -> Tensor:
            if form.row_scales is not None:
                scales = self.read(f"{prefix}{form.row_scales}", ALL, None).float().view(-1)
                self.rows.append(scales / form.divisor if isinstance(form, ScaledWeight) else scales)
            return decode(self.read, self.found, form, prefix, (rows, columns), {f"{prefix}bias"})

        self._add(f"{prefix}weight", own, get, rows * columns)
        return own

    def _size(self, prefix: str, form: WeightFormat) -> tuple[int, int]:
        """Rows and columns of a weight."""

        def shape(end: str) -> tuple[int, int]:
            first, second = self.found[prefix + end].shape
            return first, second

        try:
            if isinstance(form, PackedWeight):
                if (told := f"{prefix}weight_shape") in self.found:
                    rows, columns = self.read(told, ALL, None).tolist()
                    return int(rows), int(columns)
                rows, words = shape("weight_packed")
                return rows, words * WORD // form.bits
            if isinstance(form, GptqWeight):
                words, rows = shape("qweight")
                return rows, words * WORD // form.bits
            if isinstance(form, AffineWeight):
                rows, words = shape("weight")
                return rows, words * WORD // form.bits
            if isinstance(form, AwqWeight):
                columns, words = shape("qweight")
                return words * WORD // 4, columns
            if isinstance(form, Float4Weight):
                rows, packed = shape(form.weight)
                return rows, packed * (WORD // 4 if form.words else 2)
            if isinstance(form, BnbWeight):
                state = self.read(f"{prefix}weight.quant_state.bitsandbytes__{form.kind}", ALL, None)
                rows, columns = json.loads(bytes(state.tolist()))["shape"]
                return int(rows), int(columns)
            return shape(form.weight if isinstance(form, ScaledWeight) else "weight")
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"model: rows and columns of {prefix}weight are not told: {error!r}") from None

    def _experts(self, layer: str, name: str, stored: StoredWeights) -> set[str]:
        """Weights of all experts in one tensor, which has no layer's name: `…experts.gate_up_proj`."""
        one = self.found[name]
        if len(one.shape) != 3 or one.dtype not in ("F8_E4M3", "I8"):
            return set()
        form = self._format_of(name, stored)
        return self._scaled_experts(name, form) if isinstance(form, ScaledWeight) else set()

    def _scaled_experts(self, name: str, form: ScaledWeight) -> set[str]:
        ends = (form.scale, form.other_name, "weight_scale_inv", "weight_scale")
        stem = name.removesuffix("weight")
        places = [place for end in ends if end for place in (stem + end, name + end.removeprefix("weight"))]
        scale = next((place for place in places if place in self.found), None)
        if scale is None:
            raise ConfigError(f"model: {places[1]} is missing")
        count, rows, columns = self.found[name].shape
        form = ScaledWeight(type=form.type, block=form.block, scale="scale", divisor=form.divisor)
        spec = form.tensors(rows, columns)["scale"]
        if (own := self.found[scale]).shape not in [(count, *size) for size in (spec.shape or (), *spec.also)]:
            raise ConfigError(
                f"model: {scale} has the shape {list(own.shape)} in place of {[count, *(spec.shape or ())]}"
            )

        def get() -> Tensor:
            numbers, scales = self.read(name, ALL, None), self.read(scale, ALL, None)
            whole = torch.empty(count, rows, columns)
            for number in range(count):
                whole[number] = scaled(form, {"weight": numbers[number], "scale": scales[number]}, rows, columns)
            return whole

        self._add(name, {name, scale}, get, count * rows * columns)
        return {name, scale}

    def _experts_of_mxfp4(self, name: str) -> set[str]:
        """Those of gpt-oss, in one tensor [experts, inputs, outputs]."""
        blocks, scales = name + BLOCKS, name + SCALES
        if scales not in self.found:
            raise ConfigError(f"model: {scales} is missing")
        shape = self.found[blocks].shape
        if len(shape) != 4 or self.found[scales].shape != shape[:3]:
            told = f"{list(shape)} and {list(self.found[scales].shape)}"
            raise ConfigError(f"model: {blocks} and {scales} have the shapes {told}")
        count, rows, groups, half = shape
        form = ExpertFloat4Weight()

        def get() -> Tensor:
            numbers, exponents = self.read(blocks, ALL, None), self.read(scales, ALL, None)
            whole = torch.empty(count, groups * half * 2, rows)
            for number in range(count):
                parts = {"blocks": numbers[number], "scales": exponents[number]}
                whole[number] = expert(form, parts, rows, groups * half * 2).t()
            return whole

        self._add(name, {blocks, scales}, get, count * rows * groups * half * 2)
        return {blocks, scales}


def _are_whole(weight: Tensor, scales: Tensor) -> bool:
    """Is each row one of whole numbers of 8 bits of its scale? A few rows at a time, for weights are large."""
    for first in range(0, len(weight), SOME_ROWS):
        some, own = weight[first : first + SOME_ROWS], scales[first : first + SOME_ROWS, None]
        numbers = (some.float() / own).round_()
        if numbers.abs().max() > 128 or not torch.equal((numbers * own).to(weight.dtype), some):
            return False
    return True
