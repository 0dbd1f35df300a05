"""Text of users, tools and documents that reads like a special token stays text (--escape-special-tokens).

Before the template sees them, a mark is put before each such text in what is not trusted: a character that the request
does not have. Behind it, what is marked is text, and what is not, the template has written. So that the tokenizer makes
of both what it always does, a copy of it is given the text. It knows the special tokens by other names, which nobody
else knows: where the template has written one stands its other name, and the marks are gone.

Not trusted are messages of all roles but system, developer and assistant, the calls of an assistant, and documents.
Special tokens are those that the tokenizer calls so, and its other added tokens that stand in the chat template.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from ...options.config import ConfigError
from ..encode_cache import SAMPLES, SegmentCache
from .problem import TemplateProblem

if TYPE_CHECKING:
    from tokenizers import AddedToken

TRUSTED = ("system", "developer", "assistant")
CALLS = ("tool_calls", "function_call")
MARKS = range(0xE000, 0xF900)  # for private use: no template writes them
OPEN, CLOSE = "\U000f0000", "\U000f0001"
SAMPLED = 16  # special tokens that are tried at load


class Escaped(str):
    """The text of a conversation in which something reads like a special token and is none."""

    renamed: str  # the same, as the copy of the tokenizer reads it


class Escaping:
    """For one tokenizer and its chat templates. ConfigError if the tokenizer is one that cannot be copied so."""

    def __init__(self, tokenizer: Tokenizer, templates: Iterable[str]) -> None:
        source = "\n".join(templates)
        added = tokenizer.get_added_tokens_decoder()
        nonce = secrets.token_hex(8)  # a client that knew the other names could write them
        self._names = {
            token.content: f"{OPEN}{nonce}.{number}{CLOSE}"
            for number, token in added.items()
            if _is_control(token, source)
        }
        normalized = {
            token.content for token in added.values() if token.normalized and tokenizer.normalizer is not None
        }
        self._always = not normalized.isdisjoint(self._names)  # other texts than theirs may become these
        self._ids = {content: tokenizer.token_to_id(content) for content in self._names}
        self._beginnings = {content[:size] for content in self._names for size in range(1, len(content))}
        self._longest = max(map(len, self._names), default=0)
        self._any = longest_of({*self._names}) or "(?!)"
        self._begins = re.compile(f"(?={self._any})")
        self.copy = _renamed(tokenizer, self._names)
        self._segments = SegmentCache(self.copy)
        self._check(tokenizer)

    def rendered(self, render: Callable[[Any, Any], str], messages: Any, documents: Any, *others: Any) -> str:
        """What the template makes of messages and documents; `others` are what else it is given."""
        mark = self._mark_for(messages, documents, *others)
        if mark is None:
            return render(messages, documents)
        try:
            return self._read(render(*self._marked(messages, documents, mark)), mark)
        except TemplateProblem as error:  # it may quote a message
            raise type(error)(without_marks(str(error), mark), error.param) from None

    # --- before the template ---------------------------------------------------------------------------------------

    def _mark_for(self, messages: Any, documents: Any, *others: Any) -> str | None:
        """The character that marks what is to stay text in this request; None if nothing can be more than text."""
        if not self._always and not any(map(self._may_be_more, _texts([_untrusted(messages), documents]))):
            return None
        everything = json.dumps([messages, documents, *others], ensure_ascii=False)
        for code in MARKS:
            if chr(code) not in everything and f"\\u{code:04x}" not in everything:
                return chr(code)
        raise TemplateProblem("messages: there are too many characters for private use")

    def _marked(self, messages: Any, documents: Any, mark: str) -> tuple[Any, Any]:
        """The same with the marks in it."""
        said = [self._message(message, mark) for message in messages] if isinstance(messages, list) else messages
        return said, self._value(documents, mark)

    def _message(self, message: Any, mark: str) -> Any:
        if not isinstance(message, dict):
            return message
        if message.get("role") not in TRUSTED:
            return self._value(message, mark)
        return {name: self._value(value, mark) if name in CALLS else value for name, value in message.items()}

    def _value(self, value: Any, mark: str) -> Any:
        match value:
            case str():
                return self._marked_text(value, mark)
            case list():
                return [self._value(item, mark) for item in value]
            case dict():
                return {self._marked_text(name, mark): self._value(item, mark) for name, item in value.items()}
        return value

    def _may_be_more(self, text: str) -> bool:
        return self._begins.search(text) is not None or self._begun(text) is not None

    def _begun(self, text: str) -> int | None:
        """Where a special token begins whose end may be the next text: a template joins parts, and cuts off spaces."""
        end = len(text.rstrip())
        for at in range(max(0, end - self._longest), end):
            if text[at:end] in self._beginnings:
                return at
        return None

    def _marked_text(self, text: str, mark: str) -> str:
        places = {found.start() for found in self._begins.finditer(text)}
        if (begun := self._begun(text)) is not None:
            places.add(begun)
        bounds = [0, *sorted(places), len(text)]
        return mark.join(text[start:end] for start, end in pairwise(bounds))

    # --- behind it -------------------------------------------------------------------------------------------------

    def _read(self, rendered: str, mark: str) -> Escaped:
        """The text of a conversation that was rendered with marks."""
        found = Escaped(without_marks(rendered, mark))
        marks = f"{mark}|{re.escape(_written(mark))}"
        found.renamed = without_marks(re.sub(f"({marks})?({self._any})", self._name, rendered), mark)
        return found

    def expanded(self, text: Escaped, expand: Callable[[str, Callable[[str], str]], str]) -> Escaped:
        """The same text with more in it, that special tokens stand for; `expand` is told how they are renamed."""
        made = Escaped(text)
        made.renamed = expand(text.renamed, lambda written: re.sub(self._any, self._plain_name, written))
        return made

    def _plain_name(self, found: re.Match[str]) -> str:
        return self._names[found[0]]

    def _name(self, found: re.Match[str]) -> str:
        return found[2] if found[1] else self._names[found[2]]

    def encode(self, text: Escaped, add_special_tokens: bool) -> list[int]:
        """The ids of a conversation's text."""
        if add_special_tokens:
            ids: list[int] = self.copy.encode(text.renamed).ids
            return ids
        return self._segments.encode(text.renamed)

    # --- at load ---------------------------------------------------------------------------------------------------

    def _check(self, tokenizer: Tokenizer) -> None:
        """The copy gives the same ids where the template has written special tokens, and none of theirs elsewhere."""
        moved = [content for content, name in self._names.items() if self.copy.token_to_id(name) != self._ids[content]]
        names = [*self._names]
        tried = names[:SAMPLED] + names[SAMPLED:][-SAMPLED:]
        mark = chr(MARKS[0])
        same = all(
            self.copy.encode(self._read(text, mark).renamed, add_special_tokens=False).ids
            == tokenizer.encode(text, add_special_tokens=False).ids
            for content in tried
            for text in (*(f"{a}{content}{b}" for a in SAMPLES for b in SAMPLES[:3]), f"{content}{content}")
        )
        unknown = self.copy.encode("\U0010fffd", add_special_tokens=False).ids  # as many tokenizers have it, special
        control = set(self._ids.values()) - set(unknown)
        stays = all(
            control.isdisjoint(self.copy.encode(f"a{content} b{content}", add_special_tokens=False).ids)
            for content in names
        )
        if moved or not same or not stays:
            text = "this model's tokenizer looks for special tokens in other texts than theirs, or not beside letters"
            raise ConfigError(f"--escape-special-tokens: {text}")


def longest_of(words: set[str]) -> str:
    """A regular expression for the longest of these words at a place. It compares characters, and not word by word."""
    tails: dict[str, set[str]] = {}
    for word in words - {""}:
        tails.setdefault(word[0], set()).add(word[1:])
    branches = [re.escape(head) + longest_of(tail) for head, tail in sorted(tails.items())]
    if "" in words:
        return f"(?:{'|'.join(branches)})?" if branches else ""
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""


def without_marks(text: str, mark: str) -> str:
    """Also where a template has written a text as JSON."""
    return text.replace(mark, "").replace(_written(mark), "")


def _written(mark: str) -> str:
    return f"\\u{ord(mark):04x}"


def _is_control(token: AddedToken, source: str) -> bool:
    return bool(token.content.strip()) and (token.special or token.content in source)


def _untrusted(messages: Any) -> list[Any]:
    """What of messages is not trusted."""
    found: list[Any] = []
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            trusted = message.get("role") in TRUSTED
            found += [message.get(name) for name in CALLS] if trusted else [message]
    return found


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _renamed(tokenizer: Tokenizer, names: dict[str, str]) -> Tokenizer:
    """A copy that knows some added tokens by other names and the same ids."""
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = content["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(word, word): number for word, number in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(word, word), score] for word, score in model["vocab"]]
    if "merges" in model:  # of which these tokens are never made
        model["merges"] = [merge for merge in model["merges"] if names.keys().isdisjoint(_words(merge))]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    return Tokenizer.from_str(json.dumps(content))


def _words(merge: Any) -> tuple[str, ...]:
    """What a merge takes, and what it makes."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right, left + right
