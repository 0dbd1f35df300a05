"""All families of models that can be served. A new one is a file beside this and its line here."""

from __future__ import annotations

from .deepseek import DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE
from .dense.gemma import GEMMA2, GEMMA3
from .dense.glm4 import GLM4
from .dense.granite import GRANITE, GRANITE4
from .dense.internlm2 import INTERNLM2
from .dense.llama import LLAMA
from .dense.mimo import MIMO
from .dense.olmo import OLMO2, OLMO3
from .dense.phi3 import PHI3
from .dense.qwen import QWEN2, QWEN3
from .dense.seed_oss import SEED_OSS
from .dense.smollm3 import SMOLLM3
from .family import Family
from .gpt_oss import GPT_OSS
from .llama4 import LLAMA4
from .mistral import MINISTRAL3, MISTRAL, MIXTRAL
from .mistral4 import MISTRAL4
from .qwen_moe import QWEN2_MOE, QWEN3_MOE
from .routed import BAILING, BAILING_V2, GLM4_MOE
from .sparse import DEEPSEEK_V32, GLM_MOE_DSA

FAMILIES = (
    LLAMA,
    LLAMA4,
    MIMO,
    MISTRAL,
    MINISTRAL3,
    MISTRAL4,
    MIXTRAL,
    PHI3,
    QWEN2,
    QWEN3,
    QWEN2_MOE,
    QWEN3_MOE,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    GEMMA2,
    GEMMA3,
    GLM4,
    GLM4_MOE,
    GLM4_MOE_LITE,
    GLM_MOE_DSA,
    BAILING,
    BAILING_V2,
    GPT_OSS,
    GRANITE,
    GRANITE4,
    INTERNLM2,
    OLMO2,
    OLMO3,
    SEED_OSS,
    SMOLLM3,
)
BY_ARCHITECTURE: dict[str, Family] = {name: family for family in FAMILIES for name in family.architectures}
