"""Structural tags: text in which some marks (`<function=`) begin parts that follow a grammar.

Two forms are read: {"structures": [{begin, schema, end}], "triggers"} and {"type": "structural_tag", "format"}, whose
kinds are the structs below. What llguidance cannot do is refused by name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .json_schema import GrammarError, adapt_schema
from .lark_writer import GrammarDraft

MAX_NESTING = 32
EMPTY = "structural_tag: an empty list of elements, tags or ends allows nothing"


class _Kind(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """One `type` of a format."""


class ConstString(_Kind, frozen=True, tag="const_string"):
    value: str


class JsonSchema(_Kind, frozen=True, tag="json_schema"):
    json_schema: dict[str, Any] | bool
    style: str = "json"
    strict: bool = True  # refuse keywords that cannot be enforced; else they are left out
    root: dict[str, Any] | None = None  # the schema that it is taken from: what its references point into


class CallObject(_Kind, frozen=True, tag="call_object"):
    """{"name": …, key: arguments}: as JSON, where a literal would be mistaken for other JSON beside it."""

    name: str
    key: str
    json_schema: dict[str, Any] | bool


class Regex(_Kind, frozen=True, tag="regex"):
    pattern: str


class UserGrammar(_Kind, frozen=True, tag="grammar"):
    grammar: str


class AnyText(_Kind, frozen=True, tag="any_text"):
    pass


class AnyTokens(_Kind, frozen=True, tag="any_tokens"):
    """The same with special tokens in it: how some models write the arguments of calls."""


class SequenceTag(_Kind, frozen=True, tag="sequence"):
    elements: list[Format]


class Or(_Kind, frozen=True, tag="or"):
    elements: list[Format]


class Tag(_Kind, frozen=True, tag="tag"):
    begin: str
    content: Format
    end: str | list[str]


class TriggeredTags(_Kind, frozen=True, tag="triggered_tags"):
    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False


class TagsWithSeparator(_Kind, frozen=True, tag="tags_with_separator"):
    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    ConstString
    | JsonSchema
    | CallObject
    | Regex
    | UserGrammar
    | AnyText
    | AnyTokens
    | SequenceTag
    | Or
    | Tag
    | TriggeredTags
    | TagsWithSeparator
)


class StructuralTag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Format
    type: str = "structural_tag"


class Structure(msgspec.Struct, frozen=True):
    begin: str
    end: str
    schema: dict[str, Any] | bool | str | None = None


class LegacyTag(msgspec.Struct, frozen=True):
    structures: list[Structure]
    triggers: list[str]


class Literal(msgspec.Struct, frozen=True):
    """An item of a sequence: exactly this text."""

    text: str


class Rule(msgspec.Struct, frozen=True):
    """An item of a sequence: what an expression of the grammar matches."""

    expression: str
    is_open: bool = False  # it may end in free text, so that nothing can follow


class FreeText(msgspec.Struct, frozen=True):
    """An item of a sequence: anything, up to the literal that follows."""

    with_special: bool = False  # tokens


Item = Literal | Rule | FreeText


def structural_tag(constraint: Any, draft: GrammarDraft) -> str:
    """The expression for either form of a structural tag."""
    try:
        if isinstance(constraint, str):
            constraint = msgspec.json.decode(constraint)
        legacy = isinstance(constraint, dict) and "structures" in constraint
        if legacy:
            wanted: Format = _from_legacy(msgspec.convert(constraint, LegacyTag))
        else:
            wanted = msgspec.convert(constraint, StructuralTag).format
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(f"structural_tag: {error}") from None
    marks = msgspec.json.encode(constraint).decode()
    draft.free = draft.words.shown - {token for text, token in draft.words.specials.items() if text in marks}
    return _joined(_Maker(draft).items(wanted, 0), draft).expression


def _from_legacy(constraint: LegacyTag) -> TriggeredTags:
    tags = []
    for one in constraint.structures:
        schema = msgspec.json.decode(one.schema) if isinstance(one.schema, str) else one.schema
        tags.append(Tag(one.begin, JsonSchema({} if schema is None else schema), one.end))
    return TriggeredTags(constraint.triggers, tags)


class _Maker:
    """From formats to items of a sequence."""

    def __init__(self, draft: GrammarDraft) -> None:
        self.draft = draft

    def items(self, wanted: Format, depth: int) -> list[Item]:
        if depth > MAX_NESTING:
            raise GrammarError(f"structural_tag: formats are nested more than {MAX_NESTING} deep")
        match wanted:
            case ConstString():
                return [Literal(wanted.value)]
            case AnyText() | AnyTokens():
                return [FreeText(isinstance(wanted, AnyTokens))]
            case SequenceTag():
                return [item for element in wanted.elements for item in self.items(element, depth + 1)]
            case Or():
                return [self._one_of([self.items(element, depth + 1) for element in wanted.elements])]
            case Tag():
                return self._tag(wanted, depth)
            case TriggeredTags():
                return self._triggered(wanted, depth)
            case TagsWithSeparator():
                return self._separated(wanted, depth)
        return [Rule(self._leaf(wanted))]

    def _leaf(self, wanted: JsonSchema | CallObject | Regex | UserGrammar) -> str:
        if isinstance(wanted, CallObject):
            arguments = adapt_schema(wanted.json_schema, f"#/properties/{wanted.key}")
            named = {"name": {"const": wanted.name}, wanted.key: arguments}
            return self.draft.json({"type": "object", "properties": named, "required": list(named)})
        if isinstance(wanted, Regex):
            return self.draft.regex(wanted.pattern)
        if isinstance(wanted, UserGrammar):
            return self.draft.lark(wanted.grammar)
        if wanted.style != "json":
            raise GrammarError(f"structural_tag: json_schema with style {wanted.style!r} is not supported")
        schema = wanted.json_schema
        if wanted.root is not None and isinstance(schema, dict):
            place = "#/$defs/root"
            schema = adapt_schema(schema, place) | {"$defs": {"root": adapt_schema(wanted.root, place)}}
        return self.draft.json(schema, wanted.strict)

    def _tag(self, tag: Tag, depth: int, begin: str | None = None) -> list[Item]:
        """`begin`: what is left of it behind a trigger."""
        ends = tag.end if isinstance(tag.end, list) else [tag.end]
        start = Literal(tag.begin if begin is None else begin)
        content = self.items(tag.content, depth + 1)
        if len(ends) == 1:
            return [start, *content, Literal(ends[0])]
        return [start, self._one_of([[*content, Literal(end)] for end in ends])]

    def _one_of(self, alternatives: list[list[Item]]) -> Rule:
        if not alternatives:
            raise GrammarError(EMPTY)
        rules = [_joined(items, self.draft) for items in alternatives]
        expression = " | ".join(rule.expression or '""' for rule in rules)
        return Rule(self.draft.rule(expression), any(rule.is_open for rule in rules))

    def _triggered(self, wanted: TriggeredTags, depth: int) -> list[Item]:
        """Tags amid free text. Where at least one is demanded, the first stands at the start, as in xgrammar."""
        if not wanted.tags:
            raise GrammarError(EMPTY)
        start = [self._one_of([self._tag(tag, depth) for tag in wanted.tags])] if wanted.at_least_one else []
        if start and wanted.stop_after_first:
            return [*start]
        by_trigger: dict[str, list[list[Item]]] = {trigger: [] for trigger in wanted.triggers}
        for tag in wanted.tags:
            trigger = min((one for one in wanted.triggers if one and tag.begin.startswith(one)), key=len, default=None)
            if trigger is None:
                raise GrammarError(f"structural_tag: no trigger begins the tag {tag.begin!r}")
            by_trigger[trigger].append(self._tag(tag, depth, tag.begin[len(trigger) :]))
        tags = []
        for trigger, rests in by_trigger.items():
            if rests:
                rest = self._one_of(rests)
                tags.append(_joined([FreeText(), Literal(trigger), rest], self.draft))
        any_tag = Rule(self.draft.rule(" | ".join(rule.expression for rule in tags)))
        _refuse_open([*start, *tags], "a tag of triggered_tags")
        if wanted.stop_after_first:
            return [self._one_of([[any_tag], [FreeText()]])]
        return [*start, Rule(f"{any_tag.expression}*"), FreeText()]

    def _separated(self, wanted: TagsWithSeparator, depth: int) -> list[Item]:
        tag = self._one_of([self._tag(tag, depth) for tag in wanted.tags])
        _refuse_open([tag], "a tag of tags_with_separator")
        expression = tag.expression
        if not wanted.stop_after_first:
            expression = f"{expression} ({self.draft.literal(wanted.separator)} {expression})*"
        return [Rule(expression if wanted.at_least_one else f"({expression})?")]


def _refuse_open(rules: list[Rule], what: str) -> None:
    if any(rule.is_open for rule in rules):
        raise GrammarError(f"structural_tag: {what} ends in free text: it needs an end")


def _joined(items: list[Item], draft: GrammarDraft) -> Rule:
    """A sequence as one expression. Free text goes up to the literal behind it, else to the end of all."""
    merged: list[Item] = []
    for item in items:
        last = merged[-1] if merged else None
        if isinstance(item, Literal) and isinstance(last, Literal):
            merged[-1] = Literal(last.text + item.text)
        elif not ((isinstance(item, Literal) and not item.text) or item == last == FreeText()):
            merged.append(item)
    if merged and isinstance(merged[0], Literal) and not merged[0].text:
        merged = merged[1:]
    return _written(merged, draft)


def _written(items: list[Item], draft: GrammarDraft) -> Rule:
    written: list[str] = []
    is_open = False
    for at, item in enumerate(items):
        if is_open:
            raise GrammarError("structural_tag: free text can only stand before a text that ends it, or at the end")
        after = items[at + 1] if at + 1 < len(items) else None
        match item:
            case Literal() if not (at and isinstance(items[at - 1], FreeText)):
                written.append(draft.literal(item.text))
            case Rule():
                written.append(item.expression)
                is_open = item.is_open
            case FreeText() if isinstance(after, Literal):
                written.append(draft.until_over(after.text) if item.with_special else draft.until(after.text))
            case FreeText():
                written.append(draft.text())
                is_open = True
    return Rule(" ".join(written), is_open)
