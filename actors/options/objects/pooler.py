"""--pooler-config: a JSON object with vLLM's names, for what a model's files do not say, or say otherwise."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..config import Config, ConfigError
from ..parser import nearest

OPTION = "--pooler-config"
METHODS = {"CLS": "cls", "LAST": "last", "MEAN": "mean"}  # by vLLM's names
BY_TOKEN = {"ALL": "all", "STEP": "step"}


class PoolerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be said. None: as the model's files have it."""

    task: str | None = None  # of those that the model has, the one that is served
    pooling_type: str | None = None  # of seq_pooling_type or tok_pooling_type
    seq_pooling_type: Literal["CLS", "LAST", "MEAN"] | None = None
    tok_pooling_type: Literal["ALL", "STEP"] | None = None
    use_activation: bool | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    logit_mean: float | None = None  # is taken away from scores of labels, before what makes probabilities of them
    logit_sigma: float | None = None  # and they are divided by this
    classifier_from_token: list[str] | None = None  # tokens of whose logits a head is made
    step_tag_id: int | None = None  # scores by token are those of this token alone
    returned_token_ids: list[int] | None = None  # likewise a head, each token a label

    enable_chunked_processing: bool = False  # of a text that is too long for the model vectors of its parts are joined
    max_embed_len: int | None = None  # tokens of such a text; None: any number

    @property
    def method(self) -> str | None:
        """How a text's vector is made."""
        given = self.seq_pooling_type or self.pooling_type
        return METHODS.get(given) if given else None

    @property
    def activates(self) -> bool | None:
        """Are vectors normalised, and scores made probabilities?"""
        return self.normalize if self.use_activation is None else self.use_activation


def read_pooler(config: Config) -> PoolerOptions:
    """What is configured; ConfigError names the key that is wrong."""
    text = config.pooler_config
    if text is None:
        return PoolerOptions()
    values: Any = None
    try:
        values = msgspec.json.decode(text)
        found = msgspec.convert(values, PoolerOptions)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{OPTION}: {_trouble(values, str(error))}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{OPTION}: {text} is no JSON ({error})") from None
    if found.pooling_type is not None and found.pooling_type not in (*METHODS, *BY_TOKEN):
        known = (*METHODS, *BY_TOKEN)
        raise ConfigError(f"{OPTION}: pooling_type: {found.pooling_type} is none of {', '.join(known)}")
    if found.logit_sigma == 0:
        raise ConfigError(f"{OPTION}: logit_sigma: scores are divided by it, so that it must not be 0")
    if found.dimensions is not None and found.dimensions < 1:
        raise ConfigError(f"{OPTION}: dimensions: {found.dimensions} must be at least 1")
    if found.max_embed_len is not None:
        if found.max_embed_len < 1:
            raise ConfigError(f"{OPTION}: max_embed_len: {found.max_embed_len} must be at least 1")
        if not found.enable_chunked_processing:
            text = "it goes with enable_chunked_processing: true; --max-model-len is the model's own length"
            raise ConfigError(f"{OPTION}: max_embed_len: {text}")
    return found


def _trouble(values: Any, message: str) -> str:
    known = PoolerOptions.__struct_fields__
    if isinstance(values, dict) and (wrong := next((key for key in values if key not in known), None)):
        return f"{wrong} is none of {', '.join(known)}{nearest(wrong, known)}"
    text, _, path = message.partition(" - at `$.")
    key = path.strip("`")
    return f"{key}: {text}" if key else text
