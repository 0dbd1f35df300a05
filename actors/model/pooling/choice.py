"""Whether a model pools, and how: by the options, its architecture's name, and sentence-transformers' files beside it.

An architecture is a stem and an ending: what ends with ForCausalLM or LMHeadModel goes on with texts, unless
sentence-transformers' files say that it embeds; ForSequenceClassification and ForTokenClassification have a head; all
others embed, but those that the code beside their weights has as a decoder. Hidden states are computed by this server's
own layers where it has those of the stem's ForCausalLM and the model is causal, and else by transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...options.config import Config, ConfigError
from ...options.objects.pooler import OPTION, PoolerOptions, read_pooler
from ...protocol.request import CLASSIFY, EMBED, TOKEN_CLASSIFY, TOKEN_EMBED
from ...protocol.sampling.ranges import INT31
from ..config_json import LARGEST, architecture_name, find_architecture
from ..families.registry import BY_ARCHITECTURE
from ..values import Values
from ..vision.texts import read_vision, text_values
from .colbert import NAMES as COLBERT
from .colbert import PUBLISHED, Shapes, projection
from .dual_encoder import read_dual_encoder
from .heads import GENERATES, HEADS, REWARDS, FoundHead, activations, find_head, is_reranker
from .sentence_transformers import SentenceModules, has_modules, read_modules
from .spec import CLS, LAST, MEAN, SEQUENCE, TOKEN, DenseSpec, PoolingSpec

TEXTS = (GENERATES, "LMHeadModel")  # what goes on with them, by its name
EMBEDS = ("Model", "ForMaskedLM", "ForPreTraining")  # beside a decoder's
CHANGED = ("final_logit_softcapping", "logits_scaling", "logit_scale")
WIDTHS = ("hidden_size", "d_model", "dim", "n_embd")


def pools(config: Config, whole: Values, folder: Path) -> bool:
    """Is it served for embeddings, scores or labels?"""
    if config.runner != "auto":
        return config.runner == "pooling"
    if config.convert not in ("auto", "none"):
        return True
    if config.worker != "model":
        return False
    name = architecture_name(whole)
    if is_reranker(config, whole, name) or whole["classifier_from_token"]:
        return True
    if has_modules(folder) or name == PUBLISHED or name.endswith(tuple(HEADS)):
        return True
    return name.endswith(EMBEDS) and not name.endswith(TEXTS) and not _writes_by_its_code(whole)


def _writes_by_its_code(whole: Values) -> bool:
    """InternVLChatModel, ChatGLMModel."""
    classes = whole.object("auto_map")
    return classes is not None and classes["AutoModelForCausalLM"] is not None


def read_pooling(
    config: Config, whole: Values, text: Values, folder: Path, shapes: Shapes | None
) -> tuple[PoolingSpec, int | None]:
    """How it pools, and the longest text by sentence-transformers' files. ConfigError says what cannot be. `shapes`
    reads those of tensors, where there are weights.
    """
    name = architecture_name(whole)
    options, found = read_pooler(config), read_modules(folder)
    if (dual := _of_two(config, whole, options, folder, found)) is not None:
        _check_calibration(options, "", name)
        return dual, None
    head = find_head(config, whole, options, name)
    if config.convert == "none" and name.endswith(GENERATES):
        raise ConfigError(f"--convert none: {name} goes on with texts; embed makes vectors of its hidden states")
    base = _base(config, whole, name)
    _check_head(whole, base, head, name)
    _check_calibration(options, head.kind, name)
    hidden = _hidden_size(text)
    methods = [options.method] if options.method else found.methods if found else [_default(base, name)]
    activation, score = activations(whole, options, len(head.labels))
    if name in REWARDS and len(head.labels) == 1:  # a reward has no bounds
        activation = score = ""
    dense = found.dense if found and not head.kind else []
    by_token = bool(found and found.by_token)
    if name in COLBERT and not dense:
        dense, by_token = [projection(folder, whole, hidden, shapes)], True
    width = _width(dense, hidden * len(methods))
    tasks = _tasks(name, head.kind, base, not dense or dense[0].inputs == hidden)
    if by_token and not head.kind and not options.method:
        tasks = [TOKEN_EMBED]
    spec = PoolingSpec(
        tasks=_served(options, tasks),
        base=base,
        methods=methods,
        normalize=_normalizes(options, found),
        hidden=hidden,
        width=width,
        dense=dense,
        dimensions=_dimensions(options, width),
        may_cut=_may_cut(whole),
        cuts=_cuts(whole),
        head=head.kind,
        labels=list(head.labels),
        layers=list(head.layers),
        tokens=list(head.tokens),
        rows=list(head.rows),
        difference=head.difference,
        pair=head.pair,
        templated=bool(head.kind and config.chat_template),
        step_tag=-1 if options.step_tag_id is None else options.step_tag_id,
        logit_mean=options.logit_mean or 0.0,
        logit_sigma=options.logit_sigma or 1.0,
        activation=activation,
        score_activation=score,
        prompts=found.prompts if found else {},
        default_prompt=found.default_prompt if found else "",
        lower_case=bool(found and found.lower_case),
        longest_joined=(options.max_embed_len or INT31) if options.enable_chunked_processing else 0,
    )
    return spec, found.max_length if found else None


def _of_two(
    config: Config, whole: Values, options: PoolerOptions, folder: Path, found: SentenceModules | None
) -> PoolingSpec | None:
    """How one pools that has an encoder of texts and one of pictures."""
    if (read := read_dual_encoder(whole, config.max_model_len, folder)) is None:
        return None
    dual, width = read
    name = architecture_name(whole)
    if config.convert in ("classify", "reward"):
        raise ConfigError(f"--convert {config.convert}: {name} has no head that classifies; embed can be had")
    if options.enable_chunked_processing:
        raise ConfigError(f"{OPTION}: enable_chunked_processing: texts of {name} are cut where it was trained to")
    if options.method:
        raise ConfigError(f"{OPTION}: pooling_type: {name} pools in its encoders, as these were trained; leave it out")
    return PoolingSpec(
        tasks=_served(options, [EMBED]),
        base="",
        methods=[CLS],
        normalize=_normalizes(options, found),
        hidden=width,
        width=width,
        dimensions=_dimensions(options, width),
        may_cut=_may_cut(whole),
        cuts=_cuts(whole),
        prompts=found.prompts if found else {},
        default_prompt=found.default_prompt if found else "",
        lower_case=dual.lower_case,
        dual=dual,
    )


def _hidden_size(text: Values) -> int:
    """How wide hidden states are."""
    hidden = next((size for key in WIDTHS if (size := text.whole(key, 1, LARGEST)) is not None), None)
    if hidden is None:
        raise ConfigError(f"model: {text.file} does not say how wide hidden states are ({', '.join(WIDTHS)})")
    return hidden


def _width(dense: Sequence[DenseSpec], pooled: int) -> int:
    """How many numbers vectors have behind these layers. ConfigError if one of them takes another number."""
    for layer in dense:
        if layer.inputs != pooled:
            raise ConfigError(
                f"model: {layer.folder}/config.json says in_features = {layer.inputs}; what comes has {pooled} numbers"
            )
        pooled = layer.outputs
    return pooled


def _dimensions(options: PoolerOptions, width: int) -> int:
    """To how many numbers vectors are cut; 0: to none."""
    if (cut := options.dimensions or 0) > width:
        raise ConfigError(f"{OPTION}: dimensions: {cut} is more than the {width} numbers of a vector")
    return cut


def _check_calibration(options: PoolerOptions, head: str, name: str) -> None:
    if not head and (options.logit_mean, options.logit_sigma) != (None, None):
        raise ConfigError(f"{OPTION}: logit_mean and logit_sigma are of models with scores of labels; {name} has none")


def _check_head(whole: Values, base: str, head: FoundHead, name: str) -> None:
    """ConfigError if it is one of a decoder that this server has no layers of, or not of plain logits."""
    if not head.tokens and name not in REWARDS:
        return
    if not base:
        raise ConfigError(f"model: {name}: this head needs a decoder that this server has layers of")
    changed = next((field for field in CHANGED if whole[field] not in (None, 1, 1.0)), None)
    if head.tokens and changed:
        raise ConfigError(f"{OPTION}: classifier_from_token: not with {changed}, by which logits are changed")


def _decoder(name: str) -> str:
    """The decoder of the same layers, if there is one of that name."""
    if (reward := REWARDS.get(name)) is not None:
        return reward.decoder
    ending = next((ending for ending in (GENERATES, *HEADS, *EMBEDS) if name.endswith(ending)), "")
    return f"{name.removesuffix(ending)}{GENERATES}"


def _base(config: Config, whole: Values, name: str) -> str:
    """The architecture of this server's own layers that computes its hidden states; empty: transformers does."""
    if read_vision(whole.values, whole.file) is not None:
        return _seeing(config, whole, name)
    native = _decoder(name)
    bidirectional = whole["is_causal"] is False or whole["use_bidirectional_attention"] is True
    if native not in BY_ARCHITECTURE or bidirectional or name.endswith("ForTokenClassification"):
        return ""
    values = native_values(whole.values, native)
    return "" if find_architecture(values, config.model_impl, config.quantization, whole.file) is None else native


def _seeing(config: Config, whole: Values, name: str) -> str:
    """The same of a model that sees pictures, whose text part it is."""
    shape = find_architecture(whole.values, config.model_impl, config.quantization, whole.file)
    if shape is None or shape.vision is None:
        text = "sees pictures, and no vectors are made of it by layers of transformers"
        raise ConfigError(f"--runner pooling: {name} {text} ({whole.file})")
    return architecture_name(Values(whole.file, text_values(whole.values, whole.file)))


def native_values(values: dict[str, Any], base: str) -> dict[str, Any]:
    """config.json of a model whose layers are those of `base`; no logits are made. One that sees stays what it is."""
    if read_vision(values) is not None:
        return {**values, "tie_word_embeddings": True}
    return {**values, "architectures": [base], "tie_word_embeddings": True}


def _default(base: str, name: str) -> str:
    """What is pooled where no file says it: as sentence-transformers does it, and of decoders the last token."""
    return LAST if base or name.endswith(GENERATES) or _decoder(name) in BY_ARCHITECTURE else MEAN


def _normalizes(options: PoolerOptions, found: SentenceModules | None) -> bool:
    """Has a vector the length 1? Where no file says it, too, as vLLM has it."""
    return options.activates if options.activates is not None else found.normalize if found else True


def _may_cut(whole: Values) -> bool:
    """May requests ask for fewer numbers? What was not trained for that says so."""
    return whole.flag("is_matryoshka", True)


def _cuts(whole: Values) -> list[int]:
    """To how many numbers a vector may be cut, where the model says so; what it says must be such numbers."""
    given = whole["matryoshka_dimensions"] or []
    if not isinstance(given, list) or not all(type(one) is int and one > 0 for one in given):
        raise whole.wrong("matryoshka_dimensions", "a list of numbers of at least 1")
    return given


def _tasks(name: str, head: str, base: str, by_token: bool) -> list[str]:
    """What it is for comes first. `by_token`: what is behind the pooling takes one token's state, and not only what
    several methods make of all.
    """
    if head and name in REWARDS:
        return [TOKEN_CLASSIFY, CLASSIFY]
    if head == TOKEN:
        return [TOKEN_CLASSIFY]
    if head == SEQUENCE:
        return [CLASSIFY, TOKEN_CLASSIFY] if base else [CLASSIFY]
    return [EMBED, TOKEN_EMBED] if by_token else [EMBED]


def _served(options: PoolerOptions, tasks: list[str]) -> list[str]:
    """All that the model has, or the one that is wanted alone."""
    if options.task is None:
        return tasks
    if options.task not in tasks:
        raise ConfigError(f"{OPTION}: task: {options.task} cannot be had of this model; it has {', '.join(tasks)}")
    return [options.task]
