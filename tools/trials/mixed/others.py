"""Requests to the doors of Ollama, llama.cpp, Cohere, Text Generation Inference and SGLang."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from . import fields
from .asked import Asked, Mixture
from .fields import one_of, some
from .own import conversation


def ollama(rng: Random) -> Asked:
    mix = Mixture(rng)
    options = {**mix.sampling_of("ollama"), "num_predict": mix.most}
    options |= some(rng, {"stop": lambda rng: rng.sample(fields.STOPS, 2)}, mix.share)
    body: dict[str, Any] = {"model": "actorserve-demo", "options": options, **some(rng, {"stream": one_of(False)}, 0.5)}
    if mix.chance():
        body |= {"logprobs": True, "top_logprobs": rng.choice((0, 1, 20))}
    if form := mix.form("json", "object"):
        body["format"] = form.value or "json"
    if rng.random() < 0.5:
        body["prompt"] = fields.text(rng)
        body |= some(rng, {"raw": one_of(True), "system": one_of("Be brief.")}, 0.2)
        if body.get("raw"):
            body.pop("system", None)
        return Asked("ollama_generate", "/api/generate", body, mix.settled, 1, mix.most, form)
    body["messages"] = conversation(rng)
    if not form and mix.chance():
        body["tools"] = [{"type": "function", "function": tool} for tool in fields.tools(rng)]
    return Asked("ollama_chat", "/api/chat", body, mix.settled, 1, mix.most, form)


def llamacpp(rng: Random) -> Asked:
    mix = Mixture(rng)
    body = {**mix.sampling_of("llamacpp"), "n_predict": mix.most, **some(rng, {"stream": one_of(True)}, 0.5)}
    more = {
        "stop": lambda rng: rng.sample(fields.STOPS, 2),
        "n_probs": one_of(0, 1, 5, 20),
        "return_tokens": one_of(True),
        "timings_per_token": one_of(True),
        "cache_prompt": one_of(True, False),
        "samplers": one_of(["top_k", "temperature"], ["top_p", "min_p", "temperature"]),
    }
    body |= some(rng, more, 2 * mix.share)
    kind = rng.random()
    body["prompt"] = fields.text(rng) if kind < 0.7 else fields.ids(rng) if kind < 0.9 else [40, "is a", 311]
    count = 1
    if mix.chance():
        body["prompt"] = [fields.text(rng, 40), fields.text(rng, 40), {"prompt_string": fields.text(rng, 40)}]
        count = 3
    if mix.chance():
        body["n_cmpl"] = rng.randint(1, 3)
        count *= body["n_cmpl"]
    if form := mix.form("json"):
        body["json_schema"] = form.value
    return Asked("llamacpp", "/completion", body, mix.settled, count, mix.most, form)


def cohere(rng: Random) -> Asked:
    mix = Mixture(rng)
    body = {
        "model": "actorserve-demo",
        "messages": conversation(rng),
        "max_tokens": mix.most,
        **mix.sampling_of("cohere"),
    }
    body |= some(rng, {"stream": one_of(True)}, 0.5)
    body |= some(rng, {"stop_sequences": one_of(["e"], ["Paris", "."]), "logprobs": one_of(True)}, mix.share)
    form = None
    if mix.chance(2):
        body["tools"] = [{"type": "function", "function": tool} for tool in fields.tools(rng)]
        body |= some(rng, {"tool_choice": one_of("REQUIRED", "NONE"), "strict_tools": one_of(True)}, 0.5)
    elif form := mix.form("json", "object"):
        body["response_format"] = {"type": "json_object", **({"json_schema": form.value} if form.value else {})}
    return Asked("cohere", "/v2/chat", body, mix.settled, 1, mix.most, form)


def tgi(rng: Random) -> Asked:
    mix = Mixture(rng)
    inside = {**mix.sampling_of("tgi"), "max_new_tokens": mix.most, "details": True}
    if inside["temperature"] == 0:
        del inside["temperature"]
    inside |= some(
        rng, {"stop": lambda rng: rng.sample(fields.STOPS, 2), "top_n_tokens": one_of(0, 3, 20)}, 2 * mix.share
    )
    inside |= some(rng, {"return_full_text": one_of(True, False), "truncate": one_of(3, 50)}, mix.share)
    if form := mix.form("json", "regex"):
        inside["grammar"] = {"type": form.kind, "value": form.value}
        inside.pop("return_full_text", None)
    path = rng.choice(("/generate", "/generate_stream"))
    return Asked("tgi", path, {"inputs": fields.text(rng), "parameters": inside}, mix.settled, 1, mix.most, form)


def sglang(rng: Random) -> Asked:
    mix = Mixture(rng)
    inside = {**mix.sampling_of("sglang"), "max_new_tokens": mix.most}
    inside |= some(rng, {"stop": lambda rng: rng.sample(fields.STOPS, 2), "n": one_of(1, 2)}, 2 * mix.share)
    seed = inside.pop("seed", None)
    inside |= {} if seed is None else {"sampling_seed": seed}
    form = mix.form("json", "regex")
    if form:
        inside["json_schema" if form.kind == "json" else "regex"] = (
            json.dumps(form.value) if form.kind == "json" else form.value
        )
    body: dict[str, Any] = {"sampling_params": inside, **some(rng, {"stream": one_of(True)}, 0.5)}
    body |= {"text": fields.text(rng)} if rng.random() < 0.6 else {"input_ids": fields.ids(rng)}
    count = inside.get("n", 1)
    if mix.chance():
        body["text"] = [fields.text(rng, 40) for _ in range(rng.randint(1, 3))]
        body.pop("input_ids", None)
        count *= len(body["text"])
    if mix.chance():
        body |= {"return_logprob": True, "top_logprobs_num": rng.choice((0, 2, 20))}
        body |= some(rng, {"logprob_start_len": one_of(-1), "return_text_in_logprobs": one_of(True)}, 0.4)
    return Asked("sglang", "/generate", body, mix.settled, count, mix.most, form)
