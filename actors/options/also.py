"""--also MODEL[,option=value…]: further models of one server, each with engines and options of its own. A JSON object
with `model` says the same, whatever its values have in them.

What is about a model holds for the one that it is given with; all else, such as --frontends or time-outs, for all.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from .config import Config, ConfigError
from .fields import LEFT_OUT, default, flag, option_fields
from .lora import read_modules
from .names.given import named_values
from .sources import value_of, warn

OPTION = "--also"
MOST = 63  # further models
OWN = (  # of one model: others do not take them over
    *("served_model_name", "revision", "tokenizer", "tokenizer_mode", "skip_tokenizer_init", "trust_remote_code"),
    *("chat_template", "default_chat_template_kwargs", "chat_template_content_format", "escape_special_tokens"),
    *("tool_call_parser", "reasoning_parser", "enable_auto_tool_choice", "limit_mm_per_prompt", "mm_processor_kwargs"),
    *("reasoning_config", "exclude_tools_when_tool_choice_none", "trust_request_mm_kwargs"),
    *("structured_outputs_config", "enable_prompt_embeds", "enable_return_hidden_states"),
    "io_processor_plugin",
    "load_on_startup",
    *("dtype", "quantization", "model_impl", "runner", "convert", "pooler_config", "deterministic"),
    *("config_format", "load_format", "seed", "generation_config", "override_generation_config", "max_model_len"),
    "kv_cache_memory_bytes",
    *("kv_cache_memory_fraction", "gpu_memory_utilization", "kv_cache_dtype", "enable_prefix_caching"),
    *("max_num_batched_tokens", "max_num_seqs", "tensor_parallel_size", "pipeline_parallel_size"),
    *(
        "enable_expert_parallel",
        "enable_eplb",
        "eplb_config",
        "data_parallel_size",
        "device",
        "enforce_eager",
        "speculative_config",
        "threads",
    ),
    *("hf_overrides", "logits_processors", "logits_processor_pattern", "logits_processor_timeout"),
    "worker_cls",
)
OF_FIRST = (  # of MODEL alone
    *("enable_lora", "lora_modules", "lora_folder", "default_mm_loras", "remote_engines"),
    *("engine_secret_file", "engine_certfile", "engine_ca_certs"),
)
MANY = (  # of the server, and not with several models
    *("distributed_executor_backend", "nnodes", "max_data_parallel_size", "data_parallel_rank", "prefill_engines"),
    "steward",
    *("kv_offload", "kv_events_config", "record"),
    *("tool_parser_plugin", "reasoning_parser_plugin"),
)
NEXT = re.compile(r",\s*(?=[A-Za-z][\w-]*=)")  # where a further option begins: any other comma is a value's


def model_configs(config: Config) -> list[Config]:
    """The options that each model of the server has, the first of which is MODEL."""
    return [config, *(_with(config, *read_also(text)) for text in config.also)]


def read_also(text: str) -> tuple[str, dict[str, object]]:
    """(the model, its options by field name); ConfigError says what is wrong."""
    model, named = _of_object(text) if text.lstrip().startswith("{") else _of_text(text)
    where = f"{OPTION} {model}"
    from .objects.structured_outputs import with_parser

    given = with_parser(named_values(named, where, warn))
    if strange := [name for name in given if name not in OWN]:
        flags = ", ".join(map(flag, strange))
        raise ConfigError(f"{where}: {flags}: an option of the server, not of a further model")
    fields = option_fields()
    return model, {name: value_of(f"{where}: {_plain(name)}", fields[name], value) for name, value in given.items()}


def _of_text(text: str) -> tuple[str, dict[str, str]]:
    model, *parts = NEXT.split(text.strip())
    if not model:
        raise ConfigError(f"{OPTION} {text}: a model comes first: MODEL,option=value")
    if "," in model and not Path(model).expanduser().exists():
        raise ConfigError(f"{OPTION} {text}: options are written behind the model as option=value, with commas between")
    pairs = [part.partition("=") for part in parts]
    named = {name.strip(): value.strip() for name, _, value in pairs}
    if len(named) < len(pairs):
        raise ConfigError(f"{OPTION} {text}: an option is there twice")
    return model, named


def _of_object(text: str) -> tuple[str, dict[str, str]]:
    try:
        given = json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{OPTION} {text}: no JSON object: {error}") from None
    model = given.pop("model", None)
    if not isinstance(model, str) or not model:
        raise ConfigError(f"{OPTION} {text}: its model, a text, is missing")
    return model, written(given)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """ValueError for an object that says something twice, of which a reader would take the last."""
    given = dict(pairs)
    if len(given) < len(pairs):
        raise ValueError(f"{Counter(name for name, _ in pairs).most_common(1)[0][0]} is there twice")
    return given


def written(options: Mapping[str, object]) -> dict[str, str]:
    """The values as they are written on the command line; what is null is left out where that has no word for it."""
    texts = {name: _written(name, value) for name, value in options.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _written(name: str, value: object) -> str | None:
    if value is None:
        words = LEFT_OUT.get(name.replace("-", "_"))
        return words[0] if words else None
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _with(config: Config, model: str, values: dict[str, object]) -> Config:
    fields = option_fields()
    own = {name: default(fields[name]) for name in (*OWN, *OF_FIRST)}
    own["kv_cache_memory_fraction"] = default(fields["kv_cache_memory_fraction"]) / _at_once(config)
    return msgspec.structs.replace(config, **{**own, **_canonical(values), "model": model, "also": []})


def _canonical(values: dict[str, object]) -> dict[str, object]:
    drafts = values.get("speculative_config")
    if drafts is None:
        return values
    from .objects.speculative import canonical_drafts

    return {**values, "speculative_config": canonical_drafts(drafts)}


def without(config: Config, unserved: dict[int, str]) -> Config:
    """The options without the models of these numbers, which are told of with the reasons. Who was the first behind
    MODEL is that where it is among them.
    """
    names = {model_configs(config)[number].served_names()[0]: why for number, why in unserved.items()}
    further = [text for number, text in enumerate(config.also, 1) if number not in unserved]
    kept = msgspec.structs.replace(config, also=further, models_found=config.models_found - len(names), unserved=names)
    if 0 not in unserved:
        return kept
    model, values = read_also(further[0])
    own = {name: default(option_fields()[name]) for name in OWN} | _canonical(values)
    return msgspec.structs.replace(kept, **{**own, "model": model, "also": further[1:]})


def loaded_at_start(config: Config) -> list[int]:
    """The numbers of the models that are."""
    wanted = [number for number, own in enumerate(model_configs(config)) if own.load_on_startup]
    return wanted[: config.models_max or None]


def _at_once(config: Config) -> int:
    """How many models are loaded at once."""
    models = 1 + len(config.also)
    return min(config.models_max or models, models)


def check_also(config: Config) -> None:
    """ConfigError if a model's options, or those of all together, cannot be."""
    if not config.also:
        return
    if len(config.also) > MOST:
        where = "--models-dir and --models-preset" if config.models_found else OPTION
        raise ConfigError(f"{where}: at most {MOST + 1} models are served, not {len(config.also) + 1}")
    fields = option_fields()
    if refused := [name for name in MANY if getattr(config, name) != default(fields[name])]:
        raise ConfigError(f"{flag(refused[0])}: not with {OPTION}, for servers of one model only")
    configs = model_configs(config)
    _check_names(configs)
    from .checks import check_config

    for own in configs[1:]:
        try:
            check_config(own)
        except ConfigError as error:
            raise ConfigError(f"{OPTION} {own.model}: {error}") from None
    shares = [one.kv_cache_memory_fraction for one in configs if one.kv_cache_memory_bytes is None]
    largest = sorted(shares, reverse=True)[: _at_once(config)]
    if sum(largest) >= 1:
        together = " + ".join(f"{share:g}" for share in largest)
        raise ConfigError(f"--kv-cache-memory-fraction: {together} of all models is more memory than there is")


def _check_names(configs: list[Config]) -> None:
    seen = {module.name for module in read_modules(configs[0])}
    for config in configs:
        names = config.served_names()
        if twice := seen.intersection(names):
            name = sorted(twice)[0]
            raise ConfigError(f"{OPTION}: two models are served as {name}; served-model-name=NAME gives one another")
        seen.update(names)


def _plain(name: str) -> str:
    return name.replace("_", "-")
