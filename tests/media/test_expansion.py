"""What takes a placeholder's place, and the tensors: the same as the processors of transformers make of each family."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import types
from array import array
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch  # noqa: F401  # before transformers, which would believe for all of this process that there is none
from PIL import Image

from actorserve.actors.media.processors import ImageProcessor
from actorserve.actors.media.refused import MediaRefused
from actorserve.actors.model.info import ModelInfo, resolve_model
from actorserve.actors.model.tokenizers.tokenizer import load_tokenizer
from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.protocol.media import MediaSource, PreparedMedia
from actorserve.actors.renderer.media import expanded, in_order, items_of
from tests.support.models.vision.folders import KINDS, picture, vision_folder

SIZES = [(60, 40), (17, 90), (64, 64), (200, 30), (31, 33)]
CLASSES = {  # modules and classes of their processors; those of which a part is missing here are made without it
    "qwen2_vl": ("qwen2_vl", "Qwen2VLProcessor"),
    "qwen2_5_vl": ("qwen2_5_vl", "Qwen2_5_VLProcessor"),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLProcessor"),
    "gemma3": ("gemma3", "Gemma3Processor"),
    "gemma4": ("gemma4", "Gemma4Processor"),
    "glm5_next": ("glm5_next", "Glm5NextProcessor"),
    "llava": ("llava", "LlavaProcessor"),
    "llava_next": ("llava_next", "LlavaNextProcessor"),
    "pixtral": ("pixtral", "PixtralProcessor"),
    "mistral3": ("pixtral", "PixtralProcessor"),
    "internvl": ("internvl", "InternVLProcessor"),
    "smolvlm": ("smolvlm", "SmolVLMProcessor"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def theirs(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """transformers' whole processor, with an image processor on Pillow, and without one of films."""
    from transformers import AutoImageProcessor, AutoTokenizer

    module, name = CLASSES[kind]
    if module == "pixtral":  # its module asks for a function that is not used here, of one that wants torchvision
        missing = types.SimpleNamespace(get_resize_output_image_size=None)
        monkeypatch.setitem(sys.modules, "transformers.models.pixtral.image_processing_pixtral", missing)
    found = importlib.import_module(f"transformers.models.{module}.processing_{module}")
    if hasattr(found, "num2words"):
        monkeypatch.setattr(found, "num2words", str)
    processor = getattr(found, name)
    monkeypatch.setattr(processor, "check_argument_for_proper_class", lambda self, name, value: None)
    parts: dict[str, Any] = {
        "image_processor": AutoImageProcessor.from_pretrained(str(folder), backend="pil"),
        "tokenizer": AutoTokenizer.from_pretrained(str(folder)),
    }
    missing_parts = {"video_processor", "feature_extractor"} & set(processor.get_attributes())
    parts |= dict.fromkeys(missing_parts)
    return processor(**parts, **(KINDS[kind].processor_config or {}))


def model_of(folder: Path) -> ModelInfo:
    return resolve_model(Config(model=str(folder), worker="scripted"))


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_tensors_are_those_of_transformers(kind: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    folder = vision_folder(kind, root)
    config, model, known = Config(model=str(folder)), model_of(folder), KINDS[kind]
    own, other = ImageProcessor(config, model), theirs(kind, folder, monkeypatch)
    files = [picture(width, height, seed) for seed, (width, height) in enumerate(SIZES)]
    begin, end = known.around
    text = "What? " + " and ".join(begin + known.placeholder + end for _ in files) + " in one."
    prepared, tensors = [], []
    for number, file in enumerate(files):
        made = own.process(file, MediaSource("image", ""))
        told = made.placeholder, made.text, made.token, made.count
        prepared.append(PreparedMedia("image", bytes([number]) * 16, *told, []))
        tensors.append(made.arrays)
    tokenizer = load_tokenizer(model)
    ids = tokenizer.encode(expanded(text, prepared), add_special_tokens=False).ids
    pictures = [Image.open(io.BytesIO(file)).convert("RGB") for file in files]
    for shown, arrays in zip(pictures, tensors, strict=True):
        alone = other._process_images([shown], **other._merge_kwargs(return_tensors="np")["images_kwargs"])[0]
        for name, value in arrays.items():
            assert np.array_equal(np.asarray(alone[name]), value), name
    replaced = [
        other._process_images([shown], **other._merge_kwargs(return_tensors="np")["images_kwargs"])[1][0]
        for shown in pictures
    ]
    [wanted], _ = other.get_text_with_replacements([text], replaced)
    assert ids == other.tokenizer(wanted, add_special_tokens=False)["input_ids"]
    embedded = [position for position, token in enumerate(ids) if token == prepared[0].token]
    items = items_of(ids, in_order(text, prepared))
    assert [item.digest for item in items] == [one.digest for one in prepared]
    covered = [position for item in items for position in embedded if 0 <= position - item.start < item.length]
    assert covered == embedded and all(item.start in embedded for item in items)
    assert array("i", [one.count for one in prepared]).tolist() == [
        sum(0 <= position - item.start < item.length for position in embedded) for item in items
    ]


def test_a_processor_is_changed_by_an_option(root: Path) -> None:
    folder = vision_folder("qwen2_5_vl", root)
    large = ImageProcessor(Config(model=str(folder)), model_of(folder))
    changed = Config(model=str(folder), mm_processor_kwargs='{"size": {"shortest_edge": 64, "longest_edge": 1024}}')
    small = ImageProcessor(changed, model_of(folder))
    file, source = picture(64, 64), MediaSource("image", "")
    assert large.process(file, source).count == 64 and small.process(file, source).count == 16


def test_no_pixels_are_made_of_what_is_refused_for_its_size(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may ask for many of a small picture: they would be gigabytes before its tokens are counted."""
    folder = vision_folder("qwen2_5_vl", root)
    model = msgspec.structs.replace(model_of(folder), max_model_len=60)
    small = MediaSource("image", "", changes=b'{"min_pixels":65536,"max_pixels":33554432}')
    large = MediaSource("image", "", changes=b'{"size":{"shortest_edge":33554432,"longest_edge":33554432}}')
    processor = ImageProcessor(Config(model=str(folder)), model)
    monkeypatch.setattr(type(processor._process), "__call__", lambda *_, **named: pytest.fail("pixels are made"))
    with pytest.raises(MediaRefused, match="tokens of the 60 that the model takes"):
        processor.process(picture(1, 1), large)
    with pytest.raises(MediaRefused, match="it takes 64 tokens of the 60"):
        processor.process(picture(8, 8), MediaSource("image", "", changes=b'{"min_pixels":4096,"max_pixels":9999}'))
    long = msgspec.structs.replace(model, max_model_len=4096)
    bounded = ImageProcessor(Config(model=str(folder), media_memory_bytes=1 << 20), long)
    with pytest.raises(MediaRefused, match="bytes of the 1048576 that --media-memory-bytes gives") as caught:
        bounded.process(picture(8, 8), small)
    assert caught.value.status == 413


def test_what_is_missing_is_told_with_its_name(root: Path, tmp_path: Path) -> None:
    folder = vision_folder("llava", tmp_path)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match="has no processor of pictures"):
        ImageProcessor(Config(model=str(folder)), model_of(folder))
    other = vision_folder("mistral3", tmp_path)
    values = msgspec.json.decode((other / "processor_config.json").read_bytes())
    (other / "processor_config.json").write_bytes(msgspec.json.encode({**values, "image_token": "[NONE]"}))
    with pytest.raises(ConfigError, match=r"no \[NONE\]"):
        ImageProcessor(Config(model=str(other)), model_of(other))


@pytest.mark.parametrize("kind", KINDS)
def test_odd_sizes_are_taken_or_refused_before_they_are_large(
    kind: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor that makes the shorter side so and so long would make gigabytes of the other one."""
    processor = ImageProcessor(Config(max_media_pixels=1_000_000), model_of(vision_folder(kind, root)))
    resize = Image.Image.resize

    def resized(picture: Image.Image, size: tuple[int, int], *more: Any, **named: Any) -> Image.Image:
        assert size[0] * size[1] <= 1_000_000
        return resize(picture, size, *more, **named)

    monkeypatch.setattr(Image.Image, "resize", resized)
    for width, height in ((1, 1), (1, 2), (300, 2), (60_000, 1), (1, 60_000)):
        made = io.BytesIO()
        Image.new("RGB", (width, height)).save(made, "PNG")
        with contextlib.suppress(MediaRefused):
            assert processor.process(made.getvalue(), MediaSource("image", "")).count
