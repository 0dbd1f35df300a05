"""How to generate, under the names that vLLM's users know. Names, types and ranges are those of requests over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.decoding import PATH
from actorserve.http.generation.fields.sampling import check_fields, parameters
from actorserve.http.generation.structured_output import constraint_of
from actorserve.http.openai.schemas import CompletionRequest
from actorserve.http.openai.schemas import RepetitionDetection as RepetitionDetectionParams

from ..protocol.request import default_of
from ..protocol.sampling.fields import SAMPLING_FIELDS, SamplingFields
from ..protocol.sampling.ranges import INT31

DEFAULT_MAX_TOKENS = 16


class RequestOutputKind(IntEnum):
    """What AsyncLLM and LLMEngine tell: all so far, what is new, or one output at the end. Those of LLM are whole."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class StructuredOutputsParams(msgspec.Struct, kw_only=True, frozen=True):
    """What the answer has to look like: one of the first six, and options for JSON."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class SamplingParams(SamplingFields, kw_only=True):
    """Parameters of one prompt or of all. TypeError for a name that is not one, ValueError names what cannot be.

    `max_tokens` None: as many as the model's length allows. `logprob_token_ids` need no `logprobs` beside them.
    `guided_decoding` is an older name of `structured_outputs`; either is a StructuredOutputsParams or a dict of its
    fields.
    """

    n: int = 1
    best_of: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    repetition_detection: RepetitionDetectionParams | dict[str, int] | None = None
    structured_outputs: StructuredOutputsParams | dict[str, Any] | None = None
    guided_decoding: StructuredOutputsParams | dict[str, Any] | None = None
    extra_args: dict[str, Any] | None = None  # for `logits_processors` of the LLM
    logit_bias: dict[int, float] | dict[str, float] | None = None  # type: ignore[assignment]  # HTTP's are texts alone

    def __post_init__(self) -> None:
        for name in SAMPLING_FIELDS:
            nothing = default_of(name)
            if getattr(self, name) is None and isinstance(nothing, int | float):
                setattr(self, name, nothing)
        request = self.to_request()
        try:
            check_fields(request)
            parameters(request, {}, "")
            constraint_of(request)
        except ApiError as error:
            raise ValueError(error.message) from None

    def to_request(self, priority: int = 0) -> CompletionRequest:
        """The request, without a prompt, that asks for the same."""
        given = {name: getattr(self, name) for name in FIELDS}
        if self.max_tokens is None:
            given["max_tokens"] = INT31
        if self.logit_bias is not None:
            given["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        if self.logprob_token_ids and self.logprobs is None:
            given["logprobs"] = 0
        given |= {"structured_outputs": self._structured(), "priority": priority, "vllm_xargs": self.extra_args}
        try:
            return msgspec.convert(given, CompletionRequest)
        except msgspec.ValidationError as error:
            found = PATH.search(str(error))
            reason = PATH.sub("", str(error))
            raise ValueError(f"{found[1]}: {reason}" if found else reason) from None

    def _structured(self) -> dict[str, Any] | None:
        if self.structured_outputs is not None and self.guided_decoding is not None:
            raise ValueError("guided_decoding is another name of structured_outputs: only one can be given.")
        given = self.guided_decoding if self.structured_outputs is None else self.structured_outputs
        if isinstance(given, StructuredOutputsParams):
            given = msgspec.structs.asdict(given)
        if not isinstance(given, dict):
            if given is not None:
                raise ValueError("structured_outputs must be a StructuredOutputsParams or a dict of its fields.")
            return None
        return given

    @classmethod
    def from_optional(cls, logit_bias: Mapping[Any, float] | None = None, **given: Any) -> SamplingParams:
        """Of these, where None says that one is left out; of max_tokens it says that there is no limit. As with vLLM's,
        tokens of logit_bias may be texts, and what is beyond -100 to 100 is that.
        """
        given.pop("skip_clone", None)  # says nothing of the answer
        if logit_bias is not None:
            given["logit_bias"] = {int(token): min(100.0, max(-100.0, bias)) for token, bias in logit_bias.items()}
        return cls(**{name: value for name, value in given.items() if value is not None or name == "max_tokens"})

    def clone(self) -> SamplingParams:
        """Another one with the same values."""
        return msgspec.structs.replace(self)


FIELDS = tuple(name for name in SamplingParams.__struct_fields__ if name in CompletionRequest.__struct_fields__)
Params = SamplingParams | Sequence[SamplingParams] | None  # for all prompts, or one for each
Priorities = int | Sequence[int] | None  # likewise
