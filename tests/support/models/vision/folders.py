"""Folders of tiny models that see, but for their weights: configuration, tokenizer, chat template and processor.

`vision_folder` writes what a media actor and a renderer need. KINDS are those of which the processor is known; models
of families.py can also be computed.
"""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

TEXT = "What is in this picture? A cat and a dog sit on the mat. One, two, three: red, green and blue. Describe it."
PARTS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}IMAGE"
    "{% elif part['type'] == 'video' %}VIDEO{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT_CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
CLIP: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"image_size": 28, "patch_size": 14},
}
MEAN = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}
BASE_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


class Kind:
    """What is to be known of a family: its tokens, as they stand in tokenizer_config.json, and its files."""

    def __init__(
        self,
        placeholder: str,
        tokens: dict[str, str],
        processor: dict[str, Any],
        config: dict[str, Any],
        *,
        more: tuple[str, ...] = (),
        around: tuple[str, str] = ("", ""),
        processor_config: dict[str, Any] | None = None,
    ) -> None:
        self.placeholder, self.tokens, self.processor, self.config = placeholder, tokens, processor, config
        self.around, self.processor_config = around, processor_config
        self.special = tuple(dict.fromkeys((*BASE_TOKENS, *tokens.values(), *more)))


_QWEN_TOKENS = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
_QWEN_MORE = ("<|vision_start|>", "<|vision_end|>")
_AROUND = ("<|vision_start|>", "<|vision_end|>")
_QWEN_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "out_hidden_size": 64}
_SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
_GEMMA_TOKENS = {
    **{"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
}
_GEMMA4_FILM = {"video_token": "<|video|>"}
_TILES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5))

KINDS: dict[str, Kind] = {
    "qwen2_vl": Kind(
        *("<|image_pad|>", _QWEN_TOKENS),
        {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
        | {"size": {"shortest_edge": 64, "longest_edge": 4096}, **MEAN},
        {"vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 4, "patch_size": 4}},
        more=_QWEN_MORE,
        around=_AROUND,
    ),
    "qwen2_5_vl": Kind(
        *("<|image_pad|>", _QWEN_TOKENS),
        {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
        | {"size": {"shortest_edge": 64, "longest_edge": 4096}, **MEAN},
        {"vision_config": {**_QWEN_VISION, "patch_size": 4, "window_size": 16, "fullatt_block_indexes": [1]}},
        more=_QWEN_MORE,
        around=_AROUND,
    ),
    "qwen3_vl": Kind(
        *("<|image_pad|>", _QWEN_TOKENS),
        {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
        | {"size": {"shortest_edge": 64, "longest_edge": 4096}, **MEAN},
        {
            "vision_config": {
                **_QWEN_VISION,
                **{"patch_size": 4, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
            }
        },
        more=_QWEN_MORE,
        around=_AROUND,
    ),
    "gemma3": Kind(
        *("<start_of_image>", _GEMMA_TOKENS),
        {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 28, "width": 28}, **MEAN},
        {"vision_config": {**CLIP, "patch_size": 7}, "mm_tokens_per_image": 4},
        processor_config={"image_seq_length": 4},
    ),
    "gemma4": Kind(
        *("<|image|>", {"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>"} | _GEMMA4_FILM),
        {"image_processor_type": "Gemma4ImageProcessor", "patch_size": 4, "pooling_kernel_size": 2}
        | {"max_soft_tokens": 70, "do_normalize": False},
        {"vision_config": {**CLIP, "model_type": "gemma4_vision", "patch_size": 4, "pooling_kernel_size": 2}},
    ),
    "glm5_next": Kind(
        *("<|image|>", {"image_token": "<|image|>", "video_token": "<|video|>"}),
        {"image_processor_type": "Glm5NextImageProcessor", "patch_size": 4, "min_image_tokens": 4}
        | {"max_image_tokens": 40},
        {"vision_config": {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4}},
        more=("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"),
        around=("<|begin_of_image|>", "<|end_of_image|>"),
    ),
    "llava": Kind(
        *("<image>", {"image_token": "<image>"}),
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28}, **MEAN}
        | {"crop_size": {"height": 28, "width": 28}},
        {"vision_config": {"model_type": "clip_vision_model", **CLIP}, "vision_feature_layer": -1},
        processor_config={
            **{"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        },
    ),
    "llava_next": Kind(
        *("<image>", {"image_token": "<image>"}),
        {"image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 28}, **MEAN}
        | {"crop_size": {"height": 28, "width": 28}, "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56], [28, 84]]},
        {"vision_config": {"model_type": "clip_vision_model", **CLIP}, "vision_feature_layer": -1}
        | {"image_grid_pinpoints": [[28, 56], [56, 28], [56, 56], [28, 84]]},
        processor_config={
            **{"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        },
    ),
    "pixtral": Kind(
        *("[IMG]", {}),
        {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 64}, "patch_size": 8, **MEAN},
        {
            "vision_config": {"model_type": "pixtral", **CLIP, "image_size": 64, "patch_size": 8},
            **{"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        },
        more=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        processor_config={"patch_size": 8, "image_token": "[IMG]"},
    ),
    "mistral3": Kind(
        *("[IMG]", {}),
        {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 64}, "patch_size": 8, **MEAN},
        {
            "vision_config": {"model_type": "pixtral", **CLIP, "image_size": 64, "patch_size": 8},
            **{"vision_feature_layer": -1, "spatial_merge_size": 2},
        },
        more=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        processor_config={"patch_size": 8, "spatial_merge_size": 2, "image_token": "[IMG]"},
    ),
    "internvl": Kind(
        "<IMG_CONTEXT>",
        {
            **{"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"},
            "video_token": "<video>",
        },
        {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 28, "width": 28}, **MEAN}
        | {"min_patches": 1, "max_patches": 4},
        {"vision_config": {**CLIP, "image_size": [28, 28], "patch_size": [7, 7]}, "image_seq_length": 4},
        processor_config={"image_seq_length": 4},
    ),
    "smolvlm": Kind(
        *("<image>", {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}),
        {"image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 56}, **MEAN}
        | {"max_image_size": {"longest_edge": 28}, "do_image_splitting": True},
        {"vision_config": {**CLIP, "patch_size": 7}, "scale_factor": 2},
        more=("<global-img>", "<end_of_utterance>", *_TILES),
        processor_config={"image_seq_len": 4},
    ),
}
MODEL_TYPES = {"pixtral": "llava"}  # where it is not the kind's own name


def vision_folder(kind: str, root: Path) -> Path:
    """The folder of a model of this kind below `root`, all but its weights; written at the first call."""
    folder = root / kind
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        ids = _write_tokenizer(folder, KINDS[kind])
        _write_files(folder, kind, ids)
    return folder


def _write_tokenizer(folder: Path, kind: Kind) -> dict[str, int | None]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [TEXT] * 4,
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=list(kind.special), initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    begin, end = kind.around
    template = PARTS.replace("IMAGE", begin + kind.placeholder + end)
    template = template.replace("VIDEO", begin + kind.tokens.get("video_token", "") + end)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    named = {"extra_special_tokens": kind.tokens} if kind.tokens else {}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **named, "chat_template": template}))
    (folder / "chat_template.jinja").write_text(template)
    return {token: tokenizer.token_to_id(token) for token in kind.special}


def _write_files(folder: Path, kind: str, ids: dict[str, int | None]) -> None:
    from transformers import AutoConfig

    known, model_type = KINDS[kind], MODEL_TYPES.get(kind, kind)
    named: dict[str, int | None] = {f"{name}_id": ids[token] for name, token in known.tokens.items()}
    embedded = named.get("context_image_token_id", named.get("image_token_id", ids.get("[IMG]")))
    named |= {"image_token_id": embedded, "image_token_index": embedded}
    named |= {"vision_start_token_id": ids.get("<|vision_start|>"), "vision_end_token_id": ids.get("<|vision_end|>")}
    text = {**TEXT_CONFIG, "vocab_size": 448}
    if kind.startswith("qwen"):
        text |= _SECTIONS | ({"head_dim": 16} if kind.startswith("qwen3") else {})
    elif kind == "glm5_next":
        text |= {"num_key_value_heads": 4}
    elif kind == "gemma4":
        text |= {"head_dim": 16, "global_head_dim": 16}
    elif kind == "gemma3":
        text |= {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 24, "initializer_range": 0.1}
    else:
        text |= {"model_type": "llama"}
    config = AutoConfig.for_model(
        model_type,
        text_config=text,
        **{name: value for name, value in named.items() if value is not None},
        **known.config,
    )
    values = {**config.to_dict(), "architectures": [_architecture(model_type)]}
    (folder / "config.json").write_text(json.dumps(values, default=str))
    (folder / "preprocessor_config.json").write_text(json.dumps(known.processor))
    if known.processor_config is not None:
        (folder / "processor_config.json").write_text(json.dumps(known.processor_config))


def _architecture(model_type: str) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    name: str = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[model_type]
    return name


def picture(width: int, height: int, seed: int = 0) -> bytes:
    """A PNG of random colours, the same for the same seed."""
    from PIL import Image

    colours = random.Random(seed).randbytes(3 * width * height)
    file = io.BytesIO()
    Image.frombytes("RGB", (width, height), colours).save(file, "PNG")
    return file.getvalue()
