"""From an adapter's tensors to what it adds to a model's products.

Layers that are one product (q, k and v; gate and up) get one, with their A side by side. A member of a tensor-parallel
group has those rows of B, or columns of A, that it has of the weight.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from actorserve.kernels.cpu.native.linear import SIDE

from ...model.lora.adapter import AdaptedLinear, Adapter, AdapterError, check_fit
from ...model.vision.texts import PREFIXES
from .products import Keep

LINE = 64  # bytes, at whose multiples tensors begin
SAME = 0.02  # of the largest number: a weight may have been rounded to 16 bits, or 8
AT_ONCE = 1 << 22  # numbers of a weight whose length is taken in one go
REFUSED = {  # by the end of a layer's name: why it cannot be adapted
    r"lm_head$": "what makes logits is not adapted in this model",
    r"experts(\.|$)": "experts are adapted only in this server's own layers, each by its linears, or stacked",
    r"(mlp\.gate|router)$": "what chooses experts is not adapted",
    r"embed\w*$|wte$": "embeddings are not adapted",
    r"kv_b_proj$": "what makes keys and values of latents is adapted only in this server's own layers",
    r"(visual|vision|audio|projector|connector)\w*\.": "the part that sees or hears is not adapted",
}

Tensors = Mapping[str, Tensor]
Product = TypeVar("Product", covariant=True)  # what an adapter adds to one product, as a device has it


class Site(Protocol[Product]):
    """A product that adapters may change, which may be several linear layers side by side."""

    @property
    def number(self) -> int: ...

    @property
    def modules(self) -> Sequence[str]: ...

    def product(self, a: Tensor, parts: Sequence[Tensor], gain: Tensor | None, keep: Keep) -> Product:
        """One adapter's: A [ranks, inputs] of all layers; B [outputs, rank] of each, and DoRA's gain [outputs]."""


class Sites(Protocol[Product]):
    """Of one model."""

    @property
    def linears(self) -> Sequence[Site[Product]]: ...


class Layout(Protocol):
    """How the linear layers of a model lie in it."""

    @property
    def sizes(self) -> Mapping[str, tuple[int, int]]:
        """(outputs, inputs) of those that can be adapted, of the whole model."""

    def apart(self, module: str, linear: AdaptedLinear) -> Mapping[str, AdaptedLinear]:
        """What the tensors of all experts of a layer are of each; AdapterError if they are not of this model."""

    def own_rows(self, module: str, tensor: Tensor) -> Tensor:
        """The rows of a layer's [outputs, …] that are computed here, in the order in which they are."""

    def own_columns(self, module: str, tensor: Tensor) -> Tensor:
        """The same of columns of [ranks, inputs]."""

    def weights(self) -> Callable[[str], Tensor]:
        """What reads the whole weight [outputs, inputs] of a layer, for as long as it is kept."""


class AdapterMaker(Generic[Product]):
    """Makes products of adapters, for one model."""

    def __init__(self, sites: Sites[Product], layout: Layout, refused: Mapping[str, str] = REFUSED) -> None:
        """`refused`: why other layers cannot be adapted, by the end of their names."""
        self.sites, self.layout, self._refused = sites, layout, refused

    def check(self, adapter: Adapter) -> None:
        """AdapterError if the adapter is one of another model."""
        check_fit(self._named(adapter), self.layout.sizes, self._refused)

    def _named(self, adapter: Adapter) -> Adapter:
        """With the names that layers have here: of a model that sees or hears, its text part is a model of its own."""
        named = {self._name(module): one for module, one in adapter.linears.items()}
        apart = [self.layout.apart(module, one) if one.experts else {module: one} for module, one in named.items()]
        return adapter._replace(linears={module: one for some in apart for module, one in some.items()})

    def _name(self, module: str) -> str:
        if module in self.layout.sizes:
            return module
        inside = (own + module.removeprefix(prefix) for prefix, own in PREFIXES if module.startswith(prefix))
        return next((name for name in inside if name in self.layout.sizes), module)

    def make(self, adapter: Adapter) -> dict[int, Product]:
        """All its products, by the numbers of sites; AdapterError says what is wrong with its numbers."""
        self.check(adapter)
        adapter = self._named(adapter)
        tensors = read_tensors(adapter.file)
        needed = any(one.magnitude or one.base for one in adapter.linears.values())
        weights = self.layout.weights() if needed else None
        memory = AdapterMemory(adapter)
        made = {}
        for site in self.sites.linears:
            parts = [adapter.linears.get(module) for module in site.modules]
            if any(part is not None for part in parts):
                made[site.number] = self._product(site, parts, tensors, weights, memory)
        return made

    def _product(
        self,
        site: Site[Product],
        parts: Sequence[AdaptedLinear | None],
        tensors: Tensors,
        weights: Callable[[str], Tensor] | None,
        memory: AdapterMemory,
    ) -> Product:
        above, beside, gains = [], [], []
        for module, part in zip(site.modules, parts, strict=True):
            outputs, inputs = self.layout.sizes[module]
            a, b, gain = torch.zeros(0, inputs), torch.zeros(outputs, 0), torch.zeros(outputs)
            if part is not None:
                if part.base is not None and weights is not None:
                    check_base(part.base, tensors[part.base], weights(module))
                a, b = factors(part, tensors)
                if part.magnitude is not None:
                    assert weights is not None
                    longer = tensors[part.magnitude].float().flatten() / lengths(weights(module), a, b)
                    b, gain = b * longer[:, None], longer - 1
            above.append(self.layout.own_columns(module, a))
            beside.append(self.layout.own_rows(module, b).contiguous())
            gains.append(self.layout.own_rows(module, gain))
        longer_by = torch.cat(gains) if any(part is not None and part.magnitude for part in parts) else None
        return site.product(torch.cat(above), beside, longer_by, memory.keep)


class AdapterMemory:
    """Memory for all numbers of one adapter, which the kernel gets back when the last of its tensors goes.

    malloc would keep it, of which steps have taught it to keep blocks of up to 32 MB (worker/memory.py).
    """

    def __init__(self, adapter: Adapter) -> None:
        numbers = sum(one.rank * (one.inputs + one.outputs + SIDE) for one in adapter.linears.values())
        places = 3 * len(adapter.linears)
        self._map = mmap.mmap(-1, numbers * torch.float32.itemsize + places * LINE)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._used = 0

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy in this memory, of float32."""
        size = tensor.numel() * torch.float32.itemsize
        if not size:
            return tensor
        place = self._bytes[self._used : self._used + size]
        self._used += -(-size // LINE) * LINE
        return place.view(torch.float32).view(tensor.shape).copy_(tensor)


def factors(part: AdaptedLinear, tensors: Tensors) -> tuple[Tensor, Tensor]:
    """A, and B with its scale."""
    a, b = tensors[part.a], tensors[part.b]
    if part.experts:
        a = a.unflatten(0, (part.experts, part.rank))[part.expert]
        b = b.unflatten(1, (part.rank, part.experts))[:, :, part.expert]
    return a.float(), (b if part.rows is None else b[part.rows]).float() * part.scale


def check_base(name: str, stored: Tensor, weight: Tensor) -> None:
    """AdapterError if an adapter has another weight of the model's layer than the model."""
    if stored.shape != weight.shape:
        raise AdapterError(f"{name} is {list(stored.shape)}; the model has {list(weight.shape)}")
    off, most = (stored.float() - weight.float()).abs().max(), weight.float().abs().max()
    if float(off) > SAME * float(most):
        raise AdapterError(f"{name} is another than the model's: whole layers are not taken from an adapter")


def lengths(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """|W + B A| of each row, some at a time."""
    count = max(1, AT_ONCE // weight.shape[1])
    pieces = [
        torch.linalg.vector_norm(weight[first : first + count].float() + b[first : first + count] @ a, dim=1)
        for first in range(0, len(weight), count)
    ]
    return torch.cat(pieces)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All of a file, in memory of their own. AdapterError if it cannot be read, or what it holds is no number."""
    try:
        if file.suffix == ".bin":
            tensors = torch.load(file, map_location="cpu", weights_only=True)
        else:
            with safe_open(file, framework="pt") as opened:
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}
    except (OSError, SafetensorError, RuntimeError) as error:
        raise AdapterError(f"{file} cannot be read: {str(error).splitlines()[0]}") from None
    for name, tensor in tensors.items():
        if not math.isfinite(float(tensor.abs().max()) if tensor.numel() else 0.0):
            raise AdapterError(f"{name} holds numbers that are not finite")
    return dict(tensors)
