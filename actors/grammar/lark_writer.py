"""Writing a grammar for llguidance: a Lark grammar with rules of our own, and parts that it refers to by name.

Expressions are Lark's: rules, literals, `/regular expressions/`, `<[ids]>` of special tokens, `@parts`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from .json_schema import MAX_REPEAT, GrammarError, check_pattern, check_repeats, schema_grammar
from .vocabulary import SpecialTokens

TEXT = "/(?s:.*)/"  # anything but special tokens
BLANK = r"/[ \t\r\n]{1,8}/"
LINE_ENDS = r"/[\r\n]{1,8}/"  # behind a mark: no more than readers take for a part of it
INTERSECTED = 1000  # repetitions where a grammar has & or ~, whose automata are built at once
MAX_GBNF_RULES = 500  # the converter's time grows with the square


class GrammarDraft:
    """A grammar that is being written."""

    def __init__(self, words: SpecialTokens) -> None:
        self.words = words
        self.free: frozenset[int] = frozenset()  # special tokens that may stand in free text
        self.rules: list[str] = []
        self.parts: list[dict[str, Any]] = []

    def rule(self, expression: str, options: str = "") -> str:
        """A rule's name."""
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{options}: {expression}")
        return name

    def json(self, schema: Any, strict: bool = True, blanks: str | None = None, closed: bool = False) -> str:
        """JSON by a schema; see `schema_grammar`."""
        return self._part("json_schema", schema_grammar(schema, strict, blanks, closed))

    def lark(self, grammar: str) -> str:
        """A whole grammar of the client's: Lark's notation, or GBNF (which some call EBNF)."""
        check_repeats(grammar, INTERSECTED if re.search("[&~]", grammar) else MAX_REPEAT)
        is_gbnf = re.search(r"(?m)^\s*[\w-]+\s*::=", grammar)
        return self._part("lark_grammar", _from_gbnf(grammar) if is_gbnf else grammar)

    def _part(self, kind: str, value: Any) -> str:
        name = f"part{len(self.parts)}"
        self.parts.append({"name": name, kind: value})
        return "@" + name

    def regex(self, pattern: str) -> str:
        """Classes like \\w mean ASCII: what every dialect of regular expressions accepts."""
        check_pattern(pattern)
        return self.rule(f"/{regex_to_lark(pattern, 'dws')}/")

    def choice(self, texts: Iterable[str]) -> str:
        """One of some texts: one word of the lexer's, not a rule, so that thousands cost little."""
        name = f"R{len(self.rules)}"
        self.rules.append(f"{name}: {' | '.join(_quoted(text) for text in dict.fromkeys(texts))}")
        return name

    def literal(self, text: str) -> str:
        """Exactly this text; empty for an empty one."""
        return " ".join(map(_exactly, self.words.split(text)))

    def text(self) -> str:
        """Anything, to the end."""
        return self._passing(self.free) + self.rule(TEXT)

    def until(self, text: str, begins: str = "") -> str:
        """Anything up to the first `text`, and this. `begins`: a regular expression of its first character."""
        return self._passing(self.free) + self._up_to(text, begins)

    def _up_to(self, text: str, begins: str = "") -> str:
        first, *rest = self.words.split(text)
        if isinstance(first, int):
            head = self.rule(f"/{begins}(?s:.*)/ {_exactly(first)}")
        else:
            head = self.rule(f"/{begins}(?s:.*){_escaped(first)}/", "[lazy]")
        return " ".join([head, *map(_exactly, rest)])

    def until_over(self, text: str) -> str:
        """The same over special tokens, also over those of `text`, where none of them is all of it."""
        pieces = self.words.split(text)
        own = {piece for piece in pieces if isinstance(piece, int)}
        passed = [",".join(map(str, set(self.words.specials.values()) - own))]
        if len(pieces) > 1:  # each by itself: of two lists that have it the lexer would read one
            passed += map(str, sorted(own))
        over = " | ".join(f"{TEXT} <[{ids}]>" for ids in passed if ids)
        return (f"{self.rule(over)}* " if over else "") + self._up_to(text)

    def opening(self, marker: str) -> str:
        """`marker` after a few blanks, be it spelled or in special tokens."""
        self._first_of(marker, "begin with")
        return f"{self.rule(BLANK)}? ({' | '.join(dict.fromkeys([_quoted(marker), self.literal(marker)]))})"

    def within(self, body: str, start: str, end: str) -> str:
        """What is wished by itself, or behind one mark, with the other behind it or not."""
        lines, body = f"{self.rule(LINE_ENDS)}?", self.rule(body)
        return self.rule(f'{body} | {self.literal(start)} {lines} {body} ("\\n"? {self.literal(end)})?')

    def thinking(self, marker: str) -> str:
        """Anything but an end up to the first `marker`, be it spelled or in special tokens, then a few line ends.

        A special token that begins the marker begins nothing else.
        """
        first = self._first_of(marker, "wait for")
        ending = self.rule(f"/(?s:.*){_escaped(marker)}/", "[lazy]")
        if isinstance(first, int):
            ending = f"({ending} | {TEXT} {self.literal(marker)})"
        others = self._passing(set(self.words.specials.values()) - {first})
        return f"{others}{ending} {self.rule(LINE_ENDS)}?"

    def _first_of(self, marker: str, doing: str) -> str | int:
        """The first piece of a mark: a special token, or all of it."""
        first, *rest = self.words.split(marker)
        if rest and not isinstance(first, int):
            raise GrammarError(f"structured output cannot {doing} {marker!r}, which mixes text and special tokens")
        return first

    def _passing(self, tokens: Collection[int | None]) -> str:
        """Text with special tokens in it, up to behind the last of these."""
        if not tokens:
            return ""
        return self.rule(f"{TEXT} <[{','.join(map(str, tokens))}]>") + "* "

    def finish(self, start: str) -> str:
        """The grammar's text, as llguidance takes it."""
        if len(self.parts) == 1 and start == "@" + self.parts[0]["name"]:
            return json.dumps({"grammars": self.parts}, ensure_ascii=False)
        own = "\n".join(["%llguidance {}", f"start: {start}", *self.rules])
        return json.dumps({"grammars": [{"lark_grammar": own}, *self.parts]}, ensure_ascii=False)


def _exactly(piece: str | int) -> str:
    return f"<[{piece}]>" if isinstance(piece, int) else _quoted(piece)


def _quoted(text: str) -> str:
    return json.dumps(text)


def _escaped(text: str) -> str:
    """For a regular expression between slashes; what is no letter nor digit by its number."""
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)


def _from_gbnf(grammar: str) -> str:
    if grammar.count("::=") > MAX_GBNF_RULES:
        raise GrammarError(f"a grammar in GBNF has at most {MAX_GBNF_RULES} rules")
    plain = re.sub(r"\\\\|\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))", _plain, grammar)
    try:
        return gbnf_to_lark(plain)
    except Exception as error:  # the library raises nothing narrower
        raise GrammarError(f"the grammar is neither Lark nor GBNF: {error or type(error).__name__}") from None


def _plain(escape: re.Match[str]) -> str:
    """An escaped character as itself, or as two digits where it would mean something: the converter garbles others."""
    digits = escape[1] or escape[2] or escape[3]
    code = None if digits is None else int(digits, 16)
    if code is None or code > 0x10FFFF or 0xD800 <= code < 0xE000:
        return escape[0]
    char = chr(code)
    return f"\\x{code:02x}" if code < 0x80 and (not char.isprintable() or char in '"\\[]^-/') else char
