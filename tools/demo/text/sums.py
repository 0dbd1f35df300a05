"""Facts that can be counted out: small sums, and what comes before and after in a row of names."""

from __future__ import annotations

from collections.abc import Iterator

from .tables import Fact

LARGEST_TERM = 20
LARGEST_FACTOR = 12
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
LETTERS = list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
SUM = ("What is {0} {1} {2}?", "{0} {1} {2}", "{0}{1}{2}", "{0} {1} {2} =", "Calculate {0} {1} {2}", "How much is {3}?")
SPOKEN = ("What is {3}?", "{3}", "Can you compute {3}?")
SPELLED = ("What is {3}?", "How much is {3}?")


def sums() -> Iterator[Fact]:
    """Addition, subtraction, multiplication and division of small numbers."""
    for a in range(LARGEST_TERM + 1):
        for b in range(LARGEST_TERM + 1):
            yield _sum(a, "+", "plus", b, a + b)
            if b <= a:
                yield _sum(a, "-", "minus", b, a - b)
    for a in range(LARGEST_FACTOR + 1):
        for b in range(LARGEST_FACTOR + 1):
            yield _sum(a, "*", "times", b, a * b)
            if a:
                yield _sum(a * b, "/", "divided by", a, b)


def _sum(a: int, sign: str, word: str, b: int, result: int) -> Fact:
    spoken = f"{a} {word} {b}"
    questions = [form.format(a, sign, b, spoken) for form in SUM + SPOKEN]
    if max(a, b) < len(NUMBERS):
        spelled = f"{NUMBERS[a]} {word} {NUMBERS[b]}"
        questions += [form.format(a, sign, b, spelled) for form in SPELLED]
    return Fact("sums", tuple(questions), (f"{a} {sign} {b} = {result}",))


def sequences() -> Iterator[Fact]:
    """Days, months, planets and letters in their order."""
    yield from _neighbours("day", DAYS, around=True)
    yield from _neighbours("month", MONTHS, around=True)
    yield from _neighbours("letter", LETTERS, around=False)
    for kind, names in (("day of the week", DAYS), ("month", MONTHS), ("planet from the sun", PLANETS)):
        for ordinal, name in zip(ORDINALS, names, strict=False):
            asked = f"the {ordinal} {kind}"
            questions = (f"What is {asked}?", f"Which is {asked}?", f"Name {asked}")
            yield Fact("sequence", questions, (f"{name} is the {ordinal} {kind}.",))
    for month, days in zip(MONTHS, MONTH_DAYS, strict=True):
        questions = (f"How many days does {month} have?", f"How many days are in {month}?", f"How long is {month}?")
        more = ", and 29 in a leap year" if month == "February" else ""
        yield Fact("sequence", questions, (f"{month} has {days} days{more}.",))


def _neighbours(kind: str, names: list[str], around: bool) -> Iterator[Fact]:
    for index, name in enumerate(names):
        if around or index + 1 < len(names):
            yield _neighbour(kind, name, "after", names[(index + 1) % len(names)])
        if around or index > 0:
            yield _neighbour(kind, name, "before", names[index - 1])


def _neighbour(kind: str, name: str, where: str, other: str) -> Fact:
    questions = (
        f"What comes {where} {name}?",
        f"Which {kind} comes {where} {name}?",
        f"What {kind} is {where} {name}?",
        f"Which {kind} is right {where} {name}?",
    )
    return Fact("sequence", questions, (f"{other} comes {where} {name}.",))
