"""What Mistral's clients write otherwise than OpenAI's: to all that follows it is a chat as any other."""

from __future__ import annotations

import msgspec

from actorserve.actors.protocol.request import INT64

from ..errors import bad_request
from ..generation.fields.decoding import decode
from .schemas import ChatRequest
from .thinking import THINKING_SWITCHES

PREFIX = b'"prefix"'
USER_AGENT = "mistral-client-"  # behind which stand the language and the client's version


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


def takes_whole_calls(user_agent: str) -> bool:
    """Is it Mistral's own client? It reads a streamed call in one part, as Mistral's API sends it: each part has to
    have a name, which clients of OpenAI's read once. Nothing in the body tells the two apart.
    """
    return user_agent.startswith(USER_AGENT)


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
