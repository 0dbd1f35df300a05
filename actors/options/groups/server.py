"""The server: its addresses, keys, time-outs and logs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..choices import MOST_SECONDS, FingerprintMode, LogFormat, LogLevel, NonNegative, Port, Positive


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server listens, who may use it, and what it says."""

    model: Annotated[str, Meta(description="a folder, GGUF file or hub name; the packaged demo model if left out")] = ""
    also: Annotated[
        list[str],
        Meta(
            description="a further model, with engines of its own: MODEL, or MODEL,option=value,… with options for it "
            "alone, such as runner, served-model-name, max-model-len, or a JSON object of these; once for each"
        ),
    ] = []
    host: Annotated[
        str,
        Meta(
            description="the address to listen on, or several with commas between; 0.0.0.0 or :: for all; one that "
            "ends in .sock is --uds"
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="the port to listen on; 0 picks a free one")] = 8000
    root_path: Annotated[
        str,
        Meta(description="the path that clients find the server below, behind a proxy: /llm; it may be cut off or not"),
    ] = ""
    uds: Annotated[
        str | None,
        Meta(
            description="the path of a Unix socket at which the server is reached, too; one that nobody has is replaced"
        ),
    ] = None
    uds_mode: Annotated[
        Annotated[str, Meta(pattern="^[0-7]{3,4}$")] | None,
        Meta(description="who may connect to it, as chmod writes it in digits; 660 if left out"),
    ] = None
    grpc_port: Annotated[
        Port | None, Meta(description="a port for the API over gRPC, beside the other; no gRPC if left out")
    ] = None
    http2_port: Annotated[
        Port | None,
        Meta(
            description="a port for HTTP/2, beside the other, and for HTTP/1.1 as well; with TLS as clients choose by "
            "ALPN, without by prior knowledge"
        ),
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
        list[str],
        Meta(
            description="sites whose pages may use the server from a browser, localhost for those of the browser's own "
            "machine; all, *, if left out"
        ),
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
    enable_page: Annotated[bool, Meta(description="the page at / is there")] = True
    enable_docs: Annotated[bool, Meta(description="/docs and /openapi.json are there")] = True
    enable_metrics: Annotated[bool, Meta(description="/metrics is there")] = True
    enable_slots: Annotated[bool, Meta(description="/slots is there")] = True
    fingerprint_mode: Annotated[
        FingerprintMode,
        Meta(
            description="system_fingerprint of answers: full (a digest of version, model and way to compute it), none "
            "(it is left out), custom (--fingerprint-value)"
        ),
    ] = "full"
    fingerprint_value: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="what it is with --fingerprint-mode custom"),
    ] = None
    served_model_name: Annotated[
        list[str], Meta(description="names under which clients ask for the model; the first stands in answers")
    ] = []
    any_model_name: Annotated[
        bool,
        Meta(description="a name that nothing has is the first model that does what is asked; answers say it again"),
    ] = False
    shutdown_timeout: Annotated[
        float, Meta(ge=0, description="seconds that running requests get to end when the server is stopped")
    ] = 30.0
    sse_keep_alive_interval: Annotated[
        float,
        Meta(
            ge=0,
            le=MOST_SECONDS,
            description="seconds after which a stream that has nothing to say sends a comment; 0: never",
        ),
    ] = 0.0
    realtime_idle_timeout: Annotated[
        float,
        Meta(
            gt=0,
            le=MOST_SECONDS,
            description="seconds after which a WebSocket is closed on which nothing comes or goes (all kinds)",
        ),
    ] = 600.0
    warm_up: Annotated[
        bool, Meta(description="be ready only when a request of its own was answered; always so under systemd")
    ] = False
    idempotency_window: Annotated[
        float,
        Meta(ge=0, le=MOST_SECONDS, description="seconds for which an answer can be had again by its Idempotency-Key"),
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
        float,
        Meta(
            ge=1,
            le=MOST_SECONDS,
            description="seconds after which an actor whose loop does not turn is killed and replaced",
        ),
    ] = 10.0
    step_timeout: Annotated[
        float,
        Meta(
            ge=1,
            le=MOST_SECONDS,
            description="seconds that one step of the worker may take before it is killed and replaced",
        ),
    ] = 120.0
    sleep_idle_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=MOST_SECONDS,
            description="seconds without a request after which a model gives its memory back, until the next one; "
            "0: never",
        ),
    ] = 0
    models_dir: Annotated[
        str | None,
        Meta(
            description="a folder of models, each of which is one of the server's: GGUF files, and folders with such a "
            "file or a config.json"
        ),
    ] = None
    models_preset: Annotated[
        str | None,
        Meta(description="llama-server's .ini file: models of the server by sections, each with options of its own"),
    ] = None
    models_max: Annotated[
        int,
        Meta(
            ge=0,
            description="of several models so many are loaded at once; for one more that is asked for, that which was "
            "not for the longest time is unloaded; 0: all are",
        ),
    ] = 0
    models_autoload: Annotated[
        bool, Meta(description="load a model that is asked for; without it, POST /models/load does alone")
    ] = True
    load_on_startup: Annotated[bool, Meta(description="load the model at the start, and not once it is asked for")] = (
        True
    )
    max_restarts: Annotated[
        int,
        Meta(
            ge=0,
            description="restarts of one actor within a minute; one more, and the server ends, or goes on without a "
            "porter, herald, keeper, caretaker, media actor, tools actor or batcher for a minute",
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
        Meta(
            ge=0,
            le=MOST_SECONDS,
            description="seconds between two lines on load and throughput, while there is any; 0: none",
        ),
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
