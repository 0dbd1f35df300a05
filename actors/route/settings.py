"""The options of `actorserve route`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..options.config import ConfigError

MIB = 1 << 20


@dataclass(frozen=True)
class RouteSettings:
    """As they were given, checked."""

    replicas: list[str]  # addresses, without a slash at the end
    host: str
    port: int
    api_keys: list[str]
    admin_api_key: str | None
    replica_api_key: str | None
    probe_interval: float
    detection_limit: float
    connect_timeout: float
    retries: int
    patience: float
    breaker_errors: int
    breaker_seconds: float
    shutdown_timeout: float
    max_body_bytes: int
    max_held_bytes: int
    log_level: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    add = parser.add_argument
    text = "addresses of servers with the same model, such as http://10.0.0.1:8000 http://10.0.0.2:8000, or by commas"
    add("--replicas", required=True, nargs="+", action="extend", metavar="URL", help=text)
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=int, default=8080, help="port to listen on; 0: any that is free (8080)")
    text = "a key that clients have to send; may be given several times. Without one theirs go on to the replicas"
    add("--api-key", action="append", default=[], metavar="KEY", help=text)
    add("--admin-api-key", metavar="KEY", help="opens POST /drain")
    add("--replica-api-key", metavar="KEY", help="is sent to the replicas in the place of the client's")
    add("--probe-interval", type=float, default=0.5, metavar="SECONDS", help="between two looks at a replica (0.5)")
    text = "a replica that has answered no probe for so long is lost, and its requests go on elsewhere (3)"
    add("--detection-limit", type=float, default=3.0, metavar="SECONDS", help=text)
    add("--connect-timeout", type=float, default=2.0, metavar="SECONDS", help="for a connection to a replica (2)")
    text = "how often a request is sent again, or goes on elsewhere, when its replica fails (3)"
    add("--retries", type=int, default=3, metavar="N", help=text)
    text = "how long a request waits where no replica can take it, before it gets 503 (10)"
    add("--patience", type=float, default=10.0, metavar="SECONDS", help=text)
    text = "a replica that has answered so many requests in a row with 500 gets none for --breaker-seconds (5)"
    add("--breaker-errors", type=int, default=5, metavar="N", help=text)
    add("--breaker-seconds", type=float, default=5.0, metavar="SECONDS", help="see --breaker-errors (5)")
    text = "what running requests get when the router is to end (60)"
    add("--shutdown-timeout", type=float, default=60.0, metavar="SECONDS", help=text)
    add("--max-body-mib", type=int, default=64, metavar="MIB", help="of one request's body (64)")
    text = "of all bodies and whole answers that are held to be sent again; more are refused with 503 (1024)"
    add("--max-held-mib", type=int, default=1024, metavar="MIB", help=text)
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"), help="(info)")


def read_settings(arguments: argparse.Namespace) -> RouteSettings:
    """ConfigError names the option that cannot be."""
    replicas = [_address(text.strip()) for word in arguments.replicas for text in word.split(",")]
    if len(set(replicas)) < len(replicas):
        raise ConfigError(f"--replicas: each address once, not {' '.join(arguments.replicas)}")
    for name in ("probe_interval", "detection_limit", "connect_timeout"):
        if getattr(arguments, name) <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be more than 0")
    least = ("retries", "patience", "breaker_seconds", "shutdown_timeout", "port")
    for name in least:
        if getattr(arguments, name) < 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 0")
    for name in ("breaker_errors", "max_body_mib", "max_held_mib"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")
    if arguments.detection_limit <= arguments.probe_interval:
        raise ConfigError("--detection-limit must be more than --probe-interval")
    if arguments.api_key and arguments.admin_api_key in arguments.api_key:
        raise ConfigError("--admin-api-key must be another key than those of --api-key")
    same = {name: getattr(arguments, name) for name in RouteSettings.__dataclass_fields__ if hasattr(arguments, name)}
    same |= {"replicas": replicas, "api_keys": arguments.api_key}
    held = {"max_body_bytes": arguments.max_body_mib * MIB, "max_held_bytes": arguments.max_held_mib * MIB}
    return RouteSettings(**same, **held)


def _address(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
        good = good and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"--replicas: {text or 'an empty one'} is no address such as http://10.0.0.1:8000")
    return text.rstrip("/")
