"""--kv-events-config: a JSON object with vLLM's names: whether KV events are told, and where."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..config import Config, ConfigError
from ..parser import nearest

OPTION = "--kv-events-config"
MOST_PORT = 65535
ENDPOINT = re.compile(r"tcp://(.+):([0-9]+)|ipc://.+")


class KVEvents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be said."""

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] | None = None  # zmq, where events are enabled
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    hwm: Annotated[int, Meta(ge=0, le=10_000_000)] = 100_000
    max_queue_size: Annotated[int, Meta(ge=1)] = 100_000  # nothing is queued here but by ZeroMQ
    topic: str = ""
    event_format: Literal["array", "map"] = "array"  # vLLM's newest tells events as maps

    @property
    def publishes(self) -> bool:
        """Is there anything to do?"""
        return self.enable_kv_cache_events and self.publisher != "null"


def read_events(config: Config) -> KVEvents:
    """What is configured; ConfigError names the key that is wrong."""
    text = config.kv_events_config
    if text is None:
        return KVEvents()
    try:
        values: Any = msgspec.json.decode(text)
        return msgspec.convert(values, KVEvents)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{OPTION}: {_trouble(values, str(error))}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{OPTION}: {text} is no JSON ({error})") from None


def check_events(config: Config) -> None:
    """ConfigError for what cannot be, or misses a package."""
    events = read_events(config)
    for key in ("endpoint", "replay_endpoint"):
        given = getattr(events, key)
        if given is not None and not ENDPOINT.fullmatch(given):
            raise ConfigError(f"{OPTION}: {key}: {given} is no address such as tcp://*:5557 or ipc:///tmp/events")
        if given is not None and not given.startswith("ipc://"):
            first = int(given.rpartition(":")[2])
            last = first + config.first_engine + config.local_engines - 1
            if not 1 <= first <= last <= MOST_PORT:
                ports = f"port {first}" if first == last else f"ports {first} to {last}, one for each engine,"
                raise ConfigError(f"{OPTION}: {key}: {ports} cannot be: there are 1 to {MOST_PORT}")
    if events.endpoint == events.replay_endpoint:
        raise ConfigError(f"{OPTION}: replay_endpoint: {events.endpoint} is the endpoint, too; it needs one of its own")
    if not events.publishes:
        return
    if not config.enable_prefix_caching:
        raise ConfigError(f"{OPTION}: enable_kv_cache_events goes with --enable-prefix-caching")
    if find_spec("zmq") is None:
        raise ConfigError(f"{OPTION}: pyzmq is not installed: pip install 'actorserve[events]'")


def address_of(endpoint: str, rank: int) -> str:
    """That of an engine: each has a port of its own, behind the first one's, as in vLLM."""
    if endpoint.startswith("ipc://"):
        return f"{endpoint}_dp{rank}" if rank else endpoint
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + rank}"


def binds(endpoint: str) -> bool:
    """Of the address events are sent to, by vLLM's rule: others are connected to."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")


def _trouble(values: Any, message: str) -> str:
    known = KVEvents.__struct_fields__
    if isinstance(values, dict) and (wrong := next((key for key in values if key not in known), None)):
        return f"{wrong} is none of {', '.join(known)}{nearest(wrong, known)}"
    text, _, path = message.partition(" - at `$.")
    key = path.strip("`")
    return f"{key}: {text}" if key else text
