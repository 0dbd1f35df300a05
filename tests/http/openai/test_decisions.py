"""Questions as a model is asked them, and which labels their options have."""

from __future__ import annotations

import math

import pytest

from actorserve.http.errors import ApiError
from actorserve.http.openai.decisions.questions import (
    LETTERS,
    MAX_OPTIONS,
    PAIRS,
    alphabets,
    label,
    of_decisions,
    of_system_one,
    reading,
)
from actorserve.http.openai.decisions.schemas import (
    ChoiceQuestion,
    DecisionChoice,
    DecisionLevel,
    PredicateQuestion,
    ScoreQuestion,
    SystemOneQuestion,
)


def text_of(question: object) -> str:
    return "\n".join(part["text"] for part in question.message())  # type: ignore[attr-defined]


def test_yes_or_no_is_asked_by_its_words_where_they_are_tokens() -> None:
    (plain,) = of_decisions([PredicateQuestion("Is it so?")])
    label(plain, alphabets(plain)[0], None)
    assert text_of(plain) == "Question:\nIs it so?\nAnswer with yes or no only."
    (told,) = of_system_one({"a": SystemOneQuestion("noul", "Is it so?", {"true": "it is"})})
    label(told, alphabets(told)[1], None)
    assert text_of(told) == "Question:\nIs it so?\nYes: it is\nAnswer with Yes or No only."


def test_levels_are_numbers_and_choices_letters() -> None:
    (score,) = of_decisions([ScoreQuestion("How much?", [DecisionLevel("low"), DecisionLevel("high", "above 3")])])
    label(score, alphabets(score)[0], None)
    assert "0: low\n1: high - above 3\n" in text_of(score)
    many = [DecisionChoice(str(one)) for one in range(MAX_OPTIONS)]
    (choice,) = of_decisions([ChoiceQuestion("Which?", many)])
    label(choice, alphabets(choice)[-1], None)
    assert choice.labels == (LETTERS + PAIRS)[:MAX_OPTIONS]
    with pytest.raises(ApiError, match=f"has 3 labels of one token; {MAX_OPTIONS} are needed"):
        label(choice, LETTERS[:3], None)
    with pytest.raises(ApiError, match=f"2 to {MAX_OPTIONS} are taken"):
        of_decisions([ChoiceQuestion("Which?", [*many, DecisionChoice("more")])])


def test_a_choice_of_system_one_may_have_one_option() -> None:
    """As vLLM takes it; OpenAI's needs two, and so do levels."""
    (only,) = of_system_one({"a": SystemOneQuestion("choice", "Which?", {"this": None})})
    label(only, alphabets(only)[0], 7)
    assert len(only.labels) == 1
    with pytest.raises(ApiError, match=f"1 to {MAX_OPTIONS} are taken, not 0"):
        of_system_one({"a": SystemOneQuestion("choice", "Which?", {})})
    with pytest.raises(ApiError, match=f"2 to {MAX_OPTIONS} are taken, not 1"):
        of_system_one({"a": SystemOneQuestion("score", "How much?", ["low"])})
    with pytest.raises(ApiError, match=f"2 to {MAX_OPTIONS} are taken, not 1"):
        of_decisions([ChoiceQuestion("Which?", [DecisionChoice("this")])])


def test_with_a_seed_all_questions_draw_from_one_pool() -> None:
    """One request is told of all of their labels, and of few more."""
    many = [DecisionChoice(str(one)) for one in range(MAX_OPTIONS)]
    choices = of_decisions([ChoiceQuestion("Which?", many), ChoiceQuestion("And which?", many)])
    for choice in choices:
        label(choice, alphabets(choice)[-1][: MAX_OPTIONS + 31], 7)
    first, second = choices
    assert first.labels != second.labels and set(first.labels) == set(second.labels) == {
        *(LETTERS + PAIRS)[:MAX_OPTIONS]
    }


def test_a_string_and_a_boolean_are_two_choices() -> None:
    (question,) = of_decisions([ChoiceQuestion("Which?", [DecisionChoice("true"), DecisionChoice(True)])])
    assert len(question.options) == 2


def test_readings() -> None:
    told = reading([math.log(0.1), math.log(0.3)], True)
    assert told.probabilities == pytest.approx([0.25, 0.75]) and told.mass == pytest.approx(0.4)
    assert told.best == 1 and told.confidence == pytest.approx(0.3) and told.score == pytest.approx(0.75)
    never = reading([float("-inf"), -1.0], False)
    assert never.probabilities == [0, 1]
    none = reading([float("-inf"), float("-inf")], False)
    assert none.probabilities == [0.5, 0.5] and none.mass == 0
