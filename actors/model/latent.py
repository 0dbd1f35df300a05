"""Sizes of multi-head latent attention (layers.py: LatentSpec): data. Knows no torch."""

from __future__ import annotations

import msgspec


class LatentShape(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model. A head of q and k is as wide as `plain` and `turning` together."""

    q_rank: int | None  # None: q is made of the hidden state itself
    rank: int  # of the latent that is kept of a token
    plain: int  # numbers of a head of q and k that do not turn
    turning: int
    value_dim: int
    norm_eps: float  # of the norms of latents
