"""Errors in the forms of other APIs, by the structs that name them in the table of routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..anthropic import errors as anthropic
from ..errors import ApiError
from . import dialects

ErrorBody = Callable[[ApiError, str], dict[str, Any]]  # of an error and the request's id

BODIES: dict[type, ErrorBody] = {dialects.AnthropicError: anthropic.body_of}  # all else are OpenAI's
