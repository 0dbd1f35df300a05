"""Errors with the names that another API has for fields."""

from __future__ import annotations

import pytest

from actorserve.http.errors import ApiError
from actorserve.http.generation.adapter import naming


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
