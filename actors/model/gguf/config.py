"""config.json and generation_config.json of what a GGUF file's header says."""

from __future__ import annotations

from typing import Any

from ...options.config import ConfigError
from ..values import Values
from .adapted import PARTIAL as ADAPTED_PARTIAL
from .adapted import RULES as ADAPTED
from .adapted import UNTURNED, adapt
from .architectures import LARGEST, LATENT, NO_MODEL, RULES, WITHOUT_HEADS, Fields, own_config, small_tensor
from .encoders.config import encoder_config
from .encoders.layouts import ENCODERS
from .header import BY_NAME, GgufHeader
from .layouts import LAYOUTS
from .names import ARCHITECTURES
from .sparse import RULES as SPARSE
from .sparse import stretched
from .states.config import LINEAR_ATTENTION, value_heads

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
QUANTISED = frozenset(BY_NAME) - FLOATS.keys()
PARTIAL = ("phi3", "glm4", *ADAPTED_PARTIAL)  # numbers of a head may stay as they are
BY_LAYER = ("gemma3n", "gemma4", "nemotron_h", "nemotron_h_moe")  # layers have sizes of their own, or none
ONLY_EXPERTS = ("qwen3next", "qwen35moe")
END_TEXTS = frozenset(  # of control tokens that end an answer, in whatever model they are: all that llama.cpp knows
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] [e~[ </s> "
    "<|end_of_text|> <|return|> <|call|> <|flush|> <|calls|> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> "
    "<end_of_utterance> "
    "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> "
    "<|file_sep|>".split()
)  # the last lines: where code ends that was to be filled in, and another file or repository would begin
END_FIELDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
STRUCK = "</s>"  # ends struck-through text (HTML), too: as such Gemma has it, user-defined
TOOL_RESPONSE = "<|tool_response>"  # of Gemma 4, of which no file means the other
MESSAGE_END = "<|end|>"  # ends one message of several where other tokens end an answer: of gpt-oss, and of Solar Open
ANSWER_ENDS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})
SAMPLING = {  # general.sampling.…, and the name in generation_config.json
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
CONTROL, USER_DEFINED = 3, 4  # kinds of tokens; some files have what ends a turn as the latter
YARN = {  # in config.json, and the end of a field's name
    "factor": "factor",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def make_config(header: GgufHeader, keep_quantised: bool) -> dict[str, Any]:
    """config.json; with `keep_quantised` quantised weights are not to be decoded to floating point."""
    fields = Fields(header)
    if fields.architecture in ENCODERS:
        return encoder_config(fields, header)
    adapted = fields.architecture in LAYOUTS
    own = own_config(fields, header, ADAPTED if adapted else RULES | SPARSE)
    if fields.flag(fields.own("attention.causal"), absent=True) is False:
        raise ConfigError(
            f"model: {header.file} is a model whose tokens see later ones ({fields.own('attention.causal')})"
        )
    heads, head_dim = fields.heads(), fields.head_dim()
    values_dim = fields.whole(fields.own("attention.value_length"), 1, LARGEST) or head_dim
    if values_dim != head_dim and fields.architecture not in LATENT:
        raise fields.wrong(fields.own("attention.value_length"), f"as many as keys have, {head_dim},")
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[fields.architecture]],
        "model_type": fields.architecture,
        "vocab_size": _words(header),
        "hidden_size": fields.counted("embedding_length"),
        "intermediate_size": inner_size(fields),
        "num_hidden_layers": fields.counted("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.kv_heads(),
        "head_dim": head_dim,
        "max_position_embeddings": fields.counted("context_length"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "dtype": _stored_dtype(header),
        **({} if fields.architecture in UNTURNED else _rotation(fields, header, head_dim)),
    }
    config = (adapt(fields, config) if adapted else config | _native(fields, header)) | own
    if keep_quantised and any(tensor.type.name in QUANTISED for tensor in header.tensors.values()):
        config["quantization_config"] = {"quant_method": "gguf"}
    return config


def _native(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    """What all layers of this server have."""
    epsilon = fields.real(fields.own("attention.layer_norm_rms_epsilon"), 0, 1)
    if epsilon is None:
        raise fields.wrong(fields.own("attention.layer_norm_rms_epsilon"), "a number")
    return {
        "rms_norm_eps": epsilon,
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in header.tensors and fields.architecture != "qwen2",
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
    }


def sizes(header: GgufHeader) -> dict[str, int]:
    """Of attention, by which rows of tensors lie."""
    fields = Fields(header)
    found = {"heads": fields.heads(), "kv_heads": fields.kv_heads(), "head_dim": fields.head_dim()}
    return found | (value_heads(fields) if fields.architecture in LINEAR_ATTENTION else {})


def given_tensors(header: GgufHeader) -> dict[str, tuple[tuple[int, ...], float]]:
    """Of layers, what are tensors of one number at the hub, and fields here: (shape, number), by the hub's names."""
    fields = Fields(header)
    layout, found = LAYOUTS.get(fields.architecture), {}
    if layout is None:
        return {}
    for name, (field, shape) in layout.given.items():
        layers, numbers = fields.counted("block_count"), fields[field]
        if not isinstance(numbers, list) or len(numbers) != layers:
            raise fields.wrong(field, f"a list of {layers} numbers")
        for layer, number in enumerate(numbers):
            found[f"{layout.layers}.{layer}.{name}"] = (shape, float(number))
    return found


def make_generation_config(header: GgufHeader) -> dict[str, Any]:
    """What ends an answer, and sampling defaults where the file has some."""
    fields = Values(header.file, header.fields)
    words = _words(header)
    ends = [fields.whole(f"tokenizer.ggml.{name}_token_id", 0, words - 1) for name in END_FIELDS]
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    if isinstance(tokens, list) and isinstance(kinds, list):
        named = _named_ends(tokens[:words], kinds)
        ends += named.values()
        if any(names <= named.keys() for names in ANSWER_ENDS):
            ends = [end for end in ends if end != named.get(MESSAGE_END)]
    found: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(end for end in ends if end is not None))}
    for name, ours in SAMPLING.items():
        value = fields[f"general.sampling.{name}"]
        if value is not None:
            found[ours] = value
    return found


def _named_ends(tokens: list[Any], kinds: list[Any]) -> dict[str, int]:
    """Tokens that end an answer by their texts, whatever the file calls its end."""
    known = enumerate(zip(tokens, kinds, strict=False))
    ends = {
        text: token
        for token, (text, kind) in known
        if text in END_TEXTS and (kind == CONTROL or (kind == USER_DEFINED and text != STRUCK))
    }
    if TOOL_RESPONSE in ends:
        ends.pop(STRUCK, None)
    return ends


def inner_size(fields: Fields) -> int:
    """How many numbers there are inside of a layer."""
    name = "ssm.inner_size" if fields.architecture in WITHOUT_HEADS else "feed_forward_length"
    if fields.architecture in BY_LAYER:
        sizes = fields[fields.own(name)]
        if isinstance(sizes, list):
            return next((size for size in sizes if size), 1)
    if fields.architecture in ONLY_EXPERTS and fields[fields.own(name)] in (None, 0):
        name = "expert_feed_forward_length"
    value = fields.same(name)
    if value is None:
        raise fields.wrong(fields.own(name), f"a whole number from 1 to {LARGEST}")
    return value


def _words(header: GgufHeader) -> int:
    """As many as embeddings have rows."""
    table = header.tensors.get("token_embd.weight")
    if table is None:
        raise ConfigError(f"model: {header.file} has no token_embd.weight; {NO_MODEL}")
    return table.shape[0]


def _stored_dtype(header: GgufHeader) -> str:
    """That of most numbers; of quantised ones the type in which a GPU computes with them."""
    sizes: dict[str, int] = {}
    for tensor in header.tensors.values():
        sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.size
    return FLOATS.get(max(sizes, key=sizes.__getitem__), "bfloat16")


def _rotation(fields: Fields, header: GgufHeader, head_dim: int) -> dict[str, Any]:
    """rope_theta, rope_scaling and how much of a head turns."""
    turning = fields.whole(fields.own("rope.dimension_count"), 1, LARGEST) or head_dim
    if fields.architecture in LATENT:  # what turns stands apart
        head_dim = turning
    theta = fields.real(fields.own("rope.freq_base"), 0, 1e15, above=True) or 10_000.0
    if turning > head_dim or (turning != head_dim and fields.architecture not in PARTIAL):
        raise fields.wrong(fields.own("rope.dimension_count"), f"all numbers of a head, {head_dim},")
    if fields.architecture != "gemma3" and fields[local := fields.own("rope.freq_base_swa")] not in (None, 0, theta):
        raise fields.wrong(local, f"that of all layers, {theta:g},")
    found = {"rope_theta": theta, "partial_rotary_factor": turning / head_dim}
    scaling = _scaling(fields, header, turning // 2)
    original = scaling.get("original_max_position_embeddings") if scaling else None
    return found | {"rope_scaling": scaling, "original_max_position_embeddings": original}


def _scaling(fields: Fields, header: GgufHeader, pairs: int) -> dict[str, Any] | None:
    """Factors of each pair of numbers, which stand in tensors; a factor of all; or none."""
    kind = fields.text(fields.own("rope.scaling.type")) or "linear"  # where there is a factor alone
    factor = fields.factor("rope.scaling.factor") or fields.factor("rope.scale_linear")  # of old files
    length = fields.counted("context_length")
    original = fields.whole(fields.own("rope.scaling.original_context_length"), 1, LARGEST) or length
    long = {"rope_type": "longrope", "factor": 1.0, "original_max_position_embeddings": original}
    if "rope_factors_long.weight" in header.tensors:
        attention = fields.real(fields.own("rope.scaling.attn_factor"), 0, 1e15, above=True) or 1.0
        names = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}
        return (
            long
            | {ours: small_tensor(header, name, pairs) for ours, name in names.items()}
            | {"attention_factor": attention}
            | ({"short_mscale": attention, "long_mscale": attention} if fields.architecture == "phimoe" else {})
        )
    if "rope_freqs.weight" in header.tensors:
        factors = small_tensor(header, "rope_freqs.weight", pairs)
        both = {"short_factor": factors, "long_factor": factors, "attention_factor": 1.0}  # for all texts
        return long | both | {"original_max_position_embeddings": length}
    if kind == "linear" and factor not in (None, 1.0):
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and fields.architecture != "phi3":
        return _yarn(fields, original)
    if kind not in ("none", "linear"):
        raise fields.wrong(fields.own("rope.scaling.type"), "none, linear, or a tensor of factors beside it")
    return None


def _yarn(fields: Fields, original: int) -> dict[str, Any]:
    """Converters write what config.json has; older ones the factor of queries and keys by another name, for OLMo 3."""
    kind = {"rope_type": "yarn", "original_max_position_embeddings": original}
    numbers = {name: fields.factor(f"rope.scaling.{key}") for name, key in YARN.items()}
    if numbers["factor"] is None:
        raise fields.wrong_own("rope.scaling.factor", "a number above 0")
    if fields.factor("rope.scaling.yarn_ext_factor") not in (None, 1.0):
        raise fields.wrong_own("rope.scaling.yarn_ext_factor", "1")
    if (given := numbers["attention_factor"] or 1.0) < 1:  # config.json's attn_factor stands there, too
        numbers |= {"attention_factor": None, "attn_factor": given}
    older = fields.factor("rope.scaling.attn_factor")
    if fields.architecture == "olmo2":
        numbers["attention_factor"] = numbers["attention_factor"] or older
    elif older not in (None, 1.0):
        raise fields.wrong_own("rope.scaling.attn_factor", "1")
    if fields.architecture in SPARSE:
        return kind | numbers | stretched(fields)
    return kind | numbers | (_grown(fields) if fields.architecture == "mistral3" else {})


def _grown(fields: Fields) -> dict[str, Any]:
    """What yarn has beside what all have in models whose queries grow; queries and keys grow as if `mscale` was 1."""
    names = {
        "llama_4_scaling_beta": "attention.temperature_scale",
        "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    }
    numbers = {ours: fields.factor(name) for ours, name in names.items()}
    found = {ours: float(f"{number:.6g}") for ours, number in numbers.items() if number is not None}  # of float32
    return found | ({"mscale": 1.0} if "mscale_all_dim" in found else {})
