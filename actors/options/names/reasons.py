"""Why a name of another server is needless, or refused, where several of them share the reason."""

from __future__ import annotations

ONE_WAY = "there is one way to do this, and nothing to choose"
IN_PARTS = "prompts are always computed in parts, beside running streams"
AHEAD = "the next step is always planned while one runs"
GRAPHS = "nothing is compiled; CUDA graphs are on but for --enforce-eager"
IN_MEMORY = "weights are read into memory, and stay there"
REPLACED = "a worker that dies or hangs is replaced, by --step-timeout"
METRICS = "/metrics is there unless --no-enable-metrics"
ONE_LOG = "there is one log, of which --log-level and --log-stats-interval say how much it tells"
SLEEP = "/sleep is there with --admin-api-key"
THINKING = "reasoning is found out from the chat template; --reasoning-parser names another form"
NO_ACCESS_LOG = "there is no access log beside the line of each request"
ALL_ON_DEVICE = "all layers, keys and values are where --device says"

LORA = "adapters are folders of PEFT's, as --lora-modules names them, and are kept in float32, or the GPU's type"
PARALLEL = (
    "a model is divided by --tensor-parallel-size and --pipeline-parallel-size, this over machines by --nnodes, and "
    "there are --data-parallel-size of them on one"
)
CLIENTS = "clients say it with each request, and the model's generation_config.json where they do not"
BY_REQUEST = "clients say it with each request"
SPECULATION = 'drafts are set by --speculative-config \'{"method": "ngram", "num_speculative_tokens": 5}\''
KV_ELSEWHERE = "--kv-offload host:SIZE or folder:PATH:SIZE keeps KV blocks elsewhere, too"
KV_CARRIED = "--kv-offload tcp:HOST:PORT, peer:HOST:PORT or plugin:MODULE:NAME carries KV blocks"
CONFIG_JSON = "the folder of the model's config.json says it"
OWN_LOG = "what the server says goes to its standard output"
ONE_DEVICE = "all weights are on one device, that of --device"
GPUS = "CUDA_VISIBLE_DEVICES chooses the GPUs"
KV_MEMORY = "--kv-cache-memory-bytes sets the KV memory"
PROXY = "put a proxy before the server"
ORDER = "sequences run in the order of --scheduling-policy"

PICTURES = "--mm-processor-kwargs and --media-io-kwargs say how pictures and films are read"
WHOLE_MODEL = "what encodes pictures and what makes texts of them are one model, in the same workers"
READ_FILES = "weights are files of the model's folder, or of the hub"
WEIGHTS = "--quantization and --dtype say in which form weights are held and multiplied"
FULL_ATTENTION = "attention sees all tokens that the model's config.json lets it see"
NOT_TOLD = "answers do not tell it"
LABELS = "names and buckets of /metrics are fixed; labels are added by what reads them"
