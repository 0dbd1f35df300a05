"""The handlers of a tokenizer: texts and conversations to tokens, tokens to texts, as several APIs ask for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from actorserve.actors.protocol.topics.prompts import ChatPrompt, Prompt, TextPrompt

from ..errors import bad_request
from ..generation.fields.unsupported import read
from ..generation.prompts import chat_prompt, check_template, check_tokens, tools_of
from ..openai.schemas import ChatRequest
from ..openai.tokenization import MOST_TEXTS, DetokenizeRequest, TokenizeRequest
from ..transport.json_response import json_response
from .answering import model_for
from .generate import Generator

ReadBody = Callable[[web.Request], Awaitable[bytes]]
GIVEN = "Either prompt or messages, or content, or text, must be given."


class TokenizationApi:
    """Its handlers, by the names that the table of routes has for them."""

    def __init__(self, generator: Generator, read_body: ReadBody, read_conversation: ReadBody) -> None:
        self._generator, self._engine, self._settings = generator, generator.engine, generator.settings
        self._read_body, self._read_conversation = read_body, read_conversation

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize. Of several texts, as SGLang has them, there are as many lists and counts."""
        body = read(TokenizeRequest, await self._read_conversation(request))
        model_for(request, body.model, self._settings)
        _check(body)
        told = bool(body.return_token_strs or body.text is not None)
        made = [await self._engine.tokenize(prompt, told) for prompt in self._prompts(body)]
        pieces = [await self._engine.pieces(tokens) if body.with_pieces else [] for tokens, _ in made]
        answers = [_told(body, *one, own) for one, own in zip(made, pieces, strict=True)]
        if isinstance(body.prompt, list):
            answer = {name: [one[name] for one in answers] for name in ("count", "tokens", "token_strs")}
        else:
            (answer,) = answers
        return json_response({"count": answer["count"], "max_model_len": self._settings.max_model_len} | answer)

    def _prompts(self, body: TokenizeRequest) -> list[Prompt]:
        if body.content is not None:
            return [TextPrompt(body.content, body.add_special is True)]
        if body.text is not None:
            return [TextPrompt(body.text, body.add_special_tokens is True)]
        if body.prompt is not None:
            texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
            return [TextPrompt(text, body.add_special_tokens is not False) for text in texts]
        return [self._conversation(body)]

    def _conversation(self, body: TokenizeRequest) -> ChatPrompt:
        """The prompt that its messages make."""
        chat = ChatRequest(
            messages=body.messages,
            add_special_tokens=body.add_special_tokens,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
            tools=body.tools,
            chat_template=body.chat_template,
        )
        check_template(chat, self._settings.trust_request_chat_template)
        return chat_prompt(chat, self._settings)

    async def apply_template(self, request: web.Request) -> web.Response:
        """The text of a conversation's prompt: that of its tokens, special ones among them."""
        body = read(TokenizeRequest, await self._read_conversation(request))
        model_for(request, body.model, self._settings)
        tools_of(ChatRequest(messages=body.messages, tools=body.tools))
        tokens, _ = await self._engine.tokenize(self._conversation(body), False)
        return json_response({"prompt": await self._engine.detokenize(tokens)})

    async def detokenize(self, request: web.Request) -> web.Response:
        """POST /detokenize: the text of ids, or as SGLang has it those of lists of them."""
        body = read(DetokenizeRequest, await self._read_body(request))
        model_for(request, body.model, self._settings)
        skips = body.skip_special_tokens
        if skips is None:  # SGLang has this path below /v1 and leaves them out, vLLM has it without and keeps them
            skips = request.path.startswith("/v1/")
        several = any(isinstance(one, list) for one in body.tokens)
        lists = [check_tokens(ids, "tokens") for ids in _lists(body, several)]
        texts = [await self._engine.detokenize(ids, skips) for ids in lists]
        text = texts if several else texts[0]
        return json_response({"prompt": text, "content": text, "text": text})

    async def tokenizer_info(self, request: web.Request) -> web.Response:
        """GET /tokenizer_info."""
        self._generator.told_model(request)
        return json_response(self._settings.tokenizer_info)


def _check(body: TokenizeRequest) -> None:
    """One thing must be given, and nothing be asked that has no effect."""
    has_messages = bytes(body.messages) not in (b"", b"null")
    if [body.prompt, body.content, body.text].count(None) + (not has_messages) != 3:
        raise bad_request(GIVEN, "prompt")
    if body.parse_special is False:
        raise bad_request("parse_special: special tokens in texts always become ones here.", "parse_special")
    tools_of(ChatRequest(messages=body.messages, tools=body.tools))


def _told(body: TokenizeRequest, tokens: list[int], strings: list[str] | None, pieces: list[bytes]) -> dict[str, Any]:
    """What is answered of one prompt; Cohere's clients read what tokens stand for by another name."""
    shown: list[Any] = list(tokens)
    if body.with_pieces:
        shown = [{"id": token, "piece": _piece(piece)} for token, piece in zip(tokens, pieces, strict=True)]
    of_cohere = {"token_strings": strings} if body.text is not None else {}
    told = {"token_strs": strings if body.return_token_strs else None}
    return {"count": len(tokens), "tokens": shown, **told, **of_cohere}


def _piece(piece: bytes) -> str | list[int]:
    """A text, or as llama.cpp has it the bytes of what is none."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _lists(body: DetokenizeRequest, several: bool) -> list[list[int]]:
    """The ids of each text."""
    if not several:
        return [[one for one in body.tokens if isinstance(one, int)]]
    lists = [one for one in body.tokens if isinstance(one, list)]
    if len(lists) < len(body.tokens) or len(lists) > MOST_TEXTS:
        raise bad_request(f"tokens must be ids, or at most {MOST_TEXTS} lists of them.", "tokens")
    return lists
