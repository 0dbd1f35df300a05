"""The options of `actorserve route`."""

from __future__ import annotations

import argparse
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ..options.config import ConfigError
from ..options.serving.tls import load_certificate
from .names import PREFIX

MIB = 1 << 20
MOST_PORT = (1 << 16) - 1


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
    names: list[str] = field(default_factory=list)  # dns+http://name:port: each stands for all addresses that it has
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    replica_ca_certs: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All of them."""
    add = parser.add_argument
    text = "addresses of servers with the same model, such as http://10.0.0.1:8000 http://10.0.0.2:8000, or by commas; "
    text += "dns+http://NAME:PORT are all addresses that the name has, looked up every 5 s"
    add("--replicas", required=True, nargs="+", action="extend", metavar="URL", help=text)
    text = (
        "a PEM file with the certificate, and those between it and the authority: clients use TLS; SIGHUP reads it anew"
    )
    add("--ssl-certfile", metavar="FILE", help=text)
    add("--ssl-keyfile", metavar="FILE", help="with the certificate's key, if that is not in the same file")
    text = "a PEM file with authorities, in the place of the system's, of replicas whose addresses are https://"
    add("--replica-ca-certs", metavar="FILE", help=text)
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
    _check_files(arguments)
    if len(set(replicas)) < len(replicas):
        raise ConfigError(f"--replicas: each address once, not {' '.join(arguments.replicas)}")
    for name in ("probe_interval", "detection_limit", "connect_timeout"):
        if not getattr(arguments, name) > 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be more than 0")
    least = ("retries", "patience", "breaker_seconds", "shutdown_timeout", "port")
    for name in least:
        if not getattr(arguments, name) >= 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 0")
    if arguments.port > MOST_PORT:
        raise ConfigError(f"--port must be at most {MOST_PORT}")
    for name in ("breaker_errors", "max_body_mib", "max_held_mib"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")
    if not arguments.detection_limit > arguments.probe_interval:
        raise ConfigError("--detection-limit must be more than --probe-interval")
    if arguments.api_key and arguments.admin_api_key in arguments.api_key:
        raise ConfigError("--admin-api-key must be another key than those of --api-key")
    same = {name: getattr(arguments, name) for name in RouteSettings.__dataclass_fields__ if hasattr(arguments, name)}
    names = [text for text in replicas if text.startswith(PREFIX)]
    same |= {
        "replicas": [text for text in replicas if text not in names],
        "names": names,
        "api_keys": arguments.api_key,
    }
    held = {"max_body_bytes": arguments.max_body_mib * MIB, "max_held_bytes": arguments.max_held_mib * MIB}
    return RouteSettings(**same, **held)


def serving_tls(settings: RouteSettings) -> ssl.SSLContext | None:
    """For clients; None without TLS."""
    if settings.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, settings.ssl_certfile, settings.ssl_keyfile)
    return context


def replica_tls(settings: RouteSettings) -> ssl.SSLContext | bool:
    """For replicas; True: as the system has it."""
    return settings.replica_ca_certs is None or ssl.create_default_context(cafile=settings.replica_ca_certs)


def _check_files(arguments: argparse.Namespace) -> None:
    if arguments.ssl_keyfile and not arguments.ssl_certfile:
        raise ConfigError("--ssl-keyfile goes with --ssl-certfile")
    for option, load in (("ssl_certfile", serving_tls), ("replica_ca_certs", replica_tls)):
        try:
            load(arguments)  # type: ignore[arg-type]
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"--{option.replace('_', '-')}: {getattr(arguments, option)}: {reason}") from None


def _address(text: str) -> str:
    try:
        parts = urlsplit(text.removeprefix(PREFIX))
        good = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
        good = good and (parts.port is None or parts.port > 0)
        good = good and (parts.scheme == "http" or not text.startswith(PREFIX))  # certificates are of names
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"--replicas: {text or 'an empty one'} is no address such as http://10.0.0.1:8000 or dns+http://name:8000"
        )
    return text.rstrip("/")
