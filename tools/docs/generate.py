"""Write the tables of options.md and coming-from-vllm.md anew, from the options themselves.

.venv/bin/python tools/docs/generate.py
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from actorserve.actors.options import other_servers
from actorserve.actors.options.command_line import describe_options
from actorserve.actors.options.fields import flag

DOCS = Path(__file__).resolve().parent
END = "<!-- end -->\n"


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


def _by_reason(names: dict[str, str]) -> str:
    said = (f"- {reason}: {' '.join(f'`{name}`' for name in these.split())}" for reason, these in names.items())
    return "".join(f"{_wrapped(line)}\n" for line in said)


def _wrapped(line: str) -> str:
    return textwrap.fill(line, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


TABLES = {  # page: name of the mark before a table, and what makes the table
    "options.md": {"options": options},
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
