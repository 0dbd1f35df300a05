"""The parameters of a generation, with their defaults, as worker and detokenizer read them."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from actorserve.actors.protocol.request import DRY, PENALTIES, Generation, RepeatLimit, Sampling, Think, default_of
from actorserve.actors.protocol.sampling.fields import SAMPLING_FIELDS, sampling_parameters
from actorserve.actors.protocol.sampling.ranges import UINT64

from ...errors import ApiError, bad_request
from ...openai.schemas import (
    NO_LIMIT,
    ChatRequest,
    CompletionRequest,
    GenerationFields,
    RepetitionDetection,
    TokensRequest,
)
from ...settings import Settings
from .ranges import check_fields, keeps_stop, stop_strings

__all__ = ["check_device", "check_fields", "max_tokens_of", "parameters", "with_own_seeds"]

LATER_BYTES = 64  # what the engine may add: a key's priority, and which weights are loaded
MAX_PARAMS_BYTES = (32 << 10) - LATER_BYTES  # what a slot of the request table has room for, without those
OF_OTHERS = {  # which say nothing alone
    **{"xtc_threshold": "xtc_probability", "dynatemp_exponent": "dynatemp_range"},
    **dict.fromkeys(("mirostat_tau", "mirostat_eta"), "mirostat"),
}
FILTERS = (  # in whose place Mirostat is
    *("top_k", "top_p", "min_p", "top_n_sigma", "typical_p", "xtc_probability", "dynatemp_range"),
)
DRY_BREAKERS = ["\n", ":", '"', "*"]  # as in llama.cpp
COMPLETION_MAX_TOKENS = 16  # OpenAI's default
NO_SEED = (None, -1)  # -1 as in vLLM: none is given
NUMBERS = tuple(name for name in SAMPLING_FIELDS if type(default_of(name)) in (int, float))
OF_GENERATION = tuple(name for name in SAMPLING_FIELDS if name in Generation.__struct_fields__)


def max_tokens_of(request: GenerationFields) -> int | None:
    """The most tokens to generate; None: as many as the model's length allows."""
    limit = request.max_tokens
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        limit = request.max_completion_tokens
    if limit is None and not isinstance(request, ChatRequest | TokensRequest):
        return COMPLETION_MAX_TOKENS
    return None if limit == NO_LIMIT else limit


def parameters(
    request: GenerationFields,
    defaults: dict[str, float],
    request_id: str,
    think: Think | None = None,
    keep_special: bool = False,
    adapter: int = 0,
    plugins: bytes = b"",
    kv_peer: str = "",
) -> list[bytes]:
    """The encoded Generation of each choice of a prompt; they differ in their seeds.

    `keep_special`: the text goes through a parser that needs to see special tokens. `adapter`: an id; 0: none.
    `plugins`: what it says to logits processors. `kv_peer`: the server that has computed the prompt.
    """
    limit = max_tokens_of(request)
    minimum = request.min_tokens or 0
    if limit is not None and minimum > limit:
        raise bad_request(f"min_tokens ({minimum}) must not be more than max_tokens ({limit}).", "min_tokens")
    seed = secrets.randbits(64) if request.seed in NO_SEED else request.seed or 0
    stops = stop_strings(request)
    given = {name: value for name in OF_GENERATION if (value := getattr(request, name)) is not None}
    if keeps_stop(request):
        given["include_stop_str_in_output"] = True
    if keep_special:
        given["skip_special_tokens"] = False
    encoded = []
    for index in range(max(request.n or 1, request.best_of or 1)):
        generation = Generation(
            _sampling(request, defaults, (seed + index) & UINT64, index == 0, plugins),
            stop=stops,
            priority=request.priority or 0,
            stream=bool(request.stream),
            request_id=request_id,
            interval=request.stream_interval or 1,
            think=think,
            adapter=adapter,
            repeats=_repeats(request.repetition_detection),
            kv_peer=kv_peer,
            **given,
        )
        encoded.append(msgspec.msgpack.encode(generation))
    if max(map(len, encoded)) > MAX_PARAMS_BYTES:  # a greater seed takes more
        text = "stop, logit_bias, vllm_xargs and the lists of token ids are together longer than"
        raise bad_request(f"{text} {MAX_PARAMS_BYTES} bytes.", "stop")
    return encoded


def check_device(request: GenerationFields, settings: Settings) -> None:
    """A 400 for what a GPU does nothing of, where the model is on one."""
    if not settings.draws_on_cpu:
        sampling = _sampling(request, settings.sampling_defaults, 0, True, b"")
        if sampling.cpu_only():
            raise refused_on_gpu(sampling)


def refused_on_gpu(sampling: Sampling) -> ApiError:
    """Why no engine on a GPU takes it."""
    name = sampling.cpu_only()[0]
    return bad_request(
        f"{name} is supported on a CPU of the server's own machine only (--device cpu); leave it out.", name
    )


def with_own_seeds(encoded: list[bytes], prompts: int) -> list[bytes]:
    """The parameters of all choices of so many prompts, from those of a prompt's: no two have the same seed."""
    made = [msgspec.msgpack.decode(one, type=Generation) for one in encoded]
    return [msgspec.msgpack.encode(_reseeded(one, prompt * len(made))) for prompt in range(prompts) for one in made]


def _reseeded(generation: Generation, ahead: int) -> Generation:
    seed = (generation.sampling.seed + ahead) & UINT64
    return msgspec.structs.replace(generation, sampling=msgspec.structs.replace(generation.sampling, seed=seed))


def told_more(params: bytes, stream: bool, **fields: Any) -> bytes:
    """An encoded Generation, streamed or not, with these fields of its Sampling, which no completion has."""
    generation = msgspec.msgpack.decode(params, type=Generation)
    sampling = msgspec.structs.replace(generation.sampling, **fields)
    return msgspec.msgpack.encode(msgspec.structs.replace(generation, stream=stream, sampling=sampling))


def _sampling(
    request: GenerationFields, defaults: dict[str, float], seed: int, first: bool, plugins: bytes
) -> Sampling:
    """`first`: of its prompt's choices; the prompt's logprobs are computed for this one alone."""
    numbers, breakers = _numbers(request, defaults), request.dry_sequence_breakers
    return Sampling(
        seed,
        logit_bias=[(int(token), bias) for token, bias in (request.logit_bias or {}).items()],
        allowed_token_ids=request.allowed_token_ids or [],
        logprobs=0 if request.logprob_token_ids else _logprobs(request),
        prompt_logprobs=_prompt_logprobs(request) if first else -1,
        logprob_token_ids=request.logprob_token_ids or [],
        plugins=plugins,
        watermarking_config=request.watermarking_config,
        hidden_states=isinstance(request, ChatRequest | CompletionRequest) and bool(request.return_hidden_states),
        post_sampling_probs=isinstance(request, TokensRequest)
        and bool(request.post_sampling_probs)
        and _logprobs(request) >= 0,
        dry_sequence_breakers=(DRY_BREAKERS if breakers is None else breakers) if numbers["dry_multiplier"] else [],
        **numbers,
    )


def _numbers(request: GenerationFields, defaults: dict[str, float]) -> dict[str, Any]:
    """Penalties that look back on nothing are none, and without any there is nothing that looks back; likewise DRY, and
    what else says how, and not whether.
    """
    found = {name: _number(name, request, defaults) for name in NUMBERS}
    if found["repeat_last_n"] == 0:
        found |= {name: default_of(name) for name in PENALTIES}
    if all(found[name] == default_of(name) for name in PENALTIES):
        found["repeat_last_n"] = default_of("repeat_last_n")
    if not found["dry_multiplier"] or not found["dry_penalty_last_n"]:
        found |= {name: default_of(name) for name in DRY}
    if found["mirostat"] and not found["temperature"]:
        found["mirostat"] = 0
    if found["mirostat"]:
        found |= {name: default_of(name) for name in FILTERS}
    return found | {name: default_of(name) for name, of in OF_OTHERS.items() if not found[of]}


def _number(name: str, request: GenerationFields, defaults: dict[str, float]) -> Any:
    """A parameter as the request has it, or the model's generation_config.json, or else nobody."""
    nothing, given = default_of(name), getattr(request, name)
    value = type(nothing)(defaults.get(name, nothing) if given is None else given)
    return max(nothing, value) if sampling_parameters()[name].below_is_off else value


def _repeats(given: RepetitionDetection | None) -> RepeatLimit | None:
    if given is None or not given.max_pattern_size:
        return None
    return RepeatLimit(max(1, given.min_pattern_size), given.max_pattern_size, given.min_count)


def _logprobs(request: GenerationFields) -> int:
    """How many likely tokens are told beside each token; -1: not even its own logprob."""
    if isinstance(request, ChatRequest):
        return (request.top_logprobs or 0) if request.logprobs else -1
    given = request.logprobs if isinstance(request, CompletionRequest) else None
    if given is None or given is False:
        return 0 if (request.best_of or 1) > (request.n or 1) else -1  # by which the best are chosen
    return int(given) if given is not True else 0


def _prompt_logprobs(request: GenerationFields) -> int:
    asked = [-1 if request.prompt_logprobs is None else request.prompt_logprobs]
    if isinstance(request, CompletionRequest) and request.echo:
        asked.append(_logprobs(request))
    return max(asked)
