"""What bodies with many parts cost before their number is looked at: each part as much, however many there are."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest

from actorserve.http.openai.responses.encrypted import encrypted
from actorserve.http.openai.responses.requests import to_chat
from tests.http.openai.responses.test_requests import TIME, request_of

MOST_S = 6.0  # measured: 0.1 to 0.2, and 15 to 42 where each is compared with all
SUMMARY = {"type": "compaction", "encrypted_content": encrypted("compaction", "a")}
THINKING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a" * 1000}]}
TOOLS = [{**TIME, "name": f"t{number}"} for number in range(40_000)]


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [SUMMARY] * 40_000},
        {"input": [THINKING] * 20_000},
        {"tools": TOOLS},
        {"tools": [{"type": "namespace", "name": "n", "tools": TOOLS}]},
    ],
    ids=["summaries", "thinking", "tools", "tools in a namespace"],
)
def test_what_many_cost(fields: dict[str, Any]) -> None:
    request = request_of(**fields)
    begin = process_time()
    to_chat(request)
    assert process_time() - begin < MOST_S
