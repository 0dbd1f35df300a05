"""Random values of what a request may say: texts, fields of sampling, answers' forms, tools.

All is drawn from the generator that is given, so that a request is the same again by its number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

WORDS = 2048  # of the packaged model's vocabulary
ENDS = {0, 1, 2}  # its special tokens
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<think>", "</s>", "[INST]")
FACTS = (
    "What is the capital of France?",
    "How do I set an API key?",
    "Hello!",
    "The capital of France is",
    "Count from one to ten.",
    "What is an actor?",
)
PLANES = ((0x20, 0x7F), (0xA0, 0x24F), (0x300, 0x36F), (0x590, 0x6FF), (0x4E00, 0x9FFF), (0xFE00, 0xFE0F))
ASTRAL = ((0x1F300, 0x1FAFF), (0x10000, 0x1FFFF), (0x20000, 0x2FFFF), (0xE0000, 0xE007F), (0x10F000, 0x10FFFD))
STOPS = ("the", " is", "Paris", "e", ".", "\n", "é", "<|im_end|>", "a b c d e f g", "France is Paris.", "😀")
Draw = Callable[[Random], Any]


def characters(rng: Random, count: int) -> str:
    """Of all planes, broken clusters among them."""
    ranges = PLANES if rng.random() < 0.5 else PLANES + ASTRAL
    return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(count))


def text(rng: Random, longest: int = 400) -> str:
    """A prompt: mostly words that the model knows."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(FACTS)
    if kind < 0.65:
        return " ".join(rng.choice(FACTS) for _ in range(rng.randint(2, 6)))
    if kind < 0.8:
        return characters(rng, rng.randint(1, 60))
    if kind < 0.9:
        return "".join(rng.choice((*SPECIAL, *FACTS, "\r\n", "\t", "\0", " ")) for _ in range(rng.randint(1, 8)))
    return (rng.choice(("word ", "a", "é", "1 2 3 ", "\n", "😀")) * longest)[
        : rng.randint(1, longest * rng.choice((1, 1, 4)))
    ]


def ids(rng: Random, most: int = 100) -> list[int]:
    return [rng.randrange(WORDS) for _ in range(rng.randint(1, most))]


def some(rng: Random, table: Mapping[str, Draw], share: float) -> dict[str, Any]:
    """Each of the fields with this probability."""
    return {name: draw(rng) for name, draw in table.items() if rng.random() < share}


def one_of(*values: Any) -> Draw:
    return lambda rng: rng.choice(values)


def _stop(rng: Random) -> str | list[str]:
    return rng.choice(STOPS) if rng.random() < 0.3 else rng.sample(STOPS, rng.randint(1, 4))


SAMPLING: dict[str, Draw] = {  # by the same name everywhere
    "top_k": one_of(-1, 0, 1, 3, 50, WORDS, 10**6),
    "top_p": one_of(1e-6, 0.1, 0.5, 0.9, 1),
    "min_p": one_of(0, 0.05, 0.5, 1),
    "top_n_sigma": one_of(-1, 0, 0.5, 3),
    "typical_p": one_of(0.1, 0.9, 1),
    "xtc_probability": one_of(0, 0.5, 1),
    "xtc_threshold": one_of(0, 0.1, 0.6),
    "dynatemp_range": one_of(0, 0.5, 2),
    "dynatemp_exponent": one_of(0, 0.5, 3),
    "mirostat": one_of(0, 1, 2),
    "mirostat_tau": one_of(0, 1.5, 5, 20),
    "mirostat_eta": one_of(0, 0.1, 2),
    "min_tokens": one_of(0, 1, 2, 3),
    "repetition_penalty": one_of(0.5, 1, 1.3, 5),
    "frequency_penalty": one_of(-2, -0.5, 0, 1.5, 2),
    "presence_penalty": one_of(-2, 0, 0.7, 2),
    "repeat_last_n": one_of(-1, 0, 1, 5, 64),
    "dry_multiplier": one_of(0, 0.8, 100),
    "dry_base": one_of(1, 1.75, 100),
    "dry_allowed_length": one_of(0, 1, 2, 9),
    "dry_penalty_last_n": one_of(-1, 0, 3, 64),
    "dry_sequence_breakers": one_of([], ["\n", ":"], [" is", "é"]),
    "logit_bias": lambda rng: {str(rng.randrange(WORDS)): rng.uniform(-100, 100) for _ in range(rng.randint(0, 20))},
    "allowed_token_ids": lambda rng: sorted({*ids(rng, 40), *rng.sample(sorted(ENDS), rng.randint(0, 3))}),
    "bad_words": lambda rng: rng.sample([word for word in STOPS if word.strip()], rng.randint(1, 4)),
    "watermarking_config": one_of({}, {"bias": 1.0, "seeding_scheme": "selfhash"}, {"context_width": 3}),
    "stop_token_ids": lambda rng: ids(rng, 8),
    "ignore_eos": one_of(True, False),
    "include_stop_str_in_output": one_of(True, False),
    "skip_special_tokens": one_of(True, False),
    "cache_salt": one_of("a", "b"),
}
GENERATION: dict[str, Draw] = {  # of chat and completions beside these
    "stop": _stop,
    "priority": one_of(-5, 0, 3),
    "user": one_of("me", ""),
    "metadata": one_of({"a": "b"}),
    "spaces_between_special_tokens": one_of(True, False),
    "return_token_ids": one_of(True),
    "return_tokens_as_token_ids": one_of(True, False),
    "return_prompt_text": one_of(True),
    "return_metrics": one_of(True, False),
    "repetition_detection": one_of({"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 3}),
    "stream_interval": one_of(1, 2, 7),
    "add_special_tokens": one_of(True, False),
    "service_tier": one_of("auto"),
    "store": one_of(False),
}


class Form(NamedTuple):
    """What an answer has to look like: asked for in several ways, and whether a whole text does."""

    kind: str
    value: Any
    fits: Callable[[str], bool]


SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "ok": {"type": "boolean"}},
        "required": ["n"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["a", "ä", 1, None]}, "minItems": 1, "maxItems": 3},
    {"type": "string", "maxLength": 5},
    {"anyOf": [{"const": 7}, {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}]},
    {"type": "string", "pattern": "^[a-z]{2,4}$"},
    {"type": "number", "minimum": -1.5, "maximum": 2},
    {
        "type": "object",
        "properties": {'äö "q"': {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
        "required": ['äö "q"'],
        "additionalProperties": False,
    },
)
GRAMMARS = (('start: "a"+ "b"', "a+b"), ('start: X ("," X)*\nX: /[0-9]{1,2}/', "[0-9]{1,2}(,[0-9]{1,2})*"))
REGEXES = ("[ab]{3,6}", "(Paris|Rome), [A-Z]{2}", "é+|😀", "\\d{4}-\\d{2}")


def holds(schema: Mapping[str, Any], value: Any) -> bool:
    """The keywords of SCHEMAS alone."""
    if "anyOf" in schema:
        return any(holds(one, value) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kind = schema.get("type")
    if kind == "object":
        known = schema.get("properties", {})
        return (
            isinstance(value, dict)
            and all(name in value for name in schema.get("required", ()))
            and all(name in known and holds(known[name], one) for name, one in value.items())
        )
    if kind == "array":
        size = isinstance(value, list) and schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9)
        return size and all(holds(schema.get("items", {}), one) for one in value)
    if kind == "string":
        fits = isinstance(value, str) and len(value) <= schema.get("maxLength", 10**9)
        return fits and bool(re.search(schema.get("pattern", ""), value))
    if kind == "boolean":
        return isinstance(value, bool)
    number = isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)
    return kind not in ("integer", "number") or (
        number and schema.get("minimum", value) <= value <= schema.get("maximum", value)
    )


def _is_json(schema: Mapping[str, Any]) -> Callable[[str], bool]:
    def fits(answer: str) -> bool:
        try:
            return holds(schema, json.loads(answer))
        except ValueError:
            return False

    return fits


def form(rng: Random, *kinds: str) -> Form:
    """One of these kinds."""
    kind = rng.choice(kinds)
    if kind == "json":
        schema = rng.choice(SCHEMAS)
        return Form(kind, schema, _is_json(schema))
    if kind == "object":
        return Form(kind, None, lambda answer: isinstance(_parsed(answer), dict))
    if kind == "regex":
        regex = rng.choice(REGEXES)
        return Form(kind, regex, lambda answer: bool(re.fullmatch(regex, answer)))
    if kind == "choice":
        choices = rng.sample(("Rome", "Paris", "Par", "ü", "a b", "{}"), rng.randint(1, 4))
        return Form(kind, choices, lambda answer: answer in choices)
    grammar, regex = rng.choice(GRAMMARS)
    return Form(kind, grammar, lambda answer: bool(re.fullmatch(regex, answer)))


def _parsed(answer: str) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        return None


def tools(rng: Random) -> list[dict[str, Any]]:
    """Functions as chat has them: name, description, parameters, strict."""
    known: tuple[dict[str, Any], ...] = (
        {"name": "now", "parameters": {"type": "object", "properties": {}}},
        {"name": "add", "description": "Adds.", "parameters": SCHEMAS[0], "strict": True},
        {
            "name": "find_it",
            "parameters": {
                "type": "object",
                "properties": {"where": {"type": "string", "maxLength": 8}},
                "required": ["where"],
                "additionalProperties": False,
            },
        },
    )
    return list(rng.sample(known, rng.randint(1, 3)))
