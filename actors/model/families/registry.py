"""All families of models that can be served. A new one is a file beside this and its line here."""

from __future__ import annotations

from .family import Family
from .llama import LLAMA
from .mimo import MIMO
from .mistral import MISTRAL
from .phi3 import PHI3
from .qwen import QWEN2, QWEN3
from .qwen_moe import QWEN3_MOE

FAMILIES = (LLAMA, MIMO, MISTRAL, PHI3, QWEN2, QWEN3, QWEN3_MOE)
BY_ARCHITECTURE: dict[str, Family] = {name: family for family in FAMILIES for name in family.architectures}
