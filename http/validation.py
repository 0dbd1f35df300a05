"""From a body's bytes to what the engine takes: ranges, defaults, and a 400 that names the field."""

from __future__ import annotations

import logging
import re
import secrets
from typing import Any, TypeVar

import msgspec

from actorserve.actors.messages import ChatPrompt, Generation, Prompt, Sampling, TextPrompt, TokenPrompt

from .errors import ApiError, bad_request
from .schemas import NOT_BUILT, ChatMessage, ChatRequest, CompletionRequest, ContentPart, GenerationFields

T = TypeVar("T")
MAX_CHOICES = 128
MAX_STOPS, MAX_STOP_LENGTH = 64, 1024
MAX_STOP_IDS = 1024
MAX_PARAMS_BYTES = 16 << 10  # what a slot of the request table has room for
COMPLETION_MAX_TOKENS = 16  # OpenAI's default
SIXTY_FOUR = (1 << 64) - 1
MAX_REQUEST_ID = 128
PATH = re.compile(r" - at `\$\.?(.*)`$")
log = logging.getLogger("http")


def decode(kind: type[T], body: bytes, inside: str | None = None) -> T:
    """The struct of a JSON body. ApiError 400 names the field and what it should have been."""
    try:
        body.decode()  # what is passed over (unknown fields, raw messages) is looked at by nobody else
        value = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        found = PATH.search(text)
        path = found[1] if found else ""
        if inside is not None:
            path = f"{inside}{path}" if path.startswith("[") else f"{inside}.{path}" if path else inside
        if missing := re.search(r"missing required field `(.+?)`", text):
            path = f"{path}.{missing[1]}" if path else missing[1]
            raise bad_request(f"{path} is missing.", path) from None
        reason = PATH.sub("", text)
        raise bad_request(f"{path}: {reason}" if path else reason, path or None) from None
    except UnicodeDecodeError as error:
        raise bad_request(f"The body is not UTF-8: {error.reason} (byte {error.start})") from None
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error}") from None
    except RecursionError:
        raise bad_request("The body is nested too deeply.") from None
    if log.isEnabledFor(logging.DEBUG) and isinstance(value, msgspec.Struct):
        _log_unknown(value, body)
    return value


def _log_unknown(value: msgspec.Struct, body: bytes) -> None:
    """Name the fields that nobody reads."""
    names = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).keys() - set(value.__struct_fields__)
    for name in sorted(names):
        log.debug("%s: the field %.64r is not known, and ignored", type(value).__name__, name)


def check_built(request: msgspec.Struct) -> None:
    """A 400 for what clients know and this server cannot do yet."""
    for field in request.__struct_fields__:
        if field in NOT_BUILT and _asks(getattr(request, field), NOT_BUILT[field]):
            raise bad_request(f"{field} is not supported by this server yet.", field)


def check_fields(request: GenerationFields) -> None:
    """Ranges of what is built, and a 400 for what is not."""
    check_built(request)
    if request.best_of not in (None, 1, request.n or 1):
        raise bad_request("best_of is not supported by this server yet.", "best_of")
    _within("temperature", request.temperature, 0, 2)
    _within("min_p", request.min_p, 0, 1)
    _within("n", request.n, 1, MAX_CHOICES)
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise bad_request(f"top_p must be greater than 0 and at most 1, not {request.top_p}.", "top_p")
    _at_least("top_k", request.top_k, -1)
    _at_least("max_tokens", request.max_tokens, 1)
    _at_least("min_tokens", request.min_tokens, 0)
    _at_least("truncate_prompt_tokens", request.truncate_prompt_tokens, -1)
    if request.truncate_prompt_tokens == 0:
        raise bad_request("truncate_prompt_tokens must be -1 or at least 1, not 0.", "truncate_prompt_tokens")
    if request.seed is not None and not -(1 << 63) <= request.seed <= SIXTY_FOUR:
        raise bad_request("seed must be a 64-bit integer.", "seed")
    if request.priority is not None and not -(1 << 31) <= request.priority < 1 << 31:
        raise bad_request("priority must be a 32-bit integer.", "priority")
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options is only allowed when stream is true.", "stream_options")


def _asks(value: object, nothing: tuple[object, ...]) -> bool:
    """Does this value ask for something? The number 0 is not `false` where 0 has a meaning of its own (logprobs)."""
    return not any(value == other and (isinstance(value, bool) == isinstance(other, bool)) for other in nothing)


def _within(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
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


def max_tokens_of(request: GenerationFields) -> int | None:
    """The most tokens to generate; None: as many as the model's length allows."""
    if isinstance(request, ChatRequest):
        _at_least("max_completion_tokens", request.max_completion_tokens, 1)
        return request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    return COMPLETION_MAX_TOKENS if request.max_tokens is None else request.max_tokens


def parameters(request: GenerationFields, defaults: dict[str, float], request_id: str) -> list[bytes]:
    """The encoded Generation of each of the n choices; they differ in their seeds."""
    limit = max_tokens_of(request)
    minimum = request.min_tokens or 0
    if limit is not None and minimum > limit:
        raise bad_request(f"min_tokens ({minimum}) must not be more than max_tokens ({limit}).", "min_tokens")
    ids = request.stop_token_ids or []
    if len(ids) > MAX_STOP_IDS or any(not 0 <= token < 1 << 31 for token in ids):
        raise bad_request(f"stop_token_ids takes at most {MAX_STOP_IDS} token ids.", "stop_token_ids")
    seed = secrets.randbits(64) if request.seed is None else request.seed
    stops = stop_strings(request)
    encoded = []
    for index in range(request.n or 1):
        sampling = _sampling(request, defaults, (seed + index) & SIXTY_FOUR, minimum)
        generation = Generation(
            sampling,
            ignore_eos=bool(request.ignore_eos),
            stop_token_ids=ids,
            stop=stops,
            include_stop=bool(request.include_stop_str_in_output),
            skip_special_tokens=request.skip_special_tokens is not False,
            priority=request.priority or 0,
            stream=bool(request.stream),
            request_id=request_id[:MAX_REQUEST_ID],
        )
        encoded.append(msgspec.msgpack.encode(generation))
    if len(encoded[0]) > MAX_PARAMS_BYTES:
        raise bad_request(f"stop: all stop strings together are longer than {MAX_PARAMS_BYTES} bytes.", "stop")
    return encoded


def _sampling(request: GenerationFields, defaults: dict[str, float], seed: int, minimum: int) -> Sampling:
    def value(name: str, otherwise: float) -> float:
        given = getattr(request, name)
        return float(defaults.get(name, otherwise) if given is None else given)

    return Sampling(
        seed,
        temperature=value("temperature", 1.0),
        top_k=max(0, int(value("top_k", 0))),
        top_p=value("top_p", 1.0),
        min_p=value("min_p", 0.0),
        min_tokens=minimum,
    )


def chat_prompt(request: ChatRequest) -> ChatPrompt:
    """The conversation, checked."""
    messages = check_messages(request.messages)
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    add, go_on = request.add_generation_prompt, bool(request.continue_final_message)
    if go_on and add:
        raise bad_request("add_generation_prompt must be false with continue_final_message.", "add_generation_prompt")
    return ChatPrompt(
        messages,
        documents=_raw("documents", request.documents),
        template_kwargs=_raw("chat_template_kwargs", variables),
        add_generation_prompt=not go_on if add is None else add,
        continue_final_message=go_on,
        add_special_tokens=bool(request.add_special_tokens),
    )


def check_messages(raw: msgspec.Raw) -> bytes:
    """The messages as the client sent them, if they are what they should be."""
    body = bytes(raw)
    messages = decode(list[ChatMessage], body, "messages")
    if not messages:
        raise bad_request("messages must not be empty.", "messages")
    for index, message in enumerate(messages):
        if message.content is None and message.role not in ("assistant", "function", "tool"):
            raise bad_request(f"messages[{index}].content is missing.", f"messages[{index}].content")
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            _check_part(part, f"messages[{index}].content[{number}]")
    return body


def _check_part(part: ContentPart | str, path: str) -> None:
    if isinstance(part, str):
        return
    if part.type not in ("text", "input_text"):
        raise bad_request(f"{path}: this model takes text only, not a part of type {part.type!r}.", path)
    if part.text is None:
        raise bad_request(f"{path}.text is missing.", f"{path}.text")


def _raw(name: str, value: object) -> bytes | None:
    """JSON for the chat template; None for nothing."""
    try:
        return msgspec.json.encode(value) if value else None
    except RecursionError:  # it could just be decoded
        raise bad_request(f"{name} is nested too deeply.", name) from None


def completion_prompts(request: CompletionRequest) -> list[Prompt]:
    """One text, several texts, one list of ids, or several lists of ids."""
    prompt: Any = request.prompt
    special = request.add_special_tokens is not False
    if prompt is None:
        raise bad_request("prompt is missing.", "prompt")
    if isinstance(prompt, str):
        return [TextPrompt(prompt, special)]
    if not prompt:
        raise bad_request("prompt must not be an empty list.", "prompt")
    kinds = {type(part) for part in prompt}
    if kinds == {int}:
        return [_token_prompt(prompt)]
    if kinds == {str}:
        return [TextPrompt(part, special) for part in prompt]
    if kinds == {list}:
        return [_token_prompt(part) for part in prompt]
    raise bad_request("prompt must be a string, a list of strings, token ids, or a list of lists of them.", "prompt")


def _token_prompt(tokens: list[int]) -> TokenPrompt:
    return TokenPrompt(check_tokens(tokens, "prompt"))


def check_tokens(tokens: list[int], name: str) -> list[int]:
    """Token ids that a message can hold; the renderer knows the vocabulary."""
    if any(not 0 <= token < 1 << 31 for token in tokens):
        raise bad_request(f"{name}: token ids are between 0 and the size of the vocabulary.", name)
    return tokens


def check_model(asked: str | None, served: list[str]) -> str:
    """The name to answer with. 404 for a model that is not served."""
    if asked is None or asked == "":
        return served[0]
    if asked not in served:
        raise ApiError(404, f"The model `{asked}` does not exist.", "model", "model_not_found")
    return asked
