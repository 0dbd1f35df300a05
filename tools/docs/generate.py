"""Write the tables of options.md, coming-from-vllm.md and api.md anew, from the options and parameters themselves.

.venv/bin/python tools/docs/generate.py
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import get_args, get_type_hints

from actorserve.actors.options import other_servers
from actorserve.actors.options.command_line import describe_options
from actorserve.actors.options.fields import flag
from actorserve.actors.protocol.request import SamplingFields, default_of, sampling_parameters

DOCS = Path(__file__).resolve().parent
END = "<!-- end -->\n"
JSON_TYPES: dict[type, str] = {
    **{float: "number", int: "integer", bool: "boolean", str: "string"},
    **{list: "list", dict: "object"},
}


def options() -> str:
    """A row for each option."""
    rows = "".join(f"| `{option}` | {text} |\n" for option, text in describe_options())
    return f"| option | what it sets (default) |\n|---|---|\n{rows}"


def other_names() -> str:
    """Names of other servers' options that set one of ours."""
    rows: dict[str, list[str]] = {}
    for name, meaning in other_servers.MEANINGS.items():
        if meaning.field:
            ours = "MODEL" if meaning.field == "model" else " ".join(meaning.words())
            rows.setdefault(ours, []).append(f"`{name}`")
    return "| theirs | here |\n|---|---|\n" + "".join(
        f"| {' '.join(names)} | `{ours}` |\n" for ours, names in sorted(rows.items(), key=lambda row: row[0].lower())
    )


def other_values() -> str:
    """Names of other servers' values."""
    rows: dict[tuple[str, str], list[str]] = {}
    for field, names in other_servers.VALUES.items():
        for theirs, ours in names.items():
            rows.setdefault((flag(field), ours), []).append(f"`{theirs}`")
    return "| option | theirs | here |\n|---|---|---|\n" + "".join(
        f"| `{option}` | {' '.join(names)} | `{ours}` |\n" for (option, ours), names in rows.items()
    )


def needless() -> str:
    """Names that ask for what is always so."""
    return _by_reason(other_servers.NEEDLESS)


def refused() -> str:
    """Names of what there is not."""
    return _by_reason(other_servers.REFUSED)


def sampling() -> str:
    """A row for each parameter of sampling."""
    hints = get_type_hints(SamplingFields)
    rows = []
    for name, parameter in sampling_parameters().items():
        kind, default, limit = get_args(hints[name])[0], default_of(name), parameter.range
        said = "" if default in (None, [], "") else str(default).lower().removesuffix(".0")
        types = JSON_TYPES.get(kind) or f"{JSON_TYPES[getattr(kind, '__origin__', kind)]} of {_inside(kind)}"
        words = str(limit) if limit and limit.text else f"{types}, {limit}" if limit else types
        cells = (f"`{name}`", words, said, "yes" if parameter.configurable else "", parameter.about)
        rows.append(f"| {' | '.join(cells)} |\n")
    return f"| field | type and range | default | file | what it does |\n|---|---|---|---|---|\n{''.join(rows)}"


def _inside(kind: type) -> str:
    """What there is in a list or an object."""
    return f"{JSON_TYPES[get_args(kind)[-1]]}s"


def _by_reason(names: dict[str, str]) -> str:
    said = (f"- {reason}: {' '.join(f'`{name}`' for name in these.split())}" for reason, these in names.items())
    return "".join(f"{_wrapped(line)}\n" for line in said)


def _wrapped(line: str) -> str:
    return textwrap.fill(line, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


TABLES = {  # page: name of the mark before a table, and what makes the table
    "options.md": {"options": options},
    "api.md": {"sampling": sampling},
    "coming-from-vllm.md": {
        "names": other_names,
        "values": other_values,
        "needless": needless,
        "refused": refused,
    },
}


def written(page: str) -> str:
    """The page as it should be; ValueError if the place of a table is not marked."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, make in TABLES[page].items():
        begin = f"<!-- {name} -->\n"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(END)
        if not (found and ended):
            raise ValueError(f"{page}: there is no {begin.strip()} with {END.strip()} behind it")
        text = f"{before}{begin}\n{make()}\n{END}{after}"
    return text


def main() -> None:
    """Write all pages."""
    for page in TABLES:
        (DOCS / page).write_text(written(page), encoding="utf-8")


if __name__ == "__main__":
    main()
