"""--speculative-config: a JSON object with vLLM's names, checked where options are. Leaf module.

Without it (`auto`) the server drafts n-grams by itself, for a request that runs alone, where no draft can change a bit
of what is said: the worker knows whether its products depend on the number of rows. `none` is never.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..config import Config, ConfigError
from ..parser import nearest

OPTION = "--speculative-config"
AUTO, NONE = "auto", "none"
OFF = (NONE, "off", "null", "false")  # what says so
VERIFIED = "num_draft_tokens"  # --speculative-num-draft-tokens
AT_MOST = "draft_max"  # --draft-max, of drafts that something else asks for
DEFAULT_LOOKUP = 5  # tokens, where neither bound is given
DEFAULT_DRAFTS = 3  # of a model, as llama-server has it

Drafts = Annotated[int, Meta(ge=1, le=32)]
Ending = Annotated[int, Meta(ge=1, le=64)]
Alone = Annotated[int, Meta(ge=1, le=1)] | None  # what drafts is whole in each worker


class NgramOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="method", tag="ngram"
):
    """Drafts are what followed the last tokens when they came before."""

    num_speculative_tokens: Drafts = 4
    prompt_lookup_max: Ending | None = None
    prompt_lookup_min: Ending | None = None

    @property
    def lookup(self) -> tuple[int, int]:
        """(fewest, most) tokens that have to match; one bound stands for both."""
        most = self.prompt_lookup_max or self.prompt_lookup_min or DEFAULT_LOOKUP
        return self.prompt_lookup_min or most, most


class SuffixOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="method", tag="suffix"
):
    """Drafts are what followed the longest ending that came before, here or in earlier answers."""

    num_speculative_tokens: Drafts = 24
    suffix_decoding_max_tree_depth: Ending = 24
    suffix_decoding_max_cached_requests: Annotated[int, Meta(ge=0, le=1_000_000)] = 10_000
    suffix_decoding_max_spec_factor: Annotated[float, Meta(gt=0, le=64)] = 1.0
    suffix_decoding_min_token_prob: Annotated[float, Meta(ge=0, le=1)] = 0.1


class DraftModelOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="method", tag="draft_model"
):
    """Drafts are what a smaller model says."""

    model: str
    num_speculative_tokens: Drafts = DEFAULT_DRAFTS
    draft_tensor_parallel_size: Alone = None


class EagleOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="method", tag="eagle"
):
    """Drafts are what a layer says that goes on from the model's last hidden states (EAGLE-1 and EAGLE-2)."""

    model: str
    num_speculative_tokens: Drafts = DEFAULT_DRAFTS
    draft_tensor_parallel_size: Alone = None


class Eagle3Options(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="method", tag="eagle3"
):
    """The same from hidden states of three layers (EAGLE-3)."""

    model: str
    num_speculative_tokens: Drafts = DEFAULT_DRAFTS
    draft_tensor_parallel_size: Alone = None


class MedusaOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="method", tag="medusa"
):
    """Drafts are what heads say, each of them of one more token ahead."""

    model: str
    num_speculative_tokens: Drafts = DEFAULT_DRAFTS
    draft_tensor_parallel_size: Alone = None


class DFlashOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="method", tag="dflash"
):
    """Drafts are what a small model says in one pass, a block of them, from hidden states of several layers."""

    model: str
    num_speculative_tokens: Drafts = DEFAULT_DRAFTS
    draft_tensor_parallel_size: Alone = None


class MtpOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="method", tag="mtp"):
    """Drafts are what the model's own layer for multi-token prediction says."""

    num_speculative_tokens: Drafts = DEFAULT_DRAFTS
    draft_tensor_parallel_size: Alone = None


BY_ITSELF = NgramOptions(num_speculative_tokens=4, prompt_lookup_max=4, prompt_lookup_min=3)
HeadOptions = EagleOptions | Eagle3Options | MedusaOptions | DFlashOptions | MtpOptions
LookupOptions = NgramOptions | SuffixOptions  # what they look up needs no model
Speculative = LookupOptions | DraftModelOptions | HeadOptions
OPTIONS: dict[str, type[msgspec.Struct]] = {
    "ngram": NgramOptions,
    "suffix": SuffixOptions,
    "draft_model": DraftModelOptions,
    "eagle": EagleOptions,
    "eagle3": Eagle3Options,
    "mtp": MtpOptions,
    "medusa": MedusaOptions,
    "dflash": DFlashOptions,
}
METHODS = tuple(OPTIONS)
SAME = {"mimo_mtp": "mtp"}  # vLLM's names of them by the model
REFUSED = {  # methods of vLLM and SGLang that are not there, and why
    **dict.fromkeys(
        ("deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp", "glm4_moe_mtp", "ernie_mtp", "longcat_flash_mtp"),
        "models with such layers are not served; mtp is for MiMoForCausalLM",
    ),
    "nextn": "the name of it is mtp, and it is for MiMoForCausalLM",
    "ngram_gpu": "drafts are made on a CPU; the name is ngram",
}


def canonical_drafts(value: object) -> object:
    """The option's value as Config has it: None for auto, NONE for none of it, whatever says so in JSON or YAML."""
    if isinstance(value, dict):
        method = value.get("method", "")
        if method is None or (isinstance(method, str) and method.lower() in OFF):
            return NONE
        counted = _counted(value)
        return None if AT_MOST in value and not counted else msgspec.json.encode(counted).decode()
    if value is False:
        return NONE
    if isinstance(value, str):
        plain = value.strip().lower()
        if plain == AUTO:
            return None
        if plain in OFF:
            return NONE
        if any(f'"{key}"' in plain for key in ("method", AT_MOST)):  # of one part or of several
            with contextlib.suppress(msgspec.DecodeError):
                canonical = canonical_drafts(msgspec.json.decode(value))
                return canonical if canonical == NONE or VERIFIED in plain or AT_MOST in plain else value
    return value


def _counted(values: dict[str, Any]) -> dict[str, Any]:
    """The same with the number of drafts by our name. SGLang may say instead how many tokens are verified: one more.
    What --speculative-num-steps says comes first. What llama-server has with drafts or without counts with them alone.
    """
    if AT_MOST in values:
        values = dict(values)
        most = values.pop(AT_MOST)
        if "method" in values or "model" in values:
            values.setdefault("num_speculative_tokens", most)
    verified = values.get(VERIFIED)
    if type(verified) is not int:  # what is no number is refused by its name
        return values
    rest = {key: value for key, value in values.items() if key != VERIFIED}
    return rest | {"num_speculative_tokens": rest.get("num_speculative_tokens", verified - 1)}


def is_by_itself(config: Config) -> bool:
    """Nobody said whether there are drafts. A pipeline's stages make none: who draws is not who begins."""
    return config.speculative_config is None and config.pipeline_parallel_size == 1


def is_wanted(config: Config) -> bool:
    """Somebody said that there are."""
    return config.speculative_config not in (None, NONE)


def read_speculative(config: Config) -> Speculative | None:
    """What is configured; ConfigError names the key that is wrong."""
    text = config.speculative_config
    if text is None or text == NONE:
        return None
    try:
        values: Any = msgspec.json.decode(text)
        if isinstance(values, dict):
            values = _named(values)
        found: Speculative = msgspec.convert(values, Speculative)
    except msgspec.ValidationError as error:
        if trouble := _unknown_method(values) or _unknown_key(values):
            raise ConfigError(f"{OPTION}: {trouble}") from None
        message, _, path = str(error).partition(" - at `$")
        key = path.strip(".`")
        raise ConfigError(f"{OPTION}: {f'{key}: ' if key else ''}{message}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{OPTION}: {text} is no JSON ({error})") from None
    if isinstance(found, NgramOptions) and found.lookup[0] > found.lookup[1]:
        raise ConfigError(
            f"{OPTION}: prompt_lookup_min: {found.lookup[0]} is more than prompt_lookup_max, {found.lookup[1]}"
        )
    return found


def _named(values: dict[str, Any]) -> dict[str, Any]:
    """The same with the method by our name."""
    if "method" not in values and "model" in values:
        return {"method": "draft_model", **values}
    method = values.get("method")
    return values | {"method": SAME[method]} if isinstance(method, str) and method in SAME else values


def _unknown_method(values: Any) -> str:
    """What is wrong with the method, if that is it."""
    if not isinstance(values, dict):
        return ""
    if "method" not in values:
        return f"method is missing, which is one of {', '.join(METHODS)}; with a model it may be left out"
    given = values["method"]
    if given in METHODS or not isinstance(given, str):
        return ""
    if given in REFUSED:
        return f"method: {given}: {REFUSED[given]}"
    return f"method: {given} is none of {', '.join(METHODS)}{nearest(given, METHODS)}"


def _unknown_key(values: Any) -> str:
    """Which key the method does not have, if that is wrong."""
    if not isinstance(values, dict) or values.get("method") not in METHODS:
        return ""
    known = ("method", *OPTIONS[values["method"]].__struct_fields__)
    wrong = next((key for key in values if key not in known), None)
    return "" if wrong is None else f"{wrong} is none of {', '.join(known)}{nearest(wrong, known)}"


def count_drafts(config: Config) -> int:
    """Drafts of a row in a step, at most, as configured."""
    found = read_speculative(config)
    return found.num_speculative_tokens if found else 0


def most_drafts(config: Config) -> int:
    """The same, and those that the server may make by itself."""
    return BY_ITSELF.num_speculative_tokens if is_by_itself(config) else count_drafts(config)
