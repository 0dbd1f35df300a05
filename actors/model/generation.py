"""generation_config.json: what requests get that say nothing, and which tokens end an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..options.config import ConfigError
from ..protocol.request import default_of
from ..protocol.sampling.fields import sampling_parameters
from .tokenizers.tokenizer_files import added_tokens, special_texts
from .values import Values

OVERRIDE = "--override-generation-config"
HINT = "; --generation-config none leaves the file's sampling defaults out"


def read_override(given: dict[str, Any]) -> dict[str, Any]:
    """What --override-generation-config says; ConfigError names what in it cannot be."""
    names = [name for name, parameter in sampling_parameters().items() if parameter.configurable and parameter.range]
    known = sorted([*names, "max_new_tokens", "do_sample", "eos_token_id"])
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ConfigError(f"{OVERRIDE}: {unknown[0]} is none of {', '.join(known)}")
    sampling_defaults(Values(OVERRIDE, given))
    return {"do_sample": True} | given if "temperature" in given else given  # whatever the model's file says of it


def in_file(name: str) -> bool:
    """May the file say it, too? Of its penalties servers read one; the others are for the option alone."""
    parameter = sampling_parameters().get(name)
    return parameter is None or parameter.in_file


def sampling_defaults(given: Values) -> dict[str, float]:
    """By the names of the requests' fields, whose table says which may stand here, and in which range."""
    given = Values(given.file, given.values, "" if given.file == OVERRIDE else HINT)
    read: dict[str, float | None] = {"max_new_tokens": given.whole("max_new_tokens")}
    for name, parameter in sampling_parameters().items():
        limit = parameter.range
        if parameter.configurable and limit is not None:
            if isinstance(default_of(name), int):
                read[name] = given.whole(name, int(limit.least), int(limit.most))
            else:
                read[name] = given.real(name, limit.least, limit.most, limit.above)
    found: dict[str, float] = {name: value for name, value in read.items() if value is not None}
    if not given.flag("do_sample", absent=True):
        found["temperature"] = 0.0
    return found


def end_tokens(generation: Values, config: Values, words: int) -> list[int]:
    """generation_config.json's end tokens, else config.json's; one id, a list, or none. The model has `words` words."""
    given = generation if "eos_token_id" in generation.values else config
    value: Any = given["eos_token_id"]
    tokens = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < words for token in tokens):
        raise given.wrong("eos_token_id", f"a token's number below vocab_size, {words}, or a list of such numbers")
    return list(tokens)


def with_end_of(tokenizer: Path, ends: list[int], words: int) -> list[int]:
    """With the tokenizer's eos_token, as in vLLM: a model that was trained to end with another token than its base may
    have the base's generation_config.json.
    """
    end = added_tokens(tokenizer).get(special_texts(tokenizer).get("eos_token", ""), words)
    return ends if end in ends or not 0 <= end < words else [*ends, end]
