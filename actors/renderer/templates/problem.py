"""What is said to the client when a conversation cannot be rendered."""

from __future__ import annotations

import traceback

import jinja2

FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, NameError, AssertionError)
NO_MEMORY = (MemoryError, SystemError)  # Python's own words where it finds no room for another call's frame
TEMPLATE_FILE = "<template>"  # Jinja's name for a template that is a text


class TemplateProblem(ValueError):
    """The conversation cannot be rendered; the message is for the client, `param` the request's field at fault."""

    def __init__(self, message: str, param: str = "messages") -> None:
        super().__init__(message)
        self.param = param


class Declined(TemplateProblem):
    """The template's own words against the conversation."""


class OutOfMemory(TemplateProblem):
    """The bound on memory was met. Python itself is not to be trusted any more: where it finds no room for a call's
    frame it counts references wrong (CPython 3.11), so that what is still in use may be freed.
    """


class Raised(jinja2.TemplateError):
    """The template refuses the conversation with words of its own (raise_exception)."""


def problem_of(error: Exception, param: str) -> TemplateProblem:
    """What went wrong in a template while it ran: its own words, or Python's and the line."""
    if isinstance(error, Raised):
        return Declined(str(error.message or "the chat template refuses these messages"))
    if isinstance(error, NO_MEMORY):
        return OutOfMemory("the chat template needs too much memory", param)
    if isinstance(error, RecursionError):  # what it says is about Python
        return TemplateProblem("the chat template fails: too deep a recursion", param)
    words = str(error.message if isinstance(error, jinja2.TemplateError) else error) or type(error).__name__
    if isinstance(error, KeyError):
        words = f"there is no {words}"
    return TemplateProblem(f"the chat template fails{_place(error)}: {words}", param)


def _place(error: Exception) -> str:
    """In which line of the template; the innermost one, where macros call each other."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if _is_template(frame.f_code.co_filename)]
    return f" in line {lines[-1]}" if lines else ""


def _is_template(filename: str) -> bool:
    return filename == TEMPLATE_FILE
