"""What is drawn anew each time: names to remember, words to repeat, stories, and questions nobody answers."""

from __future__ import annotations

import random

from .tables import lines, rows, words

Turn = tuple[str, str]

UNKNOWN = "I am a very small model and do not know that. Ask me about actorserve, capitals or small sums."
TOO_LARGE = "That is too large for a very small model like me."
STORY = ("Tell me a story", "Tell a story", "Write a story", "Can you tell me a story?", "Write a short story")
TWO_CAPITALS = (
    "What are the capitals of {} and {}?",
    "Give me the capitals of {} and {}",
    "Name the capitals of {} and {}",
    "What is the capital of {} and of {}?",
)
STORY_ABOUT = ("Tell me a story about {}", "Write a story about {}", "Write a short story about {}")
MY_NAME = ("My name is {}", "I am {}", "I'm {}", "Hello, my name is {}", "Hi, I am {}", "Call me {}", "Hi, I'm {}")
ASK_NAME = ("What is my name?", "Do you remember my name?", "What's my name?", "Who am I?", "Do you know my name?")
REPEAT = ('Repeat "{}"', "Repeat after me: {}", "Say {}", 'Say "{}"', "Repeat: {}", "Please repeat: {}")
REPEATABLE = """apple river stone music window garden yellow winter paper silver bread letter number actor ring token
server message memory blue green horse table flower ocean little happy quick brown fox lazy dog hello world""".split()


class Talk:
    """Draws turns of a conversation and plain texts from one source of random numbers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._names = words("names")
        self._unknown = rows("unknown")
        self._capitals = [(country, capital) for country, capital, *_ in rows("countries")]
        self._parts = rows("stories")
        self._story_words = {kind: choices.split(";") for kind, choices in rows("story_words")}
        self._systems = lines("systems")

    def system(self) -> str:
        """A system message."""
        return self.rng.choice(self._systems)

    def unknown(self) -> Turn:
        """A question that the model cannot know, and what it says then."""
        form, choices = self.rng.choice(self._unknown)
        while "{}" in form:
            form = form.replace("{}", self.rng.choice(choices.split(";")), 1)
        form = form.replace("{country}", self.rng.choice(self._capitals)[0])
        return form.replace("{year}", str(self.rng.randint(1900, 2030))), UNKNOWN

    def is_capital(self) -> Turn:
        """Whether some city is the capital of some country."""
        (country, capital), (_, other) = self.rng.sample(self._capitals, 2)
        if self.rng.random() < 0.5:
            return f"Is {capital} the capital of {country}?", f"Yes, the capital of {country} is {capital}."
        return f"Is {other} the capital of {country}?", f"No, the capital of {country} is {capital}."

    def two_capitals(self) -> Turn:
        """The capitals of two countries at once."""
        (one, its), (two, of_two) = self.rng.sample(self._capitals, 2)
        form = self.rng.choice(TWO_CAPITALS)
        return form.format(one, two), f"The capital of {one} is {its}, and the capital of {two} is {of_two}."

    def large_sum(self) -> Turn:
        """A sum beyond the small numbers that the model knows."""
        a, b = self.rng.randint(100, 99999), self.rng.randint(20, 99999)
        sign = self.rng.choice("+-*/")
        form = self.rng.choice(("What is {} {} {}?", "{} {} {}", "{}{}{}", "Calculate {} {} {}"))
        return form.format(a, sign, b), TOO_LARGE

    def repeat(self) -> Turn:
        """Words to say again."""
        said = " ".join(self.rng.choices(REPEATABLE, k=self.rng.randint(1, 6)))
        return self.rng.choice(REPEAT).format(said), said

    def story_turn(self) -> Turn:
        """A wish for a story, and one."""
        hero = self.rng.choice(self._story_words["hero"])
        form = self.rng.choice(STORY + STORY_ABOUT)
        return form.format(hero), self.story(hero)

    def story(self, hero: str = "") -> str:
        """A story: one line of each part."""
        chosen = {kind: self.rng.choice(choices) for kind, choices in self._story_words.items()}
        chosen["hero"] = hero or chosen["hero"]
        chosen["name"] = "the " + chosen["hero"].split()[-1]
        parts = list(dict.fromkeys(part for part, _ in self._parts))
        drawn = (self.rng.choice([text for kind, text in self._parts if kind == part]) for part in parts)
        told = (line.format(**chosen) for line in drawn)
        return " ".join(line[0].upper() + line[1:] for line in told)

    def introduction(self) -> str:
        """How somebody introduces himself in a plain text."""
        name, friend = self.rng.sample(self._names, 2)
        years, like = self.rng.randint(7, 80), self.rng.choice(REPEATABLE[:10])
        return (
            f"Hello, my name is {name}. I am {years} years old. My best friend is {friend}, and I like the word {like}."
        )

    def name_turns(self) -> list[Turn]:
        """Somebody says a name, and asks for it later."""
        name = self.rng.choice(self._names)
        tell = self.rng.choice(MY_NAME).format(name), f"Nice to meet you, {name}! How can I help you?"
        ask = self.rng.choice(ASK_NAME)
        if self.rng.random() < 0.2:
            return [(ask, "You have not told me your name yet. What is it?"), tell]
        return [tell, (ask, f"Your name is {name}.")]
