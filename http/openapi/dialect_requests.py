"""What bodies of SGLang's and Cohere's APIs must have beyond what their types say: which of several fields is needed,
what a part of a content holds, and the ranges of sampling's parameters, by the names that these have there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from actorserve.actors.protocol.sampling.fields import ranges_of

from ..cohere.schemas import CohereChatRequest, CoherePart, CohereTurn
from ..cohere.v1.requests import NOTHING as NOTHING_OF_V1
from ..cohere.v1.schemas import CohereChatV1Request
from ..generation.fields.unsupported import NO_PLACE
from ..openai.schemas import CompletionRequest
from ..sglang.schemas import MEDIA, REFUSED, SglangEncodeRequest, SglangGenerateRequest, SglangSampling
from .requests import NULL, Book, Schema, bounds, last_id

NOTHING: Schema = {"enum": [None, False, [], {}, 0], "description": "Not supported yet: any other value is refused."}
COHERE_PARTS = {"text": ["string"], "image_url": ["object", "string"], "document": ["object"]}
COHERE_NAMES = {"k": "top_k", "p": "top_p"}


def narrow_dialects(book: Book) -> None:
    """Of those that are in the document."""
    for kind, narrow in _DIALECTS.items():
        if kind in book.refs:
            narrow(book)


def _sampling(fields: Schema, names: Mapping[str, str]) -> None:
    """The ranges that are checked, once a parameter has our name."""
    ranges = ranges_of(CompletionRequest)
    for name, schema in fields.items():
        if (limit := ranges.get(names.get(name, name))) is not None:
            for branch in schema.get("anyOf", (schema,)):
                if branch.get("type") in ("integer", "number"):
                    branch.update(bounds(limit))


def _prompts(schema: Schema, book: Book) -> None:
    """Of text and input_ids one; of a batch not none."""
    fields, token = schema["properties"], {"type": "integer", "minimum": 0, "maximum": last_id(book.settings)}
    tokens = {"type": "array", "items": token, "minItems": 1}
    texts = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    lists = {"type": "array", "items": tokens, "minItems": 1}
    fields["text"] = {"anyOf": [{"type": "string"}, texts, NULL]}
    fields["input_ids"] = {"anyOf": [tokens, lists, NULL]}
    schema["oneOf"] = [
        {"required": [name], "properties": {name: {"type": kinds}, other: NULL}}
        for name, kinds, other in (("text", ["string", "array"], "input_ids"), ("input_ids", ["array"], "text"))
    ]


def _sglang_generate(book: Book) -> None:
    schema = book.of(SglangGenerateRequest)
    _prompts(schema, book)
    schema["properties"] |= dict.fromkeys(sorted(REFUSED), NOTHING)
    _sampling(book.of(SglangSampling)["properties"], {})


def _sglang_encode(book: Book) -> None:
    schema = book.of(SglangEncodeRequest)
    _prompts(schema, book)
    schema["properties"] |= dict.fromkeys(sorted(MEDIA), NOTHING)


def _cohere_sampling(fields: Schema) -> None:
    _sampling(fields, COHERE_NAMES)
    fields |= dict.fromkeys(NO_PLACE, NOTHING)


def _cohere_chat_v1(book: Book) -> None:
    """Something is said, or tools have found something; of what nothing heeds only the values that ask for nothing."""
    schema = book.of(CohereChatV1Request)
    _cohere_sampling(schema["properties"])
    schema["properties"] |= {name: {"enum": list(idle)} for name, (idle, _) in NOTHING_OF_V1.items()}
    said, found = {"type": "string", "minLength": 1}, {"type": "array", "minItems": 1}
    either = {"message": said, "tool_results": found}
    schema["anyOf"] = [{"required": [name], "properties": {name: kind}} for name, kind in either.items()]


def _cohere_chat(book: Book) -> None:
    """A tool's turn says of which call it is, and a part has what it is of."""
    fields = book.of(CohereChatRequest)["properties"]
    fields["messages"]["minItems"] = 1
    _cohere_sampling(fields)
    turn, part = book.of(CohereTurn), book.of(CoherePart)
    turn["if"] = {"properties": {"role": {"const": "tool"}}}
    turn["then"] = {"required": ["tool_call_id"], "properties": {"tool_call_id": {"type": "string"}}}
    kinds = {name: {"type": types} for name, types in COHERE_PARTS.items()}
    part["anyOf"] = [
        {"properties": {"type": {"const": name}, name: kind}, "required": [name]} for name, kind in kinds.items()
    ]
    part["anyOf"].append({"properties": {"type": {"const": "thinking"}}})


_DIALECTS: dict[type, Callable[[Book], None]] = {
    SglangGenerateRequest: _sglang_generate,
    SglangEncodeRequest: _sglang_encode,
    CohereChatRequest: _cohere_chat,
    CohereChatV1Request: _cohere_chat_v1,
}
