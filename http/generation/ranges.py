"""What values a request's fields may have: a 400 that names the field and says what would be right."""

from __future__ import annotations

import math
import re

from actorserve.actors.protocol.request import MOST_LOGPROBS

from ..errors import bad_request
from ..openai.schemas import ChatRequest, CompletionRequest, GenerationFields
from .unsupported import check_built

MAX_CHOICES = 128
MAX_STOPS, MAX_STOP_LENGTH = 64, 1024
MAX_IDS = {"stop_token_ids": 1024, "allowed_token_ids": 4096}
MAX_BIASES = 1024
TOKEN = re.compile(r"[0-9]{1,10}")  # as a key of logit_bias
MAX_BAD_WORDS, MAX_BAD_WORD = 256, 256
MAX_SALT = 256
SIXTY_FOUR = (1 << 64) - 1
INTERVALS = {  # field: smallest and largest value
    "temperature": (0, 2),
    "min_p": (0, 1),
    "n": (1, MAX_CHOICES),
    "best_of": (1, MAX_CHOICES),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "prompt_logprobs": (0, MOST_LOGPROBS),
    "top_logprobs": (0, MOST_LOGPROBS),
    "stream_interval": (1, 1 << 16),
}
INTEGERS = {"seed": (-(1 << 63), SIXTY_FOUR), "priority": (-(1 << 31), (1 << 31) - 1)}
ABOVE_ZERO = {"top_p": 1, "repetition_penalty": 100}  # field: largest value
LEAST = {  # field: smallest value of a 31-bit integer
    "top_k": -1,
    "max_completion_tokens": 1,
    "min_tokens": 0,
    "truncate_prompt_tokens": -1,
    "thinking_token_budget": -1,
}


def check_fields(request: GenerationFields, vocab_size: int = 1 << 31) -> None:
    """All ranges, and a 400 for what is not built."""
    check_built(request)
    for field, (low, high) in INTERVALS.items():
        _within(field, getattr(request, field, None), low, high)
    for field, low in LEAST.items():
        _at_least(field, getattr(request, field, None), low)
    for field, (low, high) in INTEGERS.items():
        given = getattr(request, field)
        if given is not None and not low <= given <= high:
            raise bad_request(f"{field} must be a {32 if high < 1 << 32 else 64}-bit integer.", field)
    for field, high in ABOVE_ZERO.items():
        given = getattr(request, field)
        if given is not None and not 0 < given <= high:
            raise bad_request(f"{field} must be greater than 0 and at most {high}, not {given}.", field)
    if request.truncate_prompt_tokens == 0:
        raise bad_request("truncate_prompt_tokens must be -1 or at least 1, not 0.", "truncate_prompt_tokens")
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options is only allowed when stream is true.", "stream_options")
    if request.stream_options is not None and request.stream_options.include_obfuscation:
        name = "stream_options.include_obfuscation"
        raise bad_request(f"{name} is not supported by this server yet.", name)
    if request.prompt_logprobs is not None and request.stream:
        raise bad_request("prompt_logprobs are not given with stream.", "prompt_logprobs")
    _check_max_tokens(request)
    _check_best_of(request)
    _check_words(request, vocab_size)
    if isinstance(request, ChatRequest) and request.top_logprobs and not request.logprobs:
        raise bad_request("top_logprobs goes with logprobs: true.", "top_logprobs")
    if isinstance(request, CompletionRequest):
        _within("logprobs", request.logprobs, 0, MOST_LOGPROBS)


def _check_max_tokens(request: GenerationFields) -> None:
    """0 is for those who want a prompt's logprobs only."""
    _at_least("max_tokens", request.max_tokens, 0 if isinstance(request, CompletionRequest) and request.echo else 1)


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


def _check_words(request: GenerationFields, vocab_size: int) -> None:
    """Token ids, words and their weights."""
    for field, most in MAX_IDS.items():
        ids = getattr(request, field) or []
        if len(ids) > most or any(not 0 <= token < vocab_size for token in ids):
            raise bad_request(f"{field} takes at most {most} token ids, of 0 to {vocab_size - 1}.", field)
    if request.allowed_token_ids == []:
        raise bad_request("allowed_token_ids must not be empty: nothing could be drawn.", "allowed_token_ids")
    biases = request.logit_bias or {}
    if len(biases) > MAX_BIASES:
        raise bad_request(f"logit_bias takes at most {MAX_BIASES} tokens.", "logit_bias")
    for token, bias in biases.items():
        if not (TOKEN.fullmatch(token) and int(token) < vocab_size) or not -100 <= bias <= 100:
            text = f"logit_bias maps token ids (0 to {vocab_size - 1}) to -100 to 100, not {token[:32]!r} to {bias}."
            raise bad_request(text, "logit_bias")
    words = request.bad_words or []
    if len(words) > MAX_BAD_WORDS or any(not 0 < len(word) <= MAX_BAD_WORD for word in words):
        raise bad_request(f"bad_words takes at most {MAX_BAD_WORDS} words of {MAX_BAD_WORD} characters.", "bad_words")
    if request.cache_salt is not None and not 0 < len(request.cache_salt) <= MAX_SALT:
        raise bad_request(f"cache_salt must have 1 to {MAX_SALT} characters.", "cache_salt")


def _within(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not (low <= value <= high and math.isfinite(value)):
        raise bad_request(f"{name} must be between {low} and {high}, not {value}.", name)


def _at_least(name: str, value: int | None, low: int) -> None:
    if value is not None and not low <= value < 1 << 31:
        bound = f"at least {low}" if value < low else "less than 2**31"
        raise bad_request(f"{name} must be {bound}, not {value}.", name)


def stop_strings(request: GenerationFields) -> list[str]:
    """`stop` as a list."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if not all(stops):
        raise bad_request("stop must not contain an empty string.", "stop")
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_LENGTH for stop in stops):
        raise bad_request(f"stop takes at most {MAX_STOPS} strings of {MAX_STOP_LENGTH} characters.", "stop")
    return stops
