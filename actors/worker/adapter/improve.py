"""Parts of a model of transformers, put in place of those that are slower on a CPU: products, norms, experts.

- A linear layer's weight is packed, or made int8. Those that are given the very same tensor one after the other (q, k
  and v, gate and up) are one product: the first computes all, the others take their parts.
- A table of embeddings stays in the type in which it is stored.
- A norm that was tried and comes to ours is ours.
- Experts that transformers describes (how weights lie, how a gate is applied) are looped over by cpu/layers/experts.py.
What a model does beside that stays its own; verify.py compares all of it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...model.quantization import NONE, QuantMethod
from ..cpu.layers.experts import take_experts
from ..cpu.layers.linear import PackedLinear
from ..cpu.layers.norm import RMSNorm
from ..quantization.base import CpuLinear, LinearTensors, implementation_of

TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("wq", "wk", "wv"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)
SCALES = "scales"
READ = ("dt_proj",)  # linear layers whose weights the layer around them reads
UNSAID = {"Step3p7Experts": {"has_gate": True, "has_bias": False, "is_transposed": False}}  # what is so all the same
EPSILONS = ("variance_epsilon", "eps", "epsilon")


class LinearModule(nn.Module):
    """y = x Wᵀ + b, for x of any shape."""

    def __init__(self, product: CpuLinear, outputs: int, inputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.product = product
        self.out_features, self.in_features = outputs, inputs
        self.weight = torch.empty(0, dtype=dtype)  # whoever looks at its type; the weight itself is not here any more
        self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)


class JoinedProducts:
    """Several products of the same tensor, computed when the first of them is asked for."""

    def __init__(self, product: CpuLinear, sizes: Sequence[int]) -> None:
        self.product = product
        self.sizes = list(sizes)
        self._seen: Tensor | None = None
        self._parts: list[Tensor | None] = []

    def part(self, index: int, x: Tensor) -> Tensor:
        """The one with this number; each can be had once."""
        found = self._parts[index] if x is self._seen else None
        if found is None:
            self._seen = x
            self._parts = list(self.product(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1).split(self.sizes, -1))
            found = self._parts[index]
            assert found is not None
        self._parts[index] = None
        if not any(part is not None for part in self._parts):
            self._seen = None
        return found


class PartModule(nn.Module):
    """One of several linear layers that are computed as one."""

    def __init__(self, joined: JoinedProducts, index: int, inputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.joined, self.index = joined, index
        self.out_features, self.in_features = joined.sizes[index], inputs
        self.weight = torch.empty(0, dtype=dtype)
        self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        return self.joined.part(self.index, x)


class EmbeddingModule(nn.Module):
    """Rows of a table that is kept as it is stored, in the type that is computed in."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.num_embeddings, self.embedding_dim = weight.shape
        self.dtype = dtype

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight).to(self.dtype)


class NormModule(nn.Module):
    """Ours."""

    def __init__(self, gain: Tensor, eps: float) -> None:
        super().__init__()
        self.norm = RMSNorm(gain, eps)
        self.weight = gain

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def improve(
    model: nn.Module,
    dtype: torch.dtype,
    method: QuantMethod = NONE,
    from_memory: bool | None = None,
    apart: Collection[nn.Module] = (),
) -> None:
    """All parts of a model that can be had better. `from_memory`: see PackedLinear, where it is known; children of
    `apart` are given different tensors.
    """
    maker = Maker(dtype, method, is_from_memory(model, dtype) if from_memory is None else from_memory)
    done: dict[int, nn.Module] = {}  # by the module that was there: some are in several places
    for parent in list(model.modules()):
        for names in groups(parent) if parent not in apart else ():
            maker.join(parent, names)
        for name, child in list(parent.named_children()):
            if name in READ:
                continue
            if id(child) not in done:
                better = maker.better(child)
                done[id(child)] = child if better is None else better
                if better is not None:
                    done[id(better)] = better
            if done[id(child)] is not child:
                setattr(parent, name, done[id(child)])


def is_from_memory(model: nn.Module, dtype: torch.dtype) -> bool:
    """Are all weights together larger than a cache?"""
    return sum(parameter.numel() * dtype.itemsize for parameter in model.parameters()) > PackedLinear.CACHED


def groups(parent: nn.Module) -> Iterator[list[str]]:
    """Names of children that are products of the same width."""
    for names in TOGETHER:
        children = [getattr(parent, name, None) for name in names]
        linears = [child for child in children if isinstance(child, nn.Module) and _is_linear(child)]
        kinds = {(_inputs(linear), linear.bias is None) for linear in linears}
        if len(linears) == len(names) and len(kinds) == 1:
            yield list(names)


def _is_linear(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):  # whoever has it reads its weight
        return False
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def is_table(module: Any) -> bool:
    """Are these embeddings that are looked up, and no more?"""
    return type(module) is nn.Embedding and module.max_norm is None


def _inputs(linear: Any) -> int:
    return int(linear.weight.shape[1])


class Maker:
    """Makes parts of ours with weights of one kind."""

    def __init__(
        self,
        dtype: torch.dtype,
        method: QuantMethod,
        from_memory: bool,
        scales: Mapping[nn.Module, Tensor] | None = None,
    ) -> None:
        """`scales` of which the rows of linear layers are whole numbers already."""
        self.dtype = dtype
        self.scales = {} if scales is None else scales
        self.make = implementation_of(method).cpu_linear
        self.from_memory = from_memory

    def product(
        self, weight: Tensor, bias: Tensor | None, few_rows: bool = False, scales: Tensor | None = None
    ) -> CpuLinear:
        """Of a weight [outputs, inputs]; its rows may be whole numbers of `scales`."""

        def joined(kind: str, dtype: torch.dtype | None) -> Tensor:
            tensor = {"weight": weight, "bias": bias, SCALES: scales}[kind]
            assert tensor is not None
            return tensor.detach().to(dtype)

        own = None if scales is None else SCALES
        tensors = LinearTensors(joined, self.dtype, bias is not None, self.from_memory, own, few_rows=few_rows)
        return self.make(tensors)

    def expert(self, weight: Tensor, bias: Tensor | None) -> CpuLinear:
        """Of one of many, whose tensor is a part of theirs."""
        return self.product(weight.clone(memory_format=torch.contiguous_format), bias, few_rows=True)

    def join(self, parent: nn.Module, names: list[str]) -> None:
        """Children of these names as one product."""
        linears: list[Any] = [getattr(parent, name) for name in names]
        bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])
        weight = torch.cat([linear.weight.detach() for linear in linears])
        known = [self.scales[linear] for linear in linears if linear in self.scales]
        scales = torch.cat(known) if len(known) == len(linears) else None
        product = self.product(weight, bias, scales=scales)
        whole = JoinedProducts(product, [linear.weight.shape[0] for linear in linears])
        for index, (name, linear) in enumerate(zip(names, linears, strict=True)):
            setattr(parent, name, PartModule(whole, index, _inputs(linear), linear.weight.dtype))

    def better(self, module: nn.Module) -> nn.Module | None:
        """What takes a module's place; None: nothing does."""
        kind = type(module).__name__
        if _is_linear(module):
            linear: Any = module
            if linear.weight.dtype.itemsize > self.dtype.itemsize:  # the model multiplies it so, whatever the rest is
                return None
            return self._linear(linear.weight, linear.bias, self.scales.get(linear))
        if kind == "Conv1D" and hasattr(module, "nf"):
            transposed: Any = module
            return self._linear(transposed.weight.t(), transposed.bias)
        if kind.endswith("RMSNorm"):
            return _norm(module)
        if is_table(module):
            table: Any = module
            return EmbeddingModule(table.weight, self.dtype)
        for name, value in UNSAID.get(kind, {}).items():
            setattr(module, name, value)
        if kind.endswith("Experts") and _is_described(module):
            return _ExpertsModule(take_experts(module, self.expert))
        return None

    def _linear(self, weight: Tensor, bias: Tensor | None, scales: Tensor | None = None) -> LinearModule:
        outputs, inputs = weight.shape
        return LinearModule(self.product(weight.contiguous(), bias, scales=scales), outputs, inputs, weight.dtype)


class _ExpertsModule(nn.Module):
    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        out: Tensor = self.experts(hidden_states, top_k_index, top_k_weights)
        return out


def _is_described(module: Any) -> bool:
    """Does transformers say how its weights lie?"""
    described = hasattr(module, "is_transposed") and hasattr(module, "has_gate")
    return described and not getattr(module, "has_post_expert_norm", False)


def _norm(module: Any) -> NormModule | None:
    """Ours with the same result, if there is one."""
    gain = getattr(module, "weight", None)
    eps = next(
        (float(getattr(module, name)) for name in EPSILONS if isinstance(getattr(module, name, None), float)), None
    )
    if eps is None or not isinstance(gain, Tensor) or gain.dim() != 1 or len(list(module.parameters())) != 1:
        return None
    exact = copy.deepcopy(module).float()
    x = torch.randn(5, len(gain), generator=torch.Generator().manual_seed(0))
    expected = exact(x)
    for candidate in (gain, 1 + gain.float()):
        ours = NormModule(candidate.detach().float(), eps)(x)
        if torch.allclose(ours, expected, rtol=1e-5, atol=1e-6):
            return NormModule(candidate.detach().to(gain.dtype), eps)
    return None
