"""transformers' own models of pictures, whole, and prompts with pictures for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from actorserve.actors.protocol.media import IMAGE, MediaItem, MediaTensor

from .families import EVERY, TEXT


class Source:
    """Items of slots, as the media arena has them."""

    def __init__(self) -> None:
        self.of_slot: dict[int, list[MediaItem]] = {}
        self.arrays: list[Any] = []
        self.gone: set[int] = set()  # slots that are others' by now

    def items(self, slot: int, generation: int) -> list[MediaItem]:
        """See MediaSource."""
        return self.of_slot.get(slot, [])

    def array(self, tensor: MediaTensor) -> Any:
        """See MediaSource."""
        return self.arrays[tensor.offset]

    def intact(self, slot: int, generation: int) -> bool:
        """See MediaSource."""
        return slot not in self.gone

    def add(self, slot: int, prompt: Prompt) -> None:
        """The prompt's pictures become the slot's."""
        self.of_slot[slot] = [
            MediaItem(IMAGE, digest, start, length, [self._tensor(name, value) for name, value in tensors.items()])
            for digest, start, length, tensors in prompt.pictures
        ]

    def _tensor(self, name: str, value: Any) -> MediaTensor:
        self.arrays.append(value)
        return MediaTensor(name, str(value.dtype), list(value.shape), len(self.arrays) - 1)


class Prompt(NamedTuple):
    """Token ids with pictures among them."""

    ids: list[int]
    pictures: list[tuple[bytes, int, int, dict[str, Any]]]  # digest, start, length, tensors of each
    inputs: dict[str, Any]  # of transformers' model, beside the ids


def picture(seed: int, height: int = 40, width: int = 28) -> Any:
    """Colours at random."""
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


class Reference:
    """transformers' own model of a folder, whole."""

    def __init__(self, family: str, folder: Path) -> None:
        from transformers import AutoImageProcessor, AutoModelForImageTextToText

        self.family, self.own = family, EVERY[family]
        self.model = AutoModelForImageTextToText.from_pretrained(folder).eval()
        self.processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        config = self.model.config
        self.place = int(getattr(config, "image_token_id", None) or config.image_token_index)

    def pixels(self, *pictures: Any) -> dict[str, Any]:
        """The processor's tensors of them together."""
        nested = self.family in ("smolvlm", "idefics3")
        own: dict[str, Any] = {}
        if self.family in (
            "mistral3",
            "ministral3",
            "mistral4",
            "mistral_large4",
        ):  # as their processor asks: sides of merged patches
            own["patch_size"] = {"height": 8, "width": 8}
        found = self.processor(images=[[*pictures]] if nested else [*pictures], return_tensors="pt", **own)
        wanted = ("pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask", "image_position_ids")
        return {name: found[name] for name in wanted if name in found}

    def prompt(self, *parts: Any) -> Prompt:
        """Ids of a prompt whose parts are ids and pictures."""
        import hashlib

        import torch

        ids: list[int] = []
        found = []
        for part in parts:
            if isinstance(part, list):
                ids += part
                continue
            tensors = self.pixels(part)
            with torch.inference_mode():
                made = self.model.model.get_image_features(**tensors).pooler_output
            count = sum(one.reshape(-1, TEXT["hidden_size"]).shape[0] for one in made)
            own = [self.place] * count
            if "[IMG_BREAK]" in self.own.marks:  # between rows
                own.insert(count // 2, self.place + 1)
            found.append((hashlib.md5(part.tobytes()).digest(), len(ids), len(own), tensors))
            ids += own
        inputs = self.pixels(*(part for part in parts if not isinstance(part, list))) if found else {}
        inputs |= self.kinds(ids)
        arrays = [(*about, {name: value.numpy() for name, value in one.items()}) for *about, one in found]
        return Prompt(ids, arrays, inputs)  # type: ignore[arg-type]

    def kinds(self, ids: list[int]) -> dict[str, Any]:
        """Which tokens are a picture's, as the family wants to know it."""
        import torch

        kinds = torch.tensor([[int(token == self.place) for token in ids]])
        if self.family.startswith(("qwen", "gemma4")):
            return {"mm_token_type_ids": kinds}
        return {"token_type_ids": kinds} if self.family == "gemma3" else {}

    def logits(self, prompt: Prompt, more: list[int]) -> Any:
        """Of all positions, with tokens behind the prompt. Granite's are divided, as its text part alone has it; in
        models that see, transformers forgets that since 4.52."""
        import torch

        inputs = {
            name: torch.cat([value, value.new_zeros(1, len(more))], 1) if name.endswith("token_type_ids") else value
            for name, value in prompt.inputs.items()
        }
        with torch.inference_mode():
            found = self.model(input_ids=torch.tensor([prompt.ids + more]), **inputs).logits[0]
        return found / getattr(self.model.config.text_config, "logits_scaling", 1.0)

    def generate(self, prompt: Prompt, count: int) -> list[int]:
        """Greedy."""
        import torch

        given = torch.tensor([prompt.ids])
        with torch.inference_mode():
            whole = self.model.generate(
                input_ids=given,
                attention_mask=torch.ones_like(given),
                do_sample=False,
                max_new_tokens=count,
                eos_token_id=1 << 20,  # none: it goes on behind each
                **prompt.inputs,
            )
        tokens: list[int] = whole[0, len(prompt.ids) :].tolist()
        return tokens


def assert_same(reference: Reference, prompt: Prompt, tokens: list[int], logits: dict[int, Any]) -> None:
    """All logits are those of the whole model, and so are the tokens."""
    import torch

    wanted = reference.logits(prompt, tokens[:-1])
    assert sorted(logits) == list(range(len(wanted)))
    found = torch.stack([logits[at] for at in sorted(logits)])
    off = float((found - wanted).abs().max() / wanted.abs().max())
    assert off < (1e-4 if reference.family == "glm5_next" else 2e-5)  # states are added up in other parts
    assert tokens == wanted[len(prompt.ids) - 1 :].argmax(-1).tolist()
