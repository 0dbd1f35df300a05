"""Which MCP servers a request may name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from actorserve.actors.protocol.topics.tools import LONGEST, CallTool
from actorserve.actors.protocol.topology import SMALL
from actorserve.http.errors import ApiError
from actorserve.http.openai.responses.mcp.tools import LONGEST_HEADERS, LONGEST_URL, MOST_HEADERS, mcp_servers
from actorserve.http.openai.responses.schemas import ResponsesRequest
from actorserve.http.settings import Tools
from tests.http.serving import SETTINGS

URL = "https://a.example/mcp"
OPEN = replace(SETTINGS, tools=cast(Tools, object()), tools_by_url=True)
EACH = LONGEST_HEADERS // MOST_HEADERS


def servers(**fields: Any) -> list[Any]:
    tool = {"type": "mcp", "server_label": "a" * 64, "server_url": URL, **fields}
    return mcp_servers(msgspec.convert({"model": "m", "input": "hi", "tools": [tool]}, ResponsesRequest), OPEN)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("server_url", {"server_url": URL.ljust(LONGEST_URL + 1, "a")}),
        ("headers", {"headers": {f"{number:02}": "a" * EACH for number in range(MOST_HEADERS)}}),
        ("authorization", {"authorization": "a" * LONGEST_HEADERS}),
        ("headers", {"headers": {"a": "a" * LONGEST_HEADERS}, "authorization": "b"}),
    ],
)
def test_what_is_too_long_is_named(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match=f"at most {LONGEST_URL if field == 'server_url' else LONGEST_HEADERS}") as told:
        servers(**fields)
    assert (told.value.status, told.value.param) == (400, f"tools[0].{field}")


def test_the_longest_fit_into_the_lane_to_who_calls_them() -> None:
    headers = {f"{number:02}": "a" * (EACH - 2) for number in range(MOST_HEADERS)}
    (server,) = servers(server_url=URL.ljust(LONGEST_URL, "é"), headers=headers)
    call = CallTool(1 << 63, 1 << 31, b"k" * 64, server.address, "n" * LONGEST, "a" * LONGEST)
    assert len(msgspec.msgpack.encode(call)) < SMALL // 2 - 1024
