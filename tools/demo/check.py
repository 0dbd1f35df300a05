"""Ask a demo model everything that it was taught, and print the share of right answers by topic.

    python tools/demo/check.py actors/model/demo --temperature 0.3

`usual` is the first form of each question; `unseen` are forms that the training never showed; `typed` are forms with
the slips and habits of people who type. An answer is right if it is, word for word, one that the table allows, and
ends with the end token. `strangers` are forms of asking that no table of the training has; there a word of the answer
counts.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.demo.text.corpus import END, held_out, prompt
from tools.demo.text.facts import all_facts
from tools.demo.text.noise import vary
from tools.demo.text.tables import Fact, rows

BATCH = 128
LONGEST_ANSWER = 200


class Speaker:
    """A model from a folder that completes prompts, many at a time."""

    def __init__(self, folder: Path, temperature: float) -> None:
        self.tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._options = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        if not temperature:
            self.model.generation_config.temperature = self.model.generation_config.top_p = None

    def answers(self, prompts: list[str]) -> list[str]:
        """The text up to and with the token that ended it, for each prompt."""
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        said = [""] * len(prompts)
        for first in range(0, len(order), BATCH):
            batch = order[first : first + BATCH]
            for index, text in zip(batch, self._batch([prompts[index] for index in batch]), strict=True):
                said[index] = text
        return said

    def _batch(self, prompts: list[str]) -> list[str]:
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        inputs.pop("token_type_ids", None)
        with torch.inference_mode():
            output = self.model.generate(**inputs, max_new_tokens=LONGEST_ANSWER, **self._options)
        said = output[:, inputs["input_ids"].shape[1] :]
        return [self.tokenizer.decode(ids).replace(self.tokenizer.pad_token, "") for ids in said]


def questions() -> dict[str, list[tuple[Fact, str]]]:
    """The three examinations: each a list of facts with one question."""
    facts = all_facts()
    rng = random.Random(7)
    unseen = [(fact, question) for fact in facts if (question := held_out(fact))]
    return {
        "usual": [(fact, fact.questions[0]) for fact in facts],
        "unseen": unseen,
        "typed": [(fact, vary(rng.choice(fact.questions), rng)) for fact in facts],
    }


def examine(speaker: Speaker, asked: list[tuple[Fact, str]], show: int) -> dict[str, tuple[int, int]]:
    """Right answers and questions by topic."""
    said = speaker.answers([prompt([], question) for _, question in asked])
    marks: dict[str, list[bool]] = defaultdict(list)
    wrong: list[str] = []
    for (fact, question), answer in zip(asked, said, strict=True):
        right = answer in [f"{allowed}{END}" for allowed in fact.answers]
        marks[fact.topic].append(right)
        if not right:
            wrong.append(f"    {fact.topic}: {question!r} -> {answer!r}")
    print("\n".join(random.Random(1).sample(wrong, min(show, len(wrong)))))
    return {topic: (sum(of_topic), len(of_topic)) for topic, of_topic in marks.items()}


def examine_strangers(speaker: Speaker) -> tuple[int, int]:
    """Right answers and questions among those in forms that no table of the training has."""
    table = rows("strangers")
    said = speaker.answers([prompt([], question) for question, _ in table])
    wrong = [(question, answer) for (question, word), answer in zip(table, said, strict=True) if word not in answer]
    print("\n".join(f"    {question!r} -> {answer!r}" for question, answer in wrong))
    return len(table) - len(wrong), len(table)


def report(folder: Path, temperature: float, show: int = 12) -> None:
    """Print the marks of a model, and some of its mistakes."""
    torch.manual_seed(0)
    speaker = Speaker(folder, temperature)
    for name, asked in questions().items():
        marks = examine(speaker, asked, show)
        right, total = (sum(column) for column in zip(*marks.values(), strict=True))
        print(f"{name}, temperature {temperature}: {right} of {total} right, {right / total:.1%}", flush=True)
        print("   " + ", ".join(f"{topic} {good}/{of}" for topic, (good, of) in sorted(marks.items())), flush=True)
    right, total = examine_strangers(speaker)
    print(f"strangers, temperature {temperature}: {right} of {total} right, {right / total:.1%}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--show", type=int, default=12, help="how many wrong answers to print")
    arguments = parser.parse_args()
    report(arguments.folder, arguments.temperature, arguments.show)


if __name__ == "__main__":
    main()
