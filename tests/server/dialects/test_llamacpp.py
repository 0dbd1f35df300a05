"""llama.cpp's bodies and answers by a running server: whole, streamed, filling in, errors; and a death."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import jsonschema
import pytest
from openai import OpenAI

from tests.server.api.test_tool_calls import QWEN
from tests.server.dialects.conftest import FILLED, LONG
from tests.support.client import http_client
from tests.support.demo_model import PROMPT
from tests.support.server import Server

NONE = QWEN.scripts["none"]


@pytest.fixture(scope="module")
def client(scripted_server: Server) -> Iterator[httpx.Client]:
    with http_client(scripted_server) as made:
        yield made


@pytest.fixture(scope="module")
def computing(demo_server: Server) -> Iterator[httpx.Client]:
    """Of a model, whose probabilities are its own."""
    with http_client(demo_server) as made:
        yield made


def whole(client: httpx.Client, path: str = "/completion", **body: Any) -> Any:
    answer = client.post(path, json={"prompt": "<none>", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(client: httpx.Client, path: str = "/completion", **body: Any) -> Iterator[Any]:
    with client.stream("POST", path, json={"prompt": "<none>", "stream": True, **body}) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line and not line.startswith(":"):
                yield json.loads(line.removeprefix("data: "))


def ask(client: httpx.Client, path: str = "/completion", **body: Any) -> Any:
    """The whole answer, which must be the stream's, too."""
    answer = whole(client, path, return_tokens=True, **body)
    *parts, last = events(client, path, **body)
    assert [part["stop"] for part in parts] == [False] * len(parts) and last["stop"]
    assert "".join(part["content"] for part in parts) == answer["content"] and last["content"] == ""
    assert [token for part in parts for token in part["tokens"]] == answer["tokens"]
    for name in ("tokens_predicted", "tokens_evaluated", "stop_type", "stopping_word", "prompt", "has_new_line"):
        assert last[name] == answer[name], name
    return answer


def test_a_text(client: httpx.Client) -> None:
    answer = ask(client)
    assert answer["content"] == NONE and answer["prompt"] == "<none>" and answer["model"] == "tiny"
    assert (answer["stop_type"], answer["tokens_evaluated"]) == ("eos", 1)
    assert answer["tokens_predicted"] == len(answer["tokens"]) == answer["timings"]["predicted_n"] > 5
    times = answer["timings"]
    assert times["prompt_ms"] > 0 and times["predicted_per_second"] > 0
    assert times["predicted_per_token_ms"] * (times["predicted_n"] - 1) == pytest.approx(times["predicted_ms"])
    assert answer["generation_settings"]["n_predict"] == -1 and not answer["has_new_line"]


def test_ids_in_and_limits(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"content": "<none>"}).json()["tokens"]
    answer = ask(client, "/completions", prompt=ids, n_predict=3)
    assert (answer["stop_type"], answer["tokens_predicted"], answer["prompt"]) == ("limit", 3, "<none>")
    assert ask(client, n_predict=1_000_000)["stop_type"] == "eos"
    stopped = ask(client, stop=["needed"], temperature=0, seed=-1, repeat_penalty=1.0, cache_prompt=True, id_slot=-1)
    assert (stopped["stop_type"], stopped["stopping_word"], stopped["content"]) == ("word", "needed", "No <tool> is ")


def test_several_prompts(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"content": "<none>"}).json()["tokens"]
    for prompts in (["<none>", "<long>"], [ids, ids]):
        one, other = whole(client, prompt=prompts, n_predict=3)
        assert (one["index"], other["index"], one["prompt"]) == (0, 1, "<none>")
        parts = list(events(client, prompt=prompts, n_predict=3))
        for index, answer in enumerate((one, other)):
            assert "".join(part["content"] for part in parts if part["index"] == index) == answer["content"]


def test_several_answers_to_each_prompt(client: httpx.Client) -> None:
    answers = whole(client, prompt=["<none>", "<long>"], n_cmpl=2, n_predict=3)
    assert [(one["index"], one["prompt"]) for one in answers] == [
        *((0, "<none>"), (1, "<none>"), (2, "<long>"), (3, "<long>"))
    ]
    assert answers[0]["content"] == answers[1]["content"] != answers[2]["content"]
    assert {part["index"] for part in events(client, n_cmpl=2, n_predict=3)} == {0, 1}


def test_texts_between_ids_and_objects(client: httpx.Client) -> None:
    """A text beside ids is what its tokens are; each way of asking is answered alike."""
    ids = client.post("/tokenize", json={"content": "<none>"}).json()["tokens"]
    alone = whole(client, n_predict=5)["content"]
    for prompt in ({"prompt_string": "<none>"}, [ids[0], *ids[1:]], {"prompt_string": "<none>", "multimodal_data": []}):
        assert whole(client, prompt=prompt, n_predict=5)["content"] == alone
    for prompts in ([ids, "<none>"], [{"prompt_string": "<none>"}, ids], [["<none>"], ids], ["<none>", ["<none>"]]):
        assert [one["content"] for one in whole(client, prompt=prompts, n_predict=5)] == [alone, alone]
    mixed = whole(client, prompt=[*ids, "no", *ids], n_predict=5)
    assert mixed["prompt"] == "<none>no<none>" and mixed["content"] == alone


def test_some_fields_of_an_answer(client: httpx.Client) -> None:
    fields = ["content", "generation_settings/n_predict", "timings/nothing", "nothing"]
    answer = whole(client, n_predict=3, response_fields=fields)
    assert answer == {"content": whole(client, n_predict=3)["content"], "generation_settings/n_predict": 3}
    *_, last = events(client, n_predict=3, response_fields=["tokens_predicted", "stop"])
    assert last == {"tokens_predicted": 3, "stop": True}
    assert whole(client, n_predict=3, response_fields=[]).keys() == whole(client, n_predict=3).keys()
    said = {**client.get("/openapi.json").json(), "$ref": "#/components/schemas/LlamaPart"}
    for one in (answer, last, whole(client, n_predict=3), whole(client, n_predict=3, response_fields=fields[2:])):
        jsonschema.validate(one, said)


def test_how_long_a_chat_is(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "<none>"}]
    for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"):
        assert client.post(path, json={"messages": messages}).json()["input_tokens"] == 1


def test_how_far_a_prompt_has_come_is_told_before_all_text(client: httpx.Client) -> None:
    *parts, last = events(client, prompt="<none><none>", return_progress=True, n_predict=3)
    *early, read = [part for part in parts if "prompt_progress" in part]
    assert parts[: len(early) + 1] == [*early, read], "on a busy machine there may be several"
    told = read["prompt_progress"]
    assert told["total"] == told["processed"] == last["tokens_evaluated"] and told["time_ms"] >= 0
    assert (read["content"], read["tokens"], read["tokens_predicted"]) == ("", [], 0)
    assert "prompt_progress" not in last and "prompt_progress" not in whole(client, return_progress=True)


def test_probabilities(client: httpx.Client) -> None:
    told = whole(client, n_probs=3)["completion_probabilities"]
    streamed = [one for part in events(client, n_probs=3) for one in part.get("completion_probabilities", [])]
    assert [one["id"] for one in streamed] == [one["id"] for one in told]
    assert all(len(one["top_logprobs"]) == 3 and one["top_logprobs"][0]["id"] == one["id"] for one in told)


def test_grammars_and_biases(client: httpx.Client) -> None:
    assert whole(client, grammar='root ::= "yes" | "no"')["content"] in ("yes", "no")
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    assert json.loads(whole(client, json_schema=schema)["content"]) == {"a": 1}
    first = whole(client, n_predict=1, return_tokens=True)["tokens"][0]
    assert whole(client, n_predict=1, return_tokens=True, logit_bias=[[first, False]])["tokens"] != [first]
    wanted = client.post("/tokenize", json={"content": "<none>"}).json()["tokens"]
    for biases in ([["<none>", 100]], {"<none>": 100.0}):
        assert whole(client, n_predict=1, return_tokens=True, logit_bias=biases, temperature=0)["tokens"] == wanted
    assert [part["timings"]["predicted_n"] for part in events(client, timings_per_token=True)][-1] > 5
    answer = client.post("/completion", json={"prompt": "a", "logit_bias": [[f"word {one}", 1] for one in range(65)]})
    assert answer.status_code == 400 and "at most 64 texts" in answer.json()["error"]["message"]


def test_filling_in(client: httpx.Client, scripted_server: Server) -> None:
    answer = ask(client, "/infill", input_prefix="def add(a, b):\n", input_suffix="\n", prompt="")
    assert answer["content"] == FILLED
    assert answer["prompt"] == "<|fim_prefix|>def add(a, b):\n<|fim_suffix|>\n<|fim_middle|>"
    assert answer["stop_type"] == "eos" and answer["stopping_word"] == ""
    editor = {"samplers": ["top_k", "top_p", "infill"], "top_k": 40, "n_indent": 4, "t_max_predict_ms": 1000}
    other = [{"text": "import this", "filename": "a.py"}]
    answer = ask(client, "/infill", input_prefix="def", input_suffix="\n", prompt="", input_extra=other, **editor)
    assert answer["content"] == FILLED and answer["prompt"].startswith(
        "<|file_sep|>a.py\nimport this\n<|file_sep|>file\n"
    )
    with OpenAI(base_url=f"{scripted_server.base_url}/v1", api_key="-", max_retries=0) as openai:
        completed = openai.completions.create(model="tiny", prompt="def add(a, b):\n", suffix="\n")
    assert completed.choices[0].text == FILLED
    generated = client.post("/api/generate", json={"prompt": "def", "suffix": "\n", "stream": False}).json()
    assert generated["response"] == FILLED


def test_no_filling_in_without_tokens(computing: httpx.Client) -> None:
    answer = computing.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert answer.status_code == 400 and "input_suffix" in answer.json()["error"]["message"]
    answer = computing.post("/v1/completions", json={"prompt": "a", "suffix": "b"})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "suffix"


def test_the_server(client: httpx.Client) -> None:
    props = client.get("/props").json()
    assert props["total_slots"] == 64 and QWEN.mark in props["chat_template"] and props["model_alias"] == "tiny"
    assert client.get("/props?model=tiny").json() == props and client.get("/props?model=nobody").status_code == 404
    assert props["modalities"] == {"vision": False, "video": False, "audio": False} and props["is_sleeping"] is False
    slots = client.get("/slots?fail_on_no_slot=1").json()
    assert len(slots) == 64 and not any(slot["is_processing"] for slot in slots)
    assert client.get("/health").json() == {"status": "ok"}


def test_texts_and_tokens(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "<none>"}]
    assert client.post("/apply-template", json={"messages": messages}).json() == {"prompt": "<none>"}
    pieces = client.post("/tokenize", json={"content": "<none>no", "with_pieces": True}).json()["tokens"]
    assert pieces[0]["piece"] == "<none>" and "".join(one["piece"] for one in pieces) == "<none>no"
    ids = [one["id"] for one in pieces]
    assert client.post("/detokenize", json={"tokens": ids}).json()["content"] == "<none>no"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"model": "nobody"}, 404, "nobody"),
        ({"mirostat": 3}, 400, "mirostat"),
        ({"repeat_penalty": 0}, 400, "repeat_penalty"),
        ({"repeat_penalty": 1.3, "repeat_last_n": -2}, 400, "repeat_last_n"),
        ({"n_probs": 1000}, 400, "n_probs"),
        ({"grammar": "root ::= ("}, 400, "grammar"),
        ({"prompt": "<none>" * 3000}, 400, "maximum context length"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["eA=="]}}, 400, "prompt.multimodal_data"),
        ({"prompt": [[1], 2]}, 400, "lists"),
        ({"prompt": [1, *["a"] * 65]}, 400, "64 texts"),
        ({"post_sampling_probs": 3}, 400, "post_sampling_probs"),
        ({"n_cmpl": 0}, 400, "n_cmpl"),
        ({"json_schema": {"type": "x"}}, 400, "json_schema: the grammar cannot be used"),
    ],
)
def test_errors(client: httpx.Client, body: dict[str, Any], status: int, text: str) -> None:
    answer = client.post("/completion", json={"prompt": "a", **body})
    error = answer.json()["error"]
    if "maximum" in text:
        assert error["type"] == "exceed_context_size_error"
        assert (
            error.pop("n_prompt_tokens")
            >= error.pop("n_ctx")
            == client.get("/props").json()["default_generation_settings"]["n_ctx"]
        )
    assert error.keys() == {"code", "message", "type"} and error["code"] == answer.status_code == status
    assert text in error["message"]


def test_a_stream_outlives_its_frontend(client: httpx.Client, kill_frontends: Callable[[], None]) -> None:
    text, tokens = "", []
    for number, part in enumerate(events(client, prompt="<long>")):
        text += part["content"]
        tokens += part["tokens"]
        if number in (5, 20):
            kill_frontends()
    assert text == LONG and part["stop_type"] == "eos" and len(tokens) == part["tokens_predicted"]
    assert part["timings"]["predicted_ms"] > 0


def test_probabilities_of_what_is_drawn_from(computing: httpx.Client) -> None:
    """By llama.cpp's name: those of the tokens that samplers leave, together 1, whatever the model thinks of others."""
    own: dict[str, Any] = {"prompt": PROMPT, "n_predict": 12, "ignore_eos": True, "seed": 3, "n_probs": 8}
    heat = {"temperature": 1.5, "top_k": 5, "top_p": 1, "repeat_penalty": 1.4}
    answer = computing.post("/completion", json={**own, **heat, "post_sampling_probs": True}).json()
    assert answer["generation_settings"]["post_sampling_probs"] is True
    told = answer["completion_probabilities"]
    raw = computing.post("/completion", json={**own, **heat}).json()
    assert raw["content"] == answer["content"] and len(told) == 12
    for one, other in zip(told, raw["completion_probabilities"], strict=True):
        best = one["top_probs"]
        assert len(best) == 5 and sum(each["prob"] for each in best) == pytest.approx(1, abs=1e-5)
        assert {one["id"]: one["prob"]}.items() <= {each["id"]: each["prob"] for each in best}.items()
        assert len(other["top_logprobs"]) == 8 and "prob" not in other
    greedy = computing.post("/completion", json={**own, "temperature": 0, "post_sampling_probs": True}).json()
    assert {one["prob"] for one in greedy["completion_probabilities"]} == {1.0}
    grammar = {"grammar": 'root ::= "yes, certainly"', "post_sampling_probs": True}
    forced = computing.post("/completion", json={**own, **heat, **grammar}).json()["completion_probabilities"]
    assert forced and {one["prob"] for one in forced} >= {1.0}
    refused = computing.post("/v1/completions", json={"prompt": "a", "post_sampling_probs": True}).json()
    assert refused["error"]["param"] == "post_sampling_probs"


def test_xtc_and_a_dynamic_temperature(computing: httpx.Client) -> None:
    """What they leave is told by these probabilities, and drawn again by the same seed."""
    own: dict[str, Any] = {"prompt": PROMPT, "n_predict": 1, "n_probs": 6, "post_sampling_probs": True, "top_k": 6}

    def shares(**more: Any) -> dict[int, float]:
        (told,) = computing.post("/completion", json={**own, "seed": 5, **more}).json()["completion_probabilities"]
        return {one["id"]: one["prob"] for one in told["top_probs"]}

    before = shares(temperature=1)
    least = sorted(before.values())[2]
    left = shares(temperature=1, xtc_probability=1, xtc_threshold=least * 0.999)
    assert left.keys() == {word for word, share in before.items() if share <= least} and len(left) == 3
    warm = shares(temperature=1.2, dynatemp_range=0.6)
    evenness = -sum(share * math.log(share) for share in before.values()) / math.log(6)
    weights = {word: share ** (1 / (0.6 + 1.2 * evenness)) for word, share in before.items()}
    assert warm == pytest.approx({word: weight / sum(weights.values()) for word, weight in weights.items()}, rel=1e-3)
    drawn = {"prompt": PROMPT, "n_predict": 30, "seed": 7, "xtc_probability": 0.5, "xtc_threshold": 0.05}
    texts = {computing.post("/completion", json=drawn).json()["content"] for _ in range(2)}
    assert len(texts) == 1
