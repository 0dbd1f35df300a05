"""Films to the tensors that a model takes, and what is written for them in the prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ...model.info import ModelInfo
from ...model.media import OF_FILMS
from ...model.vision.films import FILES, film_values, most_frame_tokens
from ...model.vision.spec import SOFT_TOKENS
from ...options.config import Config
from ...options.objects.media import media_reading, processor_kwargs
from ...protocol.media import FRAMES, VIDEO, MediaSource
from ..expansion import ExpansionInput
from ..pictures import Pictures
from ..processors import BOUNDS, ImageProcessor, Marks, Processed, told_of
from ..refused import MediaRefused
from ..steps import in_parts
from .frames import FileFrames, Film, Frames, ListedFrames
from .grids import ABSENT, Grid, frame_numbers, grid_of, patches_of
from .texts import frame_tokens

if TYPE_CHECKING:
    from PIL.Image import Image

BYTES = 4  # of a number
SMOLVLM, GEMMA4 = "smolvlm", "gemma4"


class FilmProcessor:
    """Of one family."""

    def __init__(self, config: Config, model: ModelInfo, told: ExpansionInput) -> None:
        self._pictures = Pictures(config)
        self._pixels, self._most_bytes = config.max_media_pixels, config.media_memory_bytes
        self._most_tokens = model.max_model_len
        self._reading = media_reading(config).video
        self._told = told
        self._marks = Marks(config, model, told, VIDEO)

    def process(self, data: bytes, source: MediaSource) -> Iterator[Processed | None]:
        """In small steps: None until it is there."""
        own = self.changed(msgspec.json.decode(source.changes)) if source.changes else self
        return in_parts(own._steps(own._frames(data, source)))

    def changed(self, changes: dict[str, Any]) -> FilmProcessor:
        """One that does as a request wants."""
        own = copy(self)
        told = {name: changes[name] for name in OF_FILMS if name in changes}
        own._reading = msgspec.structs.replace(self._reading, **told)
        return own

    def _frames(self, data: bytes, source: MediaSource) -> Frames:
        if source.form == FRAMES:
            return ListedFrames(data, self._reading, self._pictures)
        return FileFrames(data, self._reading, self._pixels)

    def _steps(self, frames: Frames) -> Iterator[Processed | None]:
        made: list[np.ndarray] = []
        size, grid = (0, 0), Grid(0, 0, 0)
        for shown in frames.steps():
            yield None
            if shown is None:
                continue
            assert frames.film is not None
            if not made:
                size = shown.size
                grid = self.begin(frames.film, shown)
            elif shown.size != size:
                raise MediaRefused("its frames are not all of one size.")
            made.append(self.numbers(shown, grid))
        assert frames.film is not None
        yield self._whole(self.finish(frames.film, made, grid))

    def begin(self, film: Film, first: Image) -> Grid:
        """What its frames become; MediaRefused if that is too much."""
        raise NotImplementedError

    def numbers(self, shown: Image, grid: Grid) -> np.ndarray:
        """Of one frame."""
        raise NotImplementedError

    def finish(self, film: Film, made: list[np.ndarray], grid: Grid) -> dict[str, Any]:
        """The processor's outputs: arrays are kept."""
        raise NotImplementedError

    def check(self, tokens: int, size: int) -> None:
        """So many tokens and bytes would become of it."""
        if tokens >= self._most_tokens:
            raise MediaRefused(
                f"it takes {tokens} tokens of the {self._most_tokens} that the model takes; fewer frames take less "
                '(--media-io-kwargs \'{"video": {"num_frames": N}}\').'
            )
        if size > self._most_bytes:
            text = f"processed it takes {size} bytes of the {self._most_bytes} that --media-memory-bytes gives."
            raise MediaRefused(text, 413)

    def _whole(self, outputs: dict[str, Any]) -> Processed:
        text = self._marks.expansion.text(replace(self._told, outputs=outputs), self._marks.embedded)
        arrays = {name: value for name, value in outputs.items() if isinstance(value, np.ndarray)}
        return self._marks.processed(arrays, text)


class GridFilms(FilmProcessor):
    """Qwen-VL's: patches of two frames each, of a size that follows from the film's."""

    def __init__(self, config: Config, model: ModelInfo, told: ExpansionInput) -> None:
        super().__init__(config, model, told)
        self._by_film = told.config["model_type"].startswith("qwen3")
        self._timed = told.config["model_type"] == "qwen2_5_vl"
        self.settings: dict[str, Any] = film_settings(Path(model.folder), told, processor_kwargs(config))

    def changed(self, changes: dict[str, Any]) -> GridFilms:
        """See FilmProcessor."""
        own = super().changed(changes)
        assert isinstance(own, GridFilms)
        own.settings = {**self.settings, "size": bounded(self.settings["size"] | changes.get("size", {}), changes)}
        return own

    def begin(self, film: Film, first: Image) -> Grid:
        """See FilmProcessor."""
        count = len(film.indices)
        grid = grid_of(count, first.height, first.width, self.settings, self._by_film)
        tokens = int(np.prod(grid.patches(self.settings))) // self.settings["merge_size"] ** 2
        self.check(tokens, BYTES * 3 * grid.frames * grid.height * grid.width)
        return grid

    def numbers(self, shown: Image, grid: Grid) -> np.ndarray:
        """See FilmProcessor."""
        return frame_numbers(shown, grid, self.settings)

    def finish(self, film: Film, made: list[np.ndarray], grid: Grid) -> dict[str, Any]:
        """See FilmProcessor."""
        padded = np.stack(made + made[-1:] * (grid.frames - len(made)))
        outputs: dict[str, Any] = {
            "pixel_values_videos": patches_of(padded, self.settings),
            "video_grid_thw": np.array([grid.patches(self.settings)], np.int64),
            "film": film,
            "settings": self.settings,
        }
        if self._timed:
            seconds = self.settings["temporal_patch_size"] / film.sampled_fps
            outputs["second_per_grid_ts"] = np.array([seconds], np.float32)
        return outputs


class PictureFilms(FilmProcessor):
    """InternVL's and SmolVLM's: each frame is a picture that is not divided."""

    def __init__(self, config: Config, model: ModelInfo, told: ExpansionInput, images: ImageProcessor) -> None:
        super().__init__(config, model, told)
        self._images = images
        self._arguments = picture_arguments(Path(model.folder), told)

    def begin(self, film: Film, first: Image) -> Grid:
        """See FilmProcessor."""
        count = frame_tokens(self._told)
        none = Grid(len(film.indices), 0, 0)
        self.check(count * len(film.indices), BYTES * len(film.indices) * self.numbers(first, none).size)
        return none

    def numbers(self, shown: Image, grid: Grid) -> np.ndarray:
        """See FilmProcessor."""
        found = np.asarray(self._images.outputs(shown, **self._arguments)["pixel_values"])
        return found.reshape(-1, *found.shape[-3:])

    def finish(self, film: Film, made: list[np.ndarray], grid: Grid) -> dict[str, Any]:
        """See FilmProcessor."""
        return {"pixel_values": np.concatenate(made), "film": film}


class PatchFilms(FilmProcessor):
    """Gemma 4's: each frame is a picture of fewer tokens than others, whose patches have their places beside them."""

    def __init__(self, config: Config, model: ModelInfo, told: ExpansionInput, images: ImageProcessor) -> None:
        super().__init__(config, model, told)
        self._images = images
        self._settings = {SOFT_TOKENS: most_frame_tokens(Path(model.folder))}

    def begin(self, film: Film, first: Image) -> Grid:
        """See FilmProcessor. In patches."""
        made = self._images.outputs(first, **self._settings)
        wide, high = (int(most) + 1 for most in made["image_position_ids"][0].max(0))
        grid = Grid(len(film.indices), high, wide)
        self.check(grid.frames * self._tokens(grid), BYTES * grid.frames * made["pixel_values"].size)
        return grid

    def numbers(self, shown: Image, grid: Grid) -> np.ndarray:
        """See FilmProcessor. With patches of none behind them."""
        return np.asarray(self._images.outputs(shown, **self._settings)["pixel_values"])

    def finish(self, film: Film, made: list[np.ndarray], grid: Grid) -> dict[str, Any]:
        """See FilmProcessor."""
        places = np.full((grid.frames, made[0].shape[1], 2), -1, np.int64)
        places[:, : grid.height * grid.width] = np.argwhere(np.ones((grid.height, grid.width)))[:, ::-1]
        return {
            "pixel_values_videos": np.concatenate(made),
            "video_position_ids": places,
            "num_frames_per_video": np.array([grid.frames], np.int64),
            "frame_tokens": self._tokens(grid),
            "film": film,
        }

    def _tokens(self, grid: Grid) -> int:
        """Of a frame."""
        return grid.height * grid.width // int(self._images.sizes["pooling_kernel_size"]) ** 2


def picture_arguments(folder: Path, told: ExpansionInput) -> dict[str, Any]:
    """With which the processor of pictures makes one of a frame."""
    if told.config["model_type"] == SMOLVLM:
        given = film_values(folder, FILES)
        sized = (given.get("video_sampling") or {}).get("video_size") or given.get("size")
        more = {"size": sized, "max_image_size": given.get("max_image_size")}
        return {"do_image_splitting": False, **{name: value for name, value in more.items() if value}}
    sized = film_values(folder).get("size")
    return {"crop_to_patches": False, **({"size": sized} if sized else {})}


def film_settings(folder: Path, told: ExpansionInput, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What the model's files say of films, and where they do not what transformers takes."""
    kind = "qwen3_vl" if told.config["model_type"].startswith("qwen3") else "qwen2_vl"
    given = film_values(folder, FILES)
    found = {**ABSENT[kind], **{name: value for name, value in {**given, **changes}.items() if value is not None}}
    return {**found, "size": bounded(found["size"], found)}


def bounded(size: Mapping[str, int], values: Mapping[str, Any]) -> dict[str, int]:
    """Sizes with what the values say of them by other names."""
    return {**size, **{edge: values[name] for name, edge in BOUNDS.items() if name in values}}


def make_processor(config: Config, model: ModelInfo, images: ImageProcessor) -> FilmProcessor:
    """Of the model's family."""
    told = told_of(model)
    if told.config["model_type"] in ("internvl", SMOLVLM):
        return PictureFilms(config, model, told, images)
    if told.config["model_type"] == GEMMA4:
        return PatchFilms(config, model, told, images)
    return GridFilms(config, model, told)
