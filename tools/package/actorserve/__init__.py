"""actorserve: a large-language-model server of independent processes, over the OpenAI API."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actorserve.actors.llm.inputs.lora import LoRARequest as LoRARequest
    from actorserve.actors.llm.link import EngineDead as EngineDead
    from actorserve.actors.llm.llm import LLM as LLM
    from actorserve.actors.llm.methods.beam_search import BeamSearchParams as BeamSearchParams
    from actorserve.actors.llm.methods.metrics import Counter as Counter
    from actorserve.actors.llm.methods.metrics import Gauge as Gauge
    from actorserve.actors.llm.methods.metrics import Histogram as Histogram
    from actorserve.actors.llm.methods.metrics import Metric as Metric
    from actorserve.actors.llm.methods.metrics import Vector as Vector
    from actorserve.actors.llm.outputs import CompletionOutput as CompletionOutput
    from actorserve.actors.llm.outputs import PromptError as PromptError
    from actorserve.actors.llm.outputs import RequestOutput as RequestOutput
    from actorserve.actors.llm.pooling import ClassificationOutput as ClassificationOutput
    from actorserve.actors.llm.pooling import ClassificationRequestOutput as ClassificationRequestOutput
    from actorserve.actors.llm.pooling import EmbeddingOutput as EmbeddingOutput
    from actorserve.actors.llm.pooling import EmbeddingRequestOutput as EmbeddingRequestOutput
    from actorserve.actors.llm.pooling import PoolingOutput as PoolingOutput
    from actorserve.actors.llm.pooling import PoolingParams as PoolingParams
    from actorserve.actors.llm.pooling import PoolingRequestOutput as PoolingRequestOutput
    from actorserve.actors.llm.pooling import ScoringOutput as ScoringOutput
    from actorserve.actors.llm.pooling import ScoringRequestOutput as ScoringRequestOutput
    from actorserve.actors.llm.sampling_params import RequestOutputKind as RequestOutputKind
    from actorserve.actors.llm.sampling_params import SamplingParams as SamplingParams
    from actorserve.actors.llm.sampling_params import StructuredOutputsParams as StructuredOutputsParams
    from actorserve.actors.llm.streaming.async_llm import AsyncLLM as AsyncLLM
    from actorserve.actors.llm.streaming.async_llm import AsyncLLMEngine as AsyncLLMEngine
    from actorserve.actors.llm.streaming.engine_args import AsyncEngineArgs as AsyncEngineArgs
    from actorserve.actors.llm.streaming.engine_args import EngineArgs as EngineArgs
    from actorserve.actors.llm.streaming.input_stream import InputStreamError as InputStreamError
    from actorserve.actors.llm.streaming.input_stream import StreamingInput as StreamingInput
    from actorserve.actors.llm.streaming.step_engine import LLMEngine as LLMEngine
    from actorserve.actors.options.config import ConfigError as ConfigError
    from actorserve.actors.porter.connector import KVConnector as KVConnector
    from actorserve.actors.renderer.io_processors.interface import IOProcessor as IOProcessor
    from actorserve.actors.worker.plugins.interface import AdapterLogitsProcessor as AdapterLogitsProcessor
    from actorserve.actors.worker.plugins.interface import BatchUpdate as BatchUpdate
    from actorserve.actors.worker.plugins.interface import LogitsProcessor as LogitsProcessor
    from actorserve.actors.worker.plugins.worker import Worker as Worker

__version__ = "0.1.0"

_HOMES = {  # loaded when they are asked for, so that the package itself is light
    "AdapterLogitsProcessor": "worker.plugins.interface",
    "IOProcessor": "renderer.io_processors.interface",
    "AsyncEngineArgs": "llm.streaming.engine_args",
    "AsyncLLM": "llm.streaming.async_llm",
    "AsyncLLMEngine": "llm.streaming.async_llm",
    "BatchUpdate": "worker.plugins.interface",
    "BeamSearchParams": "llm.methods.beam_search",
    **dict.fromkeys(("Counter", "Gauge", "Histogram", "Metric", "Vector"), "llm.methods.metrics"),
    "EngineArgs": "llm.streaming.engine_args",
    "LLMEngine": "llm.streaming.step_engine",
    "RequestOutputKind": "llm.sampling_params",
    "ConfigError": "options.config",
    "CompletionOutput": "llm.outputs",
    "EngineDead": "llm.link",
    "InputStreamError": "llm.streaming.input_stream",
    "KVConnector": "porter.connector",
    "LLM": "llm.llm",
    "LoRARequest": "llm.inputs.lora",
    "LogitsProcessor": "worker.plugins.interface",
    "ClassificationOutput": "llm.pooling",
    "ClassificationRequestOutput": "llm.pooling",
    "EmbeddingOutput": "llm.pooling",
    "EmbeddingRequestOutput": "llm.pooling",
    "PoolingOutput": "llm.pooling",
    "PoolingParams": "llm.pooling",
    "PoolingRequestOutput": "llm.pooling",
    "ScoringOutput": "llm.pooling",
    "ScoringRequestOutput": "llm.pooling",
    "PromptError": "llm.outputs",
    "RequestOutput": "llm.outputs",
    "SamplingParams": "llm.sampling_params",
    "StreamingInput": "llm.streaming.input_stream",
    "StructuredOutputsParams": "llm.sampling_params",
    "Worker": "worker.plugins.worker",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.actors.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
