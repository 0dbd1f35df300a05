"""--tool-server demo: an MCP server in the tools actor itself, to see the way of a call without another process."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

LONGEST = 200  # characters of an expression
LARGEST = 10**30
OPERATIONS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def make_demo() -> MCPServer:
    """With two tools, which change nothing."""
    server: MCPServer = MCPServer("actorserve demo", log_level="ERROR")

    @server.tool()
    def calculate(expression: str) -> str:
        """Compute an arithmetic expression of numbers, + - * / % and parentheses."""
        return f"{evaluate(expression):g}"

    @server.tool()
    def current_time(timezone: str = "UTC") -> str:
        """The date and time now, in a time zone such as Europe/Berlin."""
        try:
            return datetime.now(ZoneInfo(timezone)).isoformat(timespec="seconds")
        except (ZoneInfoNotFoundError, ValueError):
            raise ToolError(f"timezone: {timezone!r} is none that is known, such as Europe/Berlin") from None

    return server


def evaluate(expression: str) -> float:
    """Its value. ToolError says what is wrong with it."""
    if len(expression) > LONGEST:
        raise ToolError(f"expression: it has more than {LONGEST} characters")
    try:
        return _value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError) as error:
        raise ToolError(f"expression: {error}") from None


def _value(node: ast.AST) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            found = value
        case ast.BinOp() if type(node.op) in OPERATIONS:
            found = OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
        case ast.UnaryOp() if type(node.op) in OPERATIONS:
            found = OPERATIONS[type(node.op)](_value(node.operand))
        case _:
            raise ValueError("numbers, + - * / % and parentheses are known, and nothing else")
    if abs(found) > LARGEST:
        raise ValueError(f"it leads beyond {LARGEST:g}")
    return found
