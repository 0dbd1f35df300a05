"""The table of what requests may say of sampling.

A parameter is one field of `SamplingFields`: the name that it has in every API, in LLM's SamplingParams and in
generation_config.json, its type, and a `Parameter` with all else that is to be known of it. HTTP's schemas and LLM's
SamplingParams inherit the fields; checks, /openapi.json, defaults, the arrays of the worker's batch and the table in
tools/docs/api.md are made of them. A field of the same name in request.py's `Sampling` or `Generation` takes the value
to whoever heeds it, and has the default, which changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, get_type_hints

import msgspec
from msgspec import Meta

from .ranges import INT64, Range


@dataclass(frozen=True)
class Parameter:
    """What is to be known of a field of SamplingFields."""

    about: str  # for tools/docs/api.md and /openapi.json
    range: Range | None = None  # of a number; anything else is checked in http/generation/fields/ranges.py
    below_is_off: bool = False  # a number below the default means the default
    row: str = ""  # dtype of its array in the worker's batch, where kernels look for it
    processes: bool = False  # logits are changed for it before a token is drawn: it has no drafts and no beams
    cpu_only: bool = False  # a GPU does nothing of it
    configurable: bool = False  # the operator may set another default
    in_file: bool = True  # and the model's own generation_config.json, too


class WatermarkingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A watermark that is to be found in the answer, by the names of transformers; its detector needs all of them."""

    greenlist_ratio: Annotated[float, Meta(gt=0, lt=1)] = 0.25  # of all words
    bias: Annotated[float, Meta(ge=-100, le=100)] = 2.0
    hashing_key: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 15485863
    seeding_scheme: Literal["lefthash", "selfhash"] = "lefthash"
    context_width: Annotated[int, Meta(ge=1, le=256)] = 1


class SamplingFields(msgspec.Struct, kw_only=True):
    """What a request may say of how tokens are drawn and when they end. null is as if a field was not there."""

    temperature: Annotated[
        float | None,
        Parameter("divides the logits; 0 takes the likeliest token", Range(0, 2), row="float32", configurable=True),
    ] = None
    top_k: Annotated[
        int | None,
        Parameter(
            "only so many of the likeliest tokens; 0 and -1: all",
            Range(-1),
            below_is_off=True,
            row="int64",
            configurable=True,
        ),
    ] = None
    top_p: Annotated[
        float | None,
        Parameter(
            "only the likeliest tokens that together have this probability",
            Range(0, 1, above=True),
            row="float64",
            configurable=True,
        ),
    ] = None
    min_p: Annotated[
        float | None,
        Parameter(
            "only tokens at least so many times as likely as the likeliest",
            Range(0, 1),
            row="float32",
            configurable=True,
        ),
    ] = None
    top_n_sigma: Annotated[
        float | None,
        Parameter(
            "only tokens whose logit is within so many standard deviations of the largest; 0 and -1: all",
            Range(-1, 100),
            below_is_off=True,
            row="float32",
            configurable=True,
        ),
    ] = None
    typical_p: Annotated[
        float | None,
        Parameter(
            "only the tokens whose surprise is nearest to the entropy that together have this probability; 1: all",
            Range(0, 1, above=True),
            row="float64",
            configurable=True,
        ),
    ] = None
    xtc_probability: Annotated[
        float | None,
        Parameter(
            "XTC: how often all but the least likely are left out of the tokens that are as likely as `xtc_threshold`",
            Range(0, 1),
            row="float32",
        ),
    ] = None
    xtc_threshold: Annotated[
        float | None,
        Parameter(
            "of those that the filters above leave; above 0.5 there is nothing to leave out",
            Range(0, 1),
            row="float32",
        ),
    ] = None
    dynatemp_range: Annotated[
        float | None,
        Parameter(
            "so much less than `temperature` where the likely tokens are few, so much more where they are many; "
            "it comes behind the filters then",
            Range(0, 2),
            row="float32",
        ),
    ] = None
    dynatemp_exponent: Annotated[
        float | None,
        Parameter(
            "of what is between the two: the entropy as a part of the largest",
            Range(0, 100),
            row="float32",
        ),
    ] = None
    mirostat: Annotated[
        int | None,
        Parameter(
            "Mirostat of version 1 or 2, in place of all other filters; 0: none",
            Range(0, 2),
            processes=True,
            cpu_only=True,
        ),
    ] = None
    mirostat_tau: Annotated[
        float | None,
        Parameter(
            "the surprise in bits that tokens are to have on average", Range(0, 100), processes=True, cpu_only=True
        ),
    ] = None
    mirostat_eta: Annotated[
        float | None,
        Parameter("how quickly it is steered there", Range(0, 10), processes=True, cpu_only=True),
    ] = None
    seed: Annotated[
        int | None,
        Parameter("the same seed draws the same tokens; none or -1: another one for each prompt", INT64, row="uint64"),
    ] = None
    min_tokens: Annotated[int | None, Parameter("no end token before so many tokens", Range(0), processes=True)] = None
    repetition_penalty: Annotated[
        float | None,
        Parameter(
            "divides logits above 0 of tokens in prompt or answer, multiplies those below",
            Range(0, 100, above=True),
            processes=True,
            configurable=True,
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        Parameter(
            "subtracted from a token's logit for each time that it is in the answer",
            Range(-2, 2),
            processes=True,
            configurable=True,
            in_file=False,
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        Parameter(
            "subtracted from a token's logit if it is in the answer",
            Range(-2, 2),
            processes=True,
            configurable=True,
            in_file=False,
        ),
    ] = None
    repeat_last_n: Annotated[
        int | None,
        Parameter(
            "the three penalties count each token among so many last ones of prompt and answer, and no other; "
            "0: there are none; -1: each looks back as it says",
            Range(-1),
            processes=True,
        ),
    ] = None
    dry_multiplier: Annotated[
        float | None,
        Parameter(
            "DRY: taken from the logits of tokens that would go on with a repetition; 0: nothing",
            Range(0, 100),
            processes=True,
        ),
    ] = None
    dry_base: Annotated[
        float | None,
        Parameter(
            "so many times that for each token that a repetition is longer than allowed",
            Range(1, 100),
            processes=True,
        ),
    ] = None
    dry_allowed_length: Annotated[
        int | None,
        Parameter("tokens that a repetition may have for nothing", Range(0), processes=True),
    ] = None
    dry_penalty_last_n: Annotated[
        int | None,
        Parameter(
            "repetitions are looked for in so many last tokens of prompt and answer; -1: in all, 0: in none",
            Range(-1),
            processes=True,
        ),
    ] = None
    dry_sequence_breakers: Annotated[
        list[str] | None,
        Parameter(
            'texts that no repetition goes over, at most 32 of 64 characters; if left out: line ends, `:`, `"` and `*`',
            processes=True,
        ),
    ] = None
    logit_bias: Annotated[
        dict[str, float] | None, Parameter("added to the logits of these token ids, each -100 to 100", processes=True)
    ] = None
    allowed_token_ids: Annotated[list[int] | None, Parameter("only these tokens", processes=True)] = None
    bad_words: Annotated[list[str] | None, Parameter("texts that the answer must not hold", processes=True)] = None
    watermarking_config: Annotated[
        WatermarkingConfig | None,
        Parameter(
            "a watermark in the answer, by transformers' names, which its detector finds", processes=True, cpu_only=True
        ),
    ] = None
    stop_token_ids: Annotated[
        list[int] | None, Parameter("tokens that end the answer, beside the model's end tokens")
    ] = None
    logprob_token_ids: Annotated[
        list[int] | None,
        Parameter("logprobs tell of these tokens, in this order, in place of the likeliest ones"),
    ] = None
    ignore_eos: Annotated[bool | None, Parameter("the model's end tokens do not end the answer")] = None
    include_stop_str_in_output: Annotated[bool | None, Parameter("the text keeps the stop string that ended it")] = None
    skip_special_tokens: Annotated[bool | None, Parameter("special tokens are left out of the text")] = None
    cache_salt: Annotated[
        str | None, Parameter("blocks of the prefix cache are shared with requests of the same salt only")
    ] = None


@cache
def sampling_parameters() -> dict[str, Parameter]:
    """The table, by name."""
    hints = get_type_hints(SamplingFields, include_extras=True)
    return {
        name: next(one for one in hints[name].__metadata__ if isinstance(one, Parameter)) for name in SAMPLING_FIELDS
    }


@cache
def ranges_of(kind: type[msgspec.Struct]) -> dict[str, Range]:
    """The ranges of a struct's fields, as their metadata say."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for one in getattr(hint, "__metadata__", ()):
            limit = one.range if isinstance(one, Parameter) else one
            if name in kind.__struct_fields__ and isinstance(limit, Range):
                found[name] = limit
    return found


@cache
def row_types(on_gpu: bool = False) -> dict[str, str]:
    """The parameters that have an array in the worker's batch, with its dtype."""
    found = sampling_parameters().items()
    return {name: one.row for name, one in found if one.row and not (on_gpu and one.cpu_only)}


SAMPLING_FIELDS = SamplingFields.__struct_fields__
