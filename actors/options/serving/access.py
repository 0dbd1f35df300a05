"""The options that say who is let in, and where: keys, sites whose pages may use the server from a browser, paths."""

from __future__ import annotations

import os
import re

import msgspec

from ...accounts.key_file import KeyFileError, read_key_file
from ..config import Config, ConfigError

SOCKET = ".sock"  # so a path ends that llama-server takes for an address
ALLOWED = ("allowed_origins", "allowed_methods", "allowed_headers")


def with_access(config: Config) -> Config:
    """The same with the keys of its file, and its lists as lists; ConfigError names the option that cannot be."""
    if config.api_key_file is not None:
        keys = _read_keys(config.api_key_file)
        config = msgspec.structs.replace(config, api_key=config.api_key + keys, keys_of_file=len(keys))
    _check_keys(config)
    if config.key_file is not None:
        try:
            read_key_file(config.key_file, config.api_key + ([config.admin_api_key] if config.admin_api_key else []))
        except KeyFileError as error:
            raise ConfigError(f"--key-file: {error}") from None
    config = msgspec.structs.replace(config, **{name: _unpacked(name, getattr(config, name)) for name in ALLOWED})
    _check_origins(config.allowed_origins)
    if config.root_path and not re.fullmatch(r"(/[\w.~-]+)+", config.root_path, re.ASCII):
        raise ConfigError(f"--root-path: {config.root_path} is no path such as /llm")
    if config.allow_credentials and "*" in config.allowed_origins:
        raise ConfigError("--allow-credentials: browsers allow them to named sites alone; give --allowed-origins")
    return config


def with_socket(values: dict[str, object]) -> dict[str, object]:
    """The same with a Unix socket among the addresses of --host as --uds; ConfigError where there are several."""
    host, uds = values.get("host"), values.get("uds")
    addresses = [one.strip() for one in host.split(",")] if isinstance(host, str) else []
    sockets = {os.path.expanduser(one) for one in addresses if one.endswith(SOCKET)}
    if not sockets:
        return values
    if len(all_of_them := sorted(sockets | ({uds} if isinstance(uds, str) else set()))) > 1:
        raise ConfigError(f"--host: {' and '.join(all_of_them)}: at one Unix socket alone can a server be reached")
    others = [one for one in addresses if not one.endswith(SOCKET)]
    left = {name: value for name, value in values.items() if name != "host" or others}
    return left | {"uds": all_of_them[0]} | ({"host": ",".join(others)} if others else {})


def _read_keys(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"--api-key-file: {path} cannot be read: {reason}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"--api-key-file: {path} holds no key")
    return keys


def _check_keys(config: Config) -> None:
    """No key that no header can carry, and none that is no secret. Keys are not named: messages are seen."""
    admin = [config.admin_api_key] if config.admin_api_key is not None else []
    for option, keys in (("--api-key", config.api_key), ("--admin-api-key", admin)):
        if any(not key or key != key.strip() or not key.isprintable() for key in keys):
            raise ConfigError(
                f"{option}: a key must not be empty, begin or end with a space, or hold control characters"
            )
    if config.prefix_cache_per_client and not config.api_key and config.key_file is None:
        raise ConfigError("--prefix-cache-per-client: there are no keys; give --api-key, --api-key-file or --key-file")
    if config.admin_api_key in config.api_key:
        raise ConfigError("--admin-api-key: this is a key of --api-key, too, so that every client would have it")


def _unpacked(name: str, items: list[str]) -> list[str]:
    """A list may be written as JSON, too, as vLLM has it: `'["*"]'`."""
    if len(items) != 1 or not items[0].startswith("["):
        return items
    try:
        return msgspec.json.decode(items[0], type=list[str])
    except msgspec.DecodeError:
        raise ConfigError(f"--{name.replace('_', '-')}: {items[0]} is no list of texts") from None


def _check_origins(origins: list[str]) -> None:
    """As browsers send them, since they are compared with that."""
    for origin in origins:
        if not re.fullmatch(r"\*|null|localhost|[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+", origin):
            text = (
                "is neither *, localhost nor the beginning of an address without path, such as https://chat.example.com"
            )
            raise ConfigError(f"--allowed-origins: {origin} {text}")
