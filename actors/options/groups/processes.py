"""How many actors there are."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .computing import WorkerOptions


class ProcessOptions(WorkerOptions, frozen=True, kw_only=True):
    """How many processes there are of each kind."""

    frontends: Annotated[int, Meta(ge=1, le=64, description="processes that speak HTTP")] = 1
    renderers: Annotated[int, Meta(ge=1, le=64, description="processes that make tokens of prompts")] = 1
    detokenizers: Annotated[int, Meta(ge=1, le=64, description="processes that make text of tokens")] = 1
    media_actors: Annotated[
        int, Meta(ge=1, le=16, description="processes that read pictures and sounds, where the model takes such")
    ] = 1
    debug: Annotated[bool, Meta(description="check invariants when idle; SIGUSR1 injects an exception")] = False
