"""Errors in the forms of other APIs, by the structs that name them in the table of routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..anthropic import errors as anthropic
from ..cohere import errors as cohere
from ..errors import ApiError
from ..llamacpp import errors as llamacpp
from ..ollama import errors as ollama
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
