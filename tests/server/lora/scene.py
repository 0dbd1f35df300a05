"""A server with adapters of all kinds, and what its clients ask."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.client import http_client
from tests.support.models.adapters import KINDS, write_adapter
from tests.support.models.checkpoints import checkpoint
from tests.support.server import Server

ADMIN = {"Authorization": "Bearer secret"}
PROMPT = list(range(5, 45))
TOKENS = 40
FOUND = "found-by-name"


class Scene:
    """A server with adapters of all kinds; one more in --lora-folder."""

    def __init__(self, root: Path) -> None:
        self.base = checkpoint("qwen3", root, initializer_range=0.1)
        self.paths: dict[str, Path | None] = {"base": None}
        for seed, (kind, config) in enumerate(KINDS.items()):
            self.paths[kind] = write_adapter(self.base, root / "adapters" / kind, seed, **config)
        self.paths[FOUND] = write_adapter(self.base, root / "folder" / FOUND, 9, safe=False, **KINDS["rslora"])
        self.given = [f"{name}={path}" for name, path in self.paths.items() if name in KINDS]
        self.root = root
        self.wanted = cache(self._wanted)
        self.server: Server

    @property
    def options(self) -> list[str]:
        return [
            *(str(self.base), "--served-model-name", "base", "--enable-lora", "--lora-modules", *self.given),
            *("--lora-folder", str(self.root / "folder"), "--admin-api-key", "secret", "--threads", "1", "--debug"),
            *("--max-model-len", "256", "--max-num-seqs", "8", "--max-loras", "3", "--max-cpu-loras", "4"),
        ]

    def post(self, path: str, body: dict[str, Any], **headers: str) -> Any:
        with http_client(self.server) as client:
            return client.post(path, json=body, headers=headers)

    def ask(self, name: str, **fields: Any) -> Any:
        answer = self.post("/v1/completions", body(name) | fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def _wanted(self, name: str) -> list[int]:
        """What is said, undisturbed."""
        ids: list[int] = self.ask(name)["choices"][0]["token_ids"]
        return ids


def body(name: str) -> dict[str, Any]:
    how = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True, "logprobs": 0}
    return {"model": name, "prompt": PROMPT, **how}


async def stream(session: aiohttp.ClientSession, name: str, begun: list[str], tokens: int = TOKENS) -> list[int]:
    ids: list[int] = []
    given = body(name) | {"stream": True, "max_tokens": tokens}
    async with session.post("/v1/completions", json=given) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                ids += chunk["choices"][0].get("token_ids") or []
                begun.append(name)
    return ids


async def until(begun: list[str], count: int) -> None:
    async with asyncio.timeout(60):
        while len(begun) < count:
            await asyncio.sleep(0.005)
