"""What a request's parameters come to with this model's tokenizer: sequences of tokens for words, and its grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..grammar.compiler import Constraint, GrammarError, Grammars, unpack
from ..grammar.matchers import Matchers
from ..protocol.messages import Render
from ..protocol.request import Rendition, Think, ThinkBudget
from ..protocol.topics.prompts import ChatPrompt, Prompt
from .reasoning_state import left_thinking

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ..model.info import ModelInfo


def _continued(prompt: Prompt) -> str | None:
    """The text of the final message, where the answer goes on with it."""
    if not isinstance(prompt, ChatPrompt) or not prompt.continue_final_message:
        return None
    content = msgspec.json.decode(prompt.messages)[-1].get("content")
    if isinstance(content, str):
        return content
    return next((part["text"] for part in reversed(content or []) if isinstance(part, dict) and "text" in part), None)


class Renditions:
    """Makes them; `limit` is how many bytes of one fit into its slot."""

    def __init__(self, tokenizer: Tokenizer, model: ModelInfo, limit: int) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._limit = limit
        self._grammars: Grammars | None = None

    def make(self, message: Render, text: str | None) -> bytes:
        """The rendition as msgpack, nothing for a plain one.

        `text` is the rendered conversation. GrammarError has the reason why there is no grammar of its constraint.
        """
        think, left = message.think, None
        if think is not None and text is not None:
            left = left_thinking(text, think.start, think.end, _continued(message.prompt))
        opened = bool(think is not None and think.always) if left is None else left
        budget = None
        if think is not None and message.thinking_budget is not None:
            end, closing = self._ids(think.end), think.closing.partition(think.end)[0]
            closed = [*self._ids(closing), *end] if closing else []
            budget = ThinkBudget(message.thinking_budget, self._ids(think.start), end, closed)
        bad_words = [tokens for word in message.bad_words for tokens in self._spellings(word)]
        grammar = (
            self._grammar(message.constraint, None if left is False else think, opened) if message.constraint else b""
        )
        rendition = Rendition(opened, bad_words, budget, grammar)
        if rendition.is_plain() and not opened:
            return b""
        packed = msgspec.msgpack.encode(rendition)
        if len(packed) > self._limit:
            raise GrammarError(f"bad words and grammar together take {len(packed)} bytes, more than {self._limit}")
        return packed

    def follows(self, rendition: bytes, given: list[list[int]]) -> bool:
        """Does the grammar of this rendition allow each of these beginnings of an answer?"""
        assert self._grammars is not None
        matchers = Matchers(self._grammars.lltokenizer, self._model.vocab_size)
        grammar = unpack(msgspec.msgpack.decode(rendition, type=Rendition).grammar)
        return all(matchers.allows(grammar, tokens) for tokens in given)

    def take_remarks(self) -> list[str]:
        """What is not enforced of a JSON schema that is not strict: said of each once, when it first comes."""
        if self._grammars is None:
            return []
        remarks, self._grammars.remarks = self._grammars.remarks, []
        return remarks

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _spellings(self, word: str) -> list[list[int]]:
        """The word at the beginning of a text and behind a space; not with tokens that the model never draws."""
        found = [self._ids(word), self._ids(" " + word.lstrip())]
        drawn = [tokens for tokens in found if tokens and max(tokens) < self._model.vocab_size]
        return [tokens for index, tokens in enumerate(drawn) if tokens not in drawn[:index]]

    def _grammar(self, constraint: bytes, think: Think | None, opened: bool) -> bytes:
        """`think` is None where the answer begins at once."""
        if self._grammars is None:
            self._grammars = Grammars(self._tokenizer, self._model.vocab_size, self._model.end_tokens)
        if think is not None:
            decoded = msgspec.json.decode(constraint, type=Constraint)
            before = None if opened else think.start
            constraint = msgspec.json.encode(msgspec.structs.replace(decoded, after=think.end, before=before))
        return self._grammars.make(constraint)
