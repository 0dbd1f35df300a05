"""Errors in the forms of other APIs, by the structs that name them in the table of routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..anthropic import errors as anthropic
from ..cohere import errors as cohere
from ..errors import ApiError
from ..llamacpp import errors as llamacpp
from ..ollama import errors as ollama
from ..openai import mistral
from ..tgi import errors as tgi
from . import dialects
from .cohere import CohereError
from .llamacpp import LlamaError
from .ollama import OllamaError
from .tgi import TgiError

ErrorBody = Callable[[ApiError, str], dict[str, Any]]  # of an error and the request's id

BODIES: dict[type, ErrorBody] = {  # all else are OpenAI's
    dialects.AnthropicError: anthropic.body_of,
    OllamaError: ollama.body_of,
    CohereError: cohere.body_of,
    LlamaError: llamacpp.body_of,
    TgiError: tgi.body_of,
}
OF_ANTHROPICS = "Anthropic-Version"  # a header of its clients, and of nobody else


def body_of(kind: type, headers: Mapping[str, str]) -> ErrorBody | None:
    """How an error is written, of a path whose errors are of this kind; where they are OpenAI's whoever asks may be
    known for a client of another API, which reads those of its own. None: OpenAI's.
    """
    if kind in BODIES:
        return BODIES[kind]
    if OF_ANTHROPICS in headers:
        return anthropic.body_of
    return mistral.body_of if mistral.is_mistrals(headers.get("User-Agent", "")) else None
