"""Models that see, and of which some hear, whose text part is computed by layers of transformers: what there is of eyes
and ears.

They do so on a CPU, each worker of a group with all that sees and hears, and some on a GPU; beside no draft model.
Elsewhere, and where the folder has no file of a processor, they go on with texts alone.
"""

from __future__ import annotations

from pathlib import Path

from ...options.config import Config
from ...options.objects.media import processor_kwargs
from ...options.objects.speculative import LookupOptions, read_speculative
from ..config_json import TRANSFORMERS, architecture_name
from ..memory.machine import may_have_gpu
from ..values import Values, read_json
from .films import most_frame_tokens
from .spec import PROCESSOR_FILE, SOFT_TOKENS, VisionSpec
from .texts import LARGEST, SEES

PLACES = {  # of each architecture: what names its tokens, and what they are where config.json does not say
    "Gemma4ForConditionalGeneration": {
        **{"image_token_id": 258_880, "audio_token_id": 258_881, "video_token_id": 258_884},
    },
    "MistralLarge4ForConditionalGeneration": {"image_token_index": 10},
    "Glm5NextForConditionalGeneration": {"image_token_id": 154_854},
}
ON_GPU = ("Gemma4ForConditionalGeneration",)  # those whose text part is computed there
MOST_SOFT_TOKENS = 280
FILES = (PROCESSOR_FILE, "preprocessor_config.json")  # one of which tells how pictures become tensors


def adapted_vision(config: Config, whole: Values, folder: Path) -> VisionSpec | None:
    """None: the model reads texts alone."""
    text = whole.object("text_config")
    name = architecture_name(whole)
    places = PLACES.get(name)
    if places is None or whole.object(SEES) is None or text is None:
        return None
    if config.model_impl == TRANSFORMERS or not isinstance(read_speculative(config), LookupOptions | None):
        return None
    if config.pipeline_parallel_size > 1 or not any((folder / name).is_file() for name in FILES):
        return None
    if name not in ON_GPU and config.device != "cpu" and may_have_gpu():
        return None
    together = text.text("use_bidirectional_attention") == "vision"
    named = ((whole.whole(name, 0, LARGEST), absent) for name, absent in places.items())
    return VisionSpec(
        kind=whole.text("model_type") or "",
        placeholders=tuple(absent if place is None else place for place, absent in named),
        hidden=text.needed("hidden_size", LARGEST),
        whole_pictures=together,
        within_windows=together,
        span=_most_tokens(config, folder) if together else 0,
    )


def _most_tokens(config: Config, folder: Path) -> int:
    """Of one picture, by --mm-processor-kwargs or the processor's files, or of one frame of a film."""
    files = (read_json(folder / name, missing_ok=True) for name in FILES)
    parts = [processor_kwargs(config), *(file.get("image_processor") or file for file in files)]
    told = (int(part[SOFT_TOKENS]) for part in parts if isinstance(part.get(SOFT_TOKENS), int))
    return max(next(told, MOST_SOFT_TOKENS), most_frame_tokens(folder))
