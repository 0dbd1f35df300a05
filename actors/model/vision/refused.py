"""Models that cannot be served, most of which see or hear: what of each is missing, and what can be served in their
place.

Names are those of architectures without their end. tools/docs/models.md has the same tables.
"""

from __future__ import annotations

from typing import Any

from ...options.config import ConfigError
from .texts import KINDS, TEXT_PARTS

END = "ForConditionalGeneration"
OTHER_ENDS = ("ForVisionText2Text", "ForProteinText2Text")
REASONS = {
    "nobody has tried their text part": (*("Granite4Vision", "PerceptionLM", "FastVlm"),),
    "tokens turn by three positions, in layers that are not this server's, or with experts": (
        *("Glm4v", "Glm4vMoe", "Ernie4_5_VLMoe", "PaddleOCRVL", "Qwen2_5Omni", "Qwen3OmniMoe"),
    ),
    "layers look at pictures by cross attention, or through another encoder": (
        *("Mllama", "Blip2", "InstructBlip", "Idefics"),
    ),
    "all of a prompt sees all of it, or an encoder reads it": (
        *("PaliGemma", "Florence2", "Kosmos2", "Pix2Struct", "Udop"),
    ),
    "pictures are tokens, which they write, too": ("Chameleon", "Emu3", "Janus"),
    "sounds are tokens of a codec, one step of which stands beside each token (Whisper's models are served)": (
        "KyutaiSpeechToText",
    ),
    "layers look at proteins by cross attention, through an encoder": ("Evolla",),
    "it writes movements of a robot, and no texts": ("PI0",),
}
OF_GLM = "zai-org/glm-4-9b-chat-hf and its kin, and GLM-4-9B-0414 and newer ones"
PUBLISHED_AGAIN = {  # under whole names, which do not tell what they are; what is served
    "InternVLChatModel": "OpenGVLab/InternVL3-8B-hf, OpenGVLab/InternVL3_5-8B-HF and their kin",
    "ChatGLMModel": OF_GLM,
    "ChatGLMForConditionalGeneration": OF_GLM,
}
# transformers has a class of their text part that reads their checkpoints: it alone is served
TEXTS_BY_TRANSFORMERS = {
    f"Gemma3n{END}": "Gemma3nForCausalLM",
    f"Gemma4Unified{END}": "Gemma4UnifiedForCausalLM",
    f"Qwen3_5{END}": "Qwen3_5ForCausalLM",
    f"Qwen3_5Moe{END}": "Qwen3_5MoeForCausalLM",
    f"Qwen4Exp{END}": "Qwen4ExpForCausalLM",
    f"CohereCompass{END}": "CohereCompassForCausalLM",
    f"Exaone4_5_{END}": "Exaone4ForCausalLM",
    f"HyperCLOVAXVisionV2{END}": "HyperCLOVAXForCausalLM",
    f"KimiK25{END}": "DeepseekV3ForCausalLM",
    f"Kimi_K25{END}": "DeepseekV3ForCausalLM",  # as transformers calls it
    f"Lfm2Vl{END}": "Lfm2ForCausalLM",
    f"Lfm3Vl{END}": "Lfm3ForCausalLM",
    f"MiniCPMV4_6{END}": "Qwen3_5ForCausalLM",
    f"MiniCPMV4_7{END}": "Qwen3_5ForCausalLM",
    f"MiniMaxM3Sparse{END}": "MiniMaxM3VLForCausalLM",
    "NemotronH_Omni_Reasoning_V3": "NemotronHForCausalLM",
    f"Ovis2{END}": "Qwen2ForCausalLM",
    f"QianfanOCR{END}": "Qwen3ForCausalLM",
}
BY_NAME = {f"{name}{end}": reason for reason, names in REASONS.items() for name in names for end in (END, *OTHER_ENDS)}


def check_kind(values: dict[str, Any], trust_remote_code: bool) -> None:
    """ConfigError if config.json is of one of these, and no code beside its weights may compute it."""
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if isinstance(name, str) and (served := PUBLISHED_AGAIN.get(name)) is not None:
        raise ConfigError(
            f"model: {name} cannot be served: only the Python code beside its weights knows it; what its publisher has "
            f"for transformers is: {served}"
        )
    reason = BY_NAME.get(name) if isinstance(name, str) else None
    if reason is not None and not (trust_remote_code and "auto_map" in values):
        raise ConfigError(f"model: {name} cannot be served: {reason}; {instead()}")


def instead() -> str:
    """What of models that see or hear is served."""
    return f"of models that see or hear these are served: {', '.join(name.removesuffix(END) for name in KINDS)}"


def text_parts() -> str:
    """What is said of a model of those whose text part is none that is served."""
    return f"with its pictures or sounds text parts of these kinds are served: {', '.join(TEXT_PARTS)}"
