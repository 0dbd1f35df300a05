"""LM Studio's REST API: its paths generate as OpenAI's do, and its models are told as its clients read them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from actorserve.actors.model.encoder_decoder.spec import EncoderSpec, SpeechSpec
from actorserve.actors.protocol.topics.prompts import ChatPrompt, TextPrompt
from actorserve.http.openapi.dialects import LmStudioKeys, LmStudioModel, LmStudioModels
from actorserve.http.paths.dialects.lmstudio import LMSTUDIO
from actorserve.http.settings import Catalog, ModelCard
from tests.http.serving import HI, SETTINGS, Served, serving
from tests.http.test_models import POOLER, SECOND, catalog_of

SAFETENSORS = ModelCard(family="llama", stored_as="F16")
GGUF = ModelCard(family="qwen3", stored_as="Q4_K")


async def safetensors() -> ModelCard:
    return SAFETENSORS


async def gguf() -> ModelCard:
    return GGUF


async def models_of(served: Served) -> list[LmStudioModel]:
    """Each has all that is promised, and no more."""
    answer = await served.ask("GET", "/api/v0/models")
    return msgspec.convert(answer.json, LmStudioModels).data


async def test_models_are_told_with_what_they_are_and_how_much_they_read() -> None:
    catalog = catalog_of({"card": safetensors, "tool_parser": "hermes"}, {**SECOND, "card": gguf}, POOLER)
    async with serving(model=0, catalog=catalog, card=safetensors, tool_parser="hermes") as served:
        served.engine.administration.unloaded.add(1)
        told = {one.id: one for one in await models_of(served)}
        assert list(told) == ["tiny", "alias/name", "second", "pooler", "other-name"]
        first, second, pooler = told["tiny"], told["second"], told["pooler"]
        assert (first.type, first.arch, first.compatibility_type, first.quantization) == ("llm", "llama", "mlx", "F16")
        assert (first.state, first.loaded_context_length, first.max_context_length) == ("loaded", 64, 64)
        assert (second.state, second.loaded_context_length) == ("not-loaded", msgspec.UNSET)
        assert (second.compatibility_type, second.max_context_length) == ("gguf", 7)
        assert (first.capabilities, second.capabilities, pooler.type) == (["tool_use"], [], "embeddings")
        one = await served.ask("GET", "/api/v0/models/alias/name")
        assert msgspec.convert(one.json, LmStudioModel) == told["alias/name"]


async def test_version_1_tells_them_by_keys_and_what_is_loaded() -> None:
    catalog = catalog_of({"card": safetensors, "tool_parser": "hermes"}, {**SECOND, "card": gguf}, POOLER)
    async with serving(model=0, catalog=catalog, card=safetensors, tool_parser="hermes") as served:
        served.engine.administration.unloaded.add(1)
        answer = await served.ask("GET", "/api/v1/models")
        told = {one.key: one for one in msgspec.convert(answer.json, LmStudioKeys).models}
        assert list(told) == ["tiny", "alias/name", "second", "pooler", "other-name"]
        first, second, pooler = told["tiny"], told["second"], told["pooler"]
        assert first.loaded_instances == [{"id": "tiny", "config": {"context_length": 64}}]
        assert first.capabilities == {"vision": False, "trained_for_tool_use": True} and first.architecture == "llama"
        assert second.loaded_instances == [] and (first.format, second.format) == (None, "gguf")
        assert pooler.type == "embedding" and pooler.capabilities is msgspec.UNSET is pooler.architecture


async def test_models_that_only_listen_are_in_no_list() -> None:
    speech = SpeechSpec(languages={}, tasks={}, end=1, no_timestamps=2, mels=1, frames=2)
    hears = EncoderSpec(longest=8, decoder_longest=8, start=[1], filler=0, speech=speech)
    async with serving(model=0, catalog=catalog_of({}, {"served": ["ears"], "encoder": hears})) as served:
        assert [one.id for one in await models_of(served)] == ["tiny", "alias/name"]


async def test_a_model_that_is_not_there_is_a_404_that_names_it(served: Served) -> None:
    answer = await served.ask("GET", "/api/v0/models/nothing")
    assert answer.status == 404 and answer.json["error"]["code"] == "model_not_found"


async def test_a_model_that_cannot_be_served_is_not_listed_and_says_why() -> None:
    catalog = Catalog({"bad": "its file is cut off"})
    catalog.models.append(replace(SETTINGS, model=0, catalog=catalog))
    async with serving(model=0, catalog=catalog) as served:
        assert "bad" not in [one.id for one in await models_of(served)]
        answer = await served.ask("GET", "/api/v0/models/bad")
        assert answer.status == 404 and "its file is cut off" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/api/v0/chat/completions", {"messages": HI}, ChatPrompt),
        ("/api/v0/completions", {"prompt": "hi"}, TextPrompt),
    ],
)
async def test_what_generates_is_openais(served: Served, path: str, body: dict[str, object], kind: type) -> None:
    client = await served.client()
    client.send("POST", path, {**body, "max_tokens": 3, "stream": True})
    job = await served.job()
    assert isinstance(job.prompts[0], kind)
    client.leave()


def test_it_has_no_other_paths() -> None:
    generating = {f"/api/v0/{name}" for name in ("chat/completions", "completions", "embeddings")}
    assert {route.path for route in LMSTUDIO if route.method == "post"} == generating
