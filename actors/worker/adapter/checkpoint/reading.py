"""A checkpoint's tensors into a model of transformers, one after the other.

transformers says what becomes of them: tensors of checkpoints have other names, or are several of a model's, or parts
of one (each expert's of all experts' one). It is given tensors that are read when it asks for them (stored.py), and
sets them into parts that wait for them (arriving.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from ....model.info import read_json
from ....model.quantization import NONE
from ....model.weights.places import some
from ....options.config import ConfigError
from ..divided.cuts import Division
from ..improve import improve
from .arriving import Arrivals, Chosen
from .stored import Source

TEXT = "model.language_model."
OTHER_PARTS = re.compile(  # which see, hear, or make of it what the text part is given
    r"(model\.)?(visual|visual_embeddings_table|vision_(tower|model|projector)|audio_tower|sound_\w+"
    r"|embed_(vision|audio)|merger|projector|(multi_modal|mm)_projector|patch_merge_mlp|mlp1)\."
)
IN_TURN = "HF_DEACTIVATE_ASYNC_LOAD"  # no threads that read ahead


def read_into(
    model: Any,
    folder: Path,
    source: Source,
    dtype: torch.dtype,
    chosen: Chosen,
    better: bool,
    division: Division | None = None,
    device: torch.device | None = None,
) -> None:
    """Fill a model that has no weights; `better`: with parts of ours. `device`: where each tensor goes as it comes.

    ConfigError names tensors that do not fit.
    """
    arrivals = Arrivals(model, dtype, chosen, source.scales_of, better, source.table_dtype(dtype), division)
    mapping: Any = get_model_conversion_mapping(model)
    if source.text_alone and get_checkpoint_conversion_mapping(model.config.model_type) is None:
        # what becomes of its layers' tensors is said of the whole model alone
        mapping += get_checkpoint_conversion_mapping(read_json(folder / "config.json").get("model_type")) or []
    about = LoadStateDictConfig(
        ignore_mismatched_sizes=True,
        device_map=None if device is None else {"": device},
        dtype=dtype,
        dtype_plan=model._get_dtype_plan(dtype),
        weight_mapping=mapping,
    )
    try:
        with in_turn():
            info, _ = convert_and_load_state_dict_in_model(model, source.tensors, about)
    finally:
        arrivals.stop()
    if source.error is not None:
        raise source.error
    model.tie_weights(missing_keys=info.missing_keys, recompute_mapping=False)
    model._adjust_missing_and_unexpected_keys(info)
    _check(model, folder, source, info)
    arrivals.take_rest()
    model.eval()
    if better:
        tied = {arrivals.methods[module] for module in arrivals.tied if module in arrivals.methods}
        improve(model, dtype, next((method for method in tied if method is not NONE), NONE), arrivals.from_memory)
    if division is not None:
        division.join(model, arrivals.cut_names)


@contextmanager
def in_turn() -> Iterator[None]:
    """One tensor at a time is in memory."""
    before = os.environ.get(IN_TURN)
    os.environ[IN_TURN] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[IN_TURN]
        else:
            os.environ[IN_TURN] = before


def _dropped_by_whole(folder: Path) -> Iterable[str]:
    """Patterns of what transformers' class of the whole model has no use of, either (layers that draft)."""
    (name, *_) = read_json(folder / "config.json")["architectures"]
    return getattr(getattr(transformers, name, None), "_keys_to_ignore_on_load_unexpected", None) or ()


def _check(model: Any, folder: Path, source: Source, info: Any) -> None:
    """All that the model has came, and no more."""
    problems = []
    empty = {name for name, parameter in model.named_parameters() if parameter.is_meta}
    wrong = sorted(f"{name} {list(found)} in place of {list(wanted)}" for name, found, wanted in info.mismatched_keys)
    if missing := sorted((empty | set(info.missing_keys)) - {name for name, *_ in info.mismatched_keys}):
        problems.append(f"lacks {some(missing)}")
    unknown = sorted(name for name in info.unexpected_keys if not name.endswith("rotary_emb.inv_freq"))
    if source.text_alone or any(name.startswith(TEXT) for name in source.tensors):  # the other parts are not served
        unknown = [name for name in unknown if not OTHER_PARTS.match(name)]
    if source.text_alone:
        dropped = _dropped_by_whole(folder)
        unknown = [name for name in unknown if not any(re.search(pattern, name) for pattern in dropped)]
    if unknown := [name for name in unknown if not source.is_needless(name)]:
        problems.append(f"has {some(unknown)}, for which the model has no use")
    if wrong:
        problems.append(f"has the shape of {some(wrong)}")
    if info.conversion_errors:
        name, text = next(iter(info.conversion_errors.items()))
        problems.append(f"cannot be used for {name}: {text.strip().splitlines()[-1]}")
    if problems:
        raise ConfigError(f"model: the weights in {folder} do not fit its config.json: it {'; it '.join(problems)}")
