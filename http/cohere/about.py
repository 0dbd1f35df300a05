"""What Cohere's API tells of a model in /v1/models."""

from __future__ import annotations

from typing import Any

from ...actors.protocol.request import CLASSIFY, EMBED
from ..settings import Settings


def endpoints(settings: Settings) -> list[str]:
    """By Cohere's names, what the model can be asked for."""
    if settings.pooling is None:
        return ["chat"] if settings.generates else []
    tasks, labels = settings.pooling.tasks, settings.pooling.labels
    can = {"embed": EMBED in tasks, "rerank": EMBED in tasks or len(labels) == 1, "classify": CLASSIFY in tasks}
    return [endpoint for endpoint, there in can.items() if there]


def model_of(name: str, settings: Settings) -> dict[str, Any]:
    """A model, or an adapter of it."""
    return {
        "name": name,
        "endpoints": endpoints(settings),
        "finetuned": name not in settings.served,
        "context_length": settings.max_model_len,
        "is_deprecated": False,
    }
