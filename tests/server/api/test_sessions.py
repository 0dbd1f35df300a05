"""Sessions: turns that go on from earlier ones, whoever dies between them, are the completions of all their tokens."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.client import http_client
from tests.support.server import Server
from tests.support.until import until

GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--threads", "1", "--frontends", "2", "--max-restarts", "1000") as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with http_client(server) as made:
        yield made


def opened(client: httpx.Client, **more: Any) -> str:
    answer = client.post("/open_session", json={"capacity_of_str_len": 0, **more})
    assert answer.status_code == 200, answer.text
    name: str = answer.json()
    return name


def asked(client: httpx.Client, prompt: str | list[int], **more: Any) -> Any:
    answer = client.post("/v1/completions", json={"prompt": prompt, **GREEDY, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def turn(client: httpx.Client, prompt: str | list[int], stream: bool = False, **params: Any) -> tuple[str, list[int]]:
    """The id and the tokens of its answer, which are those of its whole prompt, sent at once."""
    body = {"prompt": prompt, **GREEDY, "session_params": params, "stream": stream}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    if not stream:
        said = [answer.json()]
    else:
        said = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    choices = [one["choices"][0] for one in said]
    whole = next(one["prompt_token_ids"] for one in choices if one.get("prompt_token_ids"))
    tokens = [token for one in choices for token in one["token_ids"] or []]
    assert tokens == asked(client, whole)["choices"][0]["token_ids"]
    return said[0]["id"], whole + tokens


def figure(client: httpx.Client, name: str) -> float:
    """Of /metrics."""
    told = re.findall(rf"^actorserve:{name}\{{.*\}} ([0-9.]+)$", client.get("/metrics").text, re.MULTILINE)
    assert told
    return sum(map(float, told))


def is_told(client: httpx.Client, count: int) -> None:
    """So many sessions are open; frontends say so now and then."""
    until(lambda: figure(client, "sessions") == count)


def refused(client: httpx.Client, **params: Any) -> tuple[int, str]:
    answer = client.post("/v1/completions", json={"prompt": "a", **GREEDY, "session_params": params})
    return answer.status_code, answer.json()["error"]["param"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_goes_on_from_an_earlier_one(client: httpx.Client, stream: bool) -> None:
    """Behind all of it, a part, or without its answer; a branch leaves the other as it is, unless it replaces it."""
    name = opened(client)
    first, tokens = turn(client, "The capital of", stream, id=name)
    second, then = turn(client, " and of", stream, id=name, rid=first)
    assert then[: len(tokens)] == tokens
    _, branch = turn(client, [11, 12], stream, id=name, rid=first, offset=3)
    assert branch[:5] == [*tokens[:3], 11, 12]
    _, without = turn(client, [11, 12], stream, id=name, rid=first, drop_previous_output=True)
    assert without[: len(tokens) - 4] == [*tokens[:-6], 11, 12]
    third, _ = turn(client, " again", stream, id=name, rid=second)
    turn(client, " instead", stream, id=name, rid=first, replace=True)
    assert refused(client, id=name, rid=third) == (400, "session_params.rid")
    assert client.post("/close_session", json={"session_id": name}).json() == {}
    assert refused(client, id=name, rid=first) == (404, "session_params.id")
    assert client.post("/close_session", json={"session_id": name}).status_code == 404


def test_a_name_is_that_of_one_turn(client: httpx.Client) -> None:
    """Whoever sends a request again with its key is given its answer."""
    name = opened(client)
    body = {"prompt": [11], **GREEDY, "session_params": {"id": name}, "request_id": "twice"}
    assert client.post("/v1/completions", json=body).status_code == 200
    answer = client.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "request_id")
    key = {"Idempotency-Key": "of a turn"}
    first, again = [client.post("/v1/completions", json=body, headers=key).json()["id"] for _ in range(2)]
    assert first == again
    assert client.post("/close_session", json={"session_id": name}).json() == {}


def generated(client: httpx.Client, ids: list[int], stream: bool = False, **more: Any) -> Any:
    """What SGLang's path answers, or the last event of a stream: each has all that has come so far."""
    params = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": params, "stream": stream, **more}
    answer = client.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return json.loads(events[-1] if stream else answer.content)


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_of_sglangs_own_path(client: httpx.Client, stream: bool) -> None:
    """By the ids that it tells, also without the last token, as SGLang's clients ask for (offset -1)."""
    name, parts, whole, last = opened(client), ([11, 12], [13], [14, 15, 16]), list[int](), None
    for number, part in enumerate(parts):
        params = {"id": name, "rid": last, "offset": -1, "replace": True}
        more: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0} if number else {"rid": "mine"}
        told = generated(client, part, stream, session_params=params, **more)
        whole = [*whole[:-1], *part]
        assert told["meta_info"]["prompt_tokens"] == len(whole)
        plain = generated(client, whole, **{key: value for key, value in more.items() if key != "rid"})
        assert told["output_ids"] == plain["output_ids"] and told["text"] == plain["text"]
        for kind in ("input", "output") if number else ():
            found, wanted = (one["meta_info"][f"{kind}_token_logprobs"] for one in (told, plain))
            assert [token for _, token, _ in found] == [token for _, token, _ in wanted]
        whole += told["output_ids"]
        last = told["meta_info"]["id"]
    assert turn(client, [17], id=name, rid="mine", drop_previous_output=True)[1][:3] == [11, 12, 17]
    again = {"input_ids": [18], "rid": "mine", "session_params": {"id": name}}
    answer = client.post("/generate", json=again)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "rid"), "its turn would be lost"
    assert client.post("/close_session", json={"session_id": name}).json() == {}
    for more, field in (
        ({"session_params": {"id": name}}, "session_params.id"),
        ({"session_params": {"id": name}, "sampling_params": {"max_new_tokens": 0}}, "sampling_params.max_new_tokens"),
        ({"session_params": {"id": name, "rod": 1}}, "session_params.rod"),
    ):
        answer = client.post("/generate", json={"text": "a", **more})
        assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == field, answer.text


def test_the_last_turn_is_gone_on_from_by_itself_where_a_session_streams(client: httpx.Client) -> None:
    name = opened(client, session_id="my own", streaming=True)
    answer = client.post("/open_session", json={"capacity_of_str_len": 0, "session_id": name})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "session_id")
    tokens: list[int] = []
    for part in ("One", " two", " three"):
        _, whole = turn(client, part, id=name)
        assert whole[: len(tokens)] == tokens and len(whole) > len(tokens)
        tokens = whole
    assert client.post("/close_session", json={"session_id": name}).json() == {}


def test_turns_outlive_whoever_keeps_them(server: Server, client: httpx.Client) -> None:
    """The frontends, the renderer, the worker: each turn comes behind the one before."""
    names = [opened(client, streaming=True) for _ in range(4)]  # of both frontends, most likely
    tokens: dict[str, list[int]] = {}
    for victim in ("frontend-0", "frontend-1", "renderer-0", "worker"):
        for name in names:
            _, whole = turn(client, " and", id=name)
            before = tokens.get(name, [])
            assert whole[: len(before)] == before and len(whole) > len(before)
            tokens[name] = whole
        os.kill(server.actors()[victim], signal.SIGKILL)
    assert figure(client, "session_turns_total") >= 16
    is_told(client, 4)
    for name in names:
        assert client.post("/close_session", json={"session_id": name}).json() == {}
    is_told(client, 0)


def test_a_turn_that_is_sent_again_leaves_the_session_as_it_is(client: httpx.Client) -> None:
    """It is the answer of then; what came behind it stays, and it comes behind none of that."""
    name = opened(client, streaming=True, capacity_of_str_len=20)
    body = {"prompt": [11, 12], **GREEDY, "session_params": {"id": name, "replace": True}}
    first = client.post("/v1/completions", json=body, headers={"Idempotency-Key": name})
    second, _ = turn(client, [13], id=name)
    again = client.post("/v1/completions", json=body, headers={"Idempotency-Key": name})
    assert again.headers["Idempotent-Replayed"] == "true" and again.json() == first.json()
    _, whole = turn(client, [14], id=name, rid=second, drop_previous_output=True)
    assert len(whole) == 2 + 6 + 1 + 1 + 6
    assert client.post("/close_session", json={"session_id": name}).json() == {}


def test_a_turn_goes_on_in_the_next_frontend_though_its_session_was_closed(
    server: Server, client: httpx.Client
) -> None:
    for name in [opened(client, session_id=f"closed {number}") for number in range(2)]:
        body = {**GREEDY, "prompt": [11], "max_tokens": 400, "stream": True, "session_params": {"id": name}}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            said = [next(lines)]
            assert client.post("/close_session", json={"session_id": name}).status_code == 200
            for frontend in ("frontend-0", "frontend-1"):
                os.kill(server.actors()[frontend], signal.SIGKILL)
            said += lines
        choices = [json.loads(line[6:])["choices"][0] for line in said if line.startswith("data: {")]
        tokens = [token for one in choices for token in one["token_ids"] or []]
        assert choices[-1]["finish_reason"] == "length"
        assert tokens == asked(client, [11], max_tokens=400)["choices"][0]["token_ids"]
        assert refused(client, id=name) == (404, "session_params.id")


def test_a_turn_that_was_replaced_while_it_ran_is_not_gone_on_from(server: Server, client: httpx.Client) -> None:
    """Also where the frontend that knew it has died since; what took its place is."""
    name = opened(client)
    first, _ = turn(client, [11, 12], id=name)
    body = {**GREEDY, "prompt": [13], "max_tokens": 300, "stream": True, "session_params": {"id": name, "rid": first}}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        late = json.loads(next(line for line in lines if line.startswith("data: {"))[6:])["id"]
        second, _ = turn(client, [14], id=name, rid=first, replace=True)
        for frontend in ("frontend-0", "frontend-1"):
            os.kill(server.actors()[frontend], signal.SIGKILL)
        assert [*lines][-2:] == ["data: [DONE]", ""]
    assert refused(client, id=name, rid=late) == (400, "session_params.rid")
    turn(client, [15], id=name, rid=second)
    assert client.post("/close_session", json={"session_id": name}).json() == {}


def test_bounds_and_what_does_not_go_with_a_session(client: httpx.Client) -> None:
    name = opened(client, capacity_of_str_len=8)
    first, _ = turn(client, [11, 12], id=name)
    answer = client.post(
        "/v1/completions", json={"prompt": [11], **GREEDY, "session_params": {"id": name, "rid": first}}
    )
    assert answer.status_code == 400 and "the turn has 9 tokens" in answer.json()["error"]["message"]
    for more, field in (
        ({"n": 2}, "session_params"),
        ({"echo": True}, "echo"),
        ({"session_params": {"id": name, "turn": 1}}, "session_params.turn"),
        ({"session_params": {"rid": first}}, "session_params.id"),
    ):
        body = {"prompt": [11], **GREEDY, "session_params": {"id": name}, **more}
        answer = client.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text
    for path, wrong, field in (
        ("/open_session", {}, "capacity_of_str_len"),
        ("/open_session", {"capacity_of_str_len": 8, "capacity": 9}, "capacity"),
        ("/close_session", {"session_id": name, "sesion": 1}, "sesion"),
    ):
        assert client.post(path, json=wrong).json()["error"]["param"] == field
    assert refused(client, id="") == (404, "session_params.id")
    alone = asked(client, [11, 12], session_params={})["choices"][0]
    assert alone["token_ids"] == asked(client, [11, 12])["choices"][0]["token_ids"]
    assert client.post("/close_session", json={"session_id": name}).json() == {}
    short = opened(client, timeout=1e-9)
    assert refused(client, id=short) == (404, "session_params.id")
    is_told(client, 0)
