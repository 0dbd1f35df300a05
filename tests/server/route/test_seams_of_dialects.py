"""Streams of other APIs than OpenAI's, cut behind a piece and gone on with: nothing in them tells of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.api.test_tool_calls import TOOLS
from tests.server.dialects.conftest import scripted_server as scripted_server
from tests.support.server import Server
from tests.support.streams import pieces as streams
from tests.support.streams.dialects import ANSWERS, COHERE, COHERE_V1, DIALECTS, OLLAMA_CHAT, OLLAMA_TEXT
from tests.support.streams.pieces import Pieces, answer_of, post

QUICK = [
    "ollama logprobs",
    "ollama context",
    "ollama raw",
    "cohere logprobs",
    "cohere tool",
    "cohere v1",
    "llama.cpp stop",
    "sglang",
    "tgi",
    "invocations",
]
FEW = 3  # seams of each case that are tried in a quick run


def seams_of(path: str, fields: dict[str, Any], server: Server, most: int) -> int:
    """As clients of the dialect read its answers."""
    return streams.seams_of(server, path, fields, most, ANSWERS.get(path, answer_of))


@pytest.mark.parametrize("name", QUICK)
def test_a_stream_goes_on_at_its_token(demo_server: Server, name: str) -> None:
    seams_of(*DIALECTS[name], demo_server, FEW)


@pytest.mark.slow
def test_so_it_does_behind_each_piece(demo_server: Server) -> None:
    """How many pieces there are, a busy machine decides: several tokens may be one."""
    seams = {name: seams_of(*case, demo_server, 1000) for name, case in DIALECTS.items()}
    assert min(seams.values()) > 2, seams


@pytest.mark.parametrize("script", ["answer", "two"])
@pytest.mark.parametrize("path", [OLLAMA_CHAT, COHERE])
def test_thinking_and_calls_go_on(scripted_server: Server, path: str, script: str) -> None:
    """A call comes whole at Ollama's clients, in parts at Cohere's, wherever it was cut."""
    kinds: dict[str, dict[str, Any]] = {OLLAMA_CHAT: {"think": True}, COHERE: {"thinking": {"type": "enabled"}}}
    fields = {"model": "tiny", "messages": [{"role": "user", "content": f"<{script}>"}], "tools": TOOLS, **kinds[path]}
    assert seams_of(path, fields, scripted_server, 8) > 2


def test_calls_of_coheres_version_1_go_on(scripted_server: Server) -> None:
    """Its last line has the text and the calls of both servers."""
    tools = [{"name": "weather", "parameter_definitions": {"city": {"type": "str"}}}]
    fields = {"model": "tiny", "message": "<two>", "tools": tools}
    assert seams_of(COHERE_V1, fields, scripted_server, 8) > 2


def test_ollama_streams_if_nothing_is_said_of_it(demo_server: Server) -> None:
    """Also where another server has begun."""
    body = json.dumps({"prompt": "Once", "raw": True, "options": {"num_predict": 12}}).encode()
    pieces = Pieces(post(demo_server, OLLAMA_TEXT, body))
    before, trail = pieces.up_to(2)
    behind, _ = Pieces(post(demo_server, "/go_on", trail.go_on(OLLAMA_TEXT, body, "cut"))).up_to(-1, trail)
    assert ANSWERS[OLLAMA_TEXT](before + behind) == ANSWERS[OLLAMA_TEXT](pieces.up_to(-1)[0])
    whole = post(demo_server, OLLAMA_TEXT, json.dumps({**json.loads(body), "stream": False}).encode())
    assert whole.headers["X-Actorserve-Origin"] is None and json.loads(whole.read())["done"]
