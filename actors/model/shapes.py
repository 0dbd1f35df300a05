"""Shapes of layers that are not plain ones: experts, and attention over a latent."""

from __future__ import annotations

import enum

import msgspec


class Scoring(enum.Enum):
    """What a router's results become before the highest are taken."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """Experts stand in groups of as many, and a token's are chosen of a few of these: the best ones by the sum of the
    scores of the `best` best of their experts."""

    count: int
    kept: int
    best: int


class ClampedGate(msgspec.Struct, frozen=True):
    """In place of act(gate) * up: g · σ(alpha · g) · (u + 1), with g = min(gate, limit) and u = up within ± limit."""

    alpha: float
    limit: float


class MoeShape(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model, or of the part of it that a member of a tensor-parallel group has."""

    experts: int  # whose weights there are here
    per_token: int
    intermediate_size: int
    layers: tuple[bool, ...]  # which have experts; the others have one MLP
    routed: int  # experts that the router chooses among
    scoring: Scoring = Scoring.SOFTMAX
    normalised: bool = False  # the shares of a token's experts are made to add up to 1
    factor: float = 1.0  # and are multiplied with this
    shared_intermediate_size: int = 0
    of_inputs: bool = False  # an expert is given its token times the share, in place of what it makes of it
    groups: Groups | None = None
    clamped: ClampedGate | None = None  # how an expert is gated; None: as the model's activation says


INDEX_NORM_EPS = 1e-6  # of the norm of an indexer's keys, whatever config.json says of others


class IndexShape(msgspec.Struct, frozen=True, kw_only=True):
    """Of what chooses the tokens that a query sees."""

    topk: int  # up to so many are all seen
    heads: int
    dim: int  # of a head, and of what is kept of a token
    interleaved: bool  # numbers 2i and 2i + 1 turn together in the checkpoint, not i and i + half
    layers: tuple[bool, ...]  # which choose; the others see what the one before them has chosen


class LatentShape(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model. A head of q and k is as wide as `plain` and `turning` together."""

    q_rank: int | None  # None: q is made of the hidden state itself
    rank: int  # of the latent that is kept of a token
    plain: int  # numbers of a head of q and k that do not turn
    turning: int
    value_dim: int
    norm_eps: float  # of the norms of latents
    index: IndexShape | None = None  # where queries see the likeliest few alone

    @property
    def kept(self) -> int:
        """Numbers that are kept of a token."""
        return self.rank + self.turning + (0 if self.index is None else self.index.dim)
