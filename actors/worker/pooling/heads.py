"""Heads of a decoder's hidden states: linear layers of the checkpoint, or rows of what makes logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ...model.architecture import Architecture
from ...model.gguf.folder import gguf_tensors
from ...model.info import ModelInfo
from ...model.layers import EMBEDDINGS, HEAD, SCORES
from ...model.pooling.spec import PoolingSpec
from ...model.tokenizers.tokenizer import load_tokenizer
from ...model.weights.weight_files import Homes
from ...options.config import ConfigError
from ...options.objects.pooler import OPTION
from ..models.sharding import Read
from ..models.weights import read_parts
from ..torch_import import generator
from .poolers import CPU, Head

ALL = slice(None)


class Layer(NamedTuple):
    """Linear, in float32."""

    weight: Tensor
    bias: Tensor | None
    relu: bool


def load(
    spec: PoolingSpec, shape: Architecture, info: ModelInfo, read: Read, others: Homes, device: torch.device = CPU
) -> Head:
    """`read`: the model's tensors; `others`: where those are that it has none of. ConfigError if they do not fit."""
    if spec.tokens:
        return _head([Layer(_rows(spec, info, read, others), None, False)], device)
    parts = read_parts(others)
    layers, width = [], shape.hidden_size
    for number, layer in enumerate(spec.layers, 1):
        for name in (layer.weight, layer.bias):
            if name and name not in others:
                raise ConfigError(f"model: its weights have no {name}, of which scores are made")
        weight = parts(layer.weight, ALL, None).float()
        outputs = len(spec.labels) if number == len(spec.layers) else len(weight)
        if tuple(weight.shape) != (outputs, width):
            wanted = [outputs, width]
            raise ConfigError(f"model: its weights have a {list(weight.shape)} {layer.weight}; {wanted} is needed")
        bias = parts(layer.bias, ALL, None).float() if layer.bias else None
        layers.append(Layer(weight, bias, layer.activation == "relu"))
        width = outputs
    return _head(layers, device)


def drawn(spec: PoolingSpec, width: int, seed: int, device: torch.device = CPU) -> Head:
    """One of random numbers, for a model of random weights."""
    weight = torch.empty(len(spec.labels), width).normal_(0, 0.02, generator=generator(seed, "cpu"))
    return _head([Layer(weight, None, False)], device)


def _rows(spec: PoolingSpec, info: ModelInfo, read: Read, others: Homes) -> Tensor:
    """What makes the logits of these tokens: [labels, hidden]."""
    if spec.rows:
        found = read(f"{SCORES}.weight", ALL, None).float()
        return _labels(spec, found[[spec.rows.index(str(token)) for token in spec.tokens]])
    ids = [token if isinstance(token, int) else _id(token, info) for token in spec.tokens]
    if (wrong := next((id_ for id_ in ids if not 0 <= id_ < info.vocab_size), None)) is not None:
        raise ConfigError(f"{OPTION}: returned_token_ids: {wrong} is no token of {info.folder}")
    name, get = f"{EMBEDDINGS}.weight", read
    if any(other.startswith(f"{HEAD}.") for other in others):
        name = f"{HEAD}.weight"
        if name not in others:
            raise ConfigError(f"model: {info.folder}: {HEAD} is quantised, and no head is made of that")
        get = read if gguf_tensors(Path(info.folder)) is not None else read_parts(others)
    return _labels(spec, torch.cat([get(name, slice(id_, id_ + 1), None).float() for id_ in ids]))


def _labels(spec: PoolingSpec, rows: Tensor) -> Tensor:
    """Of rows of tokens."""
    return rows[1:] - rows[:1] if spec.difference else rows


def _id(token: str, info: ModelInfo) -> int:
    if not info.tokenizer_folder:
        raise ConfigError(f"{OPTION}: classifier_from_token: there is no tokenizer that knows {token!r}")
    found = load_tokenizer(info).token_to_id(token)
    if found is None:
        raise ConfigError(f"{OPTION}: classifier_from_token: {token!r} is no token of {info.folder}")
    return int(found)


def _head(given: list[Layer], device: torch.device) -> Head:
    layers = [Layer(weight.to(device), None if bias is None else bias.to(device), relu) for weight, bias, relu in given]

    def scores(hidden: Sequence[Tensor], ids: Sequence[Tensor]) -> list[Tensor]:
        return [_through(layers, one.float()) for one in hidden]

    return scores


def _through(layers: list[Layer], made: Tensor) -> Tensor:
    for weight, bias, relu in layers:
        made = functional.linear(made, weight, bias)
        made = made.relu() if relu else made
    return made
