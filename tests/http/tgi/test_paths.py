"""Text Generation Inference's paths before an engine that the test plays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actorserve.actors.protocol.messages import Finish, TokenLogprobs
from actorserve.http.errors import ApiError
from actorserve.http.generation.job import Job
from tests.http.fakes import finish_all, rendered, say
from tests.http.serving import Served, serving

END = 2  # SETTINGS.end_tokens


def play(job: Job, *tokens: tuple[int, bytes], finish: Finish = Finish.STOP, **more: Any) -> None:
    """A token at a time, the last with the end; a text is told once its last byte is there."""
    rendered(job)
    before = b""
    for number, (token, text) in enumerate(tokens, 1):
        try:
            said, before = (before + text).decode(), b""
        except UnicodeDecodeError:
            said, before = "", before + text
        last = number == len(tokens)
        told = [TokenLogprobs(text, token, -0.5, 1, [(text, token, -0.5)])]
        said = "" if token == END else said
        say(job, 0, said, number, finish if last else 0, logprobs=told, **(more if last else {}))


def events_of(body: bytes) -> list[Any]:
    *events, nothing = body.decode().split("\n\n")
    assert nothing == "" and all(event.startswith("data: {") for event in events)
    return [json.loads(event[6:]) for event in events]


WORDS = [(5, b"He"), (6, b"y \xc3"), (7, b"\xa9"), (END, b"<|end|>")]


async def ask(served: Served, path: str, tokens: Any = WORDS, **fields: Any) -> Any:
    finish = {name: fields.pop(name) for name in ("finish", "stop_reason") if name in fields}
    client = await served.client()
    client.send("POST", path, {"inputs": "Oh", **fields})
    play(await served.job(), *tokens, **finish)
    answer = await client.answer()
    assert answer.status == 200, answer.body
    return answer.json if "json" in answer.headers["content-type"] else events_of(answer.body)


async def test_a_text(served: Served) -> None:
    assert await ask(served, "/generate") == {"generated_text": "Hey é"}
    assert await ask(served, "/") == [{"generated_text": "Hey é"}], "as huggingface_hub and others ask it"
    assert await ask(served, "/generate", parameters={"return_full_text": True}) == {"generated_text": "OhHey é"}


async def test_details(served: Served) -> None:
    told = await ask(served, "/generate", parameters={"details": True, "top_n_tokens": 1, "seed": 3})
    details = told["details"]
    tokens = [(one["id"], one["text"], one["special"]) for one in details["tokens"]]
    assert tokens == [(5, "He", False), (6, "y ", False), (7, "é", False), (END, "", True)]
    assert {name: details[name] for name in ("finish_reason", "generated_tokens", "seed", "prefill")} == {
        **{"finish_reason": "eos_token", "generated_tokens": 4, "seed": 3, "prefill": []}
    }
    assert [top[0]["id"] for top in details["top_tokens"]] == [5, 6, 7, END]


@pytest.mark.parametrize(
    ("finish", "more", "reason"),
    [
        (Finish.STOP, {}, "eos_token"),
        (Finish.STOP_STRING, {"stop_reason": "y"}, "stop_sequence"),
        (Finish.LENGTH, {}, "length"),
    ],
)
@pytest.mark.parametrize(("path", "fields"), [("/generate_stream", {}), ("/", {"stream": True})])
async def test_a_stream(
    served: Served, finish: Finish, more: dict[str, Any], reason: str, path: str, fields: dict[str, Any]
) -> None:
    *events, last = await ask(served, path, finish=finish, parameters={"details": True}, **fields, **more)
    assert [event["index"] for event in (*events, last)] == [1, 2, 3, 4]
    assert "".join(event["token"]["text"] for event in (*events, last)) == last["generated_text"] == "Hey é"
    assert all(event["generated_text"] is None and event["details"] is None for event in events)
    assert last["details"] == {"finish_reason": reason, "generated_tokens": 4, "seed": None, "input_length": 5}


async def test_a_stream_without_details_ends_with_its_text(served: Served) -> None:
    *_, last = await ask(served, "/generate_stream", parameters={"return_full_text": True})
    assert (last["generated_text"], last["details"]) == ("OhHey é", None)


async def test_one_that_is_ended_from_without_ends_with_an_event(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/generate_stream", {"inputs": "Oh"})
    job = await served.job()
    rendered(job)
    say(job, 0, "He", 1, logprobs=[TokenLogprobs(b"He", 5, -0.5, 1)])
    await client.head()
    say(job, 0, "", 1, Finish.ABORT)
    *_, last = events_of(await client.rest())
    assert last["generated_text"] == "He" and (last["index"], last["token"]["special"]) == (2, True)


async def test_one_that_fails_says_so(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/generate_stream", {"inputs": "Oh"})
    job = await served.job()
    rendered(job)
    say(job, 0, "He", 1, logprobs=[TokenLogprobs(b"He", 5, -0.5, 1)])
    await client.head()
    job.fail(ApiError(500, "It fell."))
    *_, last = events_of(await client.rest())
    assert last == {"error": "It fell.", "error_type": "generation"}


@pytest.mark.parametrize("path", ["/", "/generate", "/generate_stream"])
async def test_what_cannot_be_is_told_in_its_form(served: Served, path: str) -> None:
    for fields, words in (
        ({"parameters": {"typical_p": 1.1}}, "parameters.typical_p"),
        ({"parameters": {"typical_p": 0}}, "parameters.typical_p"),
        ({"parameters": {"watermark": True}}, "parameters.watermark"),
        ({"parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
        ({"parameters": {"temperature": 9}}, "parameters.temperature"),
        ({"parameters": [5]}, "parameters"),
        ({"inputs": ""}, "inputs"),
        ({"inputs": 5}, "inputs"),
    ):
        answer = await served.ask("POST", path, {"inputs": "Oh", **fields})
        assert answer.status == 400 and answer.json["error_type"] == "validation", answer.body
        assert set(answer.json) == {"error", "error_type"} and words in answer.json["error"]
    missing = await served.ask("POST", path, {"inputs": "Oh", "model": "other"})
    assert missing.status == 404 and set(missing.json) == {"error"} and "other" in missing.json["error"]


async def test_sglangs_bodies_are_answered_as_before(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/generate", {"text": "Oh"})
    finish_all(await served.job())
    assert (await client.answer()).json["meta_info"]["completion_tokens"] == 3
    assert (await served.ask("POST", "/generate", {"text": 5})).error["param"] == "text"


async def test_the_page_is_open_and_what_generates_beside_it_is_not() -> None:
    async with serving(api_keys=["k"]) as served:
        assert (await served.ask("GET", "/")).status == (await served.ask("HEAD", "/")).status == 200
        refused = await served.ask("POST", "/", {"inputs": "Oh"})
        assert refused.status == 401 and "API key" in refused.json["error"]
        assert (await ask_with_key(served)).json == [{"generated_text": "Hey é"}]


async def ask_with_key(served: Served) -> Any:
    client = await served.client()
    client.send("POST", "/", {"inputs": "Oh"}, Authorization="Bearer k")
    play(await served.job(), *WORDS)
    return await client.answer()


async def test_the_model(served: Served) -> None:
    told = (await served.ask("GET", "/info")).json
    assert (told["model_id"], told["max_total_tokens"], told["max_input_tokens"]) == ("tiny", 64, 63)
    assert (await served.ask("GET", "/info?model=other")).status == 404
