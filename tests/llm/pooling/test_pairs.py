"""Pairs of texts: how much of each is read, and what a chat template for scores makes of both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actorserve import LLM, PoolingParams, ScoringRequestOutput
from tests.llm.pooling.test_pooling import make
from tests.support.models.embedders import encode, write_model, write_modules

QUERY, DOCUMENT = "What is the capital of France?", "The capital of France is Paris. " * 3
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'query' %}{{ instruction or 'Compare' }}: {{ message.content }}"
    "{% elif message.role == 'document' %} with {{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}never{% endif %}"
)


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scorer")
    write_model("qwen2", folder, "SequenceClassification", 1, pad_token_id=1)
    return folder


@pytest.fixture(scope="module")
def templated(scorer: Path) -> Iterator[LLM]:
    template = scorer.parent / "score.jinja"
    template.write_text(TEMPLATE)
    with make(scorer, chat_template=str(template)) as made:
        yield made


def ids(llm: LLM, params: PoolingParams | None = None, **options: object) -> list[int]:
    (output,) = llm.score(QUERY, DOCUMENT, pooling_params=params, use_tqdm=False, **options)  # type: ignore[arg-type]
    assert type(output) is ScoringRequestOutput
    return output.prompt_token_ids


def test_the_operators_template_makes_one_text_of_two(templated: LLM, scorer: Path) -> None:
    assert ids(templated) == encode(scorer, f"Compare: {QUERY} with {DOCUMENT}")[0]
    told = encode(scorer, f"Find: {QUERY} with {DOCUMENT}")[0]
    assert ids(templated, PoolingParams(instruction="Find")) == told
    variables = {"chat_template_kwargs": {"instruction": "Find"}}
    assert ids(templated, PoolingParams(instruction="lost", extra_kwargs=variables)) == told
    with pytest.raises(ValueError, match="must not set messages"):
        ids(templated, PoolingParams(extra_kwargs={"chat_template_kwargs": {"messages": []}}))


def test_texts_are_cut_before_the_template_has_them(templated: LLM, scorer: Path) -> None:
    query, document = (encode(scorer, text)[0][1:-1] for text in (QUERY, DOCUMENT))
    limits = {"max_tokens_per_query": 3, "max_tokens_per_doc": 5}
    cut = ids(templated, PoolingParams(extra_kwargs=limits))
    assert cut == encode(scorer, f"Compare: {text_of(scorer, query[:3])} with {text_of(scorer, document[:5])}")[0]
    whole = ids(templated)
    assert ids(templated, PoolingParams(truncate_prompt_tokens=12)) == [*whole[:11], whole[-1]]


def test_what_a_template_writes_behind_texts_is_not_cut_off(templated: LLM) -> None:
    """A score is read behind it: of what is too long in spite of limits, no score is made."""
    limits = {"max_tokens_per_query": 3, "max_tokens_per_doc": 4096}
    with pytest.raises(ValueError, match="However, your prompt has 4112 tokens"):
        templated.score(QUERY, "word " * 4096, pooling_params=PoolingParams(extra_kwargs=limits), use_tqdm=False)


def text_of(folder: Path, tokens: list[int]) -> str:
    from tokenizers import Tokenizer

    decoded: str = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(tokens)
    return decoded


def test_a_template_of_one_call(scorer: Path) -> None:
    with make(scorer) as llm:
        assert ids(llm) == encode(scorer, QUERY, DOCUMENT)[0]
        wanted = encode(scorer, f"Compare: {QUERY} with {DOCUMENT}")[0]
        assert ids(llm, chat_template=TEMPLATE) == wanted
        with pytest.raises(ValueError, match="extra_kwargs: depth is none of max_tokens_per_query, max_tokens_per_doc"):
            ids(llm, PoolingParams(extra_kwargs={"depth": 3}))
        with pytest.raises(ValueError, match="max_tokens_per_doc must be at least 0"):
            ids(llm, PoolingParams(extra_kwargs={"max_tokens_per_doc": -1}))
        with pytest.raises(ValueError, match="the task of pooling_params is embed, and scores are of classify"):
            ids(llm, PoolingParams(task="embed"))


def test_of_a_model_without_a_head_each_text_is_cut_by_itself(tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    write_modules(tmp_path)
    query, document = (encode(tmp_path, text)[0] for text in (QUERY, DOCUMENT))
    with make(tmp_path) as llm:
        limits = {"max_tokens_per_query": 3, "max_tokens_per_doc": 5}
        cut = ids(llm, PoolingParams(extra_kwargs=limits))
        assert cut == [*query[:4], query[-1], *document[:6], document[-1]]
        with pytest.raises(ValueError, match="chat_template: this model makes a vector of each text"):
            ids(llm, chat_template=TEMPLATE)
