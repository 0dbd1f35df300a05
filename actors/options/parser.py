"""argparse as all commands use it: mistakes are said in one line, and a wrong name with the right one beside it.

It knows no command and no option, but what names of other servers mean where a parser is told to.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import msgspec

from .other_servers import Meaning, meaning_of, names_beginning_with

USAGE_STATUS = 2
SWITCHES = ("true", "false", "on", "off", "auto")  # that may stand behind what is on or off
BOOLEANS = ("true", "false")
OFF = ("false", "off")
SHOWN = 5  # names that a beginning may mean
SHORT = 6  # letters of a name in which one wrong letter weighs more
NUMBERS = {"int": "a whole number", "(?:float|_finite)": "a number"}  # as argparse has them, and people
NUMBER = re.compile(r"-\d+|-\d*\.\d+")


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """`; did you mean …?` to put behind a message, or nothing where no name is near. All names begin with `prefix`."""
    short = [one.removeprefix(prefix) for one in names]
    typed = name.removeprefix(prefix)
    found = difflib.get_close_matches(typed, short, n=1, cutoff=0.7 if len(typed) <= SHORT else 0.82)
    return f"; did you mean {prefix}{found[0]}?" if found else ""


class Parser(argparse.ArgumentParser):
    """A command's parser. `other_servers`: it takes the names that their users know, too."""

    other_servers = False

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Nothing may be left over: whatever is not known is refused here, by the parser that knows the names."""
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:
            words = self._own_words(words)
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            word = next((one for one in unknown if one.startswith("-")), unknown[0]).partition("=")[0]
            if word.startswith("-"):
                self.error(f"{word}: no such option{self._nearest(word)}")
            self.error(f"{word}: one argument too many")
        return found, unknown

    def _own_words(self, words: list[str]) -> list[str]:
        """The words with options by our names. All that are none are told at once."""
        own: list[str] = []
        troubles: list[str] = []
        left = words[: words.index("--")] if "--" in words else list(words)
        behind = words[len(left) :]
        while left:
            word = left.pop(0)
            name, equals, value = word.partition("=")
            if not is_option(word):
                own.append(word)
            elif name in self._option_string_actions:
                own.append(self._switched(name, value if equals else None, left) or word)
            elif (dashed := name.replace("_", "-")) in self._option_string_actions:
                own.append(self._switched(dashed, value if equals else None, left) or f"{dashed}{equals}{value}")
            elif option := self._object_of(name):
                own += self._with_keys(option, name, value if equals else None, left)
            elif self.other_servers and (meaning := meaning_of(name)):
                own += self._translated(name, value if equals else None, meaning, left, troubles)
            elif word[1] != "-" and word[:2] in self._option_string_actions:  # its value stands in the same word
                own.append(word)
            elif len(whole := self._beginning_with(dashed)) == 1:
                left.insert(0, f"{whole[0]}{equals}{value}")
            else:
                troubles.append(f"{name}: {_one_of(whole) or 'no such option' + self._nearest(dashed)}")
                if left and not equals and not is_option(left[0]):
                    left.pop(0)
        if len(troubles) > 1:
            self.error(f"{len(troubles)} of the options cannot be:\n  " + "\n  ".join(troubles) + "\n ")
        if troubles:
            self.error(troubles[0])
        return own + behind

    def _beginning_with(self, name: str) -> list[str]:
        """The options that a beginning of a name may mean, as argparse has it: ours, or else other servers'."""
        if not self.other_servers or not name.startswith("--"):
            return []
        found = {id(action): one for one, action in self._option_string_actions.items() if one.startswith(name)}
        return sorted(found.values()) or names_beginning_with(name)

    def _object_of(self, name: str) -> str:
        """Our option of a JSON object, of which `--option.key`, or another server's name, sets a part; else nothing."""
        base, dot, _ = name.partition(".")
        dashed = base.replace("_", "-")
        meaning = meaning_of(base) if self.other_servers and dashed not in self._option_string_actions else None
        option = meaning.words()[0] if meaning is not None and meaning.field else dashed
        return option if dot and getattr(self._option_string_actions.get(option), "takes_keys", False) else ""

    def _with_keys(self, option: str, name: str, value: str | None, left: list[str]) -> list[str]:
        """`--option.a.b VALUE` as the option itself; a VALUE that is no JSON is a text."""
        if value is None and left and not is_option(left[0]):
            value = left.pop(0)
        if value is None:
            return [option]  # argparse says that a value is missing
        found: Any = value
        with contextlib.suppress(msgspec.DecodeError):
            found = msgspec.json.decode(value)
        for key in reversed(name.split(".")[1:]):
            if not key or key.endswith("+"):
                self.error(f"{name}: no such key; a list is written as JSON: {option} '{{\"key\": [1, 2]}}'")
            found = {key: found}
        return [f"{option}={msgspec.json.encode(found).decode()}"]

    def _switched(self, name: str, value: str | None, left: list[str]) -> str:
        """What is on or off, by a value as well: `=true`, or true as the next word. Empty: it is no such option."""
        if not isinstance(self._option_string_actions[name], argparse.BooleanOptionalAction):
            return ""
        if value is None and left and left[0].lower() in BOOLEANS:  # no model has such a name
            value = left.pop(0)
        if value is None:
            return name
        if value.lower() not in SWITCHES[:4]:
            self.error(f"{name}: {value} is neither true nor false")
        if value.lower() not in OFF:
            return name
        return f"--{name[5:]}" if name.startswith("--no-") else f"--no-{name[2:]}"

    def _translated(
        self, name: str, value: str | None, meaning: Meaning, left: list[str], troubles: list[str]
    ) -> list[str]:
        """Our words for another server's option, whose value may be the next word `left`."""
        takes_value = (meaning.fixed is None and not meaning.needless) or bool(meaning.takes)
        if value is None and left and not is_option(left[0]) and (takes_value or left[0].lower() in SWITCHES):
            value = left.pop(0)
            while meaning.several and left and not is_option(left[0]):
                left.pop(0)
        if meaning.compiles:
            return self._compilation(name, value, meaning, troubles)
        if meaning.needless:
            print(f"{self.prog}: warning: {name}: not needed: {meaning.needless}", file=sys.stderr)
            return []
        if value is not None and (understood := meaning.understands(value)):
            return [_word(field, one) for field, one in understood.items()]
        if meaning.refused:
            if value is None or not meaning.allows(value):
                troubles.append(f"{name}: not supported: {meaning.refused}")
            return []
        if meaning.fixed is not None and value is not None and value.lower() in OFF:
            off = isinstance(meaning.fixed, bool)  # else our option has another value, which is not asked for
            return msgspec.structs.replace(meaning, fixed=not meaning.fixed).words() if off else []
        if meaning.fixed is not None or value is None:
            return meaning.words()
        if meaning.is_automatic(value):
            return []
        values = meaning.split(value)
        if isinstance(values, dict):
            return [f"{meaning.words()[0]}={msgspec.json.encode(values).decode()}"]
        if isinstance(values, list):
            return [*meaning.words(), *values]
        option, found = meaning.words()[0], [values]
        while self._option_string_actions[option].nargs == "+" and left and left[0].isdecimal():  # of a list of numbers
            found.append(left.pop(0))
        return [f"{option}={one}" for one in found]

    def _compilation(self, name: str, value: str | None, meaning: Meaning, troubles: list[str]) -> list[str]:
        """Our words for what vLLM's --compilation-config says of CUDA graphs."""
        from .compilation import read_compilation  # which hardly anybody needs

        try:
            fields, passed_over = read_compilation(name, value)
        except ValueError as error:
            troubles.append(f"{name}: {error}")
            return []
        if passed_over or not fields:
            keys = "".join(f"{key}: " for key in passed_over)
            print(f"{self.prog}: warning: {name}: {keys}not needed: {meaning.needless}", file=sys.stderr)
        words: list[str] = []
        for field, given in fields.items():
            words += [f"--{field.replace('_', '-')}", *(map(str, given) if isinstance(given, list) else ())]
        return words

    def _nearest(self, word: str) -> str:
        return nearest(word, (one for one in self._option_string_actions if one.startswith("--")), "--")

    def error(self, message: str) -> NoReturn:
        """One line: the usage of a command with many options would hide it."""
        for kind, words in NUMBERS.items():
            message = re.sub(rf"invalid {kind} value: '(.*)'$", rf"\1 is not {words}", message)
        self.exit(USAGE_STATUS, f"{self.prog}: error: {message.removeprefix('argument ')} (see {self.prog} --help)\n")


def _word(field: str, value: object) -> str:
    """Our option with this value, as it is typed."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"--{field.replace('_', '-')}={text}" if not isinstance(value, bool) else f"--{field.replace('_', '-')}"


def _one_of(names: Sequence[str]) -> str:
    """What is said where a beginning means several; nothing where there are none."""
    shown = [*names[:SHOWN], f"{len(names) - SHOWN} others"] if len(names) > SHOWN else names
    return f"it may be {', '.join(shown[:-1])} or {shown[-1]}" if names else ""


def is_option(word: str) -> bool:
    """It is the name of an option, and no value."""
    return len(word) > 1 and word.startswith("-") and " " not in word.partition("=")[0] and not NUMBER.fullmatch(word)
