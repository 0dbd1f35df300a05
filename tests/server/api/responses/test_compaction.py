"""Conversations that have become too long, with OpenAI's client; frontends die meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from actorserve.http.openai.responses.encrypted import decrypted
from tests.support.client import http_client
from tests.support.server import Server
from tests.support.until import until

from .scene import BOTTLES, ask, kill_frontends, wait_for

RUNNING = 'vllm:num_requests_running{engine="0",model_name="gpt"} 1.0'


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


RULES: list[Any] = [{"type": "compaction", "compact_threshold": 20}]
LONG: list[Any] = [{"role": "user", "content": "<long>"}, {"role": "user", "content": "Many words of a long talk."}]


def test_what_is_too_long_is_summed_up_before_it_is_answered(client: OpenAI) -> None:
    talk: list[Any] = [{"role": "user", "content": "<none>"}, {"role": "assistant", "content": "No."}, LONG[-1]]
    answer = ask(client, "none", input=talk, context_management=RULES)
    assert [item.type for item in answer.output] == ["compaction", "message"]
    assert answer.output_text == "It was known."
    assert decrypted("compaction", answer.output[0].encrypted_content, "") == "All of it."
    again = client.responses.create(model="gpt", input="<recall>", previous_response_id=answer.id)
    assert again.output_text == "It was known."
    short = ask(client, "none", context_management=RULES)
    assert [item.type for item in short.output] == ["message"]


@pytest.mark.parametrize("killed_at", ["compaction", "message"])
def test_one_goes_on_in_its_summary_or_behind_it(killed_at: str, client: OpenAI, server: Server) -> None:
    events: list[Any] = []
    for event in client.responses.create(model="gpt", input=LONG, context_management=RULES, stream=True):
        events.append(event)
        if event.type == "response.output_item.added" and event.item.type == killed_at:
            kill_frontends(server)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    ended = events[-1].response
    assert decrypted("compaction", ended.output[0].encrypted_content, "") == BOTTLES
    assert ended.output_text == "It was known." and ended.usage.output_tokens > 300


def test_one_in_the_background_goes_on(client: OpenAI, server: Server) -> None:
    begun = client.responses.create(model="gpt", input=LONG, context_management=RULES, background=True)
    kill_frontends(server)
    found = wait_for(client, begun.id)
    assert [item.type for item in found.output] == ["compaction", "message"] and found.output_text == "It was known."
