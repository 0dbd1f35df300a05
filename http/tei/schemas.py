"""The bodies of Text Embeddings Inference's API as msgspec structs. null means absent for every field."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from actorserve.actors.protocol.sampling.ranges import Range

from ..pooling.schemas import Texts

MOST_TEXTS = 256  # of a request whose tokens are told
Direction = Literal["left", "Left", "right", "Right"]


class TeiFields(msgspec.Struct, kw_only=True):
    """What all that a model makes something of have in common."""

    model: str | None = None
    truncate: bool | None = None  # what is longer than the model takes is cut, and not refused
    truncation_direction: Direction | None = None
    prompt_name: str | None = None


class TeiEmbedRequest(TeiFields, kw_only=True):
    """POST /embed."""

    inputs: Texts
    normalize: bool | None = None  # yes, if left out
    dimensions: Annotated[int | None, Range(1)] = None
    encoding_format: Literal["float"] | None = None


class TeiEmbedAllRequest(TeiFields, kw_only=True):
    """POST /embed_all."""

    inputs: Texts


class TeiPipeline(msgspec.Struct, kw_only=True):
    """`parameters` of huggingface_hub's text_classification."""

    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None
    top_k: Annotated[int, Meta(ge=1)] | None = None


class TeiPredictRequest(TeiFields, kw_only=True):
    """POST /predict: a text, a pair of two, or a list of lists of one or two."""

    inputs: str | list[str | list[str]]
    raw_scores: bool | None = None
    parameters: TeiPipeline | None = None


class TeiSentences(msgspec.Struct):
    """What is compared."""

    source_sentence: str
    sentences: Annotated[list[str], Meta(min_length=1)]


class TeiSimilarityRequest(msgspec.Struct, kw_only=True):
    """POST /similarity: how near each of the sentences is to the source."""

    inputs: TeiSentences
    parameters: TeiFields | None = None
    model: str | None = None


class TeiTokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize."""

    inputs: str | Annotated[list[str], Meta(max_length=MOST_TEXTS)]
    add_special_tokens: bool | None = None  # yes, if left out
    prompt_name: str | None = None
    model: str | None = None


class TeiDecodeRequest(msgspec.Struct, kw_only=True):
    """POST /decode: ids of one text, or lists of such."""

    ids: Annotated[list[int | list[int]], Meta(max_length=1 << 20)]
    skip_special_tokens: bool | None = None  # yes, if left out
    model: str | None = None


class InputsOf(msgspec.Struct):
    """What of a body tells that it is of this API, and for what."""

    inputs: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    parameters: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
