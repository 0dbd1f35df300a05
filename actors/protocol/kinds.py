"""Which kinds of actors there are: one record for each, which everybody reads who lays out, starts, watches, shows,
replaces or ends actors.

A new kind is a record here and the module that runs it, which is imported by name and only in its own process; messages
of its own are added to messages.py or topics/, and an option that says how many of it there are to options/groups/.
Nobody else asks what kind an actor is, but for what only that kind does, such as planning.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..telemetry.gauges import (
    BATCHER_KEPT,
    FRONTEND_KEPT,
    HERALD_KEPT,
    HTTP2_KEPT,
    MEDIA_KEPT,
    PORTER_KEPT,
    SCHEDULER_KEPT,
    TOOLS_KEPT,
    WORKER_KEPT,
    BatcherGauge,
    FrontendGauge,
    HeraldGauge,
    Http2Gauge,
    MediaGauge,
    PorterGauge,
    SchedulerGauge,
    ToolsGauge,
    WorkerGauge,
)
from ..telemetry.histograms import frontend_histograms, scheduler_histograms
from ..telemetry.metrics import (
    BATCHER_METRICS,
    FRONTEND_METRICS,
    HERALD_METRICS,
    HTTP2_METRICS,
    MEDIA_METRICS,
    PORTER_METRICS,
    SCHEDULER_METRICS,
    TOOLS_METRICS,
)
from . import messages
from .actor_kind import ActorKind, Sends
from .topics import tiers, tools

SUPERVISOR, TEMPLATE = "supervisor", "template"  # beside the actors' kinds; there is one of each, of that name
RELAY = "relay"  # and one that passes on what comes by the Unix socket of --uds
HTTP2 = "http2"  # and one that passes on what comes by --http2-port
LINK = "actorserve.actors.link.actor"  # what stands for the scheduler of an engine on another machine
OWN_TEMPLATE = f"{TEMPLATE}-{{}}"  # and one for each kind that has early imports; its kind is TEMPLATE, too
_ALL_KINDS = (  # in the order of starting; stopping is the reverse
    ActorKind(
        name="worker",
        module="actorserve.actors.worker.actor",
        actor="actorserve.actors.worker.actor:start",
        late_imports="actorserve.actors.worker.imports:import_late",
        count="workers",
        of_stewards=True,
        group=True,
        by_engine=True,
        receives=messages.ToWorker,
        sends=(Sends("scheduler", steps=True),),
        early_imports="actorserve.actors.worker.imports:import_early",
        start_s=3600.0,  # it may download
        computes=True,
        restart_order=4,
        restart_help="all of an engine at once: running requests go on in another engine; if there is none, they pause "
        "while the weights load",
        changeable=frozenset(
            "dtype quantization deterministic kv_cache_dtype kv_cache_memory_bytes kv_cache_memory_fraction "
            "gpu_memory_utilization enforce_eager cudagraph_capture_sizes threads cpu_kernels scripted_step_ms".split()
        ),
        gauges=WorkerGauge,
        kept=WORKER_KEPT,
        requests="all",
    ),
    ActorKind(
        name="scheduler",
        module="actorserve.actors.scheduler.actor",
        actor="actorserve.actors.scheduler.actor:SchedulerActor",
        of_stewards=True,
        by_engine=True,
        receives=messages.ToScheduler,
        sends=(
            Sends("worker", steps=True),
            Sends("detokenizer"),
            Sends("steward"),
            Sends("frontend"),
            Sends("scheduler", small=True),
            Sends("porter"),
        ),
        restart_order=3,
        changeable=frozenset(
            "max_num_batched_tokens scheduling_policy max_num_queued_tokens long_prefill_token_threshold".split()
        ),
        gauges=SchedulerGauge,
        kept=SCHEDULER_KEPT,
        metrics=SCHEDULER_METRICS,
        histograms=scheduler_histograms,
        requests="all",
    ),
    ActorKind(
        name="porter",
        module="actorserve.actors.porter.actor",
        actor="actorserve.actors.porter.actor:PorterActor",
        only_if="offloads",
        of_stewards=True,
        receives=tiers.ToPorter,
        sends=(Sends("scheduler"),),
        restart_order=0,
        restart_help="prompts are computed meanwhile that would have been found",
        gauges=PorterGauge,
        kept=PORTER_KEPT,
        metrics=PORTER_METRICS,
        needed=False,
        rests=True,
    ),
    ActorKind(
        name="keeper",
        module="actorserve.actors.keeper.actor",
        only_if="keep_kv",
        of_stewards=True,
        restart_order=0,
        restart_help="KV memory of a GPU worker that dies behind it is not found again",
        needed=False,
        rests=True,
    ),
    ActorKind(
        name="herald",
        module="actorserve.actors.herald.actor",
        actor="actorserve.actors.herald.actor:HeraldActor",
        late_imports="actorserve.actors.herald.actor:import_late",
        only_if="tells_kv",
        of_stewards=True,
        restart_order=0,
        restart_help="who listens to KV events is told all of them anew",
        gauges=HeraldGauge,
        kept=HERALD_KEPT,
        metrics=HERALD_METRICS,
        needed=False,
        rests=True,
    ),
    ActorKind(
        name="tools",
        module="actorserve.actors.tools.actor",
        late_imports="actorserve.actors.tools.actor:import_late",
        only_if="has_tools",
        receives=tools.ToTools,
        sends=(Sends("frontend"),),
        restart_order=0,
        restart_help="calls of tools that are being made are told to be interrupted, and are not made again",
        changeable=frozenset("tool_server tool_timeout allowed_tool_domains allow_private_tools".split()),
        gauges=ToolsGauge,
        kept=TOOLS_KEPT,
        metrics=TOOLS_METRICS,
        needed=False,
        rests=True,
    ),
    ActorKind(
        name="steward",
        module="actorserve.actors.steward.actor",
        only_if="steward",
        of_stewards=True,
        receives=messages.ToSteward,
        sends=(Sends("scheduler"),),
        restart_order=2,
        restart_help="servers elsewhere connect anew, and running requests are computed again from their logs",
        requests="all",
    ),
    ActorKind(
        name="caretaker",
        module="actorserve.actors.caretaker.actor",
        only_if="uses_ray",
        receives=messages.ToCaretaker,
        prefork=False,  # ray begins threads
        start_s=120.0,
        restart_order=0,
        restart_help="engines that Ray keeps go on",
        needed=False,
        rests=True,
    ),
    ActorKind(
        name="detokenizer",
        module="actorserve.actors.detokenizer.actor",
        actor="actorserve.actors.detokenizer.actor:DetokenizerActor",
        count="detokenizers",
        by_model=True,
        receives=messages.ToDetokenizer,
        sends=(Sends("scheduler"), Sends("frontend")),
        restart_order=0,
        requests="own",
    ),
    ActorKind(
        name="renderer",
        module="actorserve.actors.renderer.actor",
        actor="actorserve.actors.renderer.actor:RendererActor",
        count="renderers",
        by_model=True,
        receives=messages.ToRenderer,
        sends=(Sends("scheduler"), Sends("frontend", bodies=True)),
        restart_order=1,
        changeable=frozenset({"chat_template", "chat_template_content_format", "escape_special_tokens"}),
        requests="all",
    ),
    ActorKind(
        name="media",
        module="actorserve.actors.media.actor",
        actor="actorserve.actors.media.actor:MediaActor",
        late_imports="actorserve.actors.media.actor:import_late",
        count="media_actors",
        only_with="media",
        by_model=True,
        receives=messages.ToMedia,
        sends=(Sends("renderer", bodies=True), Sends("frontend")),
        early_imports="actorserve.actors.media.actor:import_early",
        restart_order=1,
        changeable=frozenset(
            "allowed_media_domains allowed_local_media_path allow_private_media media_io_kwargs max_media_pixels "
            "max_media_redirects media_fetch_timeout".split()
        ),
        gauges=MediaGauge,
        kept=MEDIA_KEPT,
        metrics=MEDIA_METRICS,
        rests=True,
        requests="own",
    ),
    ActorKind(
        name="frontend",
        module="actorserve.actors.frontend.actor",
        count="frontends",
        receives=messages.ToFrontend,
        sends=(
            Sends("media"),
            Sends("renderer", bodies=True, sounds=True),
            Sends("scheduler"),
            Sends("detokenizer"),
            Sends("tools"),
        ),
        has_clients=True,
        restart_order=2,  # it begins by asking renderers
        restart_help="with TLS, gRPC calls or more than 1,024 connections: it first ends its requests, for "
        "--shutdown-timeout at most, and its clients must connect anew",
        changeable=frozenset(
            "api_key api_key_file admin_api_key allowed_origins allowed_methods allowed_headers "
            "enable_request_id_headers served_model_name any_model_name ssl_certfile ssl_keyfile ssl_ca_certs "
            "idempotency_window idempotent_request_ids chat_template trust_request_chat_template tool_call_parser "
            "reasoning_parser tool_parser_plugin reasoning_parser_plugin "
            "enable_auto_tool_choice exclude_tools_when_tool_choice_none prefix_cache_per_client response_role "
            "enable_force_include_usage enable_per_request_metrics return_tokens_as_token_ids reasoning_config "
            "structured_outputs_config "
            "stream_response_default_include_usage trust_request_mm_kwargs fingerprint_mode fingerprint_value "
            "default_chat_template_kwargs sse_keep_alive_interval realtime_idle_timeout allow_credentials root_path "
            "middleware max_header_count enable_page enable_docs enable_metrics enable_slots".split()
        ),
        gauges=FrontendGauge,
        kept=FRONTEND_KEPT,
        metrics=FRONTEND_METRICS,
        histograms=frontend_histograms,
        requests="own",
    ),
    ActorKind(
        name="batcher",
        module="actorserve.actors.batcher.actor",
        late_imports="actorserve.actors.batcher.actor:import_late",
        only_if="has_batches",
        is_client=True,
        restart_order=0,
        restart_help="lines of batches that are being answered are asked again",
        changeable=frozenset({"max_batch_lines", "batch_retention_days"}),
        gauges=BatcherGauge,
        kept=BATCHER_KEPT,
        metrics=BATCHER_METRICS,
        needed=False,
        rests=True,
    ),
)
KINDS = {kind.name: kind for kind in _ALL_KINDS}
_OTHERS = {  # that are shown beside the actors
    SUPERVISOR: ActorKind(name=SUPERVISOR, module="actorserve.actors.supervisor.supervisor"),
    TEMPLATE: ActorKind(name=TEMPLATE, module="actorserve.actors.supervisor.processes.prefork", needed=False),
    RELAY: ActorKind(name=RELAY, module="actorserve.actors.supervisor.connections.unix_relay", needed=False),
    HTTP2: ActorKind(
        name=HTTP2,
        module="actorserve.actors.supervisor.connections.http2.relay",
        needed=False,
        gauges=Http2Gauge,
        kept=HTTP2_KEPT,
        metrics=HTTP2_METRICS,
    ),
}


def kind_of(name: str) -> ActorKind:
    """The record of an actor's kind, of the supervisor, a template or a relay; KeyError if there is none."""
    return _OTHERS[name] if name in _OTHERS else KINDS[name]


def find(name: str) -> Any:
    """What "module:name" stands for; its module is imported for that."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def restart_order() -> list[ActorKind]:
    """All kinds in the order in which a restart of all replaces them."""
    return sorted(KINDS.values(), key=lambda kind: kind.restart_order)
