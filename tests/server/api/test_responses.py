"""OpenAI's Responses API with its client against a running server, whose frontends die meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from actorserve.http.openai.responses.encrypted import decrypted
from tests.server.api.test_tool_calls import PARIS, QWEN, ROME, TOOLS, hermes
from tests.support.client import http_client
from tests.support.rolling import restart
from tests.support.scripted import scripted
from tests.support.selection import slow
from tests.support.server import Server
from tests.support.until import until

FUNCTIONS: list[Any] = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]
PATCH = '*** Begin Patch\n+a "b"\t\\c\n*** End Patch'
REMEMBERS = (  # what is asked for by <recall> is known where the thinking, or a summary, stands before it
    "{% set ns = namespace(known=false) %}{% for message in messages %}{% set said = message.content or '' %}"
    "{% if 'Pondered  so.' in (message.reasoning_content or '') or said.endswith(':\n\nAll of it.') %}"
    "{% set ns.known = true %}{% endif %}{% endfor %}{% set last = messages[-1].content %}"
    "{% if last == '<recall>' and ns.known %}<known>{% elif last.startswith('Sum up') %}"
    "{{ '<long>' if messages[0].content == '<long>' else '<sum>' }}"
    "{% else %}{{ last }}{% endif %}"
)
RUNNING = 'vllm:num_requests_running{engine="0",model_name="gpt"} 1.0'
BOTTLES = "".join(f"{number} bottles, " for number in range(300))


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("-\nother\n")
    return file


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, keys_file: Path) -> Iterator[Server]:
    folder = Path(tmp_path_factory.mktemp("qwen"))
    scripts = {**QWEN.scripts, "long": BOTTLES, "in a namespace": hermes("mcp__meteo__weather", PARIS)}
    scripts["custom"] = hermes("patch", {"input": PATCH})
    scripts |= {"ponder": "<think>\nPondered  so.\n</think>\n\nDone.", "known": "It was known.", "sum": "All of it."}
    scripted(folder, scripts, template=f"{{% if false %}}{QWEN.mark}{{% endif %}}{REMEMBERS}")
    options = ("--threads", "1", "--frontends", "2", "--max-restarts", "100", "--served-model-name", "gpt")
    keys = ("--api-key-file", str(keys_file), "--prefix-cache-per-client")
    with Server(str(folder), *keys, *options) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0) as made:
        yield made


def kill_frontends(server: Server) -> None:
    for name in ("frontend-0", "frontend-1"):
        server.replace(name)


def ask(client: OpenAI, script: str, **fields: Any) -> Any:
    """The whole answer, which must be the stream's, too."""
    asked: dict[str, Any] = {"model": "gpt", "input": f"<{script}>", "tools": FUNCTIONS, **fields}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        numbers = [event.sequence_number for event in stream]
        streamed = stream.get_final_response()
    assert numbers == list(range(len(numbers)))
    assert [_plain(item) for item in streamed.output] == [_plain(item) for item in whole.output]
    assert (streamed.status, streamed.usage) == (whole.status, whole.usage)
    return whole


def _plain(item: Any) -> Any:
    body = item.to_dict()
    return {name: value for name, value in body.items() if name not in ("id", "call_id", "parsed_arguments")} | {
        "content": [part.get("text") for part in body.get("content") or ()]
    }


def test_a_text(client: OpenAI) -> None:
    answer = ask(client, "none")
    assert answer.output_text == QWEN.scripts["none"] and answer.status == "completed"
    assert answer.usage.input_tokens == 1 and answer.id.startswith("resp_")


def test_calls_and_thinking(client: OpenAI) -> None:
    calls = [item for item in ask(client, "two").output if item.type == "function_call"]
    assert [call.name for call in calls] == ["weather"] * 2
    assert [json.loads(call.arguments) for call in calls] == [PARIS, ROME]
    answer = ask(client, "think")
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    assert answer.usage.output_tokens_details.reasoning_tokens > 3


def test_thinking_that_is_not_stored_comes_back_with_the_next_turn(client: OpenAI, server: Server) -> None:
    """As Codex sends it, without what it says in clear, to whichever frontend there is by now."""
    fields: dict[str, Any] = {"model": "gpt", "store": False, "include": ["reasoning.encrypted_content"]}
    thought, said = client.responses.create(input="<ponder>", **fields).output
    sent: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}
    kill_frontends(server)
    turns: list[Any] = [{"role": "user", "content": "<ponder>"}, sent, said.to_dict()]
    recall: Any = {"role": "user", "content": "<recall>"}
    assert client.responses.create(input=[*turns, recall], **fields).output_text == "It was known."
    del turns[1]
    assert client.responses.create(input=[*turns, recall], **fields).output_text != "It was known."
    foreign: list[Any] = [{**sent, "encrypted_content": "gAAAAABo"}, recall]
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input=foreign, **fields)
    assert refused.value.param == "input[0].encrypted_content" and refused.value.code == "invalid_encrypted_content"


def test_a_conversation_is_compacted(client: OpenAI, server: Server) -> None:
    talk: list[Any] = [{"role": "user", "content": "<none>"}, {"role": "assistant", "content": "No."}]
    recall: Any = {"role": "user", "content": "<recall>"}
    compacted = client.responses.compact(model="gpt", input=talk)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    kill_frontends(server)
    window: list[Any] = [item.to_dict() for item in compacted.output]
    assert client.responses.create(model="gpt", input=[*window, recall]).output_text == "It was known."
    made = ask(client, "none", input=[*talk, {"type": "compaction_trigger"}])  # as Codex asks for it
    assert [item.type for item in made.output] == ["compaction"]
    again = client.responses.create(model="gpt", input="<recall>", previous_response_id=made.id)
    assert again.output_text == "It was known."


def test_a_compaction_goes_on_when_its_frontend_dies(client: OpenAI, server: Server) -> None:
    """Nothing of it is out before its end: whoever takes it over answers in the same connection."""
    with http_client(server) as watch, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.responses.compact, model="gpt", input="<long>")
        until(lambda: RUNNING in watch.get("/metrics").text)
        kill_frontends(server)
        compacted = asked.result(60)
    summary: Any = compacted.output[-1]
    assert decrypted("compaction", summary.encrypted_content, "") == BOTTLES
    assert compacted.usage.output_tokens > 300


def test_so_does_a_streamed_one_of_which_nothing_is_told_on_the_way(client: OpenAI, server: Server) -> None:
    window: Any = [{"role": "user", "content": "<long>"}, {"type": "compaction_trigger"}]
    events = []
    for event in client.responses.create(model="gpt", input=window, stream=True):
        events.append(event)
        if event.type == "response.output_item.added":
            kill_frontends(server)
    assert [event.sequence_number for event in events] == list(range(5)), "each event is told once"
    last: Any = events[-1]
    assert decrypted("compaction", last.response.output[0].encrypted_content, "") == BOTTLES


def test_a_tool_in_a_namespace_is_called_by_both_its_names(client: OpenAI, server: Server) -> None:
    """As Codex offers what its MCP servers have, beside tools of its own host."""
    tools: list[Any] = [
        {"type": "namespace", "name": "mcp__meteo", "description": "The weather.", "tools": FUNCTIONS},
        {"type": "web_search"},
        {"type": "function", "name": "mcp__other", "parameters": {}, "strict": False},
    ]
    answer = ask(client, "in a namespace", tools=tools)
    (call,) = answer.output
    assert (call.type, call.namespace, call.name) == ("function_call", "mcp__meteo", "weather")
    assert json.loads(call.arguments) == PARIS
    begun = client.responses.create(model="gpt", input="<in a namespace>", tools=tools, background=True)
    kill_frontends(server)
    (again,) = wait_for(client, begun.id).output
    assert (again.namespace, again.name) == ("mcp__meteo", "weather")
    result: Any = {"type": "function_call_output", "call_id": again.call_id, "output": "rain"}
    behind = client.responses.create(model="gpt", input=[result], previous_response_id=begun.id, tools=tools)
    assert behind.status == "completed"


def test_a_custom_tool_is_called_with_a_text(client: OpenAI, server: Server) -> None:
    """As Codex offers its patches; what a grammar makes of this model's words is not its script."""
    patch: Any = {"type": "custom", "name": "patch", "description": "Changes files."}
    (call,) = ask(client, "custom", tools=[patch, *FUNCTIONS]).output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", PATCH)
    begun = client.responses.create(model="gpt", input="<custom>", tools=[patch], background=True)
    kill_frontends(server)
    (again,) = wait_for(client, begun.id).output
    assert again.input == PATCH
    result: Any = {"type": "custom_tool_call_output", "call_id": again.call_id, "output": "done"}
    behind = client.responses.create(model="gpt", input=[result], previous_response_id=begun.id, tools=[patch])
    assert behind.status == "completed"


def test_the_limit(client: OpenAI) -> None:
    answer = client.responses.create(model="gpt", input="<none>", max_output_tokens=4)
    assert answer.status == "incomplete" and answer.incomplete_details
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_what_is_kept_is_found_by_every_frontend_and_its_successor(client: OpenAI, server: Server) -> None:
    made = [client.responses.create(model="gpt", input="<none>") for _ in range(6)]
    streamed = client.responses.create(model="gpt", input="<none>", stream=True)
    ids = [one.id for one in made] + [event.response.id for event in streamed if event.type == "response.completed"]
    for _ in range(2):
        for name in ids:
            for _ in range(3):  # on connections of both
                with OpenAI(base_url=client.base_url, api_key="-", max_retries=0) as other:
                    found = other.responses.retrieve(name)
                    assert found.id == name and found.output_text == QWEN.scripts["none"]
        items = client.responses.input_items.list(ids[0])
        assert [item.type for item in items.data] == ["message"]
        kill_frontends(server)
    unkept = client.responses.create(model="gpt", input="<none>", store=False)
    for name in (unkept.id, "resp_" + "0" * 26, "resp_ff" + "0" * 24, "nothing"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(name)


def test_a_conversation_goes_on_from_what_is_kept(client: OpenAI) -> None:
    """The script's template shows the last message only; tokens say that the others came before it."""
    first = client.responses.create(model="gpt", input="<none>")
    for _ in range(4):
        second = client.responses.create(model="gpt", input="<answer>", previous_response_id=first.id)
        assert second.output_text == "The answer, no STOP more" and second.previous_response_id == first.id
    with pytest.raises(openai.BadRequestError, match="not found"):
        client.responses.create(model="gpt", input="<none>", previous_response_id="resp_" + "0" * 26)


def test_items_may_be_named_by_their_ids(client: OpenAI) -> None:
    """Whichever frontend is asked: the one that keeps them answers."""
    first = client.responses.create(model="gpt", input="<two>", tools=FUNCTIONS)
    calls = [item for item in first.output if item.type == "function_call"]
    named: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output]
    named += [{"type": "function_call_output", "call_id": call.call_id, "output": "<none>"} for call in calls]
    for _ in range(4):
        with OpenAI(base_url=client.base_url, api_key="-", max_retries=0) as other:
            second = other.responses.create(model="gpt", input=named, tools=FUNCTIONS)
            assert second.output_text == QWEN.scripts["none"]
            kept = other.responses.input_items.list(second.id, order="asc").data
            assert [item.id for item in kept][: len(first.output)] == [item.id for item in first.output]
            counted = other.responses.input_tokens.count(model="gpt", input=named, tools=FUNCTIONS)
            assert counted.input_tokens == second.usage.input_tokens if second.usage else False
    with pytest.raises(openai.NotFoundError, match=r"input\[0\].id"):
        client.responses.create(model="gpt", input=[{"type": "item_reference", "id": "msg_" + "0" * 30}])


def _is_not_there(stranger: OpenAI, name: str) -> None:
    """Whatever this client tries with the id."""
    responses: Any = stranger.responses
    for attempt in (responses.retrieve, responses.cancel, responses.delete, responses.input_items.list):
        with pytest.raises(openai.NotFoundError, match="not found"):
            attempt(name)
    for go_on in (responses.create, responses.input_tokens.count):
        with pytest.raises(openai.BadRequestError, match="not found"):
            go_on(model="gpt", input="<none>", previous_response_id=name)


def test_another_key_does_not_find_them(client: OpenAI, server: Server, keys_file: Path) -> None:
    kept = client.responses.create(model="gpt", input="<none>")
    running = client.responses.create(model="gpt", input="<long>", background=True)
    with OpenAI(base_url=client.base_url, api_key="other", max_retries=0) as stranger:
        for change in ("nothing", "deaths", "keys"):
            if change == "deaths":
                kill_frontends(server)
            if change == "keys":
                keys_file.write_text("another\nother\n-\n")
                restart(server, "frontend")
            for name in (kept.id, running.id):
                _is_not_there(stranger, name)
            assert client.responses.retrieve(kept.id).output_text == QWEN.scripts["none"]
        assert wait_for(client, running.id).output_text == BOTTLES
        _is_not_there(stranger, running.id)
        client.responses.delete(kept.id)
        mine = stranger.responses.create(model="gpt", input="<none>")
    _is_not_there(client, mine.id)


def test_what_was_cached_does_not_tell_of_other_keys(client: OpenAI) -> None:
    def cached(asking: OpenAI, **more: Any) -> int:
        answer = asking.completions.create(model="gpt", prompt="one two " * 100, max_tokens=1, extra_body=more)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    with OpenAI(base_url=client.base_url, api_key="other", max_retries=0) as other:
        assert [cached(client) > 60, cached(client) > 60, cached(other) > 0, cached(other) > 60] == [0, 1, 0, 1]
        assert cached(client, cache_salt="a") == 0 and cached(client, cache_salt="a") > 60


def test_what_is_too_long_is_refused_by_its_name_here(client: OpenAI) -> None:
    attempts: list[Any] = [client.responses.create, client.responses.input_tokens.count]
    for attempt in attempts:
        with pytest.raises(openai.BadRequestError, match="maximum context length") as refused:
            attempt(model="gpt", input="word " * 200_000, truncation="auto")
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")


def wait_for(client: OpenAI, name: str) -> Any:
    deadline = time.monotonic() + 60
    while (found := client.responses.retrieve(name)).status == "in_progress":
        assert time.monotonic() < deadline
        time.sleep(0.05)  # polling is how these are waited for
    return found


@pytest.mark.parametrize("die", [*slow(False), True])
def test_in_the_background(client: OpenAI, server: Server, die: bool) -> None:
    begun = client.responses.create(model="gpt", input="<long>", background=True)
    assert begun.status == "queued"
    if die:
        kill_frontends(server)
    found = wait_for(client, begun.id)
    assert found.status == "completed" and found.output_text == BOTTLES
    events = list(client.responses.retrieve(begun.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    for after in (0, 7, len(events) // 2, len(events) - 2):
        again = list(client.responses.retrieve(begun.id, stream=True, starting_after=after))
        assert [event.to_dict() for event in again[:-1]] == [event.to_dict() for event in events[after + 1 : -1]]


@pytest.mark.parametrize("die", [False, True])
def test_events_of_one_that_runs(client: OpenAI, server: Server, die: bool) -> None:
    stream = client.responses.create(model="gpt", input="<long>", background=True, stream=True)
    seen = []
    for event in stream:
        seen.append(event)
        if len(seen) == 5 and die:
            kill_frontends(server)
        if len(seen) == 20:
            break
    stream.close()
    created: Any = seen[0]
    name = created.response.id
    later = iter(client.responses.retrieve(name, stream=True, starting_after=seen[-1].sequence_number))
    rest = [next(later)]
    if die:
        kill_frontends(server)
    rest += later
    assert [event.sequence_number for event in [*seen, *rest]] == list(range(len(seen) + len(rest)))
    text = "".join(event.delta for event in [*seen, *rest] if event.type == "response.output_text.delta")
    assert text == BOTTLES and rest[-1].type == "response.completed"


def test_cancelling(client: OpenAI) -> None:
    begun = client.responses.create(model="gpt", input="<long>", background=True)
    cancelled = client.responses.cancel(begun.id)
    assert cancelled.status in ("cancelled", "completed")
    assert client.responses.retrieve(begun.id).status == cancelled.status
    kept = client.responses.create(model="gpt", input="<none>")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(kept.id)


def test_deleting(client: OpenAI, server: Server) -> None:
    kept = client.responses.create(model="gpt", input="<none>")
    running = client.responses.create(model="gpt", input="<long>", background=True)
    for name in (kept.id, running.id):
        client.responses.delete(name)
    for _ in range(2):
        for name in (kept.id, running.id):
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(name)
            with pytest.raises(openai.NotFoundError):
                client.responses.delete(name)
        kill_frontends(server)


def test_how_many_tokens_there_are(client: OpenAI) -> None:
    made = client.responses.create(model="gpt", input="<none>")
    counted = client.responses.input_tokens.count(model="gpt", input="<none>", previous_response_id=made.id)
    assert made.usage is not None and counted.object == "response.input_tokens"
    assert counted.input_tokens == made.usage.input_tokens == 1


LOGPROBS: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


@pytest.mark.parametrize("script", ["none", "two", "think", "answer"])
def test_logprobs(client: OpenAI, script: str) -> None:
    whole = ask(client, script, **LOGPROBS)
    (said,) = [item.content[0] for item in whole.output if item.type == "message"]
    tokens = "".join(entry.token for entry in said.logprobs).strip()  # the last one may go on with markup
    assert tokens.startswith(said.text.strip()) and len(tokens) < len(said.text) + 4
    assert all(len(entry.top_logprobs) == 2 for entry in said.logprobs)
    streamed = list(client.responses.create(model="gpt", input=f"<{script}>", tools=FUNCTIONS, stream=True, **LOGPROBS))
    deltas = [event for event in streamed if event.type == "response.output_text.delta"]
    told = [entry.logprob for event in deltas for entry in event.logprobs]
    assert told == [entry.logprob for entry in said.logprobs]


def test_a_stream_outlives_its_frontend(client: OpenAI, server: Server) -> None:
    with client.responses.stream(model="gpt", input="<long>", **LOGPROBS) as stream:
        numbers = []
        for event in stream:
            numbers.append(event.sequence_number)
            if len(numbers) in (20, 60):
                kill_frontends(server)
        final = stream.get_final_response()
    assert final.output_text == BOTTLES and numbers == list(range(len(numbers)))
    said: Any = final.output[0]
    assert "".join(entry.token for entry in said.content[0].logprobs) == BOTTLES
    assert client.responses.retrieve(final.id).output_text == BOTTLES
