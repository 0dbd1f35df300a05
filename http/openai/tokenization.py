"""The bodies of what is asked of a tokenizer: OpenAI has no such path, others have the same one."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Object = dict[str, Any]
MOST_TEXTS = 256  # of one request
Texts = Annotated[list[str], Meta(min_length=1, max_length=MOST_TEXTS)]  # as SGLang has it


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize."""

    model: str | None = None
    prompt: str | Texts | None = None
    messages: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Object | None = None
    return_token_strs: bool | None = None

    tools: list[msgspec.Raw] | None = None
    chat_template: str | None = None

    content: str | None = None  # these four are llama.cpp's
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None

    text: str | None = None  # Cohere's: without special tokens, unless they are asked for


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int | list[int]]  # of one text, or as SGLang has it lists of several
    skip_special_tokens: bool | None = None  # as SGLang has it; if left out, so below /v1 alone
    model: str | None = None
