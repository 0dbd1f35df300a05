"""Films: which frames are taken, what becomes of them, and what is refused; beside transformers' own processors."""

from __future__ import annotations

import base64
import importlib
import io
import itertools
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.image_utils import SizeDict
from transformers.video_processing_utils import BaseVideoProcessor

from actorserve.actors.media.films import frames as frames_module
from actorserve.actors.media.films.frames import FileFrames, ListedFrames, chosen
from actorserve.actors.media.films.grids import ABSENT, frame_numbers, grid_of, patches_of
from actorserve.actors.media.films.texts import in_words
from actorserve.actors.media.pictures import Pictures
from actorserve.actors.media.processors import Processed, make_processors
from actorserve.actors.media.refused import MediaRefused
from actorserve.actors.media.steps import in_parts
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config
from actorserve.actors.options.objects.media import VideoReading
from actorserve.actors.protocol.media import BASE64, FRAMES, MediaSource
from tests.support.models.vision.films import decoded, film
from tests.support.models.vision.folders import picture, vision_folder

PIXELS = 1 << 20
FORMS = [
    ("mp4", "mpeg4"),
    ("mp4", "libx264"),
    ("matroska", "mpeg4"),
    ("webm", "libvpx"),
    ("avi", "mpeg4"),
    ("gif", "gif"),
]


def taken(data: bytes, **reading: Any) -> tuple[list[np.ndarray], FileFrames]:
    frames = FileFrames(data, VideoReading(**reading), PIXELS)
    return [np.asarray(shown) for shown in frames.steps() if shown is not None], frames


@pytest.mark.parametrize(("container", "codec"), FORMS)
@pytest.mark.parametrize("count", [3, 64])
def test_frames_are_those_of_the_whole_film(container: str, codec: str, count: int) -> None:
    data = film(23, container=container, codec=codec, rate=5)
    found, frames = taken(data, num_frames=count)
    assert frames.film is not None and frames.film.total == 23 and abs(frames.film.fps - 5) < 0.01
    assert frames.film.indices == ([0, 11, 22] if count == 3 else list(range(23)))
    every = decoded(data)
    assert [shown.tobytes() for shown in found] == [every[index].tobytes() for index in frames.film.indices]


@pytest.mark.parametrize(("container", "codec"), [("mp4", "mpeg4"), ("mp4", "libx264"), ("avi", "mpeg4")])
@pytest.mark.parametrize("number", [0, 7])
@pytest.mark.parametrize("timed", [True, False])
def test_a_damaged_part_of_a_film_is_left_out(
    container: str, codec: str, number: int, timed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As players do it; from the next whole picture on all is as it was."""
    data = bytearray(film(23, container=container, codec=codec, rate=5))
    every = decoded(bytes(data))
    start, size = packets(bytes(data))[number]
    data[start : start + size] = b"\xa5" * size
    if not timed:
        look = FileFrames._look
        monkeypatch.setattr(FileFrames, "_look", lambda *given: without_times(look(*given)))
    found, frames = taken(bytes(data), num_frames=64)
    assert frames.film is not None and frames.film.total == len(found) == 23
    whole = [shown.tobytes() for shown in every]
    later = [whole.index(shown.tobytes()) for shown in found[10:]]
    assert later == sorted(later) and len({*later}) > 5 and later[-1] == 22


def packets(data: bytes) -> list[tuple[int, int]]:
    """(place, bytes) of each."""
    av = importlib.import_module("av")
    with av.open(io.BytesIO(data)) as container:
        return [(one.pos, one.size) for one in container.demux(container.streams.video[0]) if one.size]


def without_times(looking: Any) -> Any:
    """As of a film whose packets do not say when they are shown."""
    yield from looking
    return [], []


def test_so_many_of_a_second() -> None:
    assert chosen(100, 25.0, VideoReading(fps=2)).indices == np.linspace(0, 99, 8).astype(int).tolist()
    assert chosen(100, 25.0, VideoReading(fps=0.1)).indices == [0]
    assert len(chosen(1000, 25.0, VideoReading(fps=2)).indices) == 32
    assert chosen(100, 25.0, VideoReading(num_frames=10)).sampled_fps == 2.5


def refusal(data: bytes, **reading: Any) -> str:
    with pytest.raises(MediaRefused) as caught:
        taken(data, **reading)
    return str(caught.value)


def test_what_is_no_film_is_refused() -> None:
    whole = film()
    assert "no film in a form that is read" in refusal(b"nothing of the kind" * 100)
    assert "no film in a form that is read" in refusal(b"")
    assert "no film in a form that is read" in refusal(b"#EXTM3U\nhttp://127.0.0.1/x\n")
    assert "no film in a form that is read" in refusal(b"ffconcat version 1.0\nfile /etc/passwd\n")
    assert "no" in refusal(whole[: len(whole) // 3])


def test_a_film_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    large = film(3, 1280, 1024)
    assert "1280 times 1024 pixels, more than the 1048576 that --max-media-pixels allows" in refusal(large)
    monkeypatch.setattr(frames_module, "MOST_FRAMES", 10)
    assert "more than 10 frames" in refusal(film(12))


def test_what_takes_too_long_is_given_up_and_others_have_turns_meanwhile() -> None:
    def endless(count: int | None = None) -> Any:
        for _ in itertools.count() if count is None else range(count):
            np.ones(1 << 16).sum()
            yield None
        yield 1

    with pytest.raises(MediaRefused, match=r"longer than 0\.2 s"):
        list(in_parts(endless(), 0.2))
    assert list(in_parts(endless(10), 10.0))[-1] == 1


def test_a_list_of_pictures_is_a_film() -> None:
    pictures = Pictures(Config(model="m"))
    one, two = (base64.b64encode(picture(24, 16, seed)) for seed in (1, 2))
    listed = ListedFrames(one + b"," + two, VideoReading(), pictures)
    assert [shown.size for shown in listed.steps() if shown] == [(24, 16)] * 2
    assert listed.film is not None and listed.film.fps == 1.0
    with pytest.raises(MediaRefused, match="frame 1: it is no picture"):
        list(ListedFrames(one + b"," + base64.b64encode(b"what"), VideoReading(), pictures).steps())
    with pytest.raises(MediaRefused, match="the base64 of frame 1 is wrong"):
        list(ListedFrames(one + b",!!", VideoReading(), pictures).steps())
    with pytest.raises(MediaRefused, match="3 frames, of which at most 2"):
        ListedFrames(b"a,b,c", VideoReading(num_frames=2), pictures)


SHAPES = [(2, 30, 400), (5, 500, 333), (32, 1080, 1920), (64, 40, 24), (181, 720, 1280)]  # frames, height, width
SHAPES += [(1, 30, 400), (1, 56, 56), (1, 1080, 1920), (3, 17, 99), (4, 7, 9), (7, 13, 200), (768, 361, 641)]


def video_processor(kind: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """transformers' own. What it imports of torchvision is not used here, and need not be installed."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        for name in ("", ".transforms", ".transforms.v2", ".transforms.v2.functional"):
            monkeypatch.setitem(sys.modules, f"torchvision{name}", types.ModuleType(f"torchvision{name}"))
    module = importlib.import_module(f"transformers.models.{kind}.video_processing_{kind}")
    return getattr(module, {"qwen2_vl": "Qwen2VLVideoProcessor", "qwen3_vl": "Qwen3VLVideoProcessor"}[kind])()


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl"])
@pytest.mark.parametrize("cap", [None, True])
def test_sizes_and_patches_are_those_of_transformers(
    kind: str, cap: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = video_processor(kind, monkeypatch)
    settings = {**ABSENT[kind], "cap_pixels_per_frame": cap}
    for name in ("patch_size", "merge_size", "temporal_patch_size", "image_mean", "image_std", "max_video_tokens"):
        own = getattr(theirs, name)
        assert (list(own) if isinstance(own, tuple) else own) == settings[name], name
    size = SizeDict(**settings["size"])
    wanted: list[tuple[int, int]] = []

    def resized(self: Any, image: Any, size: Any, **other: Any) -> Any:
        wanted.append((size.height, size.width))
        return image

    monkeypatch.setattr(BaseVideoProcessor, "resize", resized)
    for frames, height, width in SHAPES:
        if frames == 1 and kind == "qwen3_vl":  # which that refuses; here it is shown twice
            continue
        shown = torch.zeros(1, 1, 1, 1, 1).expand(1, frames, 3, height, width)
        about = {"resample": None, "factor": theirs.patch_size * 2, "temporal_factor": 2}
        theirs.resize(shown, size=size, cap_pixels_per_frame=cap, **about)
        grid = grid_of(frames, height, width, settings, kind == "qwen3_vl")
        assert (grid.height, grid.width) == wanted[-1], (frames, height, width)
    patch = settings["patch_size"]
    numbers = np.random.default_rng(0).random((3, 3, 4 * patch, 2 * patch), np.float32)
    sizes = {name: settings[name] for name in ("patch_size", "merge_size", "temporal_patch_size")}
    patches, *_ = theirs.patchify(torch.from_numpy(numbers)[None], **sizes)
    assert np.array_equal(patches[0].numpy(), patches_of(np.concatenate([numbers, numbers[-1:]]), settings))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def processed(kind: str, root: Path, data: bytes, form: str = BASE64, **options: Any) -> Processed:
    folder = vision_folder(kind, root)
    config = Config(model=str(folder), **options)
    made = make_processors(config, resolve_model(Config(model=str(folder), worker="scripted")))["video"]
    steps: Any = made.process(data, MediaSource("video", "", form=form))
    whole: Processed = next(one for one in steps if one is not None)
    return whole


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("count", [1, 2, 7, 20])
def test_texts_and_tensors_are_those_of_transformers(kind: str, count: int, root: Path) -> None:
    """By its own processor, of tensors that are ours."""
    from transformers import AutoTokenizer
    from transformers.video_utils import VideoMetadata

    data = film(20, 60, 40, rate=4)
    found = processed(kind, root, data, media_io_kwargs=f'{{"video": {{"num_frames": {count}}}}}')
    folder = vision_folder(kind, root)
    name = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor", "qwen3_vl": "Qwen3VLProcessor"}[kind]
    processor = getattr(importlib.import_module(f"transformers.models.{kind}.processing_{kind}"), name)
    theirs = processor.__new__(processor)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    theirs.video_token = tokenizer.video_token
    theirs.vision_start_token, theirs.vision_end_token = "<|vision_start|>", "<|vision_end|>"
    theirs.video_processor = type("Settings", (), {"merge_size": 2, "temporal_patch_size": 2})
    indices = np.linspace(0, 19, count).astype(int).tolist()
    metadata = VideoMetadata(total_num_frames=20, fps=4.0, frames_indices=indices)
    grid = found.arrays["video_grid_thw"]
    inputs = {"video_grid_thw": grid, "video_metadata": [metadata]}
    assert grid.tolist()[0][0] == -(-count // 2) and found.placeholder == tokenizer.video_token
    assert found.text == theirs.replace_video_token(inputs, 0)
    assert found.count == int(grid.prod()) // 4 == found.text.count("<|video_pad|>")
    assert len(found.arrays["pixel_values_videos"]) == int(grid.prod())
    seconds = found.arrays.get("second_per_grid_ts")
    assert (seconds is None) == (kind != "qwen2_5_vl")
    if seconds is not None:
        assert abs(float(seconds[0]) - 2 / metadata.sampled_fps) < 1e-6


def test_numbers_of_a_frame_are_those_of_a_picture(root: Path) -> None:
    """The image processor of the family makes the same of a frame that needs no other size."""
    from PIL import Image
    from transformers import AutoImageProcessor

    shown = Image.fromarray(np.random.default_rng(1).integers(0, 255, (32, 48, 3), dtype=np.uint8))
    theirs = AutoImageProcessor.from_pretrained(str(vision_folder("qwen2_vl", root)), backend="pil")
    wanted = theirs(images=[shown], return_tensors="np")
    settings = {**ABSENT["qwen2_vl"], "patch_size": 4, "image_mean": theirs.image_mean, "image_std": theirs.image_std}
    settings["size"] = dict(theirs.size)
    grid = grid_of(2, shown.height, shown.width, settings, by_film=False)
    numbers = np.stack([frame_numbers(shown, grid, settings)] * 2)
    assert wanted["image_grid_thw"].tolist()[0] == list(grid.patches(settings))
    assert np.abs(patches_of(numbers, settings) - wanted["pixel_values"]).max() < 1e-6


def test_frames_of_internvl_are_pictures(root: Path) -> None:
    found = processed("internvl", root, film(9, 40, 28), media_io_kwargs='{"video": {"num_frames": 3}}')
    one = "<img>" + "<IMG_CONTEXT>" * 4 + "</img>"
    assert found.placeholder == "<video>" and found.text == "\n".join(f"Frame{number}: {one}" for number in (1, 2, 3))
    assert found.arrays["pixel_values"].shape == (3, 3, 28, 28) and found.count == 12


@pytest.mark.parametrize(("count", "shown"), [(1, 1), (3, 3), (32, 9)])
def test_frames_of_smolvlm_have_their_times(
    count: int, shown: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own processor; each frame is what that of pictures makes of one that is not divided."""
    from transformers import AutoImageProcessor
    from transformers.models.smolvlm import processing_smolvlm
    from transformers.video_utils import VideoMetadata

    monkeypatch.setattr(processing_smolvlm, "num2words", in_words)
    folder, data = vision_folder("smolvlm", root), film(9, 40, 28, rate=1)
    found = processed("smolvlm", root, data, media_io_kwargs=f'{{"video": {{"num_frames": {count}}}}}')
    theirs = processing_smolvlm.SmolVLMProcessor.__new__(processing_smolvlm.SmolVLMProcessor)
    theirs.image_token, theirs.global_image_token = "<image>", "<global-img>"
    theirs.fake_image_token, theirs.image_seq_len = "<fake_token_around_image>", 4
    indices = np.linspace(0, 8, shown).astype(int).tolist()
    metadata = VideoMetadata(total_num_frames=9, fps=1.0, duration=9.0, frames_indices=indices)
    inputs = {"pixel_values": np.zeros((1, shown, 3, 1, 1)), "video_metadata": [metadata]}
    assert found.text == theirs.replace_video_token(inputs, 0) and found.placeholder == "<video>"
    assert found.count == 4 * shown == found.text.count("<image>")
    pictures = AutoImageProcessor.from_pretrained(str(folder), backend="pil")
    one = pictures(images=[decoded(data)[indices[-1]]], do_image_splitting=False, return_tensors="np")["pixel_values"]
    assert np.array_equal(found.arrays["pixel_values"][-1], one[0, 0])
    assert found.arrays["pixel_values"].shape == (shown, *one.shape[2:])


@pytest.mark.parametrize(("count", "said"), [(1, None), (4, None), (32, 140)])
def test_frames_of_gemma_4_have_their_times_and_places(count: int, said: int | None, root: Path) -> None:
    """By its own processor; each frame is what that of pictures makes of one of fewer tokens."""
    from transformers import AutoImageProcessor
    from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
    from transformers.video_utils import VideoMetadata

    folder, data = vision_folder("gemma4", root / str(said)), film(90, 40, 28, rate=1)
    if said is not None:
        (folder / "video_preprocessor_config.json").write_text(f'{{"max_soft_tokens": {said}}}')
    found = processed("gemma4", root / str(said), data, media_io_kwargs=f'{{"video": {{"num_frames": {count}}}}}')
    pictures = AutoImageProcessor.from_pretrained(str(folder), backend="pil")
    indices = np.linspace(0, 89, count).astype(int).tolist()
    one = pictures(images=[decoded(data)[indices[-1]]], max_soft_tokens=said or 70, return_tensors="np")
    theirs: Any = Gemma4Processor.__new__(Gemma4Processor)
    theirs.boi_token, theirs.eoi_token, theirs.video_token = "<|image>", "<image|>", "<|video|>"
    metadata = VideoMetadata(total_num_frames=90, fps=1.0, duration=90.0, frames_indices=indices)
    inputs = {"num_soft_tokens_per_video": one["num_soft_tokens_per_image"], "video_metadata": [metadata]}
    assert found.text == theirs.replace_video_token(inputs, 0) and found.placeholder == "<|video|>"
    assert found.count == count * int(one["num_soft_tokens_per_image"][0]) == found.text.count("<|video|>")
    assert np.array_equal(found.arrays["pixel_values_videos"][-1], one["pixel_values"][0])
    assert np.array_equal(found.arrays["video_position_ids"], one["image_position_ids"].repeat(count, 0))
    assert found.arrays["num_frames_per_video"].tolist() == [count]


@pytest.mark.parametrize(
    ("number", "words"), [(7, "seven"), (30, "thirty"), (64, "sixty-four"), (700, "seven hundred")]
)
def test_numbers_in_words(number: int, words: str) -> None:
    assert in_words(number) == words
    assert in_words(768) == "seven hundred and sixty-eight"


def test_a_list_of_frames_goes_the_same_way(root: Path) -> None:
    listed = b",".join(base64.b64encode(picture(24, 16, seed)) for seed in range(3))
    found = processed("qwen3_vl", root, listed, FRAMES)
    assert found.text.startswith("<0.5 seconds><|vision_start|>") and "<2.0 seconds>" in found.text


def test_what_becomes_of_it_is_bounded(root: Path) -> None:
    with pytest.raises(MediaRefused, match="more than"):
        processed("qwen2_vl", root, film(8, 64, 48), max_media_pixels=1 << 10)
    large = '{"size": {"shortest_edge": 200000, "longest_edge": 400000}, "patch_size": 14}'
    with pytest.raises(MediaRefused, match=r"that --media-memory-bytes gives") as caught:
        processed("qwen2_vl", root, film(8, 64, 48), media_memory_bytes=1 << 20, mm_processor_kwargs=large)
    assert caught.value.status == 413
    large = '{"size": {"shortest_edge": 200000, "longest_edge": 400000}}'
    with pytest.raises(MediaRefused, match=r"tokens of the 4096 that the model takes; fewer frames"):
        processed("qwen2_vl", root, film(8, 64, 48), mm_processor_kwargs=large)
