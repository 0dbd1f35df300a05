"""What makes scores of hidden states: heads by an architecture's name, and rows of what makes logits.

A generating model judges by its next token ("yes" or "no"): named by --pooler-config or config.json
(`classifier_from_token`), the rows of these tokens are a head. Of two tokens the score is how much likelier the second
is; of one, or with `method: no_post_processing`, each is a label. Qwen3-Reranker is known by its name. What was a GGUF
file has the rows of its tokens alone (`score_tokens`).
"""

from __future__ import annotations

from typing import NamedTuple

from ...options.config import Config, ConfigError
from ...options.objects.pooler import OPTION, PoolerOptions
from ...protocol.request import SIGMOID, SOFTMAX
from ..config_json import LARGEST
from ..layers import SCORES
from ..values import Values
from .spec import SEQUENCE, TOKEN, HeadLayer, PairForm

GENERATES = "ForCausalLM"
HEADS = {"ForSequenceClassification": SEQUENCE, "ForTokenClassification": TOKEN}
LINEAR = (HeadLayer(weight=f"{SCORES}.weight"),)
TWO_LAYERS = (
    HeadLayer(weight=f"{SCORES}.0.weight", bias=f"{SCORES}.0.bias", activation="relu"),
    HeadLayer(weight=f"{SCORES}.2.weight", bias=f"{SCORES}.2.bias"),
)
RELATIVE = "no_post_processing"
RERANKER, ANSWERS = "qwen3-reranker", ["no", "yes"]
ASKED = PairForm(
    before="<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    form="<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
    after="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)


class Reward(NamedTuple):
    """A reward model with a name of its own."""

    decoder: str
    layers: tuple[HeadLayer, ...]
    labels: int


REWARDS = {
    "Qwen2ForRewardModel": Reward("Qwen2ForCausalLM", TWO_LAYERS, 1),
    "Qwen2ForProcessRewardModel": Reward("Qwen2ForCausalLM", TWO_LAYERS, 2),
    "InternLM2ForRewardModel": Reward("InternLM2ForCausalLM", (HeadLayer(weight="v_head.weight"),), 1),
}


class FoundHead(NamedTuple):
    """What is put on hidden states: `kind` SEQUENCE or TOKEN, or nothing if empty."""

    kind: str = ""
    labels: tuple[str, ...] = ()
    layers: tuple[HeadLayer, ...] = ()
    tokens: tuple[str | int, ...] = ()
    rows: tuple[str, ...] = ()  # of these tokens, where the checkpoint has no others
    difference: bool = False  # of the second token's less the first's
    pair: PairForm | None = None


def find_head(config: Config, whole: Values, options: PoolerOptions, name: str) -> FoundHead:
    """ConfigError if --convert asks for one that there is not."""
    if config.convert == "embed":
        return FoundHead()
    if (reward := REWARDS.get(name)) is not None:
        return FoundHead(SEQUENCE, tuple(_labels(whole, reward.labels)), reward.layers)
    if options.returned_token_ids:
        ids = tuple(options.returned_token_ids)
        return FoundHead(SEQUENCE, tuple(map(str, ids)), tokens=ids, rows=_rows(whole, ids))
    if tokens := _tokens(config, whole, options, name):
        return _of_tokens(config, whole, tokens)
    kind = next((head for ending, head in HEADS.items() if name.endswith(ending)), "")
    if config.convert in ("classify", "reward") and not kind:
        hint = (
            f'; {OPTION} {{"classifier_from_token": ["no", "yes"]}} makes one of its tokens'
            if name.endswith(GENERATES)
            else ""
        )
        raise ConfigError(f"--convert {config.convert}: {name} has no head that classifies; embed can be had{hint}")
    return FoundHead(kind, tuple(_labels(whole)), LINEAR) if kind else FoundHead()


def is_reranker(config: Config, whole: Values, name: str) -> bool:
    """Is it Qwen3-Reranker as it was published, which says so in no file?"""
    if name != f"Qwen3{GENERATES}" and not (name.startswith("Qwen3For") and whole["is_original_qwen3_reranker"]):
        return False
    named = config.model.rstrip("/").rpartition("/")[2].lower()
    return bool(whole.flag("is_original_qwen3_reranker")) or named.startswith(RERANKER)


def _tokens(config: Config, whole: Values, options: PoolerOptions, name: str) -> tuple[str, ...]:
    given = options.classifier_from_token or list(whole.texts("classifier_from_token"))
    if not given and is_reranker(config, whole, name):
        given = ANSWERS
    return tuple(given)


def _of_tokens(config: Config, whole: Values, tokens: tuple[str, ...]) -> FoundHead:
    pair = ASKED if is_reranker(config, whole, f"Qwen3{GENERATES}") else None
    rows = _rows(whole, tokens)
    if len(tokens) == 2 and whole.text("method") != RELATIVE:
        return FoundHead(SEQUENCE, (tokens[1],), tokens=tokens, rows=rows, difference=True, pair=pair)
    return FoundHead(SEQUENCE, tokens, tokens=tokens, rows=rows, pair=pair)


def _rows(whole: Values, tokens: tuple[str | int, ...]) -> tuple[str, ...]:
    """The tokens that there are rows of; none where there are all. ConfigError if one is none of these."""
    rows = whole.texts("score_tokens")
    if rows and not set(tokens) <= set(rows):
        asked, there = (", ".join(map(str, some)) for some in (tokens, rows))
        raise ConfigError(f"{OPTION}: {asked}: the model's file has rows of {there} alone (classifier_from_token)")
    return rows


def _labels(whole: Values, absent: int = 2) -> list[str]:
    given = whole["id2label"]
    if given is None:
        count = whole.whole("num_labels", 1, LARGEST) or absent
        return [f"LABEL_{index}" for index in range(count)]
    if not isinstance(given, dict) or not all(str(index) in map(str, given) for index in range(len(given))):
        raise whole.wrong("id2label", "names of labels by their numbers from 0 on")
    return [str(given.get(str(index), given.get(index))) for index in range(len(given))]


def activations(whole: Values, options: PoolerOptions, labels: int) -> tuple[str, str]:
    """(of labels' scores, of the score of a pair of texts). A regression is told as it is."""
    problem = whole.text("problem_type")
    by_label = SIGMOID if labels == 1 or problem == "multi_label_classification" else SOFTMAX
    own = whole.object("sentence_transformers")
    named = (own.text("activation_fn") if own else None) or whole.text("sbert_ce_default_activation_function")
    score = SIGMOID if labels == 1 else ""
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
