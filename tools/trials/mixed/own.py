"""Requests to the doors of OpenAI, vLLM and Anthropic."""

from __future__ import annotations

from random import Random
from typing import Any

from . import fields
from .asked import Asked, Mixture
from .fields import Form, one_of, some


def _headers(rng: Random) -> dict[str, str]:
    return some(rng, {"X-Request-Id": lambda rng: f"mine-{rng.randrange(10**9)}"}, 0.1) | some(
        rng, {"Idempotency-Key": lambda rng: f"key-{rng.randrange(10**12)}"}, 0.1
    )


OLDER = {  # names of fields
    "json": ("guided_json", "json_schema"),
    "regex": ("guided_regex", "regex"),
    "choice": ("guided_choice",),
    "grammar": ("guided_grammar", "ebnf", "grammar"),
}


def _structured(form: Form | None, rng: Random) -> dict[str, Any]:
    """A form as chat and completions ask for it."""
    if form is None:
        return {}
    if form.kind == "object":
        return {"response_format": {"type": "json_object"}}
    if form.kind == "json" and rng.random() < 0.5:
        schema = {"name": "it", "schema": form.value, "strict": rng.random() < 0.5}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if form.kind in OLDER and rng.random() < 0.3:
        return {rng.choice(OLDER[form.kind]): form.value}
    blanks = some(rng, {"disable_any_whitespace": one_of(True, False)}, 0.3 if form.kind == "json" else 0)
    return {"structured_outputs": {form.kind: form.value, **blanks}}


ARGUMENTS = ("{}", '{"n": 1}', '{"a": {"b": ["\u00e4", null]}}')


def completions(rng: Random) -> Asked:
    mix = Mixture(rng)
    kind = rng.random()
    prompt: Any = fields.text(rng) if kind < 0.6 else fields.ids(rng)
    if kind > 0.8:
        batch = rng.randint(1, 4)
        prompt = [fields.text(rng, 50) if kind < 0.9 else fields.ids(rng, 30) for _ in range(batch)]
    prompts = len(prompt) if kind > 0.8 else 1
    if mix.chance(0.5):
        body = mix.beams()
        return Asked("completions", "/v1/completions", {"prompt": prompt, **body}, True, prompts * body["n"], mix.most)
    body = {"prompt": prompt, **mix.generation()}
    if mix.chance(2):
        body["logprobs"] = rng.choice((0, 1, 5, 20))
        body |= some(rng, {"logprob_token_ids": lambda rng: fields.ids(rng, 30)}, 0.2)
    if mix.chance() and not body.get("stream"):
        body["best_of"] = body.get("n", 1) + rng.randint(0, 2)
    form = mix.form("json", "object", "regex", "choice", "grammar")
    body |= _structured(form, rng)
    if mix.chance() and not form:
        body["echo"] = True
    count = prompts * body.get("n", 1)
    return Asked("completions", "/v1/completions", body, mix.settled, count, mix.most, form, _headers(rng))


def conversation(rng: Random, system: bool = True) -> list[dict[str, Any]]:
    """A conversation that ends with the user's turn."""
    found: list[dict[str, Any]] = []
    if system and rng.random() < 0.2:
        found.append({"role": "system", "content": fields.text(rng, 60)})
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        found.append({"role": "user", "content": fields.text(rng, 60)})
        found.append({"role": "assistant", "content": fields.text(rng, 60)})
    return [*found, {"role": "user", "content": fields.text(rng)}]


def _called(rng: Random) -> list[dict[str, Any]]:
    """A turn of the model's with calls, and what the tools said."""
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": "now", "arguments": rng.choice(ARGUMENTS)}}
        for number in range(rng.randint(1, 2))
    ]
    said = [{"role": "tool", "tool_call_id": call["id"], "content": fields.text(rng, 30)} for call in calls]
    return [{"role": "assistant", "content": rng.choice((None, "", "Let me see.")), "tool_calls": calls}, *said]


def _chat_extras(mix: Mixture, body: dict[str, Any]) -> None:
    rng = mix.rng
    if mix.chance(2):
        body |= {"logprobs": True, **some(rng, {"top_logprobs": one_of(0, 1, 5, 20)}, 0.8)}
        body |= some(rng, {"logprob_token_ids": lambda rng: fields.ids(rng, 30)}, 0.2)
    if mix.chance():
        body["messages"][-1:-1] = [{"role": "user", "content": "Hi"}, *_called(rng)]
    if mix.chance():
        body["messages"][-1]["content"] = [{"type": "text", "text": fields.text(rng)} for _ in range(rng.randint(1, 3))]
    if mix.chance():
        body["messages"].append({"role": "assistant", "content": rng.choice(("The capital", "It is", "1, 2, "))})
        body |= {"continue_final_message": True, "add_generation_prompt": False}
        body |= some(rng, {"echo": one_of(True, False)}, 0.5)
    more = {
        "documents": one_of([{"title": "a", "text": "b"}]),
        "reasoning_effort": one_of("low", "high", "none"),
        "include_reasoning": one_of(True, False),
        "parallel_tool_calls": one_of(True, False),
        "chat_template_kwargs": one_of({"enable_thinking": False}, {"x": 1}),
    }
    body |= some(rng, more, mix.share)


def chat(rng: Random) -> Asked:
    mix = Mixture(rng)
    if mix.chance(0.5):
        body = {"messages": conversation(rng), **mix.beams()}
        return Asked("chat", "/v1/chat/completions", body, True, body["n"], mix.most)
    body = {"messages": conversation(rng), **mix.generation()}
    _chat_extras(mix, body)
    if rng.random() < 0.3:
        body["max_completion_tokens"] = body.pop("max_tokens")
    form = None
    if mix.chance(2):
        tools = fields.tools(rng)
        named = {"type": "function", "function": {"name": rng.choice(tools)["name"]}}
        body["tools"] = [{"type": "function", "function": tool} for tool in tools]
        body["tool_choice"] = rng.choice(("none", "auto", "required", named))
    if body.get("tool_choice", "none") == "none" and not body.get("echo"):  # calls are no answer of a form
        form = mix.form("json", "object", "regex", "choice", "grammar")
        body |= _structured(form, rng)
    count, path = body.get("n", 1), "/v1/chat/completions"
    if mix.chance(0.5) and not body.get("stream"):
        body["messages"], path = [body["messages"], conversation(rng)], f"{path}/batch"
        body = {name: value for name, value in body.items() if name not in ("continue_final_message", "echo")}
        body["add_generation_prompt"], count = True, 2 * count
    return Asked("chat", path, body, mix.settled, count, mix.most, form, _headers(rng))


def responses(rng: Random) -> Asked:
    mix = Mixture(rng)
    body: dict[str, Any] = {"max_output_tokens": mix.most, **mix.sampling(), **some(rng, {"stream": one_of(True)}, 0.5)}
    body["input"] = fields.text(rng) if rng.random() < 0.5 else conversation(rng)
    body |= some(rng, {"instructions": lambda rng: fields.text(rng, 40), "store": one_of(True, False)}, 0.3)
    body |= some(rng, {"truncation": one_of("auto", "disabled"), "priority": one_of(0, 4)}, mix.share)
    if mix.chance(2):
        body |= {"include": ["message.output_text.logprobs"], "top_logprobs": rng.choice((0, 3, 20))}
    form = None
    if mix.chance(2):
        tools = fields.tools(rng)
        body["tools"] = [{"type": "function", **tool} for tool in tools]
        named = {"type": "function", "name": rng.choice(tools)["name"]}
        body["tool_choice"] = rng.choice(("none", "auto", "required", named))
    elif form := mix.form("json", "object"):
        kind = "json_object" if form.kind == "object" else "json_schema"
        body["text"] = {"format": {"type": kind, **({"name": "it", "schema": form.value} if form.value else {})}}
    return Asked("responses", "/v1/responses", body, mix.settled, 1, mix.most, form, _headers(rng))


def messages(rng: Random) -> Asked:
    mix = Mixture(rng)
    body = {"max_tokens": mix.most, "messages": conversation(rng, system=False), **mix.sampling()}
    body["temperature"] = min(body["temperature"], 1)
    body |= some(rng, {"stream": one_of(True)}, 0.5)
    body |= some(rng, {"system": lambda rng: fields.text(rng, 40), "metadata": one_of({"user_id": "me"})}, 0.3)
    if mix.chance(2):
        body["stop_sequences"] = rng.sample([stop for stop in fields.STOPS if stop.strip()], 2)
    form = None
    if mix.chance(2):
        tools = fields.tools(rng)
        body["tools"] = [
            {"name": tool["name"], "input_schema": tool["parameters"], **some(rng, {"strict": one_of(True)}, 0.3)}
            for tool in tools
        ]
        named = {"type": "tool", "name": rng.choice(tools)["name"]}
        body["tool_choice"] = rng.choice(({"type": "auto"}, {"type": "any"}, {"type": "none"}, named))
    elif form := mix.form("json"):
        body["output_config"] = {"format": {"type": "json_schema", "schema": form.value}}
    return Asked("messages", "/v1/messages", body, mix.settled, 1, mix.most, form, _headers(rng))


def token_ids(rng: Random) -> Asked:
    mix = Mixture(rng)
    inside = {**mix.sampling(), "max_tokens": mix.most}
    for name, draw in {"n": one_of(1, 2, 3), "logprobs": one_of(0, 1, 20), "prompt_logprobs": one_of(0, 3)}.items():
        if mix.chance():
            inside[name] = draw(rng)
    stream = some(rng, {"stream": one_of(True)}, 0 if "prompt_logprobs" in inside else 0.5)
    body = {"token_ids": fields.ids(rng), "sampling_params": inside, **stream}
    return Asked("ids", "/inference/v1/generate", body, mix.settled, inside.get("n", 1), mix.most)
