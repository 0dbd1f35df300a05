"""kv_transfer_params: taken where other servers find the blocks, refused by name where not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.kv_transfer import handed_on, hands_on
from actorserve.http.generation.fields.ranges import check_fields
from actorserve.http.openai.schemas import CompletionRequest

SIDECAR: dict[str, Any] = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
    "remote_host": None, "remote_port": None,
}  # fmt: skip


def request(params: Any) -> CompletionRequest:
    return msgspec.convert({"prompt": "hi", "kv_transfer_params": params}, CompletionRequest)


def test_what_a_sidecar_sends() -> None:
    check_fields(request(SIDECAR), shares_kv=True)
    assert hands_on(SIDECAR) and not hands_on(handed_on("print")) and not hands_on(None) and not hands_on({})
    check_fields(request(handed_on("print")), shares_kv=True)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"do_remote_decode": 1}, "kv_transfer_params.do_remote_decode"),
        ({"remote": "a"}, "kv_transfer_params.remote"),
        ({"do_remote_decode": True, "do_remote_prefill": True}, "kv_transfer_params"),
    ],
)
def test_what_cannot_be(params: Any, field: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_fields(request(params), shares_kv=True)
    assert caught.value.status == 400 and caught.value.param == field


def test_without_a_folder_it_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        check_fields(request(SIDECAR))
    assert caught.value.status == 400 and caught.value.param == "kv_transfer_params"
    check_fields(request({}))
