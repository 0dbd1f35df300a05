"""Read the tables beside this module: rows of `|`-separated cells, and blocks of questions with their answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TABLES = Path(__file__).parent / "tables"


@dataclass(frozen=True)
class Fact:
    """Some ways to ask one thing, and what may be answered. `subject` is what a follow-up question would name."""

    topic: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    subject: str = ""


def lines(name: str) -> list[str]:
    """The lines of a table without its comments and empty lines."""
    text = (TABLES / f"{name}.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("# ")]


def rows(name: str) -> list[list[str]]:
    """The cells of each line of a table."""
    return [line.split("|") for line in lines(name)]


def words(name: str) -> list[str]:
    """All words of a table that is nothing but words."""
    return " ".join(lines(name)).split()


def blocks(name: str) -> list[Fact]:
    """Facts from a file of blocks: lines `? question`, then lines `= answer` in which \\n is a line break."""
    text = (TABLES / f"{name}.txt").read_text(encoding="utf-8")
    return [_block(name, block.splitlines()) for block in text.split("\n\n") if block.strip()]


def _block(topic: str, block: list[str]) -> Fact:
    questions = tuple(line[2:] for line in block if line.startswith("? "))
    answers = tuple(_unescape(line[2:]) for line in block if line.startswith("= "))
    return Fact(topic, questions, answers)


def _unescape(text: str) -> str:
    return text.replace("\\\\n", "\0").replace("\\n", "\n").replace("\0", "\\n")
