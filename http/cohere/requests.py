"""Requests of Cohere's API to those of chat and embeddings that ask for the same."""

from __future__ import annotations

import msgspec

from actorserve.actors.protocol.sampling.fields import SAMPLING_FIELDS

from ..errors import ApiError, bad_request
from ..generation.adapter import with_names
from ..openai.thinking import THINKING_SWITCHES
from ..pooling.schemas import UNMADE, EmbeddingRequest
from .schemas import (
    CohereCall,
    CohereChatRequest,
    CohereDocument,
    CohereEmbedRequest,
    CohereFormat,
    CohereInput,
    CoherePart,
    CohereTurn,
    Object,
)

SAME = ("model", "stream", "seed", "priority", "logprobs", *SAMPLING_FIELDS)
OTHERS = {"k": "top_k", "p": "top_p", "max_tokens": "max_completion_tokens", "stop_sequences": "stop"}
NAMES = {ours: own for own, ours in OTHERS.items()} | {
    "thinking_token_budget": "thinking.token_budget",
    "dimensions": "output_dimension",
    "input": "texts",
    "truncate_prompt_tokens": "max_tokens",
}
UNCITED = ("OFF", "DISABLED")
CHOICES = {"REQUIRED": "required", "NONE": "none"}


def renamed(error: ApiError, body: msgspec.Struct) -> ApiError:
    """An error of the other API's request that names the field as this API, or its body, does."""
    return with_names(error, {ours: own for ours, own in NAMES.items() if getattr(body, ours, None) is None})


def chat_of(body: CohereChatRequest, thinks: bool, template: str = "") -> Object:
    """The JSON object of the chat request. `thinks`: it is known how the model marks its thinking. `template`: where it
    has no place for documents, they stand before what the user has said last.
    """
    chat: Object = {name: value for name in SAME if (value := getattr(body, name)) is not None}
    for own, ours in OTHERS.items():
        if (value := getattr(body, own)) is not None and chat.setdefault(ours, value) != value:
            raise bad_request(f"{own}: {ours} asks for something else; give either.", own)
    mode = body.citation_options.mode if body.citation_options is not None else None
    if mode is not None and mode.upper() not in UNCITED:
        raise bad_request("citation_options.mode: no citations are made; OFF says so.", "citation_options.mode")
    chat["messages"] = [_message(turn, f"messages[{index}]") for index, turn in enumerate(body.messages)]
    if body.documents:
        documents = [_document(document) for document in body.documents]
        if "documents" in template or not _told(documents, chat["messages"]):
            chat["documents"] = documents
    return chat | _tools(body) | _format(body.response_format) | _template(body, thinks)


def _tools(body: CohereChatRequest) -> Object:
    if not body.tools:
        return {}
    tools = body.tools
    if body.strict_tools:
        tools = [_strict(tool) for tool in tools]
    return {"tools": tools} | ({"tool_choice": CHOICES[body.tool_choice]} if body.tool_choice else {})


def _strict(tool: Object) -> Object:
    """What is no object is refused when the chat request is read."""
    function = tool.get("function") or {}
    return tool | {"function": function | {"strict": True}} if isinstance(function, dict) else tool


def _format(given: CohereFormat | None) -> Object:
    if given is None or given.type == "text":
        return {}
    schema = given.json_schema if given.json_schema is not None else given.schema
    if schema is None:
        return {"response_format": {"type": "json_object"}}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def _template(body: CohereChatRequest, thinks: bool) -> Object:
    """What the chat template is told."""
    variables: Object = dict(body.chat_template_kwargs or {})
    if body.safety_mode is not None:
        variables["safety_mode"] = body.safety_mode
    chat: Object = {}
    if body.thinking is not None:
        variables |= dict.fromkeys(THINKING_SWITCHES, body.thinking.type == "enabled")
        if body.thinking.token_budget is not None and thinks:  # a model that does not think keeps to any budget
            chat["thinking_token_budget"] = body.thinking.token_budget
    return chat | ({"chat_template_kwargs": variables} if variables else {})


def _document(given: str | CohereDocument) -> Object:
    if isinstance(given, str):
        return {"text": given}
    data = given.data if isinstance(given.data, dict) else {"text": given.data}
    return data | ({"id": given.id} if given.id is not None else {})


def _told(documents: list[Object], messages: list[Object]) -> bool:
    """The last user's message gets them; False if there is none."""
    last = next((message for message in reversed(messages) if message["role"] == "user"), None)
    if last is None:
        return False
    told = "\n\n".join(f"Document {number}:\n{_said(document)}" for number, document in enumerate(documents, 1))
    content = last["content"]
    said = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    last["content"] = [{"type": "text", "text": f"{told}\n\n"}, *said]
    return True


def _said(document: Object) -> str:
    """Its text, or all that it says."""
    text = document.get("text")
    is_text = isinstance(text, str) and not document.keys() - {"text", "id"}
    return str(text) if is_text else msgspec.json.encode(document).decode()


# --- messages --------------------------------------------------------------------------------------------------------


def _message(turn: CohereTurn, path: str) -> Object:
    parts = [CoherePart("text", text=turn.content)] if isinstance(turn.content, str) else turn.content or []
    thinking = "\n\n".join(part.thinking or "" for part in parts if part.type == "thinking")
    shown = [part for part in parts if part.type != "thinking"]
    if turn.tool_plan:
        shown.insert(0, CoherePart("text", text=turn.tool_plan))
    content = [_part(part, f"{path}.content") for part in shown]
    message: Object = {"role": turn.role, "content": content[0]["text"] if _is_one_text(content) else content or None}
    if thinking:
        message["reasoning_content"] = thinking
    if turn.tool_calls:
        message["tool_calls"] = [_call(call) for call in turn.tool_calls]
    if turn.role == "tool":
        if turn.tool_call_id is None:
            raise bad_request(f"{path}.tool_call_id is missing.", f"{path}.tool_call_id")
        message["tool_call_id"] = turn.tool_call_id
    return message


def _call(call: CohereCall) -> Object:
    function = {"name": call.function.name, "arguments": call.function.arguments or "{}"}
    return {"id": call.id, "type": "function", "function": function}


def _is_one_text(content: list[Object]) -> bool:
    return len(content) == 1 and content[0]["type"] == "text"


def _part(part: CoherePart, path: str) -> Object:
    match part.type:
        case "text" if part.text is not None:
            return {"type": "text", "text": part.text}
        case "image_url" if part.image_url is not None:
            return {"type": "image_url", "image_url": part.image_url}
        case "document" if part.document is not None:
            said = part.document.get("data", part.document)
            return {"type": "text", "text": said if isinstance(said, str) else msgspec.json.encode(said).decode()}
        case "text" | "image_url" | "document":
            raise bad_request(f"{path}: a part of type {part.type} has no {part.type}.", path)
    raise bad_request(f"{path}: parts of type {part.type[:64]!r} are not supported.", path)


# --- vectors ---------------------------------------------------------------------------------------------------------


def embedding_of(body: CohereEmbedRequest) -> tuple[EmbeddingRequest, list[str]]:
    """What asks for the same vectors, and the types that they are wanted in."""
    types = list(dict.fromkeys(body.embedding_types or ["float"]))
    for kind in UNMADE:
        if kind in types:
            text = f"embedding_types: {kind} is not supported: take float, base64, binary or ubinary."
            raise bad_request(text, "embedding_types")
    if body.images:
        raise bad_request("images are not supported: texts are taken.", "images")
    if (body.texts is None) == (body.inputs is None):
        raise bad_request("Either texts or inputs must be given.", "texts")
    texts = body.texts if body.texts is not None else [_text(given, at) for at, given in enumerate(body.inputs or [])]
    most = None if body.truncate == "NONE" else -1 if body.max_tokens is None else body.max_tokens
    request = EmbeddingRequest(
        model=body.model,
        input=list(texts),
        input_type=body.input_type,
        dimensions=body.output_dimension,
        truncate_prompt_tokens=most,
        truncation_side="left" if body.truncate == "START" else "right",
        priority=body.priority,
    )
    return request, [str(kind) for kind in types]


def _text(given: CohereInput, at: int) -> str:
    path = f"inputs[{at}].content"
    if any(part.type != "text" or part.text is None for part in given.content):
        raise bad_request(f"{path}: texts are taken alone.", path)
    return "".join(part.text or "" for part in given.content)
