"""--tool-server: which MCP servers there are, and how each is reached."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from ..config import Config, ConfigError

OPTION = "--tool-server"
DEMO = "demo"
PATH = "/mcp"  # where an MCP server of HTTP stands by custom
LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):(\d{1,5})")


class ToolServer(msgspec.Struct, frozen=True, kw_only=True):
    """One MCP server, as files of `mcpServers` describe it: a command that speaks over its pipes, or a URL."""

    command: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = {}
    demo: bool = False


class _File(msgspec.Struct):
    servers: dict[str, ToolServer] = msgspec.field(name="mcpServers")


def tool_servers(config: Config) -> dict[str, ToolServer]:
    """By the labels that requests name them by; ConfigError says what is wrong."""
    found: dict[str, ToolServer] = {}
    for given in (part.strip() for one in config.tool_server for part in one.split(",")):
        for label, server in _read(given).items():
            if label in found:
                raise ConfigError(f"{OPTION}: two servers are called {label!r}; a file gives each a name of its own")
            found[label] = server
    return found


def check_tools(config: Config) -> None:
    """ConfigError if one cannot be, or the package is not there that speaks to them."""
    tool_servers(config)
    if find_spec("mcp") is None:
        name = OPTION if config.tool_server else "--allowed-tool-domains"
        raise ConfigError(f"{name}: the package for MCP is not installed: pip install 'actorserve[mcp]'")


def is_url(text: str) -> bool:
    """Is it one of HTTP, with a host?"""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def _read(given: str) -> dict[str, ToolServer]:
    if given == DEMO:
        return {DEMO: ToolServer(demo=True)}
    if given.endswith(".json"):
        return _read_file(given)
    if is_url(given):
        return {_label(urlsplit(given).hostname or ""): ToolServer(url=given)}
    if found := HOST_AND_PORT.fullmatch(given):
        return {_label(found[1]): ToolServer(url=f"http://{given}{PATH}")}
    raise ConfigError(f"{OPTION}: {given!r} is neither demo, HOST:PORT, a URL of http or https, nor a file .json")


def _label(host: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", host.strip("[]"))[:64]


def _read_file(path: str) -> dict[str, ToolServer]:
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=_File).servers
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{OPTION}: {path}: {error}") from None
    for label, server in found.items():
        if not LABEL.fullmatch(label):
            raise ConfigError(f"{OPTION}: {path}: {label!r} is no name: up to 64 letters, digits, _ and -")
        if bool(server.command) == bool(server.url):
            raise ConfigError(f"{OPTION}: {path}: {label}: it has a command or a url, and one of them alone")
        if server.url and not is_url(server.url):
            raise ConfigError(f"{OPTION}: {path}: {label}: {server.url} is no URL of http or https")
    return {label: msgspec.structs.replace(server, demo=False) for label, server in found.items()}
