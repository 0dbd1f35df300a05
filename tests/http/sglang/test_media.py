"""Pictures and sounds of SGLang's /generate: which prompt has which, and what cannot be."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.errors import ApiError
from actorserve.http.settings import MediaRules
from actorserve.http.sglang.media import media_of
from actorserve.http.sglang.schemas import SglangGenerateRequest
from tests.http.fakes import finish_all
from tests.http.serving import serving

RULES = MediaRules({"image": 2, "audio": 1}, 1 << 20, local_files=True)
PNG = base64.b64encode(b"\x89PNG").decode()


def found(prompts: int, many: bool, rules: MediaRules | None = RULES, **fields: Any) -> list[list[str]]:
    """What stands for each medium of each prompt."""
    made = media_of(SglangGenerateRequest(**fields), prompts, many, rules)
    return [[one.url or one.data.decode() for one in own] for own in made]


def test_addresses_files_and_base64() -> None:
    given = ["https://a/b", f"data:image/png;base64,{PNG}"]
    assert found(1, False, image_data=given) == [["https://a/b", PNG]]
    assert found(1, False, image_data="/tmp/a.PNG") == [["file:///tmp/a.PNG"]]
    assert found(1, False, image_data={"url": "https://a"}, audio_data=PNG) == [["https://a", PNG]]


def test_of_a_batch_each_prompt_has_its_own() -> None:
    assert found(2, True, image_data="https://a") == [["https://a"], ["https://a"]]
    assert found(3, True, image_data=["https://a", None, ["https://b", "https://c"]]) == [
        ["https://a"],
        [],
        ["https://b", "https://c"],
    ]


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"image_data": ["https://a"] * 3}, "image_data", "at most 2"),
        ({"image_data": [5]}, "image_data[0]", "an address, a file's name or base64"),
        ({"video_data": "https://a"}, "video_data", "text, image and audio only"),
        ({"image_data": "data:text"}, "image_data[0]", "data:TYPE;base64"),
    ],
)
def test_what_cannot_be(fields: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(ApiError, match=text) as caught:
        found(1, False, **fields)
    assert (caught.value.status, caught.value.param) == (400, field)


def test_as_many_entries_as_prompts() -> None:
    with pytest.raises(ApiError, match="1 entries for 2 prompts"):
        found(2, True, image_data=["https://a"])


async def test_they_go_with_their_prompt() -> None:
    async with serving(media=RULES, max_body_bytes=1000) as served:
        client = await served.client()
        client.send("POST", "/generate", {"text": "<image>", "image_data": PNG * 500, "sampling_params": {}})
        job = await served.job()
        (prompt,) = job.prompts
        assert isinstance(prompt, TextPrompt) and [len(one.data) for one in prompt.media] == [len(PNG) * 500]
        finish_all(job)
        assert (await client.answer()).status == 200
        client.send("POST", "/generate", {"text": "a" * 1001, "image_data": PNG})
        assert (await client.answer()).status == 413
        client.send("POST", "/generate", {"inputs": "a" * 1001})  # of Text Generation Inference's clients
        assert (await client.answer()).status == 413


async def test_a_model_of_texts_alone() -> None:
    async with serving() as served:
        answer = await served.ask("POST", "/generate", {"text": "a", "image_data": PNG})
        assert (answer.status, answer.error["param"]) == (400, "image_data") and "text only" in answer.error["message"]
