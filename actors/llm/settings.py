"""The options of an LLM object, and what requests are checked against."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec

from actorserve.http.settings import Settings, media_rules, plugins_of

from ..model.checks.device import draws_on_gpu
from ..model.info import ModelInfo
from ..options.config import Config, ConfigError, make_config
from ..options.names.given import named_values
from ..options.objects.reasoning import closing_text
from ..options.objects.structured_outputs import structured_defaults


def read_options(model: str, options: dict[str, Any]) -> Config:
    """Its Config. ConfigError names what only a server can have. None is as if it was left out: wrappers of vLLM pass
    on what they were not given. A dtype may be torch's.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if "dtype" in options:
        options["dtype"] = str(options["dtype"]).removeprefix("torch.")
    if options.get("frontends", 1) != 1:
        raise ConfigError("--frontends: an LLM object is its only frontend")
    if options.get("also"):
        raise ConfigError("--also: an LLM object has one model; another object has another")
    if options.get("default_mm_loras"):
        raise ConfigError("--default-mm-loras: the lora_request of a prompt says which adapter it has")
    given = named_values(options, "LLM", lambda text: warnings.warn(text, stacklevel=4))
    quiet = {"log_stats_interval": 0.0}  # a script has its progress bar
    return msgspec.structs.replace(make_config({"model": model, **quiet, **given}), warm_up=False)  # asks a frontend


def make_settings(config: Config, model: ModelInfo) -> Settings:
    """Parameters stand for themselves: the model's own defaults are in get_default_sampling_params alone."""
    return Settings(
        served=config.served_names(),
        api_keys=[],
        max_body_bytes=config.max_body_bytes,
        max_model_len=model.max_model_len,
        sampling_defaults={},
        vocab_size=model.vocab_size,
        most_logprobs=config.most_logprobs,
        end_tokens=model.end_tokens,
        created=0,
        has_tokenizer=bool(model.tokenizer_folder),
        pooling=model.pooling,
        encoder=model.encoder,
        media=media_rules(config, model, config.max_body_bytes),
        plugins=plugins_of(config),
        draws_on_cpu=not draws_on_gpu(config, model),
        prompt_embeds=config.enable_prompt_embeds,
        template_kwargs=config.json_object("default_chat_template_kwargs"),
        structured_defaults=structured_defaults(config),
        reasoning_closing=closing_text(config),
    )
