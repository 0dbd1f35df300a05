"""Names of vLLM, SGLang and llama-server that many type. Behind a needless one, = is a value that it has."""

from __future__ import annotations

from ..compilation import COMPILES
from . import reasons as why

NEEDLESS = {  # reason: names
    why.ORDER: "--schedule-conservativeness=",
    why.SLEEP: "--enable-sleep-mode",
    why.IN_PARTS: "--enable-chunked-prefill --enable-mixed-chunk",
    why.AHEAD: "--async-scheduling --enable-overlap-schedule -ove --disable-overlap-schedule",
    why.GRAPHS: "--enable-torch-compile "
    "--max-seq-len-to-capture= --max-cudagraph-capture-size= --cuda-graph-max-bs= --performance-mode=",
    COMPILES: "-O= --optimization-level= --compilation-config= -cc=",
    "a batch always takes new sequences as it runs": "-cb --cont-batching",
    "chat templates are always Jinja": "--jinja",
    why.IN_MEMORY: "--mlock --mmap --use-tqdm-on-load --numa= --warmups=",
    why.ALL_ON_DEVICE: "-ngl= --gpu-layers= --n-gpu-layers= --no-kv-offload -nkvo",
    "of the hub only files are taken that are read": "--ignore-patterns=",
    "what begins alike is computed once, by --enable-prefix-caching": "--cache-reuse=",
    "--encoder-cache-gb and --media-memory-bytes set the memory of pictures": "--skip-mm-profiling",
    why.REPLACED: "--dist-timeout=",
    "attention never writes the whole matrix": "-fa --flash-attn",
    "/props is always there": "--props",
    "certificates are read again when they change": "--enable-ssl-refresh",
    "usage always tells cached tokens": "--enable-prompt-tokens-details --enable-cache-report",
    "/load and /tokenizer_info are always there": "--enable-server-load-tracking --enable-tokenizer-info-endpoint",
    "what renders, derenders and generates by tokens is always there": "--enable-scale-out",
    why.THINKING: "--enable-reasoning --reasoning-format=",
    why.NO_ACCESS_LOG: "--disable-uvicorn-access-log --disable-access-log-for-endpoints=",
    why.ONE_LOG: "--uvicorn-log-level= "
    "--log-level-http= --decode-log-interval= --log-requests-level= -lv= --verbosity= --log-verbosity=",
    "a model that takes pictures takes them": "--enable-multimodal",
    why.ONE_WAY: "--attention-backend= --sampling-backend= --grammar-backend= --guided-decoding-backend= "
    "--prefix-caching-hash-algo= --use-v2-block-manager --disable-custom-all-reduce "
    "--num-lookahead-slots= --preemption-mode= -ub= --ubatch-size= --disable-frontend-multiprocessing "
    "--stream-interval= --mamba-cache-dtype= -tb= --threads-batch= --threads-http= --sleep-on-idle --repack --perf "
    "--lora-backend= -kvu --kv-unified --log-colors= --log-timestamps --log-prefix --uvicorn-access-log "
    "--disable-hybrid-kv-cache-manager --mm-encoder-tp-mode= --model-loader-extra-config= --calculate-kv-scales "
    "--max-parallel-loading-workers= --enable-p2p-check",
}
REFUSED = {  # reason: names
    why.LORA: "--lora --lora-scaled --lora-dtype --lora-extra-vocab-size --fully-sharded-loras --enable-lora-bias",
    why.PARALLEL: "-dpl "
    "--data-parallel-size-local --data-parallel-address --data-parallel-rpc-port --data-parallel-backend "
    "--dist-init-addr --ep --ep-size "
    "--expert-parallel-size -dcp --decode-context-parallel-size "
    "--enable-dp-attention --disaggregation-mode -ts --tensor-split -sm --split-mode --rpc",
    why.CLIENTS: "--sampling-defaults --ignore-eos",
    why.BY_REQUEST: "--reasoning-budget --reasoning-effort --grammar --grammar-file "
    "-j --json-schema --prefill-assistant",
    why.SPECULATION: "--speculative-model --num-speculative-tokens",
    "drafts of a row are a line, and no tree: 1 is how it is": "--speculative-eagle-topk",
    "the folder of the model has what it sees by; GGUF files are read for their texts": "-mm --mmproj --mmproj-url",
    "--media-memory-bytes sets it, for pictures of running requests and a cache together": "--mm-processor-cache-gb "
    "--disable-mm-preprocessor-cache --mm-processor-cache-type",
    "pictures stand where the client puts them": "--interleave-mm-strings",
    "--runner and --convert say what a model is for, and --pooler-config how it pools": "--task --pooling",
    "weights and running sequences stay where the model is": "--cpu-offload-gb --swap-space",
    why.KV_ELSEWHERE: "--kv-offloading-size "
    "--kv-offloading-backend --enable-hierarchical-cache --hicache-ratio --hicache-size --enable-lmcache -cram "
    "--cache-ram --slot-save-path",
    why.KV_CARRIED: "--kv-transfer-config",
    "a prompt is kept whole, and refused where it is too long": "--keep",
    why.KV_MEMORY: "--num-gpu-blocks-override --max-total-tokens",
    "--kv-cache-dtype sets the type of keys and values together": "-ctk --cache-type-k -ctv --cache-type-v",
    "a GGUF file is named as the model: the file itself, or ORGANISATION/NAME:TYPE of the hub": "--hf-file -hff "
    "--model-url -mu",
    why.CONFIG_JSON: "--rope-scaling --rope-theta --rope-scale --rope-freq-base "
    "--hf-config-path --override-kv --load-config",
    "HF_HUB_OFFLINE=1 keeps from the hub": "--offline",
    "values of weights are not looked at; `actorserve check MODEL` looks at what is in the files": "--check-tensors",
    "there are no platforms of other packages": "--additional-config",
    "HF_TOKEN holds the key of the hub": "--hf-token -hft",
    "--renderers sets how many processes tokenise": "--tokenizer-pool-size",
    "--revision is that of the model; a folder of another one can be given by --tokenizer": "--tokenizer-revision "
    "--code-revision",
    "it is always there; a proxy before the server can keep clients from it": "--no-props",
    why.PROXY: "--ssl-cert-reqs --ssl-ciphers --path",
    "no code of this kind is loaded": "--scheduler-cls --tools",
    "--profile-dir is the folder for /start_profile": "--profiler-config",
    "logprobs are those of the model, before penalties, bias and temperature": "--logprobs-mode",
    why.GPUS: "--base-gpu-id --gpu-id-step -mg --main-gpu -dev",
    why.OWN_LOG: "--log-file --log-disable --log-config-file --enable-log-outputs",
    "a sequence ends at --max-model-len": "--context-shift",
    why.ONE_DEVICE: "--offload-backend --cpu-moe -cmoe --n-cpu-moe -ncmoe -ot --override-tensor",
    "--shutdown-timeout and --step-timeout are there": "--timeout -to",
    why.ORDER: "--scheduler-delay-factor --max-num-partial-prefills --max-long-partial-prefills --num-scheduler-steps",
}
UNDERSTOOD: dict[str, dict[str, tuple[str, object]]] = {  # values of the refused that one of our options means
    "--task": dict.fromkeys(("embed", "embedding"), ("runner", "pooling")),
    "--pooling": {name: ("pooler_config", {"pooling_type": name.upper()}) for name in ("mean", "cls", "last")},
    "--sampling-defaults": {"openai": ("generation_config", "none")},
    **{
        name: {str(1 << power): ("enable_expert_parallel", True) for power in range(1, 9)}
        for name in ("--ep", "--ep-size", "--expert-parallel-size")
    },
}
HARMLESS = {  # values of the refused that say what is so anyway
    **dict.fromkeys(REFUSED[why.PARALLEL].split(), ("1",)),
    "--disaggregation-mode": ("null",),
    "--task": ("auto", "generate"),
    "--sampling-defaults": ("model",),
    "--num-scheduler-steps": ("1",),
    "--base-gpu-id": ("0",),
    "--gpu-id-step": ("1",),
    "--cpu-offload-gb": ("0", "0.0"),
    "--swap-space": ("0", "0.0", "4"),  # 4 is what vLLM took by itself
    "--additional-config": ("{}",),
    "--speculative-eagle-topk": ("1",),
    "--logprobs-mode": ("raw_logprobs",),
    "-ctk": ("f16", "bf16"),
    "-ctv": ("f16", "bf16"),
    "--cache-type-k": ("f16", "bf16"),
    "--cache-type-v": ("f16", "bf16"),
}
