"""--grpc-port: are the packages there that it needs?"""

from __future__ import annotations

from importlib.util import find_spec

from ..config import Config, ConfigError

NEEDED = ("grpc", "grpc_health", "grpc_reflection")


def check_grpc(config: Config) -> None:
    """ConfigError if one is missing, or the port is the server's other one."""
    if any(find_spec(name) is None for name in NEEDED):
        raise ConfigError("--grpc-port: packages for gRPC are not installed: pip install 'actorserve[grpc]'")
    if config.grpc_port == config.port:
        raise ConfigError(f"--grpc-port: {config.grpc_port} is --port, too; gRPC needs one of its own")
