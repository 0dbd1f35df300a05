"""Tools of MCP servers, called for /v1/responses: streamed, whole, approved, refused; with deaths in the middle of a
call. A call is never made twice.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses.mcp_tool_call_error import McpToolExecutionError

from tests.server.api.test_tool_calls import QWEN, hermes
from tests.support.plugins import mcp_server
from tests.support.scripted import LAST, scripted
from tests.support.server import Server

DONE = "All of it is done, and it was said in several words."
NEVER: dict[str, Any] = {"type": "mcp", "server_label": "noted", "require_approval": "never"}
ASKING: dict[str, Any] = {"type": "mcp", "server_label": "noted"}
SCRIPTS = {
    "call": f"I call it.\n{hermes('say', {'text': '<done>'})}",
    "two": hermes("say", {"text": "<none>"}) + "\n" + hermes("say", {"text": "<done>"}),
    "again": hermes("say", {"text": "<again>"}),
    "wait": f"Then I wait.\n{hermes('wait', {'text': '<done>'})}",
    "fail": hermes("fail", {"text": "<done>"}),
    "mixed": hermes("say", {"text": "<done>"}) + "\n" + hermes("weather", {"city": "Paris"}),
    "done": DONE,
}


class Noted:
    """The folder of the test's MCP server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self) -> list[str]:
        """The calls since the last time."""
        file = self.folder / "calls"
        calls = file.read_text().split("\n")[:-1] if file.exists() else []
        file.unlink(missing_ok=True)
        return calls

    def has_call(self) -> None:
        """Once there is one."""
        done = threading.Event()
        while not (self.folder / "calls").exists():
            assert not done.wait(0.01)

    def open(self) -> None:
        (self.folder / "open").touch()


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> Noted:
    return Noted(tmp_path_factory.mktemp("noted"))


@pytest.fixture
def gate(noted: Noted) -> Iterator[Noted]:
    """It is closed at first."""
    (noted.folder / "open").unlink(missing_ok=True)
    noted.take()
    yield noted
    noted.open()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, noted: Noted) -> Iterator[Server]:
    folder = Path(tmp_path_factory.mktemp("model"))
    template = (
        f"{{% if false %}}{QWEN.mark}{{% endif %}}"
        "{% if 'not ' in messages[-1].content or 'rror' in messages[-1].content or 'interrupted' in "
        f"messages[-1].content %}}<done>{{% else %}}{LAST}{{% endif %}}"
    )
    scripted(folder, SCRIPTS, template=template)
    file = folder / "tools.json"
    command = {"command": sys.executable, "args": [mcp_server.__file__, str(noted.folder)]}
    file.write_text(json.dumps({"mcpServers": {"noted": command}}))
    options = ("--threads", "1", "--max-restarts", "100", "--served-model-name", "gpt", "--max-tool-calls", "3")
    with Server(str(folder), "--tool-server", f"demo,{file}", *options) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0) as made:
        yield made


def ask(client: OpenAI, script: str, **fields: Any) -> Any:
    return client.responses.create(**{"model": "gpt", "input": f"<{script}>", "tools": [NEVER], **fields})


def kinds(answer: Any) -> list[str]:
    return [item.type for item in answer.output]


def calls(answer: Any) -> list[tuple[str, str | None, Any]]:
    return [(one.status, one.output, one.error) for one in answer.output if one.type == "mcp_call"]


def told(error: Any) -> str:
    """The text of a call's error, in the form of the client's types."""
    assert isinstance(error, McpToolExecutionError)
    content: Any = error.content
    return str(content[0]["text"])


def test_a_call_is_made_and_the_model_goes_on(client: OpenAI, gate: Noted) -> None:
    whole = ask(client, "call")
    assert kinds(whole) == ["mcp_list_tools", "message", "mcp_call", "message"] and whole.status == "completed"
    assert [tool.name for tool in whole.output[0].tools] == ["say", "wait", "fail"]
    assert calls(whole) == [("completed", "<done>", None)] and whole.output_text.endswith(DONE)
    assert gate.take() == ["<done>"]
    events = list(ask(client, "call", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    named = [event.type for event in events if "mcp" in event.type]
    assert [name for name in named if "delta" not in name] == [
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]
    last = events[-1]
    assert last.type == "response.completed" and last.response.output_text == whole.output_text
    assert last.response.usage == whole.usage and whole.usage.output_tokens > 10
    again = ask(client, "done", previous_response_id=whole.id)
    assert kinds(again) == ["message"], "the tools are known from the response before it"


def test_what_fails_is_told_to_the_model(client: OpenAI, gate: Noted) -> None:
    failed = ask(client, "fail")
    ((status, output, error),) = calls(failed)
    assert status == "failed" and output is None and "fail" in told(error) and failed.output_text == DONE
    again = ask(client, "done", previous_response_id=failed.id)
    assert kinds(again) == ["message"], "what failed stands before it"


def test_calls_have_an_end(client: OpenAI, gate: Noted) -> None:
    """A model that calls again and again is offered no tools any more."""
    answer = ask(client, "again", max_tool_calls=2)
    assert gate.take() == ["<again>"] * 2 and answer.status == "completed"
    assert len(ask(client, "two", max_tool_calls=1).output) > 2 and gate.take() == ["<none>"]
    assert ask(client, "again").status == "completed" and len(gate.take()) == 3, "--max-tool-calls"


def test_who_calls_what_stands_side_by_side(client: OpenAI, gate: Noted) -> None:
    function: dict[str, Any] = {"type": "function", "name": "weather", "parameters": {}, "strict": False}
    answer = ask(client, "mixed", tools=[NEVER, function])
    assert kinds(answer) == ["mcp_list_tools", "mcp_call", "function_call"] and gate.take() == ["<done>"]


def test_approval(client: OpenAI, gate: Noted) -> None:
    asked = ask(client, "call", tools=[ASKING])
    assert kinds(asked)[-1] == "mcp_approval_request" and gate.take() == []
    request = asked.output[-1].id
    answer: dict[str, Any] = {"type": "mcp_approval_response", "approval_request_id": request, "approve": True}
    fields: dict[str, Any] = {"tools": [ASKING], "previous_response_id": asked.id, "model": "gpt"}
    respond: Any = client.responses.create
    done = respond(input=[answer], **fields)
    assert kinds(done) == ["mcp_call", "message"] and done.output[0].approval_request_id == request
    assert done.output_text == DONE and gate.take() == ["<done>"]
    denied = respond(input=[answer | {"approve": False}], **fields)
    assert kinds(denied) == ["message"] and gate.take() == []
    read_only: dict[str, Any] = {"never": {"read_only": True}}
    free = ask(client, "call", tools=[{**ASKING, "require_approval": read_only}])
    assert calls(free) == [("completed", "<done>", None)] and gate.take() == ["<done>"]


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("tools[0].server_label", {"tools": [{"type": "mcp", "server_label": "nobody"}]}),
        ("tools[0].server_label", {"tools": [{"type": "mcp"}]}),
        ("tools[0].server_url", {"tools": [{**NEVER, "server_url": "http://127.0.0.1:1/mcp"}]}),
        ("tools[0].headers", {"tools": [{**NEVER, "headers": {"a": "b"}}]}),
        ("tools[0].connector_id", {"tools": [{**NEVER, "connector_id": "connector_gmail"}]}),
        ("tools[0].allowed_tools", {"tools": [{**NEVER, "allowed_tools": ["nothing"]}]}),
        ("tools[1].server_label", {"tools": [NEVER, NEVER]}),
        ("tool_choice.type", {"tool_choice": {"type": "mcp", "server_label": "noted", "name": "say"}}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
    ],
)
def test_what_cannot_be(client: OpenAI, field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "done", **fields)
    assert caught.value.param == field, caught.value.message


def test_tools_of_servers_are_no_tokens(client: OpenAI) -> None:
    body = {"model": "gpt", "input": "<done>", "tools": [NEVER]}
    with pytest.raises(openai.BadRequestError, match=r"tools\[0\]: tools of MCP servers cannot be rendered") as caught:
        client.post("/responses/render", cast_to=object, body=body)
    assert caught.value.param == "tools[0]"


def test_a_key_calls_once(client: OpenAI, gate: Noted) -> None:
    fields: dict[str, Any] = {"extra_headers": {"Idempotency-Key": "one"}}
    first, second = ask(client, "call", **fields), ask(client, "call", **fields)
    assert first.to_dict()["output"] == second.to_dict()["output"] and first.id == second.id
    assert gate.take() == ["<done>"]


def streamed(client: OpenAI, gate: Noted, kill: Any, **fields: Any) -> tuple[list[Any], Any]:
    """The events of a call that waits while `kill` is done."""
    events: list[Any] = []
    with ask(client, "wait", stream=True, **fields) as stream:
        for event in stream:
            events.append(event)
            if event.type == "response.mcp_call_arguments.done":
                gate.has_call()
                kill()
                gate.open()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events, events[-1].response


@pytest.mark.parametrize("background", [False, True])
def test_a_frontend_dies_in_a_call(client: OpenAI, server: Server, gate: Noted, background: bool) -> None:
    """Its successor gets what the call has brought, and the stream goes on."""

    def kill() -> None:
        for _ in range(2):  # the second time before or behind what its predecessor has gone on with
            server.replace("frontend-0")

    _, answer = streamed(client, gate, kill, background=background)
    assert calls(answer) == [("completed", "<done>", None)] and gate.take() == ["<done>"]
    assert answer.output_text.endswith(DONE)


@pytest.mark.parametrize("die", [False, True])
def test_in_the_background(client: OpenAI, server: Server, gate: Noted, die: bool) -> None:
    """The call is made though nobody waits for the answer, which is fetched, and read event by event."""
    begun = ask(client, "wait", background=True)
    assert begun.status == "queued"
    gate.has_call()
    if die:
        server.replace("frontend-0")
    assert client.responses.retrieve(begun.id).status == "in_progress"
    early = iter(client.responses.retrieve(begun.id, stream=True))
    seen = [next(early)]
    gate.open()
    seen += early
    found = client.responses.retrieve(begun.id)
    assert calls(found) == [("completed", "<done>", None)] and found.output_text.endswith(DONE)
    assert gate.take() == ["<done>"] and found.status == "completed" and found.usage is not None
    assert [event.sequence_number for event in seen] == list(range(len(seen))) and seen[-1].type == "response.completed"
    later = list(client.responses.retrieve(begun.id, stream=True, starting_after=3))
    assert [event.to_dict() for event in later] == [event.to_dict() for event in seen[4:]]
    again = ask(client, "done", previous_response_id=begun.id)
    assert kinds(again) == ["message"], "the tools are known from the response before it"


def test_one_in_the_background_is_cancelled(client: OpenAI, server: Server, gate: Noted) -> None:
    begun = ask(client, "wait", background=True)
    gate.has_call()
    assert client.responses.cancel(begun.id).status == "cancelled"
    gate.open()
    for _ in range(2):
        assert client.responses.retrieve(begun.id).status == "cancelled"
        server.replace("frontend-0")
    assert gate.take() == ["<done>"]


def test_the_tools_actor_dies_in_a_call(client: OpenAI, server: Server, gate: Noted) -> None:
    """The call is not made again; the model is told, and what comes after it works."""

    def kill() -> None:
        server.replace("tools")

    _, answer = streamed(client, gate, kill)
    ((status, output, error),) = calls(answer)
    assert status == "failed" and output is None and "interrupted" in told(error)
    assert gate.take() == ["<done>"] and answer.output_text.endswith(DONE)
    assert calls(ask(client, "call")) == [("completed", "<done>", None)] and gate.take() == ["<done>"]


def test_both_die(client: OpenAI, server: Server, gate: Noted) -> None:
    def kill() -> None:
        for name in ("tools", "frontend-0", "worker", "scheduler"):
            server.replace(name)

    _, answer = streamed(client, gate, kill)
    ((status, _, error),) = calls(answer)
    assert status == "failed" and "interrupted" in told(error) and gate.take() == ["<done>"]
    assert answer.output_text.endswith(DONE)


def test_the_demo(client: OpenAI) -> None:
    answer = ask(client, "done", tools=[{"type": "mcp", "server_label": "demo", "allowed_tools": ["calculate"]}])
    assert kinds(answer) == ["mcp_list_tools", "message"]
    assert [tool.name for tool in answer.output[0].tools] == ["calculate", "current_time"]


@pytest.mark.slow
def test_a_server_that_ends_waits_for_a_call(tmp_path: Path) -> None:
    """It drains: nothing is computed meanwhile, and the response is under way all the same."""
    folder = scripted(tmp_path / "model", SCRIPTS, template=f"{{% if false %}}{QWEN.mark}{{% endif %}}{LAST}")
    noted = Noted(tmp_path)
    file = tmp_path / "tools.json"
    command = {"command": sys.executable, "args": [mcp_server.__file__, str(tmp_path)]}
    file.write_text(json.dumps({"mcpServers": {"noted": command}}))
    with Server(str(folder), "--tool-server", str(file), "--threads", "1", "--served-model-name", "gpt") as server:
        with OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0) as client:

            def end() -> None:
                server.signal(signal.SIGTERM)
                server.wait_for("SIGTERM: the server stops")
                assert not threading.Event().wait(1.0), "longer than a drain waits for requests that may come"

            _, answer = streamed(client, noted, end)
            assert calls(answer) == [("completed", "<done>", None)] and answer.output_text.endswith(DONE)
        assert server.wait() == 0


def test_over_a_websocket_through_the_death_of_its_frontend(client: OpenAI, server: Server, gate: Noted) -> None:
    pytest.importorskip("websockets")
    with client.responses.connect() as connection:
        asked: dict[str, Any] = {"model": "gpt", "input": "<wait>", "tools": [NEVER], "store": False}
        connection.response.create(**asked)
        events: list[Any] = []
        killed = False
        while not events or events[-1].type != "response.completed":
            events.append(connection.recv())
            if events[-1].type == "response.mcp_call_arguments.done" and not killed:
                gate.has_call()
                server.replace("frontend-0")
                gate.open()
                killed = True
        assert killed and [event.sequence_number for event in events] == list(range(len(events)))
        assert kinds(events[-1].response)[-2:] == ["mcp_call", "message"]
    assert len(gate.take()) == 1
