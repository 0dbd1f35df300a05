"""Pictures and sounds of llama.cpp's prompts: which prompt has which, and what cannot be."""

from __future__ import annotations

import base64
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.errors import ApiError
from actorserve.http.handlers.dialects import llamacpp as handlers
from actorserve.http.llamacpp.media import MARKER, media_of
from actorserve.http.llamacpp.schemas import LlamaCompletionRequest
from actorserve.http.settings import MediaRules
from tests.http.fakes import finish_all
from tests.http.serving import serving

RULES = MediaRules({"image": 2, "audio": 1}, 1 << 20, local_files=True)
PNG, WAVE = (base64.b64encode(data).decode() for data in (b"\x89PNG\r\n\x1a\n0000", b"RIFF\0\0\0\0WAVEfmt more of it"))


def found(prompt: Any, rules: MediaRules | None = RULES) -> list[list[tuple[str, str]]]:
    """(what, its bytes) of each medium of each prompt."""
    body = msgspec.convert({"prompt": prompt}, LlamaCompletionRequest)
    return [[(one.modality, one.data.decode()) for one in own] for own in media_of(body.prompt, rules)]


def of(*data: str, text: str = MARKER) -> dict[str, Any]:
    return {"prompt_string": text, "multimodal_data": list(data)}


def test_what_they_are_is_seen_from_their_bytes() -> None:
    assert found(of(PNG, f"data:audio/wav;base64,{WAVE}")) == [[("image", PNG), ("audio", WAVE)]]
    assert found({"prompt_string": MARKER, "multimodal_data": PNG}) == [[("image", PNG)]]
    assert found(["a", of(PNG), of()]) == [[], [("image", PNG)], []]
    assert found("a") == [[]] and found([1, 2, "a"]) == found([[1], [2]], None) == []


@pytest.mark.parametrize(
    ("prompt", "rules", "param"),
    [
        (of(PNG), None, "prompt.multimodal_data[0]"),
        ([of(), of(PNG, WAVE)], MediaRules({"image": 1}, 1, False), "prompt[1].multimodal_data[1]"),
        (of(PNG, PNG, PNG), RULES, "prompt.multimodal_data"),
        ([of(PNG), 5], RULES, "prompt"),
    ],
)
def test_what_cannot_be_is_named(prompt: Any, rules: MediaRules | None, param: str) -> None:
    with pytest.raises(ApiError) as error:
        found(prompt, rules)
    assert (error.value.status, error.value.param) == (400, param)


async def test_prompts_have_them_with_the_mark() -> None:
    async with serving(media=RULES) as served:
        client = await served.client()
        client.send("POST", "/completion", {"prompt": ["a", of(PNG, text="b<__media__>")], "n_predict": 1})
        job = await served.job()
        plain, seeing = job.prompts
        assert isinstance(plain, TextPrompt) and isinstance(seeing, TextPrompt)
        assert not plain.media and not plain.marker
        assert (seeing.text, seeing.marker, len(seeing.media)) == ("b<__media__>", MARKER, 1)
        finish_all(job)
        assert (await client.answer()).status == 200
        assert (await served.ask("GET", "/props")).json["media_marker"] == MARKER


LONG = 110_000  # above --max-body-bytes


@pytest.mark.parametrize(
    ("prompt", "status"),
    [
        ([7] * (LONG // 2), 413),
        ("a " * (LONG // 2), 413),
        ([of(PNG), "a " * (LONG // 2)], 413),
        ([7] * (LONG // 2) + [of(PNG)], 413),
        (of(PNG, text=MARKER + "a " * (LONG // 2)), 413),
        ({**of(PNG), "more": [7] * (LONG // 2)}, 413),
        (of(PNG + "A" * LONG), 200),
        (["a", of(PNG, "A" * LONG, text=2 * MARKER)], 200),
    ],
)
async def test_only_pictures_may_be_longer_than_other_bodies(
    prompt: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything walks them: millions of ids would keep the loop from all others."""
    walk = Mock(side_effect=media_of)
    monkeypatch.setattr(handlers, "media_of", walk)
    async with serving(media=RULES) as served:
        client = await served.client()
        client.send("POST", "/completion", {"prompt": prompt, "n_predict": 1})
        if status == 200:
            finish_all(await served.job())
        answer = await client.answer()
    assert answer.status == status and walk.called == (status == 200), answer.body
    assert status == 200 or "--max-body-bytes" in answer.json["error"]["message"]
