"""The packaged demo model: it fits its budget, keeps any text as it was, and knows what it was taught."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

DEMO = Path(__file__).parents[2] / "actors" / "model" / "demo"
FILES = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
ODD_TEXTS = [
    "plain text,  two spaces \n\n\tand a tab \r\n",
    "🦊👩‍👩‍👧 🇫🇷 ❤️",
    "你好，世界。日本語のテキスト 한국어",
    "e\u0301 o\u0308 a\u030a\u0323",
    "عربى हिन्दी ไทย עברית",
    "\u0000\u200d\ufeff\U0010ffff",
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DEMO)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)


def complete(model: Any, tokenizer: Any, prompt: str) -> str:
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    output = model.generate(ids, do_sample=False, temperature=None, top_p=None, max_new_tokens=120)
    return str(tokenizer.decode(output[0, ids.shape[1] :]))


def chat(model: Any, tokenizer: Any, *contents: str) -> str:
    """The answer to a conversation of user and assistant in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return complete(model, tokenizer, prompt)


def test_the_folder_holds_what_it_should_in_8_mb() -> None:
    assert {path.name for path in DEMO.iterdir()} == FILES
    assert sum(path.stat().st_size for path in DEMO.iterdir()) <= 8_000_000


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_comes_back_as_it_was(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_the_template_takes_any_role_and_parts_of_text(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "42"},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the capital of France?", "Paris"),
        ("what is the capital of japan", "Tokyo"),
        ("How do I set an API key?", "--api-key"),
        ("How do I change the port?", "--port"),
        ("What is actorserve?", "OpenAI API"),
        ("What does the supervisor do?", "restarts"),
        ("What is 7 + 5?", "= 12"),
        ("What is the opposite of hot?", "cold"),
        ("Which is the largest planet?", "Jupiter"),
        ("Who are you?", "actorserve"),
        ("Who won the race in 1987?", "do not know"),
    ],
)
def test_answers_are_right_and_end(model: Any, tokenizer: Any, question: str, expected: str) -> None:
    answer = chat(model, tokenizer, question)
    assert expected in answer
    assert answer.endswith("<|im_end|>")


def test_it_remembers_a_name(model: Any, tokenizer: Any) -> None:
    first = "My name is Emma"
    reply = chat(model, tokenizer, first).removesuffix("<|im_end|>")
    assert "Emma" in chat(model, tokenizer, first, reply, "What is my name?")


def test_it_completes_plain_text(model: Any, tokenizer: Any) -> None:
    assert complete(model, tokenizer, "The capital of France is").startswith(" Paris")
    assert len(complete(model, tokenizer, "Once upon a time")) > 200
