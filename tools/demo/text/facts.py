"""All that the demo model shall know by heart: facts from the tables, each with the ways in which it is asked."""

from __future__ import annotations

from collections.abc import Iterator

from .sums import sequences, sums
from .tables import Fact, blocks, rows

CAPITAL = (
    "What is the capital of {}?",
    "Which city is the capital of {}?",
    "Capital of {}?",
    "What is the capital city of {}?",
    "Name the capital of {}",
    "Tell me the capital of {}",
    "{} capital",
    "Do you know the capital of {}?",
    "Which is the capital of {}?",
    "What is {}'s capital?",
)
CAPITAL_OF = (
    "{} is the capital of which country?",
    "Which country has the capital {}?",
    "Of which country is {} the capital?",
    "What country is {} the capital of?",
    "In which country is {}?",
    "Where is {}?",
)
CONTINENT = (
    "On which continent is {}?",
    "Which continent is {} in?",
    "Where is {}?",
    "Where is {} located?",
    "What continent does {} belong to?",
    "In which part of the world is {}?",
)
CURRENCY = (
    "What is the currency of {}?",
    "Which currency does {} use?",
    "What money is used in {}?",
    "What is the money of {} called?",
    "How do people pay in {}?",
)
LANGUAGE = (
    "Which language is spoken in {}?",
    "What language do people speak in {}?",
    "What is the language of {}?",
    "What do they speak in {}?",
    "What is the official language of {}?",
)
SYMBOL = (
    "What is the chemical symbol of {}?",
    "What is the symbol for {}?",
    "Symbol of {}?",
    "Which symbol does {} have?",
    "How is {} abbreviated in chemistry?",
)
ELEMENT = ("Which element has the symbol {}?", "What element is {}?", "Which chemical element is written {}?")
NUMBER = (
    "What is the atomic number of {}?",
    "Which atomic number does {} have?",
    "Atomic number of {}?",
    "How many protons does {} have?",
)
OPPOSITE = (
    "What is the opposite of {}?",
    "Opposite of {}?",
    "What's the contrary of {}?",
    "Tell me the opposite of {}",
    "Which word means the opposite of {}?",
)
WORK = ("Who {1} {0}?", "By whom was {0} made?", "Tell me who {1} {0}", "Do you know who {1} {0}?")
TRANSLATION = (
    "What is {0} in {1}?",
    "How do you say {0} in {1}?",
    "Translate {0} into {1}",
    "What is the {1} word for {0}?",
    "{0} in {1}?",
)
YOUNG = ("What is a young {} called?", "What is a baby {} called?", "What do you call a baby {}?")
SOUND = ("What sound does a {} make?", "What does a {} say?", "Which noise does a {} make?", "What does the {} do?")
OPTION = (
    "What does {} do?",
    "What is {}?",
    "What is {} for?",
    "What is the option {}?",
    "Explain {}",
    "How do I use {}?",
    "What does the option {} mean?",
)
TASK = (
    "How do I {}?",
    "How can I {}?",
    "How to {}?",
    "Which option do I need to {}?",
    "I want to {}",
    "Is there an option to {}?",
    "How do you {}?",
    "Can I {}?",
    "What flag do I use to {}?",
    "Tell me how to {}",
    "What is the option to {}?",
    "How would I {}?",
    "Which flag lets me {}?",
    "What do I do to {}?",
    "{}",
)


def all_facts() -> list[Fact]:
    """Every fact, in a fixed order."""
    makers = (_options, _countries, _states, _elements, _opposites, _works, _translations, _animals, sums, sequences)
    told = [fact for name in ("actorserve", "terms", "general", "chat") for fact in blocks(name)]
    return told + [fact for maker in makers for fact in maker()]


def _ask(forms: tuple[str, ...], *values: str) -> tuple[str, ...]:
    questions = (form.format(*values) for form in forms)
    return tuple(question[0].upper() + question[1:] for question in questions)


def _options() -> Iterator[Fact]:
    for option, tasks, does in rows("options"):
        does_it = does[0].lower() + does[1:]
        plain = (f"What does {option[2:].replace('-', ' ')} do?", f"What is {option[2:].replace('-', ' ')}?")
        yield Fact("options", (*_ask(OPTION, option), *plain), (f"{option} is an option of actorserve launch. {does}",))
        for task in tasks.split(";"):
            yield Fact("tasks", _ask(TASK, task), (f"Use the option {option}: {does_it}",))


def _countries() -> Iterator[Fact]:
    capitals: dict[str, str] = {}
    for country, capital, continent, currency, language in rows("countries"):
        yield Fact("capital", _ask(CAPITAL, country), (f"The capital of {country} is {capital}.",), country)
        start = country[0].upper() + country[1:]
        yield Fact("continent", _ask(CONTINENT, country), (f"{start} is in {continent}.",), country)
        money = f"The currency of {country} is the {currency}."
        yield Fact("currency", _ask(CURRENCY, country), (money,), country)
        tongue = f"The main language of {country} is {language}."
        if " and " in language:
            tongue = f"The main languages of {country} are {language}."
        yield Fact("language", _ask(LANGUAGE, country), (tongue,), country)
        if capital not in capitals and capital != country:
            capitals[capital] = country
    for capital, country in capitals.items():
        answer = f"{capital} is the capital of {country}."
        yield Fact("capital_of", _ask(CAPITAL_OF, capital), (answer,), capital)


def _states() -> Iterator[Fact]:
    for state, capital in rows("states"):
        yield Fact("states", _ask(CAPITAL, state), (f"The capital of {state} is {capital}.",), state)


def _elements() -> Iterator[Fact]:
    for name, symbol, number in rows("elements"):
        yield Fact("symbol", _ask(SYMBOL, name), (f"The symbol of {name} is {symbol}.",), name)
        yield Fact("element", _ask(ELEMENT, symbol), (f"{symbol} is {name}.",), symbol)
        yield Fact("number", _ask(NUMBER, name), (f"The atomic number of {name} is {number}.",), name)


def _opposites() -> Iterator[Fact]:
    for pair in rows("opposites"):
        for word, opposite in (pair, reversed(pair)):
            yield Fact("opposite", _ask(OPPOSITE, word), (f"The opposite of {word} is {opposite}.",), word)


def _works() -> Iterator[Fact]:
    for work, author, did in rows("works"):
        yield Fact("works", _ask(WORK, work, did), (f"{author} {did} {work}.",))


def _translations() -> Iterator[Fact]:
    for english, *others in rows("words"):
        for language, word in zip(("French", "German", "Spanish", "Italian"), others, strict=True):
            answer = f'The {language} for "{english}" is "{word}".'
            yield Fact("translation", _ask(TRANSLATION, english, language), (answer,), english)


def _animals() -> Iterator[Fact]:
    for animal, young, sound in rows("animals"):
        article = "an" if animal[0] in "aeiou" else "a"
        young_article = "an" if young[0] in "aeiou" else "a"
        yield Fact("young", _ask(YOUNG, animal), (f"A young {animal} is called {young_article} {young}.",), animal)
        yield Fact("sound", _ask(SOUND, animal), (f"{article.capitalize()} {animal} {sound}.",), animal)
