"""OpenAI's paths without /v1, as llama.cpp's server has them too, for clients whose base URL lacks it.

/completions is not among them: that is llama.cpp's own, and so is /embeddings for bodies of its older form.
"""

from __future__ import annotations

from dataclasses import replace

from ..route import Route
from .completions import COMPLETIONS
from .conversations import CONVERSATIONS, PATH
from .files import BATCHES, FILES, FILES_AND_BATCHES
from .pooling import POOLING
from .responses import RESPONSES, RESPONSES_AND_MESSAGES

VERSION = "/v1"
NAMES = ("chat/completions", "chat/completions/input_tokens", "models", "models/{model:.+}", "embeddings")
SAME = frozenset(f"{VERSION}/{name}" for name in NAMES)
HANDLERS = {f"{VERSION}/embeddings": "llamacpp.embeddings"}  # of those that are other APIs' paths, too
UNVERSIONED: tuple[Route, ...] = tuple(
    replace(
        route,
        path=route.path.removeprefix(VERSION),
        handler=HANDLERS.get(route.path, route.handler),
        listed=False,
    )
    for route in (*COMPLETIONS, *RESPONSES_AND_MESSAGES, *CONVERSATIONS, *FILES_AND_BATCHES, *POOLING)
    if route.path in SAME or route.path.startswith((RESPONSES, PATH, FILES, BATCHES))
)
