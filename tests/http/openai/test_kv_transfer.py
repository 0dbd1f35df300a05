"""kv_transfer_params: taken where other servers find the blocks, refused by name where not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.kv_transfer import handed_on, hands_on, peer_of
from actorserve.http.generation.fields.ranges import check_fields
from actorserve.http.openai.schemas import CompletionRequest
from actorserve.http.settings import KVSharing
from tests.http.bodies import HI
from tests.http.fakes import finish_all
from tests.http.serving import serving

SIDECAR: dict[str, Any] = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
    "remote_host": None, "remote_port": None,
}  # fmt: skip
FOLDER = KVSharing(gives=True, takes=True)
GIVES = KVSharing(gives=True, address=("10.0.0.1", 8200))
PEERS = KVSharing(takes=True, allows=lambda host, port: host.startswith(("10.", "fd00:")) and port > 1000)
FROM: dict[str, Any] = {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 8200}


def request(params: Any) -> CompletionRequest:
    return msgspec.convert({"prompt": "hi", "kv_transfer_params": params}, CompletionRequest)


def test_what_a_sidecar_sends() -> None:
    check_fields(request(SIDECAR), kv=FOLDER)
    assert hands_on(SIDECAR) and not hands_on(handed_on("print", FOLDER)) and not hands_on(None) and not hands_on({})
    check_fields(request(handed_on("print", FOLDER)), kv=FOLDER)


@pytest.mark.parametrize(
    ("path", "prompt"),
    [("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", {"messages": HI})],
)
async def test_a_stream_tells_how_it_is_gone_on_with(path: str, prompt: dict[str, Any]) -> None:
    """Whatever else it was asked to tell."""
    async with serving(kv=GIVES) as served:
        client = await served.client()
        client.send("POST", path, prompt | {"stream": True, "kv_transfer_params": SIDECAR})
        finish_all(await served.job())
        *events, last = (await client.answer()).events
    assert last["choices"] == [] and last["kv_transfer_params"] == handed_on("", GIVES)
    assert events and not any("kv_transfer_params" in event for event in events)


def test_who_is_asked_for_blocks() -> None:
    """What the one server answers names it to the other."""
    params = handed_on("print", GIVES)
    check_fields(request(params), kv=PEERS)
    assert peer_of(params, PEERS) == "10.0.0.1:8200"
    assert peer_of(params | {"remote_host": "fd00::1"}, PEERS) == "[fd00::1]:8200"
    assert peer_of(params, FOLDER) == peer_of(SIDECAR, PEERS) == peer_of(handed_on("print", FOLDER), PEERS) == ""


@pytest.mark.parametrize(
    ("params", "kv", "field"),
    [
        ({"do_remote_decode": 1}, FOLDER, "kv_transfer_params.do_remote_decode"),
        ({"remote": "a"}, FOLDER, "kv_transfer_params.remote"),
        ({"do_remote_decode": True, "do_remote_prefill": True}, FOLDER, "kv_transfer_params"),
        ({"do_remote_decode": True}, PEERS, "kv_transfer_params.do_remote_decode"),
        ({"do_remote_prefill": True}, GIVES, "kv_transfer_params.do_remote_prefill"),
        (FROM | {"remote_host": "11.0.0.1"}, PEERS, "kv_transfer_params.remote_host"),
        (FROM | {"remote_host": 7}, PEERS, "kv_transfer_params.remote_host"),
        (FROM | {"remote_port": "8200"}, PEERS, "kv_transfer_params.remote_port"),
        (FROM | {"remote_port": 0}, PEERS, "kv_transfer_params.remote_port"),
    ],
)
def test_what_cannot_be(params: Any, kv: KVSharing, field: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_fields(request(params), kv=kv)
    assert caught.value.status == 400 and caught.value.param == field


async def test_without_a_connector_they_are_passed_over() -> None:
    """As in vLLM: the prompt is computed here, and the answer names nothing to go on with."""
    async with serving() as served:
        client = await served.client()
        for params in (SIDECAR, FROM, {"of": "another connector"}):
            client.send("POST", "/v1/completions", {"prompt": "hi", "kv_transfer_params": params})
            finish_all(await served.job())
            answer = await client.answer()
            assert answer.status == 200 and "kv_transfer_params" not in answer.json
