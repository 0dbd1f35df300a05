"""The forms in which scripts give prompts and conversations, as the renderer takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import numpy as np

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.prompts import chat_prompt, check_tokens
from actorserve.http.openai.schemas import ChatRequest
from actorserve.http.settings import Settings

from ...protocol.media import MediaSource
from ...protocol.topics.prompts import EmbedsPrompt, Prompt, TextPrompt, TokenPrompt
from .media import DATA, GivenPictures, put_back


class TextDict(TypedDict):
    prompt: str
    multi_modal_data: NotRequired[Mapping[str, Any]]


class TokensDict(TypedDict):
    prompt_token_ids: list[int]
    multi_modal_data: NotRequired[Mapping[str, Any]]


class EmbedsDict(TypedDict):
    prompt_embeds: Any  # a tensor or an array, [tokens, hidden]


KEYS = ("prompt", "prompt_token_ids", "prompt_embeds", DATA, "cache_salt")  # of a prompt that is a dict
PromptType = str | list[int] | TextDict | TokensDict | EmbedsDict | Mapping[str, Any]
Conversation = Sequence[Mapping[str, Any]]


class Cut(NamedTuple):
    """So many of a prompt's tokens are kept, -1: as many as the model takes; those of this side are lost."""

    most: int
    side: Literal["left", "right"] | None = None


class GivenPrompt(NamedTuple):
    """A prompt and the text that its output shows; `is_chat`: the text is known once it is rendered."""

    prompt: Prompt
    text: str | None = None
    is_chat: bool = False
    cache_salt: str | None = None  # only prompts with the same find its prefix
    cut: Cut | None = None  # what is kept of a longer one

    @property
    def like(self) -> str | list[str | int | list[int]]:
        """What stands for it where a request is looked at without it: a text, or ids, which need no tokenizer."""
        return [0] if isinstance(self.prompt, TokenPrompt | EmbedsPrompt) else ""


def given_prompts(
    prompts: PromptType | Sequence[PromptType], pictures: GivenPictures | None = None
) -> list[GivenPrompt]:
    """One prompt or several; a list of numbers is one. ValueError names the index of one that cannot be."""
    if isinstance(prompts, (str, Mapping)) or _are_ids(prompts):
        return [_with_pictures(prompts, 0, pictures)]
    return [_with_pictures(prompt, index, pictures) for index, prompt in enumerate(prompts)]


def _with_pictures(given: object, index: int, pictures: GivenPictures | None) -> GivenPrompt:
    found = _given(given, index)
    data = given.get(DATA) if isinstance(given, Mapping) else None
    if pictures is None or not isinstance(found.prompt, TextPrompt | TokenPrompt):
        return found
    return found._replace(prompt=pictures.with_data(found.prompt, data, index))


def _are_ids(value: object) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(type(one) is int for one in value)


def _check_keys(prompt: Mapping[str, Any], index: int) -> None:
    """Nothing that a prompt asks for is passed over; `type` is the name that vLLM has for its form."""
    for key, value in prompt.items():
        if key not in (*KEYS, "type") and value not in (None, {}, []):
            raise ValueError(f"prompt {index}: {key} is none of {', '.join(KEYS)}")
    if not isinstance(prompt.get("cache_salt"), str | None):
        raise ValueError(f"prompt {index}: cache_salt is a text")


def _given(prompt: object, index: int) -> GivenPrompt:
    if isinstance(prompt, Mapping):
        _check_keys(prompt, index)
        return _of_dict(prompt, index)._replace(cache_salt=prompt.get("cache_salt"))
    if isinstance(prompt, str):
        return GivenPrompt(TextPrompt(prompt), prompt)
    return GivenPrompt(_tokens(prompt, index))


def _of_dict(prompt: Mapping[str, Any], index: int) -> GivenPrompt:
    if (rows := prompt.get("prompt_embeds")) is not None:
        return GivenPrompt(_embeds(rows, index))
    if (ids := prompt.get("prompt_token_ids")) is not None:
        return GivenPrompt(_tokens(ids, index), prompt.get("prompt"))
    return _given(prompt.get("prompt"), index)


def _embeds(given: Any, index: int) -> EmbedsPrompt:
    """Of a tensor of torch, or what numpy takes for an array."""
    try:
        rows = np.asarray(given.detach().float().cpu() if hasattr(given, "detach") else given, np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"prompt {index}: prompt_embeds is no tensor of floats ({error})") from None
    if rows.ndim == 3 and rows.shape[0] == 1:
        rows = rows[0]
    if rows.ndim != 2 or not rows.size:
        text = f"prompt_embeds has the shape {list(rows.shape)}; tokens × hidden is taken"
        raise ValueError(f"prompt {index}: {text}")
    return EmbedsPrompt(rows.tobytes(), rows.shape[1])


def _tokens(ids: object, index: int) -> TokenPrompt:
    if not isinstance(ids, Sequence) or not _are_ids(ids):
        text = "must be a text, token ids, or a dict with `prompt`, `prompt_token_ids` or `prompt_embeds`"
        raise ValueError(f"prompt {index}: a prompt {text}, not {ids!r:.64}")
    try:
        return TokenPrompt(check_tokens(list(ids), f"prompt {index}"))
    except ApiError as error:
        raise ValueError(error.message) from None


def given_conversations(
    messages: Conversation | Sequence[Conversation],
    variables: Mapping[str, Any],
    pictures: GivenPictures | None,
    settings: Settings | None,
) -> tuple[list[GivenPrompt], bool]:
    """(one conversation or several, was it a list of them). `variables`: the other fields of a chat request."""
    several = bool(messages) and not isinstance(messages[0], Mapping)
    fields = {name: value for name, value in variables.items() if value is not None}
    found = []
    for index, conversation in enumerate(messages if several else [messages]):
        taken: list[MediaSource | None] = []
        try:
            if pictures is not None:
                conversation, taken = pictures.taken_out(list(conversation))
            request = decode(ChatRequest, msgspec.json.encode({**fields, "messages": conversation}))
            found.append(GivenPrompt(put_back(chat_prompt(request, settings), taken), is_chat=True))
        except ApiError as error:
            raise ValueError(f"conversation {index}: {error.message}") from None
    return found, several
