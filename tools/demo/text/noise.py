"""Vary a question as people do who type it: case, punctuation, a polite frame, a slip of the finger."""

from __future__ import annotations

import random

BEFORE = ("Please tell me: ", "Hi! ", "Hello, ", "Hey, ", "I have a question: ", "Tell me, ", "Question: ", "So, ")
AFTER = (" Thanks!", " please", ", please", " Please answer.", " Thank you.")


def vary(question: str, rng: random.Random) -> str:
    """The question, in one of the ways in which it may be typed."""
    if rng.random() < 0.4:
        return question
    if rng.random() < 0.1:
        question = question.replace("What is ", "What's ", 1).replace("How do I ", "How would I ", 1)
    if rng.random() < 0.4 and question[-1] in "?!.":
        question = question[:-1]
    if rng.random() < 0.12:
        question = rng.choice(BEFORE) + question
    if rng.random() < 0.08:
        question += rng.choice(AFTER)
    if rng.random() < 0.1:
        question = _slip(question, rng)
    return _case(question, rng)


def _case(question: str, rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.45:
        return question.lower()
    return question.upper() if draw < 0.48 else question


def _slip(question: str, rng: random.Random) -> str:
    """Swap, drop or double one letter inside a longer word."""
    parts = question.split(" ")
    places = [index for index, part in enumerate(parts) if len(part) > 4 and part.isalpha()]
    if not places:
        return question
    index = rng.choice(places)
    word = parts[index]
    at = rng.randrange(1, len(word) - 2)
    slips = (
        word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        word[:at] + word[at + 1 :],
        word[:at] + word[at : at + 1] * 2 + word[at + 1 :],
    )
    parts[index] = rng.choice(slips)
    return " ".join(parts)
