"""KV memory."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..choices import KVCacheDType, Positive
from .weights import ModelOptions


class KVOptions(ModelOptions, frozen=True, kw_only=True):
    """How much KV memory there is, and who finds it again."""

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
            "quantised, and fp8, nvfp4 and TurboQuant take a half to a fifth of float16's bytes; on a GPU auto or fp8 "
            "(Ada, Hopper or newer)"
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
            "servers: host:SIZE, folder:PATH:SIZE, plugin:MODULE:NAME; tcp:HOST:PORT gives them to other servers, "
            "peer:HOST:PORT asks one, nixl carries them; with commas between them; on a CPU"
        ),
    ] = None
    keep_kv: Annotated[
        bool,
        Meta(
            description="on a GPU, keep KV memory in a process of its own, so that a worker that takes the place of a "
            "dead one finds it (on a CPU that is always so); not run on a GPU yet"
        ),
    ] = False
    kv_events_config: Annotated[
        str | None,
        Meta(
            description="whether and where routers are told which KV blocks are cached: JSON such as "
            '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'
        ),
    ] = None
