"""Answers of models that pool are what /openapi.json says of them, with all numbers in their places."""

from __future__ import annotations

import base64
from array import array
from operator import mul
from typing import Any

import msgspec
import pytest

from actorserve.actors.model.pooling.spec import MEAN, SEQUENCE, PoolingSpec
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.errors import ApiError
from actorserve.http.generation.job import Job
from actorserve.http.openapi import pooling as said
from actorserve.http.output.answer import Answer
from actorserve.http.pooling import answers
from actorserve.http.pooling.pairs import MOST_CHARACTERS, PLAIN, Comparison, pair_prompts
from actorserve.http.pooling.prepare import embedding, of_task
from actorserve.http.pooling.schemas import EmbeddingRequest, PoolingRequest
from actorserve.http.pooling.written import Matrix

ANSWER = Answer("tiny", False, 7, 1_700_000_000)
EMBEDS = PoolingSpec(tasks=["embed"], base="", methods=[MEAN], normalize=True, hidden=2, width=2)
LABELS = ["good", "bad", "so so"]
CLASSIFIES = msgspec.structs.replace(EMBEDS, tasks=["classify"], head=SEQUENCE, labels=LABELS)
SCORES = msgspec.structs.replace(CLASSIFIES, labels=["near"])


def job(*rows: list[float], columns: int = 0) -> Job:
    """Of one prompt for each of these, of three tokens."""
    made = Job([TextPrompt("a")] * len(rows), [b""])
    for choice, row in zip(made.choices, rows, strict=True):
        width = columns or len(row)
        choice.pooled = len(row) // width, width, array("f", row).tobytes()
        choice.prompt_tokens = 3
    return made


def checked(body: dict[str, Any], kind: type) -> Any:
    """As its struct has it: nothing is missing, nothing is more."""
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


async def test_vectors() -> None:
    whole = checked(await answers.embeddings(ANSWER, job([1, 2], [3, 4]), None), said.EmbeddingList)
    assert [one.embedding for one in whole.data] == [[1, 2], [3, 4]] and whole.usage.total_tokens == 6
    packed = checked(await answers.embeddings(ANSWER, job([1, 2]), "base64"), said.EmbeddingList)
    assert base64.b64decode(packed.data[0].embedding) == array("f", [1, 2]).tobytes()


async def test_vectors_of_bits() -> None:
    """A bit for each number above 0, the first the highest."""
    given = job([1, -1, 0, 2, 3, 4, 5, 6, -7, 8])
    whole = checked(await answers.embeddings(ANSWER, given, None, "ubinary"), said.EmbeddingList)
    assert whole.data[0].embedding == [0b10011111, 0b01000000]
    signed = checked(await answers.embeddings(ANSWER, given, None, "binary"), said.EmbeddingList)
    assert signed.data[0].embedding == [0b10011111 - 128, 0b01000000 - 128]
    packed = checked(await answers.embeddings(ANSWER, given, "base64", "binary"), said.EmbeddingList)
    assert base64.b64decode(packed.data[0].embedding) == array("b", [31, -64]).tobytes()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"output_dimension": 1, "dimensions": 2}, "output_dimension"),
        ({"output_dimension": 3}, "output_dimension"),
        ({"dimensions": 3}, "dimensions"),
        ({"output_dtype": "int8"}, "output_dtype"),
    ],
)
def test_vectors_that_cannot_be_had(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as raised:
        embedding(EmbeddingRequest(**fields), EMBEDS)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_a_vectors_length_by_either_name() -> None:
    assert embedding(EmbeddingRequest(output_dimension=1), EMBEDS).dimensions == 1
    assert embedding(EmbeddingRequest(output_dimension=1, dimensions=1), EMBEDS).dimensions == 1


def test_a_model_that_says_how_its_vectors_are_cut_is_asked_for_no_other_length() -> None:
    trained = msgspec.structs.replace(EMBEDS, width=8, cuts=[2, 4])
    for asked, told in ((2, 2), (4, 4), (8, 0)):  # 0: they are not cut
        assert embedding(EmbeddingRequest(dimensions=asked), trained).dimensions == told
    with pytest.raises(ApiError, match="dimensions: this model's vectors are cut to 2, 4, not to 3"):
        embedding(EmbeddingRequest(dimensions=3), trained)


def test_bits_are_of_embeddings_alone() -> None:
    with pytest.raises(ApiError, match="output_dtype"):
        embedding(PoolingRequest(output_dtype="binary"), EMBEDS)


@pytest.mark.parametrize("fields", [{"dimensions": 2}, {"output_dimension": 2}, {"output_dtype": "binary"}])
def test_labels_have_neither_a_length_nor_bits(fields: dict[str, Any]) -> None:
    (param,) = fields
    with pytest.raises(ApiError) as raised:
        of_task(PoolingRequest(**fields), CLASSIFIES)
    assert (raised.value.status, raised.value.param) == (400, param)


async def test_a_row_for_each_token() -> None:
    given = job([1, 2, 3, 4], columns=2)
    whole = checked(await answers.poolings(ANSWER, given, None, "token_embed"), said.PoolingList)
    assert whole.data[0].data == [[1, 2], [3, 4]]
    flat = checked(await answers.poolings(ANSWER, job([1, 2]), None, "embed"), said.PoolingList)
    assert flat.data[0].data == [1, 2]


async def test_labels() -> None:
    whole = checked(answers.classes(ANSWER, job([0.25, 0.5, 0.25], [0.75, 0.25, 0]), CLASSIFIES), said.ClassifyList)
    assert [(one.label, one.num_classes) for one in whole.data] == [("bad", 3), ("good", 3)]
    assert whole.data[1].probs == [0.75, 0.25, 0]


async def test_scores_of_a_head_and_of_vectors() -> None:
    pairs = [("a", "b"), ("a", "c")]
    headed = job([0.25], [0.5])
    made = answers.pair_scores(headed, pairs, SCORES)
    assert [one.score for one in checked(answers.scores(ANSWER, headed, made), said.ScoreList).data] == [0.25, 0.5]
    compared = answers.pair_scores(job([1, 0], [3, 4], [0, 0]), pairs, EMBEDS)  # of each text once
    assert compared == pytest.approx([0.6, 0])
    itself = [("a", "a"), ("a", "b")]  # whose query is whole, and its document is not
    prompts, _ = pair_prompts(itself, itself, EMBEDS, Comparison(most=(0, 2)))
    assert prompts == [TextPrompt("a"), TextPrompt("a", most=2), TextPrompt("b", most=2)]
    assert answers.pair_scores(job([1, 0], [3, 4], [0, 1]), itself, EMBEDS, (0, 2)) == pytest.approx([0.6, 0])
    assert len(pair_prompts(itself, itself, EMBEDS)[0]) == 2


def test_what_each_pair_has_again_is_not_too_much() -> None:
    """A frontend would copy a body's largest text as often as there are documents: its loop stood still for that."""
    names = [("query", f"documents[{at}]") for at in range(100)]
    large = "x" * (MOST_CHARACTERS // 100)
    told = Comparison(variables=large.encode())
    for query, how, field in ((large, PLAIN, "query"), ("q", told, "chat_template_kwargs")):
        with pytest.raises(ApiError, match="it stands in each of 100 pairs") as raised:
            pair_prompts([(query, "d")] * 100, names, SCORES, how)
        assert raised.value.param == field
    assert len(pair_prompts([(large[1:], "d")] * 100, names, SCORES)[0]) == 100


def test_a_long_query_is_compared_in_parts() -> None:
    def matrix(rows: int) -> Matrix:
        numbers = array("f", ((index * 37 % 101) / 101 - 0.5 for index in range(rows * 3)))
        return rows, 3, numbers.tobytes()

    query, document = matrix(2 * answers.ROWS + 1), matrix(9)
    own, other = (
        [array("f", data)[start : start + columns] for start in range(0, rows * columns, columns)]
        for rows, columns, data in (query, document)
    )
    whole = sum(max(sum(map(mul, one, two)) for two in other) for one in own)
    assert answers.late_interaction(query, document) == pytest.approx(whole)


@pytest.mark.parametrize(("top", "order"), [(0, [1, 2, 0]), (2, [1, 2])])
async def test_a_ranking(top: int, order: list[int]) -> None:
    documents = ["x", "y", "z"]
    body = answers.ranking(ANSWER, job([0], [0], [0]), [0.1, 0.9, 0.5], documents, top, True)
    whole = checked(body, said.Ranking)
    assert [one.index for one in whole.results] == order and whole.results[0].document.text == "y"
    bare = answers.ranking(ANSWER, job([0]), [0.1], documents, 0, False)
    assert "document" not in bare["results"][0] and checked(bare, said.Ranking)


async def test_what_is_lost_is_told() -> None:
    given = job([1, 2])
    given.choices[0].pooled = None
    with pytest.raises(ApiError, match="lost") as error:
        await answers.embeddings(ANSWER, given, None)
    assert error.value.status == 500
