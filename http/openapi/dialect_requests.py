"""What bodies of other servers' APIs must have beyond what their types say: which of several fields is needed, what a
part of a content holds, and the ranges of sampling's parameters, by the names that these have there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from actorserve.actors.protocol.sampling.fields import ranges_of

from ..cohere.schemas import CohereChatRequest, CoherePart, CohereTurn
from ..cohere.v1.requests import NOTHING as NOTHING_OF_V1
from ..cohere.v1.schemas import CohereChatV1Request
from ..generation.fields.unsupported import NO_PLACE
from ..llamacpp.requests import NAMES as LLAMA_NAMES
from ..llamacpp.schemas import HINTS, LlamaCompletionRequest, LlamaInfillRequest
from ..llamacpp.schemas import NOTHING as NOTHING_OF_LLAMA
from ..openai.decisions.questions import MAX_OPTIONS
from ..openai.decisions.schemas import (
    MAX_QUESTIONS,
    ChoiceQuestion,
    DecisionChoice,
    DecisionLevel,
    DecisionPart,
    DecisionsRequest,
    PredicateQuestion,
    ScoreQuestion,
    SystemOneQuestion,
    SystemOneRequest,
)
from ..openai.derendering import (
    DerenderChatRequest,
    DerenderCompletionRequest,
    EngineAnswer,
    EngineChoice,
    EngineChunk,
    EngineChunkChoice,
    StreamState,
)
from ..openai.schemas import ChatRequest, CompletionRequest, GenerateRequest, InvocationRequest
from ..openai.thinking import THINKING_SWITCHES
from ..output.parsers.registry import REASONING_PARSERS
from ..sglang.schemas import (
    MEDIA,
    REFUSED,
    SeparateReasoningRequest,
    SglangEncodeRequest,
    SglangGenerateRequest,
    SglangSampling,
)
from .requests import NULL, Book, Schema, bounds, last_id

NOTHING: Schema = {"enum": [None, False, [], {}, 0], "description": "Not supported yet: any other value is refused."}
COHERE_PARTS = {"text": ["string"], "image_url": ["object", "string"], "document": ["object"]}
COHERE_NAMES = {"k": "top_k", "p": "top_p"}
DECISION_PARTS = {
    "input_text": ("text", "string"),
    "input_json": ("data", "object"),
    "input_image": ("image_url", "string"),
}
SAID: Schema = {"type": "string", "pattern": r"\S"}


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
    fields |= {name: NULL | {"description": "Answers have no place for it."} for name in NO_PLACE}


def _cohere_chat_v1(book: Book) -> None:
    """Something is said, or tools have found something; of what nothing heeds only the values that ask for nothing."""
    schema = book.of(CohereChatV1Request)
    _cohere_sampling(schema["properties"])
    schema["properties"] |= {name: {"enum": list(idle)} for name, (idle, _) in NOTHING_OF_V1.items()}
    said, found = {"type": "string", "minLength": 1}, {"type": "array", "minItems": 1}
    either = {"message": said, "tool_results": found}
    schema["anyOf"] = [{"required": [name], "properties": {name: kind}} for name, kind in either.items()]


def _cohere_chat(book: Book) -> None:
    """A tool's turn says of which call it is, a user's and a system's something, and a part has what it is of."""
    fields = book.of(CohereChatRequest)["properties"]
    fields["messages"]["minItems"] = 1
    _cohere_sampling(fields)
    turn, part = book.of(CohereTurn), book.of(CoherePart)
    turn["if"] = {"properties": {"role": {"const": "tool"}}}
    turn["then"] = {"required": ["tool_call_id"], "properties": {"tool_call_id": {"type": "string"}}}
    mute = {"properties": {"role": {"enum": ["assistant", "tool"]}}}
    content = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1}]}
    turn["anyOf"] = [mute, {"required": ["content"], "properties": {"content": content}}]
    kinds = {name: {"type": types} for name, types in COHERE_PARTS.items()}
    part["anyOf"] = [
        {"properties": {"type": {"const": name}, name: kind}, "required": [name]} for name, kind in kinds.items()
    ]
    part["anyOf"].append({"properties": {"type": {"const": "thinking"}}})


def _llama_completion(book: Book) -> None:
    _llama_fields(book.of(LlamaCompletionRequest)["properties"], NOTHING_OF_LLAMA | HINTS)


def _llama_infill(book: Book) -> None:
    schema = book.of(LlamaInfillRequest)
    schema["description"] = "For models whose tokenizers have tokens for what stands between two texts."
    _llama_fields(schema["properties"], NOTHING_OF_LLAMA)


def _llama_fields(fields: Schema, refused: Mapping[str, tuple[object, ...]]) -> None:
    """Numbers as they are checked, but that a seed or n_predict may be anything, and typical_p 0 is as 1."""
    _sampling(fields, {own: ours for ours, own in LLAMA_NAMES.items()} | {"seed": "", "n_predict": ""})
    fields["typical_p"] = {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, NULL]}
    fields |= {name: {"enum": [None, *values]} for name, values in refused.items()}


def _separate_reasoning(book: Book) -> None:
    """A parser is named where the model's is not known."""
    schema, known = book.of(SeparateReasoningRequest), book.settings.reasoning_parser is not None
    schema["properties"]["reasoning_parser"] = {
        "enum": [*sorted(REASONING_PARSERS), *([None] if known else [])],
        "description": "Also by their other names, as for --reasoning-parser.",
    }
    if not known:
        schema["required"] = [*schema["required"], "reasoning_parser"]


def _invocation(book: Book) -> None:
    """It is the body of another path, where models generate, or opens or closes a session and has nothing else."""
    kinds = (ChatRequest, CompletionRequest, GenerateRequest)
    if not all(kind in book.refs for kind in kinds):
        return
    schema = book.of(InvocationRequest)
    session, none = schema["properties"]["requestType"]["anyOf"]
    schema["anyOf"] = [{**book.ref(kind), "properties": {"requestType": none}} for kind in kinds]
    one = {"properties": {"requestType": session}, "required": ["requestType"], "additionalProperties": False}
    schema["anyOf"].append(one)


# --- decisions -------------------------------------------------------------------------------------------------------


def _decisions(book: Book) -> None:
    fields = book.of(DecisionsRequest)["properties"]
    fields["questions"] |= {"minItems": 1, "maxItems": MAX_QUESTIONS}
    fields["input"] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]}
    _without_thinking(fields)
    part = book.of(DecisionPart)
    part["anyOf"] = [
        {"properties": {"type": {"const": name}, field: {"type": kind}}, "required": [field]}
        for name, (field, kind) in DECISION_PARTS.items()
    ]
    for kind in (PredicateQuestion, ChoiceQuestion, ScoreQuestion):
        for branch in book.of(kind)["properties"]["instructions"]["anyOf"]:
            branch.update({"minLength": 1} if branch["type"] == "string" else {"minItems": 1})
    options = {"minItems": 2, "maxItems": MAX_OPTIONS, "uniqueItems": True}
    book.of(ChoiceQuestion)["properties"]["choices"] |= options
    book.of(ScoreQuestion)["properties"]["levels"] |= options
    book.of(DecisionChoice)["properties"]["value"] = {"anyOf": [SAID, {"type": "boolean"}]}
    book.of(DecisionLevel)["properties"]["label"] = SAID


def _without_thinking(fields: Schema) -> None:
    """An answer is the model's first token."""
    off = {"type": "object", "properties": {name: {"enum": [False, None]} for name in THINKING_SWITCHES}}
    fields["chat_template_kwargs"] = {"anyOf": [off, NULL]}


def _system_one(book: Book) -> None:
    """`criteria` are as the type has them."""
    fields = book.of(SystemOneRequest)["properties"]
    fields["questions"] |= {"propertyNames": {"minLength": 1}, "minProperties": 1, "maxProperties": MAX_QUESTIONS}
    fields |= {"joint": {"enum": [None, False]}, "decision_template": NULL}
    _without_thinking(fields)
    options = {"type": "object", "propertyNames": SAID, "minProperties": 1, "maxProperties": MAX_OPTIONS}
    levels = {"type": "array", "items": SAID, "minItems": 2, "maxItems": MAX_OPTIONS, "uniqueItems": True}
    meanings = {"type": ["object", "null"], "properties": {"true": {}, "false": {}}, "additionalProperties": False}
    question = book.of(SystemOneQuestion)
    question["oneOf"] = [
        {"properties": {"type": {"const": name}, "criteria": criteria}, "required": needed}
        for name, criteria, needed in (
            ("choice", options, ["criteria"]),
            ("score", levels, ["criteria"]),
            ("noul", meanings, []),
        )
    ]


# --- derendering -----------------------------------------------------------------------------------------------------


def _derender_chat(book: Book) -> None:
    _derender(book, book.of(DerenderChatRequest), "generate_response", "object")


def _derender_completion(book: Book) -> None:
    _derender(book, book.of(DerenderCompletionRequest), "generate_responses", "array")


def _derender(book: Book, schema: Schema, whole: str, kind: str) -> None:
    """A chunk where `stream` is true, else a whole answer, of tokens that a model knows."""
    schema["oneOf"] = [
        {
            "properties": {"stream": {"const": True}, "generate_chunk": {"type": "object"}, whole: NULL},
            "required": ["stream", "generate_chunk"],
        },
        {
            "properties": {"stream": {"enum": [False, None]}, "generate_chunk": NULL, whole: {"type": kind}},
            "required": [whole],
        },
    ]
    book.of(EngineChoice)["properties"]["token_ids"]["minItems"] = 1
    holders = [book.of(kind) for kind in (EngineAnswer, EngineChunk, EngineChoice, EngineChunkChoice, StreamState)]
    for holder in (schema, *holders):
        for name in ("token_ids", "prompt_token_ids", "prompt"):
            field = holder["properties"].get(name, {})
            for branch in field.get("anyOf", (field,)):
                if branch.get("items") == {"type": "integer"}:
                    branch["items"] = {"type": "integer", "minimum": 0, "maximum": last_id(book.settings)}


_DIALECTS: dict[type, Callable[[Book], None]] = {
    SglangGenerateRequest: _sglang_generate,
    SglangEncodeRequest: _sglang_encode,
    CohereChatRequest: _cohere_chat,
    CohereChatV1Request: _cohere_chat_v1,
    LlamaCompletionRequest: _llama_completion,
    LlamaInfillRequest: _llama_infill,
    SeparateReasoningRequest: _separate_reasoning,
    InvocationRequest: _invocation,
    DecisionsRequest: _decisions,
    SystemOneRequest: _system_one,
    DerenderChatRequest: _derender_chat,
    DerenderCompletionRequest: _derender_completion,
}
