"""What was said so far, and the commands that change it. It knows neither terminal nor server."""

from __future__ import annotations

from enum import Enum, auto

HELP = """\
/system TEXT   give the model this instruction; /system alone shows it, /system - takes it away
/clear         forget what was said; the instruction stays
/exit          end (so do /quit and Ctrl-D)
/help          this
\"\"\"            begins and ends a message of several lines
//             begins a message with a /
Ctrl-C         ends an answer; what came of it counts as said"""


class Next(Enum):
    """What is to be done after a line."""

    ANSWER = auto()
    NOTHING = auto()
    END = auto()


class Conversation:
    """An instruction and turns. `take` a line, then `heard` or `forget` what became of it."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self._turns: list[dict[str, str]] = []

    def messages(self) -> list[dict[str, str]]:
        """All of it, as requests have it."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self._turns]

    def take(self, text: str) -> tuple[Next, str]:
        """What follows from a line, and what is to be said about it."""
        if not text.strip():
            return Next.NOTHING, ""
        if text.startswith("/") and not text.startswith("//"):
            return self._command(*_split(text))
        self._turns.append({"role": "user", "content": text[1:] if text.startswith("//") else text})
        return Next.ANSWER, ""

    def heard(self, text: str) -> None:
        """The answer, or what came of it; one of which nothing came is not asked for any more."""
        if text:
            self._turns.append({"role": "assistant", "content": text})
        else:
            self.forget()

    def forget(self) -> None:
        """The last message was not answered."""
        self._turns.pop()

    def _command(self, name: str, rest: str) -> tuple[Next, str]:
        match name:
            case "/exit" | "/quit" | "/bye":
                return Next.END, ""
            case "/clear":
                self._turns.clear()
                return Next.NOTHING, "forgotten"
            case "/system":
                if rest:
                    self.system = None if rest == "-" else rest
                return Next.NOTHING, self.system or "there is no instruction"
            case "/help" | "/?":
                return Next.NOTHING, HELP
        return Next.NOTHING, f"there is no command {name}; /help lists them, and // begins a message with a /"


def _split(text: str) -> tuple[str, str]:
    name, _, rest = text.partition(" ")
    return name.strip(), rest.strip()
