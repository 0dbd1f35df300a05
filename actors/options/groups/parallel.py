"""Workers, stages, engines and machines."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..choices import ExecutorBackend, NonNegative
from .batching import BatchOptions


class ParallelOptions(BatchOptions, frozen=True, kw_only=True):
    """Over which workers, machines and engines the model is divided."""

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
    distributed_executor_backend: Annotated[
        ExecutorBackend | None,
        Meta(
            description="what keeps the workers' processes: mp, this server; uni, the same with one worker; ray, where "
            "--engines says; external_launcher: torchrun has started a process for each, whose environment says which "
            "machine this is"
        ),
    ] = None
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
        Meta(ge=0, le=64, description="engines: each a scheduler and workers with a model and KV memory of their own"),
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
    remote_engines: Annotated[
        list[str],
        Meta(
            description="engines on other machines, each host:port of an `actorserve engine` there, with commas or "
            "spaces between them, or ray://ADDRESS?engines=N&cpus=C&gpus=G; numbered behind those of "
            "--data-parallel-size, which may be 0 then"
        ),
    ] = []
    steward: Annotated[
        str | None,
        Meta(
            description="serve nobody: compute for the servers that name this address in --engines; host:port, port 0 "
            "picks a free one; what `actorserve engine` is"
        ),
    ] = None
    engine_secret_file: Annotated[
        str | None,
        Meta(
            description="a file with the secret, 16 characters or more, that a server and its engines on other "
            "machines, or servers that give each other KV blocks, show each other; or ACTORSERVE_ENGINE_SECRET holds it"
        ),
    ] = None
    engine_certfile: Annotated[
        str | None,
        Meta(description="a PEM file with the certificate and key that this side shows the other: TLS between them"),
    ] = None
    engine_ca_certs: Annotated[
        str | None, Meta(description="a PEM file with the authority of both sides' certificates, used for nothing else")
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
    enable_eplb: Annotated[
        bool, Meta(description="experts change their workers, so that each has as much to do; on a CPU")
    ] = False
    eplb_config: Annotated[
        str | None,
        Meta(
            description='when: JSON such as {"step_interval": 3000, "window_size": 1000}, by what the last steps of an '
            "interval have chosen"
        ),
    ] = None
