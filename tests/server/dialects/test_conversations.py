"""OpenAI's conversations with its client against a running server, whose frontends die meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.server.api.responses.scene import kill_frontends, wait_for
from tests.support.scripted import scripted
from tests.support.server import Server

SAID = "Well, this is what there is to say of it."
LONG = "".join(f"{number} bottles, " for number in range(300))
KNOWS = (  # <recall> is answered where what was said to <say> stands before it
    "{% set last = messages[-1].content %}{% set ns = namespace(known=false) %}{% for message in messages %}"
    f"{{% if message.content == '{SAID}' %}}{{% set ns.known = true %}}{{% endif %}}{{% endfor %}}"
    "{% if last == '<recall>' and not ns.known %}<new>{% else %}{{ last }}{% endif %}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = Path(tmp_path_factory.mktemp("talks"))
    scripts = {"say": SAID, "recall": "It was said.", "new": "Nothing is known.", "long": LONG}
    scripted(folder, scripts, template=KNOWS)
    keys = folder / "keys"
    keys.write_text("-\nother\n")
    options = ("--threads", "1", "--frontends", "2", "--max-restarts", "100", "--served-model-name", "gpt")
    with Server(str(folder), "--api-key-file", str(keys), *options) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0) as made:
        yield made


def texts(client: OpenAI, name: str) -> list[str]:
    items: list[Any] = list(client.conversations.items.list(name, order="asc", limit=2))  # by pages
    return [part.text for item in items for part in item.content]


def test_responses_go_on_with_a_conversation_and_outlive_frontends(client: OpenAI, server: Server) -> None:
    """Whichever frontend is asked: each connection is another one's."""
    talk = client.conversations.create(metadata={"topic": "bottles"}).id
    assert client.responses.create(model="gpt", input="<recall>").output_text == "Nothing is known."
    asked, told = [], []
    for script, said in (("say", SAID), *[("recall", "It was said.")] * 4):
        with OpenAI(base_url=client.base_url, api_key="-", max_retries=0) as other:
            answer = other.responses.create(model="gpt", input=f"<{script}>", conversation=talk)
            assert answer.output_text == said and answer.conversation is not None and answer.conversation.id == talk
            asked.append(f"<{script}>")
            told += [asked[-1], said]
            assert texts(other, talk) == told
            assert other.conversations.update(talk, metadata={"turns": str(len(asked))}).id == talk
    kill_frontends(server)
    assert texts(client, talk) == told
    found: Any = client.conversations.retrieve(talk)
    assert found.metadata == {"turns": "5"} and found.object == "conversation"


def test_a_stream_adds_once_whoever_dies(client: OpenAI, server: Server) -> None:
    talk = client.conversations.create(items=[{"role": "user", "content": "before"}]).id
    with client.responses.stream(model="gpt", input="<long>", conversation=talk) as stream:
        for number, _ in enumerate(stream):
            if number in (20, 60):
                kill_frontends(server)
        assert stream.get_final_response().output_text == LONG
    assert texts(client, talk) == ["before", "<long>", LONG]


def test_one_in_the_background_adds_once_whoever_dies(client: OpenAI, server: Server) -> None:
    talk = client.conversations.create().id
    begun = client.responses.create(model="gpt", input="<long>", conversation=talk, background=True)
    kill_frontends(server)
    assert wait_for(client, begun.id).output_text == LONG
    assert texts(client, talk) == ["<long>", LONG]


def test_items_are_added_and_taken_out(client: OpenAI) -> None:
    talk = client.conversations.create().id
    items: list[Any] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": SAID}]
    added = client.conversations.items.create(talk, items=items).data
    assert [item.type for item in added] == ["message", "message"]
    assert client.responses.create(model="gpt", input="<recall>", conversation=talk).output_text == "It was said."
    said: Any = added[1]
    assert client.conversations.items.retrieve(said.id, conversation_id=talk) == said
    assert client.conversations.items.delete(said.id, conversation_id=talk).id == talk
    assert client.responses.create(model="gpt", input="<recall>", conversation=talk).output_text == "Nothing is known."
    assert client.conversations.delete(talk).deleted
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.create(model="gpt", input="<recall>", conversation=talk)


def test_another_key_does_not_find_it(client: OpenAI) -> None:
    talk = client.conversations.create().id
    with OpenAI(base_url=client.base_url, api_key="other", max_retries=0) as stranger:
        conversations: Any = stranger.conversations
        for attempt in (conversations.retrieve, conversations.delete, conversations.items.list):
            with pytest.raises(openai.NotFoundError, match="not found"):
                attempt(talk)
        with pytest.raises(openai.NotFoundError, match="not found"):
            stranger.responses.create(model="gpt", input="<say>", conversation=talk)
    assert client.conversations.retrieve(talk).id == talk
