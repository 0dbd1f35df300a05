"""Tensors that clients send: the same as torch reads them, and nothing else."""

from __future__ import annotations

import base64
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from actorserve.actors.media.embeds import GivenEmbeddings
from actorserve.actors.media.refused import MediaRefused
from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.vision.spec import VisionSpec
from actorserve.actors.model.weights.saved_tensor import UnreadableTensor, read_tensor
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.media import EMBEDS, MediaSource
from actorserve.http.errors import ApiError
from actorserve.http.generation.prompts import check_messages
from actorserve.http.settings import MediaRules
from tests.support.models.vision.folders import vision_folder


def saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


WHOLE = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 7


@pytest.mark.parametrize(
    "tensor",
    [
        *(WHOLE.to(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64)),
        *(WHOLE.T, WHOLE[1:3, ::2], WHOLE[2], torch.nn.Parameter(WHOLE)),
    ],
)
def test_a_tensor_is_what_torch_reads(tensor: torch.Tensor) -> None:
    data = saved(tensor)
    wanted = torch.load(io.BytesIO(data), weights_only=True).detach()
    found = read_tensor(data)
    assert found.shape == tuple(wanted.shape) and np.array_equal(found, wanted.float().numpy().astype(found.dtype))


class Deadly:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/never",)


def zipped(kind: int) -> bytes:
    """The same entries, otherwise compressed."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(WHOLE))) as old, zipfile.ZipFile(file, "w", kind) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no tensor as torch.save"),
        (b"PK\3\4 and more", "no tensor as torch.save"),
        (saved(WHOLE)[:-200], "no tensor as torch.save"),
        (saved({"a": WHOLE}), "something with tensors in it"),
        (saved(Deadly()), "only tensors are read"),
        (saved(torch.zeros(0, 4)), "no numbers"),
        (saved(torch.zeros(1).expand(1000, 1000)), "again and again"),
        (saved(torch.zeros(2, dtype=torch.bool)), "floats and integers are read"),
        (zipped(zipfile.ZIP_DEFLATED), "no tensor as torch.save"),
        (saved([WHOLE, WHOLE + 1]), "there are several"),
        (saved(WHOLE.to_sparse()), "only tensors are read"),
    ],
)
def test_anything_else_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(UnreadableTensor, match=said):
        read_tensor(data)
    assert not Path("/tmp/never").exists()


def text_of(tensor: torch.Tensor) -> str:
    return base64.b64encode(saved(tensor)).decode()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def given(kind: str, root: Path, **tensors: torch.Tensor) -> Any:
    folder = vision_folder(kind, root)
    config = Config(model=str(folder), enable_mm_embeds=True, max_media_bytes=1 << 16)
    model = resolve_model(Config(model=str(folder), worker="scripted"))
    spec = VisionSpec(kind=kind, placeholders=(1,), hidden=64, deepstack=2 if kind == "qwen3_vl" else 0)
    model = msgspec.structs.replace(model, vision=spec)
    data = msgspec.json.encode({name: text_of(tensor) for name, tensor in tensors.items()})
    return GivenEmbeddings(config, model).process(data, MediaSource("image", "", form=EMBEDS))


def test_as_many_tokens_are_written_as_there_are_embeddings(root: Path) -> None:
    grid = torch.tensor([[1, 4, 6]])
    for width in (64, 192):
        made = given("qwen3_vl", root, image_embeds=torch.zeros(6, width), image_grid_thw=grid)
        assert (
            made.text == "<|image_pad|>" * 6
            and made.count == 6
            and set(made.arrays) == {"image_embeds", "image_grid_thw"}
        )
    assert given("llava", root, image_embeds=torch.zeros(1, 5, 64)).text == "<image>" * 5
    assert given("gemma3", root, image_embeds=torch.zeros(4, 64)).text.count("<image_soft_token>") == 4
    assert given("internvl", root, image_embeds=torch.zeros(4, 64)).text == "<img>" + "<IMG_CONTEXT>" * 4 + "</img>"


def test_no_picture_is_larger_than_the_step_that_has_to_compute_all_of_it(root: Path) -> None:
    """Where its tokens see one another; no step would ever have room for it."""

    def given_to(whole: bool, rows: int) -> str:
        folder = vision_folder("gemma4", root)
        config = Config(model=str(folder), enable_mm_embeds=True, max_num_batched_tokens=100)
        spec = VisionSpec(kind="gemma4", placeholders=(1,), hidden=64, whole_pictures=whole)
        model = msgspec.structs.replace(resolve_model(Config(model=str(folder), worker="scripted")), vision=spec)
        data = msgspec.json.encode({"image_embeds": text_of(torch.zeros(rows, 64))})
        return GivenEmbeddings(config, model).process(data, MediaSource("image", "", form=EMBEDS)).text

    assert given_to(True, 100).count("<|image|>") == 100 and given_to(False, 101).count("<|image|>") == 101
    with pytest.raises(MediaRefused, match=r"101 tokens of it .* a step has 100 at most \(--max-num-batched-tokens\)"):
        given_to(True, 101)


@pytest.mark.parametrize(
    ("kind", "tensors", "said"),
    [
        ("qwen3_vl", {"image_embeds": torch.zeros(6, 64)}, "wants image_grid_thw"),
        ("qwen3_vl", {"image_embeds": torch.zeros(6, 64), "image_grid_thw": torch.tensor([1, 4, 4])}, "not that of 6"),
        ("qwen3_vl", {"image_embeds": torch.zeros(6, 64), "image_grid_thw": torch.tensor([2, 4, 3])}, "not that of 6"),
        ("qwen3_vl", {"image_embeds": torch.zeros(6, 64), "image_grid_thw": torch.tensor([3, 4, 2])}, "a film"),
        ("llava", {"image_embeds": torch.zeros(6, 65)}, "rows have 65 numbers, 64 are needed"),
        ("llava", {"image_embeds": torch.full((6, 64), torch.inf)}, "infinite or none"),
        ("llava", {"image_embeds": torch.zeros(6)}, r"the shape \[6\] of float32"),
        ("llava", {"image_embeds": torch.zeros(6, 64, dtype=torch.int64)}, "of int64"),
        ("llava", {"image_embeds": torch.zeros(400, 64)}, "--max-media-bytes"),
        ("llava", {"image_embeds": torch.zeros(6, 64), "more": torch.zeros(1)}, "tensors by the names image_embeds"),
        ("llava", {"image_embeds": torch.zeros(6, 64), "image_grid_thw": torch.ones(3)}, "have no image_grid_thw"),
        ("gemma3", {"image_embeds": torch.zeros(5, 64)}, "it has 5 embeddings; this model's pictures have 4"),
        ("pixtral", {"image_embeds": torch.zeros(5, 64)}, "have rows"),
        ("smolvlm", {"image_embeds": torch.zeros(5, 64)}, "of several parts"),
    ],
)
def test_shapes_are_checked(kind: str, tensors: dict[str, torch.Tensor], said: str, root: Path) -> None:
    with pytest.raises(MediaRefused, match=said):
        given(kind, root, **tensors)


def test_they_are_taken_where_the_operator_says_so() -> None:
    part = {"type": "image_embeds", "image_embeds": text_of(torch.zeros(2, 2)), "uuid": "mine"}
    body = msgspec.Raw(msgspec.json.encode([{"role": "user", "content": [part]}]))
    with pytest.raises(ApiError, match="--enable-mm-embeds") as caught:
        check_messages(body, MediaRules({"image": 1}, 1 << 20, False))
    assert caught.value.param == "messages[0].content[0].image_embeds"
    messages, [source] = check_messages(body, MediaRules({"image": 1}, 1 << 20, False, embeds=True))
    assert (source.form, source.uuid, source.modality) == (EMBEDS, "mine", "image")
    assert msgspec.json.decode(messages)[0]["content"] == [{"type": "image"}]
