"""--otlp-traces-endpoint: is it an address, and are the packages there that speak to it? Leaf module by config.py."""

from __future__ import annotations

import os
from importlib.util import find_spec
from urllib.parse import urlsplit

PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"  # as all exporters read it
HTTP, GRPC = "opentelemetry.exporter.otlp.proto.http", "opentelemetry.exporter.otlp.proto.grpc"
EXPORTERS = "trace_exporter"  # the module of either that has the one for traces
HTTP_PATH = "/v1/traces"


def uses_grpc(url: str) -> bool:
    """By the address, or by the environment."""
    return urlsplit(url).scheme == "grpc" or os.environ.get(PROTOCOL) == "grpc"


def with_path(url: str) -> str:
    """A collector's address with the path of traces, where it names none."""
    return f"{url.rstrip('/')}{HTTP_PATH}" if urlsplit(url).path in ("", "/") else url


def trouble_with(url: str) -> str | None:
    """Why no spans could be sent there, if that can be told now."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "grpc") or not parts.hostname:
        return f"{url} is no address such as http://localhost:4318/v1/traces or grpc://localhost:4317"
    wanted = GRPC if uses_grpc(url) else HTTP
    if _is_there("opentelemetry.sdk.trace") and _is_there(wanted):
        return None
    package = wanted.replace(".", "-")
    return f"packages for traces are not installed: pip install 'actorserve[otlp]' (opentelemetry-sdk, {package})"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False
