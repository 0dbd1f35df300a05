"""Tiny random models that see pictures, as transformers writes them: config, weights, processor, tokenizer, template.

A family's folder has all that a hub's has: `model` is config.json with weights, the processor's files are those of the
family's own classes with small pictures, the tokenizer knows the family's special tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ..checkpoints import BASE, GEMMA, GEMMA3_ROPES, MINISTRAL3_ROPE, MLA, VOCABULARY, write_tokenizer

WORDS = VOCABULARY + 32  # the text's vocabulary, with what the family adds to it
QWEN_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEXT: dict[str, Any] = {**BASE, "vocab_size": WORDS}
MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
CLIP: dict[str, Any] = {
    **{"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3},
    **{"num_attention_heads": 2, "image_size": 24, "patch_size": 8, "projection_dim": 32},
}
QWEN_VIT: dict[str, Any] = {
    **{"depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4, "out_hidden_size": 64},
    **{"spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3},
}
SIGLIP: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"patch_size": 4},
}
NORMAL = {
    **{"do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "resample": 3},
    **{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 1 / 255},
}
QWEN_PIXELS = {
    **{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2},
    **{"size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64}},
}
PIXTRAL_MARKS = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
CLIP_PIXELS = {"do_center_crop": True, "size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}


class Family(NamedTuple):
    """How its tiny model is made; numbers of config fields that name a token stand as the token."""

    config: dict[str, Any]  # of transformers' config class, with text_config and vision_config
    text: dict[str, Any]
    vision: dict[str, Any]
    marks: tuple[str, ...]  # its special tokens
    named: dict[str, str]  # fields of config that hold a token's id
    place: str  # what the chat template writes for a picture
    processor: str  # its class
    pixels: dict[str, Any]  # preprocessor_config.json
    tokenizer: dict[str, str] = {}  # attributes of the tokenizer that the processor reads
    options: dict[str, Any] = {}  # processor_config.json
    film: str = ""  # what the chat template writes for a film
    sound: str = ""  # and for a sound
    seed: int = 0  # of the weights: one with which no choice of a layer is so narrow that rounding turns it


def _qwen(kind: str, processor: str, text: dict[str, Any], vision: dict[str, Any], pixels: dict[str, Any]) -> Family:
    named = dict(
        zip(
            ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id"),
            QWEN_MARKS,
            strict=True,
        )
    )
    place = "<|vision_start|><|image_pad|><|vision_end|>"
    own = {"model_type": kind}, text, vision, QWEN_MARKS, named, place, processor, {**QWEN_PIXELS, **pixels}
    return Family(*own, film=place.replace("image", "video"))


FAMILIES: dict[str, Family] = {
    "qwen2_vl": _qwen(
        "qwen2_vl",
        "Qwen2VLProcessor",
        {**TEXT, "rope_parameters": MROPE},
        {"depth": 3, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2},
        {},
    ),
    "qwen2_5_vl": _qwen(
        "qwen2_5_vl",
        "Qwen2_5_VLProcessor",
        {**TEXT, "rope_parameters": MROPE},
        {**QWEN_VIT, "window_size": 16, "fullatt_block_indexes": [1]},
        {},
    ),
    "qwen3_vl": _qwen(
        "qwen3_vl",
        "Qwen3VLProcessor",
        {**TEXT, "head_dim": 16, "rope_parameters": {**MROPE, "mrope_interleaved": True}},
        {**QWEN_VIT, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
        {"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    ),
    "gemma3": Family(
        {"model_type": "gemma3", "mm_tokens_per_image": 9},
        {**TEXT, **GEMMA, "num_hidden_layers": 6, "sliding_window": 24, "rope_parameters": GEMMA3_ROPES},
        {**SIGLIP, "image_size": 24, "vision_use_head": False},
        ("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        {
            **{"boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>"},
            **{"image_token_index": "<image_soft_token>"},
        },
        "<start_of_image>",
        "Gemma3Processor",
        {**NORMAL, "image_processor_type": "Gemma3ImageProcessor", "size": {"height": 24, "width": 24}},
        {
            **{"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
            **{"image_token": "<image_soft_token>"},
        },
        {"image_seq_length": 9},
    ),
    "llava": Family(
        {"model_type": "llava", "image_seq_length": 9},
        {**TEXT, "model_type": "llama"},
        CLIP,
        ("<image>",),
        {"image_token_index": "<image>"},
        "<image>\n",
        "LlavaProcessor",
        {**NORMAL, **CLIP_PIXELS, "image_processor_type": "CLIPImageProcessor"},
        {},
        {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    "llava_next": Family(
        {"model_type": "llava_next", "image_seq_length": 9, "image_grid_pinpoints": [[24, 48], [48, 24], [48, 48]]},
        {**TEXT, "model_type": "mistral", "sliding_window": None},
        CLIP,
        ("<image>",),
        {"image_token_index": "<image>"},
        "<image>\n",
        "LlavaNextProcessor",
        {
            **{**NORMAL, **CLIP_PIXELS, "image_processor_type": "LlavaNextImageProcessor", "do_pad": True},
            **{"image_grid_pinpoints": [[24, 48], [48, 24], [48, 48]]},
        },
        {},
        {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    "pixtral": Family(
        {
            **{"model_type": "llava", "vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
            **{"image_seq_length": 1},
        },
        {**TEXT, "model_type": "mistral", "sliding_window": None, "head_dim": 16},
        {**SIGLIP, "model_type": "pixtral", "image_size": 32, "head_dim": 16},
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        {"image_token_index": "[IMG]"},
        "[IMG]",
        "PixtralProcessor",
        {
            **{**NORMAL, "image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 32}},
            **{"patch_size": {"height": 4, "width": 4}},
        },
        {},
        {"patch_size": 4, "spatial_merge_size": 1, **PIXTRAL_MARKS},
    ),
    "mistral3": Family(
        {"model_type": "mistral3", "spatial_merge_size": 2},
        {**TEXT, "model_type": "mistral", "sliding_window": None, "head_dim": 16},
        {**SIGLIP, "model_type": "pixtral", "image_size": 48, "head_dim": 16},
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        {"image_token_index": "[IMG]"},
        "[IMG]",
        "PixtralProcessor",
        {
            **{**NORMAL, "image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 48}},
            **{"patch_size": {"height": 4, "width": 4}},
        },
        {},
        {"patch_size": 4, "spatial_merge_size": 2, **PIXTRAL_MARKS},
    ),
    "internvl": Family(
        {"model_type": "internvl", "image_seq_length": 4, "downsample_ratio": 0.5},
        {**TEXT, "model_type": "qwen2"},
        {**SIGLIP, "image_size": [16, 16], "patch_size": [4, 4]},
        ("<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
        {"image_token_id": "<IMG_CONTEXT>"},
        "<IMG_CONTEXT>\n",
        "InternVLProcessor",
        {
            **{**NORMAL, "image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 16, "width": 16}},
            **{"crop_to_patches": True, "min_patches": 1, "max_patches": 4},
        },
        {
            **{"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"},
            **{"video_token": "<video>"},
        },
        {"image_seq_length": 4},
        film="<video>\n",
    ),
    "smolvlm": Family(
        {"model_type": "smolvlm", "scale_factor": 2},
        {**TEXT, "model_type": "llama", "pad_token_id": 0},
        {**SIGLIP, "image_size": 16, "model_type": "smolvlm_vision"},
        (
            *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<video>"),
            *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
        ),
        {"image_token_id": "<image>"},
        "<image>",
        "SmolVLMProcessor",
        {
            **{**NORMAL, "image_processor_type": "SmolVLMImageProcessor", "do_image_splitting": True, "do_pad": True},
            **{"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}, "resample": 1},
        },
        {
            **{"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"},
            **{"global_image_token": "<global-img>", "end_of_utterance_token": "<end_of_utterance>"},
        },
        {"image_seq_len": 4},
        film="<video>",
    ),
}
INTERNVL = FAMILIES["internvl"]
MOE = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True}
FAMILIES["internvl_qwen3_moe"] = INTERNVL._replace(text={**TEXT, **MOE, "model_type": "qwen3_moe", "head_dim": 16})
FAMILIES["internvl_gpt_oss"] = INTERNVL._replace(
    text={
        **{**TEXT, "model_type": "gpt_oss", "num_local_experts": 6, "num_experts_per_tok": 3, "head_dim": 32},
        **{"sliding_window": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
    }
)
QWEN3_VL = FAMILIES["qwen3_vl"]
FAMILIES["qwen3_vl_moe"] = QWEN3_VL._replace(
    config={"model_type": "qwen3_vl_moe"},
    text={**QWEN3_VL.text, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40},
)
FAMILIES["ministral3"] = FAMILIES["mistral3"]._replace(
    text={**TEXT, "model_type": "ministral3", "head_dim": 16, "rope_parameters": MINISTRAL3_ROPE}
)
FAMILIES["mistral4"] = FAMILIES["mistral3"]._replace(
    text={
        **{**TEXT, **MLA, "model_type": "mistral4", "n_group": 1, "topk_group": 1, "n_shared_experts": 1},
        "rope_parameters": {**MINISTRAL3_ROPE},
    }
)
LLAVA_NEXT = FAMILIES["llava_next"]
FAMILIES["granite_vision"] = LLAVA_NEXT._replace(
    config={**LLAVA_NEXT.config, "vision_feature_layer": [-3, -1], "vision_feature_select_strategy": "full"},
    text={
        **{**TEXT, "model_type": "granite", "embedding_multiplier": 3.0, "residual_multiplier": 0.6},
        **{"attention_multiplier": 0.11, "logits_scaling": 0.7},
    },
    vision={**SIGLIP, "model_type": "siglip_vision_model", "image_size": 24, "patch_size": 8, "vision_use_head": False},
    options={"patch_size": 8, "vision_feature_select_strategy": "full", "num_additional_image_tokens": 0},
)
IDEFICS3 = FAMILIES["smolvlm"]
FAMILIES["idefics3"] = IDEFICS3._replace(
    config={"model_type": "idefics3", "scale_factor": 2},
    vision={**SIGLIP, "image_size": 16, "model_type": "idefics3_vision"},
    processor="Idefics3Processor",
    pixels={**IDEFICS3.pixels, "image_processor_type": "Idefics3ImageProcessor"},
    film="",
)
GEMMA4_MARKS = {
    **{"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>"},
    **{"boa_token": "<|audio>", "eoa_token": "<audio|>", "audio_token": "<|audio|>"},
}
GEMMA4_AUDIO = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "output_proj_dims": 32},
    **{"subsampling_conv_channels": [16, 8], "attention_chunk_size": 6, "attention_context_left": 7},
}
GEMMA4_EARS = {  # with spectra of 16 numbers, of which a fourth remains
    **{"feature_extractor_type": "Gemma4AudioFeatureExtractor", "feature_size": 16, "preemphasis": 0.5},
    **{"per_bin_mean": [0.1] * 16, "per_bin_stddev": [1.5] * 16},
}
GEMMA4_HEADS = {"head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1}
ADAPTED: dict[str, Family] = {  # text parts of which are computed by layers of transformers
    "gemma4": Family(  # as E2B: inputs by layer, and layers that read the keys of others
        {"model_type": "gemma4", "audio_config": GEMMA4_AUDIO},
        {
            **{**TEXT, **GEMMA4_HEADS, "num_hidden_layers": 6, "sliding_window": 8, "num_kv_shared_layers": 2},
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            **{"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": WORDS, "final_logit_softcapping": 30.0},
        },
        {**SIGLIP, "model_type": "gemma4_vision", "num_key_value_heads": 2, "head_dim": 16, "pooling_kernel_size": 2},
        (*GEMMA4_MARKS.values(), "<|video|>"),
        {
            **{"boi_token_id": "<|image>", "eoi_token_id": "<image|>"},
            **{"image_token_id": "<|image|>", "audio_token_id": "<|audio|>", "video_token_id": "<|video|>"},
        },
        "<|image|>",
        "Gemma4Processor",
        {
            **{"image_processor_type": "Gemma4ImageProcessor", "patch_size": 4, "pooling_kernel_size": 2},
            **{"max_soft_tokens": 70, "do_normalize": False, "do_rescale": True, "do_resize": True, "resample": 3},
        },
        GEMMA4_MARKS,
        {"feature_extractor": GEMMA4_EARS},
        film="<|video|>",
        sound="<|audio|>",
    )
}
GEMMA4 = ADAPTED["gemma4"]
ADAPTED["gemma4_together"] = GEMMA4._replace(  # as 31B: tokens of a picture see one another
    config={"model_type": "gemma4"},
    text={
        **{**GEMMA4.text, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0},
        **{"use_bidirectional_attention": "vision", "attention_k_eq_v": True, "num_global_key_value_heads": 2},
    },
)
ADAPTED["mistral_large4"] = FAMILIES["mistral3"]._replace(
    config={"model_type": "mistral_large4", "spatial_merge_size": 2},
    text={
        **{
            **TEXT,
            "num_hidden_layers": 8,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
        **{"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "head_dim": 8},
        **{"num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "rope_parameters": None},
        **{"index_topk": 8, "index_head_dim": 16, "index_n_heads": 16, "first_k_dense_replace": 1},
        **{"indexer_types": ["full", "shared", "shared", "shared"] * 2},
        **{"no_rope_layers": [1, 1, 1, 0, 1, 0, 1, 0], "kv_source_layers": [0, 0, 0, 3, 0, 3, 6, 7]},
    },
)
ADAPTED["glm5_next"] = Family(  # layers with states, and layers that choose what they see by groups
    {"model_type": "glm5_next"},
    {
        **{
            **TEXT,
            "num_hidden_layers": 6,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
        **{"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 0, "qk_nope_head_dim": 16, "v_head_dim": 16},
        **{"head_dim": 0, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "rope_parameters": None},
        **{"index_topk": 8, "index_head_dim": 16, "index_n_heads": 16, "index_kpool": 2, "hc_mult": 4},
        **{"linear_head_dim": 16, "linear_num_heads": 4, "indexer_types": ["full"] * 6, "pad_token_id": 0},
        "layer_types": ["linear_attention", "linear_attention", "indexed_attention"] * 2,
        "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 4,
    },
    {
        **{"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4},
        **{"out_hidden_size": 64, "projection_intermediate_size": 64},
    },
    ("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "<|image|>", "<|video|>"),
    {
        **{"image_start_token_id": "<|begin_of_image|>", "image_end_token_id": "<|end_of_image|>"},
        **{"video_start_token_id": "<|begin_of_video|>", "video_end_token_id": "<|end_of_video|>"},
        **{"image_token_id": "<|image|>", "video_token_id": "<|video|>"},
    },
    "<|begin_of_image|><|image|><|end_of_image|>",
    "Glm5NextProcessor",
    {
        **{"image_processor_type": "Glm5NextImageProcessor", "patch_size": 4, "min_image_tokens": 4},
        "max_image_tokens": 40,
    },
    seed=32,
)
DIVIDED = ("gemma4", "gemma4_together")  # of these, those that several workers can compute
EVERY = {**FAMILIES, **ADAPTED}


def checkpoint(family: str, root: Path, **text: Any) -> Path:
    """The folder of a family's tiny model below `root`, written at the first call; `text` changes its text_config."""
    folder = root / "-".join([family, *(f"{key}={value}" for key, value in sorted(text.items()))])
    if not (folder / "config.json").exists():
        write(family, folder, **text)
    return folder


def write(family: str, folder: Path, **text: Any) -> None:
    """All files of it."""
    folder.mkdir(parents=True, exist_ok=True)
    own = EVERY[family]
    write_tokenizer(folder)
    ids = _add_marks(folder, own)
    _write_template(folder, own)
    _write_processor(folder, own)
    _write_model(folder, own, ids, own.seed, text)


def _add_marks(folder: Path, own: Family) -> dict[str, int]:
    """The family's special tokens behind the vocabulary, and the ids of them."""
    from tokenizers import AddedToken, Tokenizer

    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in own.marks])
    tokenizer.save(str(path))
    return {mark: id_ for mark in own.marks if (id_ := tokenizer.token_to_id(mark)) is not None}


def _write_template(folder: Path, own: Family) -> None:
    template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
        f"{{% if part.type in ('image', 'image_url') %}}{own.place.replace(chr(10), chr(92) + 'n')}"
        f"{{% elif part.type == 'video' %}}{own.film.replace(chr(10), chr(92) + 'n')}"
        f"{{% elif part.type == 'audio' %}}{own.sound}"
        "{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ).replace("\\n", "{{ '\\n' }}")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["additional_special_tokens"] += own.marks
    settings["extra_special_tokens"] = own.tokenizer
    settings["processor_class"] = own.processor
    settings["chat_template"] = template
    path.write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _write_processor(folder: Path, own: Family) -> None:
    pixels = {**own.pixels, "processor_class": own.processor}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels, indent=2), encoding="utf-8")
    options = {**own.options, "processor_class": own.processor}
    (folder / "processor_config.json").write_text(json.dumps(options, indent=2), encoding="utf-8")


def _write_model(folder: Path, own: Family, ids: dict[str, int], seed: int, text: dict[str, Any]) -> None:
    """Weights in float32, wide enough that greedy texts vary and depend on pictures."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    fields = {**own.config, **{name: ids[mark] for name, mark in own.named.items()}, "tie_word_embeddings": False}
    kind = fields.pop("model_type")
    config = AutoConfig.for_model(
        kind, text_config={**own.text, **text}, vision_config={"initializer_range": 0.3, **own.vision}, **fields
    )
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "language_model" not in name and "lm_head" not in name:
                parameter.normal_(0, 0.15)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name and name.endswith("weight") and not name.startswith("gemma"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("image_newline"):
                parameter.normal_(0, 1)
        for name, buffer in model.named_buffers():
            if name.endswith(("_min", "_max")):  # of clipped layers, where they are none as yet
                buffer.fill_(-4.0 if name.endswith("_min") else 4.0)
        model.lm_head.weight[list(ids.values())] = 0  # it writes no marks
    model.generation_config.eos_token_id = 0
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
