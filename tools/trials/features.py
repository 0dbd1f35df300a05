"""The table of features, asked for as a user would: routes answer, options and commands are there, requests do what
their row says. tools/docs/features.md says which rows there are.

Beside the count, `tools/trial rows` (rows.py) prints what was seen of each row.
"""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .launched import ROOT, Launched
from .wire import Answer

PAGE = ROOT / "tools" / "docs" / "features.md"
DEMO = ROOT / "actors" / "model" / "demo"
ADMIN = {"X_Api_Key": "the-admins"}
NAMED = re.compile(r"`([^`]+)`")
ROUTE = re.compile(r"(GET|POST|DELETE) (/\S*)")
MISSING = (404, 405, 501)
ENDS = (
    "/scale",
    "/scale_elastic_ep",
    "/update_weights",
    "/sleep",
    "/pause",
    "/start_profile",
    "/stop_profile",
)  # asked for by hand
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
Check = Callable[[Any], Any]


def chat(**more: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": HELLO, "max_tokens": 12, "temperature": 0, **more}


def text(**more: Any) -> tuple[str, dict[str, Any]]:
    return TEXT, {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, **more}


def said(answer: Any) -> str:
    """The first choice's text."""
    one = answer["choices"][0]
    return str(one["message"]["content"] if "message" in one else one["text"])


def embeds() -> str:
    """Two rows of zeros for the demo's model, as torch saves them, in base64."""
    import torch  # for this alone

    file = io.BytesIO()
    torch.save(torch.zeros(2, json.loads((DEMO / "config.json").read_text())["hidden_size"]), file)
    return base64.b64encode(file.getvalue()).decode()


REQUESTS: dict[str, tuple[tuple[str, dict[str, Any]], Check]] = {  # a row's beginning: a request, and what is right
    "POST /v1/chat/completions (full": (chat(), lambda found: "Paris" in said(found)),
    "POST /v1/completions (str": (text(prompt=["One", "Two"]), lambda found: len(found["choices"]) == 2),
    "POST /v1/chat/completions/batch": (
        (f"{CHAT}/batch", {"messages": [HELLO, HELLO], "max_tokens": 2}),
        lambda found: len(found["choices"]) == 2,
    ),
    "POST /v1/responses": (("/v1/responses", {"input": "Hello!"}), lambda found: found["status"] == "completed"),
    "POST /v1/messages": (
        ("/v1/messages", {"model": "actorserve-demo", "max_tokens": 4, "messages": HELLO}),
        lambda found: found["type"] == "message",
    ),
    "POST /tokenize": (("/tokenize", {"prompt": "Hello"}), lambda found: found["count"] == len(found["tokens"])),
    "Token-in/token-out": (
        ("/inference/v1/generate", {"token_ids": [40, 41], "sampling_params": {"max_tokens": 3, "ignore_eos": True}}),
        lambda found: len(found["choices"][0]["token_ids"]) == 3,
    ),
    "finish_reason": (text(), lambda found: found["choices"][0]["finish_reason"] in ("length", "stop")),
    "messages: roles": (
        chat(messages=[{"role": "critic", "content": "x", "name": "me"}]),
        lambda found: found["usage"]["prompt_tokens"],
    ),
    "temperature, top_p": (text(temperature=1.5, top_p=0.5, top_k=3, min_p=0.1), lambda found: found["choices"]),
    "n (fan-out": (text(n=3), lambda found: len(found["choices"]) == 3),
    "best_of": (text(best_of=3, n=2, temperature=1), lambda found: len(found["choices"]) == 2),
    "seed": (text(seed=5, temperature=1), lambda found: found["choices"]),
    "stop strings": (text(stop=[" Par", "is"]), lambda found: found["choices"][0]["finish_reason"] == "stop"),
    "stop_token_ids": (text(stop_token_ids=[40], ignore_eos=True), lambda found: found["choices"]),
    "max_tokens /": (
        chat(max_completion_tokens=3, max_tokens=None),
        lambda found: found["usage"]["completion_tokens"] == 3,
    ),
    "presence/frequency": (text(presence_penalty=1, frequency_penalty=1, repetition_penalty=1.2), said),
    "length_penalty": (text(use_beam_search=True, n=2, length_penalty=0.5), lambda found: len(found["choices"]) == 2),
    "logit_bias": (
        text(logit_bias={"40": 100}, return_token_ids=True),
        lambda found: found["choices"][0]["token_ids"][0] == 40,
    ),
    "logprobs, top": (
        chat(logprobs=True, top_logprobs=3),
        lambda found: len(found["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 3,
    ),
    "prompt_logprobs": (text(prompt_logprobs=1), lambda found: found["choices"][0]["prompt_logprobs"][0] is None),
    "allowed_token_ids": (
        text(allowed_token_ids=[40, 41], bad_words=["Paris"], return_token_ids=True, ignore_eos=True),
        lambda found: set(found["choices"][0]["token_ids"]) <= {40, 41},
    ),
    "truncate_prompt": (text(truncate_prompt_tokens=2), lambda found: found["usage"]["prompt_tokens"] == 2),
    "response_format": (
        chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, max_tokens=60),
        lambda found: set(json.loads(said(found))) == {"n"},
    ),
    "structured_outputs": (chat(structured_outputs={"choice": ["Rome"]}), lambda found: said(found) == "Rome"),
    "choice / regex": (
        chat(structured_outputs={"regex": "[ab]{3}"}),
        lambda found: re.fullmatch("[ab]{3}", said(found)),
    ),
    "Trace replay": (
        text(structured_outputs={"grammar": "start: <[311]> <[40]>"}, return_token_ids=True),
        lambda found: found["choices"][0]["token_ids"][:2] == [311, 40],
    ),
    "tools, tool_choice": (
        chat(tools=[TOOL], tool_choice="required", max_tokens=60),
        lambda found: found["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "now",
    ),
    "echo": (text(echo=True), lambda found: said(found).startswith("The capital of France is")),
    "add_generation_prompt": (
        chat(
            messages=[*HELLO, {"role": "assistant", "content": "It is"}],
            add_generation_prompt=False,
            continue_final_message=True,
        ),
        said,
    ),
    "documents": (chat(documents=[{"title": "a", "text": "b"}]), said),
    "chat_template, chat": (
        chat(chat_template="{{ messages[0].content }} {{ x }}", chat_template_kwargs={"x": 1}),
        lambda found: found["choices"],
    ),
    "priority": (text(priority=3), said),
    "request_id": (text(request_id="mine"), lambda found: found["id"] == "cmpl-mine"),
    "cache_salt": (text(cache_salt="a"), said),
    "reasoning_effort": (chat(reasoning_effort="low"), said),
    "repetition_detection": (
        text(
            structured_outputs={"regex": "(ab)*"},
            max_tokens=64,
            ignore_eos=True,
            repetition_detection={"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 3},
        ),
        lambda found: found["choices"][0]["finish_reason"] in ("repetition", "stop"),
    ),
    "return_token_ids": (
        text(return_token_ids=True, return_tokens_as_token_ids=True, logprobs=1),
        lambda found: found["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:"),
    ),
    "Renderer layer": ((f"{CHAT}/render", {"messages": HELLO}), lambda found: found["token_ids"]),
    "stream_interval": (
        text(return_prompt_text=True, logprobs=1, logprob_token_ids=[40], watermarking_config={"bias": 1.0}),
        lambda found: found["choices"],
    ),
    "strict tools": (
        chat(tools=[{**TOOL, "function": {**TOOL["function"], "strict": True}}], tool_choice="auto"),  # type: ignore[dict-item]
        lambda found: found["choices"],
    ),
    "Per-request timing": (
        chat(return_metrics=True),
        lambda found: found["metrics"] and found["system_fingerprint"].startswith("fp_"),
    ),
    "Ollama": (
        ("/api/chat", {"model": "actorserve-demo", "messages": HELLO, "stream": False}),
        lambda found: found["done"],
    ),
    "Streaming input sessions": (("/open_session", {"capacity_of_str_len": 0}), lambda found: len(found) == 32),
    "Server-load": (("/load", {}), lambda found: "server_load" in found),
    "Config introspection": (("/server_info", {}), lambda found: found),
}


class Seen(NamedTuple):
    """What became of a route, an option, a command or a request."""

    name: str  # as the table has it; of a request the beginning of its row
    right: bool
    answer: str

    @property
    def wrong(self) -> str:
        return f"{self.name}: {self.answer}"


def rows() -> list[list[str]]:
    """Cells of each row."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if len(row) == 4 and row[0] != "feature"]


def features() -> Counter[str]:
    """What the table of features says is there: routes, options, commands, and requests that do what their row says."""
    return Counter("right" if seen.right else seen.wrong for seen in asked())


def asked() -> list[Seen]:
    """All that the table's rows name, asked of one server."""
    found: list[Seen] = []
    table = [row for row in rows() if row[1] != "no"]
    named = {name for row in table for name in NAMED.findall(row[2])}
    _of_the_command(named, found)
    with tempfile.TemporaryDirectory() as folder:
        options = ("--admin-api-key", ADMIN["X_Api_Key"], "--trust-request-chat-template", "--profile-dir", folder)
        with Launched(
            *options, "--enable-lora", "--enable-prompt-embeds", "--max-data-parallel-size", "2", "--threads", "1"
        ) as server:
            _of_routes(server, named, found)
            _of_requests(server, {row[0] for row in table}, found)
            _of_administration(server, Path(folder), found)
    return found


def _of_the_command(named: set[str], found: list[Seen]) -> None:
    def run(*words: str) -> str:
        done = subprocess.run([sys.executable, "-m", "actorserve", *words], capture_output=True, text=True, cwd=ROOT)
        return done.stdout if done.returncode == 0 else ""

    manual = run("completion", "man").replace("\\\\-", "-").replace("\\-", "-")
    for name in sorted(named):
        if name.startswith("--"):
            there = name.split()[0] in manual
            found.append(Seen(name, there, "in the manual" if there else "no such option"))
        elif name.startswith("actorserve "):
            words = name.split(" -")[0].split()[1:]
            there = bool(run(*words, "--help"))
            found.append(Seen(name, there, "has its help" if there else "no such command"))


def _of_routes(server: Launched, named: set[str], found: list[Seen]) -> None:
    for name in sorted(named):
        route = ROUTE.fullmatch(name)
        if route is None or route[2].startswith(ENDS):
            continue
        path = re.sub(r"\{model\}", "actorserve-demo", route[2])
        answer = server.ask(route[1], path, None if route[1] == "GET" else {}, **ADMIN)
        unknown = answer.status in MISSING and not ("{id}" in path or path == "/v1/usage")
        found.append(Seen(name, not unknown and answer.status < 500, str(answer.status)))


def _of_requests(server: Launched, names: set[str], found: list[Seen]) -> None:
    embedded = {"prompt_embeds": (text(prompt_embeds=embeds()), lambda found: len(found["choices"]) == 2)}
    for beginning, ((path, body), right) in (REQUESTS | embedded).items():
        if not any(name.startswith(beginning) for name in names):
            found.append(Seen(beginning, False, "no row begins so"))
            continue
        found.append(_seen(beginning, server.ask("POST" if body else "GET", path, body or None), right))


def _seen(name: str, answer: Answer, right: Check) -> Seen:
    return Seen(name, _holds(right, answer), f"{answer.status} {answer.body[:200].decode(errors='replace')}")


def _holds(right: Check, answer: Answer) -> bool:
    try:
        return answer.status == 200 and bool(right(answer.json))
    except (LookupError, ValueError, TypeError):
        return False


def _of_administration(server: Launched, folder: Path, found: list[Seen]) -> None:
    """In the order in which an operator does it."""
    steps: tuple[tuple[str, dict[str, Any], Check], ...] = (
        ("/start_profile", {}, lambda told: True),
        ("/pause?mode=keep", {}, lambda told: told["status"] == "paused"),
        ("/resume", {}, lambda told: told["status"] == "resumed"),
        ("/stop_profile", {}, lambda told: Path(told["path"]).parent == folder),
        ("/scale_elastic_ep", {"new_data_parallel_size": 2}, lambda told: True),
        ("/scale", {"engines": 1}, lambda told: True),
        ("/sleep?level=1", {}, lambda told: told["status"] == "sleeping"),
        ("/wake_up", {}, lambda told: told["status"] == "awake"),
        ("/update_weights", {}, lambda told: True),
        (CHAT, chat()[1], lambda told: "Paris" in said(told)),
    )
    for path, body, right in steps:
        answer = server.ask("POST", path, body, **({} if path == CHAT else ADMIN))
        found.append(_seen(f"POST {path.partition('?')[0]}", answer, right))
