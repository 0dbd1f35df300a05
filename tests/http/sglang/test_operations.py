"""SGLang's paths beside those of answers: what operators tell the server, and what is read out of a text."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.http.settings import AdapterNames, ModelCard, ServedAdapter
from tests.http.serving import Served, serving

ADMIN = {"X_Api_Key": "master"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


async def test_the_cache_is_flushed_by_either_method() -> None:
    async with serving(api_keys=["one"], admin_api_key="master") as served:
        for method in ("GET", "POST"):
            assert (await served.ask(method, "/flush_cache?timeout=5", **ADMIN)).status == 200
            assert (await served.ask(method, "/flush_cache", X_Api_Key="one")).status == 403
        assert (await served.ask("HEAD", "/flush_cache", **ADMIN)).status == 405
        assert served.engine.resets == [False, False]


@pytest.mark.parametrize(
    ("body", "paused"),
    [
        (None, ("abort", False)),
        ({"mode": "abort"}, ("abort", False)),
        ({"mode": "retract"}, ("keep", True)),
        ({"mode": "in_place"}, ("keep", False)),
    ],
)
async def test_generation_is_paused_and_goes_on(body: Any, paused: tuple[str, bool]) -> None:
    async with serving(admin_api_key="master") as served:
        assert (await served.ask("POST", "/pause_generation", body, **ADMIN)).json["status"] == "ok"
        assert served.engine.pauses == [paused] and served.engine.is_paused()
        assert (await served.ask("POST", "/continue_generation", {}, **ADMIN)).json["status"] == "ok"
        assert not served.engine.is_paused()
        answer = await served.ask("POST", "/pause_generation", {"mode": "wait"}, **ADMIN)
        assert (answer.status, answer.error["param"]) == (400, "mode")


async def test_memory_is_given_back_as_a_whole_and_taken_in_parts() -> None:
    async with serving(admin_api_key="master") as served:
        administration = served.engine.administration

        async def ask(what: str, *tags: str) -> Any:
            return await served.ask(
                "POST", f"/{what}_memory_occupation", {"tags": list(tags)} if tags else None, **ADMIN
            )

        for tags, text in ((["weights"], "weights and kv_cache, or none"), (["moon"], "not moon")):
            answer = await ask("release", *tags)
            assert (answer.status, answer.error["param"]) == (400, "tags") and text in answer.error["message"]
        assert (await ask("release", "cuda_graph")).json == {"status": "awake"}
        for tags in ([], ["kv_cache", "weights", "cuda_graph"]):
            assert (await ask("release", *tags)).json == {"status": "sleeping"}
        assert administration.sleeps == [(1, "keep", False, 300)] * 2
        assert (await ask("resume", "weights")).status == (await ask("resume")).status == 200
        assert administration.woken == [["weights"], ["weights", "kv_cache"]]


class Loaded(AdapterNames):
    enabled = True

    def all(self) -> list[ServedAdapter]:
        return [ServedAdapter(1, "mine", "folder")]


async def test_adapters_are_loaded_and_told() -> None:
    async with serving(admin_api_key="master", adapters=Loaded()) as served:
        body = {"lora_name": "mine", "lora_path": "folder", "pinned": True}
        told = {"success": True, "error_message": "", "loaded_adapters": {"mine": "folder"}}
        assert (await served.ask("POST", "/load_lora_adapter", body, **ADMIN)).json == told
        assert (await served.ask("POST", "/unload_lora_adapter", {"lora_name": "mine"}, **ADMIN)).json == told
        assert (await served.ask("POST", "/load_lora_adapter", {"lora_name": "x"}, **ADMIN)).status == 400


@pytest.mark.parametrize("parser", ["qwen25", "hermes", None])
async def test_calls_in_a_text(parser: str | None) -> None:
    async with serving(tool_parser="hermes") as served:
        text = 'So: <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
        answer = await served.ask(
            "POST", "/parse_function_call", {"text": text, "tools": TOOLS, "tool_call_parser": parser}
        )
        calls = [{"tool_index": 0, "name": "f", "parameters": '{"a": 1}'}]
        assert answer.json == {"normal_text": "So: ", "calls": calls}


@pytest.mark.parametrize(
    ("parser", "text", "reasoning", "rest"),
    [
        ("qwen3", "<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("deepseek-r1", "Hm.</think>Yes.", "Hm.", "Yes."),
        (None, "Yes.", "", "Yes."),
    ],
)
async def test_reasoning_in_a_text(parser: str | None, text: str, reasoning: str, rest: str) -> None:
    async with serving(reasoning_parser="qwen3") as served:
        answer = await served.ask("POST", "/separate_reasoning", {"text": text, "reasoning_parser": parser})
        assert answer.json == {"reasoning_text": reasoning, "text": rest}


async def test_parsers_that_are_none(served: Served) -> None:
    for path, field in (("/parse_function_call", "tool_call_parser"), ("/separate_reasoning", "reasoning_parser")):
        for given, said in (("moon", "not moon"), (None, "since none was found in the model's chat template")):
            answer = await served.ask("POST", path, {"text": "", field: given})
            assert (answer.status, answer.error["param"]) == (400, field)
            assert f"{field} must be one of " in answer.error["message"] and said in answer.error["message"]
    broken = {"text": "", "tool_call_parser": "hermes", "tools": [{"type": "function"}]}
    assert (await served.ask("POST", "/parse_function_call", broken)).error["param"].startswith("tools[0]")


async def test_paths_that_are_versioned_there(served: Served) -> None:
    for path in ("/tokenize", "/detokenize"):
        body = {"prompt": "hi"} if path == "/tokenize" else {"tokens": [1]}
        assert (await served.ask("POST", f"/v1{path}", body)).json == (await served.ask("POST", path, body)).json


async def test_what_the_model_is() -> None:
    async def card() -> ModelCard:
        return ModelCard(architecture="Qwen3ForCausalLM", family="qwen3")

    async with serving(card=card) as served:
        told = (await served.ask("GET", "/model_info")).json
        assert (told["model_type"], told["architectures"]) == ("qwen3", ["Qwen3ForCausalLM"])
