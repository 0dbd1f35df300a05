"""The logprobs of a running server, against those of transformers."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest
import torch

from tests.support.client import http_client
from tests.support.demo_model import HI, PROMPT, Reference, ask, events, refused
from tests.support.server import Server


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


def test_logprobs_of_completions(client: httpx.Client, reference: Reference) -> None:
    """With the prompt's, as those who score texts ask for them."""
    body = ask(client, prompt=PROMPT, logprobs=5, echo=True, return_token_ids=True, temperature=1, seed=3)
    (choice,) = body["choices"]
    told, ids = choice["logprobs"], choice["prompt_token_ids"] + choice["token_ids"]
    assert choice["text"].startswith(PROMPT) and "".join(told["tokens"]) == choice["text"]
    assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
    truth = torch.log_softmax(reference.logits(ids), -1)
    offset = 0
    for at, token in enumerate(ids):
        assert told["text_offset"][at] == offset
        offset += len(told["tokens"][at])
        if at:
            assert told["token_logprobs"][at] == pytest.approx(truth[at - 1][token].item(), abs=1e-4)
            best = truth[at - 1].topk(5)
            assert sorted(told["top_logprobs"][at].values())[-5:] == pytest.approx(
                sorted(best.values.tolist()), abs=1e-4
            )
    streamed = events(client, prompt=PROMPT, logprobs=5, echo=True, temperature=1, seed=3)
    parts = [event["choices"][0] for event in streamed]
    assert "".join(part["text"] for part in parts) == choice["text"]
    for name in told:
        assert [one for part in parts for one in part["logprobs"][name]] == told[name]


def test_more_than_twenty_where_the_server_tells_them(reference: Reference) -> None:
    """--max-logprobs; of answers and of prompts, in both forms."""
    with Server("--max-logprobs", "600", "--threads", "1") as server, http_client(server) as client:
        body = ask(client, prompt=PROMPT, logprobs=600, prompt_logprobs=500, return_token_ids=True, max_tokens=3)
        (choice,) = body["choices"]
        truth = torch.log_softmax(reference.logits(choice["prompt_token_ids"] + choice["token_ids"]), -1)
        length = len(choice["prompt_token_ids"])
        for at, best in enumerate(choice["prompt_logprobs"][1:]):
            wanted = truth[at].topk(500).values.tolist()
            told = sorted((one for one in best.values() if one["rank"] <= 500), key=lambda one: one["rank"])
            assert [one["logprob"] for one in told] == pytest.approx(wanted, abs=1e-4)
        chat = ask(client, messages=HI, logprobs=True, top_logprobs=600, max_tokens=3, return_token_ids=True)
        for at, best in enumerate(choice["logprobs"]["top_logprobs"], length - 1):
            least = truth[at].topk(600).values[-1].item()
            assert min(best.values()) == pytest.approx(least, abs=1e-4)
        (choice,) = chat["choices"]
        truth = torch.log_softmax(reference.logits(chat["prompt_token_ids"] + choice["token_ids"]), -1)
        for at, one in enumerate(choice["logprobs"]["content"], len(chat["prompt_token_ids"]) - 1):
            wanted = truth[at].topk(600).values.tolist()
            assert [other["logprob"] for other in one["top_logprobs"]] == pytest.approx(wanted, abs=1e-4)
        for asked in (601, -1):
            assert refused(client, prompt=PROMPT, logprobs=asked) == "logprobs"


def test_a_prompt_alone_is_scored(client: httpx.Client) -> None:
    body = ask(client, prompt=[PROMPT, PROMPT[:20]], logprobs=1, echo=True, max_tokens=0)
    for choice, text in zip(body["choices"], (PROMPT, PROMPT[:20]), strict=True):
        assert choice["text"] == text == "".join(choice["logprobs"]["tokens"])


def test_tokens_of_one_text_are_told_apart(client: httpx.Client, reference: Reference) -> None:
    """Half a character has the text of any other: lm-eval takes the likeliest by the largest number."""
    prompts = [reference.tokenizer.encode("Österreich \U0001f600\U0001f601"), [*range(98, 226)]]
    asked = {"model": "actorserve-demo", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 20}
    body = client.post("/v1/completions", json=asked | {"echo": True, "seed": 1}).raise_for_status().json()
    for choice, ids in zip(body["choices"], prompts, strict=True):
        truth, told = torch.log_softmax(reference.logits(ids), -1).topk(20).values, choice["logprobs"]
        assert len(told["tokens"]) == len(ids) + 1
        for values, likely in zip(truth, told["top_logprobs"][1:], strict=True):
            assert sorted(likely.values(), reverse=True)[:20] == pytest.approx(values.tolist(), abs=1e-4)


def test_logprobs_of_chat(client: httpx.Client, reference: Reference) -> None:
    asked: dict[str, Any] = {"messages": HI, "logprobs": True, "top_logprobs": 4, "n": 2, "temperature": 1, "seed": 5}
    body = ask(client, **asked, return_token_ids=True)
    for choice in body["choices"]:
        content = choice["logprobs"]["content"]
        text = b"".join(bytes(one["bytes"]) for one in content).decode()
        assert text.replace("<|im_end|>", "") == choice["message"]["content"]
        truth = torch.log_softmax(reference.logits(body["prompt_token_ids"] + choice["token_ids"]), -1)
        truth = truth[len(body["prompt_token_ids"]) - 1 :]
        for at, (one, token) in enumerate(zip(content, choice["token_ids"], strict=True)):
            assert one["logprob"] == pytest.approx(truth[at][token].item(), abs=1e-4)
            best = truth[at].topk(4).values.tolist()
            assert [other["logprob"] for other in one["top_logprobs"]] == pytest.approx(best, abs=1e-4)
    streamed = events(client, **asked)
    for choice in body["choices"]:
        parts = [one for event in streamed for one in event["choices"] if one["index"] == choice["index"]]
        told = [one for part in parts if part["logprobs"] for one in part["logprobs"]["content"]]
        assert told == choice["logprobs"]["content"]
    named = ask(client, **asked | {"return_tokens_as_token_ids": True})["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in named] == [f"token_id:{token}" for token in body["choices"][0]["token_ids"]]


IDS = [300, 5, 7]


def test_logprobs_of_listed_tokens(client: httpx.Client, reference: Reference) -> None:
    """In place of the likeliest, in the list's order, in all forms of answers; penalties change none of them."""
    asked: dict[str, Any] = {
        "logprob_token_ids": IDS,
        "frequency_penalty": 1,
        "temperature": 1,
        "seed": 5,
        "ignore_eos": True,
    }
    as_ids = asked | {"return_token_ids": True, "return_tokens_as_token_ids": True}
    chat = ask(client, messages=HI, logprobs=True, top_logprobs=1, n=2, **as_ids)
    for choice in chat["choices"]:
        truth = torch.log_softmax(reference.logits(chat["prompt_token_ids"] + choice["token_ids"]), -1)
        content, truth = choice["logprobs"]["content"], truth[len(chat["prompt_token_ids"]) - 1 :]
        assert len(content) == len(choice["token_ids"])
        for one, row, token in zip(content, truth, choice["token_ids"], strict=False):
            told = IDS if token in IDS else [*IDS, token]
            assert [other["token"] for other in one["top_logprobs"]] == [f"token_id:{token}" for token in told]
            values = [one["logprob"], *(other["logprob"] for other in one["top_logprobs"])]
            assert values == pytest.approx(row[[token, *told]].tolist(), abs=1e-4)
    (choice,) = ask(client, prompt=PROMPT, logprobs=2, echo=True, **as_ids)["choices"]
    ids, prompt = choice["prompt_token_ids"] + choice["token_ids"], len(choice["prompt_token_ids"])
    truth = torch.log_softmax(reference.logits(ids), -1)
    for at, told in enumerate(choice["logprobs"]["top_logprobs"][prompt:], prompt):
        wanted = {f"token_id:{token}": truth[at - 1][token].item() for token in (ids[at], *IDS)}
        assert told == pytest.approx(wanted, abs=1e-4)
    assert all(len(told) in (2, 3) for told in choice["logprobs"]["top_logprobs"][1:prompt])
    body = {"token_ids": ids[:prompt], "sampling_params": asked | {"max_tokens": len(ids) - prompt}}
    answer = client.post("/inference/v1/generate", json=body).raise_for_status().json()["choices"][0]
    best = [[one["logprob"] for one in told["top_logprobs"]] for told in answer["logprobs"]["content"]]
    assert answer["token_ids"] == choice["token_ids"]
    assert torch.allclose(torch.tensor(best), truth[prompt - 1 : -1, IDS], atol=1e-4)


@pytest.mark.parametrize("ids", [[], [-1], [1 << 20], [5] * 129])
def test_listed_tokens_that_cannot_be(client: httpx.Client, ids: list[int]) -> None:
    assert refused(client, prompt="a", logprobs=0, logprob_token_ids=ids) == "logprob_token_ids"
    body = {"token_ids": [1], "sampling_params": {"logprob_token_ids": ids}}
    answer = client.post("/inference/v1/generate", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logprob_token_ids")


def test_all_choices_of_a_prompt_have_its_logprobs(client: httpx.Client) -> None:
    body = ask(client, prompt=[PROMPT, PROMPT[:20]], prompt_logprobs=1, logprobs=1, echo=True, n=3, max_tokens=2)
    for group in (body["choices"][:3], body["choices"][3:]):
        first, *others = group
        assert all(one["prompt_logprobs"] == first["prompt_logprobs"] and one["prompt_logprobs"][1] for one in others)
        assert all(one["logprobs"]["tokens"][:-2] == first["logprobs"]["tokens"][:-2] for one in others)


def test_prompt_logprobs(client: httpx.Client, reference: Reference) -> None:
    for _ in range(2):  # the second time the prompt is in the cache
        (choice,) = ask(client, prompt=PROMPT, prompt_logprobs=2, return_token_ids=True)["choices"]
        ids = choice["prompt_token_ids"]
        truth = torch.log_softmax(reference.logits(ids), -1)
        assert len(choice["prompt_logprobs"]) == len(ids) and choice["prompt_logprobs"][0] is None
        for at, told in enumerate(choice["prompt_logprobs"][1:], 1):
            own = told[str(ids[at])]
            assert own["logprob"] == pytest.approx(truth[at - 1][ids[at]].item(), abs=1e-4)
            assert own["rank"] == int((truth[at - 1] > truth[at - 1][ids[at]]).sum()) + 1
            assert len(told) in (2, 3) and own["decoded_token"] == reference.tokenizer.decode(ids[at])
    body = ask(client, messages=HI, prompt_logprobs=0)
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert refused(client, prompt="a", prompt_logprobs=1, stream=True) == "prompt_logprobs"
