"""--kv-offload: where KV blocks are kept beside the workers' own memory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .config import Config, ConfigError
from .fields import integer

OPTION = "--kv-offload"
SHAPE = "host:SIZE, folder:PATH:SIZE or both with a comma between them, such as host:4Gi,folder:/var/cache/kv:100Gi"
STAGING_BYTES = 64 << 20  # that blocks of a folder pass through where there is no host tier
LEAST_BYTES = 1 << 20


class KVTiers(NamedTuple):
    """What it says."""

    host_bytes: int = 0
    folder: str | None = None
    folder_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """In the host's memory."""
        return self.host_bytes or STAGING_BYTES


def read_tiers(config: Config) -> KVTiers | None:
    """None without the option; ConfigError says what is wrong with it."""
    if config.kv_offload is None:
        return None
    tiers = KVTiers()
    for part in config.kv_offload.split(","):
        kind, _, rest = part.strip().partition(":")
        if kind == "host" and not tiers.host_bytes:
            tiers = tiers._replace(host_bytes=_size(part, rest))
        elif kind == "folder" and tiers.folder is None and ":" in rest:
            path, _, size = rest.rpartition(":")
            tiers = tiers._replace(folder=_folder(path), folder_bytes=_size(part, size))
        else:
            raise ConfigError(f"{OPTION}: {part.strip()!r} is not what it takes: {SHAPE}")
    return tiers


def shares_folder(config: Config) -> bool:
    """Do other servers find what this one has computed?"""
    tiers = read_tiers(config)
    return tiers is not None and tiers.folder is not None


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
    if tiers.folder is not None and Path(tiers.folder).exists() and not Path(tiers.folder).is_dir():
        raise ConfigError(f"{OPTION}: {tiers.folder} is no folder")


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
