"""What a request says to logits processors: vllm_xargs for those of --logits-processors, and names of others."""

from __future__ import annotations

import re

import msgspec

from actorserve.actors.protocol.request import NamedProcessor, PluginRequest

from ...errors import bad_request
from ...openai.schemas import GenerationFields
from ...settings import LogitsPlugins

MOST = 16
FIELD = "logits_processors"


def plugin_request(request: GenerationFields, plugins: LogitsPlugins | None) -> bytes:
    """JSON for the worker; nothing where there is nobody to read it. 400 for names that are not allowed."""
    named = [NamedProcessor(one) if isinstance(one, str) else one for one in request.logits_processors or ()]
    pattern = plugins.pattern if plugins is not None else None
    if named and pattern is None:
        raise bad_request(f"{FIELD} is not supported: the server has no --logits-processor-pattern.", FIELD)
    if len(named) > MOST:
        raise bad_request(f"{FIELD}: at most {MOST} are taken.", FIELD)
    for index, one in enumerate(named):
        if "." not in one.qualname or not re.fullmatch(pattern or "", one.qualname):
            text = f"{FIELD}[{index}]: {one.qualname!r:.200} does not match --logits-processor-pattern."
            raise bad_request(text, f"{FIELD}[{index}]")
    if plugins is None or not (named or request.vllm_xargs):
        return b""
    return msgspec.json.encode(PluginRequest(request.vllm_xargs, named))


def plugin_names(request: GenerationFields, plugins: LogitsPlugins | None) -> list[str]:
    """Of those that may change its logits."""
    own = [one if isinstance(one, str) else one.qualname for one in request.logits_processors or ()]
    return [*(plugins.names if plugins is not None else ()), *own]
