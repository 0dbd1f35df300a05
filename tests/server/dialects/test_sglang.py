"""SGLang's own bodies and answers by a running server: whole, streamed, in batches, with logprobs; a death; errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import pytest

from tests.server.api.test_tool_calls import QWEN
from tests.server.dialects.conftest import LONG
from tests.support.client import http_client
from tests.support.server import Server
from tests.support.until import until

NONE = QWEN.scripts["none"]


@pytest.fixture(scope="module")
def client(scripted_server: Server) -> Iterator[httpx.Client]:
    with http_client(scripted_server) as made:
        yield made


def whole(client: httpx.Client, **body: Any) -> Any:
    answer = client.post("/generate", json={"text": "<none>"} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(client: httpx.Client, **body: Any) -> Iterator[Any]:
    with client.stream("POST", "/generate", json={"text": "<none>", "stream": True} | body) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line and not line.startswith(":")]
    assert lines.pop() == "data: [DONE]"
    yield from (json.loads(line.removeprefix("data: ")) for line in lines)


def test_a_text(client: httpx.Client) -> None:
    answer = whole(client, rid="mine")
    about = answer["meta_info"]
    assert answer["text"] == NONE and len(answer["output_ids"]) == about["completion_tokens"] > 5
    assert (about["id"], about["prompt_tokens"], about["finish_reason"]["type"]) == ("mine", 1, "stop")
    assert about["finish_reason"]["matched"] == answer["output_ids"][-1] and about["e2e_latency"] > 0
    *parts, last = events(client)
    assert all(last["text"].startswith(part["text"]) for part in parts)
    assert not any(part["meta_info"]["finish_reason"] for part in parts)
    assert (last["text"], last["output_ids"]) == (NONE, answer["output_ids"])
    assert last["meta_info"]["finish_reason"] == about["finish_reason"]


def test_batches(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"content": "<none>"}).json()["tokens"]
    for body in ({"text": ["<none>", "<long>"], "rid": ["a", "b"]}, {"text": None, "input_ids": [ids, ids]}):
        given = {"max_new_tokens": 3}
        answers = whole(client, sampling_params=[given, given], **body)
        assert [one["meta_info"]["finish_reason"] for one in answers] == [{"type": "length", "length": 3}] * 2
        streamed = {part["index"]: part for part in events(client, sampling_params=given, **body)}
        assert [streamed[index]["text"] for index in (0, 1)] == [one["text"] for one in answers]
        assert [one["meta_info"]["id"] for one in answers] == ["a", "b"] or "rid" not in body
    several = whole(client, sampling_params={"n": 2, "max_new_tokens": 2, "temperature": 0}, rid="r")
    assert [one["meta_info"]["id"] for one in several] == ["r_0", "r_1"] and several[0]["text"] == several[1]["text"]


def test_logprobs(client: httpx.Client) -> None:
    given = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True, "skip_special_tokens": False}
    fields: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2, "sampling_params": given}
    answer = whole(client, text="<none>No <tool>", logprob_start_len=0, return_text_in_logprobs=True, **fields)
    about, ids = answer["meta_info"], answer["output_ids"]
    assert [token for _, token, _ in about["output_token_logprobs"]] == ids
    assert [len(best) for best in about["output_top_logprobs"]] == [2] * len(ids)
    assert "".join(text for _, _, text in about["output_token_logprobs"]) == answer["text"]
    first, *others = about["input_token_logprobs"]
    assert first[0] is None and len(others) == about["prompt_tokens"] - 1 and all(one[0] < 0 for one in others)
    assert about["input_top_logprobs"][0] is None and len(about["input_top_logprobs"][1]) == 2
    *_, last = events(client, **fields)
    assert len(last["meta_info"]["output_token_logprobs"]) == 4 and not last["meta_info"]["input_token_logprobs"]
    fields["top_logprobs_num"] = 0
    told = whole(client, token_ids_logprob=[ids[0], 5], **fields)["meta_info"]["output_token_ids_logprobs"]
    assert [[token for _, token, _ in one] for one in told] == [[ids[0], 5]] * 4
    fields["sampling_params"] = {"max_new_tokens": 0}
    scored = whole(client, text="<none>No", logprob_start_len=1, **fields)
    assert scored["text"] == "" and scored["output_ids"] == [] and scored["meta_info"]["completion_tokens"] == 0
    assert len(scored["meta_info"]["input_token_logprobs"]) == scored["meta_info"]["prompt_tokens"] - 1


def test_tokens_that_are_named_are_told_of_prompts_too(client: httpx.Client) -> None:
    """Where one of them comes next, both lists say the same of it; a stream tells all of that at its end."""
    ids = client.post("/tokenize", json={"content": "No tool is needed, and no tool is called."}).json()["tokens"]
    named = sorted({*ids[1::3], 5})
    body = {"return_logprob": True, "logprob_start_len": 0, "token_ids_logprob": named, "text": None, "input_ids": ids}
    given = {"max_new_tokens": 2, "temperature": 0}
    about = whole(client, sampling_params=given, **body)["meta_info"]
    (first, none), *others = zip(about["input_token_logprobs"], about["input_token_ids_logprobs"], strict=True)
    assert (first[0], none) == (None, None) and len(others) == len(ids) - 1
    for (logprob, token, _), told in others:
        assert [one for _, one, _ in told] == named
        assert token not in named or [value for value, one, _ in told if one == token] == pytest.approx([logprob])
    assert any(token in named for (_, token, _), _ in others)
    *parts, last = events(client, sampling_params=given, **body)
    assert not parts[-1]["meta_info"]["input_token_logprobs"]
    assert last["meta_info"]["input_token_logprobs"] == about["input_token_logprobs"]
    assert last["meta_info"]["input_token_ids_logprobs"] == about["input_token_ids_logprobs"]


def test_how_it_ends_and_what_it_keeps_to(client: httpx.Client) -> None:
    stopped = whole(client, sampling_params={"stop": ["needed"]})
    assert stopped["text"] == "No <tool> is " and stopped["meta_info"]["finish_reason"]["matched"] == "needed"
    kept = whole(client, sampling_params={"stop": "needed", "no_stop_trim": True, "sampling_seed": 3, "top_k": -1})
    assert kept["text"] == "No <tool> is needed"
    assert whole(client, sampling_params={"regex": "yes|no"})["text"] in ("yes", "no")
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    assert json.loads(whole(client, sampling_params={"json_schema": json.dumps(schema)})["text"]) == {"a": 1}


def test_a_death_of_frontends(client: httpx.Client, kill_frontends: Callable[[], None]) -> None:
    last: Any = None
    body = {"text": "<long>", "stream": True, "sampling_params": {"max_new_tokens": 2000}}
    with client.stream("POST", "/generate", json=body) as answer:
        for number, line in enumerate(line for line in answer.iter_lines() if line.startswith("data: {")):
            if number == 20:
                kill_frontends()
            part = json.loads(line.removeprefix("data: "))
            assert last is None or part["text"].startswith(last["text"])
            last = part
    assert last["text"] == LONG and last["meta_info"]["completion_tokens"] == len(last["output_ids"])


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("text", {"text": None}),
        ("text", {"input_ids": [1]}),
        ("sampling_params.max_new_tokens", {"sampling_params": {"max_new_tokens": -1}}),
        ("sampling_params.temperature", {"sampling_params": {"temperature": -1}}),
        ("sampling_params.stop_regex", {"sampling_params": {"stop_regex": "a+"}}),
        ("sampling_params", {"text": ["a", "b"], "sampling_params": [{"top_k": 1}, {"top_k": 2}]}),
        ("image_data", {"image_data": "x.png"}),
        ("rid", {"text": ["a"], "rid": ["b", "c"]}),
        ("return_hidden_states", {"return_hidden_states": True}),
        ("input_ids", {"text": None, "input_ids": [1 << 40]}),
        ("sampling_params.structural_tag", {"sampling_params": {"structural_tag": "{"}}),
        ("lora_path", {"lora_path": ["nobody"]}),
    ],
)
def test_what_cannot_be(client: httpx.Client, field: str, body: dict[str, Any]) -> None:
    answer = client.post("/generate", json={"text": "<none>"} | body)
    assert answer.status_code == (404 if field == "lora_path" else 400), answer.text
    assert answer.json()["error"]["param"] == field, answer.text


def test_the_server(client: httpx.Client) -> None:
    info = client.get("/get_model_info").json()
    assert info["model_path"] == "tiny" and info["is_generation"] and not info["has_image_understanding"]
    assert info == client.get("/model_info").json()
    assert client.get("/health_generate").status_code == 200
    assert client.get("/get_server_info").json()["max_running_requests"] == 64
    told = client.get("/server_info").json()  # what its benchmark of batches reads
    assert told["tokenizer_path"] == told["model"]["tokenizer_folder"]
    (state,) = told["internal_states"]
    assert state["effective_max_running_requests_per_dp"] == 64 and state["dp_size"] == 1
    assert state["memory_usage"]["token_capacity"] >= told["model"]["max_model_len"]
    assert state["avg_spec_accept_length"] is None
    assert client.post("/encode", json={"text": "a"}).status_code == 400


def test_what_is_refused_when_it_has_begun_is_let_go_of(client: httpx.Client) -> None:
    """Nobody would wait for its answer: it was counted as one that is being answered for as long as the server ran."""
    answer = client.post("/generate", json={"text": ["a", "b"], "logprob_start_len": [0, 1]})
    assert answer.status_code == 400 and "logprob_start_len" in answer.text
    until(lambda: client.get("/load").json()["server_load"] == 0)
