"""Requests of texts, and of models that make vectors."""

from __future__ import annotations

import base64
import io
import random
from typing import Any

import aiohttp
import torch
from safetensors import safe_open

from actorserve.actors.model.info import DEMO_FOLDER

from . import talking
from .talking import Request

QUESTIONS = [
    "What is the capital of France?",
    "How do I set an API key?",
    "Hello!",
    "What is 3 plus 4?",
    "Who are you?",
]


CITY = {
    "type": "object",
    "properties": {
        "capital_of_the_country": {"enum": ["Paris", "Rome", "Reykjavik"]},
        "is_a_name_that_all_know": {"type": "boolean"},
        "what_else_there_is_to_say": {"type": "string", "maxLength": 40},
    },
    "required": ["capital_of_the_country", "is_a_name_that_all_know", "what_else_there_is_to_say"],
    "additionalProperties": False,
}  # most of whose text a model has no choice of

EXTRAS: list[dict[str, Any]] = [  # what some of the requests ask for besides
    {},
    {},
    {"logprobs": 2},
    {"n": 3},
    {"stop": ["the", " is"]},
    {"structured_outputs": {"regex": r"[a-z]{3,40}( [a-z]{1,9}){5,30}"}},
    {"structured_outputs": {"json": CITY}, "logprobs": 2},
    {"structured_outputs": {"json": CITY}, "repetition_penalty": 1.3, "presence_penalty": 0.4, "stop": ["all_kn"]},
    {"temperature": 1.3, "seed": 7, "top_n_sigma": 1.2},
    {"temperature": 1.1, "seed": 7, "typical_p": 0.8},
    {"temperature": 1.2, "seed": 7, "dynatemp_range": 0.6, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"temperature": 1.1, "seed": 7, "mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.3},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "bad_words": ["the"]},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "repeat_last_n": 16},
    {"dry_multiplier": 1.5, "dry_allowed_length": 1},
]


def requests(rng: random.Random, count: int) -> list[Request]:
    """(path, body) of different requests: greedy and seeded, chat and completions, long and short, streamed or not,
    some with logprobs, grammars or penalties.
    """
    made = []
    for number in range(count):
        turn, at = divmod(number, len(EXTRAS))
        way = turn + at  # each of EXTRAS comes in all ways, and each way with some that come first
        body: dict[str, Any] = {"max_tokens": rng.choice([8, 40, 150]), "stream": way % 4 > 0}
        body |= {"temperature": 0} if way % 2 else {"temperature": 1.0, "seed": number}
        extra = EXTRAS[at]
        question = rng.choice(QUESTIONS)
        if rng.random() < 0.5:
            told = {"logprobs": True, "top_logprobs": 2} if "logprobs" in extra else extra
            messages = [{"role": "user", "content": question}]
            made.append(("/v1/chat/completions", body | told | {"messages": messages}))
        else:
            prompt = f"{number}. " + question * rng.choice([1, 5, 20])
            goes_on = "structured_outputs" not in extra  # behind its text there would be tokens without any
            made.append(("/v1/completions", body | extra | {"prompt": prompt, "ignore_eos": goes_on}))
    return made


def pooled_requests(rng: random.Random, count: int) -> list[Request]:
    """The same of a model that makes vectors: of a text or many, of all lengths, by token, scores and rankings."""
    made: list[Request] = []
    for number in range(count):
        texts = [
            f"{number} {at}. " + rng.choice(QUESTIONS) * rng.choice([1, 2, 3]) for at in range(rng.choice([1, 7, 40]))
        ]
        asked: list[Request] = [
            ("/v1/embeddings", {"input": texts}),
            ("/v1/embeddings", {"input": texts[0], "dimensions": 4}),
            ("/pooling", {"input": texts[0]}),
            ("/score", {"text_1": texts[0], "text_2": texts}),
            ("/rerank", {"query": QUESTIONS[0], "documents": texts}),
        ]
        made.append(asked[number % 5])
    return made


def embedded_requests(rng: random.Random, count: int) -> list[Request]:
    """Texts, and beside them prompts that are embeddings: near those of tokens of the packaged model, and of none."""
    with safe_open(DEMO_FOLDER / "model.safetensors", "pt") as file:
        table = file.get_tensor("model.embed_tokens.weight").float()
    made = requests(rng, count)
    for number, (path, body) in enumerate(made):
        if path != "/v1/completions" or number % 3 == 0:
            continue
        chance = torch.Generator().manual_seed(number)
        rows = table[torch.randint(len(table), (rng.choice([3, 40, 200]),), generator=chance)]
        data = io.BytesIO()
        torch.save(rows + 0.3 * table.std() * torch.randn(rows.shape, generator=chance), data)
        del body["prompt"]
        body["prompt_embeds"] = base64.b64encode(data.getvalue()).decode()
    return made


async def requests_of_all(session: aiohttp.ClientSession, rng: random.Random, asked: list[Request]) -> list[Request]:
    """In turn those of the first model and of each other one: texts, or vectors of one that makes such."""
    async with session.get("/v1/models") as response:
        names = [model["id"] for model in (await response.json())["data"] if model["parent"] is None]
    made = [[(path, body | {"model": body.get("model") or names[0]}) for path, body in asked]]
    for name in names[1:]:
        async with session.post("/v1/embeddings", json={"input": "a", "model": name}) as response:
            pools = response.status == 200
        over = talking.conversations if asked[0][0] == talking.PATH else requests
        own = (pooled_requests if pools else over)(rng, len(asked))
        made.append([(path, body | {"model": name}) for path, body in own])
    return [one for some in zip(*made, strict=True) for one in some]
