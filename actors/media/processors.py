"""The model's own processors: a picture to the tensors that the model takes, and what is written for it in the prompt.

Pixels by transformers' image processors (model/vision/processing.py). The text by expansion.py.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from ..model.info import ModelInfo, read_json
from ..model.media import OF_FILMS
from ..model.pooling.dual_encoder import NO_TOKEN
from ..model.tokenizers.tokenizer import load_tokenizer
from ..model.tokenizers.tokenizer_files import named_tokens
from ..model.vision.processing import image_arguments, load_image_processor
from ..model.vision.spec import PROCESSOR_FILE
from ..options.config import Config, ConfigError
from ..options.objects.media import processor_kwargs
from ..protocol.media import AUDIO, EMBEDS, IMAGE, PIXELS, VIDEO, MediaSource
from .expansion import EXPANSIONS, Expansion, ExpansionInput
from .pictures import Pictures
from .refused import MediaRefused

if TYPE_CHECKING:
    from PIL.Image import Image

BOUNDS = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}  # other names of sizes, in pixels
COLOURS, NUMBER_BYTES = 3, 4
STANDS_FOR = {IMAGE: "pictures", VIDEO: "films", AUDIO: "sounds"}


@dataclass(frozen=True)
class Processed:
    """What became of one picture, film or sound."""

    arrays: dict[str, np.ndarray]  # by the processor's names
    placeholder: str  # as chat templates and prompts write it
    text: str  # what is written instead
    token: int  # the id in whose places embeddings go
    count: int  # of these


class Processor(Protocol):
    """Of one modality."""

    def process(self, data: bytes, source: MediaSource) -> Processed | Iterator[Processed | None]:
        """What becomes of it, or steps until it is there. MediaRefused says what is wrong with the bytes."""


def make_processors(config: Config, model: ModelInfo) -> dict[str, Processor]:
    """Those of all modalities that the model takes, by their names, and that of given embeddings."""
    made: dict[str, Processor] = {}
    if IMAGE in model.media:
        made[IMAGE] = images = ImageProcessor(config, model)
        if config.enable_mm_embeds:
            made[EMBEDS] = importlib.import_module(".embeds", __package__).GivenEmbeddings(config, model)
        if VIDEO in model.media:
            made[VIDEO] = importlib.import_module(".films.processor", __package__).make_processor(config, model, images)
    if AUDIO in model.media:
        made[AUDIO] = importlib.import_module(".sound", __package__).make_processor(config, model)
    return made


def told_of(model: ModelInfo) -> ExpansionInput:
    """What the model's files say."""
    folder = Path(model.folder)
    processor = read_json(folder / PROCESSOR_FILE, missing_ok=True)
    named = named_tokens(Path(model.tokenizer_folder)) if model.tokenizer_folder else {}
    return ExpansionInput({}, processor, {}, read_json(folder / "config.json"), named)


class Marks:
    """What stands for something in a prompt."""

    def __init__(self, config: Config, model: ModelInfo, told: ExpansionInput, modality: str) -> None:
        whole = model.vision is not None and model.vision.whole_pictures
        self._step = config.max_num_batched_tokens if whole else None  # tokens, where one step has to compute them all
        self.expansion: Expansion = EXPANSIONS[told.config["model_type"]][modality]
        named: dict[str, Any] = {**told.processor, **told.tokens}
        self.placeholder = str(named.get(self.expansion.name) or self.expansion.placeholder)
        default, name = self.expansion.embedded
        self.embedded = str(named.get(name) or default)
        token = NO_TOKEN if self.expansion.alone else load_tokenizer(model).token_to_id(self.embedded)
        if token is None:
            raise ConfigError(f"model: its tokenizer has no {self.embedded}, which stands for {STANDS_FOR[modality]}")
        self.token = token
        self._runs = re.compile(f"(?:{re.escape(self.embedded)})+")

    def processed(self, arrays: dict[str, np.ndarray], text: str) -> Processed:
        """With these tensors, and this text. MediaRefused if no step is large enough for what has to be in one."""
        if self._step is not None:
            longest = max((len(run[0]) for run in self._runs.finditer(text)), default=0) // len(self.embedded)
            if longest > self._step:
                raise MediaRefused(
                    f"{longest} tokens of it are computed in one step, and a step has {self._step} at most "
                    "(--max-num-batched-tokens)."
                )
        return Processed(arrays, self.placeholder, text, self.token, text.count(self.embedded))


class ImageProcessor:
    """Pictures."""

    def __init__(self, config: Config, model: ModelInfo) -> None:
        self._pictures = Pictures(config)
        self._most_bytes, self._most_tokens = config.media_memory_bytes, model.max_model_len
        self._process = load_image_processor(Path(model.folder), processor_kwargs(config))
        self._told = replace(told_of(model), sizes=self._process.to_dict())
        self._marks = Marks(config, model, self._told, IMAGE)
        self._arguments = image_arguments(self._told.config, self._told.processor)

    @property
    def sizes(self) -> Mapping[str, Any]:
        """Of what it makes: transformers' processor's own settings."""
        return self._told.sizes

    def process(self, data: bytes, source: MediaSource) -> Processed:
        """See Processor."""
        picture = self._pictures.from_pixels(data, source.width) if source.form == PIXELS else self._pictures.read(data)
        outputs = self.outputs(picture, **self._changes(source))
        text = self._marks.expansion.text(replace(self._told, outputs=outputs), self._marks.embedded)
        arrays = {name: np.asarray(value) for name, value in outputs.items() if isinstance(value, np.ndarray)}
        return self._marks.processed(arrays, text)

    def _changes(self, source: MediaSource) -> dict[str, Any]:
        """What the request wants to be different."""
        asked = msgspec.json.decode(source.changes) if source.changes else {}
        found = {name: value for name, value in asked.items() if name not in (*OF_FILMS, *BOUNDS)}
        if edges := {edge: asked[name] for name, edge in BOUNDS.items() if name in asked}:
            found["size"] = {**dict(self._process.size), **found.get("size", {}), **edges}
        return found

    def outputs(self, picture: Image, **changes: Any) -> Mapping[str, Any]:
        """transformers' processor's, of one picture."""
        size = {**dict(self._process.size or {}), **(changes.get("size") or {})}
        self._check_shape(picture, size)
        try:
            self._check_grid(picture, size)
            found: Mapping[str, Any] = self._process(
                images=[picture], return_tensors="np", **{**self._arguments, **changes}
            )
        except MediaRefused:
            raise
        except (ValueError, ZeroDivisionError, OverflowError) as error:  # a side of it is too long for the other
            shape = "{} times {}".format(*picture.size)
            text = f"the model's processor does not take a picture of {shape} pixels: {str(error)[:200]}"
            raise MediaRefused(text) from None
        return found

    def _check_shape(self, picture: Image, size: Mapping[str, Any]) -> None:
        """Processors that make the shorter side so and so long make the longer one longer still."""
        shortest, longest = size.get("shortest_edge"), size.get("longest_edge")
        if not shortest or longest:
            return
        side = shortest * max(picture.size) // max(1, min(picture.size))
        self._pictures.check_resized(shortest, side)

    def _check_grid(self, picture: Image, size: Mapping[str, Any]) -> None:
        """Where tokens follow from a picture's size, before its pixels are made: a request may want more of them than
        the picture has.
        """
        least, most = size.get("shortest_edge"), size.get("longest_edge")
        if not self._marks.expansion.grid or not least or not most:
            return
        sizes = self._told.sizes
        bounds = {"min_pixels": least, "max_pixels": most}
        patches = self._process.get_number_of_image_patches(picture.height, picture.width, bounds)
        check_tokens(patches // int(sizes["merge_size"]) ** 2, self._most_tokens)
        numbers = patches * COLOURS * int(sizes["temporal_patch_size"]) * int(sizes["patch_size"]) ** 2
        if NUMBER_BYTES * numbers > self._most_bytes:
            text = f"processed it takes {NUMBER_BYTES * numbers} bytes of the {self._most_bytes}"
            raise MediaRefused(f"{text} that --media-memory-bytes gives.", 413)


def check_tokens(count: int, longest: int) -> None:
    """MediaRefused for something that alone takes as many tokens as the model."""
    if count >= longest:
        raise MediaRefused(f"it takes {count} tokens of the {longest} that the model takes.")
