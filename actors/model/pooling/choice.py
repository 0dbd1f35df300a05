"""Whether a model pools, and how: by the options, its architecture's name, and sentence-transformers' files beside it.

An architecture is a stem and an ending: what ends with ForCausalLM or LMHeadModel goes on with texts, unless
sentence-transformers' files say that it embeds; ForSequenceClassification and ForTokenClassification have a head; all
others embed. Hidden states are computed by this server's own layers where it has those of the stem's ForCausalLM and
the model is causal, and else by transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...options.config import Config, ConfigError
from ...options.objects.pooler import OPTION, PoolerOptions, read_pooler
from ...protocol.request import CLASSIFY, EMBED, SIGMOID, SOFTMAX, TOKEN_CLASSIFY, TOKEN_EMBED
from ..architecture import LARGEST, architecture_name, find_architecture
from ..families.registry import BY_ARCHITECTURE
from ..values import Values
from .sentence_transformers import SentenceModules, has_modules, read_modules
from .spec import LAST, MEAN, SEQUENCE, TOKEN, PoolingSpec

GENERATES = "ForCausalLM"
HEADS = {"ForSequenceClassification": SEQUENCE, "ForTokenClassification": TOKEN}
TEXTS = (GENERATES, "LMHeadModel")  # what goes on with them, by its name
EMBEDS = ("Model", "ForMaskedLM", "ForPreTraining")  # beside a decoder's
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
    return has_modules(folder) or (not name.endswith(TEXTS) and name.endswith((*HEADS, *EMBEDS)))


def read_pooling(config: Config, whole: Values, text: Values, folder: Path) -> tuple[PoolingSpec, int | None]:
    """How it pools, and the longest text by sentence-transformers' files. ConfigError says what cannot be."""
    name = architecture_name(whole)
    head = _head(config, name)
    if config.convert == "none" and name.endswith(GENERATES):
        raise ConfigError(f"--convert none: {name} goes on with texts; embed makes vectors of its hidden states")
    options, found = read_pooler(config), read_modules(folder)
    base = _base(config, whole, name)
    hidden = next((size for key in WIDTHS if (size := text.whole(key, 1, LARGEST)) is not None), None)
    if hidden is None:
        raise ConfigError(f"model: {text.file} does not say how wide hidden states are ({', '.join(WIDTHS)})")
    methods = [options.method] if options.method else found.methods if found else [_default(name)]
    labels = _labels(whole) if head else []
    activation, score = _activations(whole, options, labels)
    dense = found.dense if found and not head else []
    width = dense[-1].outputs if dense else hidden * len(methods)
    if (cut := options.dimensions or 0) > width:
        raise ConfigError(f"{OPTION}: dimensions: {cut} is more than the {width} numbers of a vector")
    spec = PoolingSpec(
        tasks=_tasks(head, base),
        base=base,
        methods=methods,
        normalize=_normalizes(options, found),
        hidden=hidden,
        width=width,
        dense=dense,
        dimensions=cut,
        may_cut=_may_cut(whole),
        head=head,
        labels=labels,
        activation=activation,
        score_activation=score,
        prompts=found.prompts if found else {},
        default_prompt=found.default_prompt if found else "",
        lower_case=bool(found and found.lower_case),
    )
    return spec, found.max_length if found else None


def _head(config: Config, name: str) -> str:
    """What is put on hidden states to make scores of labels."""
    own = next((head for ending, head in HEADS.items() if name.endswith(ending)), "")
    if config.convert == "embed":
        return ""
    if config.convert in ("classify", "reward") and not own:
        raise ConfigError(f"--convert {config.convert}: {name} has no head that classifies; embed can be had of it")
    return own


def _decoder(name: str) -> str:
    """The decoder of the same layers, if there is one of that name."""
    ending = next((ending for ending in (GENERATES, *HEADS, *EMBEDS) if name.endswith(ending)), "")
    return f"{name.removesuffix(ending)}{GENERATES}"


def _base(config: Config, whole: Values, name: str) -> str:
    """The architecture of this server's own layers that computes its hidden states; empty: transformers does."""
    native = _decoder(name)
    bidirectional = whole["is_causal"] is False or whole["use_bidirectional_attention"] is True
    if native not in BY_ARCHITECTURE or bidirectional or name.endswith("ForTokenClassification"):
        return ""
    values = native_values(whole.values, native)
    return "" if find_architecture(values, config.model_impl, config.quantization, whole.file) is None else native


def native_values(values: dict[str, Any], base: str) -> dict[str, Any]:
    """config.json of a model whose layers are those of `base`; no logits are made."""
    return {**values, "architectures": [base], "tie_word_embeddings": True}


def _default(name: str) -> str:
    """What is pooled where no file says it: as sentence-transformers does it, and of decoders the last token."""
    return LAST if name.endswith(GENERATES) or _decoder(name) in BY_ARCHITECTURE else MEAN


def _labels(whole: Values) -> list[str]:
    given = whole["id2label"]
    if given is None:
        count = whole.whole("num_labels", 1, LARGEST) or 2
        return [f"LABEL_{index}" for index in range(count)]
    if not isinstance(given, dict) or not all(str(index) in map(str, given) for index in range(len(given))):
        raise whole.wrong("id2label", "names of labels by their numbers from 0 on")
    return [str(given.get(str(index), given.get(index))) for index in range(len(given))]


def _activations(whole: Values, options: PoolerOptions, labels: list[str]) -> tuple[str, str]:
    """(of labels' scores, of the score of a pair of texts). A regression is told as it is."""
    problem = whole.text("problem_type")
    by_label = SIGMOID if len(labels) == 1 or problem == "multi_label_classification" else SOFTMAX
    own = whole.object("sentence_transformers")
    named = (own.text("activation_fn") if own else None) or whole.text("sbert_ce_default_activation_function")
    score = SIGMOID if len(labels) == 1 else ""
    if named:
        last = named.rpartition(".")[2].lower()
        if last not in ("identity", SIGMOID):
            raise whole.wrong("sentence_transformers", "an activation Identity or Sigmoid")
        score = SIGMOID if last == SIGMOID else ""
    if problem == "regression":
        by_label = ""
    if options.activates is False:
        by_label = score = ""
    return by_label, score


def _normalizes(options: PoolerOptions, found: SentenceModules | None) -> bool:
    """Has a vector the length 1? Where no file says it, too, as vLLM has it."""
    return options.activates if options.activates is not None else found.normalize if found else True


def _may_cut(whole: Values) -> bool:
    """May requests ask for fewer numbers? What was not trained for that says so."""
    return whole.flag("is_matryoshka", True)


def _tasks(head: str, base: str) -> list[str]:
    if head == TOKEN:
        return [TOKEN_CLASSIFY]
    if head == SEQUENCE:
        return [CLASSIFY, TOKEN_CLASSIFY] if base else [CLASSIFY]
    return [EMBED, TOKEN_EMBED]
