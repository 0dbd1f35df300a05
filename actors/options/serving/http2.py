"""--http2-port: are the packages there that it needs, and is it a port of its own?"""

from __future__ import annotations

from importlib.util import find_spec

from ..config import Config, ConfigError

NEEDED = ("h2", "h11")


def check_http2(config: Config) -> None:
    """ConfigError if one is missing, or the port is another one of the server's, which may be without clients."""
    if any(find_spec(name) is None for name in NEEDED):
        raise ConfigError("--http2-port: packages for HTTP/2 are not installed: pip install 'actorserve[http2]'")
    for option, taken in (("--port", config.port), ("--grpc-port", config.grpc_port)):
        if config.http2_port == taken:
            raise ConfigError(f"--http2-port: {taken} is {option}, too; HTTP/2 needs one of its own")
    if config.steward is not None or config.headless:
        raise ConfigError("--http2-port: a machine that computes for others serves no clients")
