"""Which tokens of a GGUF file's vocabulary end an answer, and which are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.gguf.config import make_generation_config
from actorserve.actors.model.gguf.header import read_header
from actorserve.actors.model.tokenizers.tokenizer import special_tokens
from actorserve.actors.options.config import make_config
from tests.support.models.gguf.files import CONTROL, NORMAL, USER_DEFINED, tiny_model

HARMONY = ["<|start|>", "<|end|>", "<|message|>", "<|return|>", "<|call|>"]
SOLAR = ["<|flush|>", "<|end|>", "<|calls|>"]
CODER = ["<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
GEMMA4 = ["<eos>", "<turn|>", "<|turn>", "<|tool_response>", "<tool_response|>"]


@pytest.mark.parametrize(
    ("special", "ends"),
    [
        (HARMONY, {"<|return|>", "<|call|>"}),
        (SOLAR, {"<|flush|>", "<|calls|>"}),
        (["<|end|>", "<|return|>"], {"<|end|>", "<|return|>"}),
        (["<|end|>", "<|user|>"], {"<|end|>"}),  # of Phi-3
        (GEMMA4, {"<eos>", "<turn|>", "<|tool_response>"}),
        (["[BOS]", "[EOS]", "[EOT]"], {"[EOS]", "[EOT]"}),  # of Kimi K2
        (["]~b]", "[e~["], {"[e~["}),  # of MiniMax M2
        (["</S>", "[PAD]", "<PAD>", "<REPO>", "<s>"], {"[PAD]", "<PAD>", "<REPO>"}),
        (CODER, {"<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}),  # of Qwen
    ],
)
@pytest.mark.parametrize("eot", [False, True])
def test_what_ends_an_answer(special: list[str], ends: set[str], eot: bool, tmp_path: Path) -> None:
    """What ends one message of several ends no answer, whether the file calls it the end of a turn or not."""
    tokens = ["a", "b", "ab", "</s>", *special]
    known = {"tokens": tokens, "token_type": [NORMAL] * 3 + [CONTROL] * (len(tokens) - 3), "eos_token_id": 3}
    known |= {"bos_token_id": None, "eot_token_id": tokens.index("<|end|>") if eot and "<|end|>" in special else None}
    path = tiny_model(tmp_path, {f"tokenizer.ggml.{name}": value for name, value in known.items()}, len(tokens))
    found = make_generation_config(read_header(path))["eos_token_id"]
    assert found[0] == 3 and {tokens[token] for token in found[1:]} == ends and len(found) == len(ends) + 1


def test_what_ends_an_answer_whatever_the_file_calls_its_end(tmp_path: Path) -> None:
    """As with llama.cpp: `</s>` behind another end, and what filled-in code ends with by its field."""
    tokens = ["a", "b", "ab", "</s>", "<|im_end|>", "<hole>", "<other file>"]
    known = {"tokens": tokens, "token_type": [NORMAL] * 3 + [CONTROL] * 4, "eos_token_id": 4, "bos_token_id": None}
    known |= {"fim_pad_token_id": 5, "fim_sep_token_id": 6}
    path = tiny_model(tmp_path, {f"tokenizer.ggml.{name}": value for name, value in known.items()}, len(tokens))
    assert make_generation_config(read_header(path))["eos_token_id"] == [4, 5, 6, 3]


@pytest.mark.parametrize(
    ("kind", "special", "ends"),
    [
        (USER_DEFINED, "<end_of_turn>", ["<eos>", "<end_of_turn>"]),  # of Gemma 3, where it is an HTML tag
        (CONTROL, "<end_of_turn>", ["<eos>", "</s>", "<end_of_turn>"]),
        (CONTROL, "<|tool_response>", ["<eos>", "<|tool_response>"]),  # of Gemma 4, as with llama.cpp
    ],
)
def test_an_html_tag_ends_no_answer(kind: int, special: str, ends: list[str], tmp_path: Path) -> None:
    tokens = ["a", "b", "ab", "<eos>", "</s>", special]
    known = {"tokens": tokens, "token_type": [NORMAL] * 3 + [CONTROL, kind, CONTROL], "eos_token_id": 3}
    known |= {"bos_token_id": None, "eot_token_id": None}
    path = tiny_model(tmp_path, {f"tokenizer.ggml.{name}": value for name, value in known.items()}, len(tokens))
    found = make_generation_config(read_header(path))["eos_token_id"]
    assert [tokens[token] for token in found] == ends


def test_a_special_token_that_there_is_not(tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Converters write padding one behind the last of all tokens: the rest of the file is none the worse."""
    wrong = {"tokenizer.ggml.padding_token_id": 8, "tokenizer.ggml.eot_token_id": 4_294_967_295}
    model = find_model(make_config({"model": str(tiny_model(tmp_path, wrong)), "device": "cpu"}))
    assert model.end_tokens == [4, 5] and special_tokens(model)["pad_token"] == "</s>"
    for key, token in wrong.items():
        assert f"says {key} = {token} of 8 tokens: it is not used" in caplog.text
