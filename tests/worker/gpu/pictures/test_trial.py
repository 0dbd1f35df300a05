"""What a tower is tried with at the start: its memory is measured and given back, and one that fails ends the start."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from .seeing import Made, make_runner  # isort: skip  # before kernels are imported

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import ConfigError
from actorserve.actors.protocol.media import AUDIO, IMAGE
from actorserve.actors.worker.gpu import pictures as gpu_pictures
from actorserve.actors.worker.gpu.memory import NoRoom
from actorserve.actors.worker.gpu.pictures import try_tower
from actorserve.actors.worker.vision.trial import LARGE, make_trials
from tests.support.gpu import pretended_device
from tests.support.gpu.pretended_device import OnDevice, pretended
from tests.support.models.sounds.listeners import FRAMES, KINDS, MELS, listener
from tests.support.models.vision.families import FAMILIES
from tests.support.models.vision.reference import Source, picture
from tests.support.selection import slow

from ...driver import config_for
from .. import test_runner

QUICK = ("qwen2_vl", "llava_next", "internvl", "smolvlm")
SEEING = (*FAMILIES, "gemma4")
CACHE = 1 << 30  # bytes of embeddings that are kept
PRETENDED = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one that need not be pretended")


def picture_of(config: Any, info: Any) -> Any:
    """The largest; what a model hears is tried behind it."""
    return make_trials(config, info, large=True)[0]


def configured(folder: Path, **options: Any) -> tuple[Any, Any]:
    config = config_for(folder, device="cpu", block_size=16, encoder_cache_gb=1.0, **options)
    return config, resolve_model(config)


@PRETENDED
@pytest.mark.parametrize("family", ["qwen3_vl", *slow(*(family for family in FAMILIES if family != "qwen3_vl"))])
def test_its_memory_is_measured_and_given_back(family: str, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = made(family)
    about = configured(folder)
    with torch.inference_mode(False), pretended():
        monkeypatch.setattr(test_runner, "DEVICE", pretended_device.DEVICE)
        runner = make_runner(folder, Source())
        assert runner.pictures is not None
        gc.collect()
        before = OnDevice.memory.allocated
        small, large = (try_tower(*about, runner.pictures.vision, large) - CACHE for large in (False, True))
        assert 0 < small <= large < 1 << 24
        encoder = runner.pictures.vision.encoder
        assert OnDevice.memory.allocated == before and not len(encoder.cache)
    assert encoder.most_numbers == picture_of(*about).arrays["pixel_values"].size


@pytest.mark.parametrize("family", [*QUICK, *slow(*(family for family in SEEING if family not in QUICK))])
def test_the_largest_picture_is_as_large_as_requests_make_it(family: str, made: Made) -> None:
    """No picture has more numbers, whatever its size is."""
    reference, folder = made(family)
    about = configured(folder)
    large = picture_of(*about)
    most = max(
        reference.pixels(picture(0, *size))["pixel_values"].numel()
        for size in ((64, 64), (640, 480), (480, 640), (48, 20), (20, 48), (640, 20), (300, 300))
    )
    assert large.modality == IMAGE and large.arrays["pixel_values"].size >= most
    bounded, info = configured(folder, max_media_pixels=1 << 10, max_model_len=96)
    assert picture_of(bounded, info).arrays["pixel_values"].size <= large.arrays["pixel_values"].size


def test_tokens_bound_pictures_that_have_as_many_as_their_size_says(made: Made) -> None:
    _, folder = made("qwen3_vl")
    for length, patches in ((16, 64), (1 << 20, 256)):  # four become a token
        config, info = configured(folder)
        grid = picture_of(config, structs.replace(info, max_model_len=length)).arrays["image_grid_thw"]
        assert int(grid.prod()) == patches
    assert LARGE > 64 * 64, "what the processor's bound is"


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_sound_fills_the_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = listener(kind, tmp_path)
    about = configured(folder)
    small, large = (make_trials(*about, large)[0].arrays["input_features"] for large in (False, True))
    assert small.shape == (1, MELS, FRAMES)
    assert len(large) == (1 if kind == "qwen2_audio" else about[1].max_model_len // 25)
    pictures = make_runner(folder, Source()).pictures
    assert pictures is not None
    monkeypatch.setattr(gpu_pictures, "measure", lambda device, run: (run() or 7, 0))
    assert try_tower(*about, pictures.vision, large=True) == CACHE + 7


def test_what_sees_and_hears_is_tried_with_both(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 4 E2B: a picture, and half a minute of sound; what takes more is kept for."""
    _, folder = made("gemma4")
    pictures = make_runner(folder, Source()).pictures
    assert pictures is not None
    encoder = pictures.vision.encoder
    took, asked = iter((7, 9, 9, 7, 5)), []

    def measured(device: torch.device, run: Any) -> tuple[int, int]:
        run()
        asked.append(run.args[0])
        return next(took), 0

    monkeypatch.setattr(gpu_pictures, "measure", measured)
    most = []
    for large in (False, True):
        assert try_tower(*configured(folder), pictures.vision, large) == CACHE + 9
        most.append(encoder.most_numbers)
    assert asked == [IMAGE, AUDIO, IMAGE, AUDIO] and most[0] is None and most[1] is not None
    about = configured(folder, limit_mm_per_prompt='{"image": 0, "video": 0}')
    assert try_tower(*about, pictures.vision, large=True) == CACHE + 5 and asked[4:] == [AUDIO]


def test_who_may_bring_none_pays_nothing(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tower that would fail is not asked."""
    _, folder = made("llava")
    pictures = make_runner(folder, Source()).pictures
    assert pictures is not None
    monkeypatch.setattr(gpu_pictures, "measure", None)
    assert try_tower(*configured(folder, limit_mm_per_prompt='{"image": 0}'), pictures.vision, large=True) == 0
    assert try_tower(*configured(folder), None, large=True) == 0


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError("no kernel image is available"),
            r"its encoder cannot compute a picture of 64 times 64 pixels on this GPU .*no kernel image.*--device cpu "
            r"serves it; --limit-mm-per-prompt '{\"image\": 0}' serves texts alone$",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            r"a picture of .* takes more memory .*--max-media-pixels.*--device cpu",
        ),
    ],
)
def test_a_tower_that_fails_ends_the_start(
    made: Made, monkeypatch: pytest.MonkeyPatch, error: RuntimeError, words: str
) -> None:
    _, folder = made("llava")
    pictures = make_runner(folder, Source()).pictures
    assert pictures is not None

    def failing(*given: Any, **named: Any) -> Any:
        raise error

    encoder = pictures.vision.encoder
    monkeypatch.setattr(encoder, "_function", lambda name: (failing, {"pixel_values"}))
    monkeypatch.setattr(gpu_pictures, "measure", lambda device, run: (run(), 0))
    with pytest.raises(ConfigError, match=f"^model: LlavaForConditionalGeneration: {words}") as told:
        try_tower(*configured(folder), pictures.vision, large=False)
    assert isinstance(told.value, NoRoom) == isinstance(error, torch.OutOfMemoryError)  # one that pools goes to the CPU
