"""Errors with the names that another API has for fields."""

from __future__ import annotations

import pytest

from actorserve.http.errors import ApiError
from actorserve.http.generation.adapter import naming, with_names


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ApiError(400, "the grammar cannot be used", "grammar"), "the grammar cannot be used"),
        (ApiError(400, "the grammar cannot be used", "json_schema"), "json_schema: the grammar cannot be used"),
        (ApiError(400, "wrong: a.b", "a.b"), "wrong: a.b"),
        (ApiError(404, "The model does not exist.", "name", "model_not_found"), "The model does not exist."),
        (ApiError(500, "It is lost."), "It is lost."),
    ],
)
def test_a_message_names_the_field_where_nothing_else_does(error: ApiError, message: str) -> None:
    assert naming(error) == message


def test_another_name_of_a_field_is_none_of_an_option() -> None:
    error = ApiError(400, "logprobs must be at most 20 (--max-logprobs), not 21.", "logprobs")
    told = with_names(error, {"logprobs": "n_probs"})
    assert (told.message, told.param) == ("n_probs must be at most 20 (--max-logprobs), not 21.", "n_probs")
