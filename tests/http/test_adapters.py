"""Adapters by their names: one that has to be loaded is not, for a key that may not ask for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from actorserve.actors.accounts.account import Account
from actorserve.http.errors import ApiError
from actorserve.http.generation.adapters import GONE, adapter_for, adapter_of
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.prepare import ask_chats
from actorserve.http.handlers.answering import Answering
from actorserve.http.middleware.context import ACCOUNT
from actorserve.http.openai.schemas import ChatRequest
from actorserve.http.sagemaker import ADAPTER
from actorserve.http.settings import AdapterNames, MediaRules, ServedAdapter
from tests.http.bodies import HI
from tests.http.fakes import finish_all
from tests.http.serving import SETTINGS, serving


class LoadingEngine:
    def __init__(self) -> None:
        self.wanted: list[str | None] = []

    async def want_adapter(self, name: str | None) -> None:
        self.wanted.append(name)


class Loaded(AdapterNames):
    enabled = True

    def find(self, name: str) -> ServedAdapter | None:
        ids = {"mine": 7, "image": 8, "audio": 9}
        return ServedAdapter(ids[name], name, "folder") if name in ids else None


def test_a_name_that_nothing_has_is_no_adapter_or_the_model() -> None:
    settings = replace(SETTINGS, adapters=Loaded())
    assert [adapter_of(name, settings) for name in ("mine", "tiny", "gpt-4o")] == [7, 0, GONE]
    settings = replace(settings, any_model_name=True)
    assert [adapter_of(name, settings) for name in ("mine", "tiny", "gpt-4o")] == [7, 0, 0]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/chat/completions/batch", {"messages": [HI]}),
        ("/v1/completions", {"prompt": "a"}),
    ],
)
async def test_one_that_is_not_there_is_told_by_the_field_that_names_it(path: str, body: dict[str, Any]) -> None:
    async with serving(adapters=Loaded()) as served:
        for field in ("model", "lora_path"):
            answer = await served.ask("POST", path, {**body, field: "yours"})
            assert (answer.status, answer.error["param"]) == (404, field), answer.body
            assert answer.error["code"] == "model_not_found" and f"The {field} `yours`" in answer.error["message"]


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        (None, {"image"}, 8),
        ("tiny", {"image"}, 8),
        ("mine", {"image"}, 7),
        ("gpt-4o", {"image"}, GONE),
        (None, {"video"}, 0),  # there is none for it
        (None, {"image", "audio"}, 0),  # nobody says which
        (None, {"image", "video"}, 8),
        (None, set(), 0),
    ],
)
def test_the_adapter_of_pictures(name: str | None, given: set[str], found: int) -> None:
    """Of who asks for the model itself."""
    settings = replace(SETTINGS, adapters=Loaded(), default_adapters=frozenset({"image", "audio"}))
    assert adapter_for(name, given, settings) == found


def test_conversations_of_one_request_have_one_adapter() -> None:
    seeing = MediaRules({"image": 1}, 1000, False)
    settings = replace(SETTINGS, media=seeing, adapters=Loaded(), default_adapters=frozenset({"image"}))
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    seen, said = ([{"role": "user", "content": content}] for content in ([picture], "hi"))

    def asked(*messages: Any, model: str = "tiny") -> int:
        body = decode(ChatRequest, msgspec.json.encode({"model": model, "messages": messages}))
        return cast(int, ask_chats(body, settings, "abc").rendering["adapter"])

    assert (asked(seen, seen), asked(said, said), asked(seen, said, model="mine")) == (8, 0, 7)
    for mixed in ((seen, said), (said, seen)):
        with pytest.raises(ApiError, match=r"messages\[1\] would have another adapter .*--default-mm-loras") as refused:
            asked(*mixed)
        assert refused.value.status == 400 and refused.value.param == "messages[1]"


async def test_what_a_key_may_not_ask_for_is_not_loaded() -> None:
    engine = LoadingEngine()
    answering = Answering(cast(Any, engine), cast(Any, None))
    request = cast(Any, {ACCOUNT: Account(0, "a", b"", models=["mine"])})
    with pytest.raises(ApiError, match="does not exist for this key") as refused:
        await answering.want_adapter(request, "other")
    assert refused.value.status == 404 and not engine.wanted
    for name in ("mine", None):
        await answering.want_adapter(request, name)
    await answering.want_adapter(cast(Any, {}), "other")
    assert engine.wanted == ["mine", None, "other"]


async def test_sagemakers_header_names_the_adapter() -> None:
    """Whatever model the body has; a name that nothing has is no model, also where it is no text."""
    async with serving(adapters=Loaded()) as served:
        client = await served.client()
        for body, names, model in (
            ({"prompt": "hi", "model": "tiny"}, {ADAPTER: "mine"}, "mine"),
            ({"messages": HI}, {ADAPTER: "mine"}, "mine"),
            ({"prompt": "hi", "model": "mine"}, {}, "mine"),
            ({"prompt": "hi"}, {}, "tiny"),
        ):
            client.send("POST", "/invocations", body, **names)
            finish_all(await served.job())
            assert (await client.answer()).json["model"] == model
        for name in ("nobody", "\xff"):
            refused = await served.ask("POST", "/invocations", {"prompt": "hi"}, **{ADAPTER: name})
            assert (refused.status, refused.error["param"]) == (404, "model")
