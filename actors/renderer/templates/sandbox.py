"""The sandbox that chat templates run in: what transformers' has, and nothing that grows without bound.

Templates are other people's code. They reach plain data only; what they may produce is bounded by their caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from markupsafe import EscapeFormatter, Markup

from . import filters
from .bounds import MAX_TEXT, check, check_binop, check_call, check_output, check_parts, check_spec, text_size

__all__ = ["MAX_TEXT", "Sandbox", "make_environment"]


class GenerationBlock(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it is only passed over."""

    tags = {"generation"}  # Jinja declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        return [nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)]


class PlainDict:
    """`dict` for templates: it makes dictionaries, and the type itself, through which Python is reached, is hidden."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class PlainNamespace(Namespace):
    """`namespace` for templates, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # Namespace's own form: `self` is a name like any other
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore, as {name!r} does")


class Formatter(SandboxedFormatter):
    """`str.format`, with bounds for the widths and for all that it makes."""

    made = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        check_spec(format_spec)
        check_output(value)
        text = super().format_field(value, format_spec)
        self.made += len(text)
        check(self.made, "format")
        return text

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion:
            text_size(value, "format")
        return super().convert_field(value, conversion)


class EscapingFormatter(Formatter, EscapeFormatter):
    """The same for text that is marked as safe: what is put into it is escaped."""


class Code(CodeGenerator):
    """Jinja's compiler, in which the pieces of `~` are looked at before they are joined."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        joining = "markup_join" if frame.eval_ctx.autoescape else "str_join"
        if frame.eval_ctx.volatile:
            joining = "(markup_join if context.eval_ctx.autoescape else str_join)"
        self.write(f"{joining}(environment.check_parts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which no operation makes more than a template may produce."""

    code_generator_class = Code
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    check_parts = staticmethod(check_parts)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:  # of macros, of blocks that are set or filtered
        return "".join(check_parts(list(parts), "a macro or block"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # as Jinja's
        args = check_call(__obj, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        pattern = value.__self__
        takes_map = value.__name__ == "format_map"

        def formatted(*args: Any, **named: Any) -> str:
            if takes_map:
                (named,), args = args, ()
            if isinstance(pattern, Markup):
                return Markup(EscapingFormatter(self, escape=pattern.escape).vformat(pattern, args, named))
            return Formatter(self).vformat(pattern, args, named)

        return formatted


def make_environment() -> ImmutableSandboxedEnvironment:
    """The environment that chat templates are written for."""
    environment = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationBlock, "jinja2.ext.loopcontrols"],
        finalize=check_output,
    )
    environment.filters.update(filters.BOUNDED)
    environment.globals["raise_exception"] = filters.raise_exception
    environment.globals["strftime_now"] = filters.strftime_now
    environment.globals["lipsum"] = filters.lipsum
    environment.globals["dict"] = PlainDict()
    environment.globals["namespace"] = PlainNamespace
    return environment
