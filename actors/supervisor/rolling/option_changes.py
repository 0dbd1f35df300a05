"""Which options the successors of running actors may have otherwise, and the configuration that results.

What lays out memory, or says how many actors there are, is the server's for life. What remains is of those kinds that
read it (`changeable` in protocol/kinds.py); the supervisor's own options are not among it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import msgspec

from ...options.config import Config, ConfigError, make_config
from ...protocol.kinds import KINDS

ALL = frozenset({"log_level", "debug"})


def changeable(kinds: Iterable[str]) -> frozenset[str]:
    """The options of which one of these kinds at least may have another value."""
    return ALL.union(*(KINDS[kind].changeable for kind in kinds))


def change(launched: Config, now: Config, kind: str, given: dict[str, Any]) -> Config:
    """What an actor of this kind is told next: of `given` it takes what is its own. ConfigError if that cannot be."""
    mine = changeable([kind])
    config = _with(now, {name: value for name, value in given.items() if name in mine})
    if config.scheme != launched.scheme:
        raise ConfigError("--ssl-certfile: TLS is there from the start or not at all")
    if config.max_num_batched_tokens > launched.max_num_batched_tokens:
        most = launched.max_num_batched_tokens
        raise ConfigError(f"--max-num-batched-tokens: at most {most}, for which the worker was started")
    return config


def check(now: Config, kinds: Iterable[str], given: dict[str, Any]) -> None:
    """ConfigError if something is to change that may not; what stays as it is may be among `given`."""
    kinds = sorted(set(kinds))
    wanted, may = _with(now, given), changeable(kinds)
    refused = [name for name in given if name not in may and not _is_same(getattr(wanted, name), getattr(now, name))]
    if refused:
        names = ", ".join(_flag(name) for name in sorted(refused))
        others = ", ".join(_flag(name) for name in sorted(may))
        reason = "memory is laid out by it, or actors that go on have read it"
        raise ConfigError(f"{names} cannot change in a restart of {', '.join(kinds)}: {reason}. These may: {others}")


def _is_same(wanted: object, now: object) -> bool:
    """Who asks names files as they are called everywhere, and whoever launched the server as they are called here."""
    if wanted == now or not (isinstance(wanted, str) and isinstance(now, str) and wanted.startswith("/")):
        return wanted == now
    return os.path.realpath(wanted) == os.path.realpath(os.path.expanduser(now))


def _with(config: Config, given: dict[str, Any]) -> Config:
    """The keys of a file are the last of `api_key`; they are read again if the file is named again."""
    first = len(config.api_key) - config.keys_of_file
    own, of_file = config.api_key[:first], config.api_key[first:]
    if "api_key_file" in given:
        return make_config(msgspec.to_builtins(config) | {"api_key": own, "keys_of_file": 0} | given)
    keys = {"api_key": [*given.get("api_key", own), *of_file], "api_key_file": None}
    return msgspec.structs.replace(
        make_config(msgspec.to_builtins(config) | given | keys), api_key_file=config.api_key_file
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
