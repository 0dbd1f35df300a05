"""Names that users of vLLM, SGLang and llama-server type, and what they stand for here.

Some are other names of our options, some ask for what is always so, and some for what there is not: then the reason is
told, and not another option that merely looks alike. Leaf module: it knows our options by their names alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from .compilation import COMPILES
from .names import common, llama_server, sglang, vllm
from .names.llama_server import DRAFTS, METHODS, SAMPLING, UNLIMITED


class Meaning(msgspec.Struct, frozen=True):
    """What one name stands for: a field, or why it is needless, or why it is refused."""

    field: str = ""
    key: str = ""  # of the field's JSON object, which the name sets
    fixed: bool | str | float | None = None  # what the name sets by itself; None: its value
    automatic: tuple[str, ...] = ()  # values that leave our default
    lists: bool = False  # its value is a list with commas
    needless: str = ""
    takes: bool = False  # the needless one has a value
    several: bool = False  # or more of them
    refused: str = ""
    harmless: tuple[str, ...] = ()  # values that are so anyway
    understood: dict[str, tuple[str, object]] = {}  # of a refused one: values, with our field and what it is then
    compiles: bool = False  # vLLM's --compilation-config: some of it is needless (compilation.py)

    def allows(self, value: str) -> bool:
        """A refused option says with this value what is so anyway."""
        return value.lower() in self.harmless

    def understands(self, value: str) -> dict[str, object]:
        """What a refused option with this value sets, by our field; of a JSON object some keys."""
        return dict([self.understood[value.lower()]]) if value.lower() in self.understood else {}

    def is_automatic(self, value: str) -> bool:
        """The value asks for a default."""
        return value.lower() in self.automatic

    def split(self, value: str) -> str | list[str] | dict[str, object]:
        """The value as our option has it; of a JSON object with this key alone."""
        if self.field in FREE_TEXTS:
            return {self.key: value}
        if self.key:
            return {self.key: ALGORITHMS.get(value.lower(), _number_in(value))}
        return [item.strip() for item in value.split(",")] if self.lists else value

    def words(self) -> list[str]:
        """Our option, and the value that the name itself stands for."""
        option = f"--{self.field.replace('_', '-')}"
        if self.fixed is None:
            return [option]
        if isinstance(self.fixed, bool):
            return [option if self.fixed else f"--no-{option[2:]}"]
        return [f"{option}={self.fixed}"]


def meaning_of(name: str) -> Meaning | None:
    """Of a name as it is typed; parts of a JSON option, `--compilation-config.mode`, mean what the whole does."""
    if name.startswith("-O") and name[2:].isdigit():
        return msgspec.structs.replace(MEANINGS["-O"], takes=False)
    name = name.partition(".")[0].rstrip("+")
    if name.startswith("--"):
        name = name.replace("_", "-")
    if name.startswith("--no-") and name not in MEANINGS:
        return _opposite(MEANINGS.get(f"--{name[5:]}"))
    return MEANINGS.get(name)


def names_beginning_with(text: str) -> list[str]:
    """One name for each thing that is meant by any that begins so."""
    found = {repr(meaning): name for name, meaning in MEANINGS.items() if name.startswith(text)}
    return sorted(found.values())


def _number_in(value: str) -> int | float | str:
    """A text that is no number stays one: whoever reads the object says what is wrong with it."""
    try:
        return msgspec.json.decode(value, type=int | float)
    except msgspec.DecodeError:
        return value


def _opposite(meaning: Meaning | None) -> Meaning | None:
    """Of what may be off as well: what there is not may well be, and what is always so is all the same."""
    if meaning is None:
        return None
    if meaning.refused:
        return Meaning(needless="it is not there anyway")
    if isinstance(meaning.fixed, bool):
        return msgspec.structs.replace(meaning, fixed=not meaning.fixed)
    if meaning.fixed is not None:
        return Meaning(needless="it is off where nobody asks for it")
    return msgspec.structs.replace(meaning, takes=False) if meaning.needless else None


TURBOQUANT = "turboquant_4bit_nc"
VALUES = {  # of options: other names of the values; case and - for _ do not matter
    "dtype": {"half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16"}
    | {"float": "float32", "fp32": "float32", "f32": "float32"},
    "kv_cache_dtype": {"fp8_e4m3": "fp8", "fp8_e4m3fn": "fp8", "half": "float16", "fp16": "float16", "f16": "float16"}
    | {"fp8_per_token_head": "fp8", "int8_per_token_head": "int8", "fp4_e2m1": "nvfp4", "turboquant": TURBOQUANT}
    | {"bf16": "bfloat16", "float": "float32", "fp32": "float32", "f32": "float32"},
    "device": {"gpu": "cuda"},
    "generation_config": {"vllm": "none"},
    "fingerprint_mode": {"hash": "full"},  # it tells no number of workers
    "quantization": {"null": "auto", "awq_marlin": "awq", "gptq_marlin": "gptq"}
    | {"gptq_v2": "gptq", "inc": "auto-round", "auto_round": "auto-round", "ct": "compressed-tensors"}
    | {"auto_awq": "awq", "cpu_awq": "awq", "auto_gptq": "gptq", "gpt_oss_mxfp4": "mxfp4", "moe_wna16": "auto"}
    | {"modelopt_mixed": "modelopt", "modelopt_mxfp8": "modelopt", "intel/auto_round": "auto-round"}
    | {"int8_per_channel_weight_only": "int8"}
    | dict.fromkeys(("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "ptpc_fp8"), "fp8"),
    "model_impl": {"vllm": "native", "sglang": "native"},
    "tokenizer_mode": {"fast": "hf"},
    "log_level": {"warn": "warning", "critical": "error"},
    "tool_call_parser": {"qwen": "hermes", "qwen25": "hermes", "qwen3": "hermes", "llama3": "llama3_json"}
    | {"deepseekv3": "deepseek_v3", "deepseekv31": "deepseek_v31", "gpt_oss": "openai", "glm": "glm45"}
    | {"deepseekv32": "deepseek_v32", "hunyuan": "hy_v3", "interns1": "internlm", "trinity": "hermes"}
    | {"deepseekv4": "deepseek_v4", "deepseekv41": "deepseek_v41", "apertus2509": "apertus", "nanbeige": "qwen3_coder"}
    | dict.fromkeys(("ling3", "spark25", "poolside_v1"), "glm45")
    | {"qwen3_json": "hermes", "step5": "qwen3_coder", "hy_v4": "hy_v3"},
    "reasoning_parser": {"gpt_oss": "openai_gptoss", "deepseek_v31": "deepseek_v3", "deepseek_v32": "deepseek_v3"}
    | {"glm47": "glm45", "mimo": "qwen3", "holo2": "qwen3", "interns1": "qwen3", "nano_v3": "nemotron_v3"}
    | {"hunyuan": "hy_v3", "minimax": "minimax_m2", "minimax_append_think": "minimax_m2_append_think"}
    | {"qwen3_thinking": "qwen3", "nemotron_3": "nemotron_v3"}
    | {"apertus2509": "apertus", "ling3": "glm45", "poolside_v1": "deepseek_v3", "step5": "deepseek_r1"}
    | {"minicpmv": "qwen3", "hy_v4": "hy_v3", "deepseek_v41": "deepseek_v4"}
    | {"gigachat35": "deepseek_v3", "granite_thinking_parser": "nemotron_v3", "nanbeige": "qwen3", "dots": "qwen3"},
}

SAME = {  # field: names that take the same value
    "model": "-m --model-path --model-tag -hf -hfr --hf-repo",
    "served_model_name": "-a --alias",
    "tokenizer": "--tokenizer-path",
    "chat_template": "--chat-template-file",
    "ssl_certfile": "--ssl-cert-file",
    "ssl_keyfile": "--ssl-key-file",
    "allow_credentials": "--cors-credentials",
    "allowed_origins": "--cors-origins",
    "allowed_methods": "--cors-methods",
    "allowed_headers": "--cors-headers",
    "max_model_len": "-c --ctx-size --context-length --max-context-len --max-seq-len",
    "max_num_seqs": "-np --parallel --max-running-requests --max-batch-size",
    "max_num_queued_reqs": "--max-queued-requests",
    "max_num_batched_tokens": "-b --batch-size --chunked-prefill-size --max-prefill-tokens",
    "tensor_parallel_size": "--tp --tp-size",
    "pipeline_parallel_size": "--pp --pp-size",
    "data_parallel_size": "--dp --dp-size",
    "frontends": "--api-server-count -asc",
    "renderers": "--tokenizer-worker-num --renderer-num-workers",
    "detokenizers": "--detokenizer-worker-num",
    "gpu_memory_utilization": "--mem-fraction-static --device-memory-utilization",
    "block_size": "--page-size",
    "scheduling_policy": "--schedule-policy",
    "cudagraph_capture_sizes": "--cuda-graph-bs --cuda-graph-bs-decode --cuda-graph-sizes",
    "quantization": "-q",
    "threads": "-t",
    "seed": "-s --random-seed",
    "hf_overrides": "--json-model-override-args",
    "override_generation_config": "--preferred-sampling-params",
    "step_timeout": "--watchdog-timeout",
    "max_header_bytes": "--h11-max-incomplete-event-size",
    "max_header_count": "--h11-max-header-count",
    "default_chat_template_kwargs": "--chat-template-kwargs",
    "root_path": "--fastapi-root-path --api-prefix",
    "speculative_config": "-sc",
    "lora_modules": "--lora-paths",
    "max_loras": "--max-loras-per-batch",
    "max_cpu_loras": "--max-loaded-loras",
    "sse_keep_alive_interval": "--sse-ping-interval",
    "limit_mm_per_prompt": "--limit-mm-data-per-request",
    "allowed_local_media_path": "--media-path",
    "log_format": "--log-requests-format",
    "remote_engines": "--engines",  # our own other name, in files as well
}
AUTOMATIC = {
    "max_model_len": ("0", "-1", "auto"),
    "max_num_seqs": ("-1",),
    "max_num_batched_tokens": ("-1",),
    "threads": ("auto", "-1"),
    "sse_keep_alive_interval": ("-1",),
    "sleep_idle_seconds": ("-1",),
}
LISTS = ("served_model_name", "allowed_origins", "allowed_methods", "allowed_headers")

NO_MEDIA = '{"image": 0, "video": 0, "audio": 0}'
FIXED: dict[str, tuple[str, bool | str | float]] = {
    "-ep": ("enable_expert_parallel", True),
    **dict.fromkeys(
        ("--is-embedding", "--embedding", "--embeddings", "--rerank", "--reranking"), ("runner", "pooling")
    ),
    "--enable-deterministic-inference": ("deterministic", True),
    "--disable-radix-cache": ("enable_prefix_caching", False),
    "--cache-prompt": ("enable_prefix_caching", True),
    "--disable-cuda-graph": ("enforce_eager", True),
    "--disable-decode-cuda-graph": ("enforce_eager", True),
    "--log-requests": ("enable_log_requests", True),
    "--disable-log-requests": ("enable_log_requests", False),
    "--disable-log-stats": ("log_stats_interval", 0.0),
    "--log-jsonl": ("log_format", "json"),
    "--no-log-jsonl": ("log_format", "text"),
    "--no-cors-credentials": ("allow_credentials", False),
    "--verbose": ("log_level", "debug"),
    "--log-verbose": ("log_level", "debug"),
    "-v": ("log_level", "debug"),
    **dict.fromkeys(("--ui", "--webui"), ("enable_page", True)),
    "--slots": ("enable_slots", True),
    "--metrics": ("enable_metrics", True),
    "--disable-fastapi-docs": ("enable_docs", False),
    "--warmup": ("warm_up", True),
    "--skip-server-warmup": ("warm_up", False),
    "--constrained-json-disable-any-whitespace": (
        "structured_outputs_config",
        '{"disable_any_whitespace": true}',
    ),
    **dict.fromkeys(("--language-model-only", "--no-mmproj"), ("limit_mm_per_prompt", NO_MEDIA)),
}

KEYS = {  # names that set one key of a JSON object: (field, key)
    "--speculative-algorithm": ("speculative_config", "method"),
    "--speculative-algo": ("speculative_config", "method"),
    "--speculative-draft-model-path": ("speculative_config", "model"),
    "--speculative-draft-model": ("speculative_config", "model"),
    "--speculative-num-steps": ("speculative_config", "num_speculative_tokens"),
    "--speculative-num-draft-tokens": ("speculative_config", "num_draft_tokens"),
    "--spec-method": ("speculative_config", "method"),
    "--spec-model": ("speculative_config", "model"),
    "--spec-tokens": ("speculative_config", "num_speculative_tokens"),
    "--ep-num-redundant-experts": ("eplb_config", "num_redundant_experts"),
    "--eplb-rebalance-num-iterations": ("eplb_config", "step_interval"),
    "--reasoning-budget-message": ("reasoning_config", "reasoning_end_str"),
}
KEYS |= {name: ("override_generation_config", key) for key, names in SAMPLING.items() for name in names.split()}
FREE_TEXTS = ("reasoning_config",)  # fields of which such a key is whatever people write
ALGORITHMS = {"nextn": "mtp", "standalone": "draft_model"}
ALGORITHMS |= {name: name for name in ("eagle", "eagle3", "dflash", "ngram")} | METHODS

VARIABLES = {  # of the environment, with the value that the field has
    "VLLM_BATCH_INVARIANT": "deterministic",
    "VLLM_SKIP_MODEL_NAME_VALIDATION": "any_model_name",
    "ACTORSERVE_ENGINES": "remote_engines",
}
# Of which the first that is there is a key, where none is given.
KEY_VARIABLES = ("VLLM_API_KEY", "LLAMA_API_KEY", "LLAMA_ARG_API_KEY")


TABLES = (common, vllm, sglang, llama_server)


def _joined(tables: Iterable[dict[str, str]]) -> dict[str, str]:
    """Of each reason, all names."""
    joined: dict[str, list[str]] = {}
    for table in tables:
        for reason, names in table.items():
            joined.setdefault(reason, []).extend(name for name in names.split() if name not in joined.get(reason, ()))
    return {reason: " ".join(names) for reason, names in joined.items()}


def _spread(table: dict[str, str], make: Callable[[str, str], Meaning]) -> dict[str, Meaning]:
    return {name.partition("=")[0]: make(key, name) for key, names in table.items() for name in names.split()}


def _refused(reason: str, name: str) -> Meaning:
    return Meaning(refused=reason, harmless=HARMLESS.get(name, ()), understood=UNDERSTOOD.get(name, {}))


def _needless(reason: str, name: str) -> Meaning:
    return Meaning(needless=reason, takes="=" in name, several=name.endswith("=+"), compiles=reason is COMPILES)


NEEDLESS = _joined(table.NEEDLESS for table in TABLES)
REFUSED = _joined(table.REFUSED for table in TABLES)
HARMLESS = {name: values for table in TABLES for name, values in table.HARMLESS.items()}
UNDERSTOOD = common.UNDERSTOOD | llama_server.UNDERSTOOD
MEANINGS = {
    **_spread(SAME, lambda field, _: Meaning(field=field, automatic=AUTOMATIC.get(field, ()), lists=field in LISTS)),
    **{name: Meaning(field=field, fixed=value) for name, (field, value) in FIXED.items()},
    **{name: Meaning(field=field, key=key, automatic=UNLIMITED.get(key, ())) for name, (field, key) in KEYS.items()},
    **_spread(DRAFTS, lambda key, _: Meaning("speculative_config", key)),
    **_spread(NEEDLESS, _needless),
    **_spread(REFUSED, _refused),
}
