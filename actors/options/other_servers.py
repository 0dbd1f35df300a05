"""Names that users of vLLM, SGLang and llama-server type, and what they stand for here.

Some are other names of our options, some ask for what is always so, and some for what there is not: then the reason is
told, and not another option that merely looks alike. Leaf module: it knows our options by their names alone.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .compilation import COMPILES


class Meaning(msgspec.Struct, frozen=True):
    """What one name stands for: a field, or why it is needless, or why it is refused."""

    field: str = ""
    key: str = ""  # of the field's JSON object, which the name sets
    fixed: bool | str | float | None = None  # what the name sets by itself; None: its value
    automatic: tuple[str, ...] = ()  # values that leave our default
    lists: bool = False  # its value is a list with commas
    needless: str = ""
    takes: bool = False  # the needless one has a value
    refused: str = ""
    harmless: tuple[str, ...] = ()  # values that are so anyway
    compiles: bool = False  # vLLM's --compilation-config: some of it is needless (compilation.py)

    def allows(self, value: str) -> bool:
        """A refused option says with this value what is so anyway."""
        return value.lower() in self.harmless

    def is_automatic(self, value: str) -> bool:
        """The value asks for a default."""
        return value.lower() in self.automatic

    def split(self, value: str) -> str | list[str] | dict[str, object]:
        """The value as our option has it; of a JSON object with this key alone."""
        if self.key:
            return {self.key: int(value) if value.isdecimal() else ALGORITHMS.get(value.lower(), value)}
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


def _opposite(meaning: Meaning | None) -> Meaning | None:
    """Of what may be off as well: what there is not may well be, and what is always so is all the same."""
    if meaning is None:
        return None
    if meaning.refused:
        return Meaning(needless="it is not there anyway")
    if isinstance(meaning.fixed, bool):
        return msgspec.structs.replace(meaning, fixed=not meaning.fixed)
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
    "quantization": {"null": "auto", "awq_marlin": "awq", "gptq_marlin": "gptq"}
    | {"gptq_v2": "gptq", "inc": "auto-round", "auto_round": "auto-round", "ct": "compressed-tensors"}
    | {"auto_awq": "awq", "cpu_awq": "awq", "auto_gptq": "gptq", "gpt_oss_mxfp4": "mxfp4", "moe_wna16": "auto"}
    | {"modelopt_mixed": "modelopt", "modelopt_mxfp8": "modelopt", "intel/auto_round": "auto-round"}
    | {"fp8_per_channel": "fp8", "int8_per_channel_weight_only": "int8"},
    "model_impl": {"vllm": "native", "sglang": "native"},
    "tokenizer_mode": {"fast": "hf"},
    "log_level": {"warn": "warning", "critical": "error"},
    "tool_call_parser": {"qwen": "hermes", "qwen25": "hermes", "qwen3": "hermes", "llama3": "llama3_json"}
    | {"deepseekv3": "deepseek_v3", "deepseekv31": "deepseek_v31", "gpt_oss": "openai", "glm": "glm45"}
    | {"deepseekv32": "deepseek_v32", "hunyuan": "hunyuan_a13b", "interns1": "internlm"},
    "reasoning_parser": {"gpt_oss": "openai_gptoss", "deepseek_v31": "deepseek_v3", "deepseek_v32": "deepseek_v3"}
    | {"glm47": "glm45", "mimo": "qwen3", "holo2": "qwen3", "interns1": "qwen3", "nano_v3": "nemotron_v3"}
    | {"hunyuan": "hunyuan_a13b", "minimax": "minimax_m2"},
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
    "renderers": "--tokenizer-worker-num",
    "detokenizers": "--detokenizer-worker-num",
    "gpu_memory_utilization": "--mem-fraction-static",
    "block_size": "--page-size",
    "scheduling_policy": "--schedule-policy",
    "cudagraph_capture_sizes": "--cuda-graph-bs --cuda-graph-sizes",
    "quantization": "-q",
    "threads": "-t",
    "seed": "-s --random-seed",
    "hf_overrides": "--json-model-override-args",
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
    "remote_engines": "--engines",  # our own other name, in files as well
}
AUTOMATIC = {
    "max_model_len": ("0", "-1", "auto"),
    "max_num_seqs": ("-1",),
    "max_num_batched_tokens": ("-1",),
    "threads": ("auto", "-1"),
    "sse_keep_alive_interval": ("-1",),
}
LISTS = ("served_model_name", "allowed_origins", "allowed_methods", "allowed_headers")

FIXED: dict[str, tuple[str, bool | str | float]] = {
    "-ep": ("enable_expert_parallel", True),
    **dict.fromkeys(
        ("--is-embedding", "--embedding", "--embeddings", "--rerank", "--reranking"), ("runner", "pooling")
    ),
    "--enable-deterministic-inference": ("deterministic", True),
    "--disable-radix-cache": ("enable_prefix_caching", False),
    "--cache-prompt": ("enable_prefix_caching", True),
    "--disable-cuda-graph": ("enforce_eager", True),
    "--log-requests": ("enable_log_requests", True),
    "--disable-log-requests": ("enable_log_requests", False),
    "--disable-log-stats": ("log_stats_interval", 0.0),
    "--log-jsonl": ("log_format", "json"),
    "--verbose": ("log_level", "debug"),
    "-v": ("log_level", "debug"),
    "--warmup": ("warm_up", True),
    "--skip-server-warmup": ("warm_up", False),
}

KEYS = {  # names that set one key of a JSON object: (field, key)
    "--speculative-algorithm": ("speculative_config", "method"),
    "--speculative-algo": ("speculative_config", "method"),
    "--speculative-draft-model-path": ("speculative_config", "model"),
    "--speculative-draft-model": ("speculative_config", "model"),
    "--speculative-num-steps": ("speculative_config", "num_speculative_tokens"),
    "--speculative-num-draft-tokens": ("speculative_config", "num_draft_tokens"),
}
ALGORITHMS = {"nextn": "mtp", "standalone": "draft_model"}
ALGORITHMS |= {name: name for name in ("eagle", "eagle3", "dflash", "ngram")}

VARIABLES = {  # of the environment, with the value that the field has
    "VLLM_BATCH_INVARIANT": "deterministic",
    "ACTORSERVE_ENGINES": "remote_engines",
}
KEY_VARIABLES = ("VLLM_API_KEY", "LLAMA_API_KEY")  # of which the first that is there is a key, where none is given

ONE_WAY = "there is one way to do this, and nothing to choose"
NEEDLESS = {  # reason: names
    "/sleep is there with --admin-api-key": "--enable-sleep-mode",
    "prompts are always computed in parts, beside running streams": "--enable-chunked-prefill --enable-mixed-chunk",
    "the next step is always planned while one runs": "--async-scheduling --enable-overlap-schedule -ove "
    "--disable-overlap-schedule",
    "nothing is compiled; CUDA graphs are on but for --enforce-eager": "--enable-torch-compile "
    "--max-seq-len-to-capture --max-cudagraph-capture-size --cuda-graph-max-bs --performance-mode",
    COMPILES: "-O --optimization-level --compilation-config -cc",
    "a batch always takes new sequences as it runs": "-cb --cont-batching",
    "chat templates are always Jinja": "--jinja",
    "weights are read into memory, and stay there": "--mlock --mmap --use-tqdm-on-load --numa --warmups",
    "all layers, keys and values are where --device says": "-ngl --gpu-layers --n-gpu-layers --no-kv-offload -nkvo",
    "of the hub only files are taken that are read": "--ignore-patterns",
    "what begins alike is computed once, by --enable-prefix-caching": "--cache-reuse",
    "--encoder-cache-gb and --media-memory-bytes set the memory of pictures": "--skip-mm-profiling",
    "a worker that dies or hangs is replaced, by --step-timeout": "--dist-timeout",
    "attention never writes the whole matrix": "-fa --flash-attn",
    "/metrics is always there": "--metrics --enable-metrics",
    "/slots and /props are always there": "--slots --props",
    "certificates are read again when they change": "--enable-ssl-refresh",
    "usage always tells cached tokens": "--enable-prompt-tokens-details --enable-cache-report",
    "/load and /tokenizer_info are always there": "--enable-server-load-tracking --enable-tokenizer-info-endpoint",
    "what renders, derenders and generates by tokens is always there": "--enable-scale-out",
    "reasoning is found out from the chat template; --reasoning-parser names another form": "--enable-reasoning "
    "--reasoning-format",
    "there is no access log beside the line of each request": "--disable-uvicorn-access-log "
    "--disable-access-log-for-endpoints",
    "there is one log, of which --log-level and --log-stats-interval say how much it tells": "--uvicorn-log-level "
    "--log-level-http --decode-log-interval --log-requests-level -lv --verbosity --log-verbosity",
    "the page is always there": "--ui --webui",
    "a model that takes pictures takes them": "--enable-multimodal",
    ONE_WAY: "--attention-backend --sampling-backend --grammar-backend --guided-decoding-backend "
    "--structured-outputs-config --prefix-caching-hash-algo --use-v2-block-manager --disable-custom-all-reduce "
    "--num-lookahead-slots --preemption-mode -ub --ubatch-size --disable-frontend-multiprocessing "
    "--stream-interval --mamba-cache-dtype -tb --threads-batch --threads-http --sleep-on-idle --repack --perf "
    "--lora-backend -kvu --kv-unified --log-colors --log-timestamps --log-prefix --uvicorn-access-log "
    "--disable-hybrid-kv-cache-manager --mm-encoder-tp-mode --model-loader-extra-config --calculate-kv-scales "
    "--max-parallel-loading-workers --enable-p2p-check",
}
WITH_VALUE = frozenset(  # of the needless; the others are on or off
    "-O --optimization-level --compilation-config -cc --max-seq-len-to-capture --max-cudagraph-capture-size "
    "--cuda-graph-max-bs --performance-mode --numa --warmups -ngl --gpu-layers --n-gpu-layers "
    "--reasoning-format --disable-access-log-for-endpoints --attention-backend --sampling-backend --grammar-backend "
    "--guided-decoding-backend --structured-outputs-config --prefix-caching-hash-algo --num-lookahead-slots "
    "--preemption-mode -ub --ubatch-size --stream-interval --mamba-cache-dtype -tb --threads-batch "
    "--threads-http --lora-backend --log-colors --uvicorn-log-level --log-level-http --decode-log-interval "
    "--ignore-patterns --cache-reuse --dist-timeout --log-requests-level -lv --verbosity --log-verbosity "
    "--mm-encoder-tp-mode --model-loader-extra-config --max-parallel-loading-workers".split()
)

LORA = "adapters are folders of PEFT's, as --lora-modules names them, and are kept in float32, or the GPU's type"
PARALLEL = (
    "a model is divided by --tensor-parallel-size and --pipeline-parallel-size, this over machines by --nnodes, and "
    "there are --data-parallel-size of them on one"
)
CLIENTS = "clients say it with each request, and the model's generation_config.json where they do not"
SPECULATION = 'drafts are set by --speculative-config \'{"method": "ngram", "num_speculative_tokens": 5}\''
REFUSED = {  # reason: names
    LORA: "--lora --lora-scaled --lora-dtype --lora-extra-vocab-size --fully-sharded-loras --enable-lora-bias",
    PARALLEL: "-dpl "
    "--data-parallel-size-local --data-parallel-address --data-parallel-rpc-port --data-parallel-backend "
    "--dist-init-addr --ep --ep-size "
    "--expert-parallel-size -dcp --decode-context-parallel-size "
    "--enable-dp-attention --disaggregation-mode -ts --tensor-split -sm --split-mode --rpc",
    CLIENTS: "-n --predict --n-predict --temp --temperature --top-k --top-p --min-p --top-nsigma --top-n-sigma "
    "--repeat-penalty "
    "--presence-penalty --frequency-penalty --sampling-defaults --ignore-eos",
    "clients say it with each request": "--enable-force-include-usage --return-tokens-as-token-ids "
    "--stream-response-default-include-usage --reasoning-budget --reasoning-effort --grammar --grammar-file "
    "-j --json-schema --prefill-assistant",
    "clients ask for it by return_metrics with each request": "--enable-per-request-metrics",
    SPECULATION: "--speculative-model --num-speculative-tokens -md --model-draft --draft --draft-max --draft-min "
    "--draft-p-min",
    "drafts of a row are a line, and no tree: 1 is how it is": "--speculative-eagle-topk",
    "the folder of the model has what it sees by; GGUF files are read for their texts": "-mm --mmproj --mmproj-url",
    "--media-memory-bytes sets it, for pictures of running requests and a cache together": "--mm-processor-cache-gb "
    "--disable-mm-preprocessor-cache --mm-processor-cache-type",
    "--limit-mm-per-prompt '{\"image\": 0}' refuses pictures": "--language-model-only",
    "pictures stand where the client puts them": "--interleave-mm-strings",
    "--runner and --convert say what a model is for, and --pooler-config how it pools": "--task --pooling",
    "weights and running sequences stay where the model is": "--cpu-offload-gb --swap-space",
    "--kv-offload host:SIZE or folder:PATH:SIZE keeps KV blocks elsewhere, too": "--kv-offloading-size "
    "--kv-offloading-backend --enable-hierarchical-cache --hicache-ratio --hicache-size --enable-lmcache -cram "
    "--cache-ram --slot-save-path",
    "--kv-offload tcp:HOST:PORT, peer:HOST:PORT or plugin:MODULE:NAME carries KV blocks": "--kv-transfer-config",
    "a prompt is kept whole, and refused where it is too long": "--keep",
    "--kv-cache-memory-bytes sets the KV memory": "--num-gpu-blocks-override --max-total-tokens",
    "--kv-cache-dtype sets the type of keys and values together": "-ctk --cache-type-k -ctv --cache-type-v",
    "a GGUF file is named as the model: the file itself, or ORGANISATION/NAME:TYPE of the hub": "--hf-file -hff "
    "--model-url -mu",
    "the folder of the model's config.json says it": "--rope-scaling --rope-theta --rope-scale --rope-freq-base "
    "--config-format --hf-config-path --override-kv --load-config",
    "HF_HUB_OFFLINE=1 keeps from the hub": "--offline",
    "values of weights are not looked at; `actorserve check MODEL` looks at what is in the files": "--check-tensors",
    "there are no platforms of other packages": "--additional-config",
    "HF_TOKEN holds the key of the hub": "--hf-token -hft",
    "--renderers sets how many processes tokenise": "--tokenizer-pool-size",
    "--revision is that of the model; a folder of another one can be given by --tokenizer": "--tokenizer-revision "
    "--code-revision",
    "it is always there; a proxy before the server can keep clients from it": "--no-ui --no-webui --no-slots "
    "--no-props --no-metrics",
    "put a proxy before the server": "--ssl-cert-reqs --ssl-ciphers --disable-fastapi-docs --path",
    "no code of this kind is loaded": "--scheduler-cls --tools",
    "requests may ask for 20 logprobs, and no more": "--max-logprobs",
    "--profile-dir is the folder for /start_profile": "--profiler-config",
    "logprobs are those of the model, before penalties, bias and temperature": "--logprobs-mode",
    "CUDA_VISIBLE_DEVICES chooses the GPUs": "--base-gpu-id --gpu-id-step -mg --main-gpu -dev",
    "what the server says goes to its standard output": "--log-file --log-disable --log-config-file "
    "--enable-log-outputs",
    "a sequence ends at --max-model-len": "--context-shift",
    "all weights are on one device, that of --device": "--offload-backend --cpu-moe -cmoe --n-cpu-moe -ncmoe -ot "
    "--override-tensor",
    "--shutdown-timeout and --step-timeout are there": "--timeout -to",
    "sequences run in the order of --scheduling-policy": "--scheduler-delay-factor --max-num-partial-prefills "
    "--max-long-partial-prefills --num-scheduler-steps --schedule-conservativeness",
}
HARMLESS = {  # values of the refused that say what is so anyway
    **dict.fromkeys(REFUSED[PARALLEL].split(), ("1",)),
    "--disaggregation-mode": ("null",),
    "--task": ("auto", "generate"),
    "--config-format": ("auto", "hf"),
    "--sampling-defaults": ("model",),
    "--num-scheduler-steps": ("1",),
    "--cpu-offload-gb": ("0", "0.0"),
    "--swap-space": ("0", "0.0", "4"),  # 4 is what vLLM took by itself
    "--max-logprobs": ("20",),
    "--additional-config": ("{}",),
    "--speculative-eagle-topk": ("1",),
    "--logprobs-mode": ("raw_logprobs",),
    "-ctk": ("f16", "bf16"),
    "-ctv": ("f16", "bf16"),
    "--cache-type-k": ("f16", "bf16"),
    "--cache-type-v": ("f16", "bf16"),
}


def _spread(table: dict[str, str], make: Callable[[str, str], Meaning]) -> dict[str, Meaning]:
    return {name: make(key, name) for key, names in table.items() for name in names.split()}


MEANINGS = {
    **_spread(SAME, lambda field, _: Meaning(field=field, automatic=AUTOMATIC.get(field, ()), lists=field in LISTS)),
    **{name: Meaning(field=field, fixed=value) for name, (field, value) in FIXED.items()},
    **{name: Meaning(field=field, key=key) for name, (field, key) in KEYS.items()},
    **_spread(
        NEEDLESS,
        lambda reason, name: Meaning(needless=reason, takes=name in WITH_VALUE, compiles=reason is COMPILES),
    ),
    **_spread(REFUSED, lambda reason, name: Meaning(refused=reason, harmless=HARMLESS.get(name, ()))),
}
