"""What an answer says, in one form for all dialects; what is wrong with a stream is noted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Choice:
    """All that came of one choice. `logprobs`: of each token what its dialect says of it, without the text's bytes."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)  # name and arguments
    finish: str | None = None
    stop: Any = None  # by what it was stopped, where that is told
    ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)

    @property
    def told_calls(self) -> list[list[str]]:
        """Of an answer that was cut their names: some dialects tell what of the arguments was whole."""
        return [call[:1] for call in self.calls] if self.finish == "length" else self.calls


@dataclass
class Said:
    choices: dict[int, Choice] = field(default_factory=dict)
    prompt: int | None = None  # tokens
    tokens: int | None = None  # of all choices
    of_prompt: Any = None  # its logprobs
    wrong: list[str] = field(default_factory=list)

    def choice(self, index: int) -> Choice:
        return self.choices.setdefault(index, Choice())

    def end(self, index: int, finish: str | None, stop: Any = None) -> None:
        one = self.choice(index)
        if one.finish is not None:
            self.wrong.append("more of a choice behind its end")
        if finish is not None:
            one.finish, one.stop = finish, stop

    def same(self, ids: bool = False) -> Any:
        """What is to be the same whenever it is asked, streamed or not. (Usage may be left out of streams.)"""
        choices = [
            (index, one.text, one.reasoning, one.told_calls, one.finish, one.stop, one.logprobs, one.ids if ids else [])
            for index, one in sorted(self.choices.items())
        ]
        return [*choices, self.of_prompt]


def difference(here: Any, there: Any, path: str = "it", within: float = 0) -> str:
    """Where the first two parts stand that are not the same, and what they are; nothing if all are. `within`: so far
    apart numbers may be.
    """
    if here == there or (isinstance(here, float) and isinstance(there, float) and abs(here - there) <= within):
        return ""
    if isinstance(here, dict) and isinstance(there, dict) and here.keys() == there.keys():
        parts: list[tuple[object, Any, Any]] = [(name, here[name], there[name]) for name in here]
    elif isinstance(here, (list, tuple)) and isinstance(there, (list, tuple)) and len(here) == len(there):
        parts = list(zip(range(len(here)), here, there, strict=True))
    else:
        return f"{path} is {here!r:.400}, was {there!r:.400}"
    found = (difference(one, other, f"{path}[{at!r}]", within) for at, one, other in parts)
    return next(filter(None, found), "")
