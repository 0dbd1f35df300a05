"""What a frontend asks a renderer of --io-processor-plugin: prompts of a request's data, and later its answer of what
the model has made of them.

Whoever is asked for the second may not be who was asked for the first: both have the data, so that the plugin can be
given them once more.
"""

from __future__ import annotations

import msgspec

from ..wire import Message
from .prompts import Prompt


class PooledPrompt(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a model has made of one prompt."""

    rows: int
    columns: int
    numbers: bytes  # float32 of all rows
    by_token: bool  # a row for each token; else there is one


class PreProcess(Message, frozen=True, tag=160):
    """Frontend → renderer: answered by PreProcessed or Failed with the same call."""

    call: int
    request_id: str
    data: bytes  # JSON


class PreProcessed(Message, frozen=True, tag=161):
    call: int
    prompts: list[Prompt]


class PostProcess(Message, frozen=True, tag=162):
    """Frontend → renderer: answered by PostProcessed or Failed with the same call."""

    call: int
    request_id: str
    data: bytes
    pooled: list[PooledPrompt]


class PostProcessed(Message, frozen=True, tag=163):
    call: int
    output: bytes  # JSON
