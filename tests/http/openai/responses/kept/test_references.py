"""Items that are named by their ids alone, as AI SDK's and agents' requests have them."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.http.errors import ApiError
from actorserve.http.openai.responses.answers import ResponseAnswer
from actorserve.http.openai.responses.references import resolved
from actorserve.http.openai.responses.requests import input_items, to_chat
from actorserve.http.openai.responses.store import response_id
from actorserve.http.openai.responses.stored import StoredResponse
from tests.http.openai.responses.scripted import SAID, TWICE, USAGE
from tests.http.openai.responses.test_requests import request_of, result

FIRST, SECOND = response_id(0, 1, 2), response_id(1, 1, 2)
CALL = f"fc_{FIRST}0000"


class Shelf:
    """What one client has made: a response of calls, and one of texts."""

    def find(self, name: str, client: str) -> StoredResponse | None:
        key = name.removeprefix("resp_")
        if client != "mine" or key not in (FIRST, SECOND):
            return None
        answer = ResponseAnswer(key, "m", 1, {"previous_response_id": None, "background": False})
        whole = answer.whole(TWICE if key == FIRST else SAID, "stop", USAGE, 2)
        return StoredResponse(whole, input_items(request_of(input="Where?"), key), "mine")


def reference(name: object) -> dict[str, Any]:
    return {"type": "item_reference", "id": name}


def test_the_items_stand_in_the_place_of_their_names() -> None:
    given = [reference(f"in_{FIRST}0000"), {"id": CALL}, {**result(1, "7"), "call_id": "x"}, {"type": None, "id": CALL}]
    request = resolved(request_of(input=given[:3]), Shelf(), "mine")
    asked, call, told = to_chat(request)["messages"]
    assert asked["content"] == "Where?" and told["content"] == "7"
    assert [one["function"]["name"] for one in call["tool_calls"]] == ["weather"]
    assert isinstance(request.input, list) and request.input[1]["id"] == CALL
    assert [item["id"] for item in input_items(request, SECOND)][:2] == [f"in_{FIRST}0000", CALL]


def test_what_names_none_is_as_it_was() -> None:
    for given in ("a", [{"role": "user", "content": "a", "id": CALL}], [{"content": "a", "id": CALL}]):
        request = request_of(input=given)
        assert resolved(request, Shelf(), "mine") is request


@pytest.mark.parametrize(
    "name", [f"fc_{FIRST}0009", f"fc_{'0' * 26}0000", "msg_1", "", f"fc_{FIRST}", "x" * 5000, 5, None, ["a"]]
)
def test_what_is_not_there_is_named(name: object) -> None:
    with pytest.raises(ApiError) as raised:
        resolved(request_of(input=[{"role": "user", "content": "a"}, reference(name)]), Shelf(), "mine")
    assert raised.value.status == (404 if isinstance(name, str) else 400)
    assert raised.value.param == "input[1].id" and len(raised.value.message) < 300


def test_others_do_not_find_it_and_none_is_taken_twice() -> None:
    for items, client, status in ([reference(CALL)], "other", 404), ([reference(CALL)] * 2, "mine", 400):
        with pytest.raises(ApiError) as raised:
            resolved(request_of(input=items), Shelf(), client)
        assert (raised.value.status, raised.value.param) == (status, f"input[{len(items) - 1}].id")
