"""The table of sampling parameters reaches everybody who has to know of one."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from actorserve.actors.llm.sampling_params import SamplingParams
from actorserve.actors.protocol.messages import Render
from actorserve.actors.protocol.request import Generation, Sampling, default_of
from actorserve.actors.protocol.sampling.fields import (
    SAMPLING_FIELDS,
    SamplingFields,
    ranges_of,
    row_types,
    sampling_parameters,
)
from actorserve.actors.protocol.sampling.ranges import Range
from actorserve.http.anthropic.schemas import MessagesRequest
from actorserve.http.openai.responses.schemas import ResponsesRequest
from actorserve.http.openai.schemas import ChatRequest, CompletionRequest, GenerateParameters
from actorserve.kernels.cpu.sampling import Parameters
from actorserve.kernels.triton.sampling import RowParameters

BODIES: tuple[type[msgspec.Struct], ...] = (
    *(ChatRequest, CompletionRequest, GenerateParameters, ResponsesRequest, MessagesRequest),
    SamplingParams,
)
HINTS = get_type_hints(SamplingFields)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_every_api_has_all_of_them_with_their_types(body: type[msgspec.Struct]) -> None:
    hints = get_type_hints(body)
    wider = {"logit_bias"} if body is SamplingParams else set()
    assert {name: hints.get(name) for name in HINTS if name not in wider} == {
        name: hint for name, hint in HINTS.items() if name not in wider
    }


@pytest.mark.parametrize("name", SAMPLING_FIELDS)
def test_somebody_heeds_it(name: str) -> None:
    """By the same name and type, as far as it is a number; a processed one is known to whoever makes drafts."""
    homes = [kind for kind in (Sampling, Generation, Render) if name in kind.__struct_fields__]
    assert homes, f"{name} is asked for, and reaches nobody"
    parameter = sampling_parameters()[name]
    if isinstance(default_of(name), int | float):
        assert get_type_hints(homes[0])[name] in get_args(HINTS[name])
    numbers: tuple[Any, ...] = (int | None, float | None)
    assert (parameter.range is not None) == (HINTS[name] in numbers)
    if parameter.range is not None and default_of(name) is not None:
        assert parameter.range.holds(default_of(name))


@pytest.mark.parametrize("name", [name for name, one in sampling_parameters().items() if one.processes])
def test_who_asks_for_another_treatment_is_not_plain(name: str) -> None:
    if name not in Sampling.__struct_fields__:
        return  # made by the renderer: Rendition.is_plain
    others: dict[str, Any] = {"logit_bias": [(3, 1.0)], "allowed_token_ids": [3], "dry_allowed_length": 3}
    other = others.get(name, 2)
    assert Sampling(1).is_plain() and not Sampling(1, **{name: other}).is_plain()


@pytest.mark.parametrize(("kernel", "on_gpu"), [(Parameters, False), (RowParameters, True)])
def test_kernels_have_an_array_for_each_that_they_need(kernel: type[Any], on_gpu: bool) -> None:
    assert {*kernel._fields} == {*row_types(on_gpu), "position"}
    assert Sampling(1).row().keys() == row_types().keys()


@pytest.mark.parametrize(
    ("limit", "inside", "outside", "said"),
    [
        (Range(0, 2), (0, 2, 1.5), (-0.1, 2.1, float("nan"), float("inf")), "between 0 and 2"),
        (Range(0, 1, above=True), (0.1, 1), (0, 1.1, float("nan")), "greater than 0 and at most 1"),
        (Range(-1), (-1, (1 << 31) - 1), (-2,), "at least -1"),
        (Range(-1), (), (1 << 31,), "less than 2**31"),
        (ranges_of(ChatRequest)["seed"], (-(1 << 63), (1 << 64) - 1), (1 << 64,), "a 64-bit integer"),
    ],
)
def test_ranges(limit: Range, inside: tuple[float, ...], outside: tuple[float, ...], said: str) -> None:
    assert all(limit.holds(value) for value in inside) and not any(limit.holds(value) for value in outside)
    assert all(limit.missed_by(value) == f"{said}, not {value}" for value in outside)
