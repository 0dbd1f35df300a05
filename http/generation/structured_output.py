"""What the answer has to look like: response_format, structured_outputs and forced tool calls, for the renderer.

Its JSON is a Constraint of actors/grammar/compiler.py. Whether a grammar can be made of it is found out there; if not,
the reason comes back as a 400.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

import msgspec

from ..errors import bad_request
from ..openai.schemas import ChatRequest, GenerationFields, NamedTool, Object
from ..output.parsers.call_grammars import amid_text, only_calls
from ..output.parsers.markup import TO_ALL, arguments_schema
from ..output.parsers.registry import ANSWER_TAGS, HARMONY_TOOLS
from ..output.parsers.tags import tag
from .prompts import tools_of

FORMATS = ("text", "json_object", "json_schema", "structural_tag")
OUTPUTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")  # beside one of these
JSON = {"json_schema", "json_object"}  # of which these are the looks
OTHER_NAMES = {  # fields by which older clients, and those of other servers, say what `structured_outputs` says
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
}


class AskedConstraint(NamedTuple):
    """A constraint and the field that it is in."""

    constraint: bytes | None
    field: str


def constraint_of(
    request: GenerationFields,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    defaults: Set[str] = frozenset(),
) -> AskedConstraint:
    """What the request asks for; of its fields one may ask, or several for the same (guidance names a grammar as older
    and as newer releases of vLLM do, in one request). `tool_parser`: of calls that are not forced;
    `reasoning_parser`: of thinking, and of what stands around a chat's answer; `defaults`: of OPTIONS, those that JSON
    has anyway.

    A call that is forced is the answer, whatever format answers have; one that is not may stand in its place.
    """
    forced = _forced_call(request, tool_parser) if isinstance(request, ChatRequest) else None
    by_format = _response_format(request.response_format)
    found = [
        (field, constraint)
        for field, constraint in (
            ("response_format", by_format if forced is None else None),
            ("structured_outputs", _structured_outputs(request.structured_outputs)),
            ("tool_choice", forced),
            *((field, _by_other_name(request, field)) for field in OTHER_NAMES),
        )
        if constraint is not None
    ]
    for other, wanted in found[1:]:
        if wanted != found[0][1]:
            raise bad_request(f"Only one of {found[0][0]} and {other} can be given.", other)
    field, constraint = found[0] if found else ("tools", None)
    if constraint is not None and field != "tool_choice" and not JSON.isdisjoint(constraint):
        constraint = _options(dict.fromkeys(defaults - _said(request, field), True)) | constraint
    if field in ("response_format", "tools") and isinstance(request, ChatRequest):
        constraint = _beside_calls(request, constraint, tool_parser)
    if constraint is None:
        return AskedConstraint(None, "response_format")
    if isinstance(request, ChatRequest) and reasoning_parser in ANSWER_TAGS:
        constraint = constraint | {"around": ANSWER_TAGS[reasoning_parser][:2]}
    return AskedConstraint(msgspec.json.encode(constraint), field)


def _by_other_name(request: GenerationFields, field: str) -> Object | None:
    value = getattr(request, field)
    if value in (None, ""):
        return None
    blanks = request.guided_whitespace_pattern if field == "guided_json" else None
    return {OTHER_NAMES[field]: value, **({} if blanks is None else {"blanks": blanks})}


def _response_format(given: Object | None) -> Object | None:
    if given is None:
        return None
    kind = given.get("type")
    match kind:
        case "text":
            return None
        case "json_object":
            return _json_object(given)
        case "json_schema":
            return _json_schema(given)
        case "structural_tag":
            return {"structural_tag": given}
    text = f"response_format.type must be one of {', '.join(FORMATS)}, not {kind!r:.64}."
    raise bad_request(text, "response_format.type")


def _json_object(given: Object) -> Object:
    """Some servers take a schema beside this type, and their clients rely on it."""
    return {"json_object": True} if given.get("schema") in (None, {}) else _by_schema(given, "response_format")


def _json_schema(given: Object) -> Object:
    """The schema may stand beside the type, too, as some servers have it."""
    path = "response_format.json_schema"
    body = given.get("json_schema")
    if body is None and given.get("schema") is not None:
        return _by_schema(given, "response_format")
    if not isinstance(body, dict):
        raise bad_request(f"{path} must be an object with a name and a schema.", path)
    return _by_schema(body, path)


def _by_schema(body: Object, path: str) -> Object:
    schema = body.get("schema", body.get("json_schema"))
    if schema is None:
        raise bad_request(f"{path}.schema is missing.", f"{path}.schema")
    if not isinstance(schema, (dict, bool)):
        raise bad_request(f"{path}.schema must be a JSON schema.", f"{path}.schema")
    return {"json_schema": schema, "strict": bool(body.get("strict"))}


def _structured_outputs(given: Object | None) -> Object | None:
    if given is None:
        return None
    known = (*OUTPUTS, *OPTIONS)
    for name, value in given.items():
        if name not in known and value not in (None, False):  # the answer would be free, and look as if it were held
            path = f"structured_outputs.{name:.64}"
            raise bad_request(f"structured_outputs: there is no {name!r:.64} among {', '.join(known)}.", path)
    wanted = {name: given[name] for name in OUTPUTS if given.get(name) not in (None, False)}
    if len(wanted) > 1 or all(given.get(name) is None for name in OUTPUTS):
        raise bad_request(f"structured_outputs takes one of {', '.join(OUTPUTS)}.", "structured_outputs")
    if not wanted:
        return None
    ((name, value),) = wanted.items()
    if not isinstance(value, _KINDS[name]):
        path = f"structured_outputs.{name}"
        raise bad_request(f"{path} must be {_NAMES[name]}.", path)
    if name == "choice" and not all(isinstance(one, str) for one in value):
        raise bad_request("structured_outputs.choice must be a list of strings.", "structured_outputs.choice")
    return {"json_schema" if name == "json" else name: value, **_options(given)}


def _said(request: GenerationFields, field: str) -> Set[str]:
    """The options that the request names, be it to say no."""
    given = request.structured_outputs if field == "structured_outputs" else None
    return {name for name, value in (given or {}).items() if value is not None}


def _options(given: Object) -> Object:
    """What JSON of an answer looks like, beside its schema."""
    options: Object = {"closed": True} if given.get("disable_additional_properties") else {}
    pattern = "" if given.get("disable_any_whitespace") else given.get("whitespace_pattern")
    if pattern is None:
        return options
    if not isinstance(pattern, str):
        path = "structured_outputs.whitespace_pattern"
        raise bad_request(f"{path} must be a string.", path)
    return options | {"blanks": pattern}


_KINDS: dict[str, Any] = {
    "json": (dict, str),
    "regex": str,
    "choice": list,
    "grammar": str,
    "json_object": bool,
    "structural_tag": (dict, str),
}
_NAMES = {
    "json": "a JSON schema or its text",
    "regex": "a string",
    "choice": "a list of strings",
    "grammar": "a string",
    "json_object": "a boolean",
    "structural_tag": "an object or its text",
}


def _forced_call(request: ChatRequest, tool_parser: str | None) -> Object | None:
    """tool_choice `required`, or a function by its name."""
    choice = request.tool_choice
    if choice in (None, "none", "auto"):
        return None
    tools = tools_of(request)
    if not tools:
        raise bad_request("tool_choice needs tools to choose from.", "tool_choice")
    named = choice.function.name if isinstance(choice, NamedTool) else None
    functions = [tool.function for tool in tools if named in (None, tool.function.name)]
    if not functions:
        raise bad_request(f"tool_choice: there is no tool {named!r}.", "tool_choice")
    return {
        "tools": [{"name": function.name, "parameters": function.parameters} for function in functions],
        "strict": any(bool(function.strict) for function in functions),
        "parallel": request.parallel_tool_calls is not False,
        **({"channels": True} if tool_parser == HARMONY_TOOLS else {} if named is None else {"named": named}),
    }


def _beside_calls(request: ChatRequest, constraint: Object | None, tool_parser: str | None) -> Object | None:
    """Calls that the model may make by itself: strict ones in free text, or any in the place of what is wished."""
    if tool_parser is None or request.tool_choice not in (None, "auto"):
        return constraint
    functions = [tool.function for tool in tools_of(request)]
    parallel = request.parallel_tool_calls is not False
    if constraint is None:
        strict = any(function.strict for function in functions)
        tags = amid_text(tool_parser, functions, parallel) if strict else None
    elif functions and "structural_tag" not in constraint and tool_parser == HARMONY_TOOLS:
        instead = [{"name": function.name, "parameters": arguments_schema(function)} for function in functions]
        return constraint | {"instead": instead}
    elif functions and "structural_tag" not in constraint:
        schema = {"type": "object"} if constraint.get("json_object") else constraint["json_schema"]
        answer = {"type": "json_schema", "json_schema": schema, "strict": constraint.get("strict", True)}
        calls = only_calls(tool_parser, functions, parallel)
        said = [answer, *([tag(TO_ALL[tool_parser], [answer], "")] if tool_parser in TO_ALL else [])]
        tags = None if calls is None else {"type": "or", "elements": [*said, calls]}
    else:
        tags = None
    return constraint if tags is None else {"structural_tag": {"type": "structural_tag", "format": tags}}
