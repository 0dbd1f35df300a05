"""What sentence-transformers' files beside a model say: its modules, how it pools, prompts by name.

modules.json names the modules in their order: the model itself, then Pooling, Dense, Normalize. Files come from
strangers: each value is checked, and a module that is not known is refused by its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ...options.config import ConfigError
from ..values import MOST, Values, read_json
from .spec import CLS, LAST, MAX, MEAN, MEAN_SQRT, WEIGHTED_MEAN, DenseSpec

MODULES, PROMPTS, LENGTHS = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
MODES = {  # of 1_Pooling/config.json, in the order in which several are put one behind the other
    "cls_token": CLS,
    "max_tokens": MAX,
    "mean_tokens": MEAN,
    "mean_sqrt_len_tokens": MEAN_SQRT,
    "weightedmean_tokens": WEIGHTED_MEAN,
    "lasttoken": LAST,
}
ACTIVATIONS = ("Tanh", "Identity", "ReLU", "GELU", "SiLU", "Sigmoid")  # of torch.nn
CLIP = "CLIPModel"  # pools by itself
MODELS = ("Transformer", CLIP)
PATH = "path"


class SentenceModules(msgspec.Struct, frozen=True, kw_only=True):
    """Of one folder."""

    methods: list[str]
    normalize: bool
    dense: list[DenseSpec]
    by_token: bool  # nothing pools: there are vectors of tokens alone, as PyLate's models have them
    prompts: dict[str, str]
    default_prompt: str
    max_length: int | None
    lower_case: bool


def has_modules(folder: Path) -> bool:
    """Is it a model of sentence-transformers?"""
    return (folder / MODULES).is_file()


def read_modules(folder: Path) -> SentenceModules | None:
    """What its files say; None if there are none. ConfigError names what cannot be."""
    if not has_modules(folder):
        return None
    methods: list[str] = []
    dense: list[DenseSpec] = []
    normalize = False
    listed = module_paths(folder / MODULES)
    for kind, path in listed:
        if kind in MODELS:
            if path:
                raise ConfigError(
                    f"model: {folder} keeps the model in {path}: give that folder's files beside {MODULES}"
                )
        elif kind == "Pooling":
            methods = _methods(folder / path / "config.json")
        elif kind == "Dense":
            dense.append(_dense(folder / path))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Dropout":
            raise ConfigError(
                f"model: {folder / MODULES} has a module {kind}; Pooling, Dense and Normalize are supported"
            )
    if listed[0][0] == CLIP and (methods or dense):
        raise ConfigError(f"model: {folder / MODULES} has Pooling or Dense behind {CLIP}; Normalize alone is supported")
    about = Values(folder / LENGTHS, read_json(folder / LENGTHS, missing_ok=True))
    prompts, default = _prompts(folder / PROMPTS)
    return SentenceModules(
        methods=methods or [MEAN],
        normalize=normalize,
        dense=dense,
        by_token=bool(dense and not methods),
        prompts=prompts,
        default_prompt=default,
        max_length=about.whole("max_seq_length", 1),
        lower_case=about.flag("do_lower_case"),
    )


def read_listed(file: Path) -> list[dict[str, Any]]:
    """What modules.json says of each module."""
    try:
        listed = msgspec.json.decode(file.read_bytes(), type=list[dict[str, Any]])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"model: {file} cannot be read: {error}") from None
    if not listed:
        raise ConfigError(f"model: {file} names no module")
    return listed


def module_paths(file: Path) -> list[tuple[str, str]]:
    """(the class's name, its folder) of each."""
    found = []
    for index, one in enumerate(read_listed(file)):
        values = Values(f"{file}, {index}", one)
        path = values.text(PATH) or ""
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise values.wrong(PATH, "a folder inside the model's")
        found.append(((values.text("type") or "").rpartition(".")[2], path))
    return found


def _methods(file: Path) -> list[str]:
    values = Values(file, read_json(file))
    if not values.flag("include_prompt", True):
        raise ConfigError(f"model: {file} says include_prompt = false, which is not supported")
    given = values["pooling_mode"]
    if given is not None:
        names = given if isinstance(given, list) else [given]
        known = {mode.removesuffix("_tokens").removesuffix("_token"): method for mode, method in MODES.items()}
        if not names or not all(isinstance(name, str) and name in known for name in names):
            raise values.wrong("pooling_mode", f"one of {', '.join(known)}")
        return [known[name] for name in names]
    found = [method for mode, method in MODES.items() if values.flag(f"pooling_mode_{mode}")]
    if not found:
        raise ConfigError(f"model: {file} switches no pooling mode on; these are known: {', '.join(MODES)}")
    return found


def _dense(folder: Path) -> DenseSpec:
    values = Values(folder / "config.json", read_json(folder / "config.json"))
    activation = (values.text("activation_function") or "Tanh").rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise values.wrong("activation_function", f"one of {', '.join(ACTIVATIONS)}")
    if values.flag("use_residual"):  # PyLate's
        raise ConfigError(f"model: {folder}/config.json says use_residual = true, which is not supported")
    return DenseSpec(
        folder=str(folder),
        inputs=values.needed("in_features", MOST),
        outputs=values.needed("out_features", MOST),
        bias=values.flag("bias", True),
        activation=activation,
    )


def _prompts(file: Path) -> tuple[dict[str, str], str]:
    """Texts that stand before prompts, by name, and the name of the one that is used if a request names none."""
    values = Values(file, read_json(file, missing_ok=True))
    given = values["prompts"] or {}
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise values.wrong("prompts", "texts by name")
    default = values.text("default_prompt_name") or ""
    if default and default not in given:
        raise values.wrong(
            "default_prompt_name", f"one of {', '.join(given) or 'the prompts, of which there are none'}"
        )
    return given, default
