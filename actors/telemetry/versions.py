"""Versions of this server and of what it is made of."""

from __future__ import annotations

import sys

import actorserve

PACKAGES = (
    *("torch", "triton", "transformers", "tokenizers", "safetensors", "huggingface_hub", "msgspec", "aiohttp"),
    *("uvloop", "jinja2", "numpy", "llguidance", "posix-ipc", "prometheus-client"),
)


def versions() -> dict[str, str]:
    """By name; none of them is imported for it."""
    import importlib.metadata  # with the package email: most processes never ask

    found = {"actorserve": actorserve.__version__, "python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
