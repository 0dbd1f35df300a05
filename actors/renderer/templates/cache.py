"""Templates compiled: the model's own at start, those that come with requests as they come, the last few kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import jinja2

from .content_formats import Reads, read_forms
from .probe import probed
from .problem import OutOfMemory, TemplateProblem
from .switches import Switches, read_switches

LONGEST = 64 << 10  # characters of a request's template; well-known ones have up to 20 thousand
MAX_KEPT = 32  # templates
MAX_KEPT_TEXT = 2 << 20  # characters of all that are kept; compiled they take some ten times that
FAULTS = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError, jinja2.TemplateError)


class Compiled(NamedTuple):
    """A template that is ready, and what there is to know about it."""

    source: str
    template: jinja2.Template
    reads: Reads
    switches: Switches
    from_request: bool = False


def compile_template(
    environment: jinja2.Environment, source: str, content_format: str, beat: Callable[[], None] = lambda: None
) -> Compiled:
    """ValueError says what is wrong with it, and where; one of them is OutOfMemory. `beat` is called as it gets on."""
    try:
        tree = environment.parse(source)
        template = environment.from_string(source)
        reads = probed(template, read_forms(tree, content_format), beat)
        return Compiled(source, template, reads, read_switches(tree))
    except OutOfMemory:
        raise
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.message}") from None
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is too deeply nested") from error
    except FAULTS as error:  # what Jinja lets through, and Python does not: too many blocks in each other, say
        raise ValueError(f"it cannot be compiled: {error}") from None


class RequestTemplates:
    """Compiles what clients send, in the same sandbox; the least recently used are forgotten first."""

    def __init__(
        self, environment: jinja2.Environment, content_format: str, beat: Callable[[], None] = lambda: None
    ) -> None:
        self._environment = environment
        self._content_format = content_format
        self._beat = beat
        self._kept: OrderedDict[str, Compiled] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, source: str) -> bool:
        return source in self._kept

    def get(self, source: str) -> Compiled:
        """TemplateProblem for chat_template where it cannot be used."""
        if not isinstance(source, str) or not source:
            raise TemplateProblem("chat_template must be the text of a template", "chat_template")
        if len(source) > LONGEST:
            words = f"chat_template has {len(source):,} characters; {LONGEST:,} are allowed"
            raise TemplateProblem(words, "chat_template")
        if (found := self._kept.get(source)) is not None:
            self._kept.move_to_end(source)
            return found
        try:
            made = compile_template(self._environment, source, self._content_format, self._beat)
        except OutOfMemory:
            raise
        except ValueError as error:
            problem = OutOfMemory if isinstance(error.__cause__, MemoryError) else TemplateProblem
            raise problem(f"chat_template: {error}", "chat_template") from None
        self._kept[source] = made = made._replace(from_request=True)
        while len(self._kept) > MAX_KEPT or sum(map(len, self._kept)) > MAX_KEPT_TEXT:
            self._kept.popitem(last=False)
        return made
