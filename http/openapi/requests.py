"""JSON schemas of the request bodies: what msgspec says of the structs that are decoded, with the ranges that
stand beside their fields, and the other limits of generation/fields/ranges.py.

Those go by a field's name: it means the same wherever it stands. What a schema cannot say is answered with 400: which
fields go together, and whether a grammar, a template or a prompt's length can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec

from actorserve.actors.protocol.sampling.fields import SAMPLING_FIELDS, ranges_of, sampling_parameters
from actorserve.actors.protocol.sampling.ranges import Range

from ..anthropic.requests import REFUSED
from ..anthropic.schemas import CountRequest, MessagesRequest
from ..generation.fields.ranges import (
    LOGPROBS,
    MAX_BAD_WORD,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_BREAKER,
    MAX_BREAKERS,
    MAX_IDS,
    MAX_SALT,
    MAX_STOP_LENGTH,
    MAX_STOPS,
    TOKEN,
)
from ..generation.fields.sampling import COMPLETION_MAX_TOKENS
from ..generation.fields.unsupported import NOT_BUILT, OF_COMPLETIONS, OF_MESSAGES, OF_OPENAI, OF_RESPONSES
from ..generation.prompts import MAX_MESSAGES, MAX_TOOLS, TEXT_PARTS, THINKING, TOOL_NAME
from ..generation.structured_output import FORMATS, OPTIONS, OUTPUTS
from ..openai.responses.schemas import ResponsesRequest
from ..openai.schemas import (
    ChatBatchRequest,
    ChatMessage,
    ChatRequest,
    ChatTool,
    CompletionRequest,
    ContentPart,
    GenerateParameters,
    GenerateRequest,
    StreamOptions,
    ToolFunction,
)
from ..openai.tokenization import MOST_TEXTS, DetokenizeRequest, TokenizeRequest
from ..settings import Settings
from ..sglang.schemas import SglangGenerateRequest

Schema = dict[str, Any]
REF = "#/components/schemas/{name}"
NULL: Schema = {"type": "null"}
FUNCTIONS = ("functions", "function_call")  # of chats
PARTS: tuple[type, ...] = (
    ChatMessage,
    ContentPart,
    ChatTool,
    ToolFunction,
    StreamOptions,
)  # of raw fields, which are decoded by themselves, and of others that need more than their types say


@dataclass(frozen=True)
class Book:
    """The schemas of a document, by the structs that they are made of."""

    schemas: dict[str, Schema]
    refs: dict[type, Schema]
    settings: Settings

    def ref(self, kind: type) -> Schema:
        """Where a struct stands in the document."""
        return dict(self.refs[kind])

    def of(self, kind: type) -> Schema:
        """A struct's schema, also of one that is a part of another."""
        return self.schemas[kind.__name__]


def make_book(structs: Iterable[type], requests: Iterable[type], settings: Settings) -> Book:
    """The schemas of all `structs`; those of `requests` with what the server checks beyond their types."""
    kinds = tuple(dict.fromkeys((*structs, *requests, *PARTS, GenerateParameters)))
    refs, schemas = msgspec.json.schema_components(kinds, ref_template=REF)
    book = Book(schemas, dict(zip(kinds, refs, strict=True)), settings)
    limits = _limits(settings)
    for kind in (*requests, GenerateParameters):
        _narrow(kind, book.of(kind)["properties"], limits)
    for kind in (*PARTS, *requests):
        if kind in _SPECIAL:
            _SPECIAL[kind](book.of(kind), book)
    return book


def _narrow(kind: type, fields: dict[str, Schema], limits: dict[str, dict[str, Schema]]) -> None:
    """The ranges of a struct's numbers, and the limits that go by a field's name; what sampling's parameters do."""
    ranges = {name: bounds(limit) for name, limit in ranges_of(kind).items()}
    for name, schema in fields.items():
        for branch in schema.get("anyOf", (schema,)):
            number = ranges.get(name, {}) if branch.get("type") in ("integer", "number") else {}
            branch.update(number | limits.get(name, {}).get(branch.get("type"), {}))
        built = (
            (name in OF_COMPLETIONS and kind in (CompletionRequest, SglangGenerateRequest))
            or (name in OF_MESSAGES and issubclass(kind, CountRequest))
            or (name in OF_RESPONSES and kind is ResponsesRequest)
            or (name in OF_OPENAI and issubclass(kind, ChatRequest | CompletionRequest))
            or (name in FUNCTIONS and issubclass(kind, ChatRequest))
        )
        if name in NOT_BUILT and not built:
            fields[name] = _not_built(get_type_hints(kind)[name], NOT_BUILT[name])
        elif name in SAMPLING_FIELDS:
            schema["description"] = sampling_parameters()[name].about


def bounds(limit: Range) -> Schema:
    return {"exclusiveMinimum" if limit.above else "minimum": limit.least, "maximum": limit.most}


def last_id(settings: Settings) -> int:
    """The largest token id that a model of the server knows."""
    return max(one.vocab_size for one in settings.all_models) - 1


def _limits(settings: Settings) -> dict[str, dict[str, Schema]]:
    """field: JSON type: its bounds, of what is no number."""
    ids = {"minimum": 0, "maximum": last_id(settings)}
    limits: dict[str, dict[str, Schema]] = {"truncate_prompt_tokens": {"integer": {"not": {"const": 0}}}}
    for name, most in MAX_IDS.items():
        limits[name] = {"array": {"items": {"type": "integer", **ids}, "maxItems": most}}
    for name in ("allowed_token_ids", "logprob_token_ids"):
        limits[name]["array"]["minItems"] = 1
    most, words = settings.most_logprobs, min(one.vocab_size for one in settings.all_models)
    limits |= {name: {"integer": {"minimum": -1 if words <= most else 0, "maximum": most}} for name in LOGPROBS}
    text = {"minLength": 1, "maxLength": MAX_STOP_LENGTH}
    word = {"type": "string", "minLength": 1, "maxLength": MAX_BAD_WORD}
    breaker = {"type": "string", "minLength": 1, "maxLength": MAX_BREAKER}
    biases = {
        "propertyNames": {"pattern": f"^{TOKEN.pattern}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "maxProperties": MAX_BIASES,
    }
    return limits | {
        "stop": {"string": text, "array": {"items": {"type": "string", **text}, "maxItems": MAX_STOPS}},
        "bad_words": {"array": {"items": word, "maxItems": MAX_BAD_WORDS}},
        "dry_sequence_breakers": {"array": {"items": breaker, "maxItems": MAX_BREAKERS}},
        "cache_salt": {"string": {"minLength": 1, "maxLength": MAX_SALT, "pattern": r"^[^\x00]*$"}},
        "logit_bias": {"object": biases},
        "model": {} if settings.adapters.enabled else {"string": {"enum": [*settings.all_served, ""]}},
    }


def _not_built(kind: Any, nothing: tuple[object, ...]) -> Schema:
    """Only what changes nothing is taken."""
    values = []
    for value in nothing:
        try:
            values.append(msgspec.convert(value, kind, strict=True))
        except msgspec.ValidationError:
            continue  # a value that the field's type does not have
    return {"enum": values, "description": "Not supported yet: any other value is refused."}


# --- what is not the same wherever it stands -------------------------------------------------------------------------


def _chat(schema: Schema, book: Book) -> None:
    fields = schema["properties"]
    for name in ("max_tokens", "max_completion_tokens"):
        fields[name]["description"] = "-1: no limit."
    fields["echo"]["description"] = "The assistant's message, where that is the last, stands before the answer."
    if book.settings.reasoning_parser is None:
        fields["thinking_token_budget"] = NULL
    functions = {"type": "array", "items": book.ref(ToolFunction), "maxItems": MAX_TOOLS}
    fields["functions"] = {
        "anyOf": [functions, NULL],
        "description": "What tools were before; one is called at a time.",
    }
    _constraints(fields)
    _conversation(fields, book)


def _chats(schema: Schema, book: Book) -> None:
    _chat(schema, book)
    schema["properties"]["messages"] = {"type": "array", "items": schema["properties"]["messages"], "minItems": 1}


def _constraints(fields: Schema) -> None:
    fields["response_format"] = {"anyOf": [_response_format(), NULL]}
    fields["structured_outputs"] = {"anyOf": [_structured_outputs(), NULL]}


def _conversation(fields: Schema, book: Book) -> None:
    """Of all bodies that hold messages."""
    fields["messages"] = {"type": "array", "items": book.ref(ChatMessage), "minItems": 1, "maxItems": MAX_MESSAGES}
    fields["tools"] = {"anyOf": [{"type": "array", "items": book.ref(ChatTool), "maxItems": MAX_TOOLS}, NULL]}
    if not book.settings.trust_request_chat_template:
        fields["chat_template"] = NULL | {"description": "Taken only with --trust-request-chat-template."}
        fields["chat_template_kwargs"] = {"anyOf": [{"type": "object", "properties": {"chat_template": False}}, NULL]}


def _response_format() -> Schema:
    schema: Schema = {"type": ["object", "boolean"]}
    json_schema = {
        "type": "object",
        "properties": {"schema": schema, "strict": {}, "name": {}, "description": {}},
        "required": ["schema"],
    }
    nested = {"properties": {"json_schema": json_schema}, "required": ["json_schema"]}
    beside = {"properties": {"schema": schema, "json_schema": NULL}, "required": ["schema"]}
    return {
        "type": "object",
        "properties": {"type": {"enum": list(FORMATS)}},
        "required": ["type"],
        "if": {"properties": {"type": {"const": "json_schema"}}},
        "then": {"anyOf": [nested, beside]},
    }


def _structured_outputs() -> Schema:
    kinds: dict[str, Schema] = {
        "json": {"type": ["object", "string"]},
        "regex": {"type": "string"},
        "choice": {"type": "array", "items": {"type": "string"}},
        "grammar": {"type": "string"},
        "json_object": {"type": "boolean"},
        "structural_tag": {"type": ["object", "string"]},
    }
    assert kinds.keys() == set(OUTPUTS)
    kinds |= {name: {"type": "boolean"} for name in OPTIONS} | {"whitespace_pattern": {"type": "string"}}
    return {"type": "object", "properties": {name: {"anyOf": [kind, NULL]} for name, kind in kinds.items()}}


def _completion(schema: Schema, book: Book) -> None:
    fields = schema["properties"]
    token = {"type": "integer", "minimum": 0, "maximum": last_id(book.settings)}
    tokens = {"type": "array", "items": token, "minItems": 1}
    texts = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    lists = {"type": "array", "items": tokens, "minItems": 1}
    fields["prompt"] = {"anyOf": [{"type": "string"}, texts, tokens, lists]}
    schema["required"] = ["prompt"]
    _constraints(fields)
    fields["suffix"]["description"] = "For models whose tokenizers have tokens for what stands between two texts."
    fields["max_tokens"]["description"] = f"null: {COMPLETION_MAX_TOKENS}; -1: no limit. 0 goes with echo."


def _tokenize(schema: Schema, book: Book) -> None:
    fields = schema["properties"]
    _conversation(fields, book)
    messages = fields["messages"]
    fields["messages"] = {"anyOf": [messages, NULL]}
    forms = {"prompt": ["string", "array"], "messages": ["array"], "content": ["string"], "text": ["string"]}
    schema["oneOf"] = [
        {"required": [name], "properties": {name: {"type": kind}} | {other: NULL for other in forms if other != name}}
        for name, kind in forms.items()
    ]
    fields["parse_special"] = {"enum": [True, None], "description": "Special tokens in texts always become ones."}


def _detokenize(schema: Schema, book: Book) -> None:
    token = {"type": "integer", "minimum": 0, "maximum": last_id(book.settings)}
    lists = {"type": "array", "items": {"type": "array", "items": token}, "maxItems": MOST_TEXTS}
    schema["properties"]["tokens"] = {"anyOf": [{"type": "array", "items": token}, lists]}


def _generate(schema: Schema, book: Book) -> None:
    token = {"type": "integer", "minimum": 0, "maximum": last_id(book.settings)}
    schema["properties"]["token_ids"] = {"type": "array", "items": token, "minItems": 1}


def _responses(schema: Schema, book: Book) -> None:
    items = {"type": "array", "items": {"type": "object"}, "minItems": 1}
    schema["properties"]["input"] = {"anyOf": [{"type": "string", "minLength": 1}, items]}
    schema["required"] = ["input"]


def _count(schema: Schema, book: Book) -> None:
    fields = schema["properties"]
    fields["messages"]["minItems"] = 1
    for name in REFUSED:
        fields[name] = NULL
    stop = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
    if "stop_sequences" in fields:
        fields["stop_sequences"] = {"anyOf": [{"type": "array", "items": stop, "maxItems": MAX_STOPS}, NULL]}


def _message(schema: Schema, book: Book) -> None:
    """Those who only call tools may say nothing, and tools, too; an assistant alone has thought."""
    mute = {"properties": {"role": {"enum": ["assistant", "function", "tool"]}}}
    spoken = {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}}
    schema["anyOf"] = [mute, spoken]
    thinking = {"type": "object", "properties": {"type": {"const": THINKING}}, "required": ["type"]}
    schema["if"] = {"properties": {"role": {"not": {"const": "assistant"}}}}
    schema["then"] = {"properties": {"content": {"items": {"not": thinking}}}}


def _part(schema: Schema, book: Book) -> None:
    own = ("refusal", THINKING)  # in fields of their names
    text: Schema = {"type": {"enum": [name for name in TEXT_PARTS if name not in own]}, "text": {"type": "string"}}
    refusal: Schema = {"type": {"const": "refusal"}, "refusal": {"type": "string"}}
    thinking: Schema = {"type": {"const": THINKING}, THINKING: {"type": ["string", "array"]}}
    schema["anyOf"] = [{"properties": one, "required": list(one)} for one in (text, refusal, thinking)]


def _tool_function(schema: Schema, book: Book) -> None:
    schema["properties"]["name"]["pattern"] = f"^{TOOL_NAME.pattern}$"


_SPECIAL: dict[type, Callable[[Schema, Book], None]] = {
    ChatRequest: _chat,
    ChatBatchRequest: _chats,
    CompletionRequest: _completion,
    TokenizeRequest: _tokenize,
    DetokenizeRequest: _detokenize,
    GenerateRequest: _generate,
    ResponsesRequest: _responses,
    CountRequest: _count,
    MessagesRequest: _count,
    ChatMessage: _message,
    ContentPart: _part,
    ToolFunction: _tool_function,
}
