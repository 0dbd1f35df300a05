"""What takes the place of a picture's placeholder in a prompt, by family: as many ids as it has embeddings, and what
stands around them. The same as transformers' processors write, which want a tokenizer of their own, and some of them
torch.

A family is a function of the tensors of one picture, of what its processor told beside them, and of the model's files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..model.media import GEMMA4
from ..model.vision.processing import has_pixtral, patch_size, pixtral_patch
from ..protocol.media import AUDIO, IMAGE, VIDEO
from .films.texts import gemma4_film, internvl_film, qwen_film, qwen_timed_film, smolvlm_film
from .refused import MediaRefused


@dataclass(frozen=True)
class ExpansionInput:
    """All that an expansion may depend on."""

    outputs: Mapping[str, Any]  # of the processor, for one picture or film
    processor: Mapping[str, Any]  # processor_config.json, as far as the model has it
    sizes: Mapping[str, Any]  # the image processor's own settings
    config: Mapping[str, Any]  # config.json
    tokens: Mapping[str, str]  # special tokens by the names that tokenizer_config.json has for them

    def token(self, name: str, default: str) -> str:
        """The special token of this name."""
        return self.tokens.get(name, default)


@dataclass(frozen=True)
class Expansion:
    """Of one modality of a family."""

    placeholder: str  # as the chat template writes it; a name in tokenizer_config.json may say another
    name: str  # of that name
    embedded: tuple[str, str]  # the token in whose places embeddings go, in the same way
    text: Callable[[ExpansionInput, str], str]  # what is written for one picture, with that token
    # what is written for so many embeddings, if it can be told
    embeds: Callable[[ExpansionInput, str, int], str] | None = None
    grid: bool = False  # beside embeddings the grid of their patches must be there
    alone: bool = False  # it is a prompt by itself, of ids that are no tokens


def _one_by_one(told: ExpansionInput, token: str, count: int) -> str:
    """Nothing but a token for each embedding."""
    return token * count


def _llava_embeds(told: ExpansionInput, token: str, count: int) -> str:
    if has_pixtral(told.config):
        raise MediaRefused("this model's pictures have rows, which embeddings do not tell apart.")
    return token * count


def _between_marks(told: ExpansionInput, token: str, count: int) -> str:
    """Of InternVL."""
    begin, end = told.token("start_image_token", "<img>"), told.token("end_image_token", "</img>")
    return f"{begin}{token * count}{end}"


def _gemma3_embeds(told: ExpansionInput, token: str, count: int) -> str:
    if count != _gemma3_count(told):
        raise MediaRefused(f"it has {count} embeddings; this model's pictures have {_gemma3_count(told)}.")
    return _gemma3_one(told, token)


def _qwen(told: ExpansionInput, token: str) -> str:
    grid = told.outputs["image_grid_thw"][0]
    return token * int(int(grid.prod()) // int(told.sizes["merge_size"]) ** 2)


def _gemma4(told: ExpansionInput, token: str) -> str:
    return _gemma4_embeds(told, token, int(told.outputs["num_soft_tokens_per_image"][0]))


def _gemma4_embeds(told: ExpansionInput, token: str, count: int) -> str:
    begin, end = told.token("boi_token", "<|image>"), told.token("eoi_token", "<image|>")
    return f"{begin}{token * count}{end}"


def _gemma4_sound(told: ExpansionInput, token: str) -> str:
    begin, end = told.token("boa_token", "<|audio>"), told.token("eoa_token", "<audio|>")
    return f"{begin}{_sound(told, token)}{end}"


def _sound(told: ExpansionInput, token: str) -> str:
    return token * int(told.outputs["count"])


def _gemma3_count(told: ExpansionInput) -> int:
    return int(told.processor.get("image_seq_length") or told.config.get("mm_tokens_per_image") or 256)


def _gemma3_one(told: ExpansionInput, token: str) -> str:
    begin, end = told.token("boi_token", "<start_of_image>"), told.token("eoi_token", "<end_of_image>")
    return f"\n\n{begin}{token * _gemma3_count(told)}{end}\n\n"


def _gemma3(told: ExpansionInput, token: str) -> str:
    one = _gemma3_one(told, token)
    crops = int(told.outputs["num_crops"][0])
    if not crops:
        return one
    beside = " and here are some crops to help you see better "
    return f"Here is the original image {one}{beside}" + " ".join([one] * crops)


def _llava(told: ExpansionInput, token: str) -> str:
    if has_pixtral(told.config):
        return _pixtral(told, token)
    height, width = told.outputs["pixel_values"].shape[-2:]
    patch = patch_size(told.config, told.processor)
    count = (height // patch) * (width // patch) + _more_of_llava(told)
    return token * int(count)


def _more_of_llava(told: ExpansionInput) -> int:
    """What the processor adds for embeddings that are no patch's, and takes away for the one that is left out."""
    more = int(told.processor.get("num_additional_image_tokens") or 0)
    return more - (told.processor.get("vision_feature_select_strategy") == "default")


def _llava_next(told: ExpansionInput, token: str) -> str:
    height, width = (int(size) for size in told.outputs["image_sizes"][0])
    rows, columns = told.outputs["pixel_values"].shape[-2:]
    best_height, best_width = _best_resolution(height, width, told.sizes["image_grid_pinpoints"])
    patch = patch_size(told.config, told.processor)
    high, wide = rows // patch, columns // patch
    seen_high, seen_wide = _unpadded(height, width, high * (best_height // rows), wide * (best_width // columns))
    count = seen_high * seen_wide + seen_high + high * wide + _more_of_llava(told)
    return token * int(count)


def _best_resolution(height: int, width: int, known: list[list[int]]) -> tuple[int, int]:
    """Of the sizes that a picture may be divided at, the one that shows most of it and wastes least."""

    def worth(size: list[int]) -> tuple[int, int]:
        high, wide = size
        scale = min(wide / width, high / height)
        shown = min(int(width * scale) * int(height * scale), width * height)
        return shown, -(high * wide - shown)

    best = max(known, key=worth)
    return int(best[0]), int(best[1])


def _unpadded(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Patches that show something of the picture, which fills its rectangle in one direction alone."""
    if width / height > columns / rows:
        shown = int(round(height * (columns / width), 7))
        return rows - (rows - shown) // 2 * 2, columns
    shown = int(round(width * (rows / height), 7))
    return rows, columns - (columns - shown) // 2 * 2


def _pixtral(told: ExpansionInput, token: str) -> str:
    processor, patch = told.processor, pixtral_patch(told.config, told.processor)
    height, width = (int(size) for size in told.outputs["image_sizes"][0])
    between, end = processor.get("image_break_token", "[IMG_BREAK]"), processor.get("image_end_token", "[IMG_END]")
    row = token * (width // patch)
    return f"{between.join([row] * (height // patch))}{end}"


def _internvl(told: ExpansionInput, token: str) -> str:
    count = int(told.processor.get("image_seq_length") or 256) * int(told.outputs["num_patches"][0])
    begin, end = told.token("start_image_token", "<img>"), told.token("end_image_token", "</img>")
    return f"{begin}{token * count}{end}"


def _smolvlm(told: ExpansionInput, token: str) -> str:
    """Also of Idefics 3: the tiles of a large picture by their rows and columns, and then all of it."""
    count = int(told.processor.get("image_seq_len") or 169)
    fake = told.token("fake_image_token", "<fake_token_around_image>")
    whole = told.token("global_image_token", "<global-img>")
    rows, columns = (int(told.outputs[name][0][0]) for name in ("rows", "cols"))
    last = f"{fake}{whole}{token * count}{fake}"
    if not rows and not columns:
        return last
    tiles = ""
    for row in range(1, rows + 1):
        tiles += "".join(f"{fake}<row_{row}_col_{column}>{token * count}" for column in range(1, columns + 1)) + "\n"
    return f"{tiles}\n{last}"


def _patches(told: ExpansionInput, token: str) -> str:
    """Of CLIP and SigLIP, as many as there are; that of a whole picture counts, too."""
    clip = bool(told.config["model_type"] == "clip")
    patch = int((told.config.get("vision_config") or {}).get("patch_size") or (32 if clip else 16))
    high, wide = (side // patch for side in told.outputs["pixel_values"].shape[-2:])
    return token * max(1, int(high) * int(wide) + int(clip))


def _shaped_patches(told: ExpansionInput, token: str) -> str:
    high, wide = told.outputs["spatial_shapes"][0]
    return token * (int(high) * int(wide))


_QWEN = Expansion(
    "<|image_pad|>", "image_token", ("<|image_pad|>", "image_token"), _qwen, embeds=_one_by_one, grid=True
)
_QWEN_PAD = ("<|video_pad|>", "video_token")
_QWEN_FILM = Expansion(*_QWEN_PAD, _QWEN_PAD, qwen_film)
_QWEN_TIMED_FILM = Expansion(*_QWEN_PAD, _QWEN_PAD, qwen_timed_film)
_QWEN_AUDIO, _VOXTRAL = ("<|AUDIO|>", "audio_token"), ("[AUDIO]", "audio_token")
_LLAVA = ("<image>", "image_token")


EXPANSIONS: dict[str, dict[str, Expansion]] = {  # by config.json's model_type and the modality
    **{name: {IMAGE: _QWEN, VIDEO: _QWEN_FILM} for name in ("qwen2_vl", "qwen2_5_vl")},
    **{name: {IMAGE: _QWEN, VIDEO: _QWEN_TIMED_FILM} for name in ("qwen3_vl", "qwen3_vl_moe")},
    "gemma3": {
        IMAGE: Expansion(
            "<start_of_image>", "boi_token", ("<image_soft_token>", "image_token"), _gemma3, embeds=_gemma3_embeds
        )
    },
    "gemma4": {
        IMAGE: Expansion(*GEMMA4[IMAGE], GEMMA4[IMAGE], _gemma4, embeds=_gemma4_embeds),
        VIDEO: Expansion(*GEMMA4[VIDEO], GEMMA4[VIDEO], gemma4_film),
        AUDIO: Expansion(*GEMMA4[AUDIO], GEMMA4[AUDIO], _gemma4_sound),
    },
    "glm5_next": {IMAGE: Expansion("<|image|>", "image_token", ("<|image|>", "image_token"), _qwen)},
    "llava": {IMAGE: Expansion(*_LLAVA, _LLAVA, _llava, embeds=_llava_embeds)},
    "llava_next": {IMAGE: Expansion(*_LLAVA, _LLAVA, _llava_next, embeds=_one_by_one)},
    **{
        name: {IMAGE: Expansion("[IMG]", "image_token", ("[IMG]", "image_token"), _pixtral)}
        for name in ("mistral3", "mistral_large4")
    },
    "internvl": {
        IMAGE: Expansion(
            "<IMG_CONTEXT>",
            "context_image_token",
            ("<IMG_CONTEXT>", "context_image_token"),
            _internvl,
            embeds=_between_marks,
        ),
        VIDEO: Expansion("<video>", "video_token", ("<IMG_CONTEXT>", "context_image_token"), internvl_film),
    },
    "idefics3": {IMAGE: Expansion(*_LLAVA, _LLAVA, _smolvlm)},
    "qwen2_audio": {AUDIO: Expansion(*_QWEN_AUDIO, _QWEN_AUDIO, _sound)},
    "voxtral": {AUDIO: Expansion(*_VOXTRAL, _VOXTRAL, _sound)},
    "smolvlm": {
        IMAGE: Expansion(*_LLAVA, _LLAVA, _smolvlm),
        VIDEO: Expansion("<video>", "video_token", _LLAVA, smolvlm_film),
    },
    **{name: {IMAGE: Expansion(*_LLAVA, _LLAVA, _patches, alone=True)} for name in ("clip", "siglip")},
    "siglip2": {IMAGE: Expansion(*_LLAVA, _LLAVA, _shaped_patches, alone=True)},
}
