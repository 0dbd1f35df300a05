"""Names of `sglang.launch_server` that few type. Behind a needless one, = is a value that it has, and =+ several."""

from __future__ import annotations

from . import reasons as why

NEEDLESS = {
    why.ONE_WAY: "--deepep-config= --deepep-mode= --decode-attention-backend= --disable-chunked-prefix-cache "
    "--disable-fast-image-processor --disable-flashinfer-autotune --disable-flashinfer-cutlass-moe-fp4-allgather "
    "--disable-hybrid-swa-memory --disable-outlines-disk-cache --disable-shared-experts-fusion "
    "--disable-tokenizer-batch-decode --dynamic-batch-tokenizer-batch-size= --dynamic-batch-tokenizer-batch-timeout= "
    "--elastic-ep-backend= --enable-aiter-allreduce-fusion --enable-attn-tp-input-scattered "
    "--enable-broadcast-mm-inputs-process --enable-dp-lm-head --enable-dynamic-batch-tokenizer "
    "--enable-elastic-expert-backup --enable-flashinfer-allreduce-fusion --enable-fused-moe-sum-all-reduce "
    "--enable-fused-qk-norm-rope --enable-lora-overlap-loading --enable-mm-global-cache --enable-mscclpp "
    "--enable-nan-detection --enable-nccl-nvls --enable-pdmux --enable-precise-embedding-interpolation "
    "--enable-prefix-mm-cache --enable-single-batch-overlap --enable-symm-mem --enable-tokenizer-batch-encode "
    "--enable-torch-symm-mem --enable-two-batch-overlap --enforce-disable-flashinfer-allreduce-fusion "
    "--ep-dispatch-algorithm= --flashinfer-mla-disable-ragged --flashinfer-mxfp4-moe-precision= --fp4-gemm-backend= "
    "--fp8-gemm-backend= --gc-threshold=+ --gc-warning-threshold-secs= --hybrid-kvcache-ratio= "
    "--keep-mm-feature-on-device --linear-attn-backend= --linear-attn-decode-backend= --linear-attn-prefill-backend= "
    "--lora-eviction-policy= --mamba-full-memory-ratio= --mamba-scheduler-strategy= --mamba-ssm-dtype= "
    "--mamba-track-interval= --max-lora-chunk-size= --max-mamba-cache-size= --mm-attention-backend= "
    "--mm-enable-dp-encoder --moe-a2a-backend= --moe-runner-backend= --mooncake-ib-device= --nccl-port= "
    "--nsa-decode-backend= --nsa-prefill-backend= --nsa-prefill-cp-mode= --numa-node=+ --pdmux-config-path= "
    "--pp-async-batch-depth= --pp-max-micro-batch-size= --pre-warm-nccl --prefill-attention-backend= "
    "--prefill-cp-mode= --quantization-param-path= --radix-eviction-policy= --sm-group-num= "
    "--speculative-attention-mode= --speculative-draft-attention-backend= --speculative-moe-a2a-backend= "
    "--speculative-moe-runner-backend= --speculative-ngram-capacity= --speculative-ngram-match-type= "
    "--speculative-ngram-max-bfs-breadth= --speculative-ngram-max-trie-depth= --speculative-ngram-min-bfs-breadth= "
    "--swa-full-tokens-ratio= --tbo-token-distribution-threshold= --triton-attention-num-kv-splits= "
    "--triton-attention-reduce-in-fp32 --triton-attention-split-tile-size= --bf16-gemm-backend= "
    "--boundary-reduction= --deepep-dispatcher-output-dtype= --deepep-v2-mode= "
    "--disable-aiter-allreduce-fusion-in-decode --disable-aiter-allreduce-fusion-in-prefill --dsa-decode-backend= "
    "--dsa-paged-mqa-logits-backend= --dsa-prefill-backend= --dsa-topk-backend= --dsa-triton-union= "
    "--dsv4-attn-backend= --dsv4-prefill-backend= --enable-amd-monokernel --monokernel-backend= "
    "--enable-decoder-swa-bounded-replay --enable-dsa-fused-indexer --enable-encoder-swa-bounded-replay "
    "--enable-lean-attention --enable-linear-replayssm --enable-linear-replayssm-spec --enable-nvidia-megakernel "
    "--enable-quant-communications --enable-tf32-matmul --enable-waterfill --enforce-shared-experts-fusion "
    "--flashinfer-a2a-dispatch-type= --flashinfer-allreduce-fusion-backend= --flashinfer-autotune-skip-ops=+ "
    "--fp4-gemm-runner-backend= --fp8-gemm-runner-backend= --fuseep-mode= --image-processor-backend= "
    "--linear-attn-verify-backend= --linear-replayssm-cache-len= --mamba-max-states-per-path= "
    "--mamba-radix-cache-strategy= --mm-feature-transport= --mm-global-cache-backend= --mm-io-worker-num= "
    "--mm-processor-worker-num= --disable-attn-tp-gather --enable-cp-decode-attn-tp --enable-dense-mlp-attn-tp "
    "--enable-dp-attention-local-control-broadcast --enable-layernorm-sp --enable-megamoe-for-layernorm-sp "
    "--enable-shared-experts-attn-tp --enable-tp-lm-head-all-to-all --batch-notify-size= "
    "--enable-http-worker-reuseport --tokenizer-backend= --lora-use-virtual-experts --enable-page-major-kv-layout "
    "--radix-cache-backend= --swa-prefix-tails= --speculative-dsa-topk-backend= "
    "--speculative-ngram-external-sam-budget= --mlx-enable-sampling --model-config-parser= "
    "--startup-weight-load-mode=",
    why.AHEAD: "--num-continuous-decode-steps= --num-reserved-decode-tokens= --scheduler-recv-interval=",
    why.IN_PARTS: "--enable-dynamic-chunking --enable-prefill-delayer --prefill-delayer-max-delay-passes= "
    "--prefill-delayer-token-usage-low-watermark= --prefill-max-requests= --min-free-slots-delay= "
    "--prefill-decode-interval= --prefill-decode-interval-min-bs= --prefill-delayer-max-delay-ms= "
    "--prefill-delayer-queue-min-ratio=",
    why.GRAPHS: "--disable-cuda-graph-padding --disable-piecewise-cuda-graph --enable-cudagraph-gc "
    "--enable-piecewise-cuda-graph --enable-profile-cuda-graph --enable-torch-compile-debug-mode "
    "--enforce-piecewise-cuda-graph --piecewise-cuda-graph-compiler= --piecewise-cuda-graph-max-tokens= "
    "--piecewise-cuda-graph-tokens=+ --torch-compile-max-bs= --cuda-graph-backend-decode= "
    "--cuda-graph-backend-prefill= --cuda-graph-bs-prefill=+ --cuda-graph-config= --cuda-graph-max-bs-decode= "
    "--cuda-graph-max-bs-prefill= --cuda-graph-max-seq-len-prefill= --cuda-graph-prefill-max-context= "
    "--debug-cuda-graph --disable-prefill-cuda-graph",
    why.IN_MEMORY: "--weight-loader-disable-mmap --weight-loader-drop-cache-after-load "
    "--weight-loader-prefetch-checkpoints --weight-loader-prefetch-num-threads=",
    why.REPLACED: "--soft-watchdog-timeout=",
    why.METRICS: "--collect-tokens-histogram --enable-expert-distribution-metrics --enable-metrics-for-all-schedulers",
    why.ONE_LOG: "--enable-layerwise-nvtx-marker --enable-request-time-stats-logging --show-time-cost",
    why.NO_ACCESS_LOG: "--uvicorn-access-log-exclude-prefixes=+",
    why.SLEEP: "--enable-draft-weights-cpu-backup --enable-memory-saver --enable-weights-cpu-backup",
    "--otlp-traces-endpoint alone turns traces on": "--enable-trace",
    "a request goes to the engine that has the beginning of its prompt, or least to do": "--load-balance-method= "
    "--prefill-round-robin-balance",
}
REFUSED = {
    why.PARALLEL: "--attention-context-parallel-size --attn-cp-size --enable-nsa-prefill-context-parallel "
    "--enable-prefill-context-parallel --moe-data-parallel-size --moe-dense-tp-size --moe-dp-size --nccl-init-addr "
    "--attention-data-parallel-size --attn-dp-size --cp-strategy --dcp-replicate-q-proj --dcp-size --dwdp-size "
    "--enable-kv-cache-sharding --enable-prefill-cp --shared-experts-tp-size --gated-launch-port",
    why.LORA: "--experts-shared-outer-loras --lora-drain-wait-threshold --uno-lora-path",
    why.SPECULATION: "--decrypted-draft-config-file --enable-multi-layer-eagle --speculative-draft-load-format "
    "--speculative-draft-model-quantization --speculative-draft-model-revision --speculative-token-map "
    "--speculative-adaptive --speculative-adaptive-config --speculative-dflash-block-size "
    "--speculative-domino-candidate-pool-size --speculative-draft-kv-cache-dtype --speculative-draft-sink-size "
    "--speculative-draft-window-size --speculative-dspark-block-size --speculative-dspark-confidence-sts-path "
    "--speculative-dspark-sps-table-path --speculative-ngram-external-corpus-max-tokens "
    "--speculative-ngram-external-corpus-path",
    "a draft is taken where the model itself would have said it": "--speculative-accept-threshold-acc "
    "--speculative-accept-threshold-single",
    why.BY_REQUEST: "--default-priority-value",
    "clients ask for it by truncate_prompt_tokens with each request": "--allow-auto-truncate",
    "clients ask for it by whitespace_pattern of structured_outputs": "--constrained-json-whitespace-pattern",
    "--scheduling-policy priority runs lower numbers first": "--abort-on-priority-when-disabled "
    "--disable-priority-preemption --enable-priority-scheduling --priority-scheduling-preemption-threshold "
    "--schedule-low-priority-values-first",
    "--eplb-config says when experts change their workers": "--eplb-algorithm "
    "--eplb-min-rebalancing-utilization-threshold --eplb-rebalance-layers-per-chunk "
    "--expert-distribution-recorder-buffer-size --expert-distribution-recorder-mode --init-expert-location",
    why.KV_ELSEWHERE: "--disaggregation-decode-enable-offload-kvcache --hicache-io-backend --hicache-mem-layout "
    "--hicache-storage-backend --hicache-storage-backend-extra-config --hicache-storage-prefetch-policy "
    "--hicache-write-policy --disaggregation-decode-retraction-backup --enable-flexkv "
    "--enable-unified-cache-external-linker --enable-unified-memory --flexkv-config-file "
    "--hicache-host-memory-fraction --hicache-host-memory-mode --hicache-storage-prefetch-retry-max-attempts "
    "--hicache-storage-prefetch-retry-poll-interval --lmcache-config-file --unified-cache-external-linker-backend "
    "--unified-cache-external-linker-config",
    why.KV_CARRIED: "--disaggregation-bootstrap-port --disaggregation-decode-polling-interval "
    "--disaggregation-ib-device --disaggregation-transfer-backend --engine-info-bootstrap-port "
    "--disaggregation-decode-allocation-policy --disaggregation-decode-enable-radix-cache "
    "--disaggregation-decode-extra-slots --disaggregation-decode-host-receive-threshold "
    "--disaggregation-enable-kv-checksum --enable-pd-role-switch --optimistic-prefill-attempts",
    why.CONFIG_JSON: "--decrypted-config-file",
    why.NOT_TOLD: "--enable-return-routed-experts --weight-version "
    "--enable-return-aux-hidden-states --enable-return-indexer-topk --return-aux-hidden-state-layer-ids "
    "--return-hidden-states-mode",
    why.LABELS: "--bucket-e2e-request-latency --bucket-inter-token-latency --bucket-time-to-first-token "
    "--extra-metric-labels --generation-tokens-buckets --prefill-delayer-forward-passes-buckets "
    "--prefill-delayer-wait-seconds-buckets --prompt-tokens-buckets --tokenizer-metrics-allowed-custom-labels "
    "--tokenizer-metrics-custom-labels-header",
    why.OWN_LOG: "--crash-dump-folder --debug-tensor-dump-inject --debug-tensor-dump-input-file "
    "--debug-tensor-dump-layers --debug-tensor-dump-output-folder --export-metrics-to-file "
    "--export-metrics-to-file-dir --log-requests-target --kv-canary --kv-canary-sweep-interval --msprobe-dump-config "
    "--spec-trace-dir --trace-modules",
    why.ONE_DEVICE: "--kt-cpuinfer --kt-max-deferred-experts-per-token --kt-method --kt-num-gpu-experts "
    "--kt-threadpool-count --kt-weight-path --offload-mode --enable-paged-experts --paged-experts-num-resident "
    "--ple-offload-backend --ple-offload-dir --ple-offload-embedding",
    why.WHOLE_MODEL: "--enable-adaptive-dispatch-to-encoder --encoder-only --encoder-transfer-backend --encoder-urls "
    "--language-only --encoder-bootstrap-port --encoder-register-urls",
    why.PICTURES: "--mm-process-config",
    why.READ_FILES: "--checkpoint-engine-wait-weights-before-ready --custom-weight-loader "
    "--delete-ckpt-after-loading --modelexpress-config --remote-instance-weight-loader-backend "
    "--remote-instance-weight-loader-seed-instance-ip --remote-instance-weight-loader-seed-instance-service-port "
    "--remote-instance-weight-loader-send-weights-group-ports "
    "--remote-instance-weight-loader-start-seed-via-transfer-engine --weight-cache-mode --weight-cache-socket "
    "--weight-cache-timeout",
    why.WEIGHTS: "--enable-fp32-lm-head --modelopt-checkpoint-restore-path --modelopt-checkpoint-save-path "
    "--modelopt-export-path --modelopt-quant --quantize-and-serve --rl-quant-profile --torchao-config "
    "--enable-w4a4-mxfp4-megamoe --speculative-enable-w4a4-mxfp4-megamoe",
    why.FULL_ATTENTION: "--ds-channel-config-path --ds-heavy-channel-num --ds-heavy-channel-type "
    "--ds-heavy-token-num --ds-sparse-decode-threshold --enable-double-sparsity --enable-hisparse --hisparse-config",
    "`actorserve check MODEL` looks at what is in the files": "--model-checksum",
    "no code of this kind is loaded": "--custom-sigquit-handler --forward-hooks",
    "no code is taken from requests; --logits-processors are the operator's": "--enable-custom-logit-processor",
    "the prompt is made by the chat template of the model, or that of --chat-template": "--completion-template "
    "--hf-chat-template-name",
    "--engines ray://ADDRESS?engines=N says which cluster keeps how many engines": "--use-ray",
    "--grpc-port is a port for gRPC, beside the other": "--grpc-mode --smg-grpc-mode --smg-http-sidecar-port "
    "--grpc-response-timeout-secs",
    "--http2-port is a port for HTTP/2, beside the other": "--enable-http2 "
    "--http2-initial-connection-window-size --http2-max-concurrent-streams",
    "--ssl-keyfile names a key that no password hides": "--ssl-keyfile-password",
    "--deterministic says the same of a prompt whatever runs beside it": "--rl-on-policy-target",
    "models write from the first token to the last, each after those before it": "--dllm-algorithm "
    "--dllm-algorithm-config",
    "an event of /generate has all that has come so far, one of /v1/chat/completions what is new": "--stream-output "
    "--incremental-streaming-output",
    "a conversation is sent whole each time; what begins alike is computed once": "--enable-streaming-session",
    "each item of /v1/score is computed by itself": "--multi-item-scoring-delimiter",
    "--files-dir is the folder for files and batches": "--file-storage-path",
}
HARMLESS = {
    **dict.fromkeys(("--attention-context-parallel-size", "--attn-cp-size"), ("1",)),
    **dict.fromkeys(("--moe-data-parallel-size", "--moe-dense-tp-size", "--moe-dp-size"), ("1",)),
    **dict.fromkeys(("--speculative-accept-threshold-acc", "--speculative-accept-threshold-single"), ("1", "1.0")),
    "--log-requests-target": ("stdout",),
    "--weight-version": ("default",),
}
