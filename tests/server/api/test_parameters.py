"""Every parameter that steers or describes a generation, over HTTP, against transformers on the same weights."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest
import torch
from transformers import TypicalLogitsWarper

from tests.support.demo_model import COUNT, HI, PROMPT, Reference, ask, events, refused
from tests.support.selection import slow

REPEATING = "7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7"


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.mark.parametrize(
    "penalties", [(1.2, -0.7, 0.4), (0.9, 0.2, -1.1), *slow(((1.3, 0, 0),), ((1, 1.5, 0),), ((1, 0, 1.9),))], ids=str
)
def test_penalties(client: httpx.Client, reference: Reference, penalties: tuple[float, float, float]) -> None:
    repetition, frequency, presence = penalties
    fields = {"repetition_penalty": repetition, "frequency_penalty": frequency, "presence_penalty": presence}
    (choice,) = ask(client, prompt=REPEATING, return_token_ids=True, **fields)["choices"]
    ids = reference.ids(REPEATING)
    assert choice["prompt_token_ids"] == ids
    assert choice["token_ids"] == reference.greedy(ids, repetition, frequency, presence)
    plain = ask(client, prompt=REPEATING, return_token_ids=True)["choices"][0]["token_ids"]
    assert plain == reference.greedy(ids, 1, 0, 0) != choice["token_ids"]


def test_bias_and_masks(client: httpx.Client, reference: Reference) -> None:
    plain = ask(client, prompt=PROMPT, return_token_ids=True)["choices"][0]["token_ids"]
    biased = ask(client, prompt=PROMPT, return_token_ids=True, logit_bias={str(plain[0]): -100})["choices"][0]
    assert plain[0] not in biased["token_ids"]
    forced = ask(client, prompt=PROMPT, return_token_ids=True, logit_bias={"77": 100})["choices"][0]["token_ids"]
    assert forced == [77] * COUNT
    allowed = ask(client, prompt=PROMPT, return_token_ids=True, allowed_token_ids=[70, 71, 72], temperature=1)
    assert set(allowed["choices"][0]["token_ids"]) <= {70, 71, 72}
    word = str(reference.tokenizer.decode(plain[:3])).split()[0]
    without = ask(client, prompt=PROMPT, bad_words=[word])["choices"][0]["text"]
    assert word in ask(client, prompt=PROMPT)["choices"][0]["text"] and word not in without


def test_top_n_sigma(client: httpx.Client, reference: Reference) -> None:
    """Each token lies within so many standard deviations by transformers' logits, whole and streamed."""
    asked: dict[str, Any] = {"prompt": PROMPT, "temperature": 2, "seed": 4, "return_token_ids": True, "n": 4}

    def furthest(sigmas: float) -> float:
        """Of all tokens that are drawn, in standard deviations below the largest."""
        body = ask(client, **asked, top_n_sigma=sigmas)
        streamed = [one for event in events(client, **asked, top_n_sigma=sigmas) for one in event["choices"]]
        found = []
        for choice in body["choices"]:
            parts = [one for one in streamed if one["index"] == choice["index"]]
            assert "".join(part["text"] for part in parts) == choice["text"]
            ids = choice["prompt_token_ids"] + choice["token_ids"]
            logits = reference.logits(ids)[-COUNT - 1 : -1]
            for own, token in zip(logits, choice["token_ids"], strict=True):
                found.append(float((own.max() - own[token]) / own.std(correction=0)))
        return max(found)

    assert furthest(0) == furthest(-1) > 1.5
    assert 0.1 < furthest(0.5) < 0.5 + 1e-3
    chat: dict[str, Any] = {"messages": HI, "temperature": 2, "seed": 3}
    assert (
        ask(client, **chat, top_n_sigma=0.001)["choices"][0]["message"]
        == (ask(client, **chat | {"temperature": 0})["choices"][0]["message"])
    )


def test_typical_p(client: httpx.Client, reference: Reference) -> None:
    """Each token is one that transformers' warper keeps of transformers' logits, whole and streamed."""
    asked: dict[str, Any] = {
        "prompt": PROMPT,
        "temperature": 2,
        "seed": 4,
        "top_p": 1,
        "return_token_ids": True,
        "n": 4,
    }
    warper = TypicalLogitsWarper(0.2 + 1e-3)

    def atypical(**fields: Any) -> int:
        """How many of all tokens that are drawn are others."""
        body = ask(client, **asked, **fields)
        streamed = [one for event in events(client, **asked, **fields) for one in event["choices"]]
        found = 0
        for choice in body["choices"]:
            parts = [one for one in streamed if one["index"] == choice["index"]]
            assert "".join(part["text"] for part in parts) == choice["text"]
            ids = choice["prompt_token_ids"] + choice["token_ids"]
            logits = reference.logits(ids)[-COUNT - 1 : -1]
            kept = warper(torch.tensor([ids]), logits / 2).isfinite()
            found += sum(not own[token] for own, token in zip(kept, choice["token_ids"], strict=True))
        return found

    assert atypical(typical_p=0.2) == 0 < atypical(typical_p=0.9) < 4 * COUNT
    assert ask(client, **asked, typical_p=1)["choices"] == ask(client, **asked)["choices"]


def test_best_of(client: httpx.Client) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, "temperature": 1.5, "seed": 9, "logprobs": 0}
    every = ask(client, **asked, n=6)["choices"]
    best = ask(client, **asked, n=2, best_of=6)
    means = [sum(one["logprobs"]["token_logprobs"]) / len(one["logprobs"]["tokens"]) for one in every]
    order = sorted(range(6), key=lambda index: -means[index])
    assert [choice["text"] for choice in best["choices"]] == [every[index]["text"] for index in order[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1] and best["usage"]["completion_tokens"] == 6 * COUNT
    assert refused(client, prompt="a", n=3, best_of=2) == "best_of"


def test_fewer_larger_events(client: httpx.Client) -> None:
    whole = ask(client, prompt=PROMPT)["choices"][0]["text"]
    every, fourth = (events(client, prompt=PROMPT, stream_interval=interval) for interval in (1, 4))
    for streamed in (every, fourth):
        assert "".join(event["choices"][0]["text"] for event in streamed) == whole
    assert len(fourth) <= COUNT // 4 + 2  # tokens that come together are one event without it, too


def test_salts_keep_caches_apart(client: httpx.Client) -> None:
    asked: dict[str, Any] = {"prompt": "word " * 100, "max_tokens": 1}

    def cached(**fields: Any) -> int:
        return int(ask(client, **asked, **fields)["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(cache_salt="a") == 0 and cached(cache_salt="a") > 60
    assert cached(cache_salt="b") == 0 and cached() == 0 and cached() > 60


def test_min_tokens_and_stop_tokens(client: httpx.Client) -> None:
    plain = ask(client, prompt=PROMPT, return_token_ids=True)["choices"][0]["token_ids"]
    stopped = ask(client, prompt=PROMPT, return_token_ids=True, stop_token_ids=[plain[2]])["choices"][0]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", plain[2])
    later = ask(client, prompt=PROMPT, return_token_ids=True, stop_token_ids=[plain[2]], min_tokens=6)["choices"][0]
    assert plain[2] not in later["token_ids"][:6] and len(later["token_ids"]) >= 6


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frequency_penalty", 2.1),
        ("presence_penalty", -3),
        ("repetition_penalty", 0),
        ("repeat_last_n", -2),
        ("top_n_sigma", -1.5),
        ("top_n_sigma", 101),
        ("typical_p", 0),
        ("typical_p", 1.01),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"1000000": 1}),
        ("logit_bias", {"x": 1}),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
        ("logprob_token_ids", [5]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [1 << 20]),
        ("stop_token_ids", [1 << 20]),
        ("bad_words", [""]),
        ("cache_salt", ""),
        ("cache_salt", "a\0weights 1"),
        ("stream_interval", 0),
        ("length_penalty", 0.5),
        ("suffix", "a"),
    ],
)
def test_what_cannot_be_is_named(client: httpx.Client, field: str, value: Any) -> None:
    assert refused(client, prompt="a", **{field: value}) == field


def test_tokens_in_tokens_out(client: httpx.Client, reference: Reference) -> None:
    ids = reference.ids(PROMPT)
    params = {"temperature": 0, "max_tokens": COUNT, "ignore_eos": True, "logprobs": 1}
    answer = client.post(
        "/inference/v1/generate", json={"token_ids": ids, "sampling_params": params, "request_id": "me"}
    )
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["token_ids"] == reference.greedy(ids, 1, 0, 0) and choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["content"]) == COUNT and answer.json()["request_id"] == "me"
    asked = {"token_ids": ids, "sampling_params": params, "stream": True, "request_id": "me"}
    with client.stream("POST", "/inference/v1/generate", json=asked) as streamed:
        lines = [line.removeprefix("data: ") for line in streamed.iter_lines() if line]
    events = [json.loads(line) for line in lines[:-1]]
    assert {event["request_id"] for event in events} == {"me"}
    parts = [event["choices"][0] for event in events]
    assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
    refusal = client.post("/inference/v1/generate", json={"token_ids": []})
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "token_ids")


def test_what_the_tokenizer_is(client: httpx.Client) -> None:
    about = client.get("/tokenizer_info").json()
    assert "messages" in about["chat_template"]


def beams(
    reference: Reference, ids: list[int], width: int, count: int, penalty: float
) -> list[tuple[float, list[int]]]:
    """The best sequences by trying: all continuations of the best ones so far, by transformers' logits."""
    going: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(count):
        longer = []
        for whole, tokens in going:
            logprobs = torch.log_softmax(reference.logits(ids + tokens)[-1], -1)
            for token, value in enumerate(logprobs.tolist()):
                longer.append((whole + value, [*tokens, token]))
        going = sorted(longer, reverse=True)[:width]
    return sorted(((whole / len(tokens) ** penalty, tokens) for whole, tokens in going), reverse=True)


@pytest.mark.parametrize(("width", "penalty"), [(1, 1.0), (3, 1.0), (4, 0.0)])
def test_beam_search(client: httpx.Client, reference: Reference, width: int, penalty: float) -> None:
    asked: dict[str, Any] = {"use_beam_search": True, "length_penalty": penalty, "max_tokens": 6, "n": width}
    body = ask(client, prompt=PROMPT, logprobs=2, **asked)
    found = beams(reference, reference.ids(PROMPT), width, 6, penalty)
    texts = [reference.tokenizer.decode(tokens, skip_special_tokens=True) for _, tokens in found]
    assert [choice["text"] for choice in body["choices"]] == texts and len(set(texts)) == width
    assert body["usage"]["completion_tokens"] == 6 * width
    sums = [sum(choice["logprobs"]["token_logprobs"]) / 6**penalty for choice in body["choices"]]
    assert sums == pytest.approx([score for score, _ in found], abs=1e-3)
    chat = ask(client, messages=HI, use_beam_search=True, n=2, max_tokens=12, ignore_eos=False)
    assert "Paris" in chat["choices"][0]["message"]["content"] and chat["choices"][0]["finish_reason"] == "stop"
    assert refused(client, prompt="a", use_beam_search=True, stream=True) == "stream"
    assert refused(client, prompt="a", use_beam_search=True, n=11) == "n"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_repeats_itself_ends(client: httpx.Client, stream: bool) -> None:
    body = {
        "prompt": PROMPT,
        "max_tokens": 200,
        "ignore_eos": True,
        "allowed_token_ids": [300],  # the same again and again
        "repetition_detection": {"max_pattern_size": 3, "min_count": 5},
        "stream": stream,
        "stream_options": {"include_usage": True} if stream else None,
    }
    answer = client.post("/v1/completions", json=body)
    said = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    last, used = (said[-2], said[-1]) if stream else (answer.json(), answer.json())
    assert last["choices"][0]["finish_reason"] == "repetition"
    assert last["choices"][0]["stop_reason"] == "repetition_detected"
    assert used["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("scheme", ["lefthash", "selfhash"])
def test_transformers_finds_its_watermark(client: httpx.Client, reference: Reference, scheme: str) -> None:
    """In the tokens alone, drawn at random; with another key it finds none, and none without one."""
    from transformers import WatermarkDetector, WatermarkingConfig

    wanted = {"bias": 6.0, "hashing_key": 4711, "seeding_scheme": scheme, "context_width": 2}
    body = {"prompt": PROMPT, "max_tokens": 80, "temperature": 1.2, "seed": 5, "return_token_ids": True}

    def found(**more: Any) -> tuple[bool, bool]:
        tokens = torch.tensor([ask(client, **body, **more)["choices"][0]["token_ids"]])
        configs = [
            WatermarkingConfig(bias=6.0, hashing_key=key, seeding_scheme=scheme, context_width=2) for key in (4711, 12)
        ]
        detectors: list[Any] = [WatermarkDetector(reference.model.config, "cpu", config) for config in configs]
        own, other = (bool(detect(tokens)[0]) for detect in detectors)
        return own, other

    assert found(watermarking_config=wanted) == (True, False)
    assert found() == (False, False)
