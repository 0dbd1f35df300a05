"""--eplb-config: a JSON object with vLLM's names: when experts change their workers, by what of the past."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..config import Config, ConfigError
from ..parser import nearest

OPTION = "--eplb-config"


class EplbOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be said."""

    window_size: Annotated[int, Meta(ge=1)] = 1000  # of the last so many steps
    step_interval: Annotated[int, Meta(ge=1)] = 3000
    num_redundant_experts: Literal[0] = 0  # each is with one worker
    log_balancedness: bool = False  # what changes is always logged


def read_eplb(config: Config) -> EplbOptions:
    """What is configured; ConfigError names the key that is wrong."""
    text = config.eplb_config
    if text is None:
        return EplbOptions()
    try:
        values: Any = msgspec.json.decode(text)
        return msgspec.convert(values, EplbOptions)
    except msgspec.ValidationError as error:
        known = EplbOptions.__struct_fields__
        if isinstance(values, dict) and (wrong := next((key for key in values if key not in known), None)):
            raise ConfigError(f"{OPTION}: {wrong} is none of {', '.join(known)}{nearest(wrong, known)}") from None
        raise ConfigError(f"{OPTION}: {error}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{OPTION}: {text} is no JSON ({error})") from None


def check_eplb(config: Config) -> None:
    """ConfigError names the option."""
    if not config.enable_eplb:
        if config.eplb_config is not None:
            raise ConfigError(f"{OPTION} goes with --enable-eplb")
        return
    read_eplb(config)
    if not config.enable_expert_parallel:
        raise ConfigError("--enable-eplb goes with --enable-expert-parallel: experts have to be whole")
    for option, given in (
        ("--device cuda", config.device == "cuda"),
        ("--deterministic", config.deterministic),  # a sum's bits follow from who has which expert
        ("--enable-lora", config.enable_lora),
        ("--pipeline-parallel-size above 1", config.pipeline_parallel_size > 1),
        ("--kv-offload", config.offloads),
    ):
        if given:
            raise ConfigError(f"--enable-eplb: not with {option}")
