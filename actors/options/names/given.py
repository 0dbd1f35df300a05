"""Options that are given by name, ours or another server's, in a file, in an LLM or behind --also: as fields.

What a name means stands in other_servers.py, and what a field may be in fields.py. It knows no files, nor words typed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ..config import ConfigError
from ..fields import OBJECTS, flag, option_fields, unknown_option
from ..other_servers import Meaning, meaning_of


def named_values(given: Mapping[str, object], where: str, warn: Callable[[str], None]) -> dict[str, object]:
    """By field name, whatever the name by which they are given; ConfigError tells all names that mean nothing here. An
    object may be given whole and in parts, in any order, where these do not contradict each other.
    """
    values: dict[str, object] = {}
    in_parts: set[str] = set()  # fields of which nothing else has come
    troubles: list[str] = []
    for key, value in given.items():
        found = _as_part(key, value, troubles)
        is_part = bool(found)
        found = found or _as_whole(key, value, where, warn, troubles)
        for field in found.keys() & values.keys():
            old, new = values[field], found[field]
            found[field] = _both(old, new)
            if not (is_part or field in in_parts) or found[field] != _both(new, old):
                troubles.append(f"{key}: it is there twice, or by two of its names")
        in_parts = in_parts | (found.keys() - values.keys()) if is_part else in_parts - found.keys()
        values |= found
    if troubles:
        raise ConfigError(f"{where}: {'; '.join(troubles)}")
    return values


def _both(first: object, second: object) -> object:
    """Of what is given and what else is, where either may be none."""
    return second if first is None else first if second is None else merged(first, second)


def _as_part(key: str, value: object, troubles: list[str]) -> dict[str, object]:
    """What sets one key of a JSON object, by another server's name or as `option.key`; nothing where it is no such."""
    base, dot, path = key.partition(".")
    name = base.replace("-", "_")
    meaning = None if name in option_fields() else meaning_of(flag(name))
    if meaning is not None and meaning.key:
        return {} if dot or meaning.is_automatic(str(value)) else {meaning.field: meaning.split(str(value))}
    if meaning is not None and not dot and (understood := meaning.understands(_plain(value))):
        return understood
    field = name if meaning is None else meaning.field
    if not dot or field not in OBJECTS:
        return {}
    for one in reversed(path.split(".")):
        if not one or one.endswith("+"):
            troubles.append(f"{key}: no such key; a list is written as one: {base}: {{key: [1, 2]}}")
        value = {one: value}
    return {field: value}


def _plain(value: object) -> str:
    """As it is typed on a command line, where YAML reads on and off as another thing."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _as_whole(
    key: str, value: object, where: str, warn: Callable[[str], None], troubles: list[str]
) -> dict[str, object]:
    """What any other name sets."""
    name = key.replace("-", "_")
    if name in option_fields():
        return {name: value}
    meaning = meaning_of(flag(name))
    if meaning is not None and meaning.key and meaning.is_automatic(str(value)):
        return {}
    if meaning is None or meaning.key:
        troubles.append(f"{key}: there is no such option{unknown_option(key)}")
    elif meaning.compiles:
        return _compilation(key, value, meaning, where, warn, troubles)
    elif meaning.needless:
        warn(f"{where}: {key}: not needed: {meaning.needless}")
    elif meaning.refused:
        if value not in (None, False) and not meaning.allows(str(value)):
            troubles.append(f"{key}: not supported: {meaning.refused}")
    else:
        return _meant(meaning, value)
    return {}


def _compilation(
    key: str, value: object, meaning: Meaning, where: str, warn: Callable[[str], None], troubles: list[str]
) -> dict[str, object]:
    """What vLLM's compilation_config sets here."""
    from ..compilation import read_compilation  # which hardly anybody needs

    try:
        fields, passed_over = read_compilation(key, value)
    except ValueError as error:
        troubles.append(f"{key}: {error}")
        return {}
    if passed_over or not fields:
        keys = "".join(f"{one}: " for one in passed_over)
        warn(f"{where}: {key}: {keys}not needed: {meaning.needless}")
    return fields


def merged(first: object, second: object) -> object:
    """Two JSON objects, or texts of such, as one, and objects in them; what is none is replaced."""
    try:
        both = [msgspec.json.decode(value) if isinstance(value, str) else value for value in (first, second)]
    except msgspec.DecodeError:
        return second
    old, new = both
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return second
    return old | {
        name: merged(old[name], value) if isinstance(value, dict) and name in old else value
        for name, value in new.items()
    }


def _meant(meaning: Meaning, value: object) -> dict[str, object]:
    """What another server's name with this value sets."""
    if value is None or meaning.is_automatic(str(value)):
        return {}
    if meaning.fixed is None:
        return {meaning.field: meaning.split(value) if isinstance(value, str) else value}
    if isinstance(meaning.fixed, bool) and isinstance(value, bool):
        return {meaning.field: meaning.fixed is value}
    return {meaning.field: meaning.fixed} if value else {}
