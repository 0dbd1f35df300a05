"""Names of `vllm serve` that few type. Behind a needless one, = is a value that it has, and =+ several of them."""

from __future__ import annotations

from . import reasons as why

NEEDLESS = {
    why.ONE_WAY: "--all2all-backend= --attention-config= --cp-kv-cache-interleave-size= --dbo-decode-token-threshold= "
    "--dbo-prefill-token-threshold= --dcp-comm-backend= --dcp-kv-cache-interleave-size= --dcp-q-replicate "
    "--disable-cascade-attn --disable-nccl-for-dp-synchronization --dp-sync-interval= --enable-batch-sharded-sampling "
    "--enable-cumem-allocator --enable-dbo --enable-ep-weight-filter --enable-flash-late-interaction "
    "--enable-flashinfer-autotune --enable-hc-sp --enable-mamba-cache-stochastic-rounding "
    "--enable-mamba-shared-prefix-checkpoint --enable-nccl-comm-suspend --enable-shm-tensor-arena --engram-config= "
    "--expert-placement-strategy= --gdn-prefill-backend= --ir-op-priority= --kda-decode-backend= "
    "--kda-prefill-backend= --kernel-config= --kv-sharing-fast-prefill --linear-backend= --mamba-backend= "
    "--mamba-block-size= --mamba-cache-mode= --mamba-cache-philox-rounds= --mamba-ssm-cache-dtype= "
    "--mamba-ssu-algorithm= --mm-device-do-normalize --mm-encoder-attn-backend= --mm-hasher-algorithm= "
    "--mm-processor-device= --mm-tensor-ipc= --moe-backend= --monokernel --numa-bind --numa-bind-cpus=+ "
    "--numa-bind-nodes=+ --prefix-cache-retention-interval= --prefix-match-unit= --replayssm-buffer-len= "
    "--scheduler-reserve-full-isl --sparse-indexer-topk-backend= --specialize-active-lora --swa-bounded-replay "
    "--use-fp64-gumbel --use-replayssm --watermark= --disable-chunked-mm-input --ray-workers-use-nsight "
    "--enable-mixed-moe-lora-format --fail-on-environ-validation --allow-deprecated-quantization",
    why.AHEAD: "--prefill-schedule-interval= --long-prefill-token-threshold-adaptive",
    why.GRAPHS: "--jit-monitor-mode= --jit-monitor-verbose",
    why.IN_MEMORY: "--safetensors-load-strategy= --safetensors-prefetch-block-size= "
    "--safetensors-prefetch-num-threads= --pt-load-map-location=",
    why.REPLACED: "--cpu-distributed-timeout-seconds= --distributed-timeout-seconds= --enable-fault-tolerance "
    "--fault-tolerance-config= --watchdog-config=",
    why.METRICS: "--cudagraph-metrics --enable-mfu-metrics --kv-cache-metrics --kv-cache-metrics-sample= "
    "--show-hidden-metrics-for-version=",
    why.ONE_LOG: "--aggregate-engine-logging --enable-layerwise-nvtx-tracing --enable-logging-iteration-details "
    "--log-error-stack",
    why.SLEEP: "--sleep-mode-backend= --sleep-mode-offload-cudagraph --sleep-preserve-parameter-names=+",
    why.THINKING: "--cohere-is-reasoning-model",
    "--otlp-traces-endpoint tells all stages of a request": "--collect-detailed-traces=+",
    "--encoder-cache-gb and --media-memory-bytes set the memory of pictures": "--mm-ipc-gpu-memory-gb= "
    "--mm-shm-cache-max-object-size-mb=",
    "the pages that describe the API need nothing of other sites": "--enable-offline-docs",
}
REFUSED = {
    why.PARALLEL: "--data-parallel-external-lb --data-parallel-hybrid-lb --data-parallel-multi-port-external-lb "
    "--data-parallel-start-rank --data-parallel-supervisor-port --dp-supervisor-probe-failure-threshold "
    "--dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s --elastic-ep-max-dp-size --enable-elastic-ep "
    "--prefill-context-parallel-size",
    why.LORA: "--enable-moe-shared-loras --enable-tower-connector-lora --max-lora-cls-labels",
    why.BY_REQUEST: "--reasoning-effort-map --tool-strict-level --anthropic-disabled-thinking-effort",
    "clients ask for it by return_metrics with each request": "--per-request-spec-decode-metrics",
    why.CONFIG_JSON: "--disable-sliding-window --model-class-overrides --quantization-config",
    why.NOT_TOLD: "--aux-output-config --enable-return-routed-experts --return-sampling-mask",
    why.LABELS: "--custom-histogram-buckets",
    why.ONE_DEVICE: "--cpu-offload-params --offload-group-size --offload-num-in-group --offload-params "
    "--offload-prefetch-step",
    why.GPUS: "--device-ids",
    why.OWN_LOG: "--enable-log-deltas --logging-config",
    why.PROXY: "--tokens-only",
    why.WHOLE_MODEL: "--ec-manager-config --ec-transfer-config --mm-encoder-only",
    why.WEIGHTS: "--mm-encoder-attn-dtype --mm-encoder-fp8-scale-path --mm-encoder-fp8-scale-save-margin "
    "--mm-encoder-fp8-scale-save-path",
    why.PICTURES: "--video-pruning-method --video-pruning-rate",
    "--kv-cache-dtype holds for all layers": "--kv-cache-dtype-skip-layers",
    "--max-num-seqs says how many sequences run, and --max-num-batched-tokens of how many tokens a step is": ""
    "--max-num-active-seqs --max-num-scheduled-tokens",
    "an adapter changes all the parts of a model that it has weights for": "--lora-target-modules",
    "the prompt is made by the chat template of the model, or that of --chat-template": "--cohere-format",
    "clients ask for a watermark by watermarking_config with each request": "--watermark-config",
    "models write from the first token to the last, each after those before it": "--diffusion-config -dc",
    "tokens are drawn from what the model says, never given": "--enable-trace-replay",
    "/update_weights_from_disk takes other weights, with --admin-api-key": "--weight-transfer-config",
}
HARMLESS = {
    "--prefill-context-parallel-size": ("1",),
    "--data-parallel-start-rank": ("0",),
    "--anthropic-disabled-thinking-effort": ("auto",),
    "--tool-strict-level": ("auto",),
    "--per-request-spec-decode-metrics": ("none",),
    "--offload-group-size": ("0",),
    "--video-pruning-rate": ("0", "0.0"),
    "--lora-target-modules": ("all", "all-linear"),
    "--enable-log-deltas": ("true", "false"),
}
