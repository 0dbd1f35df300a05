"""What a folder's small files say of a tokenizer: its class, its flags, the tokens that stand for themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...options.config import ConfigError
from ..tokenizers.tokenizer_files import SPECIAL_NAMES
from ..tokenizers.tokenizer_parts import Token, added_token, between
from ..values import Values, read_json

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
MOST = 1 << 22  # of a token's number


class About(NamedTuple):
    """tokenizer_config.json with the files beside it."""

    folder: Path
    config: Values
    special_map: Values
    added: Values
    model_type: str  # of config.json

    @property
    def named_class(self) -> str:
        """LlamaTokenizer, whether or not it is the fast one; empty if there is none."""
        return (self.config.text("tokenizer_class") or "").removesuffix("Fast")

    def token(self, name: str) -> str | None:
        """The text of bos_token and others, as far as the folder says it."""
        for values in (self.config, self.special_map):
            value = values[name]
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                return text
        return None

    def others(self) -> list[str]:
        """Special tokens without a name."""
        for values in (self.config, self.special_map):
            given = values["additional_special_tokens"] or values["extra_special_tokens"]
            if isinstance(given, list) and given:
                texts = [entry.get("content") if isinstance(entry, dict) else entry for entry in given]
                return [text for text in texts if isinstance(text, str)]
        return []


def read_about(folder: Path) -> About:
    """All that is said; empty where there is no file."""

    def values(name: str) -> Values:
        return Values(folder / name, read_json(folder / name, missing_ok=True))

    model_type = values("config.json").text("model_type") or ""
    config, special_map = values("tokenizer_config.json"), values("special_tokens_map.json")
    return About(folder, config, special_map, values("added_tokens.json"), model_type)


class AddedTokens:
    """The tokens that stand for themselves, by number: those of the vocabulary, and those that the folder adds."""

    def __init__(self, about: About, vocabulary: dict[str, int]) -> None:
        self.vocabulary = vocabulary
        self._about = about
        self._found: dict[int, dict[str, Any]] = {}
        self._numbers = dict(vocabulary)

    def add(self, token: int, text: str, special: bool) -> None:
        """One more; what was said of it before counts no more."""
        if not 0 <= token < MOST or not text:
            raise ConfigError(
                f"--tokenizer: {self._about.folder} has an added token {text!r} with the number {token}; a text and a "
                f"number from 0 to {MOST - 1} are needed"
            )
        self._found[token] = added_token(token, text, special)
        self._numbers[text] = token

    def add_told(self, defaults: Mapping[str, str] | None = None) -> None:
        """Those of added_tokens_decoder, added_tokens.json and the named ones, as transformers adds them: a special
        token that is in no vocabulary gets the next number. `defaults` are names that the folder need not give.
        """
        for text, token in self._about.added.values.items():
            if isinstance(token, int):
                self.add(token, text, special=False)
        decoder = self._about.config.object("added_tokens_decoder")
        for number, told in (decoder.values if decoder else {}).items():
            if not number.isdecimal() or not isinstance(told, dict) or not isinstance(told.get("content"), str):
                raise ConfigError(
                    f"--tokenizer: {self._about.config.file} says added_tokens_decoder.{number[:60]}, which is no "
                    "number with a content"
                )
            self.add(int(number), told["content"], special=False)
            self._found[int(number)] |= {flag: bool(told.get(flag)) for flag in FLAGS}
        own = [text for text in (defaults or {}).values() if text in self._numbers]
        for text in dict.fromkeys([*filter(None, map(self._about.token, SPECIAL_NAMES)), *self._about.others(), *own]):
            token = self._numbers.get(text, max(self._numbers.values(), default=-1) + 1)
            if token in self._found:
                self._found[token]["special"] = True
            else:
                self.add(token, text, special=True)

    def words(self) -> dict[str, int]:
        """The vocabulary with all of them: for the library a token that is in none has the next number."""
        return self.vocabulary | {token["content"]: token["id"] for token in self.listed()}

    def listed(self) -> list[dict[str, Any]]:
        """As tokenizer.json has them. Of two with one text the later one counts."""
        texts = {self._found[token]["content"]: token for token in sorted(self._found)}
        return [self._found[token] for token in sorted(texts.values())]

    def named(self, name: str, absent: str | None = None) -> Token | None:
        """(text, number) of bos_token and others."""
        text = self._about.token(name) or absent
        return None if text is None else self.token(text)

    def token(self, text: str) -> Token | None:
        """(text, number) of any."""
        return (text, self._numbers[text]) if text in self._numbers else None

    def ends(self, begins: bool, first: str | None = None, last: str | None = None) -> dict[str, Any] | None:
        """What stands before and behind every text; `begins`: with bos_token, where the folder does not say."""
        config = self._about.config
        before = self.named("bos_token", first) if config.flag("add_bos_token", absent=begins) else None
        behind = self.named("eos_token", last) if config.flag("add_eos_token") else None
        return between(before, behind)
