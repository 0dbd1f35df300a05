"""What a mask's predicate comes to: all that is behind, a window, chunks; or something else.

It is asked for some queries far apart, and for all keys up to each. Positions are absolute, so that the answer holds
for every step.
"""

from __future__ import annotations

import types
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .hooks import Predicate, Unfit


class Visibility(NamedTuple):
    """Causal, if neither is there."""

    window: int | None = None
    chunk: int | None = None


def classify(predicate: Predicate, length: int) -> Visibility:
    """What queries of a text of up to `length` tokens see; Unfit if that is none of the known."""
    length = max(length, 64)
    queries = sorted({0, 1, 2, 3, 5, 7, 30, length // 3, length // 2, length - 2, length - 1})
    firsts = [_first_seen(predicate, query) for query in queries]
    if not any(firsts):
        return Visibility()
    window = queries[-1] - firsts[-1] + 1
    if all(first == max(0, query - window + 1) for query, first in zip(queries, firsts, strict=True)):
        return Visibility(window=window)
    chunk = next((size for size in _divisors(firsts) if _chunked(queries, firsts, size)), None)
    if chunk is not None and all(_first_seen(predicate, at) == at // chunk * chunk for at in _around(chunk, length)):
        return Visibility(chunk=chunk)
    raise Unfit("sees neither all tokens before, nor a window of them, nor chunks")


def _around(chunk: int, length: int) -> list[int]:
    ends = (chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk)
    return [at for at in ends if at < length]


def _divisors(firsts: list[int]) -> list[int]:
    """Numbers of which all of `firsts` are multiples, the largest first."""
    common = 0
    for first in firsts:
        while first:
            common, first = first, common % first
    return [size for size in range(common, 0, -1) if common % size == 0] if common < 1 << 20 else []


def _chunked(queries: list[int], firsts: list[int], size: int) -> bool:
    return all(first == query // size * size for query, first in zip(queries, firsts, strict=True))


def _first_seen(predicate: Predicate, query: int) -> int:
    """The first key that a query sees; Unfit if it does not see all from there to itself, and nothing behind."""
    keys = torch.arange(query + 3)
    seen = _ask(predicate, query, keys)
    first = int(seen.int().argmax())
    expected = (keys >= first) & (keys <= query)
    if not torch.equal(seen, expected):
        raise Unfit("sees what is no run of tokens that ends at its own")
    return first


def _ask(predicate: Predicate, query: int, keys: Tensor) -> Tensor:
    zero = torch.zeros((), dtype=torch.long)
    answer = predicate(zero, zero, torch.tensor(query), keys)
    return torch.as_tensor(answer).expand(keys.shape).bool().reshape(-1)


def same(predicate: Any) -> Any:
    """A mark of predicates that come to the same: their code, and what of numbers they have around them."""
    if not isinstance(predicate, types.FunctionType):
        return id(predicate)
    cells = tuple(cell.cell_contents for cell in predicate.__closure__ or ())
    return predicate.__code__, tuple(
        tuple(map(same, cell)) if isinstance(cell, tuple | list) else same(cell) if callable(cell) else repr(cell)
        for cell in cells
    )
