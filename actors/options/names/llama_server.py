"""Names of `llama-server` that few type, and its variables. Behind a needless one, = is a value that it has."""

from __future__ import annotations

from . import reasons as why

VARIABLES = {  # LLAMA_ARG_…: its option, where that has another name
    "BATCH": "batch-size",
    "UBATCH": "ubatch-size",
    "N_PREDICT": "n-predict",
    "N_PARALLEL": "parallel",
    "ROPE_SCALING_TYPE": "rope-scaling",
    "KV_OFFLOAD": "op-offload",  # as needless; --kv-offload is something else here
    "SPEC_DRAFT_CACHE_TYPE_K": "spec-draft-type-k",
    "SPEC_DRAFT_CACHE_TYPE_V": "spec-draft-type-v",
    "SPEC_DRAFT_HF_REPO": "spec-draft-hf",
    "CHECKPOINT_MIN_SPACING_NT": "checkpoint-min-step",
    "STATIC_PATH": "path",
    "ENDPOINT_METRICS": "metrics",
    "ENDPOINT_PROPS": "props",
    "ENDPOINT_SLOTS": "slots",
    "THINK": "reasoning-format",
    "THINK_BUDGET": "reasoning-budget",
    "THINK_BUDGET_MESSAGE": "reasoning-budget-message",
}
SAMPLING = {  # key of --override-generation-config: names, of what requests leave out
    "temperature": "--temp --temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "top_n_sigma": "--top-nsigma --top-n-sigma",
    "typical_p": "--typical --typical-p",
    "repetition_penalty": "--repeat-penalty",
    "presence_penalty": "--presence-penalty",
    "frequency_penalty": "--frequency-penalty",
    "max_new_tokens": "-n --predict --n-predict",
}
DRAFTS = {  # key of --speculative-config: names
    "method": "--spec-type",
    "model": "-md --model-draft --spec-draft-model -hfd -hfrd --hf-repo-draft --spec-draft-hf",
    "draft_max": "--draft --draft-n --draft-max --spec-draft-n-max",
}
METHODS = {  # of drafts, by their names there
    **{"draft-simple": "draft_model", "draft-eagle3": "eagle3", "draft-mtp": "mtp", "draft-dflash": "dflash"},
    **dict.fromkeys(("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"), "ngram"),
}
UNLIMITED = {"max_new_tokens": ("-1", "-2")}  # what the model's length bounds in any case
SWITCHES = frozenset(  # of the refused: those without a value
    "offline cpu-moe spec-draft-cpu-moe context-shift ui-mcp-proxy agent skip-chat-parsing prefill-assistant".split()
)
WHERE_ON = ("metrics", "props")  # off is how they are there if nobody asks for them

NEEDLESS = {
    why.ONE_WAY: "-C= --cpu-mask= -Cr= --cpu-range= --cpu-strict= --prio= --poll= -Cb= --cpu-mask-batch= -Crb= "
    "--cpu-range-batch= --cpu-strict-batch= --prio-batch= --poll-batch= --swa-full -dt= --defrag-thold= -ctxcp= "
    "--ctx-checkpoints= --swa-checkpoints= -cms= --checkpoint-min-step= --cache-idle-slots -sps= "
    "--slot-prompt-similarity= -bs --backend-sampling --mtmd-batch-max-tokens= --reuse-port --spec-draft-threads= -td= "
    "--threads-draft= --spec-draft-threads-batch= -tbd= --threads-batch-draft= --spec-draft-cpu-mask= -Cd= "
    "--spec-draft-cpu-range= -Crd= --spec-draft-cpu-strict= --spec-draft-prio= --spec-draft-poll= "
    "--spec-draft-cpu-mask-batch= -Cbd= --spec-draft-cpu-strict-batch= --spec-draft-prio-batch= "
    "--spec-draft-poll-batch= --spec-draft-backend-sampling -nocb -no-kvu --cpu-mask-draft= --cpu-range-draft= "
    "--cpu-strict-draft= --prio-draft= --poll-draft= --cpu-mask-batch-draft= --cpu-strict-batch-draft= "
    "--prio-batch-draft= --poll-batch-draft=",
    "there are no tools beside the server": "-no-ag",
    "drafts are verified as they are, however few and unlikely": "--draft-min= --draft-n-min= --spec-draft-n-min= "
    "--draft-p-min= --spec-draft-p-min= --draft-p-split= --spec-draft-p-split=",
    why.IN_MEMORY: "-lm= --load-mode= -lzm= --lazy-mode= -nr",
    why.ALL_ON_DEVICE: "-kvo --no-host --op-offload --mmproj-offload --spec-draft-ngl= -ngld= --gpu-layers-draft= "
    "--n-gpu-layers-draft=",
    "texts come as JSON, with what that escapes": "-e --escape",
    "--kv-cache-memory-fraction and --max-model-len say what has to fit; the log tells what does": "-fit --fit "
    "-fitt= --fit-target= -fitc= --fit-ctx=",
    "a model that takes pictures takes them": "--mmproj-auto",
    "names of a model, by --alias, are all that is told of it": "--tags=",
    "the page keeps its settings in the browser": "--ui-config= --webui-config= --ui-config-file= --webui-config-file=",
    "thoughts of earlier answers are where the chat template puts them": "--reasoning-preserve",
}
REFUSED = {
    why.CLIENTS: "--samplers --sampler-seq --sampling-seq --xtc-probability --xtc-threshold "
    "--repeat-last-n --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker "
    "--adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent "
    "-l --logit-bias",
    why.BY_REQUEST: "-jf --json-schema-file -r --reverse-prompt -sp --special",
    why.SPECULATION: "--spec-default --spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match "
    "--spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n "
    "--spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m "
    "--spec-ngram-map-k4v-min-hits --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits --spec-synth-len "
    "--spec-synth-rates -lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
    "--kv-cache-dtype sets the type of keys and values together": "--spec-draft-type-k -ctkd --cache-type-k-draft "
    "--spec-draft-type-v -ctvd --cache-type-v-draft",
    why.ONE_DEVICE: "-ncffn --n-cpu-ffn --spec-draft-device -devd --device-draft --spec-draft-override-tensor -otd "
    "--override-tensor-draft --spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe "
    "-ncmoed --n-cpu-moe-draft -mmdev --mmproj-device",
    why.CONFIG_JSON: "--rope-freq-scale --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow "
    "--yarn-beta-fast",
    why.PICTURES: "--image-min-tokens --image-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir",
    why.LORA: "--lora-init-without-apply",
    why.OWN_LOG: "--log-prompts-dir",
    why.GPUS: "--list-devices",
    "the folder of the model has what it sees by; GGUF files are read for their texts": "-mmu",
    "a GGUF file is named as the model: the file itself, or ORGANISATION/NAME:TYPE of the hub": "-dr --docker-repo "
    "--embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec "
    "--fim-qwen-14b-spec --fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default "
    "--vision-gemma-4b-default --vision-gemma-12b-default",
    "--max-model-len is how long a sequence may be": "--kv-unified-per-slot",
    "activations are those of the model, and of an adapter that --lora-modules names": "--control-vector "
    "--control-vector-scaled --control-vector-layer-range",
    "--pooler-config '{\"normalize\": false}' leaves vectors as they are": "--embd-normalize",
    "--tool-server takes a file with mcpServers, for what /v1/responses calls": "--mcp-servers-config "
    "--mcp-servers-json",
    "no tool runs beside the server; --tool-server names those that /v1/responses calls": "--tools-runtime "
    "--ui-mcp-proxy --webui-mcp-proxy -ag --agent",
    "--default-chat-template-kwargs '{\"enable_thinking\": false}' turns thinking off": "-rea --reasoning",
    "--tool-call-parser none and --reasoning-parser none leave answers as the model writes them": "--skip-chat-parsing",
    "what stands before and behind is told in the order that the model knows": "--spm-infill",
    "`actorserve --version` says it": "--version",
    "`actorserve models` lists them": "-cl --cache-list",
    "`actorserve completion` writes it": "--completion-bash",
}
THINKING_ON, THINKING_OFF = (("default_chat_template_kwargs", {"enable_thinking": value}) for value in (True, False))
UNDERSTOOD: dict[str, dict[str, tuple[str, object]]] = {
    **{name: {"on": THINKING_ON, "off": THINKING_OFF} for name in ("-rea", "--reasoning")},
    "--reasoning-budget": {"0": THINKING_OFF},
}
UNSET, NAUGHT, ONE = ("-1", "-1.0", "-1.00"), ("0", "0.0", "0.00"), ("1", "1.0", "1.00")
HARMLESS = {  # defaults, which scripts write out: what they say is so anyway, or of what there is not
    **dict.fromkeys(
        "--reasoning-budget --adaptive-target --yarn-ext-factor "
        "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast".split(),
        UNSET,
    ),
    **dict.fromkeys(
        "-mg --main-gpu --mirostat --dry-multiplier --dynatemp-range --xtc-probability "
        "--rope-freq-base --rope-freq-scale --yarn-orig-ctx".split(),
        NAUGHT,
    ),
    "--dynatemp-exp": ONE,
    **dict.fromkeys(("-cram", "--cache-ram"), (*NAUGHT, "8192")),  # texts are the same without
    **dict.fromkeys(("-to", "--timeout"), ("600", "3600")),
    **dict.fromkeys(("-sm", "--split-mode"), ("layer", "none")),
    **dict.fromkeys(
        "--spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft".split(),
        ("f16", "bf16"),
    ),
    "--embd-normalize": ("2",),
    "--reasoning-effort": ("default",),
    **dict.fromkeys(("-rea", "--reasoning"), ("auto",)),
}
