"""What Ollama's API tells of the model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ..generation.infill import can_infill
from ..settings import ModelCard, Settings

Object = dict[str, Any]
SPOKEN = "0.12.6"  # the version of Ollama whose API this is: clients ask for a least one
NEVER = "2318-12-31T23:59:59Z"  # when the model is unloaded


async def tags(settings: Settings) -> Object:
    """GET /api/tags."""
    cards = [(name, await one.card()) for name, one in settings.all_named]
    return {"models": [entry(name, card) | {"modified_at": _modified(card)} for name, card in cards]}


async def running(settings: Settings, is_loaded: Callable[[int], bool], is_leaving: Callable[[int], bool]) -> Object:
    """GET /api/ps. `is_loaded`: is the model of this number in memory? `is_leaving`: is it unloaded once what it has
    begun has ended, as where another is asked for and there is no place for both? That is past, by which clients say
    that it stops.
    """
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "models": [
            entry(name, await one.card())
            | {"expires_at": now if is_leaving(one.model) else NEVER, "size_vram": 0}
            | {"context_length": one.max_model_len}
            for one in settings.all_models
            if is_loaded(one.model)
            for name in one.served
        ]
    }


async def show(settings: Settings, name: str) -> Object:
    """POST /api/show. `name`: that of the model that is asked for, which pickers show."""
    card = await settings.card()
    family = card.family or "unknown"
    about: Object = {
        "general.architecture": family,
        "general.basename": name,
        "general.parameter_count": card.parameters,
        f"{family}.context_length": settings.max_model_len,
        f"{family}.embedding_length": card.hidden,
        f"{family}.vocab_size": settings.vocab_size,
    }
    sizes = {"block_count": card.layers, "attention.head_count": card.heads, "attention.head_count_kv": card.kv_heads}
    about |= {f"{family}.{size}": value for size, value in sizes.items() if value}
    return {
        **({"license": card.license} if card.license else {}),
        "modelfile": f"FROM {settings.served[0]}\n",
        "parameters": "\n".join(f"{name} {value}" for name, value in settings.sampling_defaults.items()),
        "template": settings.tokenizer_info.get("chat_template", ""),
        "details": _details(card),
        "model_info": about,
        "capabilities": capabilities(settings),
        "modified_at": _modified(card),
    }


def capabilities(settings: Settings) -> list[str]:
    """What the model can be asked for."""
    if settings.pooling is not None:
        return ["embedding"]
    media = () if settings.media is None else settings.media.most
    found = {
        "tools": settings.tool_parser is not None,
        "insert": can_infill(settings.special_tokens()),
        "vision": "image" in media,
        "audio": "audio" in media,
        "thinking": settings.reasoning_parser is not None,
    }
    return ["completion", *(name for name, there in found.items() if there)]


def entry(name: str, card: ModelCard) -> Object:
    """A model in a list. Names of one model have one digest, which is that of what is told of it."""
    digest = hashlib.sha256(repr(card).encode()).hexdigest()
    return {"name": name, "model": name, "size": card.size, "digest": digest, "details": _details(card)}


def _details(card: ModelCard) -> Object:
    return {
        "parent_model": "",
        "format": "gguf" if card.is_gguf else "safetensors",
        "family": card.family,
        "families": [card.family] if card.family else [],
        "parameter_size": short(card.parameters),
        "quantization_level": card.stored_as,
    }


def short(count: int) -> str:
    """As people write a model's size: 3.5M, 8.0B."""
    for unit, letter in ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "K")):
        if count >= unit:
            return f"{count / unit:.1f}{letter}"
    return str(count) if count else ""


def _modified(card: ModelCard) -> str:
    return f"{datetime.fromtimestamp(card.modified, UTC):%Y-%m-%dT%H:%M:%SZ}"
