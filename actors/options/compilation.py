"""vLLM's --compilation-config, of which here only that means something which is about CUDA graphs.

Nothing is compiled by torch. Which batch sizes have graphs, and that there are none, are options here as well.
Leaf module, as other_servers.py is.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

COMPILES = (
    "nothing is compiled; of this only level 0, cudagraph_mode NONE and cudagraph_capture_sizes say something here, as "
    "--enforce-eager and --cudagraph-capture-sizes do"
)
OFF = "none"  # of cudagraph_mode
GRAPHS = frozenset({"cudagraph_mode", "use_cudagraph", "cudagraph_capture_sizes"})


def read_compilation(name: str, value: object) -> tuple[dict[str, object], list[str]]:
    """(our fields that it sets, its keys that say nothing here) of `-O0`, `-cc.KEY` or `--compilation-config` with its
    value, which may be a text of JSON. ValueError says what is wrong with it.
    """
    option, _, path = name.partition(".")
    if option.startswith("-O") and option[2:].isdecimal():
        value = int(option[2:])
    settings = {path.partition(".")[0].rstrip("+"): _plain(value, True)} if path else _plain(value, False)
    if isinstance(settings, int) and not isinstance(settings, bool) and settings >= 0:
        return ({"enforce_eager": True}, []) if settings == 0 else ({}, [])
    if settings is None:
        return {}, []
    if not isinstance(settings, Mapping):
        raise ValueError(f"{value!s:.80} is neither a level, from 0 on, nor a JSON object")
    return _fields(settings), sorted(str(key) for key in settings if key not in GRAPHS)


def _fields(settings: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    mode = settings.get("cudagraph_mode")
    if settings.get("use_cudagraph") is False or mode == 0 or (isinstance(mode, str) and mode.lower() == OFF):
        found["enforce_eager"] = True
    if sizes := settings.get("cudagraph_capture_sizes"):
        if not isinstance(sizes, list) or not all(type(one) is int and one > 0 for one in sizes):
            raise ValueError(f"cudagraph_capture_sizes: {sizes!s:.80} is no list of batch sizes")
        found["cudagraph_capture_sizes"] = sizes
    return found


def _plain(value: object, texts: bool) -> object:
    """Of a text that is JSON what it says; any other is itself, where `texts` may stand."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        if texts:
            return value
        raise ValueError(f"{value:.80} is neither a level, from 0 on, nor a JSON object") from None
