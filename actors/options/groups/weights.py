"""The model: which it is, and how its weights are computed with."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...model import quantization as weight_formats
from ..choices import (
    ConfigFormat,
    Convert,
    DType,
    GenerationConfig,
    LoadFormat,
    ModelImpl,
    Positive,
    Quantization,
    Runner,
)
from .pictures import MediaOptions


class ModelOptions(MediaOptions, frozen=True, kw_only=True):
    """Which files the model is, and what is made of it."""

    dtype: Annotated[
        DType,
        Meta(
            description="of weights and KV memory; auto is float32 on a CPU, on a GPU that of the model's files, but "
            "bfloat16 for float32, float16 in encoders that pool"
        ),
    ] = "auto"
    quantization: Annotated[Quantization, Meta(description=weight_formats.ABOUT)] = "auto"
    model_impl: Annotated[
        ModelImpl,
        Meta(
            description="what computes the model: layers of this server, or transformers' own; auto: the first it has"
        ),
    ] = "auto"
    runner: Annotated[
        Runner,
        Meta(
            description="what the model is for: texts (generate), or embeddings, scores and labels (pooling); auto: as "
            "its files say"
        ),
    ] = "auto"
    convert: Annotated[
        Convert,
        Meta(description="what a pooling model makes: embed, classify or reward; auto: what its architecture has"),
    ] = "auto"
    pooler_config: Annotated[
        str | None,
        Meta(
            description='how a pooling model pools, if not as its files say: JSON such as {"seq_pooling_type": '
            '"MEAN", "normalize": true} or {"classifier_from_token": ["no", "yes"]}'
        ),
    ] = None
    trust_remote_code: Annotated[
        bool, Meta(description="run the Python code that lies beside the model's weights, in the worker")
    ] = False
    deterministic: Annotated[
        bool, Meta(description="answers and logprobs are the same bits alone and in every batch; slower")
    ] = False
    config_format: Annotated[
        ConfigFormat,
        Meta(
            description="which form the folder is read in: hf (config.json) or mistral (params.json and "
            "consolidated*.safetensors); auto: hf where it has both"
        ),
    ] = "auto"
    load_format: Annotated[
        LoadFormat,
        Meta(
            description="hf or mistral say the same; safetensors reads no GGUF file; dummy fills the weights with "
            "random numbers"
        ),
    ] = "auto"
    seed: Annotated[int, Meta(ge=0, description="of dummy weights")] = 0
    revision: Annotated[str | None, Meta(description="branch, tag or commit of a hub name")] = None
    download_dir: Annotated[
        str | None,
        Meta(description="the folder for models of the hub, in the form of its cache; HF_HUB_CACHE if left out"),
    ] = None
    weight_cache_gib: Annotated[
        float,
        Meta(
            ge=0,
            le=1 << 20,
            description="GiB of weights that are kept as a CPU computes with them, in actorserve/weights of "
            "$XDG_CACHE_HOME (~/.cache), so that the next start need not make them; 0 keeps and uses none",
        ),
    ] = 16.0
    hf_overrides: Annotated[
        str | None,
        Meta(description='fields of config.json that are to be otherwise: JSON such as {"rope_theta": 1000000}'),
    ] = None
    generation_config: Annotated[
        GenerationConfig, Meta(description="auto takes sampling defaults from the model's generation_config.json")
    ] = "auto"
    override_generation_config: Annotated[
        str | None,
        Meta(description='sampling defaults instead of the model folder\'s: JSON such as {"temperature": 0.5}'),
    ] = None
    max_model_len: Annotated[
        Positive | None, Meta(description="tokens of prompt and answer together; as the model was made if left out")
    ] = None
