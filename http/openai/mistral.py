"""What Mistral's clients write and read otherwise than OpenAI's: to all that follows it is a request as any other."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from actorserve.actors.protocol.request import CLASSIFY
from actorserve.actors.protocol.sampling.ranges import INT64

from ..errors import ApiError, bad_request
from ..generation.fields.decoding import decode
from ..generation.infill import can_infill
from ..settings import Settings
from .schemas import ChatRequest, TokensRequest
from .thinking import THINKING_SWITCHES

PREFIX = b'"prefix"'
# what stands behind them is a version; of the AI SDK only streams name themselves
USER_AGENTS = ("mistral-client-", "ai-sdk/mistral/", "ai-sdk-mistral/")


class FimRequest(TokensRequest, kw_only=True):
    """POST /v1/fim/completions: what stands between `prompt` and `suffix`, told as a chat's message."""

    prompt: str
    random_seed: Annotated[int | None, INT64] = None  # `seed`
    session_params: Any = None  # refused, as all in NOT_OF_FIM


NOT_OF_FIM = ("echo", "best_of", "prompt_embeds", "session_params", "use_beam_search")


class LastTurn(msgspec.Struct):
    """What of a message tells whether the answer goes on with it."""

    role: str = ""
    prefix: bool | None = None


def as_openai(body: ChatRequest) -> ChatRequest:
    """The same by OpenAI's names. ApiError names what cannot be."""
    changes: dict[str, object] = {}
    if body.random_seed is not None:
        if not INT64.holds(body.random_seed):
            raise bad_request(f"random_seed must be {INT64.missed_by(body.random_seed)}.", "random_seed")
        if body.seed != body.random_seed:
            raise bad_request("random_seed: seed asks for another one; give either.", "random_seed")
    if body.safe_prompt:
        raise bad_request("safe_prompt is not supported: send the instructions as a system message.", "safe_prompt")
    if body.prompt_mode is not None:
        changes["chat_template_kwargs"] = dict.fromkeys(THINKING_SWITCHES, True) | (body.chat_template_kwargs or {})
    if _has_prefix(body.messages):
        changes |= {"continue_final_message": True, "add_generation_prompt": False}
    return msgspec.structs.replace(body, **changes) if changes else body


def is_mistrals(user_agent: str) -> bool:
    """Is it Mistral's own client? It reads a streamed call in one part, as Mistral's API sends it: each part has to
    have a name, which clients of OpenAI's read once; usage in the last event; errors in another form; and a model or a
    transcript with fields that theirs lack. Nothing in a body tells the two apart.
    """
    return user_agent.startswith(USER_AGENTS)


def body_of(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """An error as its clients read it."""
    return {"object": "error", **error.fields()}


def with_thinking_parts(message: dict[str, Any]) -> dict[str, Any]:
    """A message, or a part of one, whose thinking stands in its content, as Mistral's API has it."""
    thinking = message.get("reasoning_content")
    made = {name: value for name, value in message.items() if name not in ("reasoning", "reasoning_content")}
    if thinking:
        text = made.get("content")
        parts = [{"type": "thinking", "thinking": [{"type": "text", "text": thinking}]}]
        made["content"] = [*parts, *([{"type": "text", "text": text}] if text else [])]
    return made


def fim_completion(body: FimRequest) -> FimRequest:
    """The completion that is asked for. ApiError names what cannot be."""
    for name in NOT_OF_FIM:
        if getattr(body, name):
            raise bad_request(f"{name} is not supported here: see /v1/completions.", name)
    if body.random_seed is None:
        return body
    if not INT64.holds(body.random_seed):
        raise bad_request(f"random_seed must be {INT64.missed_by(body.random_seed)}.", "random_seed")
    if body.seed not in (None, body.random_seed):
        raise bad_request("random_seed: seed asks for another one; give either.", "random_seed")
    return msgspec.structs.replace(body, seed=body.random_seed)


def model_fields(settings: Settings) -> dict[str, Any]:
    """What its clients read of a model, beside what OpenAI's do."""
    media = () if settings.media is None else settings.media.most
    chats = settings.generates and bool(settings.tokenizer_info.get("chat_template"))
    can = {
        "completion_chat": chats,
        "completion_fim": settings.generates and can_infill(settings.special_tokens()),
        "function_calling": chats and settings.tool_parser is not None,
        "reasoning": settings.reasoning_parser is not None,
        "vision": "image" in media,
        "audio": "audio" in media,
        "audio_transcription": settings.hears,
        "audio_transcription_realtime": settings.hears,
        "classification": settings.pooling is not None and CLASSIFY in settings.pooling.tasks,
        **dict.fromkeys(("fine_tuning", "ocr", "moderation", "audio_speech"), False),
    }
    return {
        "type": "base",
        "capabilities": can,
        "max_context_length": settings.max_model_len,
        "default_model_temperature": settings.sampling_defaults.get("temperature"),
        "aliases": [],
        "deprecation": None,
    }


def _has_prefix(raw: msgspec.Raw) -> bool:
    """Is the last message the beginning of the answer?"""
    if PREFIX not in bytes(raw):
        return False
    messages = decode(list[msgspec.Raw], bytes(raw), "messages")
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        turn = decode(LastTurn, bytes(message), path)
        if turn.prefix and (index < len(messages) - 1 or turn.role != "assistant"):
            text = f"{path}.prefix: only the last message can be the beginning of the answer, and only the assistant's."
            raise bad_request(text, f"{path}.prefix")
    return bool(messages) and bool(turn.prefix)
