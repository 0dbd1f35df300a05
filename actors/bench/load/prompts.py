"""What is asked: prompts that are made, or read from a file.

A made prompt consists of words without a meaning, as many as come to the wanted number of tokens; `Count` says how many
a text has. The words that a chat template puts around it come on top.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

Count = Callable[[str], int]
Source = Callable[[int, int], "list[Prompt]"]
DEFAULT_OUTPUT = 128  # tokens of an answer, where nothing says how many
Length = Annotated[int, msgspec.Meta(ge=0)]
ROUNDS = 12  # in which a prompt's length is put right
_SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ra", "se", "ti", "vo", "zu", "ton", "ler")


class DatasetError(ValueError):
    """What is asked for cannot be made, or not read."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: a text or messages, and how long its answer may be."""

    text: str
    output_tokens: int
    tokens: int = 0  # of the text, as far as known; the server's usage is what counts
    messages: list[dict[str, Any]] | None = None
    reply: str = ""  # as many tokens as this has are what its answer may have, once they are counted


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """The options of the prompts, by the names that users know."""

    dataset: str = "random"
    path: str = ""
    count: int = 1000
    input_len: int = 1024
    output_len: int | None = 128  # None: as the file says
    range_ratio: float = 0.0
    prefix_len: int = 0
    prefixes: int = 1
    seed: int = 0
    run: int = 0  # each has other words, in texts of the same lengths: a server may know those of others


def words_counted(text: str) -> int:
    """Where there is no tokenizer, a word is called a token."""
    return len(text.split())


def make_prompts(wanted: PromptOptions, count: Count) -> list[Prompt]:
    """As many as are wanted, always the same from the same seed and run."""
    if wanted.dataset == "file":
        return _taken(read_prompts(wanted), wanted.count, count)
    maker = _TextMaker(wanted, count)
    if wanted.dataset == "fixed":
        text = maker.text(wanted.input_len)
        return [Prompt(text, wanted.output_len or DEFAULT_OUTPUT, count(text))] * wanted.count
    shared = wanted.dataset == "shared-prefix" or wanted.prefix_len > 0
    prefixes = [maker.text(wanted.prefix_len) for _ in range(wanted.prefixes)] if shared else [""]
    return [_random_prompt(wanted, maker, prefixes[number % len(prefixes)]) for number in range(wanted.count)]


def prompt_source(wanted: PromptOptions, count: Count) -> Source:
    """Of as many prompts as are wanted, for the run of a number. A file is read once."""
    if wanted.dataset != "file":
        return lambda many, run: make_prompts(replace(wanted, count=many, run=run), count)
    found = read_prompts(wanted)
    return lambda many, run: _taken(found, many, count)


def _random_prompt(wanted: PromptOptions, maker: _TextMaker, prefix: str) -> Prompt:
    own = maker.length(wanted.input_len, wanted.range_ratio)
    output = maker.length(wanted.output_len or DEFAULT_OUTPUT, wanted.range_ratio)
    text = maker.text(own + (wanted.prefix_len if prefix else 0), prefix)
    return Prompt(text, output, maker.count(text))


class _TextMaker:
    """Draws texts of a given number of tokens."""

    def __init__(self, wanted: PromptOptions, count: Count) -> None:
        self.count = count
        self._lengths = np.random.default_rng(wanted.seed)
        self._random = np.random.default_rng((wanted.seed, wanted.run))
        self._tokens_a_word = 0.0

    def length(self, middle: int, ratio: float) -> int:
        """Evenly from [middle (1 - ratio), middle (1 + ratio)]."""
        return max(1, int(self._lengths.integers(int(middle * (1 - ratio)), int(middle * (1 + ratio)) + 1)))

    def text(self, tokens: int, prefix: str = "") -> str:
        """`prefix` and words behind it, of that many tokens together, or as near as it can be had."""
        if not self._tokens_a_word:
            self._tokens_a_word = max(1.0, self.count(" ".join(self._words(256))) / 256)
        start = [prefix] if prefix else []
        words: list[str] = []
        best, off = prefix, tokens + 1
        for _ in range(ROUNDS):
            text = " ".join(start + words)
            missing = tokens - (self.count(text) if text else 0)
            if abs(missing) < off:
                best, off = text, abs(missing)
            if not missing:
                break
            if missing > 0:
                whole = int(missing / self._tokens_a_word)
                words += self._words(whole) if whole else ["a"]
            else:
                del words[-max(1, int(-missing / self._tokens_a_word)) :]
        return best

    def _words(self, count: int) -> list[str]:
        drawn = self._random.integers(len(_SYLLABLES), size=(count, 3))
        return ["".join(_SYLLABLES[one] for one in word) for word in drawn]


def read_prompts(wanted: PromptOptions) -> list[Prompt]:
    """From JSON Lines, or a JSON array, of `{"prompt" | "messages", "output_len"}` or of ShareGPT's conversations.

    All of it, in an order of the seed's.
    """
    path = Path(wanted.path)
    try:
        text = path.read_text(encoding="utf-8")
        entries = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(line) for line in text.splitlines() if line.strip()]
        )
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: {error}") from None
    found = [prompt for entry in entries if (prompt := _read_entry(path, entry, wanted)) is not None]
    if not found:
        raise DatasetError(f"{path}: no prompt in it")
    order = np.random.default_rng(wanted.seed).permutation(len(found))
    return [found[number] for number in order]


class _Turn(msgspec.Struct):
    value: str = ""


class _Entry(msgspec.Struct):
    """Of a file; what else is in it says nothing here."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    conversations: list[_Turn] | None = None
    output_len: Length | None = None
    output_tokens: Length | None = None
    max_tokens: Length | None = None


def _read_entry(path: Path, given: Any, wanted: PromptOptions) -> Prompt | None:
    """One prompt; None for a conversation in which nobody answers."""
    try:
        entry = msgspec.convert(given, _Entry)
    except msgspec.ValidationError as error:
        raise DatasetError(f"{path}: {error}: {str(given)[:60]}") from None
    said = wanted.output_len or entry.output_len or entry.output_tokens or entry.max_tokens
    output = said or DEFAULT_OUTPUT
    if entry.conversations is not None:
        text, reply = [turn.value for turn in (*entry.conversations, _Turn(), _Turn())[:2]]
        return Prompt(text, output, reply="" if said else reply) if text and reply else None
    if entry.messages is not None:
        text = "\n".join(str(message.get("content", "")) for message in entry.messages)
        return Prompt(text, output, messages=entry.messages)
    if entry.prompt is not None:
        return Prompt(entry.prompt, output)
    raise DatasetError(f"{path}: an entry has neither prompt, messages nor conversations: {str(given)[:60]}")


def _taken(found: list[Prompt], many: int, count: Count) -> list[Prompt]:
    """So many of them, again from the first where there are fewer. Replies are counted of those alone, and once."""
    for number, prompt in enumerate(found[:many]):
        if prompt.reply:
            found[number] = replace(prompt, output_tokens=max(1, count(prompt.reply)), reply="")
    return [found[number % len(found)] for number in range(many)]
