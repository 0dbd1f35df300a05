"""What a body may not hold, with the field that a 400 names; and the parameters that come of a good one."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.fields.ranges import (
    LOGPROBS,
    MAX_IDS,
    MAX_STOP_LENGTH,
    MAX_STOPS,
    check_fields,
)
from actorserve.http.openai.schemas import MAX_CHOICES, ChatRequest, CompletionRequest
from tests.http.bodies import BIG, HI, body_of, chat, complete, for_chat, for_completion, refusal

# --- logprobs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOGPROBS)
@pytest.mark.parametrize(
    ("asked", "most", "told"), [(0, 0, 0), (20, 20, 20), (64, 64, 64), (-1, 300, 300), (500, 1024, 300)]
)
def test_as_many_logprobs_as_the_server_tells(name: str, asked: int, most: int, told: int) -> None:
    request = asking_for(name, asked)
    check_fields(request, 300, None, most)
    assert getattr(request, name) == told


@pytest.mark.parametrize("name", LOGPROBS)
@pytest.mark.parametrize(("asked", "most", "words"), [(21, 20, "not 21"), (-1, 299, "not -1, all"), (1, 0, "not 1")])
def test_more_logprobs_than_that(name: str, asked: int, most: int, words: str) -> None:
    error = refusal(check_fields, asking_for(name, asked), 300, None, most)
    assert error.param == name and f"at most {most} (--max-logprobs), {words}" in error.message


def asking_for(name: str, asked: int) -> ChatRequest | CompletionRequest:
    if name == "top_logprobs":
        return decode(ChatRequest, body_of(messages=HI, logprobs=True, top_logprobs=asked))
    return decode(CompletionRequest, body_of(prompt="hi", **{name: asked}))


# --- JSON ----------------------------------------------------------------------------------------------------------

NOT_JSON: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not valid JSON"),
    "half": (b'{"prompt": "hi"', "not valid JSON"),
    "two": (b'{"prompt": "hi"} {}', "trailing"),
    "NaN": (b'{"prompt": "hi", "temperature": NaN}', "not valid JSON"),
    "Infinity": (b'{"prompt": "hi", "temperature": Infinity}', "not valid JSON"),
    "-Infinity": (b'{"prompt": "hi", "unknown": -Infinity}', "not valid JSON"),
    "half a surrogate pair": (b'{"prompt": "\\ud83d is half"}', "not valid JSON"),
    "control character": (b'{"prompt": "\x01"}', "not valid JSON"),
    "byte order mark": (b'\xef\xbb\xbf{"prompt": "hi"}', "not valid JSON"),
    "UTF-16": ('{"prompt": "hi"}'.encode("utf-16"), "not UTF-8"),
    "bad UTF-8": (b'{"prompt": "\xff"}', "not UTF-8: invalid start byte (byte 12)"),
    "bad UTF-8 where nobody looks": (b'{"prompt": "hi", "unknown": "\xff"}', "not UTF-8"),
    "an array": (b"[]", "Expected `object`, got `array`"),
    "null": (b"null", "Expected `object`, got `null`"),
    "a string": (b'"hi"', "Expected `object`, got `str`"),
    "deep": (b'{"metadata": ' + b"[" * 100_000, "nested too deeply"),
    "deep where nobody looks": (b'{"prompt": "hi", "unknown": ' + b'{"a":' * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_a_body_that_is_no_json_object(name: str) -> None:
    body, words = NOT_JSON[name]
    error = refusal(complete, body)
    assert (error.status, error.param) == (400, None) and words in error.message


def test_bad_utf8_in_what_only_the_template_reads() -> None:
    error = refusal(chat, b'{"messages": [{"role": "user", "content": "hi", "name": "\xff"}]}')
    assert error.status == 400 and "UTF-8" in error.message


def test_nesting_up_to_the_limit_is_an_answer() -> None:
    """Where decoding just succeeds, encoding again for the template must not fail in another way."""
    seen: set[tuple[int, str]] = set()
    for depth in range(700, 1100):
        nested = b'{"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"a": %s%s}}'
        try:
            chat(nested % (b"[" * depth, b"]" * depth))
            seen.add((200, ""))
        except ApiError as error:
            seen.add((error.status, error.message))
    refused = seen - {(200, "")}
    assert refused and refused != seen
    assert all(status == 400 and "nested too deeply" in message for status, message in refused)


# --- types and ranges ----------------------------------------------------------------------------------------------

BAD_FIELDS: list[tuple[str, Any, str, str]] = [  # field, value, words, param where it is not the field
    ("model", 5, "Expected `str | null`, got `int`", ""),
    ("max_tokens", "5", "Expected `int | null`, got `str`", ""),
    ("max_tokens", 5.5, "got `float`", ""),
    ("max_tokens", True, "got `bool`", ""),
    ("max_tokens", 0, "at least 1, not 0", ""),
    ("max_tokens", -2, "at least -1, not -2", ""),
    ("max_tokens", 1 << 31, "less than 2**31", ""),
    ("max_tokens", BIG, "less than 2**31", ""),
    ("n", 0, f"between 1 and {MAX_CHOICES}, not 0", ""),
    ("n", -1, "not -1", ""),
    ("n", MAX_CHOICES + 1, f"not {MAX_CHOICES + 1}", ""),
    ("n", "2", "got `str`", ""),
    ("n", BIG, "between", ""),
    ("stream", "true", "Expected `bool | null`, got `str`", ""),
    ("stream", 1, "got `int`", ""),
    ("stream_options", {}, "only allowed when stream is true", ""),
    ("stream_options", {"include_usage": True}, "only allowed when stream is true", ""),
    ("stream_options", 5, "Expected `object | null`", ""),
    ("stream_options", {"include_usage": "yes"}, "got `str`", "stream_options.include_usage"),
    ("temperature", -0.1, "between 0 and 2, not -0.1", ""),
    ("temperature", 2.01, "not 2.01", ""),
    ("temperature", 1e308, "between 0 and 2", ""),
    ("temperature", "1", "Expected `float | null`, got `str`", ""),
    ("temperature", True, "got `bool`", ""),
    ("top_p", 0, "greater than 0", ""),
    ("top_p", -0.5, "greater than 0", ""),
    ("top_p", 1.1, "not 1.1", ""),
    ("top_k", -2, "at least -1", ""),
    ("top_k", BIG, "less than 2**31", ""),
    ("top_k", 1.5, "got `float`", ""),
    ("min_p", -0.1, "between 0 and 1", ""),
    ("min_p", 1.1, "between 0 and 1", ""),
    ("typical_p", 0, "greater than 0 and at most 1", ""),
    ("typical_p", 1.1, "not 1.1", ""),
    ("seed", 1 << 64, "64-bit", ""),
    ("seed", -(1 << 63) - 1, "64-bit", ""),
    ("seed", 0.5, "got `float`", ""),
    ("seed", "1", "got `str`", ""),
    ("stop", "", "empty string", ""),
    ("stop", ["a", ""], "empty string", ""),
    ("stop", 5, "Expected `str | array | null`, got `int`", ""),
    ("stop", ["a", 5], "got `int`", "stop[1]"),
    ("stop", ["a", None], "got `null`", "stop[1]"),
    ("stop", ["a"] * (MAX_STOPS + 1), f"at most {MAX_STOPS}", ""),
    ("stop", "a" * (MAX_STOP_LENGTH + 1), f"{MAX_STOP_LENGTH} characters", ""),
    ("stop", ["\u4e2d" * MAX_STOP_LENGTH] * 11, "together longer", ""),
    ("stop_token_ids", [-1], "token ids", ""),
    ("stop_token_ids", [1 << 31], "token ids", ""),
    ("stop_token_ids", [BIG], "token ids", ""),
    ("stop_token_ids", [0] * (MAX_IDS["stop_token_ids"] + 1), f"at most {MAX_IDS['stop_token_ids']}", ""),
    ("stop_token_ids", ["a"], "got `str`", "stop_token_ids[0]"),
    ("stop_token_ids", 5, "got `int`", ""),
    ("include_stop_str_in_output", 1, "got `int`", ""),
    ("ignore_eos", "no", "got `str`", ""),
    ("min_tokens", -1, "at least 0", ""),
    ("min_tokens", BIG, "less than 2**31", ""),
    ("skip_special_tokens", 0, "got `int`", ""),
    ("dry_multiplier", -0.1, "between 0 and 100", ""),
    ("dry_multiplier", 1e39, "between 0 and 100", ""),
    ("dry_base", 0.5, "between 1 and 100", ""),
    ("dry_allowed_length", -1, "at least 0", ""),
    ("dry_penalty_last_n", -2, "at least -1", ""),
    *(
        ("dry_sequence_breakers", texts, "at most 32 texts of 1 to 64 characters", "")
        for texts in ([""], ["a"] * 33, ["a" * 65])
    ),
    ("dry_sequence_breakers", [5], "got `int`", "dry_sequence_breakers[0]"),
    ("truncate_prompt_tokens", 0, "-1 or at least 1", ""),
    ("truncate_prompt_tokens", -2, "at least -1", ""),
    ("truncate_prompt_tokens", BIG, "less than 2**31", ""),
    ("add_special_tokens", 0, "got `int`", ""),
    ("priority", 1 << 31, "32-bit", ""),
    ("priority", -(1 << 31) - 1, "32-bit", ""),
    ("request_id", 5, "got `int`", ""),
    ("user", 5, "got `int`", ""),
    ("logit_bias", [1], "Expected `object | null`", ""),
    ("logit_bias", {"5": None}, "got `null`", ""),
]


@pytest.mark.parametrize("call", [for_chat, for_completion])
@pytest.mark.parametrize(("field", "value", "words", "param"), BAD_FIELDS)
def test_a_bad_value_of_a_common_field(call: Any, field: str, value: Any, words: str, param: str) -> None:
    error = refusal(call, **{field: value})
    assert (error.status, error.param) == (400, param or field) and words in error.message
    assert field in error.message


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"stop_token_ids": [5, 1000, -2]}, "size of the vocabulary, not 1000, -2."),
        ({"stop_token_ids": list(range(1000, 1100))}, ", 1015 and 84 more."),
        ({"logit_bias": {"1000": 1, "7": 2, "x": 3, "8": 101}}, "not '1000' to 1.0, 'x' to 3.0, '8' to 101.0."),
        ({"logit_bias": dict.fromkeys(map(str, range(1000, 1100)), 1)}, ", '1015' to 1.0 and 84 more."),
    ],
)
def test_tokens_that_are_none_are_named_with_the_vocabularys_size(fields: dict[str, Any], end: str) -> None:
    error = refusal(check_fields, decode(CompletionRequest, body_of(prompt="a", **fields)), 1000)
    assert error.param in fields and "below 1000," in error.message and error.message.endswith(end)


BAD_CHATS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": None}, "messages", "Expected `array`, got `null`"),
    ({"messages": "hi"}, "messages", "got `str`"),
    ({"messages": []}, "messages", "empty"),
    ({"messages": [5]}, "messages[0]", "Expected `object`, got `int`"),
    ({"messages": [*HI, *HI, {"role": "user"}]}, "messages[2].content", "missing"),
    ({"messages": [*HI, *HI, {"role": "user", "content": 5}]}, "messages[2].content", "got `int`"),
    ({"messages": [*HI, {"role": "system", "content": None}]}, "messages[1].content", "missing"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role", "missing"),
    ({"messages": [{"role": "", "content": "hi"}]}, "messages[0].role", "length"),
    ({"messages": [{"role": "r" * 65, "content": "hi"}]}, "messages[0].role", "length"),
    ({"messages": [{"role": "robot"}]}, "messages[0].content", "missing"),
    ({"messages": [{"role": None, "content": "hi"}]}, "messages[0].role", "got `null`"),
    ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]", "got `int`"),
    ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages[0].content[0].type", "missing"),
    (
        {"messages": [*HI, {"role": "user", "content": ["a", {"type": "text"}]}]},
        "messages[1].content[1].text",
        "missing",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0].text",
        "got `int`",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
        "messages[0].content[0]",
        "text only, not a part of type 'image_url'",
    ),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "refusal"}]}]},
        "messages[0].content[0].refusal",
        "missing",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": [5]}]}, "messages[0].tool_calls[0]", "got `int`"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1, not 0"),
    ({"max_completion_tokens": BIG}, "max_completion_tokens", "less than 2**31"),
    ({"max_completion_tokens": "5"}, "max_completion_tokens", "got `str`"),
    ({"min_tokens": 5, "max_completion_tokens": 4, "max_tokens": 9}, "min_tokens", "(5) must not be more"),
    (
        {"continue_final_message": True, "add_generation_prompt": True},
        "add_generation_prompt",
        "must be false with continue_final_message",
    ),
    ({"add_generation_prompt": 1}, "add_generation_prompt", "got `int`"),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "got `array`"),
    ({"documents": ["a"]}, "documents[0]", "got `str`"),
    ({"reasoning_effort": 5}, "reasoning_effort", "got `int`"),
    *(
        ({"watermarking_config": given}, f"watermarking_config{field}", words)
        for given, field, words in (
            ({"greenlist_ratio": 1.0}, ".greenlist_ratio", "Expected `float` < 1.0"),
            ({"bias": 101}, ".bias", "<= 100"),
            ({"seeding_scheme": "minhash"}, ".seeding_scheme", "Invalid enum value 'minhash'"),
            ({"context_width": 0}, ".context_width", "Expected `int` >= 1"),
            ({"hashing_key": -1}, ".hashing_key", "Expected `int` >= 0"),
            ({"key": 1}, ".key", "there is no such field"),
            (True, "", "got `bool`"),
        )
    ),
    *(
        ({"repetition_detection": given}, f"repetition_detection.{field}", words)
        for given, field, words in (
            ({"max_pattern_size": 3}, "min_count", "at least 2, not 0"),
            (
                {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2},
                "min_pattern_size",
                "max_pattern_size (2)",
            ),
            ({"max_pattern_size": 257, "min_count": 2}, "max_pattern_size", "Expected `int` <= 256"),
            ({"max_pattern_size": "3"}, "max_pattern_size", "got `str`"),
        )
    ),
]


@pytest.mark.parametrize(("fields", "param", "words"), BAD_CHATS)
def test_a_bad_chat(fields: dict[str, Any], param: str, words: str) -> None:
    error = refusal(for_chat, **fields)
    assert (error.status, error.param) == (400, param) and words in error.message


def test_a_chat_without_messages() -> None:
    error = refusal(chat, b"{}")
    assert (error.status, error.param, error.message) == (400, "messages", "messages is missing.")


BAD_PROMPTS: list[tuple[Any, str, str]] = [
    (None, "prompt", "missing"),
    ([], "prompt", "empty list"),
    (5, "prompt", "got `int`"),
    (True, "prompt", "got `bool`"),
    ({"a": 1}, "prompt", "got `object`"),
    (["a", 1], "prompt", "must be a string, a list"),
    ([1, [2]], "prompt", "must be a string, a list"),
    (["a", [1]], "prompt", "must be a string, a list"),
    ([None], "prompt[0]", "got `null`"),
    ([1.5], "prompt[0]", "got `float`"),
    ([True], "prompt[0]", "got `bool`"),
    ([[1], [2, "a"]], "prompt[1][1]", "Expected `int`, got `str`"),
    ([-1], "prompt", "token ids"),
    ([1 << 31], "prompt", "token ids"),
    ([[1], [BIG]], "prompt", "token ids"),
]


@pytest.mark.parametrize(("prompt", "param", "words"), BAD_PROMPTS)
def test_a_bad_prompt(prompt: Any, param: str, words: str) -> None:
    error = refusal(for_completion, prompt=prompt)
    assert (error.status, error.param) == (400, param) and words in error.message


def test_a_completion_has_sixteen_tokens_unless_told() -> None:
    error = refusal(for_completion, min_tokens=17)
    assert error.param == "min_tokens" and "max_tokens (16)" in error.message
    assert for_completion(min_tokens=16)[1][0].sampling.min_tokens == 16
    assert for_chat(min_tokens=17)[1][0].sampling.min_tokens == 17, "a chat goes up to the model's length"
