"""Whether sounds can be decoded here. Leaf: whoever checks options asks, before anything large is imported."""

from __future__ import annotations

import importlib.util

MISSING = "PyAV decodes sounds, and is not installed: pip install 'actorserve[audio]'"


def can_decode() -> bool:
    """Is PyAV installed?"""
    return importlib.util.find_spec("av") is not None
