"""tools/trial mixtures: requests are the same by their number, and what is wrong with an answer is found."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
answers, asked_of, checks, counts, fields, requests, said_of, servers = (
    import_module(f"trials.mixed.{name}")
    for name in ("answers", "asked", "checks", "counts", "fields", "requests", "said", "servers")
)
wire = import_module("trials.wire")
sys.path.pop(0)


def asked(**body: Any) -> Any:
    return asked_of.Asked("completions", "/v1/completions", body, True, 1, 3)


def found(of: Any, *chunks: dict[str, Any], end: str = "data: [DONE]\n\n") -> list[str]:
    """What is wrong with a stream of these choices."""
    usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    whole = [{"choices": [{"index": 0, **one}]} for one in chunks] + [{"choices": [], "usage": usage}]
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in whole) + end
    answer = wire.Answer(200, {"content-type": "text/event-stream"}, body.encode())
    told: list[str] = checks.wrong(of.streamed(True), answers.said(of.streamed(True), answer), 4096)
    return told


END = {"text": "b", "finish_reason": "length"}


def test_a_request_is_the_same_by_its_seed_and_number() -> None:
    every = [requests.request(3, number)[0] for number in range(200)]
    again = [requests.request(3, number)[0] for number in range(200)]
    assert [(one.path, one.body, one.headers) for one in every] == [(one.path, one.body, one.headers) for one in again]
    assert len({one.door for one in every}) == 11  # Ollama has two
    assert requests.request(4, 1)[0].body != every[1].body
    assert servers.server(2) == servers.SERVERS[2] and servers.server(99) == servers.server(99)


def test_streamed_or_not_it_is_the_same_request() -> None:
    for number in range(200):
        one = requests.request(1, number)[0]
        assert one.streamed(True).stream and not one.streamed(False).stream
        assert one.streamed(True).streamed(False).body.keys() - {"stream"} <= one.body.keys()


def test_a_right_stream_is_right() -> None:
    assert found(asked(stop=["x"]), {"text": "a"}, END) == []


@pytest.mark.parametrize(
    ("of", "chunks", "wrong"),
    [
        ({"stop": ["ab"]}, [{"text": "a"}, END], "a stop string stands in the text"),
        ({}, [END, {"text": "c"}], "more of a choice behind its end"),
        ({}, [{"text": "a"}], "finish_reason None"),
        ({"return_token_ids": True}, [END | {"token_ids": [1, 2]}], "usage tells another number of tokens than there"),
        ({}, [END, {"index": 1, "text": "", "finish_reason": "stop"}], "choices [0, 1] of 1"),
    ],
)
def test_what_is_wrong_is_found(of: dict[str, Any], chunks: list[dict[str, Any]], wrong: str) -> None:
    (told, *_) = found(asked(**of), *chunks)
    assert told.startswith(wrong)


def test_a_stop_string_may_stand_before_the_least_tokens_by_any_name_of_theirs() -> None:
    for field, wrong in (("min_new_tokens", []), ("seed", ["a stop string stands in the text"])):
        body = {"sampling_params": {"stop": ["ab"], "max_new_tokens": 3, field: 2}}
        said = said_of.Said(choices={0: said_of.Choice("ab", finish="length")}, prompt=1, tokens=3)
        assert checks.wrong(asked_of.Asked("sglang", "/generate", body, True, 1, 3), said, 4096) == wrong


def test_a_stream_without_its_end_is_wrong() -> None:
    assert found(asked(), END, end="") == ["no [DONE] at its end alone"]


def test_logprobs_that_cannot_be_are_found() -> None:
    logprobs = {"tokens": ["b"], "token_logprobs": [-3.0], "top_logprobs": [{"a": -0.1, "b": -3.0}]}
    told = found(asked(temperature=0, logprobs=2), END | {"logprobs": logprobs})
    assert told == ["not the likeliest token 'b' at temperature 0"]


def test_values_fit_their_schemas_or_do_not() -> None:
    of_object, of_list, of_text, either, of_pattern, number, _ = fields.SCHEMAS
    assert fields.holds(of_object, {"n": 3, "ok": True}) and not fields.holds(of_object, {"n": 10})
    assert not fields.holds(of_object, {"n": 3, "more": 1}) and not fields.holds(of_object, {"n": True})
    assert fields.holds(of_list, ["a", None]) and not fields.holds(of_list, [])
    assert not fields.holds(of_text, "longer than 5") and fields.holds(either, 7) and fields.holds(either, {"x": ""})
    assert fields.holds(of_pattern, "abc") and not fields.holds(of_pattern, "a") and not fields.holds(number, 2.5)


def test_the_token_that_ends_an_answer_is_no_part_of_its_form() -> None:
    """Where it is told."""
    form = fields.Form("json", {}, lambda text: text == "{}")
    of = replace(asked(include_stop_str_in_output=True, skip_special_tokens=False), form=form)
    stopped = {"text": "{}<|im_end|>", "finish_reason": "stop"}
    assert found(of, stopped) == []
    of.body["skip_special_tokens"] = True
    assert found(of, stopped) == ["no json {}: '{}<|im_end|>'"]


def test_choices_that_have_thought_differently_are_not_the_same() -> None:
    of = asked_of.Asked("chat", "/v1/chat/completions", {"temperature": 2, "n": 3}, False, 3, 16)
    for thought, told in ((["a", "b", "a"], []), (["a", "a", "a"], ["all choices are the same"])):
        choices = {at: said_of.Choice(reasoning=one, finish="stop") for at, one in enumerate(thought)}
        assert checks.wrong(of, said_of.Said(choices=choices, prompt=1, tokens=3), 4096) == told


def test_where_two_answers_differ_is_told() -> None:
    assert said_of.difference([{"a": (1, 2)}], [{"a": (1, 3)}]) == "it[0]['a'][1] is 2, was 3"
    assert said_of.difference([1], [1, 2]) == "it is [1], was [1, 2]"
    assert said_of.difference([{"a": 1}], [{"a": 1}]) == said_of.difference(1, 1) == ""
    assert said_of.difference([[0.5, 0.25]], [[0.5, 0.26]], within=1e-3) == "it[0][1] is 0.25, was 0.26"
    assert said_of.difference([[0.5, 0.25]], [[0.5, 0.2501]], within=1e-3) == ""


def test_only_a_worker_whose_fellow_was_killed_may_fail_by_itself() -> None:
    assert not checks.is_bad("worker-0      | [rank0]: Traceback (most recent call last):")
    ended = "supervisor    | worker-0 ended (pid 7, exit status 1, up 8.9 s): [rank0]: "
    assert not checks.is_bad(f"{ended}RuntimeError: [/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection")
    assert checks.is_bad(f"{ended}TypeError: 'Architecture' object is not iterable")
    assert checks.is_bad("renderer      | Traceback (most recent call last):")


def test_a_prompt_is_counted_by_what_it_has() -> None:
    body = {"messages": [], "tools": [], "max_tokens": 3}
    of = asked_of.Asked("chat", "/v1/chat/completions", body, True)
    assert counts.count_of(of) == ("/tokenize", {"messages": [], "tools": []}, "count")
    assert counts.count_of(asked_of.Asked("chat", "/v1/chat/completions", body | {"documents": []}, True)) is None
    assert counts.count_of(asked()) is None
