"""Compose documents, conversations and plain texts, as pieces of text with the weight of their loss."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

from .facts import all_facts
from .noise import vary
from .tables import Fact
from .talk import Talk, Turn

START, END, STOP = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
ASKED_WEIGHT = 0.1
PLAIN = 0.25  # the part of the documents that are no conversations

Document = list[tuple[str, float]]

TOPICS = {
    "actorserve": 13.0, "options": 3, "tasks": 6, "terms": 4, "general": 18, "chat": 10,
    "capital": 8, "capital_of": 10, "continent": 5, "currency": 6, "language": 5, "states": 3,
    "symbol": 2, "element": 2.5, "number": 2.5, "opposite": 7, "works": 6, "translation": 5,
    "young": 1.2, "sound": 1.2, "sums": 12, "sequence": 8,
}  # fmt: skip
DRAWN = {
    "unknown": 8.0, "large_sum": 1, "repeat": 2, "story_turn": 2, "name_turns": 4, "is_capital": 2, "two_capitals": 1.5,
}  # fmt: skip
TURNS, TURN_WEIGHTS = (1, 2, 3, 4, 8, 14), (58, 21, 12, 6, 2, 1)
FOLLOW_UPS = ("And {}?", "And of {}?", "And for {}?", "What about {}?", "And what about {}?", "{}?")
TITLES = (("Question: ", "\nAnswer: "), ("Q: ", "\nA: "))


def held_out(fact: Fact) -> str | None:
    """The one question of the fact that is kept for the evaluation: a later one, for a fourth of the facts."""
    code = zlib.crc32(fact.questions[0].encode())
    if len(fact.questions) < 4 or code % 4:
        return None
    return fact.questions[1 + code // 4 % (len(fact.questions) - 1)]


def prompt(turns: list[Turn], question: str, system: str | None = None) -> str:
    """The text of a conversation up to where the assistant shall answer."""
    text = f"{START}system\n{system}{END}\n" if system else ""
    for asked, answer in turns:
        text += f"{START}user\n{asked}{END}\n{START}assistant\n{answer}{END}\n"
    return f"{text}{START}user\n{question}{END}\n{START}assistant\n"


def held_out_texts() -> Iterator[str]:
    """Conversations of three facts each, asked in forms that the training never showed."""
    asked = [(question, fact.answers[0]) for fact in all_facts() if (question := held_out(fact))]
    for first in range(0, len(asked) - 2, 3):
        *before, (question, answer) = asked[first : first + 3]
        yield prompt(before, question) + f"{answer}{END}\n"


class Corpus:
    """An endless supply of documents; the seed fixes them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.talk = Talk(self.rng)
        self._facts: dict[str, list[Fact]] = {topic: [] for topic in TOPICS}
        self._by_subject: dict[str, list[Fact]] = {}
        for fact in all_facts():
            self._facts[fact.topic].append(fact)
            if fact.topic in ("capital", "continent", "currency", "language"):
                self._by_subject.setdefault(fact.subject, []).append(fact)
        self._kinds = {**TOPICS, **DRAWN}

    def documents(self) -> Iterator[Document]:
        """One document after the other."""
        while True:
            yield self._plain() if self.rng.random() < PLAIN else self._chat()

    def _chat(self) -> Document:
        turns: list[Turn] = []
        for _ in range(self.rng.choices(TURNS, TURN_WEIGHTS)[0]):
            turns += self._turns()
        system = self.talk.system() if self.rng.random() < 0.35 else None
        document: Document = [(f"{START}system\n{system}{END}\n", 0.0)] if system else []
        for question, answer in turns:
            document.append((prompt([], question), ASKED_WEIGHT))
            document.append((f"{answer}{END}", 1.0))
            document.append(("\n", 0.0))
        return [*document[:-1], (f"\n{STOP}", 0.1)]

    def _turns(self) -> list[Turn]:
        kind = self.rng.choices(list(self._kinds), list(self._kinds.values()))[0]
        if kind == "name_turns":
            first, last = self.talk.name_turns()
            return [first, *(self._turns() if self.rng.random() < 0.5 else []), last]
        if kind in DRAWN:
            question, answer = getattr(self.talk, kind)()
            return [(vary(question, self.rng) if kind != "repeat" else question, answer)]
        fact = self.rng.choice(self._facts[kind])
        turns = [(vary(self._question(fact), self.rng), self.rng.choice(fact.answers))]
        if fact.subject and kind not in ("translation", "capital_of") and self.rng.random() < 0.15:
            turns.append(self._follow_up(kind))
        return turns

    def _follow_up(self, topic: str) -> Turn:
        fact = self.rng.choice(self._facts[topic])
        question = self.rng.choice(FOLLOW_UPS).format(fact.subject)
        return vary(question, self.rng), fact.answers[0]

    def _question(self, fact: Fact) -> str:
        if self.rng.random() < 0.2:
            return fact.questions[0]
        kept = held_out(fact)
        return self.rng.choice([question for question in fact.questions if question != kept])

    def _plain(self) -> Document:
        draw = self.rng.random()
        if draw < 0.06:
            text = self.talk.story()
        elif draw < 0.1:
            text = self.talk.introduction()
        elif draw < 0.25:
            text = " ".join(fact.answers[0] for fact in self.rng.choice(list(self._by_subject.values())))
        elif draw < 0.4:
            text = self._titled()
        elif draw < 0.65:
            text = self._drill()
        else:
            text = self._statements()
        return [(text + STOP, 1.0)]

    def _titled(self) -> str:
        """Questions and answers under the titles that people write for models that only complete."""
        ask, answer = self.rng.choice(TITLES)
        facts = [self._fact() for _ in range(self.rng.randint(1, 3))]
        return "\n\n".join(f"{ask}{self._question(fact)}{answer}{fact.answers[0]}" for fact in facts)

    def _statements(self) -> str:
        topic = self._fact().topic
        facts = self.rng.sample(self._facts[topic], self.rng.randint(1, 5))
        return " ".join(fact.answers[0] for fact in facts)

    def _drill(self) -> str:
        """A page of sums."""
        facts = self.rng.sample(self._facts["sums"], self.rng.randint(1, 16))
        return "\n".join(fact.answers[0] for fact in facts)

    def _fact(self) -> Fact:
        topics = {topic: weight for topic, weight in TOPICS.items() if topic != "chat"}
        return self.rng.choice(self._facts[self.rng.choices(list(topics), list(topics.values()))[0]])
