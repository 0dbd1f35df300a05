"""What llama-server tells of a model in /v1/models, beside what OpenAI does."""

from __future__ import annotations

from typing import Any

from ..cohere.about import model_of
from ..ollama.about import capabilities, entry
from ..settings import ModelCard, Settings

UNLOADED = "unloaded"


def meta(settings: Settings, card: ModelCard) -> dict[str, int]:
    """Its sizes; what is not known of it is left out."""
    sizes = {
        "n_vocab": settings.vocab_size,
        "n_ctx": settings.max_model_len,
        "n_ctx_train": card.trained_len,
        "n_embd": card.hidden,
        "n_params": card.parameters,
        "size": card.size,
    }
    return {name: size for name, size in sizes.items() if size}


def unserved(name: str, how: dict[str, Any], created: int) -> dict[str, Any]:
    """One that is not served, as their router tells it."""
    return {
        **{"id": name, "object": "model", "created": created, "owned_by": "actorserve"},
        **{"type": "model", "display_name": name},
        "status": how,
    }


def news(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """Of /models/sse: how it stands with a model now. `told`: its `status`."""
    data = {"status" if key == "value" else key: value for key, value in told.items()}
    return {"model": name, "event": "model_status", "data": data}


def status(state: str, why: str) -> dict[str, Any]:
    """How it stands with a model. `why`: it could not be loaded the last time."""
    failed = {"failed": True, "exit_code": 1, "message": why} if why and state == UNLOADED else {}
    return {"value": state} | failed


def has_come(why: str) -> dict[str, Any]:
    """How it stands with a model that nobody has tried to load."""
    return {"value": UNLOADED, "message": why}


def listed(name: str, settings: Settings, card: ModelCard) -> dict[str, Any]:
    """A model of `models`, which clients of Cohere read there, too."""
    beside = {"type": "model", "description": "", "tags": [], "capabilities": capabilities(settings)}
    return entry(name, card) | beside | model_of(name, settings)
