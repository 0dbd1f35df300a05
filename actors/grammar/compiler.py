"""What an answer has to look like, as one grammar for llguidance: for the renderer.

Every constraint comes to a grammar's text that compiles with the model's tokenizer and allows a first token, or to a
GrammarError that says why not. The text goes through shared memory (`pack`) to the worker, whose matchers
(`matchers.py`) compile it again.

Leaf module: knows no requests and no tables.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from .harmony import FINAL, last_message
from .json_schema import GrammarError, adapt_schema
from .lark_writer import GrammarDraft
from .structural_tags import structural_tag
from .trial import try_out
from .vocabulary import SpecialTokens, make_lltokenizer, make_special_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = [
    "CallableTool",
    "Constraint",
    "GrammarError",
    "Grammars",
    "make_grammar",
    "make_lltokenizer",
    "pack",
    "unpack",
]

MAX_CONSTRAINT = 128 * 1024  # bytes of JSON
MAX_GRAMMAR = 512 * 1024  # bytes of a grammar's text
MAX_PACKED = 40 * 1024  # bytes of it in shared memory
CACHED = 64  # constraints
ANYTHING: dict[str, Any] = {"type": "object"}


class CallableTool(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    parameters: dict[str, Any] | bool | None = None  # JSON schema; None: there are none


class Constraint(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Exactly one of the first seven is set."""

    json_object: bool = False
    json_schema: dict[str, Any] | bool | str | None = None  # a string holds the schema's JSON
    regex: str | None = None  # of the whole answer
    choice: list[str] | None = None
    grammar: str | None = None  # Lark, or GBNF
    structural_tag: dict[str, Any] | str | None = None  # either form; a string holds its JSON
    tools: list[CallableTool] | None = None  # these must be called: [{"name": …, "parameters": {…}}, …]
    blanks: str | None = None  # json_object, json_schema: a regular expression of those in it; empty for none
    closed: bool = False  # json_schema: see json_schema.adapt_schema
    strict: bool = True  # json_schema, tools: refuse keywords that cannot be enforced; else they are left out
    parallel: bool = True  # tools: more than one call is allowed
    named: str | None = None  # tools: the answer is this one's arguments, nothing around them
    channels: bool = False  # tools: they are called as gpt-oss does it (harmony.py), and so the model may think before
    instead: list[CallableTool] = []  # of gpt-oss: any of these may be called, in the place of what is wished
    after: str | None = None  # the mark that ends reasoning: anything goes before, the rest holds behind it
    before: str | None = None  # the mark that begins it: without this, there need be no reasoning
    around: list[str] = []  # two marks that may stand around what is wished: the model was made to write them


KINDS = ("json_object", "json_schema", "regex", "choice", "grammar", "structural_tag", "tools")


def make_grammar(constraint: Constraint, words: SpecialTokens | None = None) -> str:
    """The grammar's text. `words`: the special tokens of the tokenizer that it is for."""
    wanted = [
        kind for kind in KINDS if getattr(constraint, kind) not in (None, False) or _is_false_schema(kind, constraint)
    ]
    if len(wanted) != 1:
        raise GrammarError(f"exactly one of {', '.join(KINDS)} must be given, not {', '.join(wanted) or 'none'}")
    draft = GrammarDraft(words or SpecialTokens())
    start = _body(wanted[0], constraint, draft)
    if constraint.around and not constraint.channels:
        start = draft.within(start, *constraint.around)
    body = draft.rule(start) if constraint.after and " " in start else start
    if constraint.after == FINAL and not constraint.channels:
        start = last_message(draft, body, {tool.name: draft.json(_arguments(tool, "#")) for tool in constraint.instead})
    elif constraint.after and not constraint.channels:
        thinking = draft.thinking(constraint.after)
        if constraint.before:
            thinking = f"({draft.opening(constraint.before)} {thinking})?"
        start = f"{thinking} {body}"
    grammar = draft.finish(start)
    if len(grammar.encode()) > MAX_GRAMMAR:
        raise GrammarError(f"the grammar has more than {MAX_GRAMMAR} bytes")
    return grammar


def pack(grammar: str) -> bytes:
    """For shared memory; GrammarError if it is too large."""
    packed = zlib.compress(grammar.encode())
    if len(packed) > MAX_PACKED:
        raise GrammarError(f"the grammar has {len(packed)} bytes when packed; {MAX_PACKED} are allowed")
    return packed


def unpack(packed: bytes) -> str:
    """The text that was packed."""
    return zlib.decompress(packed, bufsize=MAX_GRAMMAR).decode()


class Grammars:
    """A renderer's: from the bytes of constraints to packed grammars, with the answers that it gave last."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_tokens: list[int]) -> None:
        """GrammarError if the tokenizer is of a kind that llguidance does not know."""
        self.lltokenizer = make_lltokenizer(tokenizer, vocab_size, end_tokens)
        self.words = make_special_tokens(tokenizer, self.lltokenizer)
        self.remarks: list[str] = []  # keywords that are not enforced of schemas that came since they were taken
        self._cache: OrderedDict[bytes, bytes | str] = OrderedDict()  # constraint → packed grammar, or an error's text

    def make(self, constraint: bytes) -> bytes:
        """The packed grammar for the JSON of a Constraint. GrammarError has the reason for the client."""
        found = self._cache.get(constraint)
        if found is None:
            found = self._made(constraint)
            self._cache[constraint] = found
            if len(self._cache) > CACHED:
                self._cache.popitem(last=False)
        self._cache.move_to_end(constraint)
        if isinstance(found, str):
            raise GrammarError(found)
        return found

    def _made(self, constraint: bytes) -> bytes | str:
        if len(constraint) > MAX_CONSTRAINT:
            return f"a grammar's description has {len(constraint)} bytes; {MAX_CONSTRAINT} are allowed"
        try:
            wanted = msgspec.json.decode(constraint, type=Constraint)
            grammar = make_grammar(wanted, self.words)
            packed = pack(grammar)
            body = make_grammar(msgspec.structs.replace(wanted, after=None, before=None), self.words)
            self.remarks += try_out(grammar, body, self.lltokenizer)
        except GrammarError as error:
            return str(error)
        except (msgspec.DecodeError, RecursionError) as error:
            return f"the description of a grammar cannot be read: {error}"
        return packed


def _is_false_schema(kind: str, constraint: Constraint) -> bool:
    return kind == "json_schema" and constraint.json_schema is False


def _body(kind: str, constraint: Constraint, draft: GrammarDraft) -> str:
    """The expression for what is wished, without what goes before it."""
    match kind:
        case "json_object":
            return draft.json(ANYTHING, blanks=constraint.blanks)
        case "json_schema":
            return draft.json(_loaded(constraint.json_schema), constraint.strict, constraint.blanks, constraint.closed)
        case "regex":
            return draft.regex(constraint.regex or "")
        case "choice":
            if not constraint.choice:
                raise GrammarError("choice: an empty list allows nothing")
            return draft.choice(constraint.choice)
        case "grammar":
            return draft.lark(constraint.grammar or "")
        case "structural_tag":
            return structural_tag(constraint.structural_tag, draft)
    if constraint.channels:
        calls = {tool.name: draft.json(_arguments(tool, "#"), constraint.strict) for tool in constraint.tools or ()}
        return last_message(draft, None, calls)
    return draft.json(_calls(constraint), constraint.strict)


def _loaded(schema: Any) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from None


def _calls(constraint: Constraint) -> dict[str, Any]:
    """The schema of what calls tools: one's arguments, or an array of calls."""
    tools = {tool.name: tool for tool in constraint.tools or ()}
    if constraint.named is not None:
        if constraint.named not in tools:
            raise GrammarError(f"there is no tool named {constraint.named!r}")
        return dict(_arguments(tools[constraint.named], "#"))
    if not tools:
        raise GrammarError("tools: an empty list allows nothing")
    calls, definitions = [], {}
    for at, (name, tool) in enumerate(tools.items()):
        definitions[f"tool{at}"] = _arguments(tool, f"#/$defs/tool{at}")
        properties = {"name": {"const": name}, "parameters": {"$ref": f"#/$defs/tool{at}"}}
        required = ["name", "parameters"]
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    several = {} if constraint.parallel else {"maxItems": 1}
    return {"type": "array", "items": {"anyOf": calls}, "minItems": 1, **several, "$defs": definitions}


def _arguments(tool: CallableTool, place: str) -> dict[str, Any]:
    """The schema of a tool's arguments, which are always an object."""
    if tool.parameters is None:
        return ANYTHING | {"additionalProperties": False}
    schema = adapt_schema(tool.parameters, place)
    return ANYTHING | schema if isinstance(schema, dict) else ANYTHING
