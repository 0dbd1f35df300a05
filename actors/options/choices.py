"""The types of options: bounds of numbers, and what those that name one of several may name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from ..model import quantization as weight_formats

Positive = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=1, le=65535)]
MOST_SECONDS = 1_000_000  # 11 days: sockets and clocks take no more than 2**31 ms, and no infinity
PositiveFloat = Annotated[float, Meta(gt=0, le=MOST_SECONDS)]
NonNegative = Annotated[int, Meta(ge=0)]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
FingerprintMode = Literal["full", "none", "custom"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
ConfigFormat = Literal["auto", "hf", "mistral"]
LoadFormat = Literal["auto", "hf", "safetensors", "mistral", "dummy"]
GenerationConfig = Literal["auto", "none"]
TokenizerMode = Literal["auto", "hf", "slow", "mistral", "deepseek_v32", "deepseek_v4"]
Policy = Literal["fcfs", "priority"]
Device = Literal["auto", "cpu", "cuda"]
CpuKernels = Literal["auto", "native", "torch"]
if TYPE_CHECKING:
    Quantization = str
else:
    Quantization = Literal[weight_formats.NAMES]
_Kept = Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8", "nvfp4"]
_TurboQuant = Literal["turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"]
KVCacheDType = Literal[_Kept, _TurboQuant]
ModelImpl = Literal["auto", "native", "transformers"]
WorkerKind = Literal["model", "scripted"]
ExecutorBackend = Literal["mp", "uni", "ray", "external_launcher"]
Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "none", "embed", "classify", "reward"]

ContentFormat = Literal["auto", "string", "openai"]
ToolParser = Literal[
    "auto",
    "none",
    "hermes",
    "qwen3_coder",
    "qwen3_xml",
    "llama3_json",
    "pythonic",
    "mistral",
    "deepseek_v3",
    "deepseek_v31",
    "openai",
    "glm45",
    "kimi_k2",
    "granite",
    "apertus",
    "gigachat3",
    "cohere_command_r",
    "seed_oss",
    "minimax_m2",
    "minimax_m3",
    "llama4_json",
    "llama4_pythonic",
    "hunyuan_a13b",
    "jamba",
    "nemotron_json",
    "longcat",
    "kimi_k3",
    "gemma4",
    "functiongemma",
    "gemma3",
    "lfm2",
    "cohere_command3",
    "cohere_command4",
    "phi4_mini_json",
    "xlam",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v41",
    "gigachat35",
    "dots",
    "solar_open2",
    "step3",
    "step3p5",
    "ernie45",
    "olmo3",
    "functionary",
    "internlm",
    "minimax",
    "glm47",
    "granite4",
    "granite_20b_fc",
    "mimo",
    "hy_v3",
    "minicpm5",
    "plamo3",
]
ReasoningParser = Literal[
    "auto",
    "none",
    "deepseek_r1",
    "deepseek_v3",
    "qwen3",
    "mistral",
    "openai_gptoss",
    "glm45",
    "granite",
    "granite33",
    "apertus",
    "seed_oss",
    "minimax_m2",
    "minimax_m2_append_think",
    "minimax_m3",
    "gemma4",
    "kimi_k2",
    "kimi_k3",
    "kimi",
    "cohere_command3",
    "cohere_command4",
    "deepseek_v4",
    "hunyuan_a13b",
    "step3",
    "step3p5",
    "ernie45",
    "olmo3",
    "nemotron_v3",
    "longcat",
    "hy_v3",
    "solar_open2",
    "apriel",
    "plamo3",
]
