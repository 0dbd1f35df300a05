"""Whether an option's value, or several together, can be: what each feature asks of its own, and what engines, stages
and machines must not say together.
"""

from __future__ import annotations

import re

from .config import MEDIA_OBJECTS, OTHER_OBJECTS, Config, ConfigError
from .launcher import check_backend
from .lora import check_lora

PLUGINS = {  # options that name one, each with its group of entry points
    "io_processor_plugin": "IO_PROCESSORS",
    "tool_parser_plugin": "TOOL_PARSERS",
    "reasoning_parser_plugin": "REASONING_PARSERS",
    "worker_cls": "WORKERS",
    "worker_extension_cls": "WORKER_EXTENSIONS",
}


def check_config(config: Config) -> None:
    """ConfigError names the option. What is not used is not imported."""
    for name in OTHER_OBJECTS:
        config.json_object(name)
    _check_idle(config)
    _check_engines(config)
    if config.remote_engines or config.steward or config.engine_secret_file or config.engine_certfile:
        from .objects.remote import check_remote

        check_remote(config)
    _check_stages(config)
    check_lora(config)
    if config.keep_kv and config.device == "cpu":
        raise ConfigError("--keep-kv: on a CPU the KV memory of a worker is always kept; leave it out")
    if config.kv_offload is not None:
        from .kv_offload import check_tiers

        check_tiers(config)
    if config.kv_events_config is not None:
        from .objects.kv_events import check_events

        check_events(config)
    if config.speculative_config is not None:
        from .objects.speculative import read_speculative

        read_speculative(config)
    if config.pooler_config is not None:
        from .objects.pooler import read_pooler

        read_pooler(config)
    if config.structured_outputs_config is not None:
        from .objects.structured_outputs import structured_defaults

        structured_defaults(config)
    if config.reasoning_config is not None:
        from .objects.reasoning import closing_text

        closing_text(config)
    if any(getattr(config, name) is not None for name in MEDIA_OBJECTS):
        from .objects.media import check_media

        check_media(config)
    _check_serving(config)
    if config.also:
        from .also import check_also

        check_also(config)


def _check_serving(config: Config) -> None:
    if not all(config.served_model_name):
        raise ConfigError("--served-model-name: one of the names is empty")
    if (config.fingerprint_mode == "custom") != (config.fingerprint_value is not None):
        raise ConfigError("--fingerprint-value: it is given with --fingerprint-mode custom, and only then")
    if config.otlp_traces_endpoint is not None:
        from .serving.otlp import trouble_with

        if trouble := trouble_with(config.otlp_traces_endpoint):
            raise ConfigError(f"--otlp-traces-endpoint: {trouble}")
    if config.grpc_port is not None:
        from .serving.grpc import check_grpc

        check_grpc(config)
    if config.http2_port is not None:
        from .serving.http2 import check_http2

        check_http2(config)
    if config.files_dir is not None or config.max_batch_lines is not None:
        from .serving.files import check_files

        check_files(config)
    _check_plugins(config)
    if config.has_tools:
        from .objects.tool_servers import check_tools

        check_tools(config)
    if config.ssl_certfile or config.ssl_keyfile or config.ssl_ca_certs:
        from .serving.tls import make_context  # not for everybody: it takes a while to load

        make_context(config)


def _check_plugins(config: Config) -> None:
    if config.logits_processors or any(getattr(config, name) is not None for name in PLUGINS):
        from . import plugins

        for given in config.logits_processors:
            plugins.check_plugin("--logits-processors", given, plugins.LOGITS_PROCESSORS)
        for name, group in PLUGINS.items():
            if (one := getattr(config, name)) is not None:
                plugins.check_plugin(f"--{name.replace('_', '-')}", one, getattr(plugins, group))
    _check_socket(config)
    _check_worker_cls(config)
    if not config.changes_logits:
        return
    option = "--logits-processors" if config.logits_processors else "--logits-processor-pattern"
    if config.tensor_parallel_size > 1 or config.device == "cuda":
        raise ConfigError(f"{option}: on a CPU alone, and not with --tensor-parallel-size above 1")
    try:
        re.compile(config.logits_processor_pattern or "")
    except re.error as error:
        raise ConfigError(f"--logits-processor-pattern: it is no regular expression: {error}") from None


def _check_socket(config: Config) -> None:
    if config.uds is None:
        if config.uds_mode is not None:
            raise ConfigError(f"--uds-mode {config.uds_mode} goes with --uds, the socket that it is the mode of")
        return
    if not config.uds:
        raise ConfigError("--uds: the path of a Unix socket is missing")
    if config.steward is not None or config.headless:
        raise ConfigError("--uds: a machine that computes for others serves no clients")


def _check_worker_cls(config: Config) -> None:
    if config.worker_cls is None:
        return
    for option, given in (
        ("--device cuda", config.device == "cuda"),
        ("--worker scripted", config.worker != "model"),
        ("--kv-offload", config.offloads),
        ("--engines", bool(config.remote_engines or config.steward)),
        ("--nnodes above 1", config.nnodes > 1),
    ):
        if given:
            raise ConfigError(f"--worker-cls: not with {option}")


def _check_idle(config: Config) -> None:
    """An engine wakes for what its own frontends ask: whoever waits elsewhere until it is awake asks nothing of it."""
    sleeps = [
        option
        for option, given in (
            ("--sleep-idle-seconds", config.sleep_idle_seconds),
            ("--models-max", config.models_max),
            ("--no-load-on-startup", not config.load_on_startup),
        )
        if given
    ]
    for option, given in (
        ("--steward", config.steward is not None),
        ("--nnodes above 1", config.nnodes > 1),
        ("--prefill-engines", config.prefill_engines > 0),
    ):
        if given and sleeps:
            raise ConfigError(f"{sleeps[0]}: not with {option}")
    if config.remote_engines and sleeps and sleeps[0] != "--sleep-idle-seconds":
        raise ConfigError(f"{sleeps[0]}: not with --engines, which load models where they are")
    if config.sleep_idle_seconds and not config.models_autoload:
        raise ConfigError("--no-models-autoload: not with --sleep-idle-seconds, which needs that requests wake a model")


def _check_engines(config: Config) -> None:
    """ConfigError if options contradict each other."""
    size, rank, most = config.data_parallel_size, config.data_parallel_rank, config.max_data_parallel_size
    if not size and not config.remote_engines:
        raise ConfigError("--data-parallel-size 0 goes with --engines: somebody has to compute")
    if most is not None and most < size:
        raise ConfigError(f"--max-data-parallel-size {most}: must be at least --data-parallel-size, which is {size}")
    if most is not None and rank is not None:
        raise ConfigError("--max-data-parallel-size: with --data-parallel-rank this server is one engine of several")
    if rank is not None and rank >= size:
        raise ConfigError(f"--data-parallel-rank {rank}: there are 0 to {size - 1} with --data-parallel-size {size}")
    if config.prefill_engines and config.prefill_engines >= config.engines:
        raise ConfigError(
            f"--prefill-engines {config.prefill_engines}: of {config.engines} engines one at least has to go on with "
            "what they begin; --data-parallel-size has to be larger"
        )
    if config.prefill_engines and config.kv_offload is None:
        raise ConfigError("--prefill-engines goes with --kv-offload: what is computed in one engine is found there")
    if config.record is not None and config.engines > 1:
        raise ConfigError("--record: it keeps what one scheduler acts on, and there are several engines")


def _check_nodes(config: Config) -> None:
    """ConfigError if options for several machines contradict each other, or one is missing."""
    if config.nnodes == 1:
        for name in ("node_rank", "headless", "master_addr", "node_secret_file"):
            if getattr(config, name):
                raise ConfigError(f"--{name.replace('_', '-')} goes with --nnodes above 1")
        return
    if config.pipeline_parallel_size % config.nnodes:
        stages = config.pipeline_parallel_size
        raise ConfigError(
            f"--nnodes {config.nnodes}: each machine has as many stages; --pipeline-parallel-size is {stages}"
        )
    if config.node_rank >= config.nnodes:
        raise ConfigError(f"--node-rank {config.node_rank}: there are 0 to {config.nnodes - 1} with --nnodes")
    if config.headless != (config.node_rank > 0):
        raise ConfigError("--headless goes with --node-rank 1 and above, which serve nothing; node 0 is the server")
    for name in ("master_addr", "node_secret_file"):
        if getattr(config, name) is None:
            raise ConfigError(f"--{name.replace('_', '-')} has to be set with --nnodes above 1")
    if config.engines > 1 or config.worker != "model":
        raise ConfigError("--nnodes: machines share one engine with a model; --data-parallel-size 1, --worker model")


def _check_stages(config: Config) -> None:
    """ConfigError for what cannot be had of a model that is divided into stages."""
    from .objects.eplb import check_eplb  # which knows Config

    check_backend(config)
    check_eplb(config)
    _check_nodes(config)
    if config.pipeline_parallel_size == 1:
        return
    if config.speculative_config not in (None, "none"):
        raise ConfigError(
            "--speculative-config: not with --pipeline-parallel-size above 1; --tensor-parallel-size divides a model, "
            "too, and goes with it"
        )
    for option, given in (("--enable-lora", config.enable_lora), ("--kv-offload", config.offloads)):
        if given and config.nnodes > 1:
            raise ConfigError(f"{option}: not with --nnodes above 1, whose other machines are told of steps alone")
