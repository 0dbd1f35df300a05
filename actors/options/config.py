"""Every option, frozen: what the command line, a YAML file or the LLM class set, and all actors read.

It knows no actor, of models only which weight formats there are, and imports no torch. A value that cannot be is
refused here, with the option's name.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..model import quantization as weight_formats
from .choices import (
    ContentFormat,
    Convert,
    CpuKernels,
    Device,
    DType,
    GenerationConfig,
    KVCacheDType,
    LoadFormat,
    LogFormat,
    LogLevel,
    ModelImpl,
    NonNegative,
    Policy,
    Port,
    Positive,
    PositiveFloat,
    Quantization,
    ReasoningParser,
    Runner,
    TokenizerMode,
    ToolParser,
    WorkerKind,
)

MEDIA_OBJECTS = ("limit_mm_per_prompt", "media_io_kwargs", "mm_processor_kwargs")
OTHER_OBJECTS = ("default_chat_template_kwargs", "override_generation_config")


class ConfigError(ValueError):
    """An option has a value that cannot be; the message names the option."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `actorserve launch`: the field `max_num_seqs` is `--max-num-seqs`, its description the help."""

    # server
    model: Annotated[str, Meta(description="a folder, GGUF file or hub name; the packaged demo model if left out")] = ""
    host: Annotated[str, Meta(description="the address to listen on; 0.0.0.0 or :: for all")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="the port to listen on; 0 picks a free one")] = 8000
    root_path: Annotated[
        str,
        Meta(description="the path that clients find the server below, behind a proxy: /llm; it may be cut off or not"),
    ] = ""
    grpc_port: Annotated[
        Port | None, Meta(description="a port for the API over gRPC, beside the other; no gRPC if left out")
    ] = None
    api_key: Annotated[
        list[str], Meta(description="keys of which clients must send one (ACTORSERVE_API_KEY holds one, too)")
    ] = []
    api_key_file: Annotated[
        str | None, Meta(description="a file of more such keys, one a line; # begins a comment")
    ] = None
    key_file: Annotated[
        str | None,
        Meta(description="a YAML file of more keys, each with a name and limits; it is read again when it changes"),
    ] = None
    admin_api_key: Annotated[
        str | None, Meta(description="the key for administration, which is not there without it")
    ] = None
    allowed_origins: Annotated[
        list[str], Meta(description="sites whose pages may use the server from a browser; all, *, if left out")
    ] = msgspec.field(default_factory=lambda: ["*"])
    allowed_methods: Annotated[list[str], Meta(description="methods with which they may; all, *, if left out")] = (
        msgspec.field(default_factory=lambda: ["*"])
    )
    allowed_headers: Annotated[list[str], Meta(description="headers that they may send; all, *, if left out")] = (
        msgspec.field(default_factory=lambda: ["*"])
    )
    allow_credentials: Annotated[
        bool, Meta(description="they may send cookies and what else browsers keep; --allowed-origins must name them")
    ] = False
    ssl_certfile: Annotated[
        str | None, Meta(description="a PEM file with the certificate, and those between it and the authority: use TLS")
    ] = None
    ssl_keyfile: Annotated[
        str | None, Meta(description="a PEM file with the certificate's key, if that is not in the same file")
    ] = None
    ssl_ca_certs: Annotated[
        str | None, Meta(description="a PEM file with authorities: clients must have a certificate of theirs")
    ] = None
    middleware: Annotated[
        list[str], Meta(description="aiohttp middlewares to load, each as module:name; the first is the outermost")
    ] = []
    enable_request_id_headers: Annotated[bool, Meta(description="answers have an X-Request-Id, the request's own")] = (
        True
    )
    served_model_name: Annotated[
        list[str], Meta(description="names under which clients ask for the model; the first stands in answers")
    ] = []
    shutdown_timeout: Annotated[
        float, Meta(ge=0, description="seconds that running requests get to end when the server is stopped")
    ] = 30.0
    sse_keep_alive_interval: Annotated[
        float, Meta(ge=0, description="seconds after which a stream that has nothing to say sends a comment; 0: never")
    ] = 0.0
    warm_up: Annotated[
        bool, Meta(description="be ready only when a request of its own was answered; always so under systemd")
    ] = False
    idempotency_window: Annotated[
        float, Meta(ge=0, description="seconds for which an answer can be had again by its Idempotency-Key")
    ] = 300.0
    idempotent_request_ids: Annotated[bool, Meta(description="take X-Request-Id for an Idempotency-Key")] = False
    max_connections: Annotated[
        int, Meta(ge=1, le=1 << 16, description="clients' connections at once; whoever comes then gets 503")
    ] = 8192
    max_connections_per_client: Annotated[
        Positive | None, Meta(description="those of one address, or of one IPv6 network of 64 bits; all if left out")
    ] = None
    max_header_bytes: Annotated[
        int, Meta(ge=4 << 10, le=4 << 20, description="of a request's head; one line of it may have half of that")
    ] = 64 << 10
    max_header_count: Annotated[int, Meta(ge=16, le=4096, description="lines of a request's head")] = 128
    hang_timeout: Annotated[
        float, Meta(ge=1, description="seconds after which an actor whose loop does not turn is killed and replaced")
    ] = 10.0
    step_timeout: Annotated[
        float, Meta(ge=1, description="seconds that one step of the worker may take before it is killed and replaced")
    ] = 120.0
    max_restarts: Annotated[
        int,
        Meta(
            ge=0,
            description="restarts of one actor within a minute; one more, and the server ends, or goes on without a "
            "porter or herald for a minute",
        ),
    ] = 5
    log_level: Annotated[LogLevel, Meta(description="the least grave log lines to show")] = "info"
    log_format: Annotated[
        LogFormat, Meta(description="text for people, or json: each line of the output is one object")
    ] = "text"
    enable_log_requests: Annotated[
        bool, Meta(description="a line for each request at its end, with its tokens and times by stage")
    ] = True
    log_stats_interval: Annotated[
        float,
        Meta(ge=0, description="seconds between two lines on load and throughput, while there is any; 0: none"),
    ] = 10.0
    max_log_len: Annotated[
        NonNegative | None,
        Meta(description="characters of a prompt that --log-level debug shows; all that a line holds if left out"),
    ] = None
    otlp_traces_endpoint: Annotated[
        str | None, Meta(description="a URL to which spans of each request are sent by OTLP, as collectors take it")
    ] = None
    record: Annotated[
        str | None,
        Meta(description="a file for all that the scheduler acts on, for `actorserve replay`; prompts and answers too"),
    ] = None
    record_max_bytes: Annotated[int, Meta(ge=1 << 10, description="the length at which --record stops")] = 1 << 30
    max_body_bytes: Annotated[int, Meta(ge=1024, le=64 << 20, description="the largest request body")] = 4 << 20
    # rendering
    tokenizer: Annotated[str | None, Meta(description="a folder, GGUF file or hub name, if not the model's own")] = None
    tokenizer_mode: Annotated[
        TokenizerMode,
        Meta(
            description="which of its files is read: auto (any), hf (any but Mistral's), slow (any but "
            "tokenizer.json), mistral (tekken.json or tokenizer.model)"
        ),
    ] = "auto"
    skip_tokenizer_init: Annotated[
        bool, Meta(description="no tokenizer is loaded: prompts and answers are token ids, and texts are refused")
    ] = False
    chat_template: Annotated[
        str | None, Meta(description="a Jinja file or the text of one, if not the model's own")
    ] = None
    default_chat_template_kwargs: Annotated[
        str | None,
        Meta(description='for chat templates, where requests say nothing: JSON such as {"enable_thinking": false}'),
    ] = None
    chat_template_content_format: Annotated[
        ContentFormat,
        Meta(description="the form in which templates read contents: a string, or a list of parts"),
    ] = "auto"
    escape_special_tokens: Annotated[
        bool, Meta(description="what users and tools say that reads like a special token stays text")
    ] = False
    trust_request_chat_template: Annotated[
        bool, Meta(description="take chat templates from requests, too; they are programs, if in a sandbox")
    ] = False
    response_role: Annotated[str, Meta(min_length=1, max_length=64, description="the role of chat's answers")] = (
        "assistant"
    )
    tool_call_parser: Annotated[
        ToolParser,
        Meta(description="how the model writes tool calls; auto finds it out from the chat template, or takes hermes"),
    ] = "auto"
    reasoning_parser: Annotated[
        ReasoningParser, Meta(description="how the model marks its thinking; auto finds it out from the chat template")
    ] = "auto"
    tool_parser_plugin: Annotated[
        str | None,
        Meta(
            description="what makes a parser of tool calls, in place of --tool-call-parser: module:name, FILE.py:name "
            "or an entry point of actorserve.tool_parsers"
        ),
    ] = None
    reasoning_parser_plugin: Annotated[
        str | None, Meta(description="the same of thinking; entry points are those of actorserve.reasoning_parsers")
    ] = None
    enable_auto_tool_choice: Annotated[
        bool, Meta(description="let the model decide whether to call tools, where a parser is known")
    ] = True
    # pictures and sounds
    limit_mm_per_prompt: Annotated[
        str | None,
        Meta(
            description='how many pictures, films and sounds a prompt may have: JSON such as {"image": 8, "video": 1}; '
            "128 together if left out"
        ),
    ] = None
    allowed_media_domains: Annotated[
        list[str], Meta(description="hosts, and all below them, from which pictures are fetched; any if left out")
    ] = []
    allowed_local_media_path: Annotated[
        str | None, Meta(description="a folder whose files requests may name by file:// addresses; none if left out")
    ] = None
    allow_private_media: Annotated[
        bool, Meta(description="pictures are fetched also from addresses that are not public, such as 127.0.0.1")
    ] = False
    max_media_bytes: Annotated[
        int, Meta(ge=1 << 10, le=1 << 30, description="of one picture, film or sound as it comes")
    ] = 20 << 20
    max_media_pixels: Annotated[
        int, Meta(ge=1 << 10, le=1 << 30, description="of one picture; of a film, in each frame that is taken")
    ] = 50_000_000
    max_media_redirects: Annotated[int, Meta(ge=0, le=20, description="that an address may lead through")] = 3
    media_fetch_timeout: Annotated[
        float, Meta(gt=0, le=60, description="seconds in which a picture must have come from its address")
    ] = 10.0
    media_memory_bytes: Annotated[
        int, Meta(ge=1 << 20, description="for pictures as the model takes them: of running requests, and a cache")
    ] = 1 << 30
    media_io_kwargs: Annotated[
        str | None,
        Meta(
            description='how files are read: JSON such as {"image": {"rgba_background_color": [255, 255, 255]}, '
            '"video": {"num_frames": 32}}'
        ),
    ] = None
    mm_processor_kwargs: Annotated[
        str | None,
        Meta(description="for the model's own processor of pictures, if not as its files say: JSON"),
    ] = None
    enable_mm_embeds: Annotated[
        bool,
        Meta(description="requests may give embeddings in the place of pictures (image_embeds): for trusted clients"),
    ] = False
    # engine
    dtype: Annotated[DType, Meta(description="of weights and KV memory; auto is float32 on a CPU")] = "auto"
    quantization: Annotated[Quantization, Meta(description=weight_formats.ABOUT)] = "auto"
    model_impl: Annotated[
        ModelImpl,
        Meta(
            description="what computes the model: layers of this server, or transformers' own; auto: the first it has"
        ),
    ] = "auto"
    runner: Annotated[
        Runner,
        Meta(
            description="what the model is for: texts (generate), or embeddings, scores and labels (pooling); auto: as "
            "its files say"
        ),
    ] = "auto"
    convert: Annotated[
        Convert,
        Meta(description="what a pooling model makes: embed, classify or reward; auto: what its architecture has"),
    ] = "auto"
    pooler_config: Annotated[
        str | None,
        Meta(
            description='how a pooling model pools, if not as its files say: JSON such as {"seq_pooling_type": '
            '"MEAN", "normalize": true}'
        ),
    ] = None
    trust_remote_code: Annotated[
        bool, Meta(description="run the Python code that lies beside the model's weights, in the worker")
    ] = False
    deterministic: Annotated[
        bool, Meta(description="answers and logprobs are the same bits alone and in every batch; slower")
    ] = False
    load_format: Annotated[LoadFormat, Meta(description="dummy fills the weights with random numbers")] = "auto"
    seed: Annotated[int, Meta(ge=0, description="of dummy weights")] = 0
    revision: Annotated[str | None, Meta(description="branch, tag or commit of a hub name")] = None
    generation_config: Annotated[
        GenerationConfig, Meta(description="auto takes sampling defaults from the model's generation_config.json")
    ] = "auto"
    override_generation_config: Annotated[
        str | None,
        Meta(description='sampling defaults instead of the model folder\'s: JSON such as {"temperature": 0.5}'),
    ] = None
    max_model_len: Annotated[
        Positive | None, Meta(description="tokens of prompt and answer together; as the model was made if left out")
    ] = None
    kv_cache_memory_bytes: Annotated[Positive | None, Meta(description="the size of the KV memory")] = None
    kv_cache_memory_fraction: Annotated[
        float, Meta(gt=0, lt=1, description="of the free memory, for KV on a CPU if no size is given")
    ] = 0.25
    gpu_memory_utilization: Annotated[
        float, Meta(gt=0, le=1, description="of the GPU's memory, for weights and KV together")
    ] = 0.9
    kv_cache_dtype: Annotated[
        KVCacheDType,
        Meta(
            description="of keys and values; on a CPU auto is the type that is computed in, float16 where weights were "
            "quantised; fp8 is for a GPU, Hopper or newer"
        ),
    ] = "auto"
    block_size: Annotated[int, Meta(ge=8, le=256, multiple_of=8, description="tokens in one KV block")] = 32
    enable_prefix_caching: Annotated[bool, Meta(description="use KV blocks of earlier requests again")] = True
    prefix_cache_per_client: Annotated[
        bool, Meta(description="use only those of requests with the same API key, so that none tells of another's")
    ] = False
    kv_offload: Annotated[
        str | None,
        Meta(
            description="where KV blocks are kept beside the workers' memory, to be found after a restart and by other "
            "servers: host:SIZE, folder:PATH:SIZE, or both with a comma between them; on a CPU"
        ),
    ] = None
    kv_events_config: Annotated[
        str | None,
        Meta(
            description="whether and where routers are told which KV blocks are cached: JSON such as "
            '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'
        ),
    ] = None
    max_num_batched_tokens: Annotated[int, Meta(ge=1, description="the token budget of one step")] = 1024
    max_num_encoder_input_tokens: Annotated[
        Positive | None,
        Meta(
            description="tokens of pictures that one step may make embeddings of, or of a part of one; without it "
            "as many as --max-num-batched-tokens, and no more than leave streams their time"
        ),
    ] = None
    encoder_cache_gb: Annotated[
        PositiveFloat, Meta(description="GiB of pictures' embeddings that a worker keeps, the last used longest")
    ] = 0.5
    target_itl_ms: Annotated[
        PositiveFloat | None,
        Meta(description="milliseconds between two tokens of a stream; prompts get as much of each step as leaves it"),
    ] = None
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096, description="sequences that run at once")] = 64
    max_num_queued_reqs: Annotated[
        NonNegative | None,
        Meta(description="sequences that wait before 503 is answered; 2048, or what 512 MiB of request table hold"),
    ] = None
    max_num_queued_tokens: Annotated[
        Positive | None,
        Meta(description="tokens of prompts that wait of one engine, with all rows taken, before 503 is answered"),
    ] = None
    long_prefill_token_threshold: Annotated[
        Positive | None, Meta(description="tokens of one prompt that a step computes, so that others come in between")
    ] = None
    scheduling_policy: Annotated[Policy, Meta(description="priority runs lower numbers first")] = "fcfs"
    tensor_parallel_size: Annotated[
        int, Meta(ge=1, le=64, description="workers that share the model, each with a part of every layer")
    ] = 1
    pipeline_parallel_size: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="stages that the model's layers are divided into, one behind the other, each with a worker, or "
            "with --tensor-parallel-size of them; on a CPU",
        ),
    ] = 1
    nnodes: Annotated[
        int, Meta(ge=1, le=64, description="machines over which the stages are divided; each has as many")
    ] = 1
    node_rank: Annotated[
        NonNegative,
        Meta(description="which of them this is: 0 is the server, and has the last stages; the others are --headless"),
    ] = 0
    headless: Annotated[bool, Meta(description="serve nothing: compute stages for the server at --master-addr")] = False
    master_addr: Annotated[str | None, Meta(description="the address of node 0 at which the others reach it")] = None
    master_port: Annotated[
        int,
        Meta(ge=1024, le=60_000, description="its port where workers meet; one behind it for each worker elsewhere"),
    ] = 29501
    node_secret_file: Annotated[
        str | None, Meta(description="a file with the secret, 16 characters or more, that nodes show each other")
    ] = None
    data_parallel_size: Annotated[
        int,
        Meta(ge=1, le=64, description="engines: each a scheduler and workers with a model and KV memory of their own"),
    ] = 1
    max_data_parallel_size: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        Meta(
            description="engines that there is room for; those beyond --data-parallel-size are parked until "
            "`actorserve scale` wants them; --data-parallel-size if left out"
        ),
    ] = None
    data_parallel_rank: Annotated[
        NonNegative | None,
        Meta(description="be this one of --data-parallel-size servers, among which somebody else divides requests"),
    ] = None
    prefill_engines: Annotated[
        int,
        Meta(
            ge=0,
            le=63,
            description="the first so many of --data-parallel-size compute prompts, and the others go on behind the "
            "first token; with --kv-offload",
        ),
    ] = 0
    enable_expert_parallel: Annotated[
        bool,
        Meta(description="of a model with experts each worker of the group has some as a whole, not a part of each"),
    ] = False
    worker: Annotated[
        WorkerKind, Meta(description="scripted computes nothing and makes tokens by a formula, to time everything else")
    ] = "model"
    scripted_step_ms: Annotated[
        float, Meta(ge=0, le=10_000, description="how long a step of the scripted worker takes, as if it computed")
    ] = 0.0
    device: Annotated[Device, Meta(description="what computes; auto is the GPU if there is one")] = "auto"
    enforce_eager: Annotated[bool, Meta(description="use no CUDA graphs: a quicker start, and slower steps")] = False
    cudagraph_capture_sizes: Annotated[
        list[Positive],
        Meta(description="batch sizes of CUDA graphs; 1, 2, 4, every 8th to 64, 16th to 256, 32nd to 512 if left out"),
    ] = []
    speculative_config: Annotated[
        str | None,
        Meta(
            description='drafts: JSON such as {"method": "ngram", "num_speculative_tokens": 5}; other methods: '
            "draft_model, eagle, eagle3, mtp, medusa; auto: n-grams for one running request, where they pay and "
            "cannot change a bit (int8, --deterministic, kernels in C); none or off: never"
        ),
    ] = None
    enable_lora: Annotated[
        bool, Meta(description="requests may name LoRA adapters in place of the model; on a CPU")
    ] = False
    max_loras: Annotated[int, Meta(ge=1, le=512, description="different adapters that run at once")] = 8
    max_cpu_loras: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="adapters that stay in memory; twice --max-loras if left out"),
    ] = None
    max_lora_rank: Annotated[int, Meta(ge=1, le=4096, description="the largest rank of an adapter")] = 64
    lora_modules: Annotated[
        list[str], Meta(description="adapters that are there from the start, each as name=path")
    ] = []
    lora_folder: Annotated[
        str | None, Meta(description="a folder of adapters, each loaded by its name when a request first names it")
    ] = None
    threads: Annotated[
        Positive | None,
        Meta(
            description="the worker's compute threads on a CPU; auto, or left out, is as many as a short trial finds "
            "useful for a large model, and all cores but one for a small one"
        ),
    ] = None
    worker_extension_cls: Annotated[
        str | None,
        Meta(
            description="a class whose methods /collective_rpc may call in the workers: module:Class, FILE.py:Class or "
            "an entry point of actorserve.worker_extensions"
        ),
    ] = None
    profile_dir: Annotated[
        str | None, Meta(description="a folder for what is seen between /start_profile and /stop_profile")
    ] = None
    dump_dir: Annotated[
        str | None,
        Meta(
            description="a folder for what an actor was doing when it failed, which `actorserve why --dump` shows: the "
            "last 20; left out, actorserve/dumps in $XDG_CACHE_HOME (~/.cache); none writes none"
        ),
    ] = None
    weights_folder: Annotated[
        list[str], Meta(description="folders below which /update_weights may load weights from; the model's own always")
    ] = []
    cpu_kernels: Annotated[
        CpuKernels,
        Meta(
            description="what computes on a CPU: native is C, compiled once at the first start; auto is torch where "
            "that cannot be had"
        ),
    ] = "auto"
    # actors
    frontends: Annotated[int, Meta(ge=1, le=64, description="processes that speak HTTP")] = 1
    renderers: Annotated[int, Meta(ge=1, le=64, description="processes that make tokens of prompts")] = 1
    detokenizers: Annotated[int, Meta(ge=1, le=64, description="processes that make text of tokens")] = 1
    media_actors: Annotated[
        int, Meta(ge=1, le=16, description="processes that read pictures and sounds, where the model takes such")
    ] = 1
    debug: Annotated[bool, Meta(description="check invariants when idle; SIGUSR1 injects an exception")] = False

    def served_names(self) -> list[str]:
        """The names under which requests may ask for the model; the first is the one in answers."""
        return self.served_model_name or [self.model or "actorserve-demo"]

    def json_object(self, name: str) -> dict[str, Any]:
        """What the field says, where its text is a JSON object; nothing where it is left out. ConfigError says that it
        is none.
        """
        text = getattr(self, name)
        try:
            return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigError(f"--{name.replace('_', '-')}: {text} is no JSON object: {error}") from None

    def adapters_in_memory(self) -> int:
        """How many of them there may be."""
        return 2 * self.max_loras if self.max_cpu_loras is None else self.max_cpu_loras

    @property
    def offloads(self) -> bool:
        """Are KV blocks kept beside the workers' memory?"""
        return self.kv_offload is not None

    @property
    def tells_kv(self) -> bool:
        """Is anybody told which KV blocks are cached?"""
        if self.kv_events_config is None:
            return False
        from .objects.kv_events import read_events  # which knows Config

        return read_events(self).publishes

    @property
    def engines(self) -> int:
        """That this server has room for."""
        if self.data_parallel_rank is not None:
            return 1
        return self.max_data_parallel_size or self.data_parallel_size

    @property
    def engines_at_start(self) -> int:
        """Those of them that are not parked then."""
        return min(self.data_parallel_size, self.engines)

    @property
    def workers(self) -> int:
        """That share one engine's model: of each stage as many."""
        return self.pipeline_parallel_size * self.tensor_parallel_size

    @property
    def local_workers(self) -> int:
        """Those of them on one machine."""
        return self.workers // self.nnodes

    def node_of(self, worker: int) -> int:
        """On which machine a worker of these is. The server's own draw: they answer, and have logs and grammars."""
        return (worker // self.local_workers + 1) % self.nnodes

    @property
    def first_engine(self) -> int:
        """The number by which others know the first of them."""
        return self.data_parallel_rank or 0

    @property
    def scheme(self) -> str:
        """Of the server's addresses."""
        return "http" if self.ssl_certfile is None else "https"


def make_config(values: dict[str, object]) -> Config:
    """Build a Config from plain values and the files that they name; raises ConfigError with the option's name."""
    if (drafts := values.get("speculative_config")) is not None:
        from .objects.speculative import canonical_drafts  # which knows Config

        values = {**values, "speculative_config": canonical_drafts(drafts)}
    for name in ("pooler_config", "kv_events_config", *MEDIA_OBJECTS, *OTHER_OBJECTS):
        if isinstance(given := values.get(name), dict):
            values = {**values, name: msgspec.json.encode(given).decode()}
    from .checks import check_config  # likewise
    from .fields import canonical, with_option  # likewise
    from .serving.access import with_access  # likewise

    values = {name: canonical(name, value) for name, value in values.items()}
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(with_option(str(error), values)) from None
    config = with_access(config)
    check_config(config)
    return config
