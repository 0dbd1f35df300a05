"""What the HTTP side needs to know of options and models, of which each has its own Settings."""

from __future__ import annotations

import os
import socket
import time
from functools import partial

from actorserve.http.routes import SWITCHES
from actorserve.http.settings import (
    AdapterNames,
    Catalog,
    FileSettings,
    KVSharing,
    Settings,
    media_rules,
    plugins_of,
)

from ..model.checks.device import draws_on_gpu
from ..model.tokenizers.tokenizer import describe_tokenizer
from ..options.kv_offload import read_tiers
from ..options.lora import default_paths
from ..options.objects.reasoning import closing_text
from ..options.objects.structured_outputs import structured_defaults
from ..protocol.file_sizes import KV_LISTENER, form_bytes
from ..protocol.served import ServedModel
from ..runtime.process import Context
from .engine import FrontendEngine
from .model_card import added_tokens, card_of, fingerprint_of
from .parsers import choose_parsers

ANY_ADDRESS = ("", "0.0.0.0", "::")
OPTIONS = (  # that are settings by the same name
    *("max_body_bytes", "max_num_seqs", "max_log_len", "max_audio_bytes", "max_tool_calls", "first_engine"),
    *("admin_api_key", "allow_credentials", "root_path", "response_role", "trust_request_chat_template"),
    *("any_model_name", "idempotent_request_ids", "prefix_cache_per_client", "exclude_tools_when_tool_choice_none"),
    *("enable_force_include_usage", "enable_per_request_metrics", "return_tokens_as_token_ids"),
    *("most_logprobs", "enable_return_hidden_states"),
    *("stream_response_default_include_usage", "models_max", "models_autoload"),
)
OF_MODEL = ("max_model_len", "sampling_defaults", "vocab_size", "end_tokens", "pooling", "encoder")  # likewise


def settings_of(context: Context, engine: FrontendEngine) -> Settings:
    """Those of the first model; by its catalog there are all."""
    catalog, created = Catalog(context.config.unserved), int(time.time())
    for served in context.system.models:
        catalog.models.append(_settings(context, engine, served, catalog, created))
    return catalog.models[0]


def _settings(
    context: Context, engine: FrontendEngine, served: ServedModel, catalog: Catalog, created: int
) -> Settings:
    config, model = served.config, served.info
    tools, reasoning = choose_parsers(config, model)
    return Settings(
        **{name: getattr(config, name) for name in OPTIONS},
        **{name: getattr(model, name) for name in OF_MODEL},
        served=config.served_names(),
        api_keys=config.api_key,
        created=created,
        model=served.index,
        catalog=catalog,
        has_tokenizer=bool(model.tokenizer_folder),
        idempotency_window_s=config.idempotency_window,
        tool_parser=tools if config.enable_auto_tool_choice else None,
        reasoning_parser=reasoning,
        allowed_origins=tuple(config.allowed_origins),
        allowed_methods=tuple(config.allowed_methods),
        allowed_headers=tuple(config.allowed_headers),
        request_id_headers=config.enable_request_id_headers,
        files=_files(context),
        kv=_kv_sharing(context),
        engines=range(config.first_engine + served.engines.start, config.first_engine + served.engines.stop),
        max_form_bytes=form_bytes(config),
        media=media_rules(config, model, context.system.files.body_bytes),
        adapters=AdapterNames() if served.index else engine.adapters,
        default_adapters=frozenset() if served.index else frozenset(default_paths(config)),
        accounts=engine.accounts,
        tokenizer_info=describe_tokenizer(config, model),
        card=partial(card_of, config, model),
        special_tokens=partial(added_tokens, model),
        io_processor=config.io_processor_plugin is not None,
        prompt_embeds=config.enable_prompt_embeds,
        template_kwargs=config.json_object("default_chat_template_kwargs"),
        structured_defaults=structured_defaults(config),
        reasoning_closing=closing_text(config),
        keep_alive_s=config.sse_keep_alive_interval,
        realtime_idle_s=config.realtime_idle_timeout,
        fingerprint=fingerprint_of(config, model),
        told_fingerprint=None if config.fingerprint_mode == "full" else config.fingerprint_value or "",
        tools=engine.tools if config.has_tools else None,
        plugins=plugins_of(config),
        draws_on_cpu=not draws_on_gpu(config, model),
        tools_by_url=bool(config.allowed_tool_domains),
        off=frozenset(option for option in SWITCHES if not getattr(config, option)),
    )


def _files(context: Context) -> FileSettings | None:
    """Where clients' files are kept; None where they are not."""
    config = context.config
    return None if config.files_dir is None else FileSettings(config.files_dir, config.files_limit, context.secret())


def _kv_sharing(context: Context) -> KVSharing | None:
    """How servers come by each other's KV blocks; None where they do not."""
    tiers = read_tiers(context.config)
    if tiers is None or not tiers.shares:
        return None
    beside = tiers.folder is not None or bool(tiers.plugin)
    address = ("", 0)
    if tiers.listen:
        host, _, _ = tiers.listen.rpartition(":")
        with socket.socket(fileno=os.dup(context.files[KV_LISTENER])) as listener:
            port = int(listener.getsockname()[1])
        own = host.removeprefix("[").removesuffix("]")
        address = (reached_at(own), port)
    allows = tiers.allows if tiers.pulls else None
    return KVSharing(beside or bool(tiers.listen), beside or tiers.pulls, address, allows)


def reached_at(own: str) -> str:
    """Where others find what listens there. Of any address: that which what is sent away leaves from, by the routes
    (nothing is sent), since networks of `peer` are of addresses; the machine's name where nothing leads away.
    """
    if own not in ANY_ADDRESS:
        return own
    ways = [(socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")]  # of documents: nobody's
    for family, away in ways if own != "::" else ways[::-1]:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as way:
                way.connect((away, 9))
                return str(way.getsockname()[0])
        except OSError:
            continue
    return socket.gethostname()
