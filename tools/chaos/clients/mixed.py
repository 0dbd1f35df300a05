"""Requests of the kinds that options of faults ask for, side by side."""

from __future__ import annotations

import argparse
import random

from . import batching, doors, media, responding, sessions, talking, texts
from .talking import Request

MADE = {  # by the option that asks for them
    "embedded": texts.embedded_requests,
    "pooled": texts.pooled_requests,
    "pictures": media.picture_requests,
    "films": media.film_requests,
    "sounds": media.spoken_requests,
    "heard": media.heard_requests,
    "sessions": sessions.sessions,
    "responses": responding.responses,
    "batches": batching.batches,
    "doors": doors.doors,
}


def mixed_requests(options: argparse.Namespace, rng: random.Random) -> list[Request]:
    """What is asked of the first model: those of each kind in turn, each kind of all of its adapters."""
    makes = [make for name, make in MADE.items() if getattr(options, name)]
    if options.realtime:
        makes = [talking.sounds] if options.sounds else [*makes, talking.conversations]
    made = [make(rng, options.requests) for make in makes or [texts.requests]]
    names = ["", *(f"adapter-{number}" for number in range(options.lora))]
    named = {name: {"model": name} if options.lora else {} for name in names}
    return [
        (path, body | named[names[at % len(names)]])
        for at, some in enumerate(zip(*made, strict=True))
        for path, body in some
    ]
