"""Request bodies of the endpoints that pool, as msgspec structs, by the names of OpenAI, vLLM, Cohere and Jina."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from actorserve.actors.protocol.sampling.ranges import Range

from ..openai.schemas import Object, Priority
from .packed import Order, Type

Texts = str | list[str | int | list[int]]
Strings = str | list[str]
MAX_INPUTS = 2048  # of one request, as OpenAI has it
UNMADE = ("int8", "uint8")  # types of vectors' numbers: how their ranges are found is not told


class PoolingFields(msgspec.Struct, kw_only=True):
    """What all have in common."""

    model: str | None = None
    user: str | None = None
    request_id: str | None = None
    priority: Priority = None
    truncate_prompt_tokens: Annotated[int | None, Range(-1)] = None  # keep so many; -1: as many as the model takes
    truncation_side: Literal["left", "right"] | None = None  # what is cut off; right if left out
    add_special_tokens: bool | None = None
    cache_salt: str | None = None
    mm_processor_kwargs: Object | None = None  # ProcessorChanges, of a model that sees
    softmax: bool | None = None  # these three say the same
    activation: bool | None = None
    use_activation: bool | None = None


class InputFields(PoolingFields, kw_only=True):
    """Texts, or lists of token ids; or a conversation."""

    input: Texts | None = None
    messages: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: Object | None = None
    prompt_name: str | None = None  # a prompt of sentence-transformers' that stands before each text
    input_type: str | None = None  # likewise


class EmbeddingRequest(InputFields, kw_only=True):
    """POST /v1/embeddings."""

    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] | None = None
    dimensions: Annotated[int | None, Range(1)] = None
    output_dimension: Annotated[int | None, Range(1)] = None  # the same, and what follows: Mistral's and Voyage's
    output_dtype: Literal["float", "int8", "uint8", "binary", "ubinary"] | None = None
    normalize: bool | None = None
    embed_dtype: Type | None = None  # of what is in base64 or bytes, as is the next
    endianness: Order | None = None


class PoolingRequest(EmbeddingRequest, kw_only=True):
    """POST /pooling."""

    task: Literal["embed", "token_embed", "classify", "token_classify", "plugin"] | None = None
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)  # for --io-processor-plugin


class ClassifyRequest(InputFields, kw_only=True):
    """POST /classify."""

    inputs: list[str] | None = None  # these three are Cohere's, and its is the answer to them
    truncate: Literal["NONE", "START", "END"] | None = None  # END if left out
    examples: list[Object] | None = None  # known, and refused


class PairFields(PoolingFields, kw_only=True):
    """What requests for scores of pairs have in common."""

    instruction: str | None = None  # by what texts are compared, for a model that is told so
    instruct: str | None = None  # the same
    chat_template_kwargs: Object | None = None  # variables of the operator's template, which makes one text of two
    max_tokens_per_query: Annotated[int | None, Range(0)] = None  # of each first text; 0: all
    max_tokens_per_doc: Annotated[int | None, Range(0)] = None  # of each second


class ScoreRequest(PairFields, kw_only=True):
    """POST /score: each of the first with each of the second, or one with all."""

    text_1: Strings | None = None
    text_2: Strings | None = None
    queries: Strings | None = None  # the same by another name
    documents: Strings | None = None
    items: Strings | None = None
    data_1: Strings | None = None
    data_2: Strings | None = None


class RerankRequest(PairFields, kw_only=True):
    """POST /rerank: which of the documents answers the query best. `texts` are those of TEI's clients and
    llama.cpp's, who get a list.
    """

    query: str
    documents: str | list[str | dict[str, Any]] | None = None  # objects have a `text`, or what rank_fields say
    rank_fields: list[str] | None = None  # Cohere's version 1
    texts: list[str] | None = None
    top_n: Annotated[int | None, Range(0)] = None  # 0: all
    return_documents: bool | None = None
    return_text: bool | None = None  # these four go with `texts`
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "Left", "right", "Right"] | None = None
