"""Which of transformers' classes a checkpoint is of, by its config.json, or with --trust-remote-code the one beside its
weights; and what is said where there is none, or where code that is not ours fails. ConfigError has the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from ....model.info import ModelInfo, read_json
from ....model.layers import HEAD
from ....model.vision.refused import TEXTS_BY_TRANSFORMERS, instead, text_parts
from ....model.vision.texts import KINDS, text_name
from ....model.weights.weight_files import tensor_names
from ....options.config import ConfigError
from .bailing_v3 import BailingMoeV3ForCausalLM, layer_types
from .step3p5 import Step3p5

log = logging.getLogger("worker")
VERSION = f"transformers {transformers.__version__}"
OURS: dict[str, Any] = {  # made of what transformers has, which lacks some of it
    "BailingMoeV3ForCausalLM": BailingMoeV3ForCausalLM,
    "Step3p5ForCausalLM": Step3p5,
}


def keep_quiet() -> None:
    """No progress bars, and of warnings only what we say ourselves."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def read_config(info: ModelInfo, trust: bool) -> Any:
    """transformers', of what goes on with texts."""
    values = read_json(Path(info.folder) / "config.json")
    own = "auto_map" in values and not trust
    kind = values.get("model_type")
    if isinstance(kind, str) and kind not in CONFIG_MAPPING and not (own or trust):
        other = "a newer transformers may, or --trust-remote-code where its publisher has code for the folder"
        raise refused_model(info, f"{VERSION} has no class for the model_type {kind}; {other}")
    instead = "--trust-remote-code runs the code beside its weights" if own else "a newer transformers may"
    with code_of_others(
        lambda reason: refused_model(info, f"{VERSION} does not read its config.json ({reason}); {instead}")
    ):
        theirs = trust and "AutoConfig" in (values.get("auto_map") or {})
        if (
            isinstance(kind, str)
            and kind in CONFIG_MAPPING
            and not theirs
            and (points := _with_points(CONFIG_MAPPING[kind], values))
        ):
            whole = CONFIG_MAPPING[kind].from_dict(values | points, name_or_path=info.folder)
        else:
            whole = AutoConfig.from_pretrained(info.folder, trust_remote_code=trust, local_files_only=True)
    if info.architecture in TEXTS_BY_TRANSFORMERS:
        outside, whole = whole, whole.get_text_config(decoder=True)
        if whole.dtype is None:
            whole.dtype = outside.dtype
        tied = getattr(outside, "tie_word_embeddings", None)  # by default, too, which a checkpoint may not be
        if tied and ("tie_word_embeddings" in values or not _has_head(Path(info.folder))):
            whole.tie_word_embeddings = True
    if _apart(whole, info) is BailingMoeV3ForCausalLM and values.get("layer_types") is None:
        whole.layer_types = layer_types(whole)
    for part in (whole, whole.get_text_config(decoder=True)):
        if hasattr(part, "quantization_config"):  # weights are decoded here
            del part.quantization_config
    return whole


def _with_points(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Whole numbers in config.json where transformers takes none but those that are written with a point, of this
    class and of its parts', which are there as a whole.
    """
    points: dict[str, Any] = {}
    for one in fields(kind) if is_dataclass(kind) else ():
        if one.type in (float, float | None) and type(own := values.get(one.name)) is int:
            points[one.name] = float(own)
    for name, part in (getattr(kind, "sub_configs", None) or {}).items():
        if isinstance(own := values.get(name), dict):
            named = str(own.get("model_type"))
            own_kind = CONFIG_MAPPING[named] if named in CONFIG_MAPPING else part  # noqa: SIM401 (its get finds nothing)
            inner = _with_points(own_kind, own)
            points |= {name: own | inner} if inner else {}
    return points


def _has_head(folder: Path) -> bool:
    """Does a checkpoint have what makes logits apart from its embeddings?"""
    return any(text_name(name) == f"{HEAD}.weight" for name in tensor_names(folder))


def maker(whole: Any, info: ModelInfo, trust: bool) -> Callable[..., Any]:
    """Of a model without weights. Some classes are not in transformers' own table of those that go on with texts."""
    if (own := _apart(whole, info)) is not None:
        return partial(own._from_config)
    return partial(AutoModelForCausalLM.from_config, trust_remote_code=trust)


def _apart(whole: Any, info: ModelInfo) -> Any:
    """Such a class, if it is the checkpoint's own; or one that sees, and is asked for texts alone; or one of ours."""
    if (ours := OURS.get(info.architecture)) is not None:
        return ours if ours.config_class is type(whole) else None
    sees = type(whole) in AutoModelForImageTextToText._model_mapping and info.architecture not in KINDS
    if type(whole) in AutoModelForCausalLM._model_mapping or not (sees or info.architecture.endswith("ForCausalLM")):
        return None
    own = getattr(transformers, info.architecture, None)
    return own if isinstance(own, type) and getattr(own, "config_class", None) is type(whole) else None


def check_class(whole: Any, info: ModelInfo, trust: bool) -> None:
    """Its class is one that goes on with texts, and the one that the checkpoint was made with."""
    if trust and "AutoModelForCausalLM" in (getattr(whole, "auto_map", None) or {}):
        return
    if _apart(whole, info) is not None:
        return
    known = AutoModelForCausalLM._model_mapping
    if type(whole) not in known:
        raise refused_model(
            info, f"{VERSION} has no model of this kind that goes on with texts{_parts(whole, info, known)}"
        )
    classes: Any = known[type(whole)]
    names = [one.__name__ for one in (classes if isinstance(classes, tuple | list) else [classes])]
    own = f"{type(whole).__name__.removesuffix('Config')}ForCausalLM"  # of a kind that has another's class there
    known_names = {one.lower() for one in (*names, own)}  # publishers' letters differ in case
    if not {one.lower() for one in (info.architecture, TEXTS_BY_TRANSFORMERS.get(info.architecture, ""))} & known_names:
        said = f"of its kind transformers goes on with texts by {' or '.join(names)} alone"
        raise refused_model(info, f"{said}; a checkpoint of that class can be served")


def _parts(whole: Any, info: ModelInfo, known: Any) -> str:
    """What to say beside it of a model that sees or hears, or has a text part of a kind that can be served."""
    text = whole.get_text_config(decoder=True)
    own = known[type(text)] if text is not whole and type(text) in known else None
    name = own[0].__name__ if isinstance(own, tuple | list) else getattr(own, "__name__", None)
    alone = "" if name is None else f"; a checkpoint of its text part alone ({name}) can be served"
    if info.architecture in KINDS:
        return f"{alone}; its text part is {text.model_type}: {text_parts()}"
    sees = [part for part in ("vision_config", "audio_config") if hasattr(whole, part)]
    return alone + (f"; what it sees or hears with ({', '.join(sees)}) is not known here: {instead()}" if sees else "")


def refused_model(info: ModelInfo, reason: str) -> ConfigError:
    return ConfigError(f"model: {info.architecture} cannot be served: {reason} ({Path(info.folder) / 'config.json'})")


@contextmanager
def code_of_others(refused: Callable[[str], ConfigError]) -> Iterator[None]:
    """What transformers, or the code beside the weights, raises meanwhile becomes a refusal with its reason.

    Any exception may come: their checks of configs, weights and shapes raise what they like, and so does the code of a
    model's folder, which may even end the process. What is no fault of a model (no memory) is not one here, either.
    """
    try:
        yield
    except (ConfigError, MemoryError, torch.OutOfMemoryError):
        raise
    except SystemExit as error:
        raise refused(f"its code ends the process, with {error.code!r}") from None
    except Exception as error:
        log.debug("transformers or a model's own code failed", exc_info=True)
        raise refused(_first(error)) from None


def _first(error: object) -> str:
    """Its first line; of one that ends with a colon, the next as well, which says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 1 + lines[0].endswith(":")])
