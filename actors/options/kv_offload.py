"""--kv-offload: where KV blocks are kept beside the workers' own memory, and who gives them to whom."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

from .config import Config, ConfigError
from .fields import integer

OPTION = "--kv-offload"
SHAPE = (
    "host:SIZE, folder:PATH:SIZE, plugin:MODULE:NAME, tcp:HOST:PORT, peer:HOST:PORT, nixl, or several with commas "
    "between them, such as host:4Gi,folder:/var/cache/kv:100Gi"
)
NIXL_NEEDED = "nixl is not installed: pip install 'actorserve[nixl]'"
PLUGINS = "actorserve.kv_connectors"  # group of entry points
STAGING_BYTES = 64 << 20  # that blocks of a folder pass through where there is no host tier
LEAST_BYTES = 1 << 20


class KVTiers(NamedTuple):
    """What it says."""

    host_bytes: int = 0
    folder: str | None = None
    folder_bytes: int = 0
    listen: str = ""  # host:port where other servers fetch blocks from this one
    peers: tuple[str, ...] = ()  # host:port of servers that are asked for blocks
    networks: tuple[str, ...] = ()  # of others that a request may name
    nixl: bool = False  # where the other side has it, too, it carries the blocks
    plugin: str = ""  # MODULE:NAME of others' code, or MODULE:NAME:ARGUMENT

    @property
    def memory_bytes(self) -> int:
        """In the host's memory."""
        return self.host_bytes or STAGING_BYTES

    @property
    def pulls(self) -> bool:
        """May blocks come from other servers?"""
        return bool(self.peers or self.networks)

    @property
    def shares(self) -> bool:
        """Does another server find what this one has computed, or this one what that has?"""
        return bool(self.folder is not None or self.listen or self.pulls or self.plugin)

    def allows(self, host: str, port: int) -> bool:
        """May a request name this server as the one that has its blocks?"""
        if f"[{host}]:{port}" in self.peers or f"{host}:{port}" in self.peers:
            return True
        import ipaddress

        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in ipaddress.ip_network(network) for network in self.networks)


def read_tiers(config: Config) -> KVTiers | None:
    """None without the option; ConfigError says what is wrong with it."""
    if config.kv_offload is None:
        return None
    tiers = KVTiers()
    for part in config.kv_offload.split(","):
        tiers = _with(tiers, part.strip())
    return tiers


def _with(tiers: KVTiers, part: str) -> KVTiers:
    """And what this part says; each but peer is there once."""
    kind, _, rest = part.partition(":")
    if kind == "host" and not tiers.host_bytes:
        return tiers._replace(host_bytes=_size(part, rest))
    if kind == "folder" and tiers.folder is None and ":" in rest:
        path, _, size = rest.rpartition(":")
        return tiers._replace(folder=_folder(path), folder_bytes=_size(part, size))
    if kind == "tcp" and not tiers.listen:
        _address(rest, f"{OPTION}: tcp", least=0)
        return tiers._replace(listen=rest)
    if kind == "peer" and "/" in rest:
        return tiers._replace(networks=(*tiers.networks, _network(rest)))
    if kind == "peer":
        _address(rest, f"{OPTION}: peer", least=1)
        return tiers._replace(peers=(*tiers.peers, rest))
    if kind == "plugin" and rest and not tiers.plugin:
        return tiers._replace(plugin=rest)
    if part == "nixl":
        return tiers._replace(nixl=True)
    raise ConfigError(f"{OPTION}: {part!r} is not what it takes: {SHAPE}")


def check_tiers(config: Config) -> None:
    """ConfigError for what cannot be, alone or with other options."""
    tiers = read_tiers(config)
    if tiers is None:
        return
    if not config.enable_prefix_caching:
        raise ConfigError(f"{OPTION} keeps what the prefix cache finds; it goes with --enable-prefix-caching")
    if config.record is not None:
        raise ConfigError("--record: it keeps what a scheduler acts on, but no KV blocks; leave --kv-offload out")
    if config.device == "cuda":
        raise ConfigError(f"{OPTION}: the KV memory of a GPU is not offloaded yet; it goes with --device cpu")
    _check_carriers(config, tiers)
    if tiers.folder is not None and Path(tiers.folder).exists() and not Path(tiers.folder).is_dir():
        raise ConfigError(f"{OPTION}: {tiers.folder} is no folder")


def _check_carriers(config: Config, tiers: KVTiers) -> None:
    """Between servers."""
    if tiers.listen or tiers.pulls:
        from .objects.remote import read_engine_secret

        read_engine_secret(config)
    elif tiers.nixl:
        raise ConfigError(f"{OPTION}: nixl carries blocks between servers; it goes with tcp:HOST:PORT, or with peer")
    if tiers.nixl and importlib.util.find_spec("nixl") is None:
        raise ConfigError(f"{OPTION}: {NIXL_NEEDED}")
    if tiers.plugin:
        from .plugins import check_plugin

        check_plugin(f"{OPTION}: plugin", plugin_parts(tiers.plugin)[0], PLUGINS)


def plugin_parts(text: str) -> tuple[str, str]:
    """(what load_plugin takes, the argument) of MODULE:NAME:ARGUMENT, or of an entry point's name alone."""
    module, _, rest = text.partition(":")
    name, _, argument = rest.partition(":")
    return (f"{module}:{name}" if name else module), argument


def _address(text: str, option: str, least: int) -> None:
    from .objects.remote import read_address  # ssl comes with it, which few need

    read_address(text, option, least)


def _network(text: str) -> str:
    import ipaddress

    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ConfigError(f"{OPTION}: peer:{text}: {error}") from None


def _folder(path: str) -> str:
    if not path:
        raise ConfigError(f"{OPTION}: folder needs a path: {SHAPE}")
    return str(Path(path).expanduser().absolute())


def _size(part: str, text: str) -> int:
    try:
        size = integer(text)
    except ValueError:
        raise ConfigError(f"{OPTION}: {part.strip()!r}: {text!r} is no size, such as 512Mi or 4Gi") from None
    if size < LEAST_BYTES:
        raise ConfigError(f"{OPTION}: {part.strip()!r}: at least {LEAST_BYTES >> 20}Mi are needed")
    return size
