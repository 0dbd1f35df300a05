"""The bodies of Ollama's API as msgspec structs. null means absent for every field."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from actorserve.actors.protocol.sampling.fields import SamplingFields

Object = dict[str, Any]
Think = bool | Literal["low", "medium", "high", "max"]


class CalledFunction(msgspec.Struct):
    name: str
    arguments: Object | None = None


class MadeCall(msgspec.Struct):
    """A call that the assistant has made."""

    function: CalledFunction
    id: str | None = None


class OllamaTurn(msgspec.Struct):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None  # base64
    tool_calls: list[MadeCall] | None = None
    tool_name: str | None = None  # whose result this is
    tool_call_id: str | None = None


class OllamaOptions(SamplingFields, kw_only=True):
    """How to generate: by Ollama's names, and what it lacks by those of other APIs here. What belongs to who starts the
    server (`num_ctx`, `num_gpu` and so on), and what nobody knows, is passed over, as Ollama does.
    """

    num_predict: int | None = None  # below 1: up to the model's length
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    tfs_z: float | None = None  # only the values that change nothing


class OllamaModel(msgspec.Struct, kw_only=True):
    """POST /api/show."""

    model: str | None = None
    name: str | None = None  # its older name
    verbose: bool | None = None


class OllamaPullRequest(msgspec.Struct, kw_only=True):
    """POST /api/pull."""

    model: str | None = None
    name: str | None = None  # its older name
    stream: bool | None = None  # true if left out
    insecure: bool | None = None


class OllamaFields(msgspec.Struct, kw_only=True):
    """What chat and generate have in common."""

    model: str | None = None
    stream: bool | None = None  # true if left out
    format: str | Object | None = None  # json, or a JSON schema
    options: OllamaOptions | None = None
    think: Think | None = None
    keep_alive: Any = None  # the model stays as long as the server
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None  # a prompt that is too long is refused


class OllamaChatRequest(OllamaFields, kw_only=True):
    """POST /api/chat."""

    messages: list[OllamaTurn] | None = None
    tools: list[Object] | None = None


class OllamaGenerateRequest(OllamaFields, kw_only=True):
    """POST /api/generate."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    images: list[str] | None = None
    raw: bool | None = None  # the prompt is no turn of a conversation: no template is applied
    template: str | None = None  # known, and refused
    context: list[int] | None = None  # what was said before, as the last answer has it


class OllamaEmbedRequest(msgspec.Struct, kw_only=True):
    """POST /api/embed."""

    input: str | list[str] | None = None  # nothing: the model is to be loaded
    model: str | None = None
    truncate: bool | None = None  # true if left out
    dimensions: int | None = None
    options: OllamaOptions | None = None
    keep_alive: Any = None


class OllamaEmbeddingsRequest(msgspec.Struct, kw_only=True):
    """POST /api/embeddings, the older one."""

    model: str | None = None
    prompt: str | None = None
    options: OllamaOptions | None = None
    keep_alive: Any = None
