"""llama.cpp's fields on OpenAI's paths: what has a name of ours is taken, what would change an answer is refused."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.actors.protocol.request import Sampling, default_of
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.fields.ranges import check_fields
from actorserve.http.generation.fields.sampling import max_tokens_of
from actorserve.http.generation.fields.unsupported import read
from actorserve.http.llamacpp.schemas import HINTS, NOTHING
from actorserve.http.openai.schemas import ChatRequest, CompletionRequest, GenerationFields
from tests.http.bodies import HI, body_of, for_chat, for_completion, refusal

BOTH: list[type[GenerationFields]] = [ChatRequest, CompletionRequest]


def limit(kind: type[GenerationFields], **fields: Any) -> int | None:
    request = decode(kind, body_of(**fields))
    check_fields(request)
    return max_tokens_of(request)


@pytest.mark.parametrize("kind", BOTH)
def test_n_predict_is_max_tokens_and_goes_before_it(kind: type[GenerationFields]) -> None:
    given = {"messages": HI, "prompt": "hi"}
    assert limit(kind, **given, n_predict=5) == limit(kind, **given, n_predict=5, max_tokens=9) == 5
    assert limit(kind, **given, n_predict=-1) is limit(kind, **given, n_predict=-2, max_tokens=9) is None
    assert refusal(limit, kind, **given, n_predict=0).param == "n_predict"


def test_it_goes_before_chats_other_name_too() -> None:
    assert limit(ChatRequest, messages=HI, n_predict=5, max_completion_tokens=9) == 5


@pytest.mark.parametrize("samplers", [["top_k", "temperature"], ["TOP-K", "temp"], ["topk", "temperature"], "kt", "tk"])
@pytest.mark.parametrize("make", [for_chat, for_completion])
def test_samplers_that_are_not_named_are_off(make: Any, samplers: list[str] | str) -> None:
    drawn = make(samplers=samplers, temperature=0.5, top_k=40, min_p=0.1, repeat_penalty=1.2)[1][0]
    found = drawn.sampling
    assert (found.temperature, found.top_k, found.min_p, found.repetition_penalty) == (0.5, 40, 0, 1)
    assert make(samplers=[], min_p=0.25)[1][0].sampling.min_p == 0.25
    for wrong in (["nobody"], "kz"):
        assert refusal(make, samplers=wrong).param == "samplers"


@pytest.mark.parametrize("make", [for_chat, for_completion])
def test_a_penalty_looks_back_as_far_as_it_is_told(make: Any) -> None:
    """On nothing it is none, which has drafts; without any there is nothing that looks back."""

    def drawn(**fields: Any) -> Sampling:
        sampling: Sampling = make(**fields)[1][0].sampling
        return sampling

    for last in (-1, 64):
        found = drawn(repeat_penalty=1.5, repeat_last_n=last)
        assert (found.repetition_penalty, found.repeat_last_n) == (1.5, last)
    assert drawn(repeat_penalty=1.5).repeat_last_n == -1
    assert drawn(presence_penalty=1, repeat_last_n=5).repeat_last_n == 5
    assert drawn(repeat_penalty=1, repeat_last_n=64).is_plain()
    assert drawn(repeat_penalty=1.5, frequency_penalty=1, repeat_last_n=0).is_plain()
    assert drawn(repeat_penalty=1.5, repeat_last_n=64, samplers=["temperature"]).is_plain()
    assert refusal(make, repeat_penalty=1.5, repeat_last_n=-2).param == "repeat_last_n"


@pytest.mark.parametrize("make", [for_chat, for_completion])
def test_dry_is_asked_for_by_its_multiplier(make: Any) -> None:
    """With llama.cpp's breakers, unless it names its own; what else says how is nothing by itself."""
    dry: dict[str, Any] = {"dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 64}
    found = make(dry_multiplier=0.8, **dry)[1][0].sampling
    assert (found.dry_multiplier, found.dry_base, found.dry_allowed_length, found.dry_penalty_last_n) == (0.8, 2, 3, 64)
    assert found.dry_sequence_breakers == ["\n", ":", '"', "*"]
    for own in ([], ["ab"]):
        assert make(dry_multiplier=1, dry_sequence_breakers=own)[1][0].sampling.dry_sequence_breakers == own
    off: tuple[dict[str, Any], ...] = (
        *({}, {"dry_multiplier": 0}, {"dry_multiplier": 1, "samplers": ["penalties"]}),
        {"dry_multiplier": 1, "dry_penalty_last_n": 0},
    )
    for fields in off:
        assert make(**{**dry, "dry_sequence_breakers": ["ab"], **fields})[1][0].sampling.is_plain()


@pytest.mark.parametrize("make", [for_chat, for_completion])
def test_samplers_that_are_asked_for_by_one_field(make: Any) -> None:
    """What else says how is nothing by itself."""
    asked = {"xtc_probability": 0.5, "xtc_threshold": 0.2}, {"dynatemp_range": 0.5, "dynatemp_exponent": 2}
    for fields, sampler in zip(asked, ("xtc", "temperature"), strict=True):
        (first, value), (second, how) = fields.items()
        found = make(**fields)[1][0].sampling
        assert (getattr(found, first), getattr(found, second)) == (value, how) and found.is_plain()
        assert found.cpu_only() == []
        assert make(samplers=[sampler], seed=found.seed, **fields)[1][0].sampling == found
        for off in (make(samplers=["top_k"], **fields), make(**{**fields, first: 0}), make(**{second: how})):
            told = off[1][0].sampling
            assert (getattr(told, first), getattr(told, second)) == (default_of(first), default_of(second))
        assert refusal(make, **{first: 3}).param == first


@pytest.mark.parametrize("make", [for_chat, for_completion])
def test_mirostat_is_in_the_place_of_filters(make: Any) -> None:
    """Without it, or where the likeliest token is taken, what says how says nothing."""
    asked = {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.3}
    others = {"top_k": 5, "top_p": 0.5, "min_p": 0.1, "xtc_probability": 0.5, "xtc_threshold": 0.2, "typical_p": 0.7}
    found = make(**asked, **others)[1][0].sampling
    assert asked == {name: getattr(found, name) for name in asked} and not found.is_plain()
    assert all(getattr(found, name) == default_of(name) for name in others)
    assert found.cpu_only() == [*asked]
    for off in ({"temperature": 0}, {"mirostat": 0}):
        told = make(**{**asked, **others, **off})[1][0].sampling
        assert told.top_k == 5 and told.is_plain() and told.cpu_only() == []
    listed = make(**asked, temperature=0.5, repeat_penalty=1.2, samplers=["top_k"])[1][0].sampling
    assert (listed.temperature, listed.repetition_penalty, listed.mirostat) == (0.5, 1.2, 2), "no list is read then"
    for name, value in (("mirostat", 3), ("mirostat", -1), ("mirostat_tau", -1), ("mirostat_eta", 11)):
        assert refusal(make, **{**asked, name: value}).param == name


@pytest.mark.parametrize("field", NOTHING | HINTS | {"n_probs": (0,), "n_cmpl": (1,)})
def test_what_would_change_an_answer_is_refused(field: str) -> None:
    for kind in BOTH:
        for value in (NOTHING | HINTS).get(field, ()):
            read(kind, body_of(messages=HI, prompt="hi", **{field: value}))
        error = refusal(read, kind, body_of(messages=HI, prompt="hi", **{field: 2}))
        assert error.param == field and field in error.message


@pytest.mark.parametrize(
    "field", ["mirostat_tau", "mirostat_eta", "dry_base", "xtc_threshold", "dynatemp_exponent", "cache_prompt"]
)
def test_what_says_how_alone_is_passed_over(field: str) -> None:
    for kind in BOTH:
        read(kind, body_of(messages=HI, prompt="hi", **{field: 1}))
