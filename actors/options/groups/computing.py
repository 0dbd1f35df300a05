"""The worker: device, kernels, drafts, adapters, code of others."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..choices import CpuKernels, Device, Positive, PositiveFloat, WorkerKind
from .parallel import ParallelOptions


class WorkerOptions(ParallelOptions, frozen=True, kw_only=True):
    """What computes, and with what beside the model."""

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
            "suffix, draft_model, eagle, eagle3, mtp, medusa, dflash; auto: n-grams for one running request, where "
            "they pay and cannot change a bit (int8, --deterministic, kernels in C); none or off: never"
        ),
    ] = None
    enable_lora: Annotated[bool, Meta(description="requests may name LoRA adapters in place of the model")] = False
    max_loras: Annotated[
        Annotated[int, Meta(ge=1, le=512)] | None,
        Meta(description="different adapters that run at once; 8 if left out, or --max-cpu-loras where that is less"),
    ] = None
    max_cpu_loras: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="adapters that stay in memory, on a GPU in slots there; twice --max-loras if left out"),
    ] = None
    max_lora_rank: Annotated[
        int, Meta(ge=1, le=4096, description="the largest rank of an adapter; on a GPU each slot has room for it")
    ] = 64
    lora_modules: Annotated[
        list[str], Meta(description="adapters that are there from the start, each as name=path")
    ] = []
    default_mm_loras: Annotated[
        str | None,
        Meta(
            description="the adapter of chats with pictures, films or sounds that ask for the model itself: JSON "
            'such as {"image": FOLDER}; image is its name, too'
        ),
    ] = None
    lora_folder: Annotated[
        str | None, Meta(description="a folder of adapters, each loaded by its name when a request first names it")
    ] = None
    threads: Annotated[
        Positive | None,
        Meta(
            description="the worker's compute threads on a CPU; auto, or left out, is as many as a short trial finds "
            "useful for a large model, and all cores but one for a small one; on a GPU those that put weights in order"
        ),
    ] = None
    logits_processors: Annotated[
        list[str],
        Meta(
            description="classes that change logits before tokens are drawn, with vLLM's interface: module:Class, "
            "FILE.py:Class or an entry point of actorserve.logits_processors; on a CPU"
        ),
    ] = []
    logits_processor_pattern: Annotated[
        str | None,
        Meta(description="a regular expression: requests may name such code by qualified names that match all of it"),
    ] = None
    logits_processor_timeout: Annotated[
        PositiveFloat, Meta(description="seconds that one may take for a token; its request ends with an error then")
    ] = 1.0
    worker_cls: Annotated[
        str | None,
        Meta(
            description="a class derived from actorserve.Worker, which does parts of the workers' work otherwise: "
            "module:Class, FILE.py:Class or an entry point of actorserve.workers; on a CPU"
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
