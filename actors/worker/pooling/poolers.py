"""From hidden states of a prompt to what its request asks for: a vector, scores of labels, or one of these a token."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...model.pooling.spec import CLS, LAST, MAX, MEAN, MEAN_SQRT, WEIGHTED_MEAN, DenseSpec, PoolingSpec
from ...model.weights.places import PICKLED, SINGLE
from ...model.weights.weight_files import read_weights
from ...options.config import ConfigError
from ...protocol.request import BY_TOKEN, CLASSIFY, NORMALIZE, SIGMOID, SOFTMAX, TOKEN_CLASSIFY, Pooling
from ..models.weights import read_parts
from ..torch_import import generator
from ..transfer import sent

# Of texts' hidden states [tokens, hidden] and ids: of each text scores of labels, or [tokens, labels].
Head = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]
SCORED = CLASSIFY, TOKEN_CLASSIFY
DENSE_WEIGHT, DENSE_BIAS = "linear.weight", "linear.bias"
CPU = torch.device("cpu")


class Dense:
    """A layer of sentence-transformers behind the pooling."""

    def __init__(self, spec: DenseSpec, weight: Tensor, bias: Tensor | None) -> None:
        if tuple(weight.shape) != (spec.outputs, spec.inputs) or (bias is not None) != spec.bias:
            raise ConfigError(f"model: the weights in {spec.folder} do not fit its config.json")
        self.weight, self.bias = weight, bias
        self.activation: nn.Module = getattr(nn, spec.activation)()

    def __call__(self, x: Tensor) -> Tensor:
        made: Tensor = self.activation(functional.linear(x, self.weight, self.bias))
        return made


def load_dense(spec: DenseSpec, device: torch.device) -> Dense:
    """With the weights of its folder, or random ones, on the device."""
    if not spec.folder:
        weight = torch.empty(spec.outputs, spec.inputs).normal_(0, 0.02, generator=generator(0))
        return Dense(spec, weight.to(device), None)
    tensors = _tensors(Path(spec.folder))
    if DENSE_WEIGHT not in tensors:
        raise ConfigError(f"model: the weights in {spec.folder} lack {DENSE_WEIGHT}")
    own = {name: tensor.to(device, torch.float32) for name, tensor in tensors.items()}
    return Dense(spec, own[DENSE_WEIGHT], own.get(DENSE_BIAS))


def _tensors(folder: Path) -> dict[str, Tensor]:
    """The layer's alone, which may lie among all of a model."""
    old = folder / PICKLED
    if not (folder / SINGLE).is_file() and old.is_file() and not zipfile.is_zipfile(old):  # PyTorch's before 1.6
        try:
            found: dict[str, Tensor] = torch.load(old, map_location="cpu", weights_only=True)
        except Exception as error:  # of files that come from strangers
            raise ConfigError(f"model: the weights in {folder} cannot be read: {str(error).splitlines()[0]}") from None
        return {name: found[name] for name in (DENSE_WEIGHT, DENSE_BIAS) if name in found}
    stored = read_weights(folder)
    homes = {name: stored[name].home(name) for name in (DENSE_WEIGHT, DENSE_BIAS) if name in stored}
    read = read_parts(homes)
    return {name: read(name, slice(None), None) for name in homes}


class Pooler:
    """Of one model, where that is."""

    def __init__(self, spec: PoolingSpec, head: Head | None, device: torch.device = CPU) -> None:
        self.spec = spec
        self.head = head
        self.dense = [load_dense(one, device) for one in spec.dense]

    def __call__(self, hidden: Sequence[Tensor], ids: Sequence[Tensor], wanted: Sequence[Pooling]) -> list[Tensor]:
        """float32 [rows, numbers] of each prompt, of the hidden states [tokens, hidden] of all of its `ids`, which are
        on the host. For the vector of the last token that one's is enough.

        Vectors and labels of prompts that want the same are made together: of short ones a GPU would take longer to be
        told of each than to compute it.
        """
        alike: dict[tuple[object, ...], list[int]] = {}
        for index, one in enumerate(wanted):
            alone = index if one.task in BY_TOKEN else -1
            alike.setdefault((one.task, one.dimensions, one.activation, alone), []).append(index)
        found: dict[int, Tensor] = {}
        for group in alike.values():
            own = wanted[group[0]]
            states, tokens = [hidden[index] for index in group], [ids[index] for index in group]
            numbers = self._calibrated(states, tokens, own) if own.task in SCORED else self._vectors(states, own)
            made = activated(numbers, own.activation)
            found |= zip(group, [made] if own.task in BY_TOKEN else made.split(1), strict=True)
        return [found[index] for index in range(len(wanted))]

    def _calibrated(self, hidden: list[Tensor], ids: list[Tensor], wanted: Pooling) -> Tensor:
        """Scores as --pooler-config has them."""
        return (self._scores(hidden, ids, wanted) - self.spec.logit_mean) / self.spec.logit_sigma

    def _scores(self, hidden: list[Tensor], ids: list[Tensor], wanted: Pooling) -> Tensor:
        """Of labels: a row for each prompt, or for each token of one."""
        assert self.head is not None
        if wanted.task in BY_TOKEN:
            made = self.head(hidden, ids)[0].float()
            if self.spec.step_tag < 0:
                return made
            return made[sent(torch.nonzero(ids[0] == self.spec.step_tag)[:, 0], made.device)]
        if self.spec.base:  # of a decoder: one vector, by whatever method
            return self.head([self._pooled(hidden).to(hidden[0].dtype)], ids[:1])[0].float()
        return torch.stack([scores.view(-1) for scores in self.head(hidden, ids)]).float()

    def _vectors(self, hidden: list[Tensor], wanted: Pooling) -> Tensor:
        """A row for each prompt, or for each token of one."""
        made = hidden[0].float() if wanted.task in BY_TOKEN else self._pooled(hidden)
        for dense in self.dense:
            made = dense(made)
        return made[:, : wanted.dimensions] if wanted.dimensions else made

    def _pooled(self, hidden: list[Tensor]) -> Tensor:
        """A vector of each prompt, float32 [prompts, hidden]."""
        if not PICKED.issuperset(self.spec.methods):
            hidden = [one.float() for one in hidden]
        return torch.stack([pooled(one, self.spec.methods) for one in hidden]).float()


def activated(x: Tensor, activation: str) -> Tensor:
    """Of each row."""
    match activation:
        case "":
            return x
        case _ if activation == NORMALIZE:
            return functional.normalize(x, dim=-1)
        case _ if activation == SIGMOID:
            return x.sigmoid()
        case _ if activation == SOFTMAX:
            return x.softmax(-1)
    raise ValueError(f"there is no activation {activation}")


def pooled(hidden: Tensor, methods: Sequence[str]) -> Tensor:
    """One vector of hidden states [tokens, hidden]; those of several methods one behind the other."""
    found = [METHODS[method](hidden) for method in methods]
    return found[0] if len(found) == 1 else torch.cat(found)


def _weighted_mean(hidden: Tensor) -> Tensor:
    weights = torch.arange(1, len(hidden) + 1, dtype=hidden.dtype, device=hidden.device)
    return (hidden * weights[:, None]).sum(0) / weights.sum()


PICKED = {CLS, LAST}  # one token's, as it is
METHODS: dict[str, Callable[[Any], Tensor]] = {
    CLS: lambda hidden: hidden[0],
    LAST: lambda hidden: hidden[-1],
    MEAN: lambda hidden: hidden.mean(0),
    MAX: lambda hidden: hidden.amax(0),
    MEAN_SQRT: lambda hidden: hidden.sum(0) / len(hidden) ** 0.5,
    WEIGHTED_MEAN: _weighted_mean,
}
