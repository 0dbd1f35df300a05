"""What values a request's fields may have: a 400 that names the field and says what would be right."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from actorserve.actors.protocol.request import MOST_LOGPROB_IDS
from actorserve.actors.protocol.sampling.fields import ranges_of

from ...errors import bad_request
from ...llamacpp.names import take_names
from ...openai.schemas import (
    NO_LIMIT,
    ChatRequest,
    CompletionRequest,
    GenerationFields,
    RepetitionDetection,
    TokensRequest,
)
from ...settings import KVSharing
from . import kv_transfer
from .unsupported import check_built

MAX_STOPS, MAX_STOP_LENGTH = 64, 1024
MAX_IDS = {"stop_token_ids": 1024, "allowed_token_ids": 4096, "logprob_token_ids": MOST_LOGPROB_IDS}
MAX_BIASES = 1024
TOKEN = re.compile(r"[0-9]{1,10}")  # as a key of logit_bias
MAX_BAD_WORDS, MAX_BAD_WORD = 256, 256
MAX_BREAKERS, MAX_BREAKER = 32, 64
MAX_SALT = 256
LOGPROBS = ("logprobs", "top_logprobs", "prompt_logprobs")  # how many of the likeliest tokens are told; -1: all
MOST_SHOWN = 16  # values that an error names


def check_ranges(body: msgspec.Struct) -> None:
    """All numbers, by what the fields of the struct say of themselves."""
    for name, limit in ranges_of(type(body)).items():
        value = getattr(body, name)
        if value is not None and not limit.holds(value):
            raise bad_request(f"{name} must be {limit.missed_by(value)}.", name)


def check_fields(
    request: GenerationFields,
    vocab_size: int = 1 << 31,
    kv: KVSharing | None = None,
    most_logprobs: int | None = None,
) -> None:
    """All ranges, and a 400 for what is not built. `kv`: how servers come by each other's blocks. `most_logprobs`: of
    --max-logprobs, by whom it is known.
    """
    check_built(request, (kv_transfer.FIELD,))
    kv_transfer.check_transfer(request.kv_transfer_params, kv)
    check_ranges(request)
    take_names(request)
    for name in ("n_predict", "max_tokens", "max_completion_tokens"):
        if getattr(request, name, None) == 0 and not (isinstance(request, CompletionRequest) and request.echo):
            least = "at least 1" if isinstance(request, TokensRequest) else f"{NO_LIMIT} or at least 1"
            raise bad_request(f"{name} must be {least}, not 0.", name)
    if request.n_predict is not None:
        _limit(request, NO_LIMIT if request.n_predict < 0 else request.n_predict)
    check_cut(request.truncate_prompt_tokens)
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options is only allowed when stream is true.", "stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise bad_request("prompt_logprobs are not given with stream.", "prompt_logprobs")
    _check_best_of(request)
    _check_repetition(request.repetition_detection)
    _check_words(request, vocab_size)
    if most_logprobs is not None:
        _check_logprobs(request, vocab_size, most_logprobs)
    if isinstance(request, ChatRequest) and request.return_prompt_token_ids and request.stream:
        text = "return_prompt_token_ids does not go with stream: return_token_ids does."
        raise bad_request(text, "return_prompt_token_ids")
    if isinstance(request, ChatRequest) and request.top_logprobs and not request.logprobs:
        raise bad_request("top_logprobs goes with logprobs: true.", "top_logprobs")


def check_cut(keep: int | None, longest: int | None = None) -> None:
    """400 for a `truncate_prompt_tokens` of nothing, or of more than the model takes, where that is known."""
    if keep == 0:
        raise bad_request("truncate_prompt_tokens must be -1 or at least 1, not 0.", "truncate_prompt_tokens")
    if longest is not None and (keep or 0) > longest:
        text = f"truncate_prompt_tokens must be at most {longest} (max_model_len), not {keep}."
        raise bad_request(text, "truncate_prompt_tokens")


def _check_logprobs(request: GenerationFields, vocab_size: int, most: int) -> None:
    for name in LOGPROBS:
        asked = getattr(request, name, None)
        if asked is None or isinstance(asked, bool):
            continue
        if (count := vocab_size if asked == -1 else asked) > most:
            all_of_it = f"-1, all {vocab_size} of the vocabulary" if asked == -1 else asked
            raise bad_request(f"{name} must be at most {most} (--max-logprobs), not {all_of_it}.", name)
        setattr(request, name, min(count, vocab_size))  # no more are written


def _limit(request: GenerationFields, tokens: int) -> None:
    """By llama.cpp's name, which goes before OpenAI's there."""
    request.max_tokens = tokens
    if isinstance(request, ChatRequest):
        request.max_completion_tokens = None


def _check_best_of(request: GenerationFields) -> None:
    wanted = request.n or 1
    if request.best_of in (None, 1, wanted):
        return
    if isinstance(request, ChatRequest):
        raise bad_request("best_of is a field of completions.", "best_of")
    if request.best_of < wanted:
        raise bad_request(f"best_of must be at least n ({wanted}), not {request.best_of}.", "best_of")
    if request.stream:
        raise bad_request("best_of cannot be streamed: which is the best is known at the end.", "best_of")


def _check_repetition(given: RepetitionDetection | None) -> None:
    if given is None:
        return
    name = "repetition_detection"
    if given.min_pattern_size > given.max_pattern_size:
        text = f"{name}.min_pattern_size must be at most max_pattern_size ({given.max_pattern_size})."
        raise bad_request(text, f"{name}.min_pattern_size")
    if given.max_pattern_size and given.min_count < 2:
        raise bad_request(f"{name}.min_count must be at least 2, not {given.min_count}.", f"{name}.min_count")


def _check_words(request: GenerationFields, vocab_size: int) -> None:
    """Token ids, words and their weights."""
    for field, most in MAX_IDS.items():
        ids = getattr(request, field) or []
        if len(ids) > most:
            raise bad_request(f"{field} takes at most {most} token ids.", field)
        if bad := [token for token in ids if not 0 <= token < vocab_size]:
            text = f"{field} takes token ids below {vocab_size}, the size of the vocabulary, not {_shown(bad)}."
            raise bad_request(text, field)
    if request.allowed_token_ids == []:
        raise bad_request("allowed_token_ids must not be empty: nothing could be drawn.", "allowed_token_ids")
    if request.logprob_token_ids is not None:
        _check_logprob_ids(request)
    biases = request.logit_bias or {}
    if len(biases) > MAX_BIASES:
        raise bad_request(f"logit_bias takes at most {MAX_BIASES} tokens.", "logit_bias")
    if bad := [
        f"{token[:32]!r} to {bias}"
        for token, bias in biases.items()
        if not (TOKEN.fullmatch(token) and int(token) < vocab_size) or not -100 <= bias <= 100
    ]:
        text = f"logit_bias maps token ids below {vocab_size}, the size of the vocabulary, to -100 to 100, not"
        raise bad_request(f"{text} {_shown(bad)}.", "logit_bias")
    words = request.bad_words or []
    if len(words) > MAX_BAD_WORDS or any(not 0 < len(word) <= MAX_BAD_WORD for word in words):
        raise bad_request(f"bad_words takes at most {MAX_BAD_WORDS} words of {MAX_BAD_WORD} characters.", "bad_words")
    breakers = request.dry_sequence_breakers or []
    if len(breakers) > MAX_BREAKERS or any(not 0 < len(text) <= MAX_BREAKER for text in breakers):
        name = "dry_sequence_breakers"
        raise bad_request(f"{name} takes at most {MAX_BREAKERS} texts of 1 to {MAX_BREAKER} characters.", name)
    check_salt(request.cache_salt)


def _shown(values: Sequence[object]) -> str:
    """Some of them, for an error."""
    shown = ", ".join(f"{value!s:.64}" for value in values[:MOST_SHOWN])
    return f"{shown} and {len(values) - MOST_SHOWN} more" if len(values) > MOST_SHOWN else shown


def check_salt(salt: str | None) -> None:
    """Behind a NUL the server says of which weights the blocks are."""
    if salt is not None and (not 0 < len(salt) <= MAX_SALT or "\0" in salt):
        raise bad_request(f"cache_salt must have 1 to {MAX_SALT} characters, none of them NUL.", "cache_salt")


def _check_logprob_ids(request: GenerationFields) -> None:
    """They say which logprobs, but not that there are any."""
    name = "logprob_token_ids"
    if not request.logprob_token_ids:
        raise bad_request(f"{name} must not be empty: leave it out for the likeliest tokens.", name)
    if isinstance(request, ChatRequest) and not request.logprobs:
        raise bad_request(f"{name} goes with logprobs: true.", name)
    if isinstance(request, CompletionRequest) and (request.logprobs is None or request.logprobs is False):
        raise bad_request(f"{name} goes with logprobs.", name)


def keeps_stop(request: GenerationFields) -> bool:
    """Has the text what ended it?"""
    return bool(request.include_stop_str_in_output or request.no_stop_trim)


def stop_strings(request: GenerationFields) -> list[str]:
    """`stop` as a list."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if not all(stops):
        raise bad_request("stop must not contain an empty string.", "stop")
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_LENGTH for stop in stops):
        raise bad_request(f"stop takes at most {MAX_STOPS} strings of {MAX_STOP_LENGTH} characters.", "stop")
    return stops
