"""Adapters of what makes keys and values of a latent (cpu/layers/latent.py), a product that is computed in two ways.

With W = [k_up; v_up] of each head, W' = (1 + g) (W + B A) in rows: g is DoRA's, and B has 1 + g already as products.py
has it. So
    absorbed   of queries q k_up'    = (q (1 + g)) k_up + (q B_k) A
               of results s v_upᵀ'   = (s v_upᵀ) (1 + g) + (s Aᵀ) B_vᵀ
    expanded   the same of what is kept, as of any linear layer
A query's own adapter made the keys and values that it attends over, since all of a sequence's tokens have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from ..cpu.layers.latent import HeadProducts
from .products import Keep, LoraProduct
from .sites import LoraLinear, LoraSites, Rows, put_back


class LatentProduct(LoraProduct):
    """Of one adapter, for the heads of one layer."""

    def __init__(self, a: Tensor, b: Tensor, gain: Tensor | None, alike: bool, heads: int, plain: int) -> None:
        """`plain`: how many of a head's rows of `b` make k; the others make v."""
        super().__init__(gain)
        k, v = _of_heads(b, heads, plain)
        self.k_b, self.v_b = HeadProducts(k.contiguous(), alike), HeadProducts(v.transpose(1, 2).contiguous(), alike)
        self.k_a, self.v_a = HeadProducts(a[None].contiguous(), alike), HeadProducts(a.t()[None].contiguous(), alike)
        gains = (None, None) if gain is None else _of_heads(gain[:, None], heads, plain)
        self.k_gain: Tensor | None = gains[0]
        self.v_gain: Tensor | None = gains[1]

    def queries(self, made: Tensor, plain: Tensor, k_up: HeadProducts) -> None:
        """`made` [tokens, heads, latent] of queries [tokens, heads, plain]."""
        if self.k_gain is not None:
            made += k_up((plain * self.k_gain[..., 0]).to(plain.dtype))
        made += _of_all_heads(self.k_a, self.k_b(plain.float()))

    def results(self, made: Tensor, seen: Tensor) -> None:
        """`made` [tokens, heads, value] of sums of latents [tokens, heads, latent]."""
        if self.v_gain is not None:
            made *= 1 + self.v_gain[..., 0]
        made += self.v_b(_of_all_heads(self.v_a, seen.float()))

    def expanded(self, keys: Tensor, values: Tensor, latents: Tensor, own: slice) -> None:
        """Keys and values [heads, positions, …] of these heads, of latents [positions, latent]."""
        inner = latents.float() @ self.v_a.weights[0]
        for made, gain, b in ((keys, self.k_gain, self.k_b.weights[own]), (values, self.v_gain, None)):
            if gain is not None:
                made *= 1 + gain[own].transpose(1, 2)
            made += torch.matmul(inner, self.v_b.weights[own] if b is None else b.transpose(1, 2)).to(made.dtype)


def _of_heads(rows: Tensor, heads: int, plain: int) -> tuple[Tensor, Tensor]:
    """Those of k and those of v, [heads, …, columns]."""
    each = rows.view(heads, -1, rows.shape[1])
    return each[:, :plain], each[:, plain:]


def _of_all_heads(product: HeadProducts, x: Tensor) -> Tensor:
    """[tokens, heads, inputs] times one matrix for all of them."""
    return product(x.reshape(-1, 1, x.shape[2])).view(*x.shape[:2], -1)


class Uncalled:
    """Stands for a product that nobody computes as it stands."""

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError("it is computed for queries and results")

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        raise NotImplementedError("it is computed for queries and results")


class LoraLatent(LoraLinear):
    """Room for adapters there."""

    def __init__(self, sites: LoraSites, module: str, heads: int, plain: int) -> None:
        super().__init__(sites, len(sites.linears), Uncalled(), (module,), None)
        self._heads, self._plain = heads, plain
        sites.linears.append(self)

    def product(self, a: Tensor, parts: Sequence[Tensor], gain: Tensor | None, keep: Keep) -> LoraProduct:
        (b,) = parts
        return LatentProduct(keep(a), b, gain, self.sites.batch_invariant, self._heads, self._plain)

    def of(self, tokens: Tensor) -> AbstractContextManager[None]:
        """Meanwhile it is asked of these tokens of the step alone."""
        return self.sites.narrowed(tokens)

    def queries(self, made: Tensor, plain: Tensor, k_up: HeadProducts) -> None:
        """See LatentProduct; of the rows that have one."""
        for product, rows in self._latents():
            own = made[rows]
            product.queries(own, plain[rows], k_up)
            put_back(made, rows, own)

    def results(self, made: Tensor, seen: Tensor) -> None:
        """Likewise."""
        for product, rows in self._latents():
            own = made[rows]
            product.results(own, seen[rows])
            put_back(made, rows, own)

    def expanded(self, keys: Tensor, values: Tensor, latents: Tensor, own: slice) -> None:
        """Of a span, all of whose tokens have the same."""
        for product, _ in self._latents():
            product.expanded(keys, values, latents, own)

    def _latents(self) -> list[tuple[LatentProduct, Rows]]:
        return [(product, rows) for product, rows in self._products() if isinstance(product, LatentProduct)]
