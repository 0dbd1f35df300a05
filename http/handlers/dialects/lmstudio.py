"""What LM Studio's REST API tells of models. What it generates by is OpenAI's."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ...middleware.context import ACCOUNT
from ...ollama.about import capabilities
from ...settings import Settings
from ...transport.json_response import json_response
from ..answering import model_for
from ..operators.administration import Administered

STATES = {"unloaded": "not-loaded"}


class LmStudioApi:
    """Its handlers, by the names that the table of routes has for them."""

    def __init__(self, administration: Administered, settings: Settings) -> None:
        self._administration, self._settings = administration, settings

    async def models(self, request: web.Request) -> web.Response:
        """Those that it has a type for: none that only listens."""
        account = request.get(ACCOUNT)
        told = [
            await self._card(name, one)
            for name, one in self._settings.all_named
            if not one.hears and (account is None or account.may_ask_for(name))
        ]
        return json_response({"object": "list", "data": told})

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
            "publisher": "actorserve",
            "arch": card.family,
            # Clients know no third: what is in safetensors there is of MLX.
            "compatibility_type": "gguf" if card.is_gguf else "mlx",
            "quantization": card.stored_as,
            "state": STATES.get(state, state),
            "max_context_length": settings.max_model_len,
            **({"loaded_context_length": settings.max_model_len} if state == "loaded" else {}),
            "capabilities": ["tool_use"] if "tools" in can else [],
        }
