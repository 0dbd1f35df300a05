"""Prompts, as they cross rings to a renderer."""

from __future__ import annotations

import msgspec

from ..media import MediaSource


class ChatPrompt(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="chat"):
    """A conversation to render. `messages`, `tools`, `documents`, `template_kwargs` are JSON as the client sent it."""

    messages: bytes
    tools: bytes | None = None
    documents: bytes | None = None
    template_kwargs: bytes | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None  # the request's own
    media: list[MediaSource] = []  # pictures and sounds of its messages, in order, until a media actor has them
    context: list[int] = []  # ids of what was said before it, which stand before those of its text


class TextPrompt(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="text"):
    """A text to tokenise."""

    text: str
    add_special_tokens: bool = True
    media: list[MediaSource] = []
    most: int = 0  # its tokens where it is pooled, if that is not 0: of a longer one the first are taken
    marker: str = ""  # in whose places all media go, in order; none: in those of the model's own placeholders


class TokenPrompt(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="tokens"):
    """Token ids as the client sent them."""

    tokens: list[int]
    media: list[MediaSource] = []


class PairPrompt(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="pair"):
    """Two texts that are compared, tokenised as one."""

    text: str
    second: str
    instruction: str = ""  # by what, for a model that is told so
    field: str = ""  # where the first stands in the request
    most: int = 0  # tokens of the second, if that is not 0: of a longer one the first are taken
    most_first: int = 0  # likewise of the first
    variables: bytes = b""  # JSON of a template's, where a chat template makes one text of both
    template: str = ""  # one in place of the server's


class SoundPrompt(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="sound"):
    """A sound to write down: each of the Render's refs has one of its windows, in their order from `window` on."""

    data: bytes  # the file
    task: str  # of the model's, or empty
    language: str = ""  # its code; empty: the model says which it is
    text: str = ""  # what was said before
    timestamps: bool = False
    window: int = 0


class EmbedsPrompt(msgspec.Struct, array_like=True, frozen=True, gc=False, tag="embeds"):
    """A prompt as embeddings, a row for each token."""

    data: bytes  # base64 of a tensor as torch.save writes it; or the rows' float32
    columns: int = 0  # of these; 0: it is base64


Prompt = ChatPrompt | TextPrompt | TokenPrompt | PairPrompt | SoundPrompt | EmbedsPrompt
