"""GGUF files without their weights: headers of strangers, config, tokenizers."""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.gguf.architectures import Fields
from actorserve.actors.model.gguf.header import MOST_VALUES, TYPES, GgufHeader, GgufTensor, read_header
from actorserve.actors.model.gguf.names import hub_tensors
from actorserve.actors.model.gguf.states.config import OWN
from actorserve.actors.model.info import DEMO_FOLDER, ModelInfo, resolve_model
from actorserve.actors.model.tokenizers.tokenizer import find_templates, load_tokenizer, special_tokens
from actorserve.actors.options.config import ConfigError, make_config
from tests.support.models.gguf.files import NORMAL, text, write
from tests.support.models.gguf.files import tiny_fields as fields
from tests.support.models.gguf.files import tiny_model as model
from tests.support.models.gguf.files import tiny_tensors as tensors

pytestmark = pytest.mark.usefixtures("cache")


def find(path: Path, **options: Any) -> ModelInfo:
    return find_model(make_config({"model": str(path), "device": "cpu", "max_num_seqs": 1} | options))


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        find(path, **options)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 600
    return said


# --- headers -------------------------------------------------------------------------------------------------------


def test_a_file_is_a_model(tmp_path: Path) -> None:
    info = find(model(tmp_path, {"general.sampling.temp": 0.5, "general.sampling.top_k": 7}))
    assert (info.architecture, info.vocab_size, info.max_model_len) == ("LlamaForCausalLM", 8, 64)
    assert info.end_tokens == [4, 5] and info.sampling_defaults == {"temperature": 0.5, "top_k": 7}
    config = make_config({"model": info.folder})
    assert find_templates(config, info) == {"default": "{{ messages }}"}
    assert special_tokens(info) == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}


def test_a_header_that_ends_anywhere_is_refused_in_one_line(tmp_path: Path) -> None:
    """Every length of the header, and of the data behind it the last byte."""
    path = model(tmp_path)
    whole = path.read_bytes()
    begin = min(tensor.offset for tensor in read_header(path).tensors.values())
    for length in (len(whole) - 32, *range(begin, -1, -1)):
        os.truncate(path, length)
        with pytest.raises(ConfigError) as caught:
            Fields(read_header(path))
        said = str(caught.value)
        assert "\n" not in said and str(path) in said and len(said) < 400, said


def test_bytes_that_are_others_are_refused_or_read(tmp_path: Path) -> None:
    """Nothing else is raised, and no memory is taken for what a header merely claims."""
    path, random = model(tmp_path), np.random.default_rng(3)
    whole = path.read_bytes()
    header = min(tensor.offset for tensor in read_header(path).tensors.values())
    refused, config = 0, make_config({"model": str(path), "device": "cpu"})
    tracemalloc.start()
    for _ in range(400):
        damaged = bytearray(whole)
        at = int(random.integers(header - 8))
        damaged[at : at + 8] = random.choice([b"\xff" * 8, b"\0" * 8, random.bytes(8), struct.pack("<Q", 1 << 40)])
        path.unlink()  # another file each time
        path.write_bytes(damaged)
        said = ""
        try:
            resolve_model(config)
        except ConfigError as error:
            said = str(error)
        refused += bool(said)
        assert "\n" not in said
    assert refused > 200 and tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


def raw(*parts: bytes, tensors: int = 0, fields: int = 1, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields) + b"".join(parts)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "it is big-endian"),
        (raw(version=1), "version 1 of the format; these are read: 2, 3"),
        (raw(tensors=1 << 60), "the number of tensors is 1,152,921,504,606,846,976; at most"),
        (raw(fields=1 << 60), "the number of fields is"),
        (raw(struct.pack("<Q", 1 << 62)), "the key of field 0 has 4,611,686,018,427,387,904 bytes; 512 are allowed"),
        (raw(struct.pack("<Q", 2), b"\xff\xfe"), "the key of field 0 is no text in UTF-8"),
        (raw(text("a"), struct.pack("<I", 77)), "a has a value of type 77, which there is not"),
        (raw(text("a"), struct.pack("<IQ", 8, 1 << 63)), "it ends inside a"),
        (raw(text("a"), struct.pack("<IQ", 8, 1), b"\xff"), "a is no text in UTF-8"),
        (raw(text("a"), struct.pack("<IIQ", 9, 9, 1)), "a is an array of arrays, which is not supported"),
        (raw(text("a"), struct.pack("<IIQ", 9, 8, MOST_VALUES)), "it ends inside a"),
        (raw(text("a"), struct.pack("<IIQ", 9, 12, 1 << 50)), "a: the number of its values is"),
        (raw(text("a"), struct.pack("<IIQ", 9, 12, MOST_VALUES)), "it ends inside a"),
        (raw(text("a"), struct.pack("<IIQQ", 9, 8, 1, 1), b"\xff"), r"a\[0\] is no text in UTF-8"),
        (raw(text("a"), struct.pack("<IB", 0, 1), text("a"), fields=2), "a stands there twice"),
        (raw(text("general.alignment"), struct.pack("<II", 4, 3)), "general.alignment is 3; a power of two from 8"),
        (raw(text("t"), struct.pack("<I", 9), tensors=1, fields=0), "tensor t has 9 dimensions; 1 to 4 are allowed"),
        (raw(text("t"), struct.pack("<IQIQ", 1, 32, 24, 0), tensors=1, fields=0), "tensor t has the type I8"),
        (raw(text("t"), struct.pack("<IQIQ", 1, 32, 99, 0), tensors=1, fields=0), "tensor t has the type of number 99"),
        (raw(text("t"), struct.pack("<IQIQ", 1, 33, 8, 0), tensors=1, fields=0), "tensor t has rows of 33 numbers"),
        (raw(text("t"), struct.pack("<IQIQ", 1, 32, 8, 8), tensors=1, fields=0), "tensor t begins at 8, which is no"),
        (raw(text("t"), struct.pack("<IQIQ", 1, 1 << 39, 0, 0), tensors=1, fields=0), "tensor t ends at byte"),
    ],
)
def test_what_is_wrong_with_a_header_is_named(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=words) as caught:
        read_header(path)
    assert "\n" not in str(caught.value)


# --- config --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"general.architecture": "plamo"},
            "the architecture plamo (general.architecture) is not supported in GGUF",
        ),
        ({"general.architecture": ""}, "a file without an architecture (general.architecture) is not supported"),
        ({"general.type": "mmproj"}, "is of the type mmproj (general.type); a file of a model is needed"),
        ({"llama.block_count": None}, "says llama.block_count = None; a whole number from 1"),
        ({"llama.block_count": "many"}, "says llama.block_count = 'many'; a whole number from 1"),
        ({"llama.attention.head_count": [2, 1]}, "says llama.attention.head_count = [2, 1]; a whole number"),
        ({"llama.feed_forward_length": [32, 64]}, "says llama.feed_forward_length = [32, 64]"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "llama.attention.layer_norm_rms_epsilon = None; a number"),
        ({"llama.expert_count": 8}, "says llama.expert_used_count = None; a whole number from 1"),
        ({"llama.expert_count": 2, "llama.expert_used_count": 3}, "says llama.expert_used_count = 3; no more than 2"),
        ({"llama.expert_count": 2, "llama.expert_gating_func": 2}, "says llama.expert_gating_func = 2; 1, softmax, is"),
        ({"llama.expert_count": 2, "llama.expert_weights_norm": False}, "llama.expert_weights_norm = False; true is"),
        ({"llama.expert_count": 2, "llama.expert_weights_scale": 2.5}, "says llama.expert_weights_scale = 2.5; 1 is"),
        ({"llama.expert_count": 4, "llama.expert_group_count": 2}, "says llama.expert_group_count = 2; 1 is needed"),
        ({"general.architecture": "qwen3", "qwen3.expert_count": 8}, "has qwen3.expert_count, which is not supported"),
        ({"general.architecture": "qwen3", "qwen3.attention.sliding_window": 8}, "has qwen3.attention.sliding_window"),
        ({"general.architecture": "glm4", "glm4.rope.dimension_sections": [4, 4]}, "has glm4.rope.dimension_sections"),
        (
            {"general.architecture": "glm4", "glm4.rope.freq_base_swa": 5.0},
            "glm4.rope.freq_base_swa = 5.0; that of all",
        ),
        (
            {"general.architecture": "gemma2", "gemma2.attention.sliding_window_pattern": [1, 0]},
            "says gemma2.attention.sliding_window_pattern = [1, 0]; a number, or a list of 1 times true or false,",
        ),
        (
            {"general.architecture": "granite", "granite.rope.scaling.finetuned": False},
            "says granite.rope.scaling.finetuned = False; true, for a model whose queries and keys turn,",
        ),
        ({"llama.logit_scale": 2.0}, "has llama.logit_scale, which is not supported"),
        ({"llama.attention.causal": False}, "tokens see later ones (llama.attention.causal)"),
        ({"llama.attention.value_length": 8}, "says llama.attention.value_length = 8; as many as keys have, 16,"),
        ({"llama.rope.dimension_count": 8}, "says llama.rope.dimension_count = 8; all numbers of a head, 16,"),
        ({"llama.rope.scaling.type": "su"}, "says llama.rope.scaling.type = 'su'; none, linear, or a tensor"),
        ({"llama.rope.scaling.type": "yarn"}, "says llama.rope.scaling.factor = None; a number above 0"),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.attn_factor": 2.0,
            },
            "says llama.rope.scaling.attn_factor = 2.0; 1 is needed",
        ),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.yarn_ext_factor": 0.5,
            },
            "says llama.rope.scaling.yarn_ext_factor = 0.5; 1 is needed",
        ),
        ({"split.count": 3}, "says split.count = 3; 1, as the file's name has it,"),
        ({"tokenizer.ggml.eos_token_id": "end"}, "says tokenizer.ggml.eos_token_id = 'end'; a whole number from 0 to"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "tokenizer.ggml.pre: unheard-of is not supported; these are: llama3,"),
        ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre: the file does not say how texts are cut"),
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model: rwkv is not supported; these are: gpt2, llama"),
        (
            {"tokenizer.ggml.tokens": None},
            "tokenizer.ggml.tokens: a list of texts is needed; --tokenizer takes",
        ),
        ({"tokenizer.ggml.tokens": ["a"] * 9}, "tokenizer.ggml.tokens: 9 tokens, and token_embd.weight has 8 rows"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "tokenizer.ggml.token_type: a list of 8 numbers from 1 to 6"),
        ({"tokenizer.ggml.merges": ["a c"]}, "tokenizer.ggml.merges: number 0, 'a c', is no pair of tokens"),
        ({"tokenizer.ggml.merges": ["ab"]}, "tokenizer.ggml.merges: number 0, 'ab', is no pair of tokens"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.scores: a list of 8 numbers is needed"),
        (
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [float("nan")] * 8},
            "tokenizer.ggml.scores: one of them is no number (NaN)",
        ),
        (
            {"tokenizer.ggml.tokens": ["a"] * 8, "tokenizer.ggml.token_type": [NORMAL] * 8},
            "tokenizer.ggml.tokens: the token 'a' stands there twice (0 and 1)",
        ),
    ],
)
def test_what_cannot_be_served_names_its_field(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = model(tmp_path, changes)
    assert words in refusal(path)


def test_numbers_are_those_that_were_meant(tmp_path: Path) -> None:
    """float32 in the file; the shortest decimals that are the same float32."""
    path = model(tmp_path, {"llama.rope.freq_base": 1000000.0, "llama.attention.layer_norm_rms_epsilon": 1e-6})
    config = json.loads((Path(find(path).folder) / "config.json").read_text())
    assert (config["rope_theta"], config["rms_norm_eps"]) == (1e6, 1e-6)


@pytest.mark.parametrize(
    ("key", "factor"), [("yarn_attn_factor", 1.25), ("attn_factor", 1.5), ("yarn_beta_fast", None)]
)
def test_yarn_as_converters_write_it(key: str, factor: float | None, tmp_path: Path) -> None:
    """The factor of queries and keys by its name of today and of old; without one it is left to the rule."""
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 16, key: factor or 16.0}
    others = {f"olmo2.rope.scaling.{name}": value for name, value in scaling.items()}
    path = model(tmp_path, others | {"general.architecture": "olmo2"})
    info = resolve_model(make_config({"model": str(path), "device": "cpu", "load_format": "dummy"}))
    rope = json.loads((Path(info.folder) / "config.json").read_text())["rope_scaling"]
    assert (rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"]) == ("yarn", 4.0, 16)
    assert rope["attention_factor"] == factor and rope["beta_fast"] == (None if factor else 16.0)


def test_what_takes_back_yarns_own_factor_is_no_factor_of_all(tmp_path: Path) -> None:
    """Converters write attn_factor of config.json (DeepSeek-R1-0528-Qwen3-8B) where attention_factor stands."""
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 16, "yarn_attn_factor": 0.875}
    path = model(tmp_path, {f"llama.rope.scaling.{name}": value for name, value in scaling.items()})
    info = resolve_model(make_config({"model": str(path), "device": "cpu", "load_format": "dummy"}))
    rope = read_architecture(json.loads((Path(info.folder) / "config.json").read_text())).rope
    assert rope.attention_factor == pytest.approx(0.875 * (1 + 0.1 * math.log(4)))


def test_options_beside_a_file(tmp_path: Path) -> None:
    """Another tokenizer makes that of the file needless; a file may be the tokenizer of a folder, too."""
    path = model(tmp_path, {"tokenizer.ggml.pre": "unheard-of"})
    assert "unheard-of" in refusal(path)
    assert find(path, tokenizer=str(DEMO_FOLDER)).tokenizer_folder == str(DEMO_FOLDER)
    assert "--load-format safetensors: " in refusal(path, load_format="safetensors")
    good = write(tmp_path / "good.gguf", fields(), tensors())
    assert load_tokenizer(find(DEMO_FOLDER, tokenizer=str(good))).encode("ab").ids == [3, 2]
    assert make_config({"model": str(good)}).served_names() == [str(good)]
    assert find(good, load_format="dummy").vocab_size == 8


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "set XDG_CACHE_HOME to a folder that can be written" in refusal(model(tmp_path))


def test_a_file_needs_no_torch_either(tmp_path: Path) -> None:
    program = (
        "import sys; from actorserve.actors.options.config import make_config; "
        "from actorserve.actors.model.checks.model import find_model; "
        "find_model(make_config({'model': sys.argv[1], 'device': 'cpu'})); "
        "assert not {'torch', 'transformers', 'numpy', 'tokenizers', 'huggingface_hub'} & set(sys.modules)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", program, str(model(tmp_path))]) == 0


# --- tokenizers ----------------------------------------------------------------------------------------------------


def test_experts_of_old_files_stand_apart() -> None:
    """Each in a tensor of its own, by its number; what has too many dimensions for its name stays as it is named."""
    one, all_of_them = GgufTensor(TYPES[8], (64, 32), 4096, 2176), GgufTensor(TYPES[8], (2, 64, 32), 4096, 4352)
    name = "model.layers.1.block_sparse_moe.experts.{}.w3.weight"
    assert [*hub_tensors("llama", "blk.1.ffn_up.7.weight", one)] == [(name.format(7), one)]
    second = one._replace(offset=4096 + 2176)
    assert [*hub_tensors("llama", "blk.1.ffn_up_exps.weight", all_of_them)] == [
        (name.format(0), one),
        (name.format(1), second),
    ]
    assert [*hub_tensors("llama", "blk.1.ffn_up_exps.weight", one)] == [("blk.1.ffn_up_exps.weight", one)]


def test_experts_of_kimi_linear_are_one_group(tmp_path: Path) -> None:
    """Its 256 are not DeepSeek V3's, and converters write neither groups nor that those chosen are normed."""
    said = {
        "general.architecture": "kimi-linear",
        "block_count": 2,
        "attention.head_count": 4,
        "attention.head_count_kv": [0, 1],
        "attention.kv_lora_rank": 32,
        "attention.key_length_mla": 48,
        "attention.value_length_mla": 32,
        "rope.dimension_count": 16,
        "expert_count": 256,
        "expert_used_count": 8,
        "expert_group_used_count": 1,
        "expert_shared_count": 1,
        "expert_feed_forward_length": 32,
        "expert_gating_func": 2,
        "kda.head_dim": 16,
        "ssm.conv_kernel": 4,
    }
    named = {name if "general" in name else f"kimi-linear.{name}": value for name, value in said.items()}
    header = GgufHeader(tmp_path / "kimi.gguf", named, {})
    made, _ = OWN["kimi-linear"]
    found = made(Fields(header), header)
    chosen = (found["n_group"], found["topk_group"], found["norm_topk_prob"], found["num_local_experts"])
    assert chosen == (1, 1, True, 256)
