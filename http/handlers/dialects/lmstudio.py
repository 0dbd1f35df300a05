"""What LM Studio's REST API tells of models. What it generates by is OpenAI's."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ...middleware.context import ACCOUNT
from ...ollama.about import capabilities, short
from ...settings import Settings
from ...transport.json_response import json_response
from ..answering import model_for
from ..operators.administration import Administered

PUBLISHER = "actorserve"
STATES = {"unloaded": "not-loaded"}


class LmStudioApi:
    """Its handlers, by the names that the table of routes has for them."""

    def __init__(self, administration: Administered, settings: Settings) -> None:
        self._administration, self._settings = administration, settings

    async def models(self, request: web.Request) -> web.Response:
        told = [await self._card(name, one) for name, one in self._named(request)]
        return json_response({"object": "list", "data": told})

    async def keys(self, request: web.Request) -> web.Response:
        """The same as version 1 of it has it."""
        return json_response({"models": [await self._key(name, one) for name, one in self._named(request)]})

    def _named(self, request: web.Request) -> list[tuple[str, Settings]]:
        """Those that it has a type for, none that only listens; and that the key may ask for."""
        account = request.get(ACCOUNT)
        named = [(name, one) for name, one in self._settings.all_named if not one.hears]
        return [(name, one) for name, one in named if account is None or account.may_ask_for(name)]

    async def model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        of = next((one for one in self._settings.all_models if name in one.served), self._settings)
        model_for(request, name, of)
        return json_response(await self._card(name, of))

    async def _card(self, name: str, settings: Settings) -> dict[str, Any]:
        card, can = await settings.card(), capabilities(settings)
        state = self._administration.model_state(settings.model)
        return {
            "id": name,
            "object": "model",
            "type": "embeddings" if settings.pooling is not None else "vlm" if "vision" in can else "llm",
            "publisher": PUBLISHER,
            "arch": card.family,
            # Clients know no third: what is in safetensors there is of MLX.
            "compatibility_type": "gguf" if card.is_gguf else "mlx",
            "quantization": card.stored_as,
            "state": STATES.get(state, state),
            "max_context_length": settings.max_model_len,
            **({"loaded_context_length": settings.max_model_len} if state == "loaded" else {}),
            "capabilities": ["tool_use"] if "tools" in can else [],
        }

    async def _key(self, name: str, settings: Settings) -> dict[str, Any]:
        card, can = await settings.card(), capabilities(settings)
        loaded = self._administration.model_state(settings.model) == "loaded"
        of_text = {
            "architecture": card.family or None,
            "capabilities": {"vision": "vision" in can, "trained_for_tool_use": "tools" in can},
            "description": None,
        }
        return {
            "type": "llm" if settings.pooling is None else "embedding",
            "publisher": PUBLISHER,
            "key": name,
            "display_name": name,
            "quantization": {"name": card.stored_as or None, "bits_per_weight": None},
            "size_bytes": card.size,
            "params_string": short(card.parameters) or None,
            "loaded_instances": [{"id": name, "config": {"context_length": settings.max_model_len}}] if loaded else [],
            "max_context_length": settings.max_model_len,
            "format": "gguf" if card.is_gguf else None,
            **(of_text if settings.pooling is None else {}),
        }
