"""The file of --key-file: clients' keys with their limits, in YAML. What is wrong is said with line and field.

Leaf: options are checked with it before anything starts, and the supervisor reads it again when it changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from .account import BOOK_BYTES, MOST_ACCOUNTS, Account, digest_of, pack

if TYPE_CHECKING:
    import yaml

PATH = re.compile(r" - at `\$(.*)`$")
STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
NAME = r"^[\w.@-]{1,64}$"
MOST_BYTES = 4 << 20  # of the file
LET_THROUGH = ValueError, TypeError, AttributeError, LookupError, ArithmeticError  # by PyYAML, of odd values
Limit = Annotated[int, Meta(ge=1, le=1 << 40)]


class KeyFileError(ValueError):
    """The file cannot be used; the message names it, the line and the field."""


class KeyEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One entry of `keys`."""

    name: Annotated[str, Meta(pattern=NAME)]
    key: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    concurrent: Limit | None = None
    budget: Annotated[int, Meta(ge=0, le=1 << 60)] | None = None
    max_tokens: Limit | None = None
    models: list[str] = []
    priority: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)] | None = None

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.sha256) if self.sha256 else digest_of((self.key or "").encode())


class KeyFileContent(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    keys: Annotated[list[KeyEntry], Meta(min_length=1)]


def read_key_file(path: str, others: Sequence[str] = ()) -> list[KeyEntry]:
    """Its keys. `others`: keys of other options, none of which may stand here."""
    import yaml

    text = _text(path)
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is not None:
            _check_fields(root, path)
        data = None if root is None else loader.construct_document(root)
    except KeyFileError:
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        raise KeyFileError(f"{path}{where}: it is no YAML: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise KeyFileError(f"{path}: it is nested too deeply") from None
    except LET_THROUGH:
        raise KeyFileError(f"{path}{_line_of(loader)}: a date or number that cannot be; quote what is a text") from None
    try:
        keys = msgspec.convert(data, KeyFileContent).keys
    except msgspec.ValidationError as error:
        raise KeyFileError(_trouble(path, root, str(error))) from None
    for number, field, trouble in _troubles(keys, {digest_of(key.encode()) for key in others}):
        raise KeyFileError(f"{path}{_line(root, f'.keys[{number}].{field}')}: {field}: {trouble}")
    return keys


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise KeyFileError(f"{path}: it is longer than {MOST_BYTES} bytes")
        return data.decode()
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KeyFileError(f"{path} cannot be read: it is not UTF-8") from None


def _line_of(loader: yaml.SafeLoader) -> str:
    """`, line N` of what it reads, or makes a value of: the innermost of those it has begun."""
    node = next(reversed(loader.recursive_objects), None)
    return f", line {(loader.get_mark() if node is None else node.start_mark).line + 1}"


def _check_fields(node: yaml.Node, path: str) -> None:
    """Their names are texts; of two fields of one name YAML would take the last."""
    for child in _below(node):
        seen: set[str] = set()
        for key, _ in child.value if child.id == "mapping" else ():
            if key.id != "scalar":
                raise KeyFileError(f"{path}, line {key.start_mark.line + 1}: a field's name is a text")
            if key.value in seen:
                raise KeyFileError(f"{path}, line {key.start_mark.line + 1}: {key.value}: it stands there twice")
            seen.add(key.value)


def _below(node: Any) -> Iterator[Any]:
    """The node and all below it, each once: an alias names one that is there already."""
    waiting, seen = [node], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if one.id == "mapping":
            waiting += [part for pair in one.value for part in pair]
        elif one.id == "sequence":
            waiting += one.value


def _trouble(path: str, root: Any, message: str) -> str:
    """msgspec's message with the line that it speaks of."""
    found = PATH.search(message)
    place = found[1] if found else ""
    reason = PATH.sub("", message)
    fields = [name for name, _ in STEP.findall(place) if name]
    field = f"{fields[-1]}: " if fields and fields != ["keys"] else ""
    return f"{path}{_line(root, place)}: {field}{reason}"


def _line(node: Any, place: str) -> str:
    """`, line N` of what stands at `.keys[1].name`, or of the nearest thing around it."""
    if node is None:
        return ""
    line = node.start_mark.line
    for name, number in STEP.findall(place):
        if name and node.id == "mapping":
            pair = next(((key, value) for key, value in node.value if key.value == name), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line, pair[1]
        elif number and node.id == "sequence" and int(number) < len(node.value):
            node = node.value[int(number)]
            line = node.start_mark.line
        else:
            break
    return f", line {line + 1}"


def _troubles(keys: list[KeyEntry], others: set[bytes]) -> Iterator[tuple[int, str, str]]:
    """(entry, field, what is wrong with it), beyond what types say. Keys are not told: messages are seen."""
    names: set[str] = set()
    digests: set[bytes] = set()
    for number, one in enumerate(keys):
        field = "sha256" if one.sha256 else "key"
        if (one.key is None) == (one.sha256 is None):
            yield number, "key", "an entry has either key or sha256"
        elif one.key is not None and (one.key != one.key.strip() or not one.key.isprintable()):
            yield number, "key", "it must not begin or end with a space, or hold control characters"
        elif not all(map(str.isprintable, one.models)):
            yield number, "models", "they must not hold control characters"
        elif one.name in names:
            yield number, "name", f"{one.name} stands there twice"
        elif one.digest in digests:
            yield number, field, "another entry has the same key"
        elif one.digest in others:
            yield number, field, "it is a key of --api-key or --admin-api-key, too"
        names.add(one.name)
        digests.add(one.digest)
    if len(keys) > MOST_ACCOUNTS:
        yield MOST_ACCOUNTS, "name", f"there are more than {MOST_ACCOUNTS} keys"


def as_accounts(keys: list[KeyEntry], before: list[Account], path: str = "") -> list[Account]:
    """Accounts by entry. Who was there before keeps its entry, also while the file has it no more."""
    entries = {account.name: account.entry for account in before}
    gone = {account.name: Account(account.entry, account.name, b"") for account in before}
    for one in keys:
        entry = entries.setdefault(one.name, len(entries))
        if entry >= MOST_ACCOUNTS:
            raise KeyFileError(f"{path}: more than {MOST_ACCOUNTS} names have stood there since the server's start")
        gone.pop(one.name, None)
    limits = [name for name in Account.__struct_fields__ if name not in ("entry", "name", "digest")]
    made = [
        Account(entries[one.name], one.name, one.digest, **{name: getattr(one, name) for name in limits})
        for one in keys
    ]
    accounts = sorted([*made, *gone.values()], key=lambda account: account.entry)
    if len(pack(accounts)) > BOOK_BYTES:
        raise KeyFileError(f"{path}: its names, models and limits are too long together")
    return accounts
